//! NIXL in one command: pip installs NIXL's wheel, and ours from its file, into an empty environment. Two agents
//! use the backend there without a setting; a transfer is cancelled, late, or loses its peer; NIXL's own backend for
//! libfabric runs on the `libfabric.so.1` of our wheel; and NIXL's own tests run on both.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::ours::{SOME, over_efa, way};
use super::{SITE, WHEELS, cuda, python, theirs};
use crate::nixl_plugin as plugin;
use crate::step::{Outcome, Report, command, not_run, output, run, target_dir};
use crate::{StepResult, wheel};

/// What `tests/nixl/faults.py` tests.
const FAULTS: [&str; 5] = ["cancel", "deadline", "death", "absent", "telemetry"];
/// What could be set, and is not.
const SETTINGS: [&str; 7] = [
    "LD_LIBRARY_PATH",
    "NIXL_PLUGIN_DIR",
    "NIXL_OFI_RAILS",
    "NIXL_OFI_SHARED_MEMORY",
    "FI_PROVIDER",
    "FI_PROVIDER_PATH",
    "FI_PROVIDER_ALIAS",
];

/// An environment that has both wheels.
#[derive(Debug)]
pub struct Environment {
    python: PathBuf,
}

impl Environment {
    /// An empty environment in which pip installs both. Of NIXL's dependencies it gets those without which no import
    /// works: the others are gigabytes.
    ///
    /// # Errors
    /// pip fails, or NIXL would not find the backend.
    pub fn install(wheel: &Path) -> Result<Self, String> {
        let home = target_dir("nixl").join("empty");
        run(command("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
        let environment = Self { python: home.join("bin/python") };
        let pip = || {
            let mut pip = command(&environment.python);
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
            pip
        };
        run(pip().args(WHEELS))?;
        // No index is asked for our wheel: anyone may publish something under its name.
        run(pip().arg("--no-index").arg(wheel))?;
        let text = output(&mut environment.program(&["-m", "ofi_nixl"]))?;
        if !text.contains("nixl_cu12: finds ") {
            return Err(format!("NIXL does not find the backend:\n{text}"));
        }
        Ok(environment)
    }

    /// Installs packages besides.
    ///
    /// # Errors
    /// pip fails.
    pub fn add(&self, packages: &[String]) -> Result<(), String> {
        for package in packages {
            let mut pip = command(&self.python);
            pip.args(["-m", "pip", "install", "-qq", "--disable-pip-version-check"]);
            // The package nixl requires the wheels of all versions of CUDA.
            let alone = package.starts_with("nixl").then_some("--no-deps");
            run(pip.args(alone).arg(package))?;
        }
        Ok(())
    }

    /// The interpreter.
    pub fn python(&self) -> &Path {
        &self.python
    }

    /// A program of NIXL's without any setting, for at most a minute.
    pub fn program(&self, words: &[&str]) -> Command {
        let mut program = command("timeout");
        program.args(["--kill-after=5", "60"]).arg(&self.python).args(words);
        SETTINGS.iter().for_each(|name| _ = program.env_remove(name));
        program.env("NIXL_LOG_LEVEL", "ERROR");
        program
    }

    /// The exchange of two agents over these rails, or those that the backend chooses.
    ///
    /// # Errors
    /// An agent fails, or bytes differ.
    pub fn exchange(&self, rails: Option<&str>, driven: &str) -> StepResult {
        let sizes = SOME[usize::from(driven == "thread")].map(|number| number.to_string());
        let [size, count, rounds] = sizes.each_ref().map(String::as_str);
        let mut program = self.program(&["tests/nixl/exchange.py", size, count, rounds, "OFI", driven]);
        run(program.envs(rails.map(|rails| ("NIXL_OFI_RAILS", rails))))
    }

    /// The exchange over two emulated EFA devices, each of which carries its share.
    ///
    /// # Errors
    /// As [`Self::exchange`], or a device carries no share.
    pub fn exchange_over_efa(&self) -> StepResult {
        over_efa(&|words: &[&str]| self.program(words))
    }

    /// NIXL's own backend for libfabric, on our `libfabric.so.1`, over provider `tcp`: `alias` says which one has that
    /// name.
    fn stock(&self, alias: &str) -> StepResult {
        let [size, count, _] = SOME[1].map(|number| number.to_string());
        let mut program = self.program(&["tests/nixl/exchange.py", &size, &count, "3", "LIBFABRIC"]);
        program.env("LD_LIBRARY_PATH", cuda(&self.python)?).env("FI_TCP_SHARED_MEMORY", "0");
        run(program.env("FI_PROVIDER", "tcp").env("FI_PROVIDER_ALIAS", alias))
    }

    /// pip removes our wheel, and nothing of NIXL's; then NIXL has no such backend.
    fn uninstall(&self) -> StepResult {
        let mut pip = command(&self.python);
        run(pip.args(["-m", "pip", "uninstall", "--quiet", "--yes", wheel::PACKAGE]))?;
        let site = output(command(&self.python).args(["-c", SITE]))?;
        let folder = Path::new(site.trim()).join(".nixl_cu12.mesonpy.libs/plugins");
        match (folder.join(plugin::NAME).exists(), folder.join("libplugin_LIBFABRIC.so").exists()) {
            (false, true) => Ok(Outcome::Passed),
            (true, _) => Err(format!("{} has our backend still", folder.display())),
            (false, false) => Err(format!("{} has lost NIXL's own", folder.display())),
        }
    }
}

/// Our wheel in another folder than NIXL's: its program says so, and how NIXL finds the backend; and it does.
fn elsewhere(environment: &Environment, wheel: &Path) -> StepResult {
    let other = target_dir("nixl").join("elsewhere");
    let _ = std::fs::remove_dir_all(&other);
    let mut pip = command(environment.python());
    pip.args(["-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps", "--no-index"]);
    run(pip.arg("--target").arg(&other).arg(wheel))?;
    let mut asked = environment.program(&["-m", "ofi_nixl"]);
    let told = asked.env("PYTHONPATH", &other).output().map_err(|error| format!("python: {error}"))?;
    let text = String::from_utf8_lossy(&told.stdout);
    let folder = text.trim().rsplit_once("NIXL_PLUGIN_DIR=").map(|(_, folder)| folder);
    let Some(folder) = folder.filter(|_| told.status.code() == Some(1) && text.contains("does not find"))
    else {
        return Err(format!("python -m ofi_nixl ended with {}, and printed\n{text}", told.status));
    };
    let mut options = environment.program(&["tests/nixl/options.py"]);
    let text = output(options.env("NIXL_PLUGIN_DIR", folder))?;
    let missing = plugin::OPTIONS.iter().find(|name| !text.contains(*name));
    missing.map_or(Ok(Outcome::Passed), |name| Err(format!("{name} is not in {text}")))
}

/// Packs the libraries of this build, and runs two agents in an environment that has the wheel.
///
/// # Errors
/// pip fails, an agent fails, or bytes differ.
pub fn installed(built: &Path) -> StepResult {
    const NAME: &str = "NIXL and ofi-nixl, installed by pip";
    if let Some(why) = wheel::lacking() {
        return not_run(NAME, why);
    }
    if let Err(why) = python() {
        return not_run(NAME, &why);
    }
    Environment::install(&wheel::pack(built)?)?.exchange(None, "polls")
}

/// Builds the wheel, and runs everything in an environment that has it.
pub fn test(report: &mut Report) {
    if let Some(why) = wheel::lacking() {
        return report.add("the wheel ofi-nixl", || not_run("the wheel ofi-nixl", why));
    }
    let mut installed = None;
    report.add("pip installs NIXL and ofi-nixl", || {
        let wheel = wheel::build()?;
        installed = Some((Environment::install(&wheel)?, wheel));
        Ok(Outcome::Passed)
    });
    let Some((installed, wheel)) = installed else { return };
    for (rails, driven) in [(None, "polls"), (None, "thread"), (Some("shm"), "thread")] {
        let over = rails.unwrap_or("the rails that it chooses");
        report.add(&format!("two agents on OFI of the wheel by {driven}, over {over}"), || {
            installed.exchange(rails, driven)
        });
    }
    report.add_retried("two agents on OFI of the wheel, over two emulated EFA devices", || {
        installed.exchange_over_efa()
    });
    for shared_memory in ["1", "0"] {
        let way = way(shared_memory);
        for case in FAULTS {
            report.add_retried(&format!("NIXL on OFI through {way}: {case}"), || {
                let mut program = installed.program(&["tests/nixl/faults.py", case]);
                run(program.env("NIXL_OFI_SHARED_MEMORY", shared_memory))
            });
        }
    }
    for (provider, alias) in [("udp", "tcp=udp"), ("tcp", "")] {
        report.add_retried(
            &format!("NIXL's LIBFABRIC on libfabric.so.1 of the wheel, over {provider}"),
            || installed.stock(alias),
        );
    }
    theirs::test(report, &installed);
    report.add("pip removes ofi-nixl", || installed.uninstall());
    report.add("ofi-nixl in another folder than NIXL", || elsewhere(&installed, &wheel));
}
