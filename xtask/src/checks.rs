//! The checks that run on the stable toolchain.

use std::process::Command;

use crate::step::{
    Outcome, Report, answers, cargo, command, has_target, not_run, output, root, run, target_dir,
};
use crate::suite::suite;
use crate::{StepResult, book, capi, docs, filters, hygiene, install};

const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// All checks that must pass before a commit. C programs have a command of their own: `cargo xtask capi --test`.
pub fn test(report: &mut Report) {
    report.add("format", || run(&mut cargo(&["fmt", "--all", "--check"])));
    report.add("lints", || {
        run(workspace(&["clippy", "--all-targets", "--quiet"]).args(["--", "--deny", "warnings"]))
    });
    report.add("tests", tests);
    report.add("ignored tests", ignored);
    // `cargo nextest` does not run these.
    report.add("doc tests", || run(&mut workspace(&["test", "--doc", "--quiet"])));
    report.add("fewer features", fewer_features);
    report.add("topology by hwloc", hwloc);
    report.add("documents", || docs::run(true));
    report.add("the book", book::build);
    report.add("packages", packages);
    hygiene::check(report);
}

/// All tests of the workspace. nextest runs them if it is installed: each in a process of its own.
fn tests() -> StepResult {
    if has_nextest() {
        // nextest writes its report there, wherever cargo builds.
        let junit = root().join("target/nextest/default/junit.xml");
        return suite(|| workspace(&["nextest", "run"]), &junit);
    }
    run(&mut workspace(&["test", "--all-targets", "--no-fail-fast", "--quiet"]))?;
    not_run("parts that tests could not run", "cargo-nextest, which collects it, is not installed")
}

fn has_nextest() -> bool {
    answers("cargo-nextest", &["nextest", "--version"])
}

/// Lists the tests that run only on request.
fn ignored() -> StepResult {
    if !has_nextest() {
        return not_run("the names of ignored tests", "cargo-nextest, which lists them, is not installed");
    }
    let list = ["nextest", "list", "--run-ignored", "only", "--message-format", "oneline"];
    let list = output(&mut workspace(&list))?;
    let ignored = |test| format!("{test}: marked #[ignore] (cargo test -- --ignored)");
    let all: Vec<String> = list.lines().map(ignored).collect();
    Ok(if all.is_empty() { Outcome::Passed } else { Outcome::NotRun(all) })
}

/// Checks `ofi` with one provider, and with two without encryption. All other steps build it with encryption.
fn fewer_features() -> StepResult {
    for features in ["shm", "udp", "tcp", "udp,encryption"] {
        let build =
            ["clippy", "--package", "ofi", "--no-default-features", "--quiet", "--features", features];
        run(cargo(&build).args(["--", "--deny", "warnings"]))?;
    }
    let lints =
        ["clippy", "--package", "ofi", "--no-default-features", "--features", "shm,udp", "--all-targets"];
    run(cargo(&lints).args(["--quiet", "--", "--deny", "warnings"]))?;
    let refusals = ["test", "--package", "ofi", "--no-default-features", "--features", "shm,udp", "--quiet"];
    run(cargo(&refusals).args(["--test", "encryption"]))?;
    // Without ciphers, and with the portable ones alone.
    for features in ["", "encryption"] {
        let packets = ["test", "--package", "ofi-rdm", "--no-default-features", "--lib", "--quiet"];
        run(cargo(&packets).args(["--features", features]))?;
    }
    Ok(Outcome::Passed)
}

/// `cargo` on all packages, with `multirail`'s feature `hwloc` if that C library is installed: the feature only adds
/// functions and their tests. Commands on the same packages and features share a build: with a choice of packages,
/// `ofi-api` and all over it would be compiled once more, for each choice.
pub fn workspace(args: &[&str]) -> Command {
    let mut cargo = cargo(args);
    cargo.arg("--workspace");
    if has_hwloc() {
        cargo.args(["--features", "multirail/hwloc"]);
    }
    cargo
}

fn has_hwloc() -> bool {
    answers("pkg-config", &["--exists", "hwloc >= 2", "libudev"])
}

/// Whether the tests included those of `multirail`'s feature `hwloc`.
fn hwloc() -> StepResult {
    if has_hwloc() {
        return Ok(Outcome::Passed);
    }
    not_run("topology by hwloc", "no hwloc (apt-get install pkg-config libhwloc-dev libudev-dev)")
}

/// Checks that every crate meant for crates.io can be packed: versions, files, metadata. Nothing is compiled.
fn packages() -> StepResult {
    let workspace = [
        "package",
        "--workspace",
        "--no-verify",
        "--allow-dirty",
        "--exclude-lockfile",
        "--offline",
        "--quiet",
    ];
    let others = ["xtask", "ofi-tests", "ofi-benches", "efa-emulator", "cuda-emulator"];
    run(cargo(&workspace).args(others.iter().flat_map(|package| ["--exclude", package])))
}

/// Runs the rings, and the code of writers and readers of media flows, under loom. `--release`, because loom executes
/// millions of interleavings.
pub fn loom() -> StepResult {
    let mut loom =
        cargo(&["test", "--release", "--quiet", "--package", "ofi-ring", "--package", "mxl", "--lib"]);
    // Link-time optimisation takes longer here than it saves.
    loom.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    run(loom.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target_dir("loom")))
}

/// Compares instruction counts with `docs/hot-path.md`.
pub fn budgets(write: bool) -> StepResult {
    if !answers("valgrind", &["--version"]) {
        return not_run("instruction budgets", "no valgrind (apt-get install valgrind)");
    }
    benches("instructions", write)
}

/// Compares counts of locked instructions, system calls, allocations and clock reads with `docs/hot-path.md`.
pub fn counts(write: bool) -> StepResult {
    if !cfg!(target_arch = "x86_64") {
        return not_run("counts of the hot paths", "the decoder knows x86-64 only");
    }
    benches("counts", write)
}

fn benches(command: &str, write: bool) -> StepResult {
    let mut benches = built_benches()?;
    benches.arg(command);
    if write {
        benches.arg("--write");
    }
    run(&mut benches)
}

/// The program of the benches. It is built with the packages of an installation, whose crates it then shares: see
/// [`capi::link`].
fn built_benches() -> Result<Command, String> {
    let packages = install::packages(&install::buildable());
    let mut build =
        cargo(&["build", "--release", "--quiet", "--package", "ofi-benches", "--bin", "ofi-benches"]);
    run(build.args(packages.iter().flat_map(|package| ["--package", package])))?;
    Ok(command(capi::built(true).join("ofi-benches")))
}

/// Only builds them.
pub fn build_benches() -> StepResult {
    built_benches().map(|_| Outcome::Passed)
}

/// The measurements beside the peers, with our `libfabric.so.1` for the rows that run libfabric's own programs on it.
pub fn bench(args: &[String]) -> StepResult {
    let library = capi::link(true)?;
    run(built_benches()?.args(args).env("OFI_BENCH_LIBRARY", library))
}

/// Runs one test of several processes, for the length or count that `variable` sets.
fn at_length(file: &str, test: &str, variable: &str, value: u64) -> StepResult {
    // cargo succeeds if a filter selects nothing.
    if !filters::tests()?.iter().any(|name| name.contains(test)) {
        return Err(format!("no test is called {test}"));
    }
    let tests = ["test", "--quiet", "--package", "ofi-tests", "--test", file, "--", "--nocapture", test];
    run(cargo(&tests).env(variable, value.to_string()))
}

/// Mixed operations for a long time.
pub fn soak(minutes: u64) -> StepResult {
    let seconds = minutes.saturating_mul(60).max(6);
    at_length("processes", "soak::eight_processes", "OFI_SOAK_SECONDS", seconds)?;
    at_length(
        "processes",
        "hostile::processes_work_on_while_another_scribbles",
        "OFI_SOAK_SECONDS",
        seconds,
    )?;
    at_length("sockets", "udp::memory_stays_flat_under_load", "OFI_SOAK_SECONDS", seconds)
}

/// The protocol, transfers over rails, and endpoints of providers `efa` and `verbs`, without sockets and without real
/// waiting.
pub fn simulate(report: &mut Report, seeds: u64, hours: u64) {
    let simulated = |package: &str, file: &str, tests: &str, variable: &str, value: u64| {
        let tests = [
            "test",
            "--release",
            "--quiet",
            "--package",
            package,
            "--test",
            file,
            "--",
            "--nocapture",
            tests,
        ];
        run(cargo(&tests).env(variable, value.to_string()))
    };
    report.add("properties of the protocol", || {
        simulated("ofi-testkit", "protocol", "properties::", "PROPTEST_CASES", seeds)
    });
    report.add("a long time of the protocol", || {
        simulated("ofi-testkit", "protocol", "soak::", "OFI_SOAK_HOURS", hours)
    });
    report.add("endpoints on a simulated EFA fabric", || {
        simulated("ofi-tests", "devices", "efa_model::", "OFI_EFA_SEEDS", seeds)
    });
    report.add("endpoints on a simulated RDMA fabric", || {
        simulated("ofi-tests", "devices", "verbs_model::", "OFI_VERBS_SEEDS", seeds)
    });
    report.add("connected endpoints on a simulated RDMA fabric", || {
        simulated("ofi-tests", "devices", "verbs_connected_model::", "OFI_CONNECTED_SEEDS", seeds)
    });
    report.add("what getinfo grants to random hints, of each provider", || {
        simulated("ofi-tests", "processes", "granted::", "OFI_GRANTED", seeds)
    });
    report.add("unreliable datagrams on a simulated RDMA fabric", || {
        simulated("ofi-tests", "devices", "verbs_datagrams::", "OFI_DATAGRAM_SEEDS", seeds)
    });
    // Of 48 transfers each: 10,000 and more.
    report.add("transfers over rails", || {
        simulated("multirail", "simulated", "", "OFI_RAILS_CASES", seeds.max(209))
    });
}

/// Kills many processes.
pub fn kills(count: u64) -> StepResult {
    at_length("processes", "crash::peers_are_killed_at_random", "OFI_KILLS", count)
}

/// Kills processes at every step while endpoints have two transports. CI runs every fourth of these steps.
pub fn deaths() -> StepResult {
    at_length("processes", "crash::a_peer_of_two_transports", "OFI_CRASH_STRIDE", 1)
}

/// One endpoint that talks to many over sockets.
pub fn peers(count: u64) -> StepResult {
    at_length("sockets", "udp::a_thousand_peers", "OFI_UDP_PEERS", count)
}

/// One endpoint of verbs with many connected peers, on the simulated device.
pub fn connections(count: u64) -> StepResult {
    at_length("devices", "verbs_many::all_peers_stay_connected", "OFI_VERBS_PEERS", count)
}

/// One endpoint of verbs with many connections, and with many more peers than connections, on the simulated device.
pub fn peers_of_one(count: u64) -> StepResult {
    at_length("devices", "verbs_many::one_endpoint", "OFI_VERBS_ENDPOINT_PEERS", count)
}

/// Transfers over rails between processes that are killed, cut off and restarted. The seed comes from the clock unless
/// `OFI_RAILS_SEED` sets one; the test prints it.
pub fn storms(count: u64) -> StepResult {
    let clock = std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_secs());
    let seed = std::env::var("OFI_RAILS_SEED").unwrap_or_else(|_| clock.to_string());
    let tests = [
        "test",
        "--quiet",
        "--package",
        "multirail",
        "--test",
        "integration",
        "--",
        "--nocapture",
        "storm::",
    ];
    run(cargo(&tests).env("OFI_RAILS_RUNS", count.to_string()).env("OFI_RAILS_SEED", seed))
}

/// Compiles for aarch64, if the target is installed.
pub fn aarch64() -> StepResult {
    if !has_target(AARCH64) {
        return not_run(
            "aarch64",
            "the target is not installed (rustup target add aarch64-unknown-linux-gnu)",
        );
    }
    run(&mut cargo(&["check", "--workspace", "--quiet", "--target", AARCH64])).map(|_| Outcome::Passed)
}
