//! The command lines in the documents: each option exists in its program.

use super::documents::{Program, check};

const PROGRAMS: [Program; 4] = [
    ("mxl-bench", env!("CARGO_BIN_EXE_mxl-bench")),
    ("mxl-fabrics-demo", env!("CARGO_BIN_EXE_mxl-fabrics-demo")),
    ("mxl-gateway", env!("CARGO_BIN_EXE_mxl-gateway")),
    ("mxl-fabrics-info", env!("CARGO_BIN_EXE_mxl-fabrics-info")),
];

#[test]
fn every_documented_option_exists() {
    check(&PROGRAMS, 10);
}
