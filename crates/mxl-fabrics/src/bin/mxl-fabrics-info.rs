//! See `mxl_fabrics::list`.

fn main() -> std::process::ExitCode {
    mxl_fabrics::list::main()
}
