//! Lists what this host offers to programs on libfabric's interface.

fn main() -> std::process::ExitCode {
    ofi_tools::info::main()
}
