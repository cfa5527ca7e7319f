//! Carries a flow from one host to another: an initiator here, a target there.

fn main() -> std::process::ExitCode {
    mxl_fabrics::demo::main()
}
