//! Measures messages and remote memory access between two processes.

fn main() -> std::process::ExitCode {
    ofi_tools::pingpong::main()
}
