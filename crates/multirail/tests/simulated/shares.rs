//! How the bytes between two agents are spread over paths: rails with a speed, a queue and jitter, in small steps of
//! virtual time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use multirail::engine::{Access, Core, OpId, PeerId, Piece, Plan, RailSpec, Refused, Sink, TransferId};
use multirail::wire::{RailInfo, RegionInfo, RegionKey};
use multirail::{Config, Outcome, Way};
use ofi::Errno;
use ofi_testkit::net::Random;

const STEP: Duration = Duration::from_micros(10);
/// The lengths of a transfer and of an access.
const LEN: u64 = 4 << 20;
const ACCESS: u64 = 256 << 10;

/// A rail of the agent that writes.
#[derive(Clone, Debug)]
pub struct Link {
    pub provider: &'static str,
    /// Bytes per second.
    pub speed: f64,
    /// What the NIC says of it.
    pub told: Option<f64>,
}

/// What the rails have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// Nothing: each rail has its speed.
    Links,
    /// A processor that drives all of them: a rail gets as much of it as it has accesses.
    Host,
}

/// The rails of one agent.
#[derive(Default)]
struct Rails {
    /// What each rail has to move, with the bytes that are left of it.
    queues: Vec<VecDeque<(OpId, f64)>>,
    sent: Vec<(OpId, Vec<u8>)>,
}

impl Sink<()> for Rails {
    fn access(&mut self, access: &Access, _: &Plan<()>, _: bool) -> Result<(), Refused> {
        self.queues[access.rail].push_back((access.op, access.len as f64));
        Ok(())
    }

    fn send(&mut self, op: OpId, _: usize, _: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
        self.sent.push((op, bytes));
        Ok(())
    }

    fn insert(&mut self, rail: usize, _: u32, _: &[u8]) -> Result<u64, Errno> {
        Ok(rail as u64)
    }

    fn remove(&mut self, _: usize, _: u64) {}
}

/// An agent that writes, and the one whose memory it writes.
pub struct Pair {
    now: Duration,
    random: Random,
    links: Vec<Link>,
    bottleneck: Bottleneck,
    cores: [Core<()>; 2],
    rails: [Rails; 2],
    /// Messages under way: when they arrive, and from which agent.
    messages: VecDeque<(Duration, usize, OpId, Vec<u8>)>,
    /// Until when a rail does nothing, because its thread does not run.
    paused: Vec<Duration>,
    peer: PeerId,
    plan: Arc<Plan<()>>,
    posted: Vec<TransferId>,
}

impl Pair {
    pub fn new(seed: u64, links: &[Link], bottleneck: Bottleneck) -> Self {
        Self::of_lengths(seed, links, bottleneck, [LEN, ACCESS])
    }

    /// A pair with transfers and accesses of these lengths.
    pub fn of_lengths(seed: u64, links: &[Link], bottleneck: Bottleneck, [len, access]: [u64; 2]) -> Self {
        let specs = |agent: u8| -> Vec<RailSpec> {
            let spec = |(nth, link): (usize, &Link)| RailSpec {
                info: RailInfo { provider: link.provider.into(), format: 0, address: vec![agent, nth as u8] },
                bandwidth: link.told,
                wide_data: true,
                severs: false,
                operations: 1024,
            };
            links.iter().enumerate().map(spec).collect()
        };
        let core = |agent: u8| {
            let mut random = Random(seed << 8 | u64::from(agent) << 1 | 1);
            let config = Config { largest_access: access, ..Config::default() };
            Core::new(["alice", "bob"][agent as usize], specs(agent), config, Box::new(move || random.bits()))
        };
        let mut cores = [core(0), core(1)];
        let keys = (0..links.len()).map(|rail| RegionKey { rail: rail as u8, key: 1, base: 0 }).collect();
        let region = RegionInfo { id: 1, len, keys, is_staged: false, export: None };
        let metadata = cores[1].metadata(vec![region]);
        let peer = cores[0].load(&metadata).unwrap();
        let (region, incarnation) = cores[0].region(peer, 1).unwrap();
        let plan = Plan {
            way: Way::Write,
            pieces: vec![Piece { region: 0, local: 0, remote_region: 0, remote: 0, len }],
            regions: vec![region],
            near: Vec::new(),
            incarnation,
            total: len,
            guard: (),
            uses: Default::default(),
        };
        let rails = || Rails { queues: vec![VecDeque::new(); links.len()], sent: Vec::new() };
        Self {
            now: Duration::ZERO,
            random: Random(seed | 1),
            links: links.to_vec(),
            bottleneck,
            cores,
            rails: [rails(), rails()],
            messages: VecDeque::new(),
            paused: vec![Duration::ZERO; links.len()],
            peer,
            plan: Arc::new(plan),
            posted: Vec::new(),
        }
    }

    pub fn set_speed(&mut self, rail: usize, speed: f64) {
        self.links[rail].speed = speed;
    }

    /// Stops a rail for some time.
    pub fn pause(&mut self, rail: usize, time: Duration) {
        self.paused[rail] = self.now + time;
    }

    /// Bytes that each path has moved.
    pub fn moved(&self) -> Vec<u64> {
        self.cores[0].paths(self.peer, self.now).iter().map(|path| path.moved).collect()
    }

    /// Writes `count` times with `depth` transfers at a time. Returns the bytes that each path has moved, and the time.
    pub fn write(&mut self, count: usize, depth: usize) -> (Vec<u64>, Duration) {
        let (before, began) = (self.moved(), self.now);
        let mut left = count;
        while left > 0 || !self.posted.is_empty() {
            while left > 0 && self.posted.len() < depth {
                let deadline = self.now + Duration::from_secs(100);
                let posted = self.cores[0].post(self.peer, Arc::clone(&self.plan), None, deadline, self.now);
                self.posted.push(posted.unwrap());
                left -= 1;
            }
            self.step();
            assert!(self.now < began + Duration::from_secs(60), "the transfers end");
            let core = &mut self.cores[0];
            self.posted.retain(|&id| match core.progress(id).unwrap().outcome {
                None => true,
                Some(outcome) => {
                    assert_eq!(outcome, Outcome::Done);
                    core.release(id);
                    false
                }
            });
        }
        let mut moved = self.moved();
        moved.iter_mut().zip(before).for_each(|(moved, before)| *moved -= before);
        (moved, self.now - began)
    }

    /// Bytes that each rail moves in a step.
    fn service(&mut self) -> Vec<f64> {
        let seconds = STEP.as_secs_f64();
        let depths: Vec<f64> = self.rails[0].queues.iter().map(|queue| queue.len() as f64).collect();
        let all: f64 = depths.iter().sum();
        let speeds = self.links.iter().map(|link| link.speed);
        let capacity = speeds.clone().sum::<f64>() / 2.0;
        let shares: Vec<f64> = match self.bottleneck {
            Bottleneck::Links => speeds.collect(),
            Bottleneck::Host => depths.iter().map(|depth| capacity * depth / all.max(1.0)).collect(),
        };
        let jitter = |share: f64| share * seconds * (0.5 + (self.random.bits() % 1000) as f64 / 1000.0);
        shares.into_iter().map(jitter).collect()
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        while let Some(&(at, from, op, _)) = self.messages.front()
            && at <= now
        {
            let (.., bytes) = self.messages.pop_front().unwrap();
            self.cores[1 - from].message(&bytes, now);
            self.cores[from].ended(op, Ok(()), now);
        }
        for (rail, mut bytes) in self.service().into_iter().enumerate() {
            if self.random.bits().is_multiple_of(4000) {
                self.paused[rail] =
                    self.paused[rail].max(now + Duration::from_micros(self.random.bits() % 6000));
            }
            if self.paused[rail] > now {
                continue;
            }
            while bytes > 0.0
                && let Some((op, left)) = self.rails[0].queues[rail].front_mut()
            {
                let part = bytes.min(*left);
                (*left, bytes) = (*left - part, bytes - part);
                if *left <= 0.0 {
                    let op = *op;
                    self.rails[0].queues[rail].pop_front();
                    self.cores[0].ended(op, Ok(()), now);
                }
            }
        }
        for agent in 0..2 {
            self.cores[agent].tick(now);
            while self.cores[agent].perform(now, &mut self.rails[agent]) {}
            for (op, bytes) in std::mem::take(&mut self.rails[agent].sent) {
                let at = now + Duration::from_micros(20);
                self.messages.push_back((at, agent, op, bytes));
            }
        }
    }
}
