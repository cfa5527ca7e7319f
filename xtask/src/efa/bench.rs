//! `cargo xtask efa-bench`: `ofi efa-bench` of this checkout. It asks for a device before it builds anything.

use std::path::Path;
use std::process::Command;

use crate::step::{Outcome, command, not_run, output, root, target_dir};
use crate::{StepResult, capi, installed};

/// What to run, and with whom.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// With a debug build, a few messages of two sizes, to check that everything runs.
    #[arg(long)]
    quick: bool,
    /// Further arguments of `ofi efa-bench`: the waiting instance (without one, this instance waits), --port, --wait.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// The command.
///
/// # Errors
/// A part that could not be built, or the measurement's own.
pub fn main(options: &Options) -> StepResult {
    if !has_device(Path::new("/sys/class/infiniband")) && std::env::var_os("EFA_EMULATOR_DIR").is_none() {
        let why =
            "no EFA device in /sys/class/infiniband: an interface of type efa, and Amazon's kernel module";
        return not_run("efa-bench", why);
    }
    let (program, library) = if options.quick {
        (capi::tool("ofi")?, capi::link(false)?)
    } else {
        let installed = installed::files()?;
        (installed.program("ofi"), installed.lib())
    };
    let mut bench = Command::new(program);
    bench.arg("efa-bench").args(options.quick.then_some("--quick")).arg("--library").arg(library);
    if let Ok(commit) = output(command("git").arg("-C").arg(root()).args(["rev-parse", "HEAD"])) {
        bench.args(["--commit", commit.trim()]);
    }
    bench.arg("--output").arg(target_dir("efa-bench").join("efa-bench.md")).args(&options.args);
    let status = bench.status().map_err(|error| format!("ofi efa-bench: {error}"))?;
    match status.code() {
        Some(0) => Ok(Outcome::Passed),
        Some(61) => not_run("efa-bench", "the provider found no device; its reason is above"),
        _ => Err(format!("ofi efa-bench ended with {status}")),
    }
}

/// Whether a device of this folder is bound to the kernel module `efa`.
fn has_device(folder: &Path) -> bool {
    let driver = |device: &Path| std::fs::read_link(device.join("device/driver")).ok();
    let devices = std::fs::read_dir(folder).into_iter().flatten().flatten();
    devices.filter_map(|device| driver(&device.path())).any(|driver| driver.ends_with("efa"))
}

/// Runs both sides on four emulated devices of this host, from a folder with only the programs, to test that the
/// measurement runs from an installation and writes its page. `start` makes a command find the devices.
pub fn on_emulator(start: impl Fn(&mut Command)) -> StepResult {
    let prefix = target_dir("efa-bench").join("installed");
    let _ = std::fs::remove_dir_all(&prefix);
    let bin = prefix.join("bin");
    std::fs::create_dir_all(&bin).map_err(|error| format!("{}: {error}", bin.display()))?;
    for program in ["ofi", "fi_pingpong", "mr-bench"] {
        let copied = std::fs::copy(capi::tool(program)?, bin.join(program));
        copied.map_err(|error| format!("{program}: {error}"))?;
    }
    let side = |host: Option<&str>| {
        let mut side = Command::new(bin.join("ofi"));
        start(side.arg("efa-bench").args(["--quick", "--wait", "60"]).args(host));
        // Nothing of the checkout is in reach.
        side.env("EFA_EMULATOR_DEVICES", "4").current_dir(&prefix);
        side
    };
    // Without a device it reports that before it waits for the other instance.
    let lone = Command::new(bin.join("ofi")).arg("efa-bench").env_remove("EFA_EMULATOR_DIR").output();
    let lone = lone.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&lone.stderr);
    if !has_device(Path::new("/sys/class/infiniband"))
        && (lone.status.code() != Some(61) || !said.contains("no EFA device"))
    {
        return Err(format!("without a device, ofi efa-bench ended with {}: {said}", lone.status));
    }
    let mut server = side(None).spawn().map_err(|error| error.to_string())?;
    let client = output(&mut side(Some("127.0.0.1")));
    let _ = server.kill();
    let _ = server.wait();
    client?;
    let file = prefix.join("efa-bench.md");
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let devices = (0..4).map(|nth| format!("| efa_emu{nth}-rdm | "));
    let wanted = [
        "| our fi_pingpong | ofi ",
        "| efa_emu0-rdm | host | 65536 |",
        "| 4 NICs | host | 1048576 |",
        "emulated device",
        "libibverbs.so.1",
        "(rdma-core ",
        "| accesses | reads by ",
    ];
    for wanted in wanted.map(String::from).into_iter().chain(devices) {
        if !text.contains(&wanted) {
            return Err(format!("the page does not mention {wanted:?}:\n{text}"));
        }
    }
    let idle = text.lines().find(|line| line.contains("4 NICs") && line.ends_with("| 0 | 0.0 % |"));
    idle.map_or(Ok(Outcome::Passed), |line| Err(format!("a device of four moved nothing: {line}\n{text}")))
}
