//! The command lines of the documents: each option of our programs is one that its program has.

#[path = "../../ofi-tools/tests/common/documents.rs"]
mod documents;

use documents::{Program, check};

const PROGRAMS: [Program; 3] = [
    ("mxl-bench", env!("CARGO_BIN_EXE_mxl-bench")),
    ("mxl-fabrics-demo", env!("CARGO_BIN_EXE_mxl-fabrics-demo")),
    ("mxl-fabrics-info", env!("CARGO_BIN_EXE_mxl-fabrics-info")),
];

#[test]
fn every_documented_option_exists() {
    check(&PROGRAMS, 10);
}
