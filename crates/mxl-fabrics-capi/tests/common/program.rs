//! C programs that use this library and `libmxl.so.1`.

use std::path::Path;

use crate::c::Program;

/// A program of `tests/programs`.
pub fn program(source: &str) -> Program<'static> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Program {
        source: here.join("tests/programs").join(source),
        include: vec![here.join("include"), here.join("../mxl-capi/include")],
        libraries: &[("libmxl_fabrics_capi.so", "libmxl-fabrics.so.1"), ("libmxl_capi.so", "libmxl.so.1")],
    }
}
