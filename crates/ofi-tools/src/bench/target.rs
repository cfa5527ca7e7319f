//! The process whose memory is read and written.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::meeting::{Meeting, Request};
use super::{Memory, agent, fill, wrong};
use crate::failure::{Failure, Result};
use crate::output;

/// How often the connection is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// Longest memory that a target gives.
const LONGEST: u64 = 8 << 30;

pub(super) fn run(address: &str) -> Result<()> {
    let system = |error| Failure::system(format!("listening at {address}"), error);
    let listener = TcpListener::bind(address).map_err(system)?;
    output::print(&format!("{}\n", listener.local_addr().map_err(system)?))?;
    let (stream, _) = listener.accept().map_err(system)?;
    let mut meeting = Meeting::of(stream)?;
    let Request::Open { rails, len, library } = meeting.hear()? else {
        return Err(Failure::Peer("the initiator does not begin with Open".to_string()));
    };
    if len == 0 || len > LONGEST {
        return Err(Failure::Peer(format!("the initiator asks for {len} bytes; 1 to {LONGEST} are given")));
    }
    let agent = agent("mr-bench-target", &rails)?;
    let memory = Memory::new(&agent, len, library)?;
    meeting.say_bytes(&agent.metadata().map_err(Failure::stack("metadata"))?)?;
    agent.load(&meeting.hear_bytes()?).map_err(Failure::stack("the initiator's metadata"))?;
    loop {
        let began = Instant::now();
        while began.elapsed() < LOOK {
            if !agent.progress().map_err(Failure::stack("progress"))? {
                std::thread::yield_now();
            }
        }
        if !meeting.has_news()? {
            continue;
        }
        let stack = Failure::stack("the memory");
        match meeting.hear()? {
            Request::End => return Ok(()),
            Request::Fill { len: used, seed } if used <= len => {
                fill(&memory, used, seed).map_err(stack)?;
                meeting.say_bytes(b"done")?;
            }
            Request::Check { len: used, seed } if used <= len => {
                match wrong(&memory, used, seed).map_err(stack)? {
                    None => meeting.say_bytes(b"done")?,
                    Some(at) => meeting.say_bytes(format!("byte {at} is not what was written").as_bytes())?,
                }
            }
            other => return Err(Failure::Peer(format!("{other:?} makes no sense now"))),
        }
    }
}
