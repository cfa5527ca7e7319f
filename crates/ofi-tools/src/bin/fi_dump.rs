//! Says what the packets of provider `udp` in a capture are.

fn main() -> std::process::ExitCode {
    ofi_tools::dump::main()
}
