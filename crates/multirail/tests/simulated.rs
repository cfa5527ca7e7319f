//! The engine in a simulated network: writes and messages in any order, rails that are cut, operations that fail although they took place, agents
//! that die and come back, transfers that are cancelled. Virtual time; nothing here waits.
//!
//! Checked throughout: no notification before its data, none twice; every transfer has one end, by its deadline; done means that the bytes are
//! at their place; when all is over, nothing is left in the tables.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use multirail::engine::{Access, Core, OpId, PeerId, Piece, Plan, RailSpec, Refused, Sink, TransferId};
use multirail::wire::{RailInfo, RegionInfo, RegionKey};
use multirail::{Config, Outcome, Way};
use ofi::Errno;
use ofi_testkit::net::Random;
use proptest::prelude::*;

const AGENTS: usize = 3;
const RAILS: usize = 3;
/// Bytes that belong to one transfer, at both ends.
const SLOT: usize = 40_000;
const SLOTS: usize = 48;
/// How long a rail takes to give an operation up.
const SILENCE: Duration = Duration::from_millis(900);

/// What may go wrong, of 1,000 each.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    /// A step cuts a rail between two agents for a while.
    cut: u32,
    /// A cut rail gives nothing back before it works again, where it otherwise reports failures: how many of the cuts.
    mute: u32,
    /// A step kills an agent, which comes back.
    kill: u32,
    /// A step cancels a transfer.
    cancel: u32,
    /// A step ends a session.
    disconnect: u32,
    /// An operation takes place and is reported as failed.
    ambiguous: u32,
    /// A rail has no room for an operation.
    full: u32,
    /// A rail refuses an operation for good.
    refused: u32,
}

const NONE: Trouble =
    Trouble { cut: 0, mute: 0, kill: 0, cancel: 0, disconnect: 0, ambiguous: 0, full: 0, refused: 0 };

enum Happening {
    /// An access takes place at its target, or does not.
    Access {
        from: usize,
        life: u32,
        access: Access,
    },
    /// A message arrives.
    Message {
        from: usize,
        life: u32,
        rail: usize,
        op: OpId,
        addr: u64,
        bytes: Vec<u8>,
    },
    Ended {
        at: usize,
        life: u32,
        op: OpId,
        result: Result<(), Errno>,
    },
    Arrived {
        at: usize,
        life: u32,
        data: u64,
    },
}

/// What rails have taken.
enum Taken {
    Send { op: OpId, rail: usize, addr: u64, bytes: Vec<u8> },
    Access(Access),
}

/// The rails of an agent, while its engine works.
struct Rails<'a> {
    random: &'a mut Random,
    trouble: Trouble,
    taken: Vec<Taken>,
}

impl Rails<'_> {
    fn refusal(&mut self) -> Result<(), Refused> {
        if self.random.chance(self.trouble.full) {
            return Err(Refused::Full);
        }
        let is_refused = self.random.chance(self.trouble.refused);
        if is_refused { Err(Refused::Failed(Errno::EHOSTUNREACH)) } else { Ok(()) }
    }
}

impl Sink<()> for Rails<'_> {
    fn access(&mut self, access: &Access, plan: &Plan<()>, _: bool) -> Result<(), Refused> {
        let is_its = |piece: &Piece| {
            (piece.local..piece.local + piece.len).contains(&access.local) && access.len <= piece.len
        };
        assert!(plan.pieces.iter().any(is_its), "an access is a part of its plan");
        self.refusal()?;
        self.taken.push(Taken::Access(*access));
        Ok(())
    }

    fn send(&mut self, op: OpId, rail: usize, addr: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
        match self.refusal() {
            Ok(()) => self.taken.push(Taken::Send { op, rail, addr, bytes }),
            Err(refused) => return Err((refused, bytes)),
        }
        Ok(())
    }

    fn insert(&mut self, _: usize, _: u32, address: &[u8]) -> Result<u64, Errno> {
        Ok(u64::from_le_bytes(address.try_into().unwrap()))
    }

    fn remove(&mut self, _: usize, _: u64) {}
}

struct Agent {
    core: Core<()>,
    life: u32,
    /// What it writes from, and reads into.
    local: Vec<u8>,
    /// What peers access.
    shared: Vec<u8>,
}

struct Posted {
    from: usize,
    life: u32,
    to: usize,
    to_life: u32,
    id: TransferId,
    way: Way,
    slot: usize,
    len: usize,
    notice: bool,
    deadline: Duration,
    ended: Option<Outcome>,
}

struct World {
    now: Duration,
    agents: Vec<Agent>,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: HashMap<u64, Happening>,
    serial: u64,
    random: Random,
    /// Until when a rail between two agents is cut, and whether it is mute.
    cuts: BTreeMap<(usize, usize, usize), (Duration, bool)>,
    posted: Vec<Posted>,
    /// How often the notification of each was handed out.
    notified: Vec<u32>,
    trouble: Trouble,
}

fn address(agent: usize, life: u32, rail: usize) -> u64 {
    (agent as u64) << 48 | u64::from(life) << 16 | rail as u64
}

fn byte(slot: usize, at: usize) -> u8 {
    (slot * 37 + at * 11 + at / 256 + 1) as u8
}

fn agent(index: usize, life: u32) -> Agent {
    let rails = (0..RAILS).map(|rail| RailSpec {
        info: RailInfo {
            provider: "sim".into(),
            format: 0,
            address: address(index, life, rail).to_le_bytes().to_vec(),
        },
        bandwidth: Some(1e9 * (rail + 1) as f64),
        wide_data: true,
    });
    let mut random = Random((index as u64) << 32 | u64::from(life) | 0x5EED_0000);
    let config = Config {
        striping_threshold: 8192,
        smallest_chunk: 2048,
        largest_access: 16_384,
        connect_timeout: Duration::from_secs(3),
        greeting_interval: Duration::from_millis(100),
        ..Config::default()
    };
    let core = Core::new(&format!("agent-{index}"), rails.collect(), config, Box::new(move || random.bits()));
    let local = (0..SLOTS).flat_map(|slot| (0..SLOT).map(move |at| byte(slot, at))).collect();
    Agent { core, life, local, shared: vec![0; SLOT * SLOTS] }
}

impl World {
    fn new(seed: u64, trouble: Trouble) -> Self {
        let agents = (0..AGENTS).map(|index| agent(index, 1)).collect();
        let mut world = Self {
            now: Duration::ZERO,
            agents,
            queue: BinaryHeap::new(),
            happenings: HashMap::new(),
            serial: 0,
            random: Random(seed | 1),
            cuts: BTreeMap::new(),
            posted: Vec::new(),
            notified: vec![0; SLOTS],
            trouble,
        };
        for index in 0..AGENTS {
            world.publish(index);
        }
        world
    }

    /// Hands the metadata of an agent to the others, out of band.
    fn publish(&mut self, index: usize) {
        let life = self.agents[index].life;
        let keys = (0..RAILS).map(|rail| RegionKey { rail: rail as u8, key: u64::from(life), base: 1 << 20 });
        let region = RegionInfo { id: 1, len: (SLOT * SLOTS) as u64, keys: keys.collect() };
        let metadata = self.agents[index].core.metadata(vec![region]);
        for (other, agent) in self.agents.iter_mut().enumerate() {
            if other != index {
                agent.core.load(&metadata).unwrap();
            }
        }
    }

    fn schedule(&mut self, after: Duration, happening: Happening) {
        self.serial += 1;
        self.queue.push(Reverse((self.now + after, self.serial)));
        self.happenings.insert(self.serial, happening);
    }

    fn delay(&mut self) -> Duration {
        let long = if self.random.chance(20) { 20_000 } else { 300 };
        Duration::from_micros(5 + self.random.bits() % long)
    }

    /// Whether something gets from an agent's rail to an address now.
    fn target(&self, from: usize, rail: usize, addr: u64) -> Option<usize> {
        let (to, life) = ((addr >> 48) as usize, (addr >> 16) as u32);
        (self.agents[to].life == life && self.cut(from, rail, addr).is_none()).then_some(to)
    }

    /// Until when the rail to an address is cut, and whether it is mute.
    fn cut(&self, from: usize, rail: usize, addr: u64) -> Option<(Duration, bool)> {
        let to = (addr >> 48) as usize;
        self.cuts.get(&(from.min(to), from.max(to), rail)).copied().filter(|&(until, _)| until > self.now)
    }

    /// Whether what a rail has taken stays on it: it is sent again and again, until the rail works or its target is gone.
    fn is_kept(&self, from: usize, rail: usize, addr: u64) -> Option<Duration> {
        let (to, life) = ((addr >> 48) as usize, (addr >> 16) as u32);
        let (until, is_mute) = self.cut(from, rail, addr)?;
        (is_mute && self.agents[to].life == life).then(|| until - self.now)
    }

    fn pump(&mut self) {
        for index in 0..AGENTS {
            let agent = &mut self.agents[index];
            agent.core.tick(self.now);
            let mut rails = Rails { random: &mut self.random, trouble: self.trouble, taken: Vec::new() };
            while agent.core.perform(self.now, &mut rails) {}
            let (life, taken) = (agent.life, rails.taken);
            for taken in taken {
                let delay = self.delay();
                let happening = match taken {
                    Taken::Send { op, rail, addr, bytes } => {
                        Happening::Message { from: index, life, rail, op, addr, bytes }
                    }
                    Taken::Access(access) => Happening::Access { from: index, life, access },
                };
                self.schedule(delay, happening);
            }
            self.check(index);
        }
    }

    /// Outcomes and notifications of an agent, as they are now.
    fn check(&mut self, index: usize) {
        while let Some(notification) = self.agents[index].core.take_notification() {
            let at: usize = std::str::from_utf8(&notification.bytes[..8]).unwrap().trim().parse().unwrap();
            assert!(notification.bytes.len() == 8 || notification.bytes.len() == 20_000);
            let posted = &self.posted[at];
            self.notified[posted.slot] += 1;
            assert_eq!(self.notified[posted.slot], 1, "a notification is handed out once");
            assert_eq!(&*notification.peer, format!("agent-{}", posted.from));
            if posted.way == Way::Write {
                self.assert_written(posted, "a notification comes after its data");
            }
        }
        for at in 0..self.posted.len() {
            let posted = &self.posted[at];
            if posted.from != index || posted.ended.is_some() || posted.life != self.agents[index].life {
                continue;
            }
            let progress =
                self.agents[index].core.progress(posted.id).expect("a transfer that was not released");
            let Some(outcome) = progress.outcome else {
                assert!(self.now <= posted.deadline, "a transfer has its end by its deadline");
                continue;
            };
            if outcome == Outcome::Done {
                assert_eq!(progress.moved, posted.len as u64);
                match posted.way {
                    Way::Write => self.assert_written(posted, "done means written"),
                    Way::Read => {
                        let range = posted.slot * SLOT..posted.slot * SLOT + posted.len;
                        let read = &self.agents[index].local[range];
                        assert!(read.iter().all(|&byte| byte == 0xEE), "done means read");
                    }
                }
            }
            self.posted[at].ended = Some(outcome);
        }
    }

    fn assert_written(&self, posted: &Posted, why: &str) {
        if self.agents[posted.to].life != posted.to_life {
            return; // its memory is gone
        }
        let range = posted.slot * SLOT..posted.slot * SLOT + posted.len;
        let shared = &self.agents[posted.to].shared[range];
        assert!(shared.iter().enumerate().all(|(at, &found)| found == byte(posted.slot, at)), "{why}");
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Ended { at, life, op, result } => {
                if self.agents[at].life == life {
                    self.agents[at].core.ended(op, result, self.now);
                }
            }
            Happening::Arrived { at, life, data } => {
                if self.agents[at].life == life {
                    self.agents[at].core.arrived(data);
                }
            }
            Happening::Message { from, life, rail, op, addr, bytes } => {
                if let Some(left) = self.is_kept(from, rail, addr) {
                    let again = Happening::Message { from, life, rail, op, addr, bytes };
                    return self.schedule(left, again);
                }
                let target = self.target(from, rail, addr);
                if let Some(to) = target {
                    self.agents[to].core.message(&bytes, self.now);
                }
                self.answer(from, life, op, target.is_some());
            }
            Happening::Access { from, life, access } => {
                if self.agents[from].life != life {
                    return; // it died with its sender
                }
                if let Some(left) = self.is_kept(from, access.rail, access.addr) {
                    return self.schedule(left, Happening::Access { from, life, access });
                }
                let target = self.target(from, access.rail, access.addr);
                if let Some(to) = target {
                    if access.key != u64::from(self.agents[to].life) {
                        let result = Err(Errno::EACCES);
                        return self.schedule(
                            Duration::from_micros(9),
                            Happening::Ended { at: from, life, op: access.op, result },
                        );
                    }
                    self.execute(from, to, &access);
                }
                self.answer(from, life, access.op, target.is_some());
            }
        }
    }

    fn execute(&mut self, from: usize, to: usize, access: &Access) {
        let (at, remote, len) =
            (access.local as usize, (access.remote - (1 << 20)) as usize, access.len as usize);
        match access.way {
            Way::Write => {
                let bytes = self.agents[from].local[at..at + len].to_vec();
                self.agents[to].shared[remote..remote + len].copy_from_slice(&bytes);
                if let Some(data) = access.data {
                    let (delay, life) = (self.delay(), self.agents[to].life);
                    self.schedule(delay, Happening::Arrived { at: to, life, data });
                }
            }
            Way::Read => self.agents[from].local[at..at + len].fill(0xEE),
        }
    }

    fn answer(&mut self, at: usize, life: u32, op: OpId, took_place: bool) {
        let is_lost = !took_place || self.random.chance(self.trouble.ambiguous);
        let (after, result) = if is_lost { (SILENCE, Err(Errno::ETIMEDOUT)) } else { (self.delay(), Ok(())) };
        self.schedule(after, Happening::Ended { at, life, op, result });
    }

    /// Runs until nothing happens before `until`.
    fn run(&mut self, until: Duration) {
        loop {
            self.pump();
            let timers = self.agents.iter().filter_map(|agent| agent.core.next_timeout()).min();
            let event = self.queue.peek().map(|Reverse((at, _))| *at);
            // A driver asks full rails again and again.
            let is_stalled = self.agents.iter().any(|agent| agent.core.is_stalled());
            let again = is_stalled.then(|| self.now + Duration::from_micros(10));
            let Some(next) = timers.into_iter().chain(event).chain(again).min().filter(|&next| next <= until)
            else {
                self.now = until;
                return self.pump();
            };
            self.now = self.now.max(next);
            while let Some(&Reverse((at, serial))) = self.queue.peek()
                && at <= self.now
            {
                self.queue.pop();
                let happening = self.happenings.remove(&serial).unwrap();
                self.happen(happening);
            }
        }
    }

    fn post(&mut self) {
        let patience = Duration::from_millis(500 + self.random.bits() % 8000);
        self.post_for(patience);
    }

    fn post_for(&mut self, patience: Duration) {
        let slot = self.posted.len();
        let from = self.random.bits() as usize % AGENTS;
        let to = (from + 1 + self.random.bits() as usize % (AGENTS - 1)) % AGENTS;
        let way = if self.random.chance(300) { Way::Read } else { Way::Write };
        let len = if self.random.chance(100) { 0 } else { 1 + self.random.bits() as usize % SLOT };
        let peer: PeerId = self.agents[from].core.find(&format!("agent-{to}")).unwrap();
        let Some((region, incarnation)) = self.agents[from].core.region(peer, 1) else {
            return; // it has said hello with a new incarnation, and its metadata has not come
        };
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < len {
            let most = if self.random.chance(500) { 600 } else { SLOT };
            let size = (1 + self.random.bits() as usize % most).min(len - at);
            let place = (slot * SLOT + at) as u64;
            pieces.push(Piece { region: 0, local: place, remote_region: 0, remote: place, len: size as u64 });
            at += size;
        }
        let plan = Plan { way, pieces, regions: vec![region], incarnation, total: len as u64, guard: () };
        let notice = len == 0 || self.random.chance(700);
        let size = if self.random.chance(100) { 20_000 } else { 8 };
        let bytes = format!("{slot:8}{}", " ".repeat(size - 8)).into_bytes();
        let deadline = self.now + patience;
        let core = &mut self.agents[from].core;
        let posted = core.post(peer, Arc::new(plan), notice.then_some(bytes), deadline, self.now);
        let id = posted.expect("a plan of this incarnation");
        let (life, to_life) = (self.agents[from].life, region_life(&self.agents[from].core, peer));
        self.posted.push(Posted {
            from,
            life,
            to,
            to_life,
            id,
            way,
            slot,
            len,
            notice,
            deadline,
            ended: None,
        });
    }

    fn step(&mut self) {
        let trouble = self.trouble;
        let random = &mut self.random;
        let (a, b, rail) = (
            random.bits() as usize % AGENTS,
            random.bits() as usize % AGENTS,
            random.bits() as usize % RAILS,
        );
        if random.chance(trouble.cut) && a != b {
            let until = self.now + Duration::from_millis(random.bits() % 3000);
            let is_mute = random.chance(trouble.mute);
            self.cuts.insert((a.min(b), a.max(b), rail), (until, is_mute));
        }
        if self.random.chance(trouble.kill) {
            let life = self.agents[a].life + 1;
            self.agents[a] = agent(a, life);
            for posted in self.posted.iter_mut().filter(|posted| posted.from == a && posted.ended.is_none()) {
                posted.ended = Some(Outcome::Cancelled); // with its process
            }
            // What it knows of the others is handed to it again, and theirs of it after some steps.
            for other in (0..AGENTS).filter(|&other| other != a) {
                self.publish(other);
            }
            let published = self.random.chance(500);
            if published {
                self.publish(a);
            }
        }
        if self.random.chance(trouble.cancel)
            && let Some(posted) = self.posted.last()
            && posted.life == self.agents[posted.from].life
        {
            self.agents[posted.from].core.cancel(posted.id);
        }
        if self.random.chance(trouble.disconnect) && a != b {
            let peer = self.agents[a].core.find(&format!("agent-{b}")).unwrap();
            self.agents[a].core.disconnect(peer, self.now);
        }
    }
}

/// The life of the peer that the agent's metadata is of: the key.
fn region_life(core: &Core<()>, peer: PeerId) -> u32 {
    core.region(peer, 1).map_or(0, |(region, _)| region.keys[0].key as u32)
}

fn live(seed: u64, trouble: Trouble) -> World {
    let mut world = World::new(seed, trouble);
    while world.posted.len() < SLOTS {
        let before = world.posted.len();
        world.post();
        let is_stuck = world.posted.len() == before;
        world.step();
        let pause =
            Duration::from_micros(world.random.bits() % if world.random.chance(100) { 400_000 } else { 500 });
        let until = world.now + pause;
        world.run(until);
        if is_stuck {
            for index in 0..AGENTS {
                world.publish(index);
            }
        }
    }
    world.run(world.now + Duration::from_secs(20));
    for posted in &world.posted {
        assert!(posted.ended.is_some(), "every transfer has an end");
        let agent = &mut world.agents[posted.from];
        if agent.life == posted.life {
            assert!(agent.core.progress(posted.id).unwrap().is_quiet);
            agent.core.release(posted.id);
        }
    }
    world.run(world.now + Duration::from_secs(5));
    for agent in &world.agents {
        let (operations, transfers, sessions) = agent.core.kept();
        assert_eq!((operations, transfers), (0, 0), "nothing is left");
        assert!(sessions <= 2 * AGENTS, "{sessions} sessions");
    }
    world
}

/// Cases of each property, of 48 transfers each: `OFI_RAILS_CASES` for more.
fn cases() -> u32 {
    let wanted = std::env::var("OFI_RAILS_CASES").ok();
    wanted.map_or(48, |cases| cases.parse().expect("OFI_RAILS_CASES is a number of cases"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn without_trouble_all_is_done_and_told(seed in any::<u64>()) {
        let world = live(seed, NONE);
        for posted in &world.posted {
            prop_assert_eq!(posted.ended, Some(Outcome::Done));
            prop_assert_eq!(world.notified[posted.slot], u32::from(posted.notice));
        }
        for agent in &world.agents {
            let counts = agent.core.counts();
            prop_assert_eq!((counts.malformed, counts.refused, counts.stale, counts.moved), (0, 0, 0, 0));
        }
    }

    /// Rails that have no room take what they were offered later: nothing is lost, and nothing comes twice.
    #[test]
    fn full_rails_delay_and_lose_nothing(seed in any::<u64>(), full in 1..800_u32) {
        let world = live(seed, Trouble { full, ..NONE });
        for posted in &world.posted {
            prop_assert_eq!(posted.ended, Some(Outcome::Done));
            prop_assert_eq!(world.notified[posted.slot], u32::from(posted.notice));
        }
    }

    #[test]
    fn with_one_rail_cut_at_a_time_all_is_done(seed in any::<u64>(), rail in 0..RAILS) {
        let mut world = World::new(seed, NONE);
        for round in 0..SLOTS {
            world.post();
            if round % 8 == 4 {
                for (a, b) in [(0, 1), (0, 2), (1, 2)] {
                    world.cuts.insert((a, b, rail), (world.now + Duration::from_millis(400), false));
                }
            }
            world.run(world.now + Duration::from_millis(150));
        }
        world.run(world.now + Duration::from_secs(20));
        for posted in &world.posted {
            let is_late = posted.ended == Some(Outcome::Failed(Errno::ETIMEDOUT));
            prop_assert!(is_late || posted.ended == Some(Outcome::Done), "{:?}", posted.ended);
        }
    }

    /// A rail goes silent for ever: nothing that it took comes back. Acknowledgements and notifications go by another, and
    /// transfers with a part on it end long before their deadlines.
    #[test]
    fn a_mute_rail_costs_seconds_not_deadlines(seed in any::<u64>(), rail in 0..RAILS, burst in 1..6_usize) {
        let mut world = World::new(seed, NONE);
        let mut cut = Duration::MAX;
        while world.posted.len() < SLOTS {
            if world.posted.len() > SLOTS / 3 && cut == Duration::MAX {
                cut = world.now;
                for (a, b) in [(0, 1), (0, 2), (1, 2)] {
                    world.cuts.insert((a, b, rail), (Duration::from_secs(100_000), true));
                }
            }
            for _ in 0..burst.min(SLOTS - world.posted.len()) {
                world.post_for(Duration::from_secs(1000));
            }
            let until = world.now + Duration::from_millis(30);
            world.run(until);
        }
        let last = world.now;
        world.run(last + Duration::from_secs(30));
        let mut done = 0;
        for posted in &world.posted {
            let is_late = posted.ended == Some(Outcome::Failed(Errno::ETIMEDOUT));
            prop_assert!(is_late || posted.ended == Some(Outcome::Done), "{:?}, 970 s before its deadline", posted.ended);
            done += usize::from(!is_late);
        }
        prop_assert!(done > SLOTS / 2, "{done} of {SLOTS} are done");
        let fenced: u64 = world.agents.iter().map(|agent| agent.core.counts().fenced).sum();
        prop_assert!(done == SLOTS || fenced > 0);
    }

    #[test]
    fn whatever_happens_each_transfer_has_one_end_and_nothing_is_left(
        seed in any::<u64>(),
        cut in 0..100_u32,
        mute in prop::sample::select(vec![0, 500, 1000_u32]),
        kill in 0..60_u32,
        cancel in 0..200_u32,
        disconnect in 0..60_u32,
        ambiguous in 0..50_u32,
        full in prop::sample::select(vec![0, 50, 500_u32]),
        refused in prop::sample::select(vec![0, 20_u32]),
    ) {
        live(seed, Trouble { cut, mute, kill, cancel, disconnect, ambiguous, full, refused });
    }
}
