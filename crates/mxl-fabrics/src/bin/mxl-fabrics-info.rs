//! See `mxl_fabrics::interfaces`.

fn main() -> std::process::ExitCode {
    mxl_fabrics::interfaces::main()
}
