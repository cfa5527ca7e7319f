//! libfabric's C interface: linking `libfabric.so.1`, installing it, and running C programs on it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::StepResult;
use crate::checks::workspace;
use crate::patience::patient;
use crate::step::{Outcome, Report, answers, cargo, command, not_run, root, run};
use crate::stock::{NO_HEADERS, Stock, pingpong_pair};
use crate::{datagrams, install, layouts, plugins, trixie};

/// The name that programs are linked against.
pub const SONAME: &str = "libfabric.so.1";
/// The interface version that `fi_version` returns; pkg-config reports it as the library's version.
pub const INTERFACE: &str = "2.6.0";
pub const NO_COMPILER: &str = "no C compiler (apt-get install gcc libc6-dev)";
pub const NO_OPEN_MPI: &str = "apt-get install openmpi-bin libopenmpi-dev";

/// Builds the library, and links it into a folder of its own. Returns that folder.
///
/// Packages that are built together determine the features of third-party crates, and so whether dependents are
/// compiled again. Therefore a release build is that of an installation, and a debug build that of the tests, with the
/// features of the whole workspace. `cargo xtask installed` runs C programs on a release build.
///
/// # Errors
/// A step fails.
pub fn link(release: bool) -> Result<PathBuf, String> {
    linked(&if release { compile(&install::packages(&install::buildable()), true)? } else { debug()? })
}

/// Builds our libraries, programs and examples as `cargo xtask test` does. Returns the folder of cargo's output.
fn debug() -> Result<PathBuf, String> {
    run(&mut workspace(&["build", "--quiet", "--lib", "--bins", "--examples"]))?;
    Ok(built(false))
}

/// Builds packages together. Returns the folder of cargo's output.
///
/// # Errors
/// The error of cargo.
pub fn compile(packages: &[&str], release: bool) -> Result<PathBuf, String> {
    let mut build = cargo(&["build", "--quiet"]);
    build.args(packages.iter().flat_map(|package| ["--package", package]));
    if release {
        build.arg("--release");
    }
    run(&mut build)?;
    Ok(built(release))
}

/// The folder of the library, below that of cargo's output.
pub fn folder(built: &Path) -> PathBuf {
    built.join("capi")
}

/// Links the library from cargo's output. Returns its folder.
///
/// # Errors
/// The linker fails.
pub fn linked(built: &Path) -> Result<PathBuf, String> {
    let folder = folder(built);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let sources = root().join("crates/ofi-capi/link");
    // rustc would give GNU ld a version script of its own, and ld accepts only one: so the static library is linked
    // here.
    // Programs may load the library meanwhile: they find the old one or the new one, never a part of it.
    let new = folder.join(format!("{SONAME}.{}", std::process::id()));
    let mut cc = command("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&new);
    cc.arg(format!("-Wl,-soname,{SONAME}"));
    cc.arg(format!("-Wl,--version-script={}", sources.join("libfabric.map").display()));
    cc.arg(sources.join("exports.c")).arg(built.join("libofi_capi.a"));
    // A helper thread may run when a program closes the library: its code must stay loaded.
    cc.args(["-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,--gc-sections", "-lgcc_s", "-lpthread", "-ldl", "-lm"]);
    run(&mut cc)?;
    std::fs::rename(&new, folder.join(SONAME)).map_err(|error| format!("{}: {error}", new.display()))?;
    symlink(SONAME, &folder.join("libfabric.so"))?;
    Ok(folder)
}

/// The folder of cargo's output.
pub fn built(release: bool) -> PathBuf {
    let base = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    base.join(if release { "release" } else { "debug" })
}

/// Builds our programs. Returns the path of one of them.
///
/// # Errors
/// The error of cargo.
pub fn tool(name: &str) -> Result<PathBuf, String> {
    Ok(debug()?.join(name))
}

/// Builds the examples of the safe layer. Returns their folder.
///
/// # Errors
/// The error of cargo.
pub fn examples() -> Result<PathBuf, String> {
    Ok(debug()?.join("examples"))
}

/// The examples of the safe layer that show what every provider with reliable datagrams has. Those of connections are
/// not among them: `efa` has none.
pub const EXAMPLES: [&str; 12] = [
    "hello",
    "allreduce",
    "atomic_counter",
    "counters_and_triggers",
    "kv_store",
    "many_peers",
    "message_pingpong",
    "rma_with_data",
    "scalable_endpoint",
    "serve_reads",
    "shared_contexts",
    "tagged_matching",
];

/// The environment in which an example runs over this provider, and an argument for the example that takes a provider.
pub fn example_over(name: &str, provider: &str) -> ([(&'static str, String); 2], Option<String>) {
    let environment = [("OFI_EXAMPLE_PROVIDER", provider.into()), ("FI_PROVIDER", provider.into())];
    (environment, (name == "serve_reads").then(|| provider.into()))
}

/// Arguments of `fi_write_demo` where times are meaningless: each step of its ladder once, with few pages. Every byte
/// is compared.
pub const WRITE_DEMO: [&str; 3] = ["--ladder", "--page-size=64K", "--pages=4"];

/// Creates a symbolic link, and replaces an existing one.
pub fn symlink(to: &str, at: &Path) -> Result<(), String> {
    let _ = std::fs::remove_file(at);
    std::os::unix::fs::symlink(to, at).map_err(|error| format!("{}: {error}", at.display()))
}

/// Whether a C compiler is installed.
pub fn has_compiler() -> bool {
    answers("cc", &["--version"])
}

/// `cargo xtask capi`: links the library and prints its path.
pub fn build(release: bool) -> StepResult {
    if !has_compiler() {
        return not_run(SONAME, NO_COMPILER);
    }
    let folder = if release { linked(&compile(&["ofi-capi"], true)?)? } else { link(false)? };
    println!("{}", folder.join(SONAME).display());
    Ok(Outcome::Passed)
}

/// Copies beside the old file and renames, so that running programs keep the old one.
///
/// # Errors
/// A file cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let beside = to.with_extension("new");
    std::fs::copy(from, &beside).map_err(|error| format!("{}: {error}", from.display()))?;
    std::fs::rename(&beside, to).map_err(|error| format!("{}: {error}", to.display()))
}

/// Runs C programs on the library: those of `tests/capi`, and libfabric's own if they are installed.
pub fn test(report: &mut Report) {
    if !has_compiler() {
        return report.add("C interface", || not_run("C interface", NO_COMPILER));
    }
    let mut folder = None;
    report.add("linking libfabric.so.1", || {
        let linked = link(false)?;
        plugins::link(&linked)?;
        folder = Some(linked);
        Ok(Outcome::Passed)
    });
    let Some(folder) = folder else { return };
    with_stock(report, &folder, &Stock::of_system());
    let mut newer = None;
    report.add("a newer libfabric of C's", || match trixie::stock() {
        Ok(stock) => {
            let outcome = trixie::check(&stock);
            newer = Some(stock);
            outcome
        }
        Err(why) => Ok(Outcome::NotRun(trixie::without(WITH_STOCK.map(|(what, _)| what), &why))),
    });
    if let Some(stock) = newer {
        with_stock(report, &folder, &stock);
    }
    report.add_retried("Open MPI of the system", || open_mpi(&folder));
    report.add_retried("Open MPI between two hosts", || two_hosts(&folder));
}

/// The checks with each libfabric of C's.
const WITH_STOCK: [(&str, Check); 9] = [
    ("C programs", own_programs),
    ("device memory of a C program", device_memory),
    ("fi_info and fi_pingpong", their_programs),
    ("datagrams between C's udp and ours", datagrams::pingpongs),
    ("a multicast group of C's udp and ours", datagrams::multicast),
    ("structures of the headers", layouts::check),
    ("a provider by another name", alias),
    ("our providers in C's libfabric", plugins::ours),
    ("a provider of others in our library", plugins::of_others),
];

/// Arguments: the folder with our library, and C's libfabric.
type Check = fn(&Path, &Stock) -> StepResult;

fn with_stock(report: &mut Report, folder: &Path, stock: &Stock) {
    for (what, check) in WITH_STOCK {
        report.add_retried(&format!("{what}, of {}", stock.name()), || check(folder, stock));
    }
}

/// Compiles and runs each program of `tests/capi`. A program exits with 0, or prints the problem.
fn own_programs(folder: &Path, stock: &Stock) -> StepResult {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root().join("tests/capi")).map_err(|error| error.to_string())?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            names.push(path);
        }
    }
    names.sort_unstable();
    if !stock.compiles("#include <rdma/fabric.h>\n#include <rdma/fi_ext.h>\n") {
        let name = |path: &PathBuf| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let not_run = names.iter().filter_map(name).map(|name| format!("C program {name}: {NO_HEADERS}"));
        return Ok(Outcome::NotRun(not_run.collect()));
    }
    let mut failed = Vec::new();
    for source in names {
        let program = stock.output(folder, &source);
        // Linked like a program of the system: against C's library, found by name at run time.
        let built = stock.program(&[&source], &program, &["-lpthread", "-ldl"]);
        if let Err(why) = built.and_then(|_| patient(&mut stock.command_on(folder, &program))) {
            failed.push(why);
        }
    }
    if failed.is_empty() { Ok(Outcome::Passed) } else { Err(failed.join("; ")) }
}

/// The C program of `tests/capi/cuda`, on the emulated driver, over sockets and shared memory.
fn device_memory(folder: &Path, stock: &Stock) -> StepResult {
    match device_memory_of(folder, stock)? {
        Some(mut program) => patient(program.args(["shm", "udp", "tcp"])),
        None => not_run("device memory of a C program", NO_HEADERS),
    }
}

/// The C program of `tests/capi/cuda`, on the emulated driver. Its arguments are providers. `None`: there are no
/// headers.
pub fn device_memory_of(folder: &Path, stock: &Stock) -> Result<Option<Command>, String> {
    if !stock.compiles("#include <rdma/fabric.h>\n#include <rdma/fi_ext.h>\n") {
        return Ok(None);
    }
    // One folder with both libraries, which no other program gets.
    let both = folder.join("cuda");
    std::fs::create_dir_all(&both).map_err(|error| format!("{}: {error}", both.display()))?;
    let emulator = crate::nixl::ours::emulated_device()?.join("libcuda.so.1");
    symlink(&emulator.display().to_string(), &both.join("libcuda.so.1"))?;
    symlink(&folder.join(SONAME).display().to_string(), &both.join(SONAME))?;
    let source = root().join("tests/capi/cuda/device_memory.c");
    let program = stock.output(&both, &source);
    stock.program(&[&source], &program, &["-lpthread", "-ldl"])?;
    Ok(Some(stock.command_on(&both, &program)))
}

/// C's own `fi_info` and `fi_pingpong`, which are linked against C's library.
fn their_programs(folder: &Path, stock: &Stock) -> StepResult {
    if !stock.has_programs() {
        return stock.no_programs("fi_info and fi_pingpong");
    }
    for args in [&["-p", "shm", "-v"][..], &["-l"], &["-e"]] {
        patient(stock.info_on(folder).args(args).stdout(Stdio::null()))?;
    }
    let version = crate::step::output(stock.info_on(folder).arg("--version"))?;
    if !version.contains(concat!("libfabric: ", env!("CARGO_PKG_VERSION"))) {
        return Err(format!("fi_info runs on another library:\n{version}"));
    }
    for provider in ["shm", "udp", "tcp"] {
        let side = || {
            let mut side = stock.pingpong_on(folder);
            side.env("FI_TCP_SHARED_MEMORY", "0");
            side
        };
        pingpong_pair(provider, &side).map_err(|why| format!("{provider}: {why}"))?;
    }
    Ok(Outcome::Passed)
}

/// A program that requires `tcp` runs on ours if the user allows it: C's own programs, configured only with the name.
fn alias(folder: &Path, stock: &Stock) -> StepResult {
    if !stock.has_programs() {
        return stock.no_programs("a provider by another name");
    }
    for alias in ["tcp=shm", "tcp=udp"] {
        let listed = crate::step::output(stock.info_on(folder).arg("-l").env("FI_PROVIDER_ALIAS", alias))?;
        if !listed.lines().any(|line| line.trim() == "tcp:") {
            return Err(format!("{alias}: the other name is not listed:\n{listed}"));
        }
        let side = || {
            let mut side = stock.pingpong_on(folder);
            side.env("FI_PROVIDER_ALIAS", alias);
            side
        };
        pingpong_pair("tcp", &side).map_err(|why| format!("{alias}: {why}"))?;
    }
    // The alias is off unless set: `tcp` is itself, and nobody has a name of C's other providers.
    pingpong_pair("tcp", &|| stock.pingpong_on(folder))?;
    match patient(stock.info_on(folder).args(["-p", "sockets"]).stdout(Stdio::null()).stderr(Stdio::null())) {
        Err(_) => Ok(Outcome::Passed),
        Ok(_) => Err("there is a provider sockets that was not requested".into()),
    }
}

/// Whether Open MPI and its compiler are installed.
pub fn has_open_mpi() -> bool {
    answers("mpicc", &["--version"]) && answers("mpirun", &["--version"])
}

/// Compiles the ranks' program.
///
/// # Errors
/// The error of the compiler.
pub fn stress(folder: &Path) -> Result<PathBuf, String> {
    let program = folder.join("mpi");
    let mut cc = command("mpicc");
    run(cc.args(["-O1", "-o"]).arg(&program).arg(root().join("tests/capi/mpi/stress.c")))?;
    Ok(program)
}

/// The same program on ranks in two network namespaces, over udp.
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
    let shared = [("shm", "2"), ("shm", "4"), ("shm", "8")];
    for (provider, ranks) in
        shared.into_iter().chain([("udp", "2"), ("udp", "8"), ("tcp", "2"), ("tcp", "4")])
    {
        let mut mpirun = mpirun(ranks, provider);
        // Two ranks over TCP, four through shared memory.
        let shared_memory = if ranks == "2" { "0" } else { "1" };
        mpirun.env("FI_SHM_REMOTE_COMM", "1").env("FI_TCP_SHARED_MEMORY", shared_memory);
        run_on(folder, mpirun.arg(&program)).map_err(|why| format!("{provider}, {ranks} ranks: {why}"))?;
    }
    Ok(Outcome::Passed)
}

/// Starts `ranks` processes of the program that the caller appends, over one provider. All are on this host, and
/// inherit this environment.
pub fn mpirun(ranks: &str, provider: &str) -> Command {
    let mut mpirun = command("mpirun");
    mpirun.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        ranks,
        "--mca",
        "pml",
        "cm",
        "--mca",
        "mtl",
        "ofi",
    ]);
    mpirun.args(["--mca", "mtl_ofi_provider_include", provider]);
    // Open MPI prints many messages about networks that it would prefer.
    mpirun.stderr(Stdio::null());
    mpirun
}

/// Makes a command load this library instead of the system's.
fn on<'a>(folder: &Path, command: &'a mut Command) -> &'a mut Command {
    command.env("LD_LIBRARY_PATH", folder)
}

/// Runs a program on this library.
pub fn run_on(folder: &Path, command: &mut Command) -> StepResult {
    patient(on(folder, command))
}
