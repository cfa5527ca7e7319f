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
fn the_library_has_the_sdks_functions_and_the_extensions_and_hides_the_rest() {
    let Some(names) = exported("libmxl_fabrics_capi.so") else { return };
    let sdks: Vec<&str> = include_str!("functions.txt").lines().collect();
    let extensions: Vec<&str> = include_str!("extension_functions.txt").lines().collect();
    assert_eq!((sdks.len(), extensions.len()), (25, 5));
    // The extensions have a prefix that the SDK does not use, and their headers declare all of them.
    let headers =
        [include_str!("../include/mxl/ofi_merge.h"), include_str!("../include/mxl/ofi_protocol.h")].concat();
    assert!(
        extensions.iter().all(|name| name.starts_with("ofiMxl") && headers.contains(&format!("{name}(")))
    );
    assert_eq!(names, [sdks, extensions].concat());
}

#[test]
fn a_c_program_merges_two_paths_of_which_either_dies() {
    merges_two_paths("polled");
}

#[test]
fn a_c_program_merges_two_paths_in_a_thread_of_the_library() {
    merges_two_paths("driven");
}

fn merges_two_paths(how: &str) {
    let (near, far) = (Folder::new(), Folder::new());
    if program("merge.c").run(&[near.path(), far.path(), how.as_ref()]) {
        // The flows of the paths and the merged one were deleted.
        assert_eq!(std::fs::read_dir(far.path()).unwrap().count(), 0);
    }
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

#[test]
fn a_c_program_drives_both_ends_from_one_thread() {
    let (near, far) = (Folder::new(), Folder::new());
    if program("alone.c").run(&[near.path(), far.path()]) {
        assert_eq!(std::fs::read_dir(far.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_truncated_file_is_told_by_whichever_library_uses_it() {
    let domain = Folder::new();
    if program("truncated.c").run(&[domain.path()]) {
        assert_eq!(std::fs::read_dir(domain.path()).unwrap().count(), 0);
    }
}
