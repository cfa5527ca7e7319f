//! Messages of several threads at once, each with an endpoint and a domain of its own.
//!
//! The nth thread of a side is pinned to the nth core after the side's own, in steps of two, so that client and server
//! use different cores; with fewer cores than threads they share them.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use ofi::raw::{Caps, CqTaggedEntry, WaitObj};

use super::node::{Arena, Node};
use super::run::{check, slot};
use super::{Job, Role};
use crate::{Error, Figures, Result, link::Link, sys};

/// Runs one role of the measurement with `count` threads. The client's figures are the messages per second of all
/// threads.
pub fn run(job: &Job, count: usize, role: Role, link: &mut Link) -> Result<Option<Figures>> {
    let mut nodes = Vec::with_capacity(count);
    for _ in 0..count {
        nodes.push(Node::open(Caps::empty(), job, link, WaitObj::None)?);
    }
    let first = sys::current_core().map_err(Error::io("finding the core"))?;
    let cores = sys::configured_cores();
    // All threads are warm and begin together. The server's threads need not wait: the client's threads determine the
    // start.
    let start = Barrier::new(count + 1);
    let seconds = thread::scope(|scope| {
        let start = &start;
        let work = |(nth, node): (usize, &Node)| -> Result<()> {
            let ready = sys::pin_current_thread((first + 2 * nth) % cores)
                .map_err(Error::io("pinning a thread"))
                .and_then(|()| Side::new(node, job, role))
                .and_then(|side| side.messages(job.iterations / 20 + 10).map(|()| side));
            // A failed thread also reaches the barrier; otherwise the others would wait for it.
            start.wait();
            ready?.messages(job.iterations)
        };
        let threads: Vec<_> = nodes.iter().enumerate().map(|node| scope.spawn(move || work(node))).collect();
        start.wait();
        let begin = Instant::now();
        for thread in threads {
            thread.join().map_err(|_| Error::Stack("a thread panicked".into()))??;
        }
        Ok::<_, Error>(begin.elapsed().as_secs_f64())
    })?;
    link.barrier(|| {})?;
    let rate = job.iterations as f64 * count as f64 / seconds;
    Ok((role == Role::Client).then(|| Figures::from_rate(job.size, rate)))
}

/// The state of one thread.
struct Side<'a> {
    node: &'a Node,
    job: &'a Job,
    role: Role,
    memory: Arena,
}

impl<'a> Side<'a> {
    fn new(node: &'a Node, job: &'a Job, role: Role) -> Result<Self> {
        let memory = node.memory(job, job.size.next_multiple_of(64))?;
        let side = Self { node, job, role, memory };
        if role == Role::Server {
            (0..job.window).try_for_each(|_| side.receive())?;
        }
        Ok(side)
    }

    fn receive(&self) -> Result<()> {
        self.node.receive(slot(&self.memory, self.job.size, 0), None, 0)
    }

    /// Sends or receives `total` messages, and then the receiver's acknowledgement.
    fn messages(&self, total: u64) -> Result<()> {
        let Self { node, job, .. } = self;
        let mut entries = [CqTaggedEntry::EMPTY; 64];
        let mut since = Instant::now();
        let (mut started, mut finished) = (0, 0);
        while finished < total {
            let count = if self.role == Role::Client {
                while started < total && started - finished < job.window as u64 {
                    node.send(slot(&self.memory, job.size, 0), None)?;
                    started += 1;
                }
                node.poll(&node.tx, &mut entries)?
            } else {
                let count = node.poll(&node.rx, &mut entries)?;
                (0..count).try_for_each(|_| self.receive())?;
                count
            };
            finished += count as u64;
            if count == 0 {
                check(&mut since)?;
            }
        }
        if self.role == Role::Client {
            node.receive(slot(&self.memory, 0, 0), None, 0)?;
            node.wait_one(&node.rx).map(drop)
        } else {
            node.send(slot(&self.memory, 0, 0), None)?;
            node.wait_one(&node.tx).map(drop)
        }
    }
}
