//! Writes a test pattern or a tone into a flow.

fn main() -> std::process::ExitCode {
    mxl_tools::generate::main()
}
