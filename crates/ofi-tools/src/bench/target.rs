//! The target: the process whose memory is read and written.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use multirail::Agent;

use super::agent;
use super::listed::List;
use super::meeting::{BenchRequest, Meeting, Opening, PEER_TIMEOUT};
use super::memory::{Memory, fill, wrong};
use crate::failure::{Failure, Result};
use crate::output;

/// Time for the first word of the first connection, which may be a probe.
const FIRST_WORD_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checks of the connections.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum memory that a target allocates for one initiator, in bytes.
const MAX_BYTES: u64 = 8 << 30;
/// Maximum initiators of one run.
const MAX_INITIATORS: usize = 64;

/// An initiator and its memory.
struct Guest {
    meeting: Meeting,
    memory: Memory,
    len: u64,
}

pub(super) fn run(address: &str, list: Option<&List>) -> Result<()> {
    let system = |error| Failure::system(format!("listening at {address}"), error);
    let listener = TcpListener::bind(address).map_err(system)?;
    let local = listener.local_addr().map_err(system)?;
    output::print(&format!("{local}\n"))?;
    let listed = list.map(|list| list.enter(local)).transpose()?;
    // The first initiator announces the total number. The wait for it is not bounded; the others connect at the same
    // time.
    let mut meeting = Meeting::of(first(&listener).map_err(system)?)?;
    let first = opening(&mut meeting)?;
    let agent = agent(&first.name, &first.rails)?;
    let mut guests = vec![admit(&agent, meeting, &first)?];
    while guests.len() < first.initiators {
        let mut meeting = Meeting::of(next(&listener).map_err(system)?)?;
        let other = opening(&mut meeting)?;
        if other.rails != first.rails {
            return Err(Failure::Peer("an initiator of another run connected".to_string()));
        }
        guests.push(admit(&agent, meeting, &other)?);
    }
    drop(listed); // no longer available to other initiators
    serve(&agent, guests)
}

/// The initiator's first request, if it can be satisfied.
fn opening(meeting: &mut Meeting) -> Result<Opening> {
    let BenchRequest::Open(opening) = meeting.hear()? else {
        return Err(Failure::Peer("the first request of the initiator is not Open".to_string()));
    };
    let Opening { len, initiators, .. } = opening;
    if len == 0 || len > MAX_BYTES {
        return Err(Failure::Peer(format!(
            "the initiator asks for {len} bytes; the range is 1 to {MAX_BYTES}"
        )));
    }
    if !(1..=MAX_INITIATORS).contains(&initiators) {
        return Err(Failure::Peer(format!("{initiators} initiators; 1 to {MAX_INITIATORS} are served")));
    }
    Ok(opening)
}

/// The first connection over which something is said. Probes of load balancers and kubelets say nothing.
fn first(listener: &TcpListener) -> std::io::Result<TcpStream> {
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(FIRST_WORD_TIMEOUT))?;
        if matches!(stream.peek(&mut [0]), Ok(1..)) {
            return Ok(stream);
        }
    }
}

/// The next connection. The initiators of a run connect together, so the wait is bounded.
fn next(listener: &TcpListener) -> std::io::Result<TcpStream> {
    let end = Instant::now() + PEER_TIMEOUT;
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                std::thread::sleep(POLL_INTERVAL);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Gives an initiator its memory.
fn admit(agent: &Agent, mut meeting: Meeting, opened: &Opening) -> Result<Guest> {
    let memory = Memory::new(agent, opened.len, opened.memory)?;
    meeting.say_bytes(&agent.metadata().map_err(Failure::stack("metadata"))?)?;
    agent.load(&meeting.hear_bytes()?).map_err(Failure::stack("the initiator's metadata"))?;
    Ok(Guest { meeting, memory, len: opened.len })
}

/// Drives the agent and serves the initiators until all have ended.
fn serve(agent: &Agent, mut guests: Vec<Guest>) -> Result<()> {
    while !guests.is_empty() {
        let began = Instant::now();
        while began.elapsed() < POLL_INTERVAL {
            if !agent.progress().map_err(Failure::stack("progress"))? {
                std::thread::yield_now();
            }
        }
        for nth in (0..guests.len()).rev() {
            if guests[nth].meeting.has_news()? && guests[nth].answer()? {
                guests.remove(nth);
            }
        }
    }
    Ok(())
}

impl Guest {
    /// Serves one request. Returns whether it was the last.
    fn answer(&mut self) -> Result<bool> {
        let stack = Failure::stack("the memory");
        let Self { meeting, memory, len } = self;
        match meeting.hear()? {
            BenchRequest::End => return Ok(true),
            BenchRequest::Fill { len: used, seed } if used <= *len => {
                fill(memory, used, seed).map_err(stack)?;
                meeting.say_bytes(b"done")?;
            }
            BenchRequest::Check { len: used, seed } if used <= *len => {
                match wrong(memory, used, seed).map_err(stack)? {
                    None => meeting.say_bytes(b"done")?,
                    Some(at) => {
                        meeting.say_bytes(format!("byte {at} differs from the written one").as_bytes())?
                    }
                }
            }
            other => return Err(Failure::Peer(format!("unexpected request {other:?}"))),
        }
        Ok(false)
    }
}
