//! The shared library as C programs see it: its symbols, and a program that calls all of them.

#[path = "../../mxl/tests/common/c.rs"]
mod c;
#[path = "../../mxl/tests/common/folder.rs"]
mod folder;
#[path = "common/program.rs"]
mod program;

use c::exported;
use folder::Folder;
use program::program;

#[test]
fn the_library_has_the_sdks_functions_and_hides_the_rest() {
    let Some(names) = exported("libmxl_fabrics_capi.so") else { return };
    let wanted: Vec<&str> = include_str!("functions.txt").lines().collect();
    assert_eq!(names, wanted);
}

#[test]
fn a_c_program_carries_flows_between_two_domains() {
    let (near, far) = (Folder::new(), Folder::new());
    let program = program("fabrics.c");
    if program.run(&[near.path(), far.path()]) {
        // The flows were deleted with their last writers.
        assert_eq!(std::fs::read_dir(far.path()).unwrap().count(), 0);
    }
}
