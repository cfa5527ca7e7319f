//! Shows where this machine's NICs and accelerators are, and which belong together.

fn main() -> std::process::ExitCode {
    ofi_tools::topo::main()
}
