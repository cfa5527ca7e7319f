//! Two engines and their rails.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use multirail::engine::{Access, Config, Core, OpId, Piece, Plan, RailSpec, Refused, Sink, TransferId};
use multirail::wire::message::LeasedKey;
use multirail::wire::{RailInfo, RegionInfo, RegionKey};
use multirail::{Outcome, Way};
use ofi::Errno;

pub const RAILS: usize = 2;
/// The length of each write. With the bandwidth below, a path takes two at a time.
pub const LEN: u64 = 64;
pub const REGION: u64 = 1;
/// The region's own key, on each rail.
pub const OWN: u64 = 1000;
pub const LONG: Duration = Duration::from_secs(1000);
/// The kind of `Body::Able`, the first that older versions do not know.
const ABLE: u8 = 10;

/// The rails of one agent. They keep what they are given.
#[derive(Default)]
pub struct Rails {
    pub messages: VecDeque<(OpId, usize, Vec<u8>)>,
    pub accesses: Vec<Access>,
    /// Keys that are leased, with their rails.
    pub leases: HashMap<u64, u8>,
    pub next_key: u64,
    /// Each peer has a connection of its own, which is ended instead of keys that are leased.
    pub severs: bool,
    /// Rails whose connection was ended, in order.
    pub severed: Vec<usize>,
    /// The accesses that were on such a connection, whose end is to be reported.
    pub aborted: Vec<Access>,
}

impl Sink<()> for Rails {
    fn access(&mut self, access: &Access, _: &Plan<()>, _: bool) -> Result<(), Refused> {
        self.accesses.push(*access);
        Ok(())
    }

    fn send(&mut self, op: OpId, rail: usize, _: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
        self.messages.push_back((op, rail, bytes));
        Ok(())
    }

    fn insert(&mut self, _: usize, _: u32, _: &[u8]) -> Result<u64, Errno> {
        Ok(7)
    }

    fn remove(&mut self, _: usize, _: u64) {}

    fn abandon(&mut self, _: usize, _: OpId) -> Result<(), Errno> {
        Ok(())
    }

    fn sever(&mut self, rail: usize, _: u64) -> Result<(), Errno> {
        if !self.severs {
            return Err(Errno::EOPNOTSUPP);
        }
        self.severed.push(rail);
        self.aborted.extend(self.accesses.extract_if(.., |access| access.rail == rail));
        Ok(())
    }

    fn lease(&mut self, _: u64, _: u64) -> Vec<RegionKey> {
        if self.severs {
            return (0..RAILS as u8).map(|rail| RegionKey { rail, key: OWN, base: 0 }).collect();
        }
        for rail in 0..RAILS as u8 {
            if !self.leases.values().any(|&leased| leased == rail) {
                self.next_key += 1;
                self.leases.insert(self.next_key, rail);
            }
        }
        let mut keys: Vec<_> =
            self.leases.iter().map(|(&key, &rail)| RegionKey { rail, key, base: 0 }).collect();
        keys.sort_unstable_by_key(|key| key.rail);
        keys
    }

    fn close_leased(&mut self, _: u64, keys: &[LeasedKey], peer: &[(usize, u64)]) -> bool {
        let named = peer.iter().filter(|(rail, _)| keys.iter().any(|key| usize::from(key.rail) == *rail));
        self.severed.extend(named.filter(|_| self.severs).map(|(rail, _)| rail));
        self.leases.retain(|&key, _| keys.iter().all(|closed| closed.key != key));
        true
    }
}

/// `alice` writes to `bob`.
pub struct Pair {
    pub now: Duration,
    pub cores: [Core<()>; 2],
    pub rails: [Rails; 2],
    /// Messages to bob on these rails are held.
    pub muted: Vec<usize>,
    pub held: Vec<(OpId, Vec<u8>)>,
    /// Messages of each agent on these rails do not arrive, and are reported as failed.
    pub failing: [Vec<usize>; 2],
    /// Bob knows no leases, as older versions.
    pub is_old: bool,
}

impl Pair {
    pub fn new() -> Self {
        Self::with(false)
    }

    /// With rails that end connections, if `severs`.
    pub fn with(severs: bool) -> Self {
        let mut pair = Self::strangers(severs);
        // The session opens, and the keys are leased.
        let first = pair.post(1, None);
        pair.run();
        let writes = pair.writes();
        pair.land(writes);
        pair.run();
        assert_eq!(pair.outcome(first), Some(Outcome::Done));
        pair.cores[0].release(first);
        assert!(severs || pair.rails[1].leases.len() == RAILS, "bob has leased keys");
        pair
    }

    /// Without a session.
    pub fn strangers(severs: bool) -> Self {
        let core = |index: usize| {
            let rails = (0..RAILS).map(|rail| RailSpec {
                info: RailInfo { provider: "held".into(), format: 0, address: vec![index as u8, rail as u8] },
                bandwidth: Some(1.0),
                wide_data: true,
                severs,
                operations: 1024,
            });
            let mut state = index as u64 + 1;
            let random = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state
            };
            let config = Config { largest_access: LEN, batch: 1, ..Config::default() };
            Core::new(["alice", "bob"][index], rails.collect(), config, Box::new(random))
        };
        let mut pair = Self {
            now: Duration::from_secs(1),
            cores: [core(0), core(1)],
            rails: std::array::from_fn(|_| Rails { severs, ..Rails::default() }),
            muted: Vec::new(),
            held: Vec::new(),
            failing: Default::default(),
            is_old: false,
        };
        let keys = (0..RAILS as u8).map(|rail| RegionKey { rail, key: OWN, base: 0 }).collect();
        let region = RegionInfo { id: REGION, len: 1 << 20, keys, is_staged: false, export: None };
        let metadata = pair.cores[1].metadata(vec![region]);
        pair.cores[0].load(&metadata).unwrap();
        pair
    }

    pub fn post(&mut self, count: u64, notice: Option<&[u8]>) -> TransferId {
        let core = &mut self.cores[0];
        let peer = core.find("bob").unwrap();
        let (region, incarnation) = core.region(peer, REGION).unwrap();
        let piece =
            |nth| Piece { region: 0, local: nth * LEN, remote_region: 0, remote: nth * LEN, len: LEN };
        let plan = Plan {
            way: Way::Write,
            pieces: (0..count).map(piece).collect(),
            regions: vec![region],
            near: Vec::new(),
            incarnation,
            total: count * LEN,
            guard: (),
            uses: Default::default(),
        };
        core.post(peer, Arc::new(plan), notice.map(<[u8]>::to_vec), LONG, self.now).unwrap()
    }

    /// Delivers messages until there are none. Accesses stay where they are.
    pub fn run(&mut self) {
        loop {
            for (core, rails) in self.cores.iter_mut().zip(&mut self.rails) {
                core.tick(self.now);
                while core.perform(self.now, rails) {}
                for access in std::mem::take(&mut rails.aborted) {
                    core.ended(access.op, Err(Errno::ECONNABORTED), self.now);
                }
                while core.perform(self.now, rails) {}
            }
            let next = (0..2).find_map(|from| Some((from, self.rails[from].messages.pop_front()?)));
            let Some((from, (op, rail, bytes))) = next else { break };
            if from == 0 && self.muted.contains(&rail) {
                self.held.push((op, bytes));
                continue;
            }
            if self.failing[from].contains(&rail) {
                self.cores[from].ended(op, Err(Errno::ETIMEDOUT), self.now);
                continue;
            }
            if !(self.is_old && bytes[3] >= ABLE) {
                self.cores[1 - from].message(&bytes, self.now);
            }
            self.cores[from].ended(op, Ok(()), self.now);
        }
    }

    pub fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now = (self.now + Duration::from_millis(100)).min(until);
            self.run();
        }
    }

    /// Takes the writes that alice's rails have.
    pub fn writes(&mut self) -> Vec<Access> {
        std::mem::take(&mut self.rails[0].accesses)
    }

    /// Takes those of one rail.
    pub fn writes_on(&mut self, rail: usize) -> Vec<Access> {
        self.rails[0].accesses.extract_if(.., |access| access.rail == rail).collect()
    }

    /// A write arrives at bob. Returns whether its key is open.
    pub fn arrive(&mut self, write: &Access) -> bool {
        let is_leased = self.rails[1].leases.get(&write.key) == Some(&(write.rail as u8));
        let is_open = is_leased || write.key == OWN;
        if let (Some(data), true) = (write.data, is_open) {
            self.cores[1].arrived(data);
        }
        is_open
    }

    /// Writes arrive, and their ends are reported.
    pub fn land(&mut self, writes: Vec<Access>) {
        for write in writes {
            let result = if self.arrive(&write) { Ok(()) } else { Err(Errno::EACCES) };
            self.cores[0].ended(write.op, result, self.now);
        }
        self.run();
    }

    pub fn outcome(&self, id: TransferId) -> Option<Outcome> {
        self.cores[0].progress(id).unwrap().outcome
    }

    pub fn notified(&mut self) -> Option<Vec<u8>> {
        let taken = self.cores[1].take_notification().map(|notification| notification.bytes);
        self.run(); // it is acknowledged
        taken
    }
}
