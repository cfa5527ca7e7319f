//! Steps, their outcomes, and the commands that they run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use crate::StepResult;

/// The exit code for "nothing failed, but something could not run", as in automake.
pub const NOT_RUN: u8 = 77;

/// The outcome of a step that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything ran and passed.
    Passed,
    /// It passed, but these parts could not run, each `what: why`.
    NotRun(Vec<String>),
    /// These tests failed once and passed in two repetitions.
    Flaky {
        /// By name.
        flaky: Vec<String>,
        /// As in [`Outcome::NotRun`].
        not_run: Vec<String>,
    },
}

impl Outcome {
    /// The same, and something besides that could not run.
    pub fn and_not_run(self, what: String) -> Self {
        match self {
            Self::Passed => Self::NotRun(vec![what]),
            Self::NotRun(mut all) => {
                all.push(what);
                Self::NotRun(all)
            }
            Self::Flaky { flaky, mut not_run } => {
                not_run.push(what);
                Self::Flaky { flaky, not_run }
            }
        }
    }
}

/// A completed step.
#[derive(Debug)]
pub struct Row {
    /// The step.
    pub name: String,
    /// The outcome, in a word or two.
    pub outcome: String,
    /// The duration.
    pub seconds: f64,
}

/// The steps of one command.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
    failed: Vec<String>,
    not_run: Vec<String>,
    flaky: Vec<String>,
}

impl Report {
    /// Runs a step and records the outcome.
    pub fn add(&mut self, name: &str, step: impl FnOnce() -> StepResult) {
        eprintln!("--- {name}");
        let begin = Instant::now();
        let result = step();
        let seconds = begin.elapsed().as_secs_f64();
        let (outcome, why) = match &result {
            Ok(Outcome::Passed) => ("passed".to_string(), String::new()),
            Ok(Outcome::NotRun(what)) => (format!("{} not run", what.len()), String::new()),
            Ok(Outcome::Flaky { flaky, not_run }) => {
                (format!("{} flaky, {} not run", flaky.len(), not_run.len()), String::new())
            }
            Err(why) => ("FAILED".to_string(), format!(": {why}")),
        };
        eprintln!("--- {name}: {outcome}, {seconds:.1} s{why}");
        self.rows.push(Row { name: name.to_string(), outcome, seconds });
        match result {
            Ok(Outcome::Passed) => {}
            Ok(Outcome::NotRun(what)) => self.not_run.extend(what),
            Ok(Outcome::Flaky { flaky, not_run }) => {
                self.flaky.extend(flaky);
                self.not_run.extend(not_run);
            }
            Err(why) => self.failed.push(format!("{name}: {why}")),
        }
    }

    /// As [`Self::add`], for a step of several communicating processes: if it fails it is repeated twice, and is flaky
    /// if it passes both times.
    pub fn add_retried(&mut self, name: &str, mut step: impl FnMut() -> StepResult) {
        self.add(name, || {
            let why = match step() {
                Err(why) => why,
                passed => return passed,
            };
            eprintln!("--- {name}: failed, once more: {why}");
            step()?;
            let not_run = match step()? {
                Outcome::NotRun(not_run) | Outcome::Flaky { not_run, .. } => not_run,
                Outcome::Passed => Vec::new(),
            };
            Ok(Outcome::Flaky { flaky: vec![format!("{name}: {}", why.replace('\n', " "))], not_run })
        });
    }

    /// The steps so far, in order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Prints the steps that did not pass. Returns the exit code.
    pub fn finish(self) -> ExitCode {
        self.flaky.iter().for_each(|what| println!("FLAKY: {what}"));
        self.not_run.iter().for_each(|what| println!("NOT RUN: {what}"));
        self.failed.iter().for_each(|what| println!("FAILED: {what}"));
        match (self.failed.is_empty(), self.not_run.is_empty()) {
            (true, true) => ExitCode::SUCCESS,
            (true, false) => NOT_RUN.into(),
            (false, _) => ExitCode::FAILURE,
        }
    }
}

/// The outcome of a step that cannot run here.
pub fn not_run(what: &str, why: &str) -> StepResult {
    Ok(Outcome::NotRun(vec![format!("{what}: {why}")]))
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// The target folder of builds of `kind`: separate from the usual one, so that builds with other flags do not replace
/// each other.
pub fn target_dir(kind: &str) -> PathBuf {
    let base = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    base.join(kind)
}

/// A command in the repository.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// `cargo`, the same one that runs this.
pub fn cargo(args: &[&str]) -> Command {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(args);
    cargo
}

/// Runs a command to its end.
///
/// # Errors
/// The command cannot be started, or fails.
pub fn run(command: &mut Command) -> StepResult {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    if status.success() {
        Ok(Outcome::Passed)
    } else {
        Err(format!("{} ended with {status}", shown(command)))
    }
}

/// Runs a command to its end. Returns its standard output.
///
/// # Errors
/// As [`run`].
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| cannot_start(command, &error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{} ended with {}\n{text}", shown(command), output.status))
    }
}

/// Whether rustup has the standard library of a target.
pub fn has_target(target: &str) -> bool {
    let installed = command("rustup").args(["target", "list", "--installed"]).output();
    installed.is_ok_and(|list| String::from_utf8_lossy(&list.stdout).lines().any(|line| line == target))
}

/// Whether a command runs successfully with these arguments.
pub fn answers(program: &str, args: &[&str]) -> bool {
    let status = command(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("{} cannot be started: {error}", shown(command))
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
