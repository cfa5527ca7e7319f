//! Agents, the network between them, and its clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::time::Duration;

use multirail::engine::{Access, Core, OpId, RailSpec, TransferId};
use multirail::wire::{RailInfo, RegionInfo, RegionKey};
use multirail::{Config, Outcome, Way};
use ofi::Errno;
use ofi_testkit::net::Random;

use super::rails::{BASE, Leases, Rails, Taken, Trouble};

pub const AGENTS: usize = 3;
pub const RAILS: usize = 3;
/// Rails of an agent with those that are opened later.
pub const NUMBERS: usize = 5;
/// Bytes that belong to one transfer, at both ends.
pub const SLOT: usize = 40_000;
pub const SLOTS: usize = 48;
/// The first kind of message that older versions do not know.
const ABLE: u8 = 10;
/// The question whether an agent takes later rails.
const OFFER: u8 = 18;
/// Time that a rail takes to abandon an operation.
pub const SILENCE: Duration = Duration::from_millis(900);

/// What happens to a rail that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It reports failures.
    Broken,
    /// Nothing arrives and nothing is reported until it works again.
    Mute,
    /// Everything arrives, and nothing is reported until it works again.
    Unanswered,
}

pub enum Happening {
    /// An access takes place at its target, or fails.
    Access {
        from: usize,
        life: u32,
        access: Access,
    },
    /// A write that was reported as failed arrives.
    Late {
        from: usize,
        access: Access,
        bytes: Vec<u8>,
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
    /// The answer to an operation arrives.
    Answer {
        from: usize,
        life: u32,
        rail: usize,
        addr: u64,
        op: OpId,
        result: Result<(), Errno>,
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

pub struct Agent {
    pub core: Core<()>,
    pub life: u32,
    /// The memory that the agent writes from, and reads into.
    pub local: Vec<u8>,
    /// The memory that peers access.
    pub shared: Vec<u8>,
    /// Lengths of the accesses that its rails took, by rail.
    pub accesses: [Vec<u64>; NUMBERS],
    /// Rails whose devices are gone, a bit each.
    pub lost: u64,
    pub in_flight: HashSet<OpId>,
    pub leases: Leases,
    pub next_key: u64,
    /// The rails on which peers get keys of the shared memory, a bit each.
    pub keyed: u64,
    /// The rails near the local memory, likewise.
    pub near: u64,
    /// Accesses that were given up, with what a write was to write.
    pub abandoned: HashMap<OpId, Vec<u8>>,
    /// It knows no leases, as older versions.
    pub is_old: bool,
}

pub struct Posted {
    pub from: usize,
    pub life: u32,
    pub to: usize,
    pub to_life: u32,
    pub id: TransferId,
    pub way: Way,
    pub slot: usize,
    pub len: usize,
    pub notice: bool,
    pub deadline: Duration,
    pub ended: Option<Outcome>,
}

pub struct World {
    pub now: Duration,
    pub agents: Vec<Agent>,
    pub queue: BinaryHeap<Reverse<(Duration, u64)>>,
    pub happenings: HashMap<u64, Happening>,
    pub serial: u64,
    pub random: Random,
    /// Until when a rail between two agents is cut, and how.
    pub cuts: BTreeMap<(usize, usize, usize), (Duration, Cut)>,
    pub posted: Vec<Posted>,
    /// Times that each transfer's notification was delivered.
    pub notified: Vec<u32>,
    /// Programs change memory as soon as it is theirs again.
    pub scribbles: bool,
    /// Whether the memory of a transfer was changed since: its target.
    pub scribbled: Vec<bool>,
    pub trouble: Trouble,
    /// Messages about later rails, beyond the question, to agents of older versions.
    pub late_kinds: usize,
    /// The only rail with late writes; `None` for all.
    pub late_rail: Option<usize>,
}

pub fn address(agent: usize, life: u32, rail: usize) -> u64 {
    (agent as u64) << 48 | u64::from(life) << 16 | rail as u64
}

pub fn byte(slot: usize, at: usize) -> u8 {
    (slot * 37 + at * 11 + at / 256 + 1) as u8
}

fn spec(index: usize, life: u32, rail: usize) -> RailSpec {
    RailSpec {
        info: RailInfo {
            provider: "sim".into(),
            format: 0,
            address: address(index, life, rail).to_le_bytes().to_vec(),
        },
        bandwidth: Some(1e9 * (rail + 1) as f64),
        wide_data: true,
        severs: false,
        operations: 1024,
    }
}

pub fn agent(index: usize, life: u32) -> Agent {
    agent_with(index, life, RAILS)
}

/// An agent of which this many rails have opened.
fn agent_with(index: usize, life: u32, opened: usize) -> Agent {
    let rails = (0..opened).map(|rail| spec(index, life, rail));
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
    Agent {
        core,
        life,
        local,
        shared: vec![0; SLOT * SLOTS],
        accesses: Default::default(),
        lost: 0,
        in_flight: HashSet::new(),
        leases: Leases::new(),
        next_key: u64::from(life) << 32,
        keyed: u64::MAX,
        near: u64::MAX,
        abandoned: HashMap::new(),
        is_old: false,
    }
}

impl World {
    pub fn new(seed: u64, trouble: Trouble) -> Self {
        Self::with(seed, trouble, RAILS)
    }

    /// Agents of which this many rails have opened.
    pub fn with(seed: u64, trouble: Trouble, opened: usize) -> Self {
        let agents = (0..AGENTS).map(|index| agent_with(index, 1, opened)).collect();
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
            scribbles: false,
            scribbled: vec![false; SLOTS],
            trouble,
            late_kinds: 0,
            late_rail: None,
        };
        for index in 0..AGENTS {
            world.publish(index);
        }
        world
    }

    /// Hands the metadata of an agent to the others, out of band.
    pub fn publish(&mut self, index: usize) {
        let life = self.agents[index].life;
        let keyed = self.agents[index].keyed;
        let opened = self.agents[index].core.metadata(Vec::new()).rails.len();
        let keys = (0..opened).filter(|rail| keyed >> rail & 1 == 1);
        let keys = keys.map(|rail| RegionKey { rail: rail as u8, key: u64::from(life), base: BASE });
        let region = RegionInfo {
            id: 1,
            len: (SLOT * SLOTS) as u64,
            keys: keys.collect(),
            is_staged: false,
            export: None,
        };
        let metadata = self.agents[index].core.metadata(vec![region]);
        for (other, agent) in self.agents.iter_mut().enumerate() {
            if other != index {
                agent.core.load(&metadata).unwrap();
            }
        }
    }

    /// Hands out the metadata of an agent to others that know nothing of it.
    pub fn forget_and_publish(&mut self, index: usize) {
        for (other, agent) in self.agents.iter_mut().enumerate() {
            if other != index
                && let Some(peer) = agent.core.find(&format!("agent-{index}"))
            {
                agent.core.forget(peer, self.now);
            }
        }
        self.publish(index);
    }

    /// A rail of an agent is opened, in the place of this one.
    pub fn open_rail(&mut self, index: usize, instead: Option<usize>) -> usize {
        let agent = &mut self.agents[index];
        let number = agent.core.metadata(Vec::new()).rails.len();
        let added = agent.core.add_rail(spec(index, agent.life, number), instead, self.now);
        assert_eq!(added, Some(number));
        number
    }

    /// The device of an agent's rail is gone: what is under way on it ends with an error.
    pub fn lose_rail(&mut self, index: usize, rail: usize) {
        self.agents[index].lost |= 1 << rail;
        self.agents[index].core.lose_rail(rail, self.now);
        let is_its = |happening: &Happening| match happening {
            Happening::Access { from, access, .. } => (*from, access.rail) == (index, rail),
            Happening::Message { from, rail: of, .. } | Happening::Answer { from, rail: of, .. } => {
                (*from, *of) == (index, rail)
            }
            _ => false,
        };
        let its: Vec<u64> =
            self.happenings.iter().filter(|(_, it)| is_its(it)).map(|(&serial, _)| serial).collect();
        for serial in its {
            let happening = self.happenings.get_mut(&serial).unwrap();
            let (life, op) = match *happening {
                Happening::Access { life, access, .. } => (life, access.op),
                Happening::Message { life, op, .. } | Happening::Answer { life, op, .. } => (life, op),
                _ => continue,
            };
            self.agents[index].in_flight.remove(&op);
            *happening = Happening::Ended { at: index, life, op, result: Err(Errno::ENODEV) };
        }
    }

    pub fn schedule(&mut self, after: Duration, happening: Happening) {
        self.serial += 1;
        self.queue.push(Reverse((self.now + after, self.serial)));
        self.happenings.insert(self.serial, happening);
    }

    /// All rails work again at once: what they held arrives now, in any order.
    pub fn mend(&mut self) {
        self.cuts.clear();
        let (held, other): (Vec<_>, Vec<_>) =
            self.queue.drain().partition(|&Reverse((at, _))| at > self.now + Duration::from_secs(1));
        self.queue.extend(other);
        for Reverse((_, serial)) in held {
            let after = Duration::from_micros(self.random.bits() % 600);
            self.queue.push(Reverse((self.now + after, serial)));
        }
    }

    pub fn delay(&mut self) -> Duration {
        let long = if self.random.chance(20) { 20_000 } else { 300 };
        Duration::from_micros(5 + self.random.bits() % long)
    }

    /// The target of an agent's rail at an address, if it is reachable now.
    pub fn target(&self, from: usize, rail: usize, addr: u64) -> Option<usize> {
        let (to, life) = ((addr >> 48) as usize, (addr >> 16) as u32);
        let is_cut = self.cut(from, rail, addr).is_some_and(|(_, cut)| cut != Cut::Unanswered);
        let is_lost = self.agents[to].lost >> (addr & 0xFF) & 1 == 1;
        (self.agents[to].life == life && !is_cut && !is_lost).then_some(to)
    }

    /// Until when the rail to an address is cut, and how.
    pub fn cut(&self, from: usize, rail: usize, addr: u64) -> Option<(Duration, Cut)> {
        let to = (addr >> 48) as usize;
        self.cuts.get(&(from.min(to), from.max(to), rail)).copied().filter(|&(until, _)| until > self.now)
    }

    /// The remaining time for which a mute rail keeps its operations: it sends them again and again, until it works or
    /// their target is gone.
    pub fn is_kept(&self, from: usize, rail: usize, addr: u64) -> Option<Duration> {
        let (to, life) = ((addr >> 48) as usize, (addr >> 16) as u32);
        let (until, cut) = self.cut(from, rail, addr)?;
        (cut == Cut::Mute && self.agents[to].life == life).then(|| until - self.now)
    }

    pub fn pump(&mut self) {
        for index in 0..AGENTS {
            let agent = &mut self.agents[index];
            agent.core.tick(self.now);
            let mut rails = Rails {
                random: &mut self.random,
                trouble: self.trouble,
                taken: Vec::new(),
                in_flight: &mut agent.in_flight,
                abandoned: Vec::new(),
                leases: &mut agent.leases,
                next_key: &mut agent.next_key,
                life: u64::from(agent.life),
                lost: agent.lost,
                keyed: &mut agent.keyed,
            };
            while agent.core.perform(self.now, &mut rails) {}
            let (life, taken, abandoned) = (agent.life, rails.taken, rails.abandoned);
            for taken in taken {
                let delay = self.delay();
                let happening = match taken {
                    Taken::Send { op, rail, addr, bytes } => {
                        Happening::Message { from: index, life, rail, op, addr, bytes }
                    }
                    Taken::Access(access) => {
                        self.agents[index].accesses[access.rail].push(access.len);
                        Happening::Access { from: index, life, access }
                    }
                };
                self.schedule(delay, happening);
            }
            self.keep(index, &abandoned);
            let was_told = self.check(index);
            if was_told {
                return self.pump(); // what was taken is acknowledged
            }
        }
    }

    pub fn happen(&mut self, happening: Happening) {
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
            Happening::Answer { from, life, rail, addr, op, result } => {
                if self.agents[from].life != life {
                    return;
                }
                if let Some((until, cut)) = self.cut(from, rail, addr)
                    && cut == Cut::Unanswered
                {
                    let again = Happening::Answer { from, life, rail, addr, op, result };
                    return self.schedule(until - self.now, again);
                }
                self.agents[from].in_flight.remove(&op);
                self.agents[from].abandoned.remove(&op);
                let after = self.delay();
                self.schedule(after, Happening::Ended { at: from, life, op, result });
            }
            Happening::Message { from, life, rail, op, addr, bytes } => {
                if let Some(left) = self.is_kept(from, rail, addr) {
                    let again = Happening::Message { from, life, rail, op, addr, bytes };
                    return self.schedule(left, again);
                }
                let target = self.target(from, rail, addr);
                if let Some(to) = target {
                    self.late_kinds += usize::from(self.agents[to].is_old && bytes[3] > OFFER);
                    let is_new = bytes[3] >= ABLE && (self.agents[to].is_old || self.agents[from].is_old);
                    if !is_new {
                        self.agents[to].core.message(&bytes, self.now);
                    }
                }
                self.answer(from, life, (rail, addr), op, target.is_some());
            }
            Happening::Late { from, access, bytes } => {
                let target = self.target(from, access.rail, access.addr);
                if let Some(to) = target.filter(|&to| self.is_open(to, &access)) {
                    self.agents[from].abandoned.insert(access.op, bytes);
                    self.execute(from, to, &access);
                    self.agents[from].abandoned.remove(&access.op);
                }
            }
            Happening::Access { from, life, access } => {
                if self.agents[from].life != life {
                    return; // it died with its sender
                }
                if let Some(left) = self.is_kept(from, access.rail, access.addr) {
                    return self.schedule(left, Happening::Access { from, life, access });
                }
                let target = self.target(from, access.rail, access.addr);
                let may_be_late = self.late_rail.is_none_or(|rail| rail == access.rail);
                if access.way == Way::Write && may_be_late && self.random.chance(self.trouble.late) {
                    let at = access.local as usize;
                    let bytes = self.agents[from].local[at..at + access.len as usize].to_vec();
                    self.answer(from, life, (access.rail, access.addr), access.op, false);
                    let after = SILENCE + Duration::from_micros(self.random.bits() % 60_000);
                    return self.schedule(after, Happening::Late { from, access, bytes });
                }
                if let Some(to) = target {
                    if !self.is_open(to, &access) {
                        let (rail, addr, op) = (access.rail, access.addr, access.op);
                        let result = Err(Errno::EACCES);
                        let refusal = Happening::Answer { from, life, rail, addr, op, result };
                        return self.schedule(Duration::from_micros(9), refusal);
                    }
                    self.execute(from, to, &access);
                }
                self.answer(from, life, (access.rail, access.addr), access.op, target.is_some());
            }
        }
    }

    /// Whether the key of an access is open.
    fn is_open(&self, to: usize, access: &Access) -> bool {
        let is_keyed = self.agents[to].keyed >> (access.addr & 0xFF) & 1 == 1;
        let is_own = access.key == u64::from(self.agents[to].life) && is_keyed;
        let leased = self.agents[to].leases.get(&access.key);
        is_own || leased.is_some_and(|key| u64::from(key.2) == access.addr & 0xFF)
    }

    pub fn execute(&mut self, from: usize, to: usize, access: &Access) {
        let (at, remote, len) = (access.local as usize, (access.remote - BASE) as usize, access.len as usize);
        let abandoned = self.agents[from].abandoned.get(&access.op).cloned();
        self.assert_wanted(from, access, abandoned.is_some());
        match access.way {
            Way::Write => {
                let bytes = abandoned.unwrap_or_else(|| self.agents[from].local[at..at + len].to_vec());
                self.agents[to].shared[remote..remote + len].copy_from_slice(&bytes);
                if let Some(data) = access.data {
                    let (delay, life) = (self.delay(), self.agents[to].life);
                    self.schedule(delay, Happening::Arrived { at: to, life, data });
                }
            }
            Way::Read if abandoned.is_none() => self.agents[from].local[at..at + len].fill(0xEE),
            Way::Read => {}
        }
    }

    /// Checks that an access may still touch the memory: its transfer has not ended well, and no notification told the
    /// target that the data is in place.
    fn assert_wanted(&self, from: usize, access: &Access, is_abandoned: bool) {
        if self.trouble.late > 0 && !self.scribbles {
            return; // beside other trouble the peer may not shut it out
        }
        let life = self.agents[from].life;
        let is_its =
            |posted: &&Posted| (posted.from, posted.life, posted.id) == (from, life, access.transfer);
        let Some(posted) = self.posted.iter().find(is_its) else { return };
        let progress = self.agents[from].core.progress(access.transfer);
        let is_quiet = progress.is_some_and(|progress| progress.is_quiet);
        assert!(!is_quiet || is_abandoned, "no rail touches the memory of a quiet transfer");
        if access.way == Way::Write || !is_abandoned {
            assert_ne!(
                posted.ended,
                Some(Outcome::Done),
                "nothing touches memory after the end of its transfer"
            );
        }
        // An operation that is reported as failed although it took place is repeated, whatever was told.
        let is_told = self.notified[posted.slot] > 0 && access.way == Way::Write;
        assert!(!is_told || self.trouble.ambiguous > 0, "no write arrives after the notification");
    }

    /// Keeps what the given up writes of an agent were to write: their memory may change now.
    fn keep(&mut self, index: usize, abandoned: &[OpId]) {
        for op in abandoned {
            // An earlier life of the agent may have used the number too.
            let is_its = |from: usize, life: u32| (from, life) == (index, self.agents[index].life);
            let access = self.happenings.values().find_map(|happening| match happening {
                Happening::Access { from, life, access } if is_its(*from, *life) && access.op == *op => {
                    Some(*access)
                }
                _ => None,
            });
            // An access that took place already has no use of the memory any more.
            let bytes = access.filter(|access| access.way == Way::Write).map(|access| {
                let at = access.local as usize;
                self.agents[index].local[at..at + access.len as usize].to_vec()
            });
            self.agents[index].abandoned.insert(*op, bytes.unwrap_or_default());
        }
    }

    pub fn answer(&mut self, from: usize, life: u32, (rail, addr): (usize, u64), op: OpId, took_place: bool) {
        let is_lost = !took_place || self.random.chance(self.trouble.ambiguous);
        let (after, result) = if is_lost { (SILENCE, Err(Errno::ETIMEDOUT)) } else { (self.delay(), Ok(())) };
        self.schedule(after, Happening::Answer { from, life, rail, addr, op, result });
    }

    /// Runs until no event is left before `until`.
    pub fn run(&mut self, until: Duration) {
        loop {
            self.pump();
            let timers = self.agents.iter().filter_map(|agent| agent.core.next_timeout()).min();
            let event = self.queue.peek().map(|Reverse((at, _))| *at);
            // A driver offers work to full rails again and again.
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
}
