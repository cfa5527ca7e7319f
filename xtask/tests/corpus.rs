//! Replays the corpus of the fuzz targets, with the targets' own code.

#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("a corpus for each target") {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        run(&std::fs::read(path).expect("a readable input"));
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}

#[test]
fn control() {
    replay("control", targets::control);
}

#[test]
fn hints() {
    replay("hints", targets::hints);
}

#[test]
fn lane() {
    replay("lane", targets::lane);
}

#[test]
fn record() {
    replay("record", targets::record);
}

#[test]
fn protocol() {
    replay("protocol", targets::protocol);
}
