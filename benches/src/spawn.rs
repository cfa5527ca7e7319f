//! A server and a client process, each pinned to its core, run to their end.
//!
//! Meanwhile this process sleeps in one blocking call, so that it does not take a core from the measurement. No child
//! survives an error; a child that starts others has them die with it ([`sys::die_with_this_thread`]).

use std::{
    fs,
    io::Read,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::{Error, Result, error::tail, sys};

/// Two programs to run against each other.
#[derive(Debug)]
pub struct ProcessPair {
    /// Started first, on the first core.
    pub server: Command,
    /// Started when the server is ready, on the second core.
    pub client: Command,
    /// The condition for the server to be ready.
    pub ready: Ready,
    /// Time limit of the client.
    pub limit: Duration,
}

/// The condition for a server to be ready for its client.
#[derive(Clone, Copy, Debug)]
pub enum Ready {
    /// At once: the programs wait for each other themselves.
    AtOnce,
    /// When a process listens on this TCP port.
    Listening(u16),
}

/// The standard output of the two programs.
#[derive(Debug)]
pub struct Outputs {
    /// The server's.
    pub server: String,
    /// The client's.
    pub client: String,
}

impl ProcessPair {
    /// Runs both to their end on `cores` (server, client).
    ///
    /// # Errors
    /// One cannot start, fails, or exceeds the limit.
    pub fn run(self, cores: [usize; 2]) -> Result<Outputs> {
        let mut server = Running::start(self.server, Some(cores[0]))?;
        if let Ready::Listening(port) = self.ready {
            server.wait_until_listening(port)?;
        }
        let mut client = Running::start(self.client, Some(cores[1]))?;
        let client = client.finish(self.limit)?;
        Ok(Outputs { client, server: server.finish(PARTING)? })
    }
}

/// Runs a program to its end on any core. Returns its standard output.
///
/// # Errors
/// It cannot start, fails, or exceeds the limit.
pub fn output(command: Command, limit: Duration) -> Result<String> {
    Running::start(command, None)?.finish(limit)
}

/// Time limit for a server to listen.
const ARRIVAL: Duration = Duration::from_secs(10);
/// Time for which a server may outlive its client.
const PARTING: Duration = Duration::from_secs(10);

struct Running {
    child: Child,
    line: String,
    /// The contents of each of the child's streams, when it has ended.
    streams: mpsc::Receiver<(Stream, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

impl Running {
    fn start(mut command: Command, core: Option<usize>) -> Result<Self> {
        let line = command_line(&command);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        // A process inherits the affinity of the thread that starts it, so a dedicated thread is pinned first. The
        // command moves in, so that the socket it passes on as standard input is closed here after the start.
        let started = thread::spawn(move || {
            core.map_or(Ok(()), sys::pin_current_thread)?;
            command.spawn()
        });
        let child = started.join().map_err(|_| Error::Link("the starting thread panicked".into()))?;
        let mut child = child.map_err(Error::io(format!("starting {line}{}", on_core(core))))?;
        let (sender, streams) = mpsc::channel();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        read_to_end(out, Stream::Out, sender.clone());
        read_to_end(err, Stream::Err, sender);
        Ok(Self { child, line, streams })
    }

    fn wait_until_listening(&mut self, port: u16) -> Result<()> {
        let deadline = Instant::now() + ARRIVAL;
        while !is_listening(port) {
            let gone = self.child.try_wait().map_err(Error::io("waiting for a server"))?.is_some();
            if gone {
                self.finish(PARTING)?;
            }
            if gone || Instant::now() > deadline {
                return Err(self.late("listen", ARRIVAL));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Waits until the child has closed its streams and ended. Returns its standard output.
    fn finish(&mut self, limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit;
        let (mut out, mut err) = (String::new(), String::new());
        for _ in 0..2 {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.streams.recv_timeout(left) {
                Ok((Stream::Out, text)) => out = text,
                Ok((Stream::Err, text)) => err = text,
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => return Err(self.late("end", limit)),
            }
        }
        DELAYED_NS.fetch_add(run_delay_ns(self.child.id()), Ordering::Relaxed);
        let status: ExitStatus = self.child.wait().map_err(Error::io("waiting for a child"))?;
        if status.success() {
            return Ok(out);
        }
        Err(Error::Failed { program: self.line.clone(), status, tail: tail(&format!("{out}\n{err}")) })
    }

    fn late(&mut self, what: &'static str, limit: Duration) -> Error {
        // Kill it first: only then do its streams end and its last output arrive.
        let _ = self.child.kill();
        let mut words = String::new();
        for _ in 0..2 {
            if let Ok((_, text)) = self.streams.recv_timeout(Duration::from_secs(1)) {
                words += &text;
            }
        }
        Error::Late { program: self.line.clone(), what, limit, tail: tail(&words) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both are harmless for a child that has already been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_to_end(
    stream: Option<impl Read + Send + 'static>,
    which: Stream,
    to: mpsc::Sender<(Stream, String)>,
) {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // Data read before an error is still worth showing.
            let _ = stream.read_to_end(&mut bytes);
        }
        let _ = to.send((which, String::from_utf8_lossy(&bytes).into_owned()));
    });
}

/// The total time for which ended children of this process waited for a core while they could have run: the time that
/// other programs took from them.
pub fn delayed() -> Duration {
    Duration::from_nanos(DELAYED_NS.load(Ordering::Relaxed))
}

static DELAYED_NS: AtomicU64 = AtomicU64::new(0);

/// The second field of `/proc/<pid>/schedstat` for the main thread, which measures. An ended child keeps it until it is
/// waited for. 0 if the kernel does not record it.
fn run_delay_ns(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Whether a TCP socket of this host listens on `port`. This asks the kernel rather than connecting, since a benchmark
/// server would take the first connection for its client.
fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A"; // TCP_LISTEN in include/net/tcp_states.h
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let table = fs::read_to_string(table).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace();
            let local = fields.nth(1).and_then(|address| address.rsplit_once(':'));
            let state = fields.nth(1);
            local.and_then(|(_, hex)| u16::from_str_radix(hex, 16).ok()) == Some(port)
                && state == Some(LISTEN)
        })
    })
}

fn on_core(core: Option<usize>) -> String {
    core.map_or_else(String::new, |core| format!(" on core {core}"))
}

fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn pair(server: &str, client: &str) -> ProcessPair {
        let limit = Duration::from_millis(500);
        ProcessPair { server: shell(server), client: shell(client), ready: Ready::AtOnce, limit }
    }

    #[test]
    fn outputs_come_back() {
        let outputs = pair("echo s", "echo c; echo noise >&2").run([0, 0]).unwrap();
        assert_eq!((outputs.server.trim(), outputs.client.trim()), ("s", "c"));
    }

    #[test]
    fn a_child_that_had_to_share_its_core_was_delayed() {
        const SPIN: &str = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let before = delayed();
        let limit = Duration::from_secs(60);
        let pair = ProcessPair { server: shell(SPIN), client: shell(SPIN), ready: Ready::AtOnce, limit };
        pair.run([0, 0]).unwrap();
        let known = fs::metadata("/proc/self/schedstat").is_ok();
        assert!(!known || delayed() > before + Duration::from_millis(10), "{:?}", delayed() - before);
    }

    #[test]
    fn a_failure_has_its_last_words() {
        let error = pair("sleep 5", "echo why >&2; exit 3").run([0, 0]).unwrap_err();
        assert!(matches!(&error, Error::Failed { tail, .. } if tail == "why"), "{error}");
    }

    #[test]
    fn a_client_that_hangs_is_killed_at_its_limit() {
        let start = Instant::now();
        let error = pair("exec sleep 30", "exec sleep 30").run([0, 0]).unwrap_err();
        assert!(matches!(error, Error::Late { .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_program_alone_ends_well_or_is_killed_at_its_limit() {
        let start = Instant::now();
        assert_eq!(output(shell("echo words"), Duration::from_secs(10)).unwrap().trim(), "words");
        let error = output(shell("exec sleep 30"), Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, Error::Late { .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_listening_port_is_seen() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening(port));
        drop(listener);
        assert!(!is_listening(port));
    }
}
