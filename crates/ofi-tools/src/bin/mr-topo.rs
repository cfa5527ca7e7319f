//! Shows the locations of this machine's NICs and accelerators, and which belong together.

fn main() -> std::process::ExitCode {
    ofi_tools::topo::main()
}
