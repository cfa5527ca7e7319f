//! `cargo xtask efa-bench`: a measurement of this library beside C's, for users with two EFA instances. No figure has
//! been taken with it yet.
//!
//! One instance waits and the other connects to it: `cargo xtask efa-bench`, and `cargo xtask efa-bench HOST`. They
//! exchange descriptions of their hosts and run the same programs one after the other, and the second writes the page
//! to send back.

mod facts;
mod page;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::StepResult;
use crate::capi::{DEVICES, built, link_with_devices};
use crate::patience::ended;
use crate::step::{Outcome, cargo, not_run, output, run, target_dir};
use facts::Facts;
use page::{Row, Rows};

/// The port of the control connection; the next ports are for the programs.
const PORT: u16 = 47_700;
/// Time limit of one program. If the other side fails, a program ends sooner.
const PATIENCE: Duration = Duration::from_secs(600);

/// What to run, and with whom.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The waiting instance. Without it, this instance waits.
    host: Option<String>,
    /// The first of three ports, open between the two (the security group must let TCP through).
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// A few messages of two sizes with a debug build, to check that everything runs.
    #[arg(long)]
    quick: bool,
}

/// The command.
///
/// # Errors
/// A part that could not be built, reached or read.
pub fn main(options: &Options) -> StepResult {
    let programs = build(options.quick)?;
    let facts = Facts::of_this_host(&programs.info);
    if let Some(missing) = facts.missing() {
        return not_run("efa-bench", missing);
    }
    facts.warnings().iter().for_each(|warning| eprintln!("note: {warning}"));
    let (mut stream, address) = meet(options)?;
    let theirs = exchange(&mut stream, &facts)?;
    if theirs.commit() != facts.commit() {
        return Err(format!(
            "the other instance has commit {}, this one {}: check out the same on both",
            theirs.commit(),
            facts.commit()
        ));
    }
    let all = measurements(options.quick, facts.c_program().is_some() && theirs.c_program().is_some());
    let mut rows = Rows::default();
    for measurement in &all {
        eprintln!("--- {}", measurement.name);
        let result = measurement.run(&programs, &facts, options.port + 1, address.as_deref());
        // Both continue together, even after one side failed.
        let well = told(&mut stream, result.is_ok())?;
        match result {
            Ok(found) if well => rows.add(&measurement.name, found),
            Ok(_) => rows.failed(&measurement.name, "the other side failed; see its output"),
            Err(why) => rows.failed(&measurement.name, &why),
        }
    }
    if address.is_some() {
        let file = target_dir("efa-bench").join("efa-bench.md");
        page::write(&file, &[("client", &facts), ("server", &theirs)], &rows, options.quick)?;
        println!("{}\nAttach it to an issue: no figures from EFA devices exist yet.", file.display());
    }
    rows.outcome()
}

/// Our programs.
struct Programs {
    pingpong: PathBuf,
    rails: PathBuf,
    info: PathBuf,
    /// The folder of our `libfabric.so.1`.
    library: PathBuf,
}

fn build(quick: bool) -> Result<Programs, String> {
    let mut build = cargo(&["build", "--package", "ofi-tools", "--features", DEVICES, "--bins"]);
    if !quick {
        build.arg("--release");
    }
    run(&mut build)?;
    let library = link_with_devices(!quick)?;
    let folder = built(!quick);
    let program = |name| folder.join(name);
    Ok(Programs {
        pingpong: program("fi_pingpong"),
        rails: program("mr-bench"),
        info: program("fi_info"),
        library,
    })
}

/// The connection that keeps the two in step, and the waiting side's address if this is the other side.
fn meet(options: &Options) -> Result<(TcpStream, Option<String>), String> {
    let port = options.port;
    let Some(host) = &options.host else {
        let listener =
            TcpListener::bind(("0.0.0.0", port)).map_err(|error| format!("port {port}: {error}"))?;
        eprintln!("now on the other instance: cargo xtask efa-bench THIS_HOST --port {port}");
        let (stream, _) = listener.accept().map_err(|error| format!("port {port}: {error}"))?;
        return Ok((stream, None));
    };
    // The other side may still be building.
    let begin = Instant::now();
    let stream = loop {
        match TcpStream::connect((host.as_str(), port)) {
            Ok(stream) => break stream,
            Err(_) if begin.elapsed() < Duration::from_secs(20) => {
                std::thread::sleep(Duration::from_millis(200))
            }
            Err(error) => {
                let advice = "start cargo xtask efa-bench there first, and let TCP through";
                return Err(format!("{host}, port {port}: {error}; {advice}"));
            }
        }
    };
    Ok((stream, Some(host.clone())))
}

/// Sends this host's description, and receives the other's.
fn exchange(stream: &mut TcpStream, facts: &Facts) -> Result<Facts, String> {
    let failed = |error: std::io::Error| format!("the other instance: {error}");
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(format!("{}\n", facts.to_line()).as_bytes()).map_err(failed)?;
    let mut line = Vec::new();
    // One byte at a time, because the data after the line belongs to `told`.
    let mut bytes = BufReader::with_capacity(1, &mut *stream).take(16 << 10);
    bytes.read_until(b'\n', &mut line).map_err(failed)?;
    Facts::of_line(&String::from_utf8_lossy(&line))
}

/// Reports whether this side's program succeeded, and waits for the other's report.
fn told(stream: &mut TcpStream, well: bool) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("the other instance is gone: {error}");
    stream.write_all(&[u8::from(well)]).map_err(failed)?;
    let mut word = [0];
    stream.read_exact(&mut word).map_err(failed)?;
    Ok(word == [1])
}

/// A program with its arguments on both sides.
struct Measurement {
    name: String,
    program: Program,
    args: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    OurPingpong,
    /// C's program on our library. That program limits the speed.
    CPingpongOnOurs,
    CPingpong,
    OurRails,
}

fn measurements(quick: bool, with_c: bool) -> Vec<Measurement> {
    let mut all = Vec::new();
    let count = if quick { "5" } else { "10000" };
    // Two sizes show whether the programs run.
    let sizes: &[&str] = if quick { &["64", "65536"] } else { &["all"] };
    let whose = [
        (Program::OurPingpong, "our fi_pingpong"),
        (Program::CPingpongOnOurs, "C's fi_pingpong on this library"),
        (Program::CPingpong, "C's fi_pingpong on C's library"),
    ];
    for (program, who) in whose.into_iter().filter(|(program, _)| with_c || *program == Program::OurPingpong)
    {
        for (kind, size) in
            ["tagged", "msg"].into_iter().flat_map(|kind| sizes.iter().map(move |size| (kind, *size)))
        {
            let args = ["-p", "efa", "-e", "rdm", "-m", kind, "-I", count, "-S", size].map(Into::into).into();
            all.push(Measurement { name: format!("{who}, {kind}"), program, args });
        }
    }
    let mut args: Vec<String> = ["--rails", "efa", "--json"].map(Into::into).into();
    if quick {
        args.extend(["--sizes", "64K", "--batches", "1", "--iterations", "5", "--check"].map(Into::into));
    }
    all.push(Measurement {
        name: "mr-bench on this library, remote memory".into(),
        program: Program::OurRails,
        args,
    });
    all
}

impl Measurement {
    /// Runs this host's side. Returns the printed figures as rows.
    fn run(
        &self,
        programs: &Programs,
        facts: &Facts,
        port: u16,
        host: Option<&str>,
    ) -> Result<Vec<Row>, String> {
        let begin = Instant::now();
        loop {
            let output = self.attempt(programs, facts, port, host);
            match output {
                // The other side is not listening yet.
                Err(_) if host.is_some() && begin.elapsed() < Duration::from_secs(15) => {
                    std::thread::sleep(Duration::from_millis(200));
                }
                Err(why) => return Err(why),
                Ok(_) if host.is_none() => return Ok(Vec::new()),
                Ok(text) if self.program == Program::OurRails => return page::rows_of_rails(&text),
                Ok(text) => return page::rows_of_pingpong(&text),
            }
        }
    }

    fn attempt(
        &self,
        programs: &Programs,
        facts: &Facts,
        port: u16,
        host: Option<&str>,
    ) -> Result<String, String> {
        let path = match self.program {
            Program::OurPingpong => programs.pingpong.as_path(),
            Program::OurRails => &programs.rails,
            Program::CPingpong | Program::CPingpongOnOurs => {
                facts.c_program().ok_or("no fi_pingpong of C's")?
            }
        };
        let mut command = Command::new(path);
        command.args(&self.args);
        if self.program == Program::CPingpongOnOurs {
            command.env("LD_LIBRARY_PATH", &programs.library);
        }
        match (self.program, host) {
            (Program::OurRails, None) => _ = command.arg("--listen").arg(format!("0.0.0.0:{}", port + 1)),
            (Program::OurRails, Some(host)) => _ = command.arg(format!("{host}:{}", port + 1)),
            (_, None) => _ = command.args(["-B", &port.to_string()]),
            (_, Some(host)) => _ = command.args(["-P", &port.to_string(), host]),
        }
        let (stdout, log) = (Stdio::piped(), Stdio::piped());
        let child = command.stdin(Stdio::null()).stdout(stdout).stderr(log).spawn();
        finished(child.map_err(|error| format!("{}: {error}", path.display()))?, path)
    }
}

/// A program's output after its end.
fn finished(mut child: Child, path: &Path) -> Result<String, String> {
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
    let ended = ended(&mut child, &path.display().to_string(), PATIENCE);
    let (text, log) = (text.join().unwrap_or_default(), log.join().unwrap_or_default());
    ended.map(|()| text).map_err(|why| format!("{why}: {}", log.trim()))
}

/// Runs both sides on emulated devices of this host, to test that the measurement runs and writes its page. `start`
/// makes a command find the device.
pub fn on_emulator(start: impl Fn(&mut Command)) -> StepResult {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let side = |host: Option<&str>| {
        let mut side = Command::new(&program);
        start(side.args(["efa-bench", "--quick"]).args(host));
        side
    };
    let file = target_dir("efa-bench").join("efa-bench.md");
    let _ = std::fs::remove_file(&file);
    let mut server = side(None).spawn().map_err(|error| error.to_string())?;
    let client = output(&mut side(Some("127.0.0.1")));
    let _ = server.kill();
    let _ = server.wait();
    client?;
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    for wanted in ["our fi_pingpong, tagged", "| 65536 |", "mr-bench", "emulated device"] {
        if !text.contains(wanted) {
            return Err(format!("the page does not mention {wanted:?}:\n{text}"));
        }
    }
    Ok(Outcome::Passed)
}
