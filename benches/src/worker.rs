//! Our side as two pinned child processes of this binary.

use std::{
    env,
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

/// In the parent: runs `job` as two processes on `cores` (server, client).
pub fn run(job: &Job, cores: [usize; 2]) -> Result<Figures> {
    let (server, client) = UnixStream::pair().map_err(Error::io("making the link of a worker pair"))?;
    let pair = ProcessPair {
        server: command(job, "server", server)?,
        client: command(job, "client", client)?,
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

/// In the child: does `job` and, as the client, prints the figures as a line of JSON.
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
        (Role::Client, None) => Err(Error::Stack(format!("{:?} gave no figures", job.test))),
    }
}

fn command(job: &Job, role: &str, link: UnixStream) -> Result<Command> {
    let this = env::current_exe().map_err(Error::io("finding this program"))?;
    let job = serde_json::to_string(job).map_err(|error| Error::Link(error.to_string()))?;
    let mut command = Command::new(this);
    command.args(["worker", "--role", role, "--job", &job]).stdin(Stdio::from(OwnedFd::from(link)));
    Ok(command)
}
