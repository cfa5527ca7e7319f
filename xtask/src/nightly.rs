//! The checks that need a nightly toolchain: sanitizers and fuzzing.

use std::path::Path;
use std::process::Command;

use crate::StepResult;
use crate::step::{Report, answers, command, not_run, root, run, target_dir};
use crate::suite::suite;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The flags of `cargo fuzz`: coverage for libFuzzer, AddressSanitizer, and every check of a debug build.
const FUZZ_FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions -Coverflow-checks";

const NO_NIGHTLY: &str = "no nightly toolchain (rustup toolchain install nightly)";

fn has_nightly() -> bool {
    answers("rustup", &["run", "nightly", "cargo", "--version"])
}

/// `cargo` of the nightly toolchain, with a build folder of its own.
fn cargo(kind: &str, flags: &str, args: &[&str]) -> Command {
    let mut cargo = command("rustup");
    cargo.args(["run", "nightly", "cargo"]).args(args);
    // The environment of the stable cargo that runs this must not reach the nightly one.
    for name in
        ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN", "CARGO_ENCODED_RUSTFLAGS", "LD_LIBRARY_PATH"]
    {
        cargo.env_remove(name);
    }
    cargo.env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", target_dir(kind));
    cargo
}

/// The conformance suite under AddressSanitizer: every unsafe path of core and transports, driven through the API, and
/// hostile peers over sockets. `.config/nextest.toml` selects the cases. With `no_run` it is only built.
pub fn asan(no_run: bool) -> StepResult {
    if !has_nightly() {
        return not_run("AddressSanitizer", NO_NIGHTLY);
    }
    if !answers("cargo-nextest", &["nextest", "--version"]) {
        return not_run("AddressSanitizer", "no cargo-nextest (cargo install cargo-nextest)");
    }
    let tests = || {
        let mut tests = cargo("asan", "-Zsanitizer=address", &["nextest", "run", "--target", TARGET]);
        // The profile selects the tests, so that failed ones can be selected by `-E`.
        tests.args(["--profile", "asan", "--package", "ofi-tests"]);
        tests.args(["--test", "conformance", "--test", "sockets", "--test", "udp_ring"]);
        // A killed child leaks memory on purpose.
        tests.env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=1");
        tests
    };
    if no_run {
        return run(tests().arg("--no-run"));
    }
    suite(tests, &root().join("target/nextest/asan/junit.xml"))
}

/// Targets whose inputs are whole sessions, some of them in real time. In a minute beside all others they get through
/// few inputs, so they run in long runs only, or by name. The tests replay their corpus.
const SESSIONS: [&str; 2] = ["agents", "media"];
/// Seconds for each target that make a long run.
const LONG_RUN: u32 = 600;

/// The options for the fuzz targets.
#[derive(Debug, clap::Args)]
pub struct Fuzz {
    /// Seconds for each target.
    #[arg(long, default_value_t = 10)]
    pub seconds: u32,
    /// Only build them.
    #[arg(long)]
    pub no_run: bool,
    /// Only this one.
    pub target: Option<String>,
}

/// Runs the targets of `fuzz/` in parallel, starting from the committed corpus.
pub fn fuzz(report: &mut Report, options: &Fuzz) {
    let missing = match (has_nightly(), answers("c++", &["--version"])) {
        (true, true) => None,
        (false, _) => Some(NO_NIGHTLY),
        (_, false) => Some("no C++ compiler for libFuzzer (apt-get install g++)"),
    };
    if let Some(missing) = missing {
        return report.add("fuzzing", || not_run("fuzzing (the corpus was replayed by the tests)", missing));
    }
    let targets = match targets() {
        Ok(targets) => targets,
        Err(why) => return report.add("fuzzing", || Err(why)),
    };
    let args = ["build", "--release", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--target", TARGET];
    let mut built = false;
    report.add("building the fuzz targets", || {
        let outcome = run(&mut cargo("fuzz", FUZZ_FLAGS, &args))?;
        built = true;
        Ok(outcome)
    });
    if options.no_run {
        return;
    }
    let wanted = |target: &&String| match &options.target {
        Some(only) => only == *target,
        None => options.seconds >= LONG_RUN || !SESSIONS.contains(&target.as_str()),
    };
    let chosen = targets.iter().filter(|target| built && wanted(target));
    // In parallel: most of a target's time goes into few inputs, and sequential runs would take five times as long.
    let outcomes: Vec<(&String, StepResult)> = std::thread::scope(|scope| {
        let running: Vec<_> =
            chosen.map(|target| (target, scope.spawn(|| fuzz_one(target, options.seconds)))).collect();
        let ended = |(target, thread): (_, std::thread::ScopedJoinHandle<'_, StepResult>)| {
            (target, thread.join().unwrap_or_else(|_| Err("its thread panicked".to_string())))
        };
        running.into_iter().map(ended).collect()
    });
    for (target, outcome) in outcomes {
        report.add(&format!("fuzzing {target}"), || outcome);
    }
}

fn fuzz_one(target: &str, seconds: u32) -> StepResult {
    let folder = target_dir("fuzz");
    let found = folder.join("found").join(target);
    std::fs::create_dir_all(&found).map_err(|error| error.to_string())?;
    let mut fuzzer = command(folder.join(TARGET).join("release").join(target));
    // New inputs go to the first folder; the committed corpus is only read.
    fuzzer.arg(&found).arg(root().join("fuzz/corpus").join(target));
    fuzzer.arg(format!("-max_total_time={seconds}")).args([
        "-max_len=4096",
        "-print_final_stats=1",
        "-verbosity=0",
    ]);
    let artifacts = folder.join("artifacts").join(target);
    std::fs::create_dir_all(&artifacts).map_err(|error| error.to_string())?;
    fuzzer.arg(format!("-artifact_prefix={}/", artifacts.display()));
    run(&mut fuzzer).map_err(|why| match keep(target, &artifacts) {
        Ok(kept) => format!("{why}; the input is kept: {}", kept.join(", ")),
        Err(error) => format!("{why}; the input cannot be kept: {error}"),
    })
}

/// Moves a fuzzer's findings into the committed corpus, where the ordinary tests replay them. Returns each with its
/// bytes, because the folder of a CI run is deleted.
fn keep(target: &str, artifacts: &Path) -> Result<Vec<String>, std::io::Error> {
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(artifacts)?.flatten() {
        let bytes = std::fs::read(entry.path())?;
        let to = root().join("fuzz/corpus").join(target).join(entry.file_name());
        std::fs::write(&to, &bytes)?;
        std::fs::remove_file(entry.path())?;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        kept.push(format!("{} = {hex}", to.display()));
    }
    Ok(kept)
}

/// One target for each file of `fuzz/fuzz_targets`.
fn targets() -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir(root().join("fuzz/fuzz_targets")).map_err(|error| error.to_string())?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.path().file_stem()?.to_str().map(str::to_owned)).collect();
    names.sort_unstable();
    Ok(names)
}
