//! The jobs, from both sides: the client's actions and timing, and the server's answers.
//!
//! A job leaves nothing in flight. If the server finishes before the client has received everything, both keep making
//! progress until each has heard of the other's end over the control connection.

use std::time::{Duration, Instant};

use ofi::raw::{Lent, RemotePiece};

use super::check;
use super::lent::{Slots, room};
use super::link::Link;
use super::message::{Job, Message, Task};
use super::node::Node;
use super::pump::Pump;
use crate::failure::{Failure, Result};

/// Interval at which the client reports continuing accesses to the server, well below the server's timeout.
const WORKING: Duration = Duration::from_secs(1);

/// Context of the receive that ends a batch.
const ACK: usize = usize::MAX;

/// Runs `job` as the client. Returns the time of each batch.
///
/// # Errors
/// Any error of either side.
pub fn lead(node: &Node, link: &mut Link, job: &Job) -> Result<Vec<Duration>> {
    let slots = slots(node, job)?;
    link.send(&Message::Start(*job))?;
    let region = match link.receive("preparing a measurement", || node.progress())? {
        Message::Ready { region } => region,
        other => return Err(unexpected(&other)),
    };
    let mut pump = Pump::new(node, link, "waiting for completions");
    let times = match job.task {
        Task::PingPong => ping(node, &mut pump, &slots, job)?,
        Task::Stream => stream(node, &mut pump, &slots, job)?,
        Task::Check => check::lead(node, &mut pump, &slots, job)?,
        Task::Write | Task::Read => access(node, &mut pump, &slots, job, region)?,
    };
    match link.receive("waiting for the peer to finish", || node.progress())? {
        Message::Done => Ok(times),
        other => Err(unexpected(&other)),
    }
}

/// Runs `job` as the server. Returns the total time.
///
/// # Errors
/// Any error of either side.
pub fn follow(node: &Node, link: &mut Link, job: &Job) -> Result<Duration> {
    if !job.is_sane() || job.size > node.info().ep_attr.max_msg_size {
        return Err(Failure::Peer(format!("the peer requests more than this side has: {job:?}")));
    }
    let slots = slots(node, job)?;
    let region = match job.task {
        Task::Write | Task::Read => Some(node.expose(job.memory, room(job.size, job.window))?),
        _ => None,
    };
    let ahead = match job.task {
        Task::PingPong => 1,
        Task::Stream => job.window.min(usize::try_from(job.total()).unwrap_or(usize::MAX)),
        Task::Check => job.window,
        Task::Write | Task::Read => 0,
    };
    for slot in 0..ahead {
        node.receive(slots.lend(slot), slot)?;
    }
    if region.is_some() {
        node.receive(Lent::EMPTY, ACK)?;
    }
    link.send(&Message::Ready { region: region.as_ref().map(|region| (region.key(), region.base())) })?;
    let begin = Instant::now();
    let mut pump = Pump::new(node, link, "waiting for the peer's messages");
    match job.task {
        Task::PingPong => pong(node, &mut pump, &slots, job)?,
        Task::Stream => drain(node, &mut pump, &slots, job)?,
        Task::Check => check::follow(node, &mut pump, &slots, job)?,
        // The owner of application memory executes accesses while it reads its queue.
        Task::Write | Task::Read => pump.until(0, 1)?,
    }
    let took = begin.elapsed();
    drop(region);
    link.send(&Message::Done)?;
    Ok(took)
}

/// The failure for an unexpected message.
pub fn unexpected(message: &Message) -> Failure {
    Failure::Peer(format!("the peer sent {message:?} out of turn; use the same version on both sides"))
}

fn slots(node: &Node, job: &Job) -> Result<Slots> {
    let count = match job.task {
        Task::PingPong => 2,
        Task::Check => 2 * job.window,
        Task::Stream | Task::Write | Task::Read => job.window,
    };
    node.slots(job.memory, job.size, count)
}

fn ping(node: &Node, pump: &mut Pump<'_>, slots: &Slots, job: &Job) -> Result<Vec<Duration>> {
    let (back, out) = (slots.lend(0), slots.lend(1));
    let mut done = 0;
    batches(job, || {
        for _ in 0..job.rounds {
            pump.post(|| node.send(out))?;
            node.receive(back, 0)?; // while the message is on its way
            done += 1;
            pump.until(done, done)?;
        }
        Ok(())
    })
}

fn pong(node: &Node, pump: &mut Pump<'_>, slots: &Slots, job: &Job) -> Result<()> {
    let (back, out) = (slots.lend(0), slots.lend(1));
    for round in 0..job.total() {
        pump.until(round, round + 1)?;
        pump.post(|| node.send(out))?;
        if round + 1 < job.total() {
            node.receive(back, 0)?;
        }
    }
    pump.until(job.total(), job.total())
}

fn stream(node: &Node, pump: &mut Pump<'_>, slots: &Slots, job: &Job) -> Result<Vec<Duration>> {
    let window = job.window as u64;
    let (mut started, mut acks) = (0, 0);
    let mut slot = 0;
    batches(job, || {
        node.receive(Lent::EMPTY, ACK)?;
        acks += 1;
        let end = started + job.rounds;
        while started < end {
            while started < end && started - pump.sent < window && node.send(slots.lend(slot))? {
                started += 1;
                slot = if slot + 1 == job.window { 0 } else { slot + 1 };
            }
            pump.turn(|_| Ok(()))?;
        }
        pump.until(end, acks) // the receiver has all of them
    })
}

fn drain(node: &Node, pump: &mut Pump<'_>, slots: &Slots, job: &Job) -> Result<()> {
    let total = job.total();
    let mut posted = total.min(job.window as u64);
    // On every turn, because messages of the next batch may arrive while the end of this batch is in flight.
    let mut repost = |slot| {
        if posted < total {
            posted += 1;
            node.receive(slots.lend(slot), slot)?;
        }
        Ok(())
    };
    for batch in 1..=job.batches {
        while pump.received < batch * job.rounds {
            pump.turn(&mut repost)?;
        }
        while !node.send(Lent::EMPTY)? {
            pump.turn(&mut repost)?;
        }
        while pump.sent < batch {
            pump.turn(&mut repost)?;
        }
    }
    Ok(())
}

fn access(
    node: &Node,
    pump: &mut Pump<'_>,
    slots: &Slots,
    job: &Job,
    region: Option<(u64, u64)>,
) -> Result<Vec<Duration>> {
    let (key, base) = region.ok_or_else(|| Failure::Peer("the peer sent no key for its memory".into()))?;
    let piece =
        |slot| [RemotePiece { addr: base.wrapping_add(room(job.size, slot) as u64), len: job.size, key }];
    let remote: Vec<[RemotePiece; 1]> = (0..job.window).map(piece).collect();
    let window = job.window as u64;
    let (mut started, mut slot) = (0, 0);
    let mut told = Instant::now();
    let times = batches(job, || {
        if told.elapsed() > WORKING {
            told = Instant::now();
            pump.tell_working()?;
        }
        let end = started + job.rounds;
        while pump.sent < end {
            while started < end
                && started - pump.sent < window
                && node.access(slots.lend(slot), &remote[slot], job.task == Task::Write)?
            {
                started += 1;
                slot = if slot + 1 == job.window { 0 } else { slot + 1 };
            }
            pump.turn(|_| Ok(()))?;
        }
        Ok(())
    })?;
    pump.post(|| node.send(Lent::EMPTY))?;
    pump.until(started + 1, 0)?;
    Ok(times)
}

fn batches(job: &Job, mut batch: impl FnMut() -> Result<()>) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..job.batches {
        let begin = Instant::now();
        batch()?;
        times.push(begin.elapsed());
    }
    Ok(times)
}
