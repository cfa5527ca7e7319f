//! The instruction counter, against a path whose count is known.

use std::path::Path;

use ofi_benches::{Error, instructions};

#[test]
fn a_known_loop_is_counted() {
    let program = Path::new(env!("CARGO_BIN_EXE_ofi-benches"));
    match instructions::per_operation(program, &instructions::CALIBRATION) {
        // A thousand iterations; a debug build takes some dozens of instructions for each.
        Ok(count) => assert!((2_000.0..200_000.0).contains(&count), "{count}"),
        Err(Error::Missing { program, .. }) => eprintln!("skipped: {program} is not installed"),
        Err(error) => panic!("{error}"),
    }
}
