//! See `mxl_fabrics::gateway`.

fn main() -> std::process::ExitCode {
    mxl_fabrics::gateway::main()
}
