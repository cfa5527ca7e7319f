//! Examples as programs.

use std::process::Command;

/// An example, which `cargo test` builds beside the tests.
pub fn example(name: &str) -> Command {
    let tests = std::env::current_exe().expect("this program");
    let built = tests.ancestors().nth(2).expect("the build folder").join("examples").join(name);
    assert!(built.exists(), "{}: not there (cargo build -p ofi --examples)", built.display());
    Command::new(built)
}
