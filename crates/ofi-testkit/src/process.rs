//! Other processes of a test: the test program started again in a role, with a line to communicate over.
//!
//! There is no `fork` without `exec`: a child inherits nothing but the line, which is its standard input (a socket, so
//! that it works in both directions). A test program with children uses [`roles!`](crate::roles), which adds the test
//! that a child runs instead of all others.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::Shutdown;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::wait;

const ROLE: &str = "TESTKIT_ROLE";
const ARGUMENTS: &str = "TESTKIT_ARGUMENTS";
/// The test that [`roles!`](crate::roles) adds.
const ENTRY: &str = "child_process_entry";
/// The time limit of a wait for the other process.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);

/// The function of a child.
pub type Role = fn(&mut Line, &[String]);

/// Adds the test that a child process runs: one of the named functions, each a [`Role`].
#[macro_export]
macro_rules! roles {
    ($($role:ident),+ $(,)?) => {
        #[test]
        fn child_process_entry() {
            $crate::process::enter(&[$((stringify!($role), $role as $crate::process::Role)),+]);
        }
    };
}

/// Runs the role that the environment names, if it names one.
///
/// # Panics
/// If there is no such role, or if the role panics.
pub fn enter(roles: &[(&str, Role)]) {
    let Ok(wanted) = std::env::var(ROLE) else { return };
    // A failing test kills its children.
    // SAFETY: asks for a signal, touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let arguments = std::env::var(ARGUMENTS).unwrap_or_default();
    let arguments: Vec<String> = arguments.split('\n').map(str::to_string).collect();
    let role = roles.iter().find(|(name, _)| *name == wanted).expect("a role of this test program").1;
    // SAFETY: the parent made standard input a socket for this, and nothing else reads it.
    let socket = unsafe { OwnedFd::from_raw_fd(0) };
    role(&mut Line::new(socket.into()), &arguments);
}

/// Lines of text between two processes.
pub struct Line {
    reader: BufReader<UnixStream>,
}

impl Line {
    fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(PEER_TIMEOUT)).expect("a time-out");
        Self { reader: BufReader::new(socket) }
    }

    /// Sends a line.
    ///
    /// # Panics
    /// If the other end is gone.
    #[track_caller]
    pub fn say(&mut self, text: impl std::fmt::Display) {
        writeln!(self.reader.get_mut(), "{text}").expect("the other end of the line");
    }

    /// Sends a line, and ignores the loss of the other end.
    pub fn try_say(&mut self, text: impl std::fmt::Display) {
        // The loss shows when this end reads or waits.
        let _ = writeln!(self.reader.get_mut(), "{text}");
    }

    /// The other end's next line; `None` if it is gone.
    ///
    /// # Panics
    /// After a minute of silence.
    #[track_caller]
    pub fn try_hear(&mut self) -> Option<String> {
        let mut text = String::new();
        match self.reader.read_line(&mut text) {
            Ok(0) => None,
            Ok(_) => Some(text.trim_end_matches('\n').to_string()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            Err(error) => panic!("nothing heard for {PEER_TIMEOUT:?}: {error}"),
        }
    }

    /// The other end's next line.
    ///
    /// # Panics
    /// If it is gone, or silent for a minute.
    #[track_caller]
    pub fn hear(&mut self) -> String {
        self.try_hear().expect("the other process has ended")
    }

    /// Waits for the line `text`.
    ///
    /// # Panics
    /// If another line arrives.
    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        assert_eq!(self.hear(), text);
    }

    /// Whether data has arrived.
    pub fn has_news(&mut self) -> bool {
        use std::os::fd::AsRawFd;
        let fd = self.reader.get_ref().as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, as the call is told.
        !self.reader.buffer().is_empty() || unsafe { libc::poll(&raw mut poll, 1, 0) } > 0
    }
}

/// A child process, killed on drop.
pub struct Child {
    process: std::process::Child,
    /// The line to the child.
    pub line: Line,
}

impl Child {
    /// Starts a child in `role`.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn start(role: &str, arguments: &[&str]) -> Self {
        Self::start_with(role, arguments, &[])
    }

    /// Starts a child with additional environment variables. The calling thread must outlive the child.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn start_with(role: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_under(&[], role, arguments, environment)
    }

    /// Starts a child through a program that runs its arguments, such as `nsenter -t 1 -n`. The calling thread must
    /// outlive the child.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn start_under(
        wrapper: &[&str],
        role: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let program = std::env::current_exe().expect("the name of this program");
        let mut command = match wrapper {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        let process = command
            .args([ENTRY, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ARGUMENTS, arguments.join("\n"))
            .envs(environment.iter().copied())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .expect("a child process");
        Self { process, line: Line::new(ours) }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// `kill -9`, and waits until it is dead.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill(&mut self) {
        self.process.kill().expect("a child that can be killed");
        self.process.wait().expect("the end of a killed child");
    }

    /// Waits until the child has ended, for at most `bound`. Returns the signal that killed it, if any; the outer
    /// `None` means that it still runs.
    ///
    /// # Panics
    /// If it cannot be waited for.
    pub fn ended_within(&mut self, bound: Duration) -> Option<Option<i32>> {
        let start = std::time::Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("a child") {
                return Some(status.signal());
            }
            if start.elapsed() > bound {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops the child (`SIGSTOP`), as if its core were taken away, and waits until it has stopped: a signal returns
    /// while the child may still run.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        // Its end counts, too, and stays for the wait for its status.
        let states = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
        // SAFETY: all zeros are a valid value.
        let mut state: libc::siginfo_t = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: a child of ours, and a place for its state.
            if unsafe { libc::waitid(libc::P_PID, self.process.id(), &raw mut state, states) } == 0 {
                return;
            }
            let error = std::io::Error::last_os_error();
            assert_eq!(error.kind(), ErrorKind::Interrupted, "waiting for a child to stop: {error}");
        }
    }

    /// Resumes the child.
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that has not been waited for, so the process id is still its own.
        let sent = unsafe { libc::kill(self.process.id() as i32, signal) };
        assert_eq!(sent, 0, "signal {signal}");
    }

    /// Waits until the child has ended by itself, and fails unless it succeeded.
    ///
    /// # Panics
    /// After the limit of all waits, or if it failed.
    #[track_caller]
    pub fn finish(mut self) {
        let _ = self.line.reader.get_ref().shutdown(Shutdown::Write);
        wait::until("the end of a child", || self.process.try_wait().expect("a child").is_some());
        let status = self.process.wait().expect("a child");
        assert!(status.success(), "a child ended with {status} (signal {:?})", status.signal());
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
