//! The shared library as C programs see it: its symbols, and a program that calls all of them.

#[path = "../../mxl/tests/common/c.rs"]
mod c;
#[path = "../../mxl/tests/common/folder.rs"]
mod folder;

use c::{Program, exported};
use folder::Folder;

#[test]
fn the_library_has_the_sdks_functions_and_hides_the_rest() {
    let Some(names) = exported("libmxl_capi.so") else { return };
    let wanted: Vec<&str> = include_str!("functions.txt").lines().collect();
    assert_eq!(names, wanted);
}

#[test]
fn a_c_program_calls_every_function() {
    run("flows.c", &[]);
}

#[test]
fn a_c_program_survives_files_that_are_truncated() {
    run("truncated.c", &[]);
}

#[test]
fn children_that_end_or_release_everything_leave_a_flow_to_their_parent() {
    run("fork.c", &[]);
}

#[test]
fn a_reader_that_stopped_goes_on_at_the_oldest_picture() {
    run("behind.c", &["at-once"]);
}

#[test]
fn a_reader_that_stopped_goes_on_while_the_writer_keeps_a_picture_open() {
    run("behind.c", &["open"]);
}

fn run(source: &str, arguments: &[&str]) {
    let domain = Folder::new();
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Program {
        source: here.join("tests/programs").join(source),
        include: vec![here.join("include")],
        libraries: &[("libmxl_capi.so", "libmxl.so.1")],
    };
    let arguments: Vec<&std::path::Path> =
        std::iter::once(domain.path()).chain(arguments.iter().map(std::path::Path::new)).collect();
    if program.run(&arguments) {
        // The instance deleted the flows of which it was the last writer.
        assert_eq!(std::fs::read_dir(domain.path()).unwrap().count(), 0);
    }
}
