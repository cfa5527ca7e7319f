//! `cargo xtask installed`: installs into an empty prefix, as a user does, and runs programs on the installed files and
//! on no other build of this repository: C's programs, our own, media, and NIXL from its wheel; on shared memory,
//! sockets, and emulated EFA devices. The guest of `cargo xtask rdma` uses the same files for RDMA devices.

mod documents;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::capi;
use crate::install::{self, Built, NIXL, Part, Places};
use crate::patience::patient;
use crate::step::{Outcome, Report, answers, command, not_run, output, root, run, target_dir};
use crate::stock::{NO_HEADERS, Stock, pingpong_pair};
use crate::{StepResult, deb, efa, nixl, plugins};

/// Where to install.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// An empty or new folder. Default: one below `target`, which is emptied first.
    #[arg(long)]
    prefix: Option<PathBuf>,
    /// Only build and install.
    #[arg(long)]
    no_run: bool,
}

/// An installation and its sources.
#[derive(Debug)]
pub struct Installed {
    prefix: PathBuf,
    built: Built,
    /// Parts that this host cannot build, and the reasons.
    lacking: Vec<(Part, String)>,
}

impl Installed {
    /// Builds everything that this host can build, and installs it into an empty folder.
    fn into(prefix: PathBuf) -> Result<Self, String> {
        let lacking: Vec<(Part, String)> =
            Part::ALL.into_iter().filter_map(|part| Some((part, part.lacks()?))).collect();
        let built = install::build(&install::buildable(), true)?;
        install::into(&built, &Places::below(&prefix))?;
        Ok(Self { prefix, built, lacking })
    }

    /// The reason why a part is missing.
    pub fn lacks(&self, part: Part) -> Option<&str> {
        self.lacking.iter().find(|(lacking, _)| *lacking == part).map(|(_, why)| &**why)
    }

    /// The folder of the libraries.
    pub fn lib(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    /// A folder beside it, for programs compiled against it.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn work(&self) -> Result<PathBuf, String> {
        let folder = self.prefix.with_extension("work");
        install::make(&folder)?;
        Ok(folder)
    }

    /// The path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.prefix.join("bin").join(name)
    }

    /// A program of ours.
    fn start(&self, name: &str) -> Command {
        let mut program = command(self.program(name));
        program.env_remove("LD_LIBRARY_PATH").env_remove("FI_PROVIDER");
        program
    }
}

/// The installation below `target`, made or renewed once for each run of this program.
///
/// # Errors
/// It cannot be made.
pub fn files() -> Result<&'static Installed, String> {
    static FILES: OnceLock<Result<Installed, String>> = OnceLock::new();
    FILES.get_or_init(|| Installed::into(emptied(target_dir("installed"))?)).as_ref().map_err(Clone::clone)
}

fn emptied(prefix: PathBuf) -> Result<PathBuf, String> {
    match fs::remove_dir_all(&prefix) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", prefix.display()))
        }
        _ => Ok(prefix),
    }
}

/// Accepts a folder of the user's that has nothing in it.
fn empty(prefix: &Path) -> Result<PathBuf, String> {
    let prefix = std::path::absolute(prefix).map_err(|error| format!("--prefix: {error}"))?;
    match fs::read_dir(&prefix).map(|mut entries| entries.next().is_none()) {
        Ok(false) => Err(format!("--prefix wants an empty or a new folder: {} has files", prefix.display())),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("--prefix wants an empty or a new folder: {}: {error}", prefix.display()))
        }
        _ => Ok(prefix),
    }
}

/// Installs and runs everything.
pub fn run_installed(report: &mut Report, options: &Options) {
    let (mut chosen, mut installed) = (None, None);
    report.add("an installation into an empty prefix", || {
        installed = Some(match &options.prefix {
            Some(prefix) => &*chosen.insert(Installed::into(empty(prefix)?)?),
            None => files()?,
        });
        Ok(Outcome::Passed)
    });
    let Some(at) = installed.filter(|_| !options.no_run) else { return };
    for (part, why) in &at.lacking {
        report.add(part.name(), || not_run(part.name(), why));
    }
    let stock = Stock::of_system();
    if at.lacks(Part::Libfabric).is_none() {
        report.add_retried("C's fi_info and fi_pingpong, installed library", || c_programs(at, &stock));
        report.add_retried("a C program that pkg-config links, installed library", || linked(at, &stock));
    }
    report.add("the installed programs", || programs(at));
    report.add_retried("fi_write_demo, installed", || write_demo(at, &[]));
    report.add("flows and a C program, installed media layer", || media(at));
    report.add("documented commands, installed programs", || documents::run(at));
    report.add("the Debian package", || deb::test(&at.built));
    let emulator = match efa::build() {
        Ok(emulator) => emulator,
        Err(why) => return report.add("the EFA emulator", || Err(why)),
    };
    let dir = efa::folder().with_extension(format!("i{}", std::process::id()));
    if at.lacks(Part::Libfabric).is_none() {
        report.add_retried("C's programs over efa, installed library and plug-in", || {
            c_over_efa(at, &stock, &emulator, &dir)
        });
    }
    report.add_retried("our programs over efa, installed", || over_efa(at, &emulator, &dir));
    if at.lacks(Part::Nixl).is_none() {
        report.add_retried("NIXL's wheel on the installed backend, over two efa devices", || {
            nixl::ours::exchange_over_efa(&at.lib().join(NIXL), &at.lib())
        });
        report
            .add_retried("NIXL and ofi-nixl, installed by pip", || nixl::wheel::installed(at.built.folder()));
    }
    let _ = fs::remove_dir_all(&dir);
}

/// Debian's programs, which were built for C's library.
fn c_programs(at: &Installed, stock: &Stock) -> StepResult {
    if !stock.has_programs() {
        return stock.no_programs("C's fi_info and fi_pingpong on the installed library");
    }
    let lib = at.lib();
    let version = output(stock.info_on(&lib).arg("--version"))?;
    if !version.contains(concat!("libfabric: ", env!("CARGO_PKG_VERSION"))) {
        return Err(format!("fi_info runs on another library:\n{version}"));
    }
    let listed = output(stock.info_on(&lib).arg("-l"))?;
    for provider in ["shm", "udp"] {
        if !listed.lines().any(|line| line.trim() == format!("{provider}:")) {
            return Err(format!("{provider} is not listed:\n{listed}"));
        }
        pingpong_pair(provider, &|| stock.pingpong_on(&lib)).map_err(|why| format!("{provider}: {why}"))?;
    }
    Ok(Outcome::Passed)
}

/// `pkg-config` finds the library, and a program that is linked against it runs on it.
fn linked(at: &Installed, stock: &Stock) -> StepResult {
    const NAME: &str = "a program linked against the installed library";
    if !answers("pkg-config", &["--version"]) {
        return not_run(NAME, "no pkg-config (apt-get install pkg-config)");
    }
    if !stock.compiles("#include <rdma/fabric.h>\n") {
        return not_run(NAME, NO_HEADERS);
    }
    let flags = pkg_config(at, "libfabric")?;
    let tests = root().join("tests/capi");
    let program = at.work()?.join("messages");
    let mut cc = command("cc");
    cc.args(["-std=gnu11", "-O1", "-I"]).arg(&tests).arg(tests.join("messages.c")).arg("-o").arg(&program);
    run(cc.args(&flags))?;
    capi::run_on(&at.lib(), &mut command(&program))
}

/// A package's flags, which must name the installed folder.
fn pkg_config(at: &Installed, package: &str) -> Result<Vec<String>, String> {
    let mut flags = command("pkg-config");
    flags.args(["--cflags", "--libs", package]).env("PKG_CONFIG_PATH", at.lib().join("pkgconfig"));
    let flags = output(&mut flags)?;
    if !flags.contains(&format!("-L{}", at.lib().display())) {
        return Err(format!("pkg-config finds another {package}: {flags}"));
    }
    Ok(flags.split_whitespace().map(Into::into).collect())
}

/// The end of a program: its status, and both of its outputs.
fn ended(program: &mut Command) -> Result<(Option<i32>, String), String> {
    let Output { status, stdout, stderr } =
        program.output().map_err(|error| format!("{}: {error}", program.get_program().display()))?;
    Ok((status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()))
}

/// Every program starts, and `fi_info` knows every transport, and names the missing requirements of each.
fn programs(at: &Installed) -> StepResult {
    let installed = fs::read_dir(at.prefix.join("bin")).map_err(|error| error.to_string())?;
    for name in installed.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()) {
        let version = output(at.start(&name).arg("--version"))?;
        if !version.contains(env!("CARGO_PKG_VERSION")) {
            return Err(format!("{name} --version prints {version:?}"));
        }
    }
    for args in [&["-l"][..], &["-p", "shm"], &["-p", "udp"]] {
        patient(at.start("fi_info").args(args).stdout(Stdio::null()))?;
    }
    for provider in ["verbs", "efa"] {
        let (_, text) = ended(at.start("fi_info").args(["--explain", "-p", provider]))?;
        let found = text.contains(&format!("provider: {provider}\n"));
        let is_told = text.contains("field: device") && text.contains("rdma");
        if !found && !is_told {
            return Err(format!("fi_info --explain -p {provider} does not say what is missing:\n{text}"));
        }
        if text.contains("without the cargo feature") {
            return Err(format!("{provider} is not built in:\n{text}"));
        }
    }
    let page = at.prefix.join("share/man/man1/fi_info.1");
    fs::metadata(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    Ok(Outcome::Passed)
}

/// Remote writes of random pages, compared, over the providers that need no device, or over one with a device.
fn write_demo(at: &Installed, device: &[(&str, &Path)]) -> StepResult {
    let providers = if device.is_empty() { &["shm", "udp"][..] } else { &["efa"] };
    for provider in providers {
        let mut demo = at.start("fi_write_demo");
        if let [(_, emulator), (_, dir)] = device {
            efa::on(&mut demo, emulator, dir);
        }
        patient(demo.args(capi::WRITE_DEMO).args(["--provider", provider]).stdout(Stdio::null()))
            .map_err(|why| format!("{provider}: {why}"))?;
    }
    Ok(Outcome::Passed)
}

/// A flow is written and found by the programs, and a C program is compiled with the headers and runs on the library.
fn media(at: &Installed) -> StepResult {
    let work = at.work()?;
    let domain = work.join("domain");
    let _ = fs::remove_dir_all(&domain);
    fs::create_dir_all(&domain).map_err(|error| format!("{}: {error}", domain.display()))?;
    listed_while_written(at, &domain)?;
    let _ = fs::remove_dir_all(&domain);
    let (status, text) = ended(at.start("mxl-fabrics-info").args(["-p", "tcp"]))?;
    if status != Some(0) || !text.contains("interface tcp-0") {
        return Err(format!("mxl-fabrics-info -p tcp ends with {status:?}:\n{text}"));
    }
    // A command that finds nothing reports the reason.
    let (status, text) = ended(at.start("mxl-fabrics-info").args(["-p", "efa"]))?;
    if !text.contains("interface efa-0") && (status != Some(1) || !text.contains("efa: device")) {
        return Err(format!("mxl-fabrics-info -p efa ends with {status:?} and does not say why:\n{text}"));
    }
    if !capi::has_compiler() || !answers("pkg-config", &["--version"]) {
        return not_run("a C program on the installed libmxl.so.1", capi::NO_COMPILER);
    }
    let (source, program) = (work.join("media.c"), work.join("media"));
    fs::write(&source, MEDIA).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut cc = command("cc");
    cc.args(["-std=gnu11", "-Wall", "-Werror"]).arg(&source).arg("-o").arg(&program);
    run(cc.args(pkg_config(at, "libmxl-fabrics")?))?;
    capi::run_on(&at.lib(), &mut command(&program))
}

/// `mxl-info` lists a flow as long as `mxl-generate` writes it: the last writer deletes its flow.
fn listed_while_written(at: &Installed, domain: &Path) -> Result<(), String> {
    let mut generate = at.start("mxl-generate");
    generate.arg("-d").arg(domain).args(["--quiet", "--label", "installed", "video"]);
    let mut writer = generate.spawn().map_err(|error| format!("mxl-generate: {error}"))?;
    let begin = Instant::now();
    let found = loop {
        let listed = output(at.start("mxl-info").arg("-d").arg(domain));
        match listed {
            Ok(text) if text.contains("installed") => break Ok(()),
            Ok(text) if begin.elapsed() > LISTED => {
                break Err(format!("mxl-info does not list the flow within {} s:\n{text}", LISTED.as_secs()));
            }
            Ok(_) => std::thread::sleep(Duration::from_millis(50)),
            Err(why) => break Err(why),
        }
    };
    let _ = writer.kill();
    let _ = writer.wait();
    found
}

/// Time that a writer may take to create its flow.
const LISTED: Duration = Duration::from_secs(30);

/// A program on both libraries of the media layer.
const MEDIA: &str = "#include <mxl/fabrics.h>\n#include <mxl/mxl.h>\n#include <mxl/version.h>\n\
                     int main(void) {\n\
                     \tmxlVersionType version;\n\
                     \tmxlFabricsProvider provider;\n\
                     \tif (mxlGetVersion(&version) != MXL_STATUS_OK || version.major != 1) return 1;\n\
                     \treturn mxlFabricsProviderFromString(\"efa\", &provider) != MXL_STATUS_OK;\n\
                     }\n";

/// Debian's programs on the emulated device: on the installed library, and on C's own with the installed plug-in.
fn c_over_efa(at: &Installed, stock: &Stock, emulator: &Path, dir: &Path) -> StepResult {
    if !stock.has_programs() {
        return stock.no_programs("C's programs over efa on the installed library");
    }
    let (lib, plugins) = (at.lib(), at.lib().join("ofi-plugins"));
    let on_library = |mut side: Command| {
        efa::on(&mut side, emulator, dir);
        side
    };
    let with_plugin = |mut side: Command| {
        efa::on(&mut side, emulator, dir).env("FI_PROVIDER_PATH", &plugins);
        side
    };
    let info = output(on_library(stock.info_on(&lib)).args(["-p", "efa"]))?;
    if !info.contains("provider: efa") {
        return Err(format!("fi_info -p efa on the installed library prints\n{info}"));
    }
    pingpong_pair("efa", &|| on_library(stock.pingpong_on(&lib)))?;
    let name = plugins::OURS.iter().find(|(provider, _)| *provider == "efa").map_or("", |(_, name)| name);
    let info = output(with_plugin(stock.info()).args(["-p", name]))?;
    if !info.contains(&format!("provider: {name}")) {
        return Err(format!("fi_info -p {name} on C's library prints\n{info}"));
    }
    pingpong_pair(name, &|| with_plugin(stock.pingpong()))
}

/// Our programs on the emulated device.
fn over_efa(at: &Installed, emulator: &Path, dir: &Path) -> StepResult {
    let start = |name: &str| {
        let mut program = at.start(name);
        efa::on(&mut program, emulator, dir);
        program
    };
    for (name, words) in [("fi_info", "provider: efa\n"), ("mxl-fabrics-info", "interface efa-0 node ")] {
        let text = output(start(name).args(["-p", "efa"]))?;
        if !text.contains(words) {
            return Err(format!("{name} -p efa prints\n{text}"));
        }
    }
    pingpong_pair("efa", &|| start("fi_pingpong"))?;
    write_demo(at, &[("emulator", emulator), ("dir", dir)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_with_files_is_refused() {
        let folder = std::env::temp_dir().join(format!("xtask-installed-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(empty(&folder), Ok(folder.clone()));
        assert_eq!(empty(&folder.join("new")), Ok(folder.join("new")));
        fs::write(folder.join("file"), "").unwrap();
        for prefix in [&*folder, &folder.join("file")] {
            let error = empty(prefix).unwrap_err();
            assert!(error.contains("wants an empty or a new folder"), "{error}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
