//! Decodes the packets of provider `udp` in a capture.

fn main() -> std::process::ExitCode {
    ofi_tools::dump::main()
}
