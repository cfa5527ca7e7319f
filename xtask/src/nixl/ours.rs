//! Our backend, `libplugin_OFI.so`: in NIXL's wheels of two versions, over one rail and two, over emulated EFA devices,
//! with memory of an emulated CUDA device, and under a host that has another interface.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{EXEC, RUNS, SITE, SIZES, libraries, older, python};
use crate::nixl_plugin as plugin;
use crate::step::{Outcome, Report, answers, cargo, command, not_run, output, root, run, target_dir};
use crate::{StepResult, capi, efa};

/// The part that CI runs: blocks that are not striped, driven by polls, and striped blocks, driven by the thread.
pub const SOME: [[usize; 3]; 2] = [[4_096, 1_024, 3], [1 << 20, 32, 3]];
/// Over emulated devices, whose threads take the processor from the agents.
const EMULATED: [usize; 3] = [1 << 20, 16, 3];

/// Runs everything, or the part that CI has time for.
pub fn test(report: &mut Report, python: &Path, libraries: &str, all: bool) {
    if !plugin::has_compiler() {
        return report.add(plugin::NAME, || not_run(plugin::NAME, plugin::NO_COMPILER));
    }
    let mut linked = None;
    report.add(plugin::NAME, || {
        linked = Some(plugin::link()?);
        Ok(Outcome::Passed)
    });
    let Some(linked) = linked else { return };
    let Some(folder) = linked.parent() else { return };
    report.add("hosts that OFI does not know, and its log", || hosts(&linked));
    report.add("the virtual tables of NIXL's own plug-ins and of OFI", || tables(python, &linked));
    let program = |script: &[&str]| in_wheel(python, libraries, folder, script);
    report.add("NIXL's example of its wheel on OFI", || {
        let site = output(command(python).args(["-c", SITE]))?;
        let site = Path::new(site.trim());
        let example = site.join("nixl_cu12.scripts/nixl_example");
        let mut program = program(&["-c", EXEC, &example.to_string_lossy(), "OFI"]);
        // It looks for libraries where this wheel does not install them.
        program.env(
            "LD_LIBRARY_PATH",
            format!("{}:{libraries}", site.join(".nixl_cu12.mesonpy.libs").display()),
        );
        let text = output(&mut program)?;
        text.contains("Transfer verified").then_some(Outcome::Passed).ok_or(text)
    });
    report.add("the options of OFI, as NIXL lists them", || {
        let text = output(&mut program(&["tests/nixl/options.py"]))?;
        let missing = plugin::OPTIONS.iter().find(|name| !text.contains(*name));
        missing.map_or(Ok(Outcome::Passed), |name| Err(format!("{name} is not in {text}")))
    });
    for driven in ["polls", "thread"] {
        for (rails, shared_memory) in [("udp", "1"), ("udp", "0"), ("udp,udp", "0")] {
            let sizes = match (all, driven) {
                (true, _) => &SIZES[..],
                (false, "polls") => &SOME[..1],
                (false, _) => &SOME[1..],
            };
            for &sizes in sizes {
                let way = way(shared_memory);
                let [size, count, _] = sizes;
                let name =
                    format!("NIXL on OFI by {driven}, {rails} through {way}, {count} blocks of {size} bytes");
                report.add(&name, || {
                    let mut run_once = exchange(&program, sizes, &[driven]);
                    run_once.env("NIXL_OFI_RAILS", rails).env("NIXL_OFI_SHARED_MEMORY", shared_memory);
                    // NIXL reads the values for its telemetry from a backend's own members.
                    run_once.env("NIXL_TELEMETRY_ENABLE", if driven == "thread" { "y" } else { "n" });
                    run(&mut run_once)?;
                    Ok(Outcome::Passed)
                });
            }
        }
    }
    report.add("NIXL 1.4 on OFI", || {
        let older = older(python)?;
        for (driven, sizes) in [("polls", SOME[0]), ("thread", SOME[1])] {
            let mut run_once = exchange(&program, sizes, &[driven]);
            run(run_once.env("PYTHONPATH", &older).env("NIXL_OFI_RAILS", "udp,udp"))?;
        }
        Ok(Outcome::Passed)
    });
    devices(report, &program, libraries, all);
}

/// Memory of an emulated CUDA device.
fn devices(report: &mut Report, program: &impl Fn(&[&str]) -> Command, libraries: &str, all: bool) {
    let mut emulator = None;
    report.add("the CUDA emulator", || {
        emulator = Some(emulated_device()?);
        Ok(Outcome::Passed)
    });
    let Some(emulator) = emulator else { return };
    // CI has time for one variant of each.
    let cases = [("VRAM", "DRAM", ["0", "1"]), ("DRAM", "VRAM", ["1", "0"]), ("VRAM", "VRAM", ["0", "1"])];
    for (ours, theirs, ways) in cases {
        for shared_memory in &ways[..if all { 2 } else { 1 }] {
            // Each chunk is copied several times, so there are fewer rounds than with host memory.
            for [size, count, _] in &SIZES[if all { 0 } else { 1 }..] {
                let way = way(shared_memory);
                let name = format!(
                    "NIXL on OFI, from {ours} to {theirs} of an emulated device through {way}, {count} blocks of {size} bytes"
                );
                report.add(&name, || {
                    let rounds = if all { RUNS } else { 1 };
                    let mut run_once = exchange(program, [*size, *count, rounds], &["thread", ours, theirs]);
                    run_once.env("NIXL_OFI_SHARED_MEMORY", shared_memory);
                    // Precedes the stub that reports no device.
                    run_once.env("LD_LIBRARY_PATH", format!("{}:{libraries}", emulator.display()));
                    run(&mut run_once)?;
                    Ok(Outcome::Passed)
                });
            }
        }
    }
}

pub fn way(shared_memory: &str) -> &'static str {
    if shared_memory == "1" { "shared memory" } else { "sockets" }
}

/// A program in NIXL's wheel that finds the plug-in in this folder, for at most a minute.
fn in_wheel(python: &Path, libraries: &str, plugin: &Path, script: &[&str]) -> Command {
    let mut program = command("timeout");
    program.args(["--kill-after=5", "60"]).arg(python).args(script);
    program.env("LD_LIBRARY_PATH", libraries).env("NIXL_LOG_LEVEL", "ERROR");
    program.env("NIXL_PLUGIN_DIR", plugin);
    program
}

/// The exchange of two agents: how they are driven, and the kinds of their memory.
fn exchange(program: &impl Fn(&[&str]) -> Command, sizes: [usize; 3], how: &[&str]) -> Command {
    let sizes = sizes.map(|number| number.to_string());
    let mut args = vec!["tests/nixl/exchange.py"];
    args.extend(sizes.iter().map(String::as_str));
    args.push("OFI");
    args.extend(how);
    program(&args)
}

/// Two agents in NIXL's wheel, on the plug-in of this folder, over two emulated EFA devices, each of which carries its
/// share. `libfabric` is the folder of `libfabric.so.1`, which NIXL's own plug-in loads.
///
/// # Errors
/// An agent fails, bytes differ, or a device carries no share.
pub fn exchange_over_efa(plugin: &Path, libfabric: &Path) -> StepResult {
    const NAME: &str = "NIXL on OFI, over two emulated EFA devices";
    let python = match python() {
        Ok(python) => python,
        Err(why) => return not_run(NAME, &why),
    };
    let libraries = libraries(&python, libfabric)?;
    over_efa(&|script: &[&str]| in_wheel(&python, &libraries, plugin, script))
}

/// The same, of this program in an environment that has NIXL.
///
/// # Errors
/// As above.
pub fn over_efa(program: &impl Fn(&[&str]) -> Command) -> StepResult {
    let (emulator, logs) = (efa::build()?, target_dir("nixl").join("rails"));
    let dir = efa::folder().with_extension(format!("nixl-{}", std::process::id()));
    let domains = [0, 1].map(|device| format!("efa_emu{device}-rdm"));
    let mut agents = exchange(program, EMULATED, &["thread"]);
    agents.env("NIXL_OFI_RAILS", domains.each_ref().map(|domain| format!("efa/{domain}")).join(","));
    efa::on(&mut agents, &emulator, &dir).env("EFA_EMULATOR_DEVICES", "2");
    // A folder has a file for each agent.
    let _ = std::fs::remove_dir_all(&logs);
    std::fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    agents.envs([("FI_LOG_LEVEL", "info"), ("FI_LOG_PROV", "multirail")]).env("FI_LOG_LOCATION", &logs);
    let done = run(&mut agents);
    let _ = std::fs::remove_dir_all(&dir);
    done?;
    let files = std::fs::read_dir(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let text: String = files.flatten().filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect();
    let carried = domains.each_ref().map(|domain| carried(&text, domain));
    let [size, count, rounds] = EMULATED;
    let (all, each) = ((2 * size * count * rounds) as u64, carried.iter().copied());
    // Every block is written and read; a rail carries half of each, unless one falls behind.
    if each.clone().sum::<u64>() < all || each.clone().any(|bytes| bytes < all / 5) {
        return Err(format!("of {all} bytes {domains:?} carried {carried:?}:\n{text}"));
    }
    Ok(Outcome::Passed)
}

/// The bytes that the rails on a domain carried, according to their last lines in the log.
fn carried(log: &str, domain: &str) -> u64 {
    let (domain, closed) = (format!("domain={domain} "), "a rail is closed");
    let lines = log.lines().filter(|line| line.contains(closed) && line.contains(&domain));
    let bytes = lines.filter_map(|line| line.split_once(" bytes=")?.1.split(' ').next()?.parse::<u64>().ok());
    bytes.sum()
}

/// The declaration of NIXL's interface, against plug-ins that were built with NIXL's own, of both versions.
fn tables(python: &Path, linked: &Path) -> StepResult {
    if !answers("nm", &["--version"]) {
        return not_run("virtual tables", "no nm (apt-get install binutils)");
    }
    let site = output(command(python).args(["-c", SITE]))?;
    for home in [PathBuf::from(site.trim()), older(python)?] {
        for name in ["POSIX", "UCX", "LIBFABRIC"] {
            let plugin = home.join(format!(".nixl_cu12.mesonpy.libs/plugins/libplugin_{name}.so"));
            run(command(python).arg("tests/nixl/table.py").arg(plugin).arg(linked))?;
        }
    }
    Ok(Outcome::Passed)
}

/// Hosts without NIXL: one with another layout, one that appears older, and the log at each level.
fn hosts(linked: &Path) -> StepResult {
    let folder = target_dir("nixl");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let build = |name: &str, flags: &[&str]| {
        let program = folder.join(name);
        let source = root().join("tests/nixl/host.cpp");
        run(plugin::compiler().args(flags).arg("-rdynamic").arg(source).arg("-o").arg(&program).arg("-ldl"))?;
        Ok::<_, String>(program)
    };
    let (newer, older) = (build("host", &[])?, build("host-0.9", &["-DOLD"])?);
    let said = |program: &Path, args: &[&str], set: &[(&str, &str)]| {
        let mut host = command("timeout");
        host.args(["--kill-after=5", "60"]).arg(program).arg(linked).args(args);
        for name in ["FI_LOG_LEVEL", "NIXL_LOG_LEVEL", "NIXL_OFI_RAILS", "FI_PROVIDER"] {
            host.env_remove(name);
        }
        let found = host.envs(set.iter().copied()).output().map_err(|error| error.to_string())?;
        let text =
            format!("{}{}", String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&found.stderr));
        if found.status.success() {
            Ok(text)
        } else {
            Err(format!("{args:?} {set:?}: {}: {text}", found.status))
        }
    };
    let cases = [
        (&older, "refused", "", &[][..], "is older than 1.0"),
        (&newer, "moved", "", &[], "are not laid out as in 1.0 to 1.5"),
        (&newer, "serve", "rails=shm", &[("NIXL_LOG_LEVEL", "info")], "a rail is open provider=shm"),
        (&newer, "serve", "rails=shm", &[("NIXL_LOG_LEVEL", "INFO")], "a rail is closed provider=shm"),
        (&newer, "serve", "rails=shm", &[("NIXL_LOG_LEVEL", "DEBUG")], "memory of the host is registered"),
        (
            &newer,
            "serve",
            "rails=shm",
            &[("NIXL_LOG_LEVEL", "LOUD")],
            "TRACE, DEBUG, INFO, WARN, ERROR, FATAL",
        ),
        (
            &newer,
            "serve",
            "rails=shm",
            &[("NIXL_LOG_LEVEL", "FATAL"), ("FI_LOG_LEVEL", "info")],
            "a rail is open provider=shm",
        ),
        (&newer, "serve", "rails=efa/nothing", &[], "NIXL_OFI_RAILS"),
        (&newer, "serve", "rails=efa/nothing", &[("NIXL_LOG_LEVEL", "ERROR")], "NIXL_OFI_RAILS"),
        (&newer, "serve", "rails=sockets", &[], "FI_PROVIDER_ALIAS=sockets=udp"),
        (
            &newer,
            "serve",
            "rails=verbs/nothing",
            &[("NIXL_LOG_LEVEL", "INFO")],
            "a rail is refused provider=verbs",
        ),
    ];
    for (program, what, option, set, wanted) in cases {
        let text = said(
            program,
            &[&[what][..], option.split_terminator(' ').collect::<Vec<_>>().as_slice()].concat(),
            set,
        )?;
        if !text.contains(wanted) {
            return Err(format!("{what} {option} {set:?} does not say {wanted:?}:\n{text}"));
        }
    }
    for (option, set, wanted) in [
        ("rails=shm", &[][..], "opened\n"),
        ("rails=shm", &[("NIXL_LOG_LEVEL", "ERROR")], "opened\n"),
        ("rails=efa/nothing", &[("NIXL_LOG_LEVEL", "FATAL")], "not opened\n"),
        ("rails=efa/nothing", &[("FI_LOG_LEVEL", "off")], "not opened\n"),
    ] {
        let text = said(&newer, &["serve", option], set)?;
        if text != wanted {
            return Err(format!("with {option} and {set:?} this is said in place of {wanted:?}:\n{text}"));
        }
    }
    Ok(Outcome::Passed)
}

/// Builds the emulator of a CUDA device. Returns a folder that has it as libcuda.so.1.
///
/// # Errors
/// The error of cargo.
pub fn emulated_device() -> Result<PathBuf, String> {
    let text =
        output(&mut cargo(&["build", "--quiet", "--package", "cuda-emulator", "--message-format=json"]))?;
    let name = "libcuda_emulator.so";
    let built = text.split('"').rfind(|word| word.ends_with(name));
    let built = built.ok_or_else(|| format!("cargo built no {name}"))?;
    let folder = target_dir("nixl").join("emulator");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    capi::symlink(&root().join(built).display().to_string(), &folder.join("libcuda.so.1"))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_domain_carried_is_the_sum_of_its_closed_rails() {
        let log = "<info> a rail is open provider=efa domain=a bytes=9 x\n\
                   <info> a rail is closed provider=efa domain=a accesses=2 bytes=40 sent=1\n\
                   <info> a rail is closed provider=efa domain=ab accesses=2 bytes=7 sent=1\n\
                   <info> a rail is closed provider=efa domain=a accesses=0 bytes=2\n";
        assert_eq!((carried(log, "a"), carried(log, "ab"), carried(log, "b")), (42, 7, 0));
    }
}
