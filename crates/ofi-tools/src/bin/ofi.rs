//! One program for what an operator does: `ofi doctor`, and its sisters.

fn main() -> std::process::ExitCode {
    ofi_tools::cli::main()
}
