//! Runs examples as programs.

use std::process::Command;

/// The command of an example. `cargo test` builds examples beside the tests.
pub fn example(name: &str) -> Command {
    let tests = std::env::current_exe().expect("this program");
    let built = tests.ancestors().nth(2).expect("the build folder").join("examples").join(name);
    assert!(built.exists(), "{} does not exist (build it: cargo build -p ofi --examples)", built.display());
    Command::new(built)
}
