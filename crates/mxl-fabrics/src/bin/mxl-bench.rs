//! See `mxl_fabrics::bench`.

fn main() -> std::process::ExitCode {
    mxl_fabrics::bench::main()
}
