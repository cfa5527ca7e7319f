//! Runs the test suite under nextest, and classifies failures.
//!
//! A failed test is repeated twice by itself. If it passes both times it is flaky: it is listed and counted, and does
//! not fail the run. A flaky test is nevertheless a bug; fix the list before anything else.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use quick_junit::{Report, TestCase, TestCaseStatus};

use crate::StepResult;
use crate::step::{Outcome, run};

/// Maximum failed tests that are run again. With more failures the change is broken, not the tests.
const MAX_RETRIED_TESTS: usize = 20;
/// Number of times that a failed test must pass when it is run by itself.
const RETRIES: usize = 2;

/// Runs the suite. `nextest` builds the command `cargo nextest run` with its packages, to which arguments are added;
/// `junit` is the report that it writes.
///
/// # Errors
/// The suite cannot be built or run, or a failed test does not pass twice by itself.
pub fn suite(nextest: impl Fn() -> Command, junit: &Path) -> StepResult {
    // The report of an earlier run must not be mistaken for this run's.
    let _ = fs::remove_file(junit);
    let levels = ["--no-fail-fast", "--status-level", "slow", "--final-status-level", "slow"];
    let threads = threads().to_string();
    let ended = run(once(nextest()).args(levels).args(["--test-threads", &threads]));
    let report = read(junit).map_err(|why| ended.clone().err().unwrap_or(why))?;
    let not_run = admissions(&report);
    let failed = failures(&report);
    if failed.is_empty() {
        ended?;
        return Ok(outcome(not_run, Vec::new()));
    }
    if failed.len() > MAX_RETRIED_TESTS {
        return Err(format!("{} tests failed", failed.len()));
    }
    let mut still = BTreeSet::new();
    for _ in 0..RETRIES {
        let again =
            run(once(nextest()).args(["--no-fail-fast", "--test-threads", "1", "-E", &filter(&failed)]));
        // nextest fails if it finds fewer tests than requested; the run then proves nothing.
        let report = read(junit).map_err(|why| again.clone().err().unwrap_or(why))?;
        still.extend(failures(&report));
        still.extend(failed.difference(&passed(&report)).cloned());
    }
    if still.is_empty() {
        return Ok(outcome(not_run, failed.iter().map(Test::to_string).collect()));
    }
    let names: Vec<String> = still.iter().map(Test::to_string).collect();
    Err(format!("failed, and again by itself: {}", names.join(", ")))
}

/// Has nextest start each test once. By default it starts itself before each test, for the sake of Ctrl+Z: that costs
/// as much as the start of a test's own program (6 ms).
fn once(mut nextest: Command) -> Command {
    nextest.env("NEXTEST_DOUBLE_SPAWN", "0");
    nextest
}

/// Number of tests that run at a time. They wait about as long as they compute: with one per core, half of the
/// processor time is idle.
fn threads() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from)
}

fn outcome(not_run: Vec<String>, flaky: Vec<String>) -> Outcome {
    match (not_run.is_empty(), flaky.is_empty()) {
        (true, true) => Outcome::Passed,
        (false, true) => Outcome::NotRun(not_run),
        (_, false) => Outcome::Flaky { flaky, not_run },
    }
}

/// A test as nextest names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    binary: String,
    name: String,
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.binary, self.name)
    }
}

fn read(junit: &Path) -> Result<Report, String> {
    let text = fs::read_to_string(junit).map_err(|error| format!("{}: {error}", junit.display()))?;
    Report::deserialize_from_str(&text).map_err(|error| format!("{}: {error}", junit.display()))
}

fn cases(report: &Report) -> impl Iterator<Item = (Test, &TestCase)> {
    report.test_suites.iter().flat_map(|suite| {
        let binary = suite.name.as_str();
        suite.test_cases.iter().map(move |case| {
            (Test { binary: binary.to_string(), name: case.name.as_str().to_string() }, case)
        })
    })
}

fn failures(report: &Report) -> BTreeSet<Test> {
    let failed = |case: &TestCase| matches!(case.status, TestCaseStatus::NonSuccess { .. });
    cases(report).filter(|(_, case)| failed(case)).map(|(test, _)| test).collect()
}

fn passed(report: &Report) -> BTreeSet<Test> {
    let passed = |case: &TestCase| matches!(case.status, TestCaseStatus::Success { .. });
    cases(report).filter(|(_, case)| passed(case)).map(|(test, _)| test).collect()
}

/// A filter expression of nextest for these tests.
fn filter(tests: &BTreeSet<Test>) -> String {
    let one = |test: &Test| format!("(binary_id(={}) and test(={}))", test.binary, test.name);
    tests.iter().map(one).collect::<Vec<_>>().join(" or ")
}

/// Parts that passed tests could not run, from their output lines `NOT RUN: ...` and `skipped: ...`, each with its
/// test's name.
fn admissions(report: &Report) -> Vec<String> {
    let mut all = Vec::new();
    for (test, case) in cases(report) {
        for line in case.system_out.iter().flat_map(|text| text.as_str().lines()).map(str::trim_start) {
            let said = line.strip_prefix("NOT RUN: ").or_else(|| line.strip_prefix("skipped: "));
            all.extend(said.map(|why| format!("{}: {why}", test.name)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const JUNIT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0" uuid="95e83eb1-30dd-4a25-8b71-f2d71e3d8a3c">
  <testsuite name="ofi-tests::udp" tests="3" disabled="0" errors="0" failures="1">
    <testcase name="a::b" classname="ofi-tests::udp" time="0.1">
      <system-out>running 1 test
skipped: no &lt;IPv6&gt;
test a::b ... ok</system-out>
    </testcase>
    <testcase name="d" classname="ofi-tests::udp" time="0.1">
      <system-out>NOT RUN: losses: no nft</system-out>
    </testcase>
    <testcase name="e" classname="ofi-tests::udp" time="0.1">
      <failure type="test failure with exit code 101"/>
    </testcase>
  </testsuite>
</testsuites>"#;

    #[test]
    fn what_a_test_could_not_do_is_told_with_its_name() {
        let report = Report::deserialize_from_str(JUNIT).unwrap();
        assert_eq!(admissions(&report), ["a::b: no <IPv6>", "d: losses: no nft"]);
    }

    #[test]
    fn failures_are_found_and_asked_for_by_name() {
        let report = Report::deserialize_from_str(JUNIT).unwrap();
        let failed = failures(&report);
        assert_eq!(filter(&failed), "(binary_id(=ofi-tests::udp) and test(=e))");
        assert_eq!(passed(&report).len(), 2);
    }
}
