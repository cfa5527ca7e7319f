//! Providers as plug-ins, both ways: ours in C's libfabric, and a C provider of this project in ours.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::StepResult;
use crate::patience::patient;
use crate::step::{Outcome, command, not_run, output, root, run};
use crate::stock::{NO_HEADERS, Stock, pingpong_pair};

/// Our providers, and their names beside those of C. No name begins with `ofi_`: the host takes such names for utility
/// layers.
pub const OURS: [(&str, &str); 5] =
    [("shm", "rshm"), ("udp", "rudp"), ("tcp", "rtcp"), ("verbs", "rverbs"), ("efa", "refa")];
/// Those of them that need no device.
pub const EVERYWHERE: [&str; 3] = ["rshm", "rudp", "rtcp"];

fn folder_of(path: PathBuf) -> Result<PathBuf, String> {
    std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// The folder in which [`link`] puts our providers.
pub fn linked(folder: &Path) -> PathBuf {
    folder.join("plugins")
}

/// Links our providers for a stock libfabric, which loads them from `FI_PROVIDER_PATH`. They have other names there,
/// because the host has providers of the same names.
///
/// # Errors
/// The linker fails.
pub fn link(folder: &Path) -> StepResult {
    let plugins = folder_of(linked(folder))?;
    let built = folder.parent().unwrap_or(Path::new("."));
    let sources = root().join("crates/ofi-capi/link");
    for (provider, name) in OURS {
        let mut cc = command("cc");
        cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
        cc.arg(plugins.join(format!("lib{name}-fi.so")));
        cc.arg(format!("-DPROVIDER=\"{provider}\"")).arg(format!("-DNAME=\"{name}\""));
        cc.arg(format!("-Wl,--version-script={}", sources.join("plugin.map").display()));
        cc.arg(sources.join("plugin.c")).arg(built.join("libofi_capi.a"));
        let flags =
            ["-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,--gc-sections", "-lgcc_s", "-lpthread", "-ldl", "-lm"];
        run(cc.args(flags))?;
    }
    Ok(Outcome::Passed)
}

/// Our providers in C's libfabric: listed beside its own, selected by name, used, and not selected by programs that ask
/// for others.
pub fn ours(folder: &Path, stock: &Stock) -> StepResult {
    if !stock.has_programs() {
        return stock.no_programs("our providers in C's libfabric");
    }
    let plugins = linked(folder);
    let info = |args: &[&str]| output(stock.info().args(args).env("FI_PROVIDER_PATH", &plugins));
    let side = || {
        let mut side = stock.pingpong();
        side.env("FI_PROVIDER_PATH", &plugins);
        side
    };
    let listed = info(&["-l"])?;
    let theirs =
        listed.lines().any(|line| line.trim() == "tcp:") && listed.lines().any(|line| line.trim() == "udp:");
    for name in EVERYWHERE {
        let ours = listed.lines().any(|line| line.trim() == format!("{name}:"));
        if !ours || !theirs {
            return Err(format!("{name} and the host's own providers are not all listed:\n{listed}"));
        }
        let named = info(&["-p", name])?;
        if named
            .lines()
            .any(|line| line.starts_with("provider:") && line.trim() != format!("provider: {name}"))
        {
            return Err(format!("others answer for {name}:\n{named}"));
        }
        pingpong_pair(name, &side)?;
        // The user's selection among the host's providers is the host's concern.
        pingpong_pair(name, &|| {
            let mut side = side();
            side.env("FI_PROVIDER", name);
            side
        })?;
    }
    // Programs that ask for a host provider get that one, and the host's providers serve requests that ours cannot.
    for args in [&["-p", "tcp"][..], &["-p", "udp"], &["-t", "FI_EP_DGRAM", "-p", "udp"]] {
        let found = info(args)?;
        if found.lines().any(|line| OURS.iter().any(|(_, name)| line.contains(name))) {
            return Err(format!("ours answer for {args:?}:\n{found}"));
        }
    }
    pingpong_pair("tcp;ofi_rxm", &side)?;
    if !stock.compiles("#include <rdma/fabric.h>\n") {
        return not_run("C programs on our providers in C's libfabric", NO_HEADERS);
    }
    // Messages, accesses, completions and errors, as a program linked with C's library sees them.
    let source = root().join("tests/capi/plugin/stock.c");
    let program = stock.output(folder, &source);
    stock.program(&[&source], &program, &[])?;
    for name in EVERYWHERE {
        patient(stock.command(&program).arg(name).env("FI_PROVIDER_PATH", &plugins))?;
    }
    Ok(Outcome::Passed)
}

/// Defects of plug-ins, as numbered in `tests/capi/plugin/toy.c`, and the log's text about them.
const BAD: [(&str, &str); 6] = [
    ("1", "no fi_prov_ini"),
    ("2", "returned NULL"),
    ("3", "without getinfo"),
    ("4", "interface version 1.2"),
    ("5", "without a name"),
    ("6", "already"),
];

/// A C provider in our library, among unusable plug-ins.
pub fn of_others(folder: &Path, stock: &Stock) -> StepResult {
    if !stock.compiles("#include <rdma/fabric.h>\n#include <rdma/providers/fi_prov.h>\n") {
        return not_run("a provider of others in our library", NO_HEADERS);
    }
    let sources = root().join("tests/capi/plugin");
    let plugins = folder_of(stock.output(folder, Path::new("others")))?;
    let toy = |kind: &str, file: &str| {
        let args = ["-shared", "-fPIC", &format!("-DBAD={kind}")];
        stock.program(&[&sources.join("toy.c")], &plugins.join(file), &args)
    };
    for (kind, _) in BAD {
        toy(kind, &format!("libbad{kind}-fi.so"))?;
    }
    toy("0", "libtoy-fi.so")?;
    let nonsense = plugins.join("libnonsense-fi.so");
    std::fs::write(&nonsense, "no library").map_err(|error| format!("{}: {error}", nonsense.display()))?;
    let source = sources.join("host.c");
    let program = stock.output(folder, &source);
    stock.program(&[&source], &program, &[])?;
    patient(stock.command_on(folder, &program).env("FI_PROVIDER_PATH", &plugins))?;
    if !stock.has_programs() {
        return stock.no_programs("the log of plug-ins that are refused");
    }
    let mut words = stock.info_on(folder);
    words.arg("-l").env("FI_PROVIDER_PATH", &plugins).env("FI_LOG_LEVEL", "warn");
    let output = words.stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let log = String::from_utf8_lossy(&output.map_err(|error| error.to_string())?.stderr).into_owned();
    for (kind, reason) in BAD {
        let file = format!("libbad{kind}-fi.so");
        if !log.lines().any(|line| line.contains(&file) && line.contains(reason)) {
            return Err(format!("the log does not say {reason:?} of {file}:\n{log}"));
        }
    }
    Ok(Outcome::Passed)
}
