//! An operator's tasks in one program: `ofi doctor` and others.

fn main() -> std::process::ExitCode {
    ofi_tools::cli::main()
}
