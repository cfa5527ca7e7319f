//! `cargo xtask nixl`: a real program on our `libfabric.so.1`. NVIDIA's NIXL, from its wheel, asks for
//! `FI_THREAD_COMPLETION` but violates it: it posts and sends from one thread, and reads the queue from another. It
//! also runs on our own backend, `libplugin_OFI.so` ([`ours`]).

pub mod ours;
pub mod speed;
mod theirs;
pub mod wheel;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::capi;
use crate::step::{Outcome, Report, answers, command, not_run, output, root, run, target_dir};

/// The wheels without their dependencies: `nixl-cu12` requires all of PyTorch, but works without.
const WHEELS: [&str; 3] = ["nixl-cu12==1.5.1", "nvidia-cuda-runtime-cu12==12.9.79", "numpy"];
/// The older version of NIXL that our backend runs in too.
const OLDER: &str = "nixl-cu12==1.4.1";
/// Bytes of a block, blocks, rounds.
const SIZES: [[usize; 3]; 2] = [[4_096, 1_024, 15], [1 << 20, 32, 15]];
/// The sizes for many runs.
const ALL_SIZES: [[usize; 3]; 4] =
    [[4_096, 1_024, 15], [65_536, 256, 15], [1 << 20, 32, 15], [4 << 20, 8, 15]];
/// The transports, and the settings that select each.
const WAYS: [(&str, &[(&str, &str)]); 3] = [
    ("shared memory", &[("FI_PROVIDER_ALIAS", "tcp=udp"), ("FI_UDP_SHARED_MEMORY", "1")]),
    ("sockets of udp", &[("FI_PROVIDER_ALIAS", "tcp=udp"), ("FI_UDP_SHARED_MEMORY", "0")]),
    ("sockets of tcp", &[("FI_TCP_SHARED_MEMORY", "0")]),
];
/// Prints the folder in which wheels are installed.
const SITE: &str = "import site; print(site.getsitepackages()[0])";
/// Runs a program whose file in the wheel is not executable.
const EXEC: &str = "import os, sys; os.chmod(sys.argv[1], 0o755); os.execv(sys.argv[1], sys.argv[1:])";
/// Default number of runs of each.
const RUNS: usize = 3;

/// Installs the requirements below `target/` once, and runs the exchange over shared memory and over sockets, then on
/// our own backend. With `runs`, runs the first of these `runs` times, with more block sizes, and our backend in every
/// way that it can be driven.
pub fn test(report: &mut Report, runs: Option<usize>) {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return report.add("NIXL", || not_run("NIXL on libfabric.so.1", &why)),
    };
    let mut prepared = None;
    report.add("libfabric.so.1 and what NIXL needs beside it", || {
        prepared = Some(libraries(&python, &capi::link(true)?)?);
        Ok(Outcome::Passed)
    });
    let Some(libraries) = prepared else { return };
    for (way, settings) in WAYS {
        let sizes = if runs.is_some() { &ALL_SIZES[..] } else { &SIZES };
        for &[size, count, rounds] in sizes {
            report.add(&format!("NIXL through {way}, {count} blocks of {size} bytes"), || {
                let runs = runs.unwrap_or(RUNS);
                // Complete all runs even after a failure, to count the failures.
                let mut failures = (0..runs).filter_map(|_| {
                    run(&mut stock(&python, &libraries, settings, [size, count, rounds])).err()
                });
                let Some(first) = failures.next() else { return Ok(Outcome::Passed) };
                Err(format!("{} of {runs} runs failed, the first by: {first}", 1 + failures.count()))
            });
        }
    }
    ours::test(report, &python, &libraries, runs.is_some());
    wheel::test(report);
}

/// One run on NIXL's own plug-in for libfabric, which ends itself after less than a minute.
fn stock(python: &Path, libraries: &str, settings: &[(&str, &str)], sizes: [usize; 3]) -> Command {
    let mut program = command("timeout");
    program.args(["--kill-after=5", "60"]).arg(python).arg("tests/nixl/exchange.py");
    program.args(sizes.map(|size| size.to_string()));
    program.env("LD_LIBRARY_PATH", libraries).env("NIXL_LOG_LEVEL", "ERROR");
    // The plug-in knows a few providers by name; `udp` answers under one of these names.
    program.env("FI_PROVIDER", "tcp").envs(settings.iter().copied());
    program
}

/// The exchange on NIXL's own plug-in for libfabric, over the providers that it finds in the `libfabric.so.1` of this
/// folder. By default it takes one device of provider `efa` before everything else.
pub fn exchange(python: &Path, libfabric: &Path, sizes: [usize; 3]) -> Result<Command, String> {
    let mut program = Command::new(python);
    program.arg("tests/nixl/exchange.py").args(sizes.map(|size| size.to_string())).current_dir(root());
    program.env("LD_LIBRARY_PATH", libraries(python, libfabric)?).env("NIXL_LOG_LEVEL", "ERROR");
    Ok(program)
}

/// Whether a library that one of the wheel's libraries needs, but the wheel lacks, is installed.
fn has_hwloc() -> bool {
    let listed =
        output(command("ldconfig").arg("-p")).or_else(|_| output(command("/sbin/ldconfig").arg("-p")));
    listed.is_ok_and(|text| text.contains("libhwloc.so.15"))
}

/// The interpreter that has the wheels.
///
/// # Errors
/// A missing requirement.
pub fn python() -> Result<PathBuf, String> {
    let missing = [
        (!cfg!(all(target_os = "linux", target_arch = "x86_64")), "the wheel is for Linux on x86-64"),
        (!answers("cc", &["--version"]), "no C compiler (apt-get install gcc libc6-dev)"),
        (
            !answers("python3", &["-c", "import venv, ensurepip"]),
            "no python3 with venv (apt-get install python3-venv)",
        ),
        (!has_hwloc(), "no libhwloc.so.15 (apt-get install libhwloc15)"),
    ];
    match missing.into_iter().find(|(missing, _)| *missing) {
        Some((_, why)) => Err(why.into()),
        None => venv(),
    }
}

/// The interpreter of a virtual environment, which is created completely or not at all.
///
/// # Errors
/// The reason why there is none.
fn venv() -> Result<PathBuf, String> {
    let (home, python) = (target_dir("nixl"), target_dir("nixl").join("venv/bin/python"));
    let complete = home.join("complete");
    let wanted = WHEELS.join("\n");
    if std::fs::read_to_string(&complete).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    std::fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    run(command("python3").args(["-m", "venv", "--clear"]).arg(home.join("venv")))?;
    let mut pip = command(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]).args(WHEELS);
    run(&mut pip).map_err(|why| format!("the wheels could not be installed ({why}); is PyPI reachable?"))?;
    std::fs::write(&complete, wanted).map_err(|error| format!("{}: {error}", complete.display()))?;
    Ok(python)
}

/// The folder of the older version, which `PYTHONPATH` puts in front of the other; complete or not at all.
///
/// # Errors
/// The reason why there is none.
fn older(python: &Path) -> Result<PathBuf, String> {
    let (_, version) = OLDER.split_once("==").unwrap_or_default();
    let home = target_dir("nixl").join(version);
    let complete = home.join("complete");
    if complete.is_file() {
        return Ok(home);
    }
    let _ = std::fs::remove_dir_all(&home);
    let mut pip = command(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]);
    run(pip.arg(&home).arg(OLDER)).map_err(|why| format!("{OLDER}: {why}"))?;
    std::fs::write(&complete, "").map_err(|error| format!("{}: {error}", complete.display()))?;
    Ok(home)
}

/// The library path of NIXL's own plug-in for libfabric: our library, and what it needs of CUDA.
fn libraries(python: &Path, ours: &Path) -> Result<String, String> {
    Ok(format!("{}:{}", ours.display(), cuda(python)?))
}

/// Builds a stub of libcuda. Returns the library path of the stub and of the wheels' CUDA.
fn cuda(python: &Path) -> Result<String, String> {
    let stub = target_dir("nixl").join("cuda");
    std::fs::create_dir_all(&stub).map_err(|error| format!("{}: {error}", stub.display()))?;
    let mut cc = command("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1", "-o"]);
    run(cc.arg(stub.join("libcuda.so.1")).arg("tests/nixl/cuda.c"))?;
    let site = output(command(python).args(["-c", SITE]))?;
    let runtime = Path::new(site.trim()).join("nvidia/cuda_runtime/lib");
    Ok(format!("{}:{}", stub.display(), runtime.display()))
}
