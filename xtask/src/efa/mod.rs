//! `cargo xtask efa`: runs programs on an emulated EFA device (crates/efa-emulator), for hosts without one.
//!
//! Emulated devices say nothing about speed: no measurement belongs here.

pub mod bench;
mod programs;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::StepResult;
use crate::step::{NOT_RUN, Outcome, Report, cargo, not_run, output, root, run, target_dir};
use crate::stock::{Stock, pingpong, pingpong_pair};
use crate::{capi, trixie, vm};

/// The program or the tests to run on the device.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Folder of the device; programs with the same folder reach each other.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Run the emulator's tests, and C programs on it.
    #[arg(long)]
    test: bool,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required_unless_present = "test")]
    command: Vec<String>,
}

/// Executes the options.
pub fn main(options: &Options) -> ExitCode {
    if options.test {
        let mut report = Report::default();
        test(&mut report);
        return report.finish();
    }
    match start(options) {
        Ok(status) => u8::try_from(status).unwrap_or(1).into(),
        Err(why) => {
            println!("NOT RUN: {} on an emulated EFA device: {why}", options.command[0]);
            NOT_RUN.into()
        }
    }
}

fn start(options: &Options) -> Result<i32, String> {
    let emulator = build()?;
    let dir = options.dir.clone().unwrap_or_else(folder);
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    let status = on(&mut command, &emulator, &dir).status();
    let status = status.map_err(|error| format!("{} cannot be started: {error}", options.command[0]))?;
    Ok(status.code().unwrap_or(1))
}

/// The default folder for programs that should reach each other. A socket's path has at most 107 bytes, so it is short.
pub fn folder() -> PathBuf {
    let folder = target_dir("efa");
    if folder.as_os_str().len() > 70 { std::env::temp_dir().join("efa-emulator") } else { folder }
}

/// Makes a command find the device, and use it for processes of this host too, unless the environment overrides it.
pub fn on<'a>(command: &'a mut Command, emulator: &Path, dir: &Path) -> &'a mut Command {
    const SHM: &str = "FI_EFA_ENABLE_SHM_TRANSFER";
    command.env(SHM, std::env::var_os(SHM).unwrap_or_else(|| "0".into()));
    command.env("LD_PRELOAD", emulator).env("EFA_EMULATOR_DIR", dir)
}

/// Builds the emulator. Returns its path.
pub fn build() -> Result<PathBuf, String> {
    let text =
        output(&mut cargo(&["build", "--quiet", "--package", "efa-emulator", "--message-format=json"]))?;
    let name = "libefa_emulator.so";
    let path = text.split('"').rfind(|word| word.ends_with(name));
    path.map(|path| root().join(path)).ok_or_else(|| format!("cargo built no {name}"))
}

/// Runs the tests with the system's libraries and with newer ones, and C's `efa` provider with itself.
fn test(report: &mut Report) {
    let emulator = match build() {
        Ok(emulator) => emulator,
        Err(why) => return report.add("the EFA emulator", || Err(why)),
    };
    let dir = folder().with_extension(std::process::id().to_string());
    report.add("programs find the emulated device", || lists(&emulator, &dir));
    report.add("two processes on emulated devices", || {
        run(&mut cargo(&["test", "--quiet", "--package", "efa-emulator"]))
    });
    report.add("docs/providers.md says what efa grants", || grants(&emulator, &dir));
    report.add_retried("fi_pingpong of ours over its efa, at both ends", || own_efa(&emulator, &dir));
    report.add_retried("fi_write_demo over our efa", || write_demo(&emulator, &dir));
    report.add_retried("examples over our efa", || examples(&emulator, &dir));
    report.add_retried("the log over our efa", || log(&emulator, &dir));
    report.add_retried("media flows over our efa, either end killed", || flows(&emulator, &dir));
    report.add_retried("peers over our efa are killed", || programs::death(&emulator, &dir));
    report.add_retried("requests over our efa fail", || programs::losses(&emulator, &dir));
    report.add("neighbours on an emulated device", || programs::neighbours(&emulator, &dir));
    report.add_retried("a rail on an emulated device goes mute", || mute(&emulator, &dir, None));
    report.add_retried("a peer on an emulated device is stopped", || stopped(&emulator, &dir));
    programs::test(report, &emulator, &dir);
    report.add_retried("efa-bench, both sides on emulated devices", || {
        bench::on_emulator(|side| _ = on(side, &emulator, &dir))
    });
    let newer = trixie::stock();
    report.add("two processes, with the libraries of Debian trixie", || match &newer {
        Ok(stock) => with_newer(stock),
        Err(why) => not_run("remote writes of two processes on emulated devices", why),
    });
    report.add_retried("a rail goes mute, with the libraries of Debian trixie", || match &newer {
        Ok(stock) => mute(&emulator, &dir, Some(stock)),
        Err(why) => not_run("writes of devices on a mute rail", why),
    });
    let system = Stock::of_system();
    for stock in std::iter::once(&system).chain(newer.as_ref().ok()) {
        let name = format!("fi_pingpong of {} over its efa, at both ends", stock.name());
        report.add_retried(&name, || c_efa(stock, &name, &emulator, &dir));
        let name = format!("datagrams of {} over its efa", stock.name());
        report.add_retried(&name, || c_datagrams(stock, &name, &emulator, &dir));
        let name = format!("fi_pingpong of {} over our efa and C's, each at either end", stock.name());
        report.add_retried(&name, || meets_c(stock, &name, &emulator, &dir));
        let name = format!("remote accesses of {} and ours, each at either end", stock.name());
        report.add_retried(&name, || programs::accesses(stock, &name, &emulator, &dir));
        let name = format!("device memory of a program for {} over our efa", stock.name());
        report.add(&name, || programs::device_memory(stock, &name, &emulator, &dir));
        let name = format!("endpoint options of {} and ours", stock.name());
        report.add(&name, || programs::options(stock, &name, &emulator, &dir));
        // libfabric 1.x of Debian 12 is too old for this.
        if stock.loader().is_some() {
            let name = format!("long messages that {} or ours cannot read", stock.name());
            report.add_retried(&name, || programs::unreadable(stock, &name, &emulator, &dir));
            let name = format!("endpoints of {} that receive in place, and ours", stock.name());
            report.add_retried(&name, || programs::in_place(stock, &name, &emulator, &dir));
        }
        let name = format!("peers of ours on {} are killed", stock.name());
        report.add_retried(&name, || programs::death_of_c(stock, &name, &emulator, &dir));
    }
    let _ = std::fs::remove_dir_all(&dir);
}

/// Runs libibverbs' own program on the device.
fn lists(emulator: &Path, dir: &Path) -> StepResult {
    let mut command = crate::step::command("ibv_devinfo");
    let Ok(found) = on(&mut command, emulator, dir).output() else {
        return not_run("ibv_devinfo on an emulated EFA device", "apt-get install ibverbs-utils");
    };
    let text = String::from_utf8_lossy(&found.stdout);
    let wanted = ["efa_emu0", "0x1d0f", "PORT_ACTIVE"];
    match wanted.iter().find(|word| !text.contains(**word)) {
        None => Ok(Outcome::Passed),
        Some(word) => Err(format!("ibv_devinfo does not mention {word}:\n{text}")),
    }
}

/// The tests on newer libraries, which support remote writes.
fn with_newer(stock: &Stock) -> StepResult {
    let program = vm::suite::program("efa-emulator", "two_processes", None)?;
    let mut command = stock.command(Path::new(&program));
    if let Some(loader) = stock.loader() {
        command.env("EFA_TEST_LOADER", loader);
    }
    let text = output(&mut command)?;
    if text.contains("NOT RUN") { Err(format!("nothing was written:\n{text}")) } else { Ok(Outcome::Passed) }
}

/// The capabilities of fabric `efa` are those of the table.
fn grants(emulator: &Path, dir: &Path) -> StepResult {
    let mut info = Command::new(capi::tool("fi_info")?);
    let text = output(on(info.args(["-p", "efa", "-f", "efa", "--json"]), emulator, dir))?;
    let answer: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    let caps = answer.pointer("/infos/0/caps").and_then(serde_json::Value::as_array);
    let mut found: Vec<&str> = caps.into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
    let mut wanted: Vec<&str> = crate::features::EFA.split_whitespace().collect();
    found.sort_unstable();
    wanted.sort_unstable();
    if found == wanted { Ok(Outcome::Passed) } else { Err(format!("efa grants {found:?}, not {wanted:?}")) }
}

/// Our provider with itself: our program, on the system's libibverbs and libefa.
fn own_efa(emulator: &Path, dir: &Path) -> StepResult {
    let program = capi::tool("fi_pingpong")?;
    pingpong_pair("efa", &|| {
        let mut side = Command::new(&program);
        on(&mut side, emulator, dir);
        side
    })
}

/// Remote writes of random pages, with every byte compared, for each step of the ladder: on a network in order, and on
/// one without, where the last page to be written is not the last to arrive.
fn write_demo(emulator: &Path, dir: &Path) -> StepResult {
    let program = capi::tool("fi_write_demo")?;
    for disorder in [None, Some(programs::DISORDER)] {
        let mut demo = Command::new(&program);
        demo.args(capi::WRITE_DEMO).args(["--provider", "efa"]).envs(disorder.into_iter().flatten());
        run(on(&mut demo, emulator, dir))?;
    }
    // With a device present, a command line without a provider selects this one.
    let mut test = Command::new(vm::suite::program("ofi-tools", "integration", None)?);
    run(on(
        test.args(["--exact", "fi_write_demo::the_provider_that_was_taken_is_told_with_the_reason"]),
        emulator,
        dir,
    ))
}

/// The log of a run names the opened objects, the peers, and the protocol for messages of each length.
fn log(emulator: &Path, dir: &Path) -> StepResult {
    let mut command = Command::new(capi::tool("fi_pingpong")?);
    command
        .args(["--sizes", "64,20K,1M", "--quick"])
        .envs([("FI_PROVIDER", "efa"), ("FI_LOG_LEVEL", "debug")]);
    let ended = on(&mut command, emulator, dir).output().map_err(|error| format!("fi_pingpong: {error}"))?;
    let said = String::from_utf8_lossy(&ended.stderr);
    if !ended.status.success() {
        return Err(format!("fi_pingpong ended with {}: {said}", ended.status));
    }
    const WANTED: [&[&str]; 7] = [
        &["<info>", ":efa:", "opened a domain"],
        &["<info>", "opened a queue pair", "device=", "address=fi_addr_efa://", "mtu="],
        &["<debug>", "attached a peer's device", "peer=fi_addr_efa://", "device_reads="],
        &["<info>", "met a peer", "reads_by=", "writes_by=", "own_protocol=true"],
        &["<debug>", "chose the protocol of messages to a peer", "protocol=eager", "medium_up_to="],
        &["<debug>", "chose the protocol of a message to a peer", "protocol=medium", "len=20480"],
        &["<debug>", "chose the protocol of a message to a peer", "protocol=rendezvous", "len=1048576"],
    ];
    let says = |words: &[&str]| said.lines().any(|line| words.iter().all(|word| line.contains(word)));
    match WANTED.into_iter().find(|words| !says(words)) {
        None => Ok(Outcome::Passed),
        Some(words) => Err(format!("no line with {words:?} in\n{said}")),
    }
}

/// Every example that `efa` can run, and the connection examples, which report that it has no connections.
fn examples(emulator: &Path, dir: &Path) -> StepResult {
    let folder = capi::examples()?;
    let over_efa = |name| {
        let (environment, provider) = capi::example_over(name, "efa");
        let mut example = Command::new(folder.join(name));
        on(example.args(provider).envs(environment), emulator, dir);
        Ok::<_, String>(example)
    };
    for name in capi::EXAMPLES {
        run(&mut over_efa(name)?).map_err(|why| format!("{name}: {why}"))?;
    }
    for name in ["connections", "async_connections"] {
        let ended = over_efa(name)?.output().map_err(|error| format!("{name}: {error}"))?;
        let said = String::from_utf8_lossy(&ended.stderr);
        if ended.status.success() || !said.contains("FI_EP_MSG") {
            return Err(format!("{name} does not say that efa has no connections: {said}"));
        }
    }
    Ok(Outcome::Passed)
}

/// Grains between two processes, either of which is killed and returns, and the farewells of targets.
fn flows(emulator: &Path, dir: &Path) -> StepResult {
    let mut test = Command::new(vm::suite::program("mxl-fabrics", "integration", None)?);
    run(on(test.args(["--include-ignored", "over_efa"]), emulator, dir))
}

/// Agents with two rails, one of whose devices goes mute: its chunks move, and its late packets have no effect. With
/// newer libraries the devices execute writes.
fn mute(emulator: &Path, dir: &Path, newer: Option<&Stock>) -> StepResult {
    let mut test = Command::new(vm::suite::program("multirail", "integration", None)?);
    if let Some(words) = newer.and_then(Stock::loading) {
        test.env("EFA_TEST_UNDER", words.join("\n"));
    }
    let tests = ["on_a_mute_device", "for_a_mute_device", "four_devices_without_a_list"];
    run(on(test.arg("--include-ignored").args(tests), emulator, dir))
}

/// An agent with a peer that SIGSTOP stops, and its device with it, and with another peer. No device gives up a request
/// to the stopped one.
fn stopped(emulator: &Path, dir: &Path) -> StepResult {
    let mut test = Command::new(vm::suite::program("multirail", "integration", None)?);
    test.env("EFA_EMULATOR_TIMEOUT_MS", "3600000").args(["--include-ignored", "holds_up_nobody_over_efa"]);
    run(on(&mut test, emulator, dir))
}

/// Our provider and C's, under the same program: messages of up to 1 MiB, which either end reads from the other, on a
/// network in order and on one without. Untagged messages of 2.x's program use `efa-direct`, unless `efa` is
/// requested.
///
/// A server that has injected the last message of a size waits for its client in a socket, and polls no more. If the
/// message finds no receive more often than the device repeats it (three times on fabric `efa`), the library would have
/// to repeat it, so both wait for ever, whichever library the server uses.
fn meets_c(stock: &Stock, name: &str, emulator: &Path, dir: &Path) -> StepResult {
    if !stock.has_programs() {
        return stock.no_programs(name);
    }
    let library = capi::link(false)?;
    let side = |mut side: Command, disorder: Option<[(&str, &str); 2]>| {
        on(&mut side, emulator, dir).envs(disorder.into_iter().flatten());
        // Without order, the first bytes of read data are also sent ahead.
        side.envs(disorder.map(|_| ("FI_EFA_RUNT_SIZE", "100000")));
        side.env("EFA_EMULATOR_RNR_TIMES", "3");
        side
    };
    let mut kinds = vec![&["-m", "msg"][..], &["-m", "tagged"]];
    // Programs of 1.x support neither the option nor the other fabric.
    if stock.loader().is_some() {
        kinds.push(&["-m", "msg", "-f", "efa"]);
    }
    for kind in kinds {
        let args = [&["-p", "efa", "-e", "rdm", "-I", "10", "-c"], kind].concat();
        for disorder in [None, Some(programs::DISORDER)] {
            let c = || side(stock.pingpong(), disorder);
            let ours = || side(stock.pingpong_on(&library), disorder);
            pingpong(&args, &c, &ours)?;
            pingpong(&args, &ours, &c)?;
        }
    }
    Ok(Outcome::Passed)
}

/// C's provider with itself, if that libfabric has it.
fn c_efa(stock: &Stock, name: &str, emulator: &Path, dir: &Path) -> StepResult {
    if !stock.has_programs() {
        return stock.no_programs(name);
    }
    let mut info = stock.info();
    let found = on(info.args(["-p", "efa"]), emulator, dir).output();
    if !found.is_ok_and(|found| String::from_utf8_lossy(&found.stdout).contains("provider: efa")) {
        return Err(format!("fi_info of {} finds no efa on the emulated device", stock.name()));
    }
    pingpong_pair("efa", &|| {
        let mut side = stock.pingpong();
        on(&mut side, emulator, dir);
        side
    })
}

/// C's provider with itself over unreliable datagrams, which ours does not offer: the device's queue pairs for them.
fn c_datagrams(stock: &Stock, name: &str, emulator: &Path, dir: &Path) -> StepResult {
    if !stock.has_programs() {
        return stock.no_programs(name);
    }
    let side = || {
        let mut side = stock.pingpong();
        on(&mut side, emulator, dir);
        side
    };
    pingpong(&["-p", "efa", "-e", "dgram", "-I", "20", "-c"], &side, &side)
}
