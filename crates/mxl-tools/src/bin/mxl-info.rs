//! Shows what is in a domain.

fn main() -> std::process::ExitCode {
    mxl_tools::info::main()
}
