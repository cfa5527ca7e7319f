//! Measures transfers over one or more rails, between two processes.

fn main() -> std::process::ExitCode {
    ofi_tools::bench::main()
}
