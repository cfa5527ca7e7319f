//! This host's side of a measurement.

use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::page::{self, Figures};
use super::plan::{Measurement, Program};
use crate::failure::{Failure, Result};

/// Time that the other side may take to start listening.
const START: Duration = Duration::from_secs(15);
/// Interval of checks whether a program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Our programs, beside this one.
pub struct Programs {
    pub pingpong: PathBuf,
    pub rails: PathBuf,
    /// The folder of our `libfabric.so.1`, if it has one.
    pub library: Option<PathBuf>,
}

impl Programs {
    /// Finds them.
    ///
    /// # Errors
    /// One is missing.
    pub fn beside_this_one(library: Option<&Path>) -> Result<Self> {
        let this = env::current_exe().map_err(|error| Failure::system("finding this program", error))?;
        let folder = this.parent().unwrap_or(Path::new("."));
        let find = |name: &str| {
            let path = folder.join(name);
            let missing = || {
                Failure::Usage(format!("{} is missing: install all programs into one folder", path.display()))
            };
            path.exists().then(|| path.clone()).ok_or_else(missing)
        };
        let has = |folder: &Path| folder.join("libfabric.so.1").exists();
        if let Some(library) = library.filter(|library| !has(library)) {
            let why = "wanted the folder of our libfabric.so.1";
            return Err(Failure::Usage(format!("--library {}: {why}", library.display())));
        }
        let usual = folder.parent().map(|prefix| prefix.join("lib"));
        Ok(Self {
            pingpong: find("fi_pingpong")?,
            rails: find("mr-bench")?,
            library: library.map(Path::to_owned).or(usual).filter(|folder| has(folder)),
        })
    }

    /// A program of C's, on C's own library or on ours, regardless of the library path in the environment.
    pub fn of_c(&self, path: &Path, on_ours: bool) -> Command {
        let mut command = Command::new(path);
        // Amazon's installation has its library next to its programs; Debian's is in the loader's search path.
        let beside = path.parent().and_then(Path::parent).map(|prefix| prefix.join("lib"));
        let beside = beside.filter(|folder| folder.join("libfabric.so.1").exists());
        match if on_ours { self.library.clone() } else { beside } {
            Some(folder) => command.env("LD_LIBRARY_PATH", folder),
            None => command.env_remove("LD_LIBRARY_PATH"),
        };
        command
    }
}

/// This host's part in all measurements.
pub struct Side<'a> {
    pub programs: &'a Programs,
    pub c_program: Option<&'a Path>,
    /// The NIC of the programs that use one, whose name may differ at the other end.
    pub own_nic: String,
    /// The waiting instance, if this is the other one.
    pub host: Option<&'a str>,
    pub port: u16,
    pub limit: Duration,
}

impl Side<'_> {
    /// Runs this host's side. Returns the printed figures: none on the waiting side.
    ///
    /// # Errors
    /// The reason why the program failed.
    pub fn run(&self, measurement: &Measurement) -> std::result::Result<Figures, String> {
        let begin = Instant::now();
        loop {
            match self.attempt(measurement) {
                // The other side is not listening yet.
                Err(_) if self.host.is_some() && begin.elapsed() < START => {
                    std::thread::sleep(Duration::from_millis(200));
                }
                Err(why) => return Err(why),
                Ok(_) if self.host.is_none() => return Ok(Figures::default()),
                Ok(text) if measurement.program == Program::OurRails => {
                    return page::figures_of_rails(&text, &measurement.nics);
                }
                Ok(text) => return page::figures_of_pingpong(&text),
            }
        }
    }

    fn attempt(&self, measurement: &Measurement) -> std::result::Result<String, String> {
        let of_c = |on_ours| {
            let path = self.c_program.ok_or("no fi_pingpong of C's")?;
            Ok::<_, String>(self.programs.of_c(path, on_ours))
        };
        let mut command = match measurement.program {
            Program::OurPingpong => Command::new(&self.programs.pingpong),
            Program::OurRails => Command::new(&self.programs.rails),
            Program::CPingpong => of_c(false)?,
            Program::CPingpongOnOurs => of_c(true)?,
        };
        command.args(&measurement.args);
        let port = self.port;
        match (measurement.program, self.host) {
            (Program::OurRails, None) => _ = command.arg("--listen").arg(format!("0.0.0.0:{}", port + 1)),
            (Program::OurRails, Some(host)) => _ = command.arg(format!("{host}:{}", port + 1)),
            (_, None) => _ = command.args(["-d", &self.own_nic, "-B", &port.to_string()]),
            (_, Some(host)) => _ = command.args(["-d", &self.own_nic, "-P", &port.to_string(), host]),
        }
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        finished(child, &name, self.limit)
    }
}

/// A program's output after its end.
fn finished(mut child: Child, name: &str, limit: Duration) -> std::result::Result<String, String> {
    // The figures may exceed a pipe's buffer, so they are read while the program runs.
    let reader = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stream.map(|mut stream| stream.read_to_string(&mut text));
            text
        })
    };
    let text = reader(child.stdout.take().map(|stream| Box::new(stream) as _));
    let log = reader(child.stderr.take().map(|stream| Box::new(stream) as _));
    let ended = ended(&mut child, name, limit);
    let (text, log) = (text.join().unwrap_or_default(), log.join().unwrap_or_default());
    ended.map(|()| text).map_err(|why| format!("{why}: {}", log.trim()))
}

fn ended(child: &mut Child, name: &str, limit: Duration) -> std::result::Result<(), String> {
    let begin = Instant::now();
    loop {
        match child.try_wait().map_err(|error| format!("{name}: {error}"))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{name} ended with {status}")),
            None if begin.elapsed() > limit => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name} did not end within {} s (--limit)", limit.as_secs()));
            }
            None => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_stands_still_is_killed_and_one_that_fails_says_why() {
        let run = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).stdout(Stdio::piped()).stderr(Stdio::piped());
            finished(command.spawn().unwrap(), words[0], Duration::from_millis(300))
        };
        assert!(run(&["sleep", "60"]).unwrap_err().contains("did not end within"));
        assert!(run(&["sh", "-c", "echo no >&2; exit 3"]).unwrap_err().ends_with(": no"));
        assert_eq!(run(&["echo", "yes"]).unwrap(), "yes\n");
    }
}
