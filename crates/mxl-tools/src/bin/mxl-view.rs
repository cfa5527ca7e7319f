//! Shows a grain as a picture, or the levels of audio.

fn main() -> std::process::ExitCode {
    mxl_tools::view::main()
}
