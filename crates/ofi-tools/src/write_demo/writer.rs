//! The writer: waits for readers, and writes the pages that they request.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use ofi::{Completion, CompletionFlags, FiAddr, Node, RemoteWindow};

use super::figures::Figures;
use super::job::Job;
use super::message::{Fill, MAX_MESSAGE_LEN, Message};
use super::nics;
use super::options::{Counters, Options, Writing};
use super::steps::{Steps, Who, indices};
use super::threads::{self, Idle};
use crate::failure::{Failure, Result};
use crate::output;

/// Posted receives per NIC.
const RECEIVES: usize = 4;
/// Maximum readers that one NIC remembers, and maximum waiting requests.
const READERS: usize = 1024;

/// A number in a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// One NIC.
struct Station<'a> {
    node: Node,
    steps: Steps,
    who: Who,
    writing: &'a Writing,
    readers: HashMap<FiAddr, Vec<RemoteWindow>>,
    latest: Option<FiAddr>,
    waiting: VecDeque<(FiAddr, Fill)>,
    job: Option<Job>,
    served: u64,
}

/// Serves readers.
///
/// # Errors
/// The error of opening, of a write or of the display. An invalid message of a reader only ends its request.
pub fn run(options: &Options, steps: Steps) -> Result<()> {
    let nodes = nics::open(&options.provider, options.nics, steps)?;
    output::print(&format!("{}\n", nics::addresses(&nodes)?))?;
    let counts: Vec<Count> = (0..options.threads).map(|_| Count::default()).collect();
    let counts = &counts;
    let all = threads::share_out(options, nodes, |thread, nodes| {
        let count = match options.writing.counters {
            Counters::Own => &counts[thread],
            Counters::Shared => &counts[0],
        };
        // In the order of `share_out`.
        let threads = options.threads.min(options.nics) as usize;
        let stations = nodes.into_iter().enumerate().map(|(nth, node)| {
            let who = Who { role: "writer", nic: thread + nth * threads };
            Station::new(node, &options.writing, steps, who)
        });
        serve(stations.collect::<Result<_>>()?, &count.0)
    })?;
    let mut figures = Figures::default();
    all.into_iter().for_each(|part| figures.merge(part));
    let written: u64 = counts.iter().map(|count| count.0.load(Ordering::Relaxed)).sum();
    if written != figures.writes() {
        return Err(Failure::Data(format!("{written} writes were counted, {} were made", figures.writes())));
    }
    figures.print(options.json)
}

/// Serves the readers of some NICs until each NIC has served the configured number of requests.
fn serve(mut stations: Vec<Station<'_>>, count: &AtomicU64) -> Result<Figures> {
    let mut figures = Figures::default();
    let mut idle = Idle::napping();
    while !stations.iter().all(Station::has_finished) {
        let mut busy = false;
        for station in &mut stations {
            busy |= station.step(count, &mut figures)?;
        }
        idle.after(busy);
    }
    Ok(figures)
}

impl<'a> Station<'a> {
    fn new(node: Node, writing: &'a Writing, steps: Steps, who: Who) -> Result<Self> {
        for _ in 0..RECEIVES {
            receive(&node, vec![0; MAX_MESSAGE_LEN])?;
        }
        steps.step(who, || {
            format!("posted {RECEIVES} receives of {MAX_MESSAGE_LEN} bytes, and waits for readers")
        });
        let (readers, waiting) = (HashMap::new(), VecDeque::new());
        Ok(Self { node, steps, who, writing, readers, latest: None, waiting, job: None, served: 0 })
    }

    fn has_finished(&self) -> bool {
        self.writing.requests.is_some_and(|requests| self.served >= requests) && self.job.is_none()
    }

    /// Posts, polls once, and manages requests. Returns whether anything happened.
    fn step(&mut self, count: &AtomicU64, figures: &mut Figures) -> Result<bool> {
        let mut busy = false;
        if let Some(job) = self.job.as_mut().filter(|_| !self.writing.lazy) {
            busy |= job.post(&self.node, self.writing)? > 0;
        }
        while let Some(completion) = self.node.poll().map_err(Failure::stack("reading the queue"))? {
            busy = true;
            self.take(completion, count)?;
        }
        if let Some(job) = self.job.as_mut().filter(|_| self.writing.lazy) {
            busy |= job.post(&self.node, self.writing)? > 0;
        }
        if let Some(served) = self.job.as_mut().and_then(Job::served) {
            self.steps.step(self.who, || {
                let time = served.span.map_or(0.0, |(from, to)| (to - from).as_secs_f64());
                format!("served a request: {} writes, {} bytes in {time:.6} s", served.writes, served.bytes)
            });
            figures.add(served);
            self.job = None;
            self.served += 1;
        }
        if self.job.is_none()
            && let Some((peer, request)) = self.waiting.pop_front()
        {
            self.begin(peer, request);
        }
        Ok(busy)
    }

    /// Begins a request, unless it is invalid.
    fn begin(&mut self, peer: FiAddr, request: Fill) {
        let regions = self.readers.get(&peer).cloned().unwrap_or_default();
        self.steps.step(self.who, || {
            let Fill { seed, page_size, pages, rounds, arrival, .. } = &request;
            format!(
                "begins a request of peer {peer:?}: seed {seed:#x}, rounds {rounds}, arrival {arrival:?}, pages of \
                 {page_size} bytes in each of {} regions: {}",
                regions.len(),
                indices(pages)
            )
        });
        match Job::new(&self.node, peer, regions, request, self.writing.warm_up, (self.steps, self.who)) {
            Ok(job) => self.job = Some(job),
            Err(why) => output::tell(&format!("fi_write_demo: refused a request: {why}")),
        }
    }

    fn take(&mut self, mut completion: Completion, count: &AtomicU64) -> Result<()> {
        if completion.flags.contains(CompletionFlags::RECV) {
            let heard = completion.result.clone().map_err(|error| Failure::stack("receiving")(error.into()));
            let heard = heard.and_then(|()| self.hear(completion.bytes(), completion.source));
            if let Err(why) = heard {
                output::tell(&format!("fi_write_demo: dropped a message: {why}"));
            }
            let buffer = completion.take_buffer().unwrap_or_else(|| vec![0; MAX_MESSAGE_LEN]);
            return receive(&self.node, buffer);
        }
        let Some(job) = self.job.as_mut() else { return Ok(()) };
        match job.complete(completion) {
            Ok(timed) => {
                count.fetch_add(u64::from(timed), Ordering::Relaxed);
                Ok(())
            }
            // Its reader is gone or gave a wrong key: other readers are not affected.
            Err(why) => {
                output::tell(&format!("fi_write_demo: a request ended early: {why}"));
                self.readers.remove(&job.peer());
                self.job = None;
                self.served += 1;
                Ok(())
            }
        }
    }

    fn hear(&mut self, bytes: &[u8], source: Option<FiAddr>) -> Result<()> {
        match Message::parse(bytes)? {
            Message::Connect(connect) => {
                if self.readers.len() >= READERS {
                    return Err(Failure::Peer(format!("more than {READERS} readers")));
                }
                let address = nics::introduced(&self.node, &connect.address)?;
                let peer = self.node.insert(&address).map_err(Failure::stack("a reader's address"))?;
                self.steps.step(self.who, || {
                    let region =
                        |at: &RemoteWindow| format!("{} bytes at {:#x}, key {:#x}", at.len, at.base, at.key);
                    let regions: Vec<_> = connect.regions.iter().map(region).collect();
                    format!(
                        "a reader has connected: {address} is peer {peer:?}; regions: {}",
                        regions.join("; ")
                    )
                });
                self.readers.insert(peer, connect.regions);
                self.latest = Some(peer);
                Ok(())
            }
            Message::Fill(request) => {
                let known = source.filter(|source| self.readers.contains_key(source));
                let peer = known.or(self.latest);
                let peer = peer.ok_or_else(|| Failure::Peer("a request before any address".to_string()))?;
                if self.waiting.len() >= READERS {
                    return Err(Failure::Peer(format!("more than {READERS} requests that wait")));
                }
                self.waiting.push_back((peer, request));
                Ok(())
            }
        }
    }
}

fn receive(node: &Node, buffer: Vec<u8>) -> Result<()> {
    node.recv(buffer).map(drop).map_err(|rejected| Failure::stack("posting a receive")(rejected.error))
}
