//! `cargo xtask rdma`: the tests that need an RDMA device, on the machine's device.

use std::path::Path;
use std::time::Duration;

use super::machine::Ended;
use super::{machine, prepare};
use crate::checks::workspace;
use crate::step::{NOT_RUN, Outcome, Report, not_run, output, root};
use crate::stock::Stock;
use crate::{StepResult, capi, install, installed};

/// Time limit of each, including the boot.
const LIMIT: Duration = Duration::from_secs(900);
/// Maximum failed tests that are run again. With more failures the change is broken, not the tests.
const MAX_RETRIED_TESTS: usize = 8;
/// The machine's memory, in MiB.
const MEMORY: u64 = 3072;

/// A test program.
#[derive(Clone, Copy)]
struct Program {
    package: &'static str,
    test: &'static str,
    /// A feature that it needs.
    feature: Option<&'static str>,
    threads: u32,
    /// The cases to run: those whose names contain one of these, or all if empty.
    cases: &'static [&'static str],
}

const PROGRAMS: [Program; 3] = [
    Program { package: "ibv", test: "loopback", feature: None, threads: 1, cases: &[] },
    Program {
        package: "mxl-fabrics",
        test: "integration",
        feature: None,
        threads: 1,
        cases: &["over_verbs"],
    },
    // The cases of the conformance suite whose results depend on the device. The nightly runs more of them.
    Program {
        package: "ofi-tests",
        test: "verbs",
        feature: Some("verbs"),
        threads: 4,
        cases: &[
            "verbs::skipped",
            "peers_of_one_host",
            "atomics::",
            "connected::",
            "shared_receive::",
            "strangers::",
            "verbs::connection::",
            "native::",
            "datagram::messages_of",
            "datagram::a_sender",
            "datagram::a_blocked",
            "datagram::addresses",
            "groups::",
            "loss::",
            "link::",
            "limits::",
            "nic::",
            "safe::",
            "hostile::",
            "verbs_msg::rma::",
            "verbs_msg::wait_objects::",
            "verbs::receive::",
            "verbs::rma::",
            "verbs::regions::",
            "verbs::progress::",
            "verbs::contexts::what_a_closing",
        ],
    },
];

/// Modules of the conformance suite that test the core rather than the device; every check runs them over the simulated
/// device. Each row starts a machine. The whole suite takes half an hour in emulation, and some cases then exceed their
/// time limits; `cargo xtask vm` runs any of them.
const MODULES: [&[&str]; 4] = [
    &["verbs::matching::", "verbs::order::", "verbs::multi_receive::", "verbs::levels::"],
    &["verbs::completion::"],
    &["verbs::six::", "verbs::counters::", "verbs::contexts::"],
    &["verbs_msg::completion::", "verbs_msg::sharing::"],
];

/// The modules that a check omits.
pub fn nightly(report: &mut Report) {
    for modules in MODULES {
        let name = format!("{} on soft-RoCE", modules.join(" "));
        report.add(&name, || tests(&name, &program("ofi-tests", "verbs", Some("verbs"))?, 4, modules));
    }
}

/// Runs the tests of a check.
pub fn run(report: &mut Report) {
    report.add_retried("soft-RoCE's devices", || {
        inside("soft-RoCE's devices", &["tests/verbs/devices.sh".into()])
    });
    let name = "C libfabric's verbs beside ours, on soft-RoCE";
    report.add_retried(name, || {
        let stock = Stock::of_system();
        if !stock.compiles("#include <rdma/fabric.h>") {
            return not_run(name, "no headers of libfabric (apt-get install libfabric-dev)");
        }
        let installed = match library()? {
            Ok(installed) => installed,
            Err(why) => return not_run(name, why),
        };
        let source = root().join("tests/capi/verbs/atomics.c");
        let program = stock.output(&installed.work()?, &source);
        stock.program(&[&source], &program, &[])?;
        script(name, "tests/verbs/interop.sh", &[&installed.lib(), &program])
    });
    let name = "other programs on our device, on soft-RoCE";
    report.add_retried(name, || match library()? {
        Ok(installed) => script(name, "tests/verbs/neighbours.sh", &[&installed.lib()]),
        Err(why) => not_run(name, why),
    });
    let name = "addresses of devices beside C's, on soft-RoCE";
    report.add_retried(name, || match library()? {
        Ok(installed) => {
            let tests = program("ofi-tests", "verbs", Some("verbs"))?;
            script(name, "tests/verbs/addresses.sh", &[&installed.lib(), Path::new(&tests)])
        }
        Err(why) => not_run(name, why),
    });
    let name = "Open MPI over verbs, on soft-RoCE";
    report.add_retried(name, || {
        if !capi::has_open_mpi() {
            return not_run(name, capi::NO_OPEN_MPI);
        }
        match library()? {
            Ok(installed) => {
                script(name, "tests/verbs/mpi.sh", &[&installed.lib(), &capi::stress(&installed.work()?)?])
            }
            Err(why) => not_run(name, why),
        }
    });
    let name = "what a host lacks, on soft-RoCE";
    report.add_retried(name, || {
        let installed = installed::files()?;
        let tools = ["fi_info", "fi_pingpong"].map(|name| installed.program(name));
        script(name, "tests/verbs/refusals.sh", &tools.each_ref().map(|path| path.as_path()))
    });
    let name = "fi_write_demo and the examples over verbs, on soft-RoCE";
    report.add_retried(name, || {
        let demo = installed::files()?.program("fi_write_demo");
        let words = capi::WRITE_DEMO.into_iter().chain(["--provider", "verbs"]).map(Path::new);
        let folder = capi::examples()?;
        let arguments: Vec<&Path> = [folder.as_path(), &demo].into_iter().chain(words).collect();
        script(name, "tests/verbs/examples.sh", &arguments)
    });
    for Program { package, test, feature, threads, cases } in PROGRAMS {
        let name = format!("{package}, {test}, on soft-RoCE");
        report.add(&name, || tests(&name, &program(package, test, feature)?, threads, cases));
    }
}

/// The installation, whose files these programs use, if it has our library. Otherwise the reason why it has none.
fn library() -> Result<Result<&'static installed::Installed, &'static str>, String> {
    let installed = installed::files()?;
    Ok(installed.lacks(install::Part::Libfabric).map_or(Ok(installed), Err))
}

/// Runs the cases of a test program. A failed test is repeated twice by itself, and is flaky if it passes both times.
fn tests(name: &str, program: &str, threads: u32, cases: &[&str]) -> StepResult {
    let arguments = |threads: u32| {
        vec![program.to_string(), format!("--test-threads={threads}"), "--include-ignored".into()]
    };
    let mut all = arguments(threads);
    all.extend(cases.iter().map(|&case| case.into()));
    let failed = match booted(name, &all)? {
        Ok(Ended { status: 0, .. }) => return Ok(Outcome::Passed),
        Ok(ended) => failures(&ended.printed),
        Err(not_run) => return Ok(not_run),
    };
    if failed.is_empty() || failed.len() > MAX_RETRIED_TESTS {
        return Err(format!("{} ended badly, and {} of its tests failed", all.join(" "), failed.len()));
    }
    eprintln!("--- {name}: failed, twice more: {}", failed.join(", "));
    let mut again = arguments(1);
    again.push("--exact".into());
    again.extend(failed.iter().cloned());
    for _ in 0..2 {
        inside(name, &again)?;
    }
    let flaky = failed.into_iter().map(|case| format!("{name}: {case}")).collect();
    Ok(Outcome::Flaky { flaky, not_run: Vec::new() })
}

/// The failed tests: the list at the end of the program's output.
fn failures(printed: &str) -> Vec<String> {
    let Some((_, list)) = printed.rsplit_once("\nfailures:\n") else { return Vec::new() };
    list.lines().map_while(|line| line.strip_prefix("    ")).map(Into::into).collect()
}

/// Runs a script of ours in the machine.
fn script(name: &str, path: &str, arguments: &[&Path]) -> StepResult {
    let arguments = arguments.iter().map(|path| path.to_string_lossy().into_owned());
    let words = ["sh", path].map(Into::into).into_iter().chain(arguments);
    inside(name, &words.collect::<Vec<_>>())
}

/// Runs a command in the machine.
fn inside(name: &str, arguments: &[String]) -> StepResult {
    match booted(name, arguments)? {
        Ok(Ended { status: 0, .. }) => Ok(Outcome::Passed),
        Ok(Ended { status, .. }) if status == i32::from(NOT_RUN) => not_run(name, "see the machine's output"),
        Ok(Ended { status, .. }) => Err(format!("{} ended with status {status}", arguments.join(" "))),
        Err(not_run) => Ok(not_run),
    }
}

/// The same, with the result; the inner error names the requirements that this host lacks.
fn booted(name: &str, arguments: &[String]) -> Result<Result<Ended, Outcome>, String> {
    match prepare() {
        Ok(parts) => machine::run(&parts, arguments, MEMORY, LIMIT).map(Ok),
        Err(why) => not_run(name, &why).map(Err),
    }
}

/// Builds a test program on the host, as `cargo xtask test` builds it. Returns its path.
pub fn program(package: &str, test: &str, feature: Option<&str>) -> Result<String, String> {
    let mut build = workspace(&["test", "--quiet", "--no-run", "--test", test, "--message-format=json"]);
    if let Some(feature) = feature {
        build.args(["--features", &format!("{package}/{feature}")]);
    }
    let text = output(&mut build)?;
    let found = text.lines().find_map(|line| executable(line, package, test));
    found.ok_or_else(|| format!("cargo built no {test} of {package}"))
}

/// The executable of this test program, if a line of cargo's messages names it.
fn executable(line: &str, package: &str, test: &str) -> Option<String> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    // A folder and a version, with the package's name where it is not the folder's: `path+file:///t/ibv#0.1.0`,
    // `path+file:///t/tests#ofi-tests@0.1.0`.
    let (folder, version) = message["package_id"].as_str()?.rsplit_once('#')?;
    let name = version.split_once('@').map(|(name, _)| name).or_else(|| folder.rsplit('/').next());
    let is_it = name == Some(package) && message["target"]["name"] == test;
    message["executable"].as_str().filter(|_| is_it).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::{executable, failures};

    #[test]
    fn executables_are_found_in_cargo_s_messages() {
        let line = |id: &str, target: &str, executable: &str| {
            format!(
                r#"{{"package_id":"path+file:///t/{id}","target":{{"name":"{target}"}},"executable":{executable}}}"#
            )
        };
        let own = line("ibv#0.1.0", "loopback", "\"/t/debug/deps/loopback-1\"");
        assert_eq!(executable(&own, "ibv", "loopback").as_deref(), Some("/t/debug/deps/loopback-1"));
        let named = line("tests#ofi-tests@0.1.0", "verbs", "\"/t/debug/deps/verbs-2\"");
        assert_eq!(executable(&named, "ofi-tests", "verbs").as_deref(), Some("/t/debug/deps/verbs-2"));
        for (package, test) in [("mxl", "loopback"), ("ibv", "integration")] {
            assert_eq!(executable(&own, package, test), None);
        }
        assert_eq!(executable(&line("ibv#0.1.0", "loopback", "null"), "ibv", "loopback"), None);
    }

    #[test]
    fn failures_are_found_in_what_a_program_of_tests_prints() {
        let printed = "test a::b ... ok\ntest c::d_e ... FAILED\n\nfailures:\n\n---- c::d_e stdout ----\nno\n\n\n\
                       failures:\n    c::d_e\n    f\n\ntest result: FAILED. 1 passed; 2 failed\n";
        assert_eq!(failures(printed), ["c::d_e", "f"]);
        assert!(failures("killed\n").is_empty());
    }
}
