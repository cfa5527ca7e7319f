//! libfabric's C interface: linking `libfabric.so.1`, installing it, and running C programs on it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::StepResult;
use crate::step::{Outcome, Report, answers, cargo, command, not_run, root, run};
use crate::{layouts, plugins};

/// The name that programs are linked against.
const SONAME: &str = "libfabric.so.1";
/// The system's own programs, which are linked against C libfabric.
pub const INFO: &str = "/usr/bin/fi_info";
pub const PINGPONG: &str = "/usr/bin/fi_pingpong";
/// The interface that `fi_version` answers; pkg-config tells it as the library's version.
const INTERFACE: &str = "2.6.0";
const NO_COMPILER: &str = "no C compiler (apt-get install gcc libc6-dev)";
const NO_OPEN_MPI: &str = "apt-get install openmpi-bin libopenmpi-dev";
pub const NO_HEADERS: &str = "no headers of libfabric (apt-get install libfabric-dev)";
/// Where the two `fi_pingpong` find each other: not the default, which a user may be using.
const CONTROL_PORT: &str = "47693";
/// How long a program may run. On a loaded machine with two cores everything takes its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Links the library into a folder of its own, and answers the folder.
///
/// # Errors
/// When a step of it fails.
fn link(release: bool) -> Result<PathBuf, String> {
    let mut build = cargo(&["build", "--quiet", "--package", "ofi-capi"]);
    if release {
        build.arg("--release");
    }
    run(&mut build)?;
    let base = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let built = base.join(if release { "release" } else { "debug" });
    let folder = built.join("capi");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let sources = root().join("crates/ofi-capi/link");
    // rustc would give GNU ld a version script of its own, and ld takes one: so the static library is linked here.
    let mut cc = command("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(folder.join(SONAME));
    cc.arg(format!("-Wl,-soname,{SONAME}"));
    cc.arg(format!("-Wl,--version-script={}", sources.join("libfabric.map").display()));
    cc.arg(sources.join("exports.c")).arg(built.join("libofi_capi.a"));
    // A helper thread may run when a program closes the library: its code must stay.
    cc.args(["-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,--gc-sections", "-lgcc_s", "-lpthread", "-ldl", "-lm"]);
    run(&mut cc)?;
    symlink(SONAME, &folder.join("libfabric.so"))?;
    Ok(folder)
}

fn symlink(to: &str, at: &Path) -> Result<(), String> {
    let _ = std::fs::remove_file(at);
    std::os::unix::fs::symlink(to, at).map_err(|error| format!("{}: {error}", at.display()))
}

fn has_compiler() -> bool {
    answers("cc", &["--version"])
}

/// `cargo xtask capi`: links the library and says where it is.
pub fn build(release: bool) -> StepResult {
    if !has_compiler() {
        return not_run(SONAME, NO_COMPILER);
    }
    let folder = link(release)?;
    println!("{}", folder.join(SONAME).display());
    Ok(Outcome::Passed)
}

/// `cargo xtask install`: library, pkg-config file and tools, under a prefix.
pub fn install(prefix: &Path) -> StepResult {
    if !has_compiler() {
        return not_run(SONAME, NO_COMPILER);
    }
    let folder = link(true)?;
    run(&mut cargo(&["build", "--quiet", "--release", "--package", "ofi-tools"]))?;
    install_from(&folder, prefix)?;
    println!("installed into {}", prefix.display());
    Ok(Outcome::Passed)
}

/// Puts what was built into place.
fn install_from(folder: &Path, prefix: &Path) -> Result<(), String> {
    let prefix = std::path::absolute(prefix).map_err(|error| error.to_string())?;
    let (lib, bin) = (prefix.join("lib"), prefix.join("bin"));
    let pkgconfig = lib.join("pkgconfig");
    for folder in [&pkgconfig, &bin] {
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    copy(&folder.join(SONAME), &lib.join(SONAME))?;
    symlink(SONAME, &lib.join("libfabric.so"))?;
    let plugins = lib.join("ofi-plugins");
    std::fs::create_dir_all(&plugins).map_err(|error| format!("{}: {error}", plugins.display()))?;
    let linked = plugins::link(folder)?;
    for (_, name) in plugins::OURS {
        let file = format!("lib{name}-fi.so");
        copy(&linked.join(&file), &plugins.join(&file))?;
    }
    let built = folder.parent().unwrap_or(Path::new("."));
    for tool in ["fi_info", "fi_pingpong"] {
        copy(&built.join(tool), &bin.join(tool))?;
    }
    let text = format!(
        "prefix={}\nlibdir=${{prefix}}/lib\n\nName: libfabric\nDescription: libfabric's C interface, in Rust\n\
         URL: https://github.com/ofi-rs/ofi\nVersion: {INTERFACE}\nLibs: -L${{libdir}} -lfabric\nCflags:\n",
        prefix.display()
    );
    std::fs::write(pkgconfig.join("libfabric.pc"), text).map_err(|error| error.to_string())
}

/// A prefix as a user has it: `pkg-config` finds the library there, a program is linked against it, and it and the tools run.
fn installed(folder: &Path) -> StepResult {
    const NAME: &str = "an installed library";
    if !answers("pkg-config", &["--version"]) {
        return not_run(NAME, "no pkg-config (apt-get install pkg-config)");
    }
    if !compiles("#include <rdma/fabric.h>\n") {
        return not_run(NAME, NO_HEADERS);
    }
    run(&mut cargo(&["build", "--quiet", "--package", "ofi-tools"]))?;
    let prefix = folder.join("prefix");
    let _ = std::fs::remove_dir_all(&prefix);
    install_from(folder, &prefix)?;
    // Once more: over what is there.
    install_from(folder, &prefix)?;
    let mut flags = command("pkg-config");
    flags.args(["--cflags", "--libs", "libfabric"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = crate::step::output(&mut flags)?;
    let (lib, program) = (prefix.join("lib"), folder.join("installed"));
    if !flags.contains(&format!("-L{}", lib.display())) {
        return Err(format!("pkg-config finds another library: {flags}"));
    }
    let tests = root().join("tests/capi");
    let mut cc = command("cc");
    cc.args(["-std=gnu11", "-O1", "-I"]).arg(&tests).arg(tests.join("messages.c")).arg("-o").arg(&program);
    run(cc.args(flags.split_whitespace()))?;
    run_on(&lib, &mut command(&program))?;
    // Ours need no library of theirs.
    for args in [&["-l"][..], &["--version"], &["-p", "shm"]] {
        patient(command(prefix.join("bin/fi_info")).args(args).stdout(Stdio::null()))?;
    }
    Ok(Outcome::Passed)
}

/// Copies beside the old file and renames, so that programs which run on the old one are not disturbed.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let beside = to.with_extension("new");
    std::fs::copy(from, &beside).map_err(|error| format!("{}: {error}", from.display()))?;
    std::fs::rename(&beside, to).map_err(|error| format!("{}: {error}", to.display()))
}

/// C programs on the library: those of `tests/capi`, and libfabric's own where they are installed.
pub fn test(report: &mut Report) {
    if !has_compiler() {
        return report.add("C interface", || not_run("C interface", NO_COMPILER));
    }
    let mut folder = None;
    report.add("linking libfabric.so.1", || {
        folder = Some(link(false)?);
        Ok(Outcome::Passed)
    });
    let Some(folder) = folder else { return };
    report.add("an installed library", || installed(&folder));
    report.add("C programs", || own_programs(&folder));
    report.add("fi_info and fi_pingpong of the system", || their_programs(&folder));
    report.add("datagrams between the system's udp and ours", || datagrams(&folder));
    report.add("structures of the installed headers", || layouts::check(&folder));
    report.add("a provider by another name", || alias(&folder));
    report.add("our providers in the system's libfabric", || plugins::ours(&folder));
    report.add("a provider of others in our library", || plugins::of_others(&folder));
    report.add("Open MPI of the system", || open_mpi(&folder));
    report.add("Open MPI between two hosts", || two_hosts(&folder));
}

/// Compiles and runs each program of `tests/capi`. A program ends with 0, or says what is wrong.
fn own_programs(folder: &Path) -> StepResult {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root().join("tests/capi")).map_err(|error| error.to_string())?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            names.push(path);
        }
    }
    names.sort_unstable();
    if !compiles("#include <rdma/fabric.h>\n#include <rdma/fi_ext.h>\n") {
        let name = |path: &PathBuf| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let not_run = names.iter().filter_map(name).map(|name| format!("C program {name}: {NO_HEADERS}"));
        return Ok(Outcome::NotRun(not_run.collect()));
    }
    let mut failed = Vec::new();
    for source in names {
        let program = folder.join(source.file_stem().unwrap_or_default());
        let mut cc = command("cc");
        cc.args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]);
        cc.arg("-I").arg(root().join("tests/capi")).arg(&source).arg("-o").arg(&program);
        // As a program of the system would be linked: against the system's library, found by name at run time.
        cc.args(["-lfabric", "-lpthread", "-ldl"]);
        if let Err(why) = run(&mut cc).and_then(|_| run_on(folder, &mut command(&program))) {
            failed.push(why);
        }
    }
    if failed.is_empty() { Ok(Outcome::Passed) } else { Err(failed.join("; ")) }
}

pub fn compiles(source: &str) -> bool {
    let mut cc = command("cc");
    cc.args(["-fsyntax-only", "-xc", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = cc.spawn() else { return false };
    let written = child
        .stdin
        .take()
        .is_some_and(|mut stdin| std::io::Write::write_all(&mut stdin, source.as_bytes()).is_ok());
    child.wait().is_ok_and(|status| status.success()) && written
}

/// The system's own `fi_info` and `fi_pingpong`, which are linked against C libfabric.
fn their_programs(folder: &Path) -> StepResult {
    if !Path::new(INFO).exists() || !Path::new(PINGPONG).exists() {
        return not_run("fi_info and fi_pingpong of the system", "apt-get install libfabric-bin");
    }
    for args in [&["-p", "shm", "-v"][..], &["-l"], &["-e"], &["--version"]] {
        run_on(folder, command(INFO).args(args).stdout(Stdio::null()))?;
    }
    pingpong_pair("shm", &|command| {
        command.env("LD_LIBRARY_PATH", folder);
    })
}

/// A program that insists on `tcp` runs on ours, if the user says so: the system's own, which are told of the name only.
fn alias(folder: &Path) -> StepResult {
    if !Path::new(INFO).exists() || !Path::new(PINGPONG).exists() {
        return not_run("a provider by another name", "apt-get install libfabric-bin");
    }
    for alias in ["tcp=shm", "tcp=udp"] {
        let environment = |command: &mut Command| {
            command.env("LD_LIBRARY_PATH", folder).env("FI_PROVIDER_ALIAS", alias);
        };
        let mut list = command(INFO);
        environment(list.arg("-l"));
        let listed = crate::step::output(&mut list)?;
        if !listed.lines().any(|line| line.trim() == "tcp:") {
            return Err(format!("{alias}: the other name is not listed:\n{listed}"));
        }
        pingpong_pair("tcp", &environment).map_err(|why| format!("{alias}: {why}"))?;
    }
    // Off unless set.
    match run_on(folder, command(INFO).args(["-p", "tcp"]).stdout(Stdio::null()).stderr(Stdio::null())) {
        Err(_) => Ok(Outcome::Passed),
        Ok(_) => Err("there is a provider tcp that nobody asked for".into()),
    }
}

/// Bare datagrams of C libfabric's `udp` and of ours, in both directions: the same program on either library.
fn datagrams(folder: &Path) -> StepResult {
    if !Path::new(PINGPONG).exists() {
        return not_run("datagrams between the system's udp and ours", "apt-get install libfabric-bin");
    }
    let ours = |command: &mut Command| {
        command.env("LD_LIBRARY_PATH", folder);
    };
    let theirs = |command: &mut Command| {
        command.env_remove("LD_LIBRARY_PATH");
    };
    // With `-c` every byte is checked.
    let args = ["-p", "udp", "-e", "dgram", "-I", "50", "-c"];
    pingpong(&args, &theirs, &ours).map_err(|error| format!("C serves, we ask: {error}"))?;
    pingpong(&args, &ours, &theirs).map_err(|error| format!("we serve, C asks: {error}"))
}

/// `fi_pingpong` of the system on a provider, in an environment.
pub fn pingpong_pair(provider: &str, environment: &dyn Fn(&mut Command)) -> StepResult {
    pingpong(&["-p", provider, "-e", "rdm", "-I", "20"], environment, environment)
}

/// `fi_pingpong` of the system, each side in an environment of its own.
fn pingpong(args: &[&str], serving: &dyn Fn(&mut Command), asking: &dyn Fn(&mut Command)) -> StepResult {
    let mut server = command(PINGPONG);
    server.args(args).args(["-B", CONTROL_PORT]).stdout(Stdio::null());
    serving(&mut server);
    let mut server = server.spawn().map_err(|error| format!("{PINGPONG}: {error}"))?;
    let begin = Instant::now();
    // The client gives up at once while nobody listens.
    let outcome = loop {
        let mut client = command(PINGPONG);
        client.args(args).args(["-P", CONTROL_PORT, "127.0.0.1"]).stdout(Stdio::null()).stderr(Stdio::null());
        asking(&mut client);
        let outcome = patient(&mut client);
        if outcome.is_ok() || begin.elapsed() > Duration::from_secs(10) {
            break outcome;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let _ = server.kill();
    let _ = server.wait();
    outcome
}

fn has_open_mpi() -> bool {
    answers("mpicc", &["--version"]) && answers("mpirun", &["--version"])
}

/// Compiles the program of the ranks.
fn stress(folder: &Path) -> Result<PathBuf, String> {
    let program = folder.join("mpi");
    let mut cc = command("mpicc");
    run(cc.args(["-O1", "-o"]).arg(&program).arg(root().join("tests/capi/mpi/stress.c")))?;
    Ok(program)
}

/// The same program on ranks of two network namespaces, over udp.
fn two_hosts(folder: &Path) -> StepResult {
    const NAME: &str = "Open MPI between two hosts";
    const NAMESPACES: [&str; 4] = ["-Urnpu", "--fork", "--kill-child", "--mount-proc"];
    if !has_open_mpi() {
        return not_run(NAME, NO_OPEN_MPI);
    }
    if !answers("ip", &["-V"]) {
        return not_run(NAME, "no ip (apt-get install iproute2)");
    }
    let veth = ["ip", "link", "add", "net0", "type", "veth", "peer", "name", "net1"];
    if !answers("unshare", &[&NAMESPACES[..], &veth[..]].concat()) {
        return not_run(NAME, "no namespaces without privileges, or no veth in them (unshare -Urnpu)");
    }
    let program = stress(folder)?;
    let mut script = command("unshare");
    script.args(NAMESPACES).arg(root().join("tests/capi/mpi/two_hosts.sh"));
    patient(script.arg(folder).arg(folder).arg(program).stderr(Stdio::null()))
}

/// Point-to-point, collectives, one-sided and many messages at once, on 2 to 8 ranks of the system's Open MPI.
fn open_mpi(folder: &Path) -> StepResult {
    if !has_open_mpi() {
        return not_run("Open MPI", NO_OPEN_MPI);
    }
    let program = stress(folder)?;
    for (provider, ranks) in [("shm", "2"), ("shm", "4"), ("shm", "8"), ("udp", "2"), ("udp", "8")] {
        let mut mpirun = command("mpirun");
        mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", ranks, "-x", "LD_LIBRARY_PATH"]);
        mpirun.args(["-x", "FI_SHM_REMOTE_COMM=1", "--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
        mpirun.args(["--mca", "mtl_ofi_provider_include", provider]).arg(&program);
        // It says a lot about networks that it would have liked better.
        run_on(folder, mpirun.stderr(Stdio::null()))
            .map_err(|why| format!("{provider}, {ranks} ranks: {why}"))?;
    }
    Ok(Outcome::Passed)
}

/// A command that finds this library in place of the system's.
fn on<'a>(folder: &Path, command: &'a mut Command) -> &'a mut Command {
    command.env("LD_LIBRARY_PATH", folder)
}

/// Runs a program on this library.
pub fn run_on(folder: &Path, command: &mut Command) -> StepResult {
    patient(on(folder, command))
}

/// Runs a program, for as long as [`PATIENCE`] at most.
pub fn patient(command: &mut Command) -> StepResult {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let begin = Instant::now();
    loop {
        match child.try_wait().map_err(|error| format!("{name}: {error}"))? {
            Some(status) if status.success() => return Ok(Outcome::Passed),
            Some(status) => return Err(format!("{name} ended with {status}")),
            None if begin.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name} did not end within {} s", PATIENCE.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
