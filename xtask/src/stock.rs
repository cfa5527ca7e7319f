//! C's libfabric with its programs and headers: the system's, or one elsewhere.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::StepResult;
use crate::patience::patient;
use crate::step::{command, not_run, root, run};

const NO_PROGRAMS: &str = "apt-get install libfabric-bin";
pub const NO_HEADERS: &str = "no headers of libfabric (apt-get install libfabric-dev)";
/// The port of the two `fi_pingpong`: not the default, which a user may be using.
const CONTROL_PORT: &str = "47693";

/// A libfabric of C's.
#[derive(Debug)]
pub struct Stock {
    /// The name in reports.
    name: &'static str,
    /// The folder that contains its `usr`.
    root: PathBuf,
    /// The loader for its programs, and the folder of its libraries, if they are not the system's.
    loader: Option<(PathBuf, PathBuf)>,
}

impl Stock {
    /// The installed one, if there is one.
    pub fn of_system() -> Self {
        Self { name: "the system's libfabric", root: PathBuf::from("/"), loader: None }
    }

    /// A libfabric under `root`, with the C library that it was built for: `libraries` has both, and `loader` starts
    /// its programs.
    pub fn under(name: &'static str, root: PathBuf, loader: PathBuf, libraries: PathBuf) -> Self {
        Self { name, root, loader: Some((loader, libraries)) }
    }

    /// The name in reports.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The loader for its programs, if it is not the system's.
    pub fn loader(&self) -> Option<&Path> {
        self.loader.as_ref().map(|(loader, _)| loader.as_path())
    }

    /// A command that starts the program named after it with these libraries, if they are not the system's.
    pub fn loading(&self) -> Option<[String; 3]> {
        let (loader, libraries) = self.loader.as_ref()?;
        Some([loader.display().to_string(), "--library-path".into(), libraries.display().to_string()])
    }

    /// Whether it has `fi_info` and `fi_pingpong`.
    pub fn has_programs(&self) -> bool {
        self.tool("fi_info").exists() && self.tool("fi_pingpong").exists()
    }

    fn tool(&self, name: &str) -> PathBuf {
        self.root.join("usr/bin").join(name)
    }

    /// Its `fi_info` on itself.
    pub fn info(&self) -> Command {
        self.command(&self.tool("fi_info"))
    }

    /// Its `fi_info` on the library in `folder`.
    pub fn info_on(&self, folder: &Path) -> Command {
        self.command_on(folder, &self.tool("fi_info"))
    }

    /// Its `fi_pingpong` on itself.
    pub fn pingpong(&self) -> Command {
        self.command(&self.tool("fi_pingpong"))
    }

    /// Its `fi_pingpong` on the library in `folder`.
    pub fn pingpong_on(&self, folder: &Path) -> Command {
        self.command_on(folder, &self.tool("fi_pingpong"))
    }

    /// A program that was linked against it, on itself.
    pub fn command(&self, program: &Path) -> Command {
        let mut started = self.start(program);
        match &self.loader {
            Some((_, libraries)) => started.env("LD_LIBRARY_PATH", libraries),
            None => started.env_remove("LD_LIBRARY_PATH"),
        };
        started
    }

    /// A program that was linked against it, on the library in `folder`.
    pub fn command_on(&self, folder: &Path, program: &Path) -> Command {
        let mut started = self.start(program);
        let mut path = folder.as_os_str().to_owned();
        if let Some((_, libraries)) = &self.loader {
            path.push(":");
            path.push(libraries);
        }
        started.env("LD_LIBRARY_PATH", path);
        started
    }

    fn start(&self, program: &Path) -> Command {
        match &self.loader {
            Some((loader, _)) => {
                let mut started = command(loader);
                started.arg(program);
                started
            }
            None => command(program),
        }
    }

    /// The output path for a program of this source: each libfabric has its own.
    pub fn output(&self, folder: &Path, source: &Path) -> PathBuf {
        let of = if self.loader.is_some() { "newer-" } else { "" };
        folder.join(format!("{of}{}", source.file_stem().unwrap_or_default().display()))
    }

    /// A compiler command that finds its headers.
    pub fn compiler(&self, compiler: &str) -> Command {
        let mut cc = command(compiler);
        if self.loader.is_some() {
            cc.arg("-isystem").arg(self.root.join("usr/include"));
        }
        cc
    }

    /// Compiles sources with the headers of `tests/capi`, and links them against it. `args` come last.
    ///
    /// # Errors
    /// The compiler or the linker fails.
    pub fn program(&self, sources: &[&Path], program: &Path, args: &[&str]) -> StepResult {
        let mut cc = self.compiler("cc");
        cc.args(["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]);
        // Functions that 2.x deprecates are there for older programs.
        cc.args(["-Wno-deprecated-declarations", "-I"]);
        cc.arg(root().join("tests/capi")).args(sources).arg("-o").arg(program);
        if let Some((_, libraries)) = &self.loader {
            // Its own dependencies are in the C library that it runs with; the compiler's is older.
            cc.arg("-L").arg(libraries).arg("-Wl,--allow-shlib-undefined");
        }
        run(cc.arg("-lfabric").args(args))
    }

    /// Whether the source compiles with its headers.
    pub fn compiles(&self, source: &str) -> bool {
        let mut cc = self.compiler("cc");
        cc.args(["-fsyntax-only", "-xc", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut child) = cc.spawn() else { return false };
        let written = child
            .stdin
            .take()
            .is_some_and(|mut stdin| std::io::Write::write_all(&mut stdin, source.as_bytes()).is_ok());
        child.wait().is_ok_and(|status| status.success()) && written
    }

    /// The outcome of a step that needs its programs and cannot run.
    pub fn no_programs(&self, what: &str) -> StepResult {
        not_run(what, NO_PROGRAMS)
    }
}

/// `fi_pingpong` on a provider, with the same command on both sides.
pub fn pingpong_pair(provider: &str, side: &dyn Fn() -> Command) -> StepResult {
    pingpong(&["-p", provider, "-e", "rdm", "-I", "20"], side, side)
}

/// `fi_pingpong` with a command for each side. With `-6`, over IPv6.
pub fn pingpong(args: &[&str], serving: &dyn Fn() -> Command, asking: &dyn Fn() -> Command) -> StepResult {
    let mut server = serving();
    let host = if args.contains(&"-6") { "::1" } else { "127.0.0.1" };
    server.args(args).args(["-B", CONTROL_PORT]).stdout(Stdio::null());
    let mut server = server.spawn().map_err(|error| format!("fi_pingpong: {error}"))?;
    let begin = Instant::now();
    // The client gives up at once if the server is not listening.
    let outcome = loop {
        let mut client = asking();
        client.args(args).args(["-P", CONTROL_PORT, host]).stdout(Stdio::null()).stderr(Stdio::null());
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
