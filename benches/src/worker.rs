//! Our side as two pinned child processes of this binary.

use std::{
    env,
    net::IpAddr,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    Error, Figures, Result,
    error::tail,
    link::Link,
    ours::{self, Job, Role},
    spawn::{ProcessPair, Ready},
};

/// The address of a worker's endpoints, if not loopback.
pub const ADDRESS: &str = "OFI_BENCHES_ADDRESS";

/// In the parent: runs `job` as two processes on `cores` (server, client).
pub fn run(job: &Job, cores: [usize; 2]) -> Result<Figures> {
    run_between(&Work::Ours(*job), &Ends::default(), cores)
}

/// The task of two workers.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// A job of this stack.
    Ours(Job),
    /// Bare sockets, see [`crate::bare`].
    Bare {
        /// Whether the receiver copies the received data once more.
        copies: bool,
    },
}

/// The location of two workers.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// A program that starts the server elsewhere, such as `nsenter -t 1 -n`.
    pub wrapper: Vec<String>,
    /// Addresses of server and client; `None` for loopback.
    pub addresses: Option<[IpAddr; 2]>,
}

/// In the parent: runs `work` in two processes at `ends` and on `cores` (server, client).
///
/// # Errors
/// A worker's error.
pub fn run_between(work: &Work, ends: &Ends, cores: [usize; 2]) -> Result<Figures> {
    let (server, client) = UnixStream::pair().map_err(Error::io("making the link of a worker pair"))?;
    let pair = ProcessPair {
        server: command(work, "server", server, &ends.wrapper, ends.addresses.map(|[server, _]| server))?,
        client: command(work, "client", client, &[], ends.addresses.map(|[_, client]| client))?,
        ready: Ready::AtOnce,
        limit: Duration::from_secs(60),
    };
    let output = pair.run(cores)?.client;
    let last = output.lines().last().unwrap_or_default();
    serde_json::from_str(last).map_err(|_| Error::Unreadable {
        program: "a worker".into(),
        wanted: "a line of JSON figures",
        output: tail(&output),
    })
}

/// In the child: runs `job` and, as the client, prints the figures as a line of JSON.
pub fn main(job: &str, role: Role) -> Result<()> {
    let job: Job =
        serde_json::from_str(job).map_err(|error| Error::Link(format!("bad job {job:?}: {error}")))?;
    let mut link = Link::from_stdin()?;
    let figures = ours::run(&job, role, &mut link)?;
    match (role, figures) {
        (Role::Server, _) => Ok(()),
        (Role::Client, Some(figures)) => {
            let line = serde_json::to_string(&figures).map_err(|error| Error::Link(error.to_string()))?;
            println!("{line}");
            Ok(())
        }
        (Role::Client, None) => Err(Error::Stack(format!("{:?} returned no figures", job.test))),
    }
}

fn command(
    work: &Work,
    role: &str,
    link: UnixStream,
    wrapper: &[String],
    address: Option<IpAddr>,
) -> Result<Command> {
    let this = env::current_exe().map_err(Error::io("finding this program"))?;
    let mut command = match wrapper.split_first() {
        None => Command::new(this),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(this);
            command
        }
    };
    match work {
        Work::Ours(job) => {
            let job = serde_json::to_string(job).map_err(|error| Error::Link(error.to_string()))?;
            command.args(["worker", "--role", role, "--job", &job]);
        }
        Work::Bare { copies } => {
            command.args(["bare", "--role", role]);
            command.args(copies.then_some("--copies"));
        }
    }
    command
        .envs(address.map(|address| (ADDRESS, address.to_string())))
        .stdin(Stdio::from(OwnedFd::from(link)));
    Ok(command)
}
