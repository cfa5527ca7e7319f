//! Providers as plug-ins, both ways: ours in the system's libfabric, and a C provider of the project's own in ours.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::StepResult;
use crate::capi::{INFO, NO_HEADERS, PINGPONG, compiles, pingpong_pair, run_on};
use crate::step::{Outcome, command, not_run, root, run};

/// Our providers, and the names that they have beside those of C. No name begins with `ofi_`: the host takes such for
/// layers over others.
pub const OURS: [(&str, &str); 2] = [("shm", "rshm"), ("udp", "rudp")];

fn folder_of(path: PathBuf) -> Result<PathBuf, String> {
    std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Links our providers for a stock libfabric, which loads them from `FI_PROVIDER_PATH`. They go by other names there, for
/// the host has some of the same.
///
/// # Errors
/// When the linker fails.
pub fn link(folder: &Path) -> Result<PathBuf, String> {
    let plugins = folder_of(folder.join("plugins"))?;
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
    Ok(plugins)
}

/// Our providers in the system's libfabric: listed beside its own, chosen by name, used, and out of the way of who asks
/// for another.
pub fn ours(folder: &Path) -> StepResult {
    if !Path::new(INFO).exists() || !Path::new(PINGPONG).exists() {
        return not_run("our providers in the system's libfabric", "apt-get install libfabric-bin");
    }
    let plugins = link(folder)?;
    let environment = |command: &mut Command| {
        command.env("FI_PROVIDER_PATH", &plugins).env_remove("LD_LIBRARY_PATH");
    };
    let info = |args: &[&str]| {
        let mut list = command(INFO);
        environment(list.args(args));
        crate::step::output(&mut list)
    };
    let listed = info(&["-l"])?;
    let theirs =
        listed.lines().any(|line| line.trim() == "tcp:") && listed.lines().any(|line| line.trim() == "udp:");
    for (_, name) in OURS {
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
        pingpong_pair(name, &environment)?;
        // The user's choice among the host's providers is the host's to follow.
        pingpong_pair(name, &|command| {
            environment(command);
            command.env("FI_PROVIDER", name);
        })?;
    }
    // Who asks for one of the host's gets that, and where ours cannot serve, the host's do.
    for args in [&["-p", "tcp"][..], &["-p", "udp"], &["-t", "FI_EP_DGRAM", "-p", "udp"]] {
        let found = info(args)?;
        if found.lines().any(|line| line.contains("rshm") || line.contains("rudp")) {
            return Err(format!("ours answer for {args:?}:\n{found}"));
        }
    }
    pingpong_pair("tcp;ofi_rxm", &environment)?;
    if !compiles("#include <rdma/fabric.h>\n") {
        return not_run("C programs on our providers in the system's libfabric", NO_HEADERS);
    }
    // Messages, accesses, completions and errors, as a program of the system has them.
    let program = folder.join("stock");
    let mut cc = command("cc");
    cc.args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-I"]);
    cc.arg(root().join("tests/capi")).arg(root().join("tests/capi/plugin/stock.c"));
    run(cc.arg("-o").arg(&program).args(["-lfabric"]))?;
    for (_, name) in OURS {
        let mut stock = command(&program);
        environment(stock.arg(name));
        crate::capi::patient(&mut stock)?;
    }
    Ok(Outcome::Passed)
}

/// What makes a plug-in useless, as `tests/capi/plugin/toy.c` numbers it, and what the log says of it.
const BAD: [(&str, &str); 6] = [
    ("1", "no fi_prov_ini"),
    ("2", "answers NULL"),
    ("3", "without getinfo"),
    ("4", "of interface 1.2"),
    ("5", "without a name"),
    ("6", "already"),
];

/// A C provider in our library, among plug-ins that are of no use.
pub fn of_others(folder: &Path) -> StepResult {
    if !compiles("#include <rdma/fabric.h>\n#include <rdma/providers/fi_prov.h>\n") {
        return not_run("a provider of others in our library", NO_HEADERS);
    }
    let (plugins, sources) = (folder_of(folder.join("others"))?, root().join("tests/capi/plugin"));
    let toy = |kind: &str, file: String| {
        let mut cc = command("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]);
        cc.arg(format!("-DBAD={kind}")).arg(sources.join("toy.c")).arg("-o").arg(plugins.join(file));
        run(cc.arg("-lfabric"))
    };
    for (kind, _) in BAD {
        toy(kind, format!("libbad{kind}-fi.so"))?;
    }
    toy("0", "libtoy-fi.so".into())?;
    let nonsense = plugins.join("libnonsense-fi.so");
    std::fs::write(&nonsense, "no library").map_err(|error| format!("{}: {error}", nonsense.display()))?;
    let program = folder.join("host");
    let mut cc = command("cc");
    cc.args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-I"]);
    cc.arg(root().join("tests/capi")).arg(sources.join("host.c")).arg("-o").arg(&program);
    run(cc.arg("-lfabric"))?;
    run_on(folder, command(&program).env("FI_PROVIDER_PATH", &plugins))?;
    let mut words = command(INFO);
    words
        .arg("-l")
        .env("FI_PROVIDER_PATH", &plugins)
        .env("FI_LOG_LEVEL", "warn")
        .env("LD_LIBRARY_PATH", folder);
    if !Path::new(INFO).exists() {
        return not_run("the log of plug-ins that are refused", "apt-get install libfabric-bin");
    }
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
