//! What runs on the stable toolchain.

use crate::step::{Outcome, Report, answers, cargo, not_run, run, run_tests, target_dir};
use crate::{StepResult, docs};

const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// Everything that must pass before a commit.
pub fn test(report: &mut Report) {
    report.add("format", || run(&mut cargo(&["fmt", "--all", "--check"])));
    report.add("lints", || {
        run(cargo(&["clippy", "--workspace", "--all-targets", "--quiet"]).args(["--", "--deny", "warnings"]))
    });
    report.add("tests", tests);
    // What `cargo nextest` does not run.
    report.add("doc tests", || run(&mut cargo(&["test", "--workspace", "--doc", "--quiet"])));
    report.add("documents", || docs::run(true));
}

/// All tests of the workspace, by nextest where it is installed: it runs each in a process of its own.
fn tests() -> StepResult {
    if answers("cargo-nextest", &["nextest", "--version"]) {
        let mut nextest = cargo(&["nextest", "run", "--workspace", "--no-fail-fast"]);
        nextest.args(["--status-level", "fail", "--success-output", "final", "--final-status-level", "slow"]);
        return run_tests(&mut nextest);
    }
    let mut test = cargo(&["test", "--workspace", "--all-targets", "--no-fail-fast", "--quiet"]);
    run_tests(test.args(["--", "--show-output"]))
}

/// The rings under loom. `--release`, as loom walks through millions of interleavings.
pub fn loom() -> StepResult {
    let mut loom = cargo(&["test", "--release", "--quiet", "--package", "ofi-ring", "--lib"]);
    // Link-time optimisation takes longer here than it saves.
    loom.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    run(loom.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target_dir("loom")))
}

/// Instruction counts against `docs/hot-path.md`.
pub fn budgets(write: bool) -> StepResult {
    if !answers("valgrind", &["--version"]) {
        return not_run("instruction budgets", "no valgrind (apt-get install valgrind)");
    }
    let mut benches =
        cargo(&["run", "--release", "--quiet", "--package", "ofi-benches", "--", "instructions"]);
    if write {
        benches.arg("--write");
    }
    run(&mut benches)
}

/// The measurements beside the peers.
pub fn bench(args: &[String]) -> StepResult {
    run(cargo(&["run", "--release", "--quiet", "--package", "ofi-benches", "--"]).args(args))
}

/// Compiles for aarch64, where the target is installed.
pub fn aarch64() -> StepResult {
    let installed = crate::step::command("rustup").args(["target", "list", "--installed"]).output();
    let list =
        installed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    if !list.lines().any(|target| target == AARCH64) {
        return not_run(
            "aarch64",
            "the target is not installed (rustup target add aarch64-unknown-linux-gnu)",
        );
    }
    run(&mut cargo(&["check", "--workspace", "--quiet", "--target", AARCH64])).map(|_| Outcome::Passed)
}
