//! The command lines in the documents: each option exists in its program.

#[path = "../../ofi-tools/tests/integration/common/documents.rs"]
mod documents;

use documents::{Program, check};

const PROGRAMS: [Program; 3] = [
    ("mxl-info", env!("CARGO_BIN_EXE_mxl-info")),
    ("mxl-generate", env!("CARGO_BIN_EXE_mxl-generate")),
    ("mxl-view", env!("CARGO_BIN_EXE_mxl-view")),
];

#[test]
fn every_documented_option_exists() {
    check(&PROGRAMS, 15);
}
