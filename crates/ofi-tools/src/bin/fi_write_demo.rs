//! Writes random pages into another process's memory.

fn main() -> std::process::ExitCode {
    ofi_tools::write_demo::main()
}
