//! The command lines in the documents: each option exists in its program.

use super::documents::{Program, check};

const PROGRAMS: [Program; 3] = [
    ("mxl-bench", env!("CARGO_BIN_EXE_mxl-bench")),
    ("mxl-fabrics-demo", env!("CARGO_BIN_EXE_mxl-fabrics-demo")),
    ("mxl-fabrics-info", env!("CARGO_BIN_EXE_mxl-fabrics-info")),
];

#[test]
fn every_documented_option_exists() {
    check(&PROGRAMS, 10);
}
