//! `cargo xtask rdma`: what needs an RDMA device, on the machine's.

use std::time::Duration;

use super::{machine, prepare};
use crate::StepResult;
use crate::step::{NOT_RUN, Outcome, Report, cargo, not_run, output};

/// The longest that one of these may take, the boot included.
const LIMIT: Duration = Duration::from_secs(900);
/// The machine's memory, in MiB.
const MEMORY: u64 = 3072;

/// Programs of tests: the package, and the test in it.
const PROGRAMS: [(&str, &str); 1] = [("ibv", "loopback")];

/// Runs all of it.
pub fn run(report: &mut Report) {
    report.add("soft-RoCE's devices", || inside("soft-RoCE's devices", &["tests/verbs/devices.sh".into()]));
    for (package, test) in PROGRAMS {
        let name = format!("{package}, {test}, on soft-RoCE");
        report.add(&name, || inside(&name, &[program(package, test)?, "--test-threads=1".into()]));
    }
}

/// Runs a command in the machine.
fn inside(name: &str, arguments: &[String]) -> StepResult {
    let parts = match prepare() {
        Ok(parts) => parts,
        Err(why) => return not_run(name, &why),
    };
    match machine::run(&parts, arguments, MEMORY, LIMIT)? {
        0 => Ok(Outcome::Passed),
        status if status == i32::from(NOT_RUN) => not_run(name, "the machine's output says why"),
        status => Err(format!("{} ended with status {status}", arguments.join(" "))),
    }
}

/// Builds a program of tests, on the host: where it is.
fn program(package: &str, test: &str) -> Result<String, String> {
    let args = ["test", "--quiet", "--no-run", "--package", package, "--test", test, "--message-format=json"];
    let text = output(&mut cargo(&args))?;
    let found = text.lines().filter_map(executable).find(|path| path.contains(&format!("/{test}-")));
    found.map(Into::into).ok_or_else(|| format!("cargo built no {test}"))
}

/// What a line of cargo's messages says was built to be executed.
fn executable(line: &str) -> Option<&str> {
    line.split("\"executable\":\"").nth(1)?.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::executable;

    #[test]
    fn executables_are_found_in_cargo_s_messages() {
        let line = r#"{"reason":"compiler-artifact","executable":"/t/debug/deps/loopback-1","fresh":true}"#;
        assert_eq!(executable(line), Some("/t/debug/deps/loopback-1"));
        assert_eq!(executable(r#"{"executable":null}"#), None);
    }
}
