//! Shows the content of a domain.

fn main() -> std::process::ExitCode {
    mxl_tools::info::main()
}
