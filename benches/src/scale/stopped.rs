//! An agent of `multirail` writes 64 bytes to a peer: alone, and while a second peer, with a hundred thousand
//! descriptors under way, is stopped by SIGSTOP. The stopped peer is another process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use multirail::{Agent, Outcome, Prepared, Region, Remote, Way};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ofi::Hints;

use super::{Figure, figure};
use crate::{Error, Result};

/// Descriptors to the stopped peer.
const DESCRIPTORS: usize = 100_000;
/// Bytes of each, and of a write to the other peer.
const LEN: usize = 64;
/// Timed writes, of which the median counts.
const WRITES: usize = 2_000;
/// Time for anything that waits for a peer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The row of the process that is stopped, which the provider's name follows.
pub const SERVER: &str = "stopped-peer-of-";

fn stack(error: ofi::raw::Error) -> Error {
    Error::Stack(error.to_string())
}

/// Over shared memory.
pub fn over_shm() -> Result<Vec<Figure>> {
    measure("shm")
}

/// Over the sockets of `udp`.
pub fn over_udp() -> Result<Vec<Figure>> {
    measure("udp")
}

/// Over the sockets of `tcp`.
pub fn over_tcp() -> Result<Vec<Figure>> {
    measure("tcp")
}

fn open(name: &str, provider: &str, has_thread: bool) -> Result<Agent> {
    let builder = Agent::builder(name).progress_thread(has_thread).shared_memory(provider == "shm");
    builder.rail(Hints::new().provider(provider)).open().map_err(stack)
}

/// The process that will be stopped: an agent with a region and a progress thread.
pub fn serve(provider: &str) -> Result<()> {
    let agent = open("bob", provider, true)?;
    let _region = agent.register(vec![0_u8; DESCRIPTORS * LEN]).map_err(stack)?;
    let metadata = agent.metadata().map_err(stack)?;
    println!("{}", metadata.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    // Until the pipe ends.
    std::io::stdin().read_line(&mut String::new()).map_err(Error::io("waiting for the end"))?;
    Ok(())
}

/// The other process. It ends with this.
struct Bob(Child);

impl Bob {
    /// Starts it. Returns the metadata of its agent, too.
    fn start(provider: &str) -> Result<(Self, Vec<u8>)> {
        let this = std::env::current_exe().map_err(Error::io("finding this program"))?;
        let mut command = Command::new(this);
        command.args(["scale", "--row", &format!("{SERVER}{provider}")]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut bob = Self(child.map_err(Error::io("starting the peer"))?);
        let from = bob.0.stdout.take().ok_or_else(|| Error::Link("the peer has no pipe".into()))?;
        let mut line = String::new();
        BufReader::new(from).read_line(&mut line).map_err(Error::io("reading the peer's metadata"))?;
        let digits: Vec<char> = line.trim().chars().collect();
        let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).ok();
        let metadata: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
        let metadata = metadata.ok_or_else(|| Error::Link(format!("not metadata: {line:?}")))?;
        Ok((bob, metadata))
    }

    /// Stops it. Returns when it no longer runs.
    fn stop(&self) -> Result<()> {
        let pid = Pid::from_raw(self.0.id().cast_signed());
        kill(pid, Signal::SIGSTOP).map_err(|errno| Error::io("stopping the peer")(errno.into()))?;
        let stat = format!("/proc/{}/stat", self.0.id());
        wait("the peer does not stop", || {
            let text = std::fs::read_to_string(&stat).unwrap_or_default();
            Ok(text.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')))
        })
    }
}

impl Drop for Bob {
    fn drop(&mut self) {
        // Already gone, if this fails; and then there is nothing to wait for, either.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Asks until the answer is yes.
fn wait(what: &str, mut is_over: impl FnMut() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    while !is_over()? {
        if begin.elapsed() > TIMEOUT {
            return Err(Error::Stack(what.into()));
        }
    }
    Ok(())
}

/// The median of writes that Carol is notified of, in microseconds. Both agents are driven by this thread.
fn writes(alice: &Agent, carol: &Agent, plan: &Prepared) -> Result<f64> {
    let mut times = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        let begin = Instant::now();
        let transfer = plan.post_notify(b"new", TIMEOUT).map_err(stack)?;
        wait("a notification does not arrive", || {
            alice.progress().and(carol.progress()).map_err(stack)?;
            Ok(carol.take_notification().is_some())
        })?;
        times.push(begin.elapsed());
        wait("a write does not end", || {
            alice.progress().and(carol.progress()).map_err(stack)?;
            Ok(transfer.progress().outcome.is_some())
        })?;
    }
    times.sort_unstable();
    Ok(times[WRITES / 2].as_secs_f64() * 1e6)
}

/// A write of all descriptors from `region` to Bob.
fn everything(alice: &Agent, region: &Region<Vec<u8>>) -> Result<Prepared> {
    let theirs = alice.regions("bob").map_err(stack)?;
    let (theirs, _) = theirs.first().ok_or_else(|| Error::Link("the peer has no region".into()))?;
    let at = |nth: usize| (nth * LEN) as u64;
    let local: ofi::raw::Result<Vec<_>> =
        (0..DESCRIPTORS).map(|nth| region.slice(at(nth)..at(nth + 1))).collect();
    let remote = |nth| Remote { region: *theirs, offset: at(nth), len: LEN as u64 };
    let remote: Vec<_> = (0..DESCRIPTORS).map(remote).collect();
    alice.prepare("bob", Way::Write, &local.map_err(stack)?, &remote).map_err(stack)
}

fn measure(provider: &str) -> Result<Vec<Figure>> {
    let (bob, metadata) = Bob::start(provider)?;
    let (alice, carol) = (open("alice", provider, false)?, open("carol", provider, false)?);
    let own = alice.register(vec![1_u8; DESCRIPTORS * LEN]).map_err(stack)?;
    let at_carol = carol.register(vec![0_u8; LEN]).map_err(stack)?;
    alice.load(&metadata).map_err(stack)?;
    alice.load(&carol.metadata().map_err(stack)?).map_err(stack)?;
    alice.connect("bob").map_err(stack)?;
    wait("the peer does not connect", || {
        alice.progress().map_err(stack)?;
        alice.is_connected("bob").map_err(stack)
    })?;
    let remote = Remote { region: at_carol.id(), offset: 0, len: LEN as u64 };
    let local = [own.slice(..LEN as u64).map_err(stack)?];
    let plan = alice.prepare("carol", Way::Write, &local, &[remote]).map_err(stack)?;
    writes(&alice, &carol, &plan)?; // the two meet
    let alone = writes(&alice, &carol, &plan)?;
    bob.stop()?;
    let to_bob = everything(&alice, &own)?.post(TIMEOUT).map_err(stack)?;
    let beside = writes(&alice, &carol, &plan)?;
    match to_bob.progress().outcome {
        None => {}
        Some(Outcome::Done) => return Err(Error::Stack("a stopped peer executed everything".into())),
        Some(outcome) => return Err(Error::Stack(format!("the peer was given up: {outcome:?}"))),
    }
    Ok(vec![
        figure(format!("a write of {LEN} B and its notification, us"), alone, None),
        figure(format!("beside a stopped peer with {DESCRIPTORS} descriptors under way, us"), beside, None),
        figure("as a multiple", beside / alone, Some(2.0)),
    ])
}
