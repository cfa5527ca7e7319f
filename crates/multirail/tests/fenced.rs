//! Two engines on two rails, step by step: each test decides when a write arrives and when its end is reported.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use multirail::engine::{Access, Config, Core, OpId, Piece, Plan, RailSpec, Refused, Sink, TransferId};
use multirail::wire::message::LeasedKey;
use multirail::wire::{RailInfo, RegionInfo, RegionKey};
use multirail::{Outcome, Way};
use ofi::Errno;

const RAILS: usize = 2;
/// The length of each write. With the bandwidth below, a path takes two at a time.
const LEN: u64 = 64;
const REGION: u64 = 1;
/// The region's own key, on each rail.
const OWN: u64 = 1000;
const LONG: Duration = Duration::from_secs(1000);

/// The rails of one agent. They keep what they are given.
#[derive(Default)]
struct Rails {
    messages: VecDeque<(OpId, usize, Vec<u8>)>,
    accesses: Vec<Access>,
    /// Keys that are leased, with their rails.
    leases: HashMap<u64, u8>,
    next_key: u64,
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

    fn lease(&mut self, _: u64, _: u64) -> Vec<RegionKey> {
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

    fn close_leased(&mut self, _: u64, keys: &[LeasedKey]) -> bool {
        self.leases.retain(|&key, _| keys.iter().all(|closed| closed.key != key));
        true
    }
}

/// `alice` writes to `bob`.
struct Pair {
    now: Duration,
    cores: [Core<()>; 2],
    rails: [Rails; 2],
    /// Messages to bob on these rails are held.
    muted: Vec<usize>,
    held: Vec<(OpId, Vec<u8>)>,
}

impl Pair {
    fn new() -> Self {
        let core = |index: usize| {
            let rails = (0..RAILS).map(|rail| RailSpec {
                info: RailInfo { provider: "held".into(), format: 0, address: vec![index as u8, rail as u8] },
                bandwidth: Some(1.0),
                wide_data: true,
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
            rails: Default::default(),
            muted: Vec::new(),
            held: Vec::new(),
        };
        let keys = (0..RAILS as u8).map(|rail| RegionKey { rail, key: OWN, base: 0 }).collect();
        let region = RegionInfo { id: REGION, len: 1 << 20, keys, is_staged: false, export: None };
        let metadata = pair.cores[1].metadata(vec![region]);
        pair.cores[0].load(&metadata).unwrap();
        // The session opens, and the keys are leased.
        let first = pair.post(1, None);
        pair.run();
        let writes = pair.writes();
        pair.land(writes);
        pair.run();
        assert_eq!(pair.outcome(first), Some(Outcome::Done));
        assert!(pair.rails[1].leases.len() == RAILS, "bob has leased keys");
        pair
    }

    fn post(&mut self, count: u64, notice: Option<&[u8]>) -> TransferId {
        let core = &mut self.cores[0];
        let peer = core.find("bob").unwrap();
        let (region, incarnation) = core.region(peer, REGION).unwrap();
        let piece =
            |nth| Piece { region: 0, local: nth * LEN, remote_region: 0, remote: nth * LEN, len: LEN };
        let plan = Plan {
            way: Way::Write,
            pieces: (0..count).map(piece).collect(),
            regions: vec![region],
            incarnation,
            total: count * LEN,
            guard: (),
        };
        core.post(peer, Arc::new(plan), notice.map(<[u8]>::to_vec), LONG, self.now).unwrap()
    }

    /// Delivers messages until there are none. Accesses stay where they are.
    fn run(&mut self) {
        loop {
            for (core, rails) in self.cores.iter_mut().zip(&mut self.rails) {
                core.tick(self.now);
                while core.perform(self.now, rails) {}
            }
            let next = (0..2).find_map(|from| Some((from, self.rails[from].messages.pop_front()?)));
            let Some((from, (op, rail, bytes))) = next else { break };
            if from == 0 && self.muted.contains(&rail) {
                self.held.push((op, bytes));
                continue;
            }
            self.cores[1 - from].message(&bytes, self.now);
            self.cores[from].ended(op, Ok(()), self.now);
        }
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now = (self.now + Duration::from_millis(100)).min(until);
            self.run();
        }
    }

    /// Takes the writes that alice's rails have.
    fn writes(&mut self) -> Vec<Access> {
        std::mem::take(&mut self.rails[0].accesses)
    }

    /// Takes those of one rail.
    fn writes_on(&mut self, rail: usize) -> Vec<Access> {
        self.rails[0].accesses.extract_if(.., |access| access.rail == rail).collect()
    }

    /// A write arrives at bob. Returns whether its key is open.
    fn arrive(&mut self, write: &Access) -> bool {
        let is_leased = self.rails[1].leases.get(&write.key) == Some(&(write.rail as u8));
        let is_open = is_leased || write.key == OWN;
        if let (Some(data), true) = (write.data, is_open) {
            self.cores[1].arrived(data);
        }
        is_open
    }

    /// Writes arrive, and their ends are reported.
    fn land(&mut self, writes: Vec<Access>) {
        for write in writes {
            let result = if self.arrive(&write) { Ok(()) } else { Err(Errno::EACCES) };
            self.cores[0].ended(write.op, result, self.now);
        }
        self.run();
    }

    fn outcome(&self, id: TransferId) -> Option<Outcome> {
        self.cores[0].progress(id).unwrap().outcome
    }

    fn notified(&mut self) -> Option<Vec<u8>> {
        self.cores[1].take_notification().map(|notification| notification.bytes)
    }
}

/// A transfer has parts that were never posted while one of its paths is fenced. The parts on the mute path have
/// arrived and were counted. So the count is complete when the last of the others has arrived, while the second copies
/// of the first ones are still under way: the notification must wait for them.
#[test]
fn the_notification_of_a_half_posted_transfer_waits_for_second_copies() {
    let mut pair = Pair::new();
    let transfer = pair.post(9, Some(b"told"));
    pair.run();
    let mute = pair.writes_on(0);
    assert_eq!(mute.len(), 2);
    assert!(mute.iter().all(|write| write.key != OWN), "the keys are leased");
    assert!(mute.iter().all(|write| pair.arrive(write)));
    pair.muted = vec![0];
    // The other rail is slow: it has not carried everything when the first is fenced.
    let mut slow = VecDeque::from(pair.writes_on(1));
    while pair.cores[0].counts().fenced == 0 {
        pair.wait(Duration::from_secs(3));
        if let Some(write) = slow.pop_front() {
            pair.land(vec![write]);
        }
        slow.extend(pair.writes_on(1));
        assert!(pair.now < Duration::from_secs(30), "the mute path is fenced");
    }
    // One second copy stays under way, while everything else arrives.
    let mut copy = None;
    for _ in 0..20 {
        slow.extend(pair.writes_on(1));
        let at = slow.iter().position(|write| write.local == mute[1].local);
        copy = copy.or(at.and_then(|at| slow.remove(at)));
        let others = slow.drain(..).collect();
        pair.land(others);
    }
    let copy = copy.expect("the part has moved");
    assert_eq!(pair.cores[0].progress(transfer).unwrap().moved, 8 * LEN, "all but one have ended");
    assert_eq!(pair.notified(), None, "a second copy is under way");
    pair.land(vec![copy]);
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
}

/// A rail reports a write as failed. Its first copy is shut out before the second is posted, at once, under a new key.
#[test]
fn a_write_that_failed_is_shut_out_before_it_moves() {
    let mut pair = Pair::new();
    let transfer = pair.post(1, Some(b"told"));
    pair.run();
    let [first] = pair.writes()[..] else { panic!("one write") };
    pair.cores[0].ended(first.op, Err(Errno::ETIMEDOUT), pair.now);
    pair.run();
    let [second] = pair.writes()[..] else { panic!("one copy, without any delay") };
    assert!(second.rail != first.rail && second.key != OWN && second.key != first.key);
    assert!(!pair.arrive(&first), "the first copy is refused");
    assert_eq!(pair.notified(), None);
    pair.land(vec![second]);
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
    assert_eq!(pair.cores[0].counts().moved, 1);
}

/// The first copy has arrived, is counted, and is reported as failed. The notification waits for the second copy.
#[test]
fn a_write_that_arrived_and_failed_completes_no_notification() {
    let mut pair = Pair::new();
    let transfer = pair.post(2, Some(b"told"));
    pair.run();
    let mut writes = pair.writes();
    assert_eq!(writes.len(), 2);
    let first = writes.remove(0);
    assert!(pair.arrive(&first));
    pair.cores[0].ended(first.op, Err(Errno::ETIMEDOUT), pair.now);
    pair.run();
    pair.land(writes);
    let [second] = pair.writes()[..] else { panic!("one copy") };
    assert_eq!(pair.notified(), None, "a second copy is under way");
    pair.land(vec![second]);
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
}

/// The peer does not answer: the write moves after a second all the same. When the peer carries the request out late,
/// it holds the notification, and is told to release it.
#[test]
fn a_write_that_failed_moves_without_an_answer_too() {
    let mut pair = Pair::new();
    let transfer = pair.post(1, Some(b"told"));
    pair.run();
    let [first] = pair.writes()[..] else { panic!("one write") };
    pair.muted = vec![0, 1];
    pair.cores[0].ended(first.op, Err(Errno::ETIMEDOUT), pair.now);
    pair.run();
    assert!(!pair.held.is_empty(), "the request is under way");
    pair.wait(Duration::from_millis(900));
    assert!(pair.writes().is_empty(), "the first copy may still arrive");
    pair.wait(Duration::from_millis(100));
    let [second] = pair.writes()[..] else { panic!("one copy") };
    pair.muted.clear();
    for (op, bytes) in std::mem::take(&mut pair.held) {
        pair.cores[1].message(&bytes, pair.now);
        pair.cores[0].ended(op, Ok(()), pair.now);
    }
    pair.run();
    assert!(pair.arrive(&second));
    assert_eq!(pair.notified(), None, "bob holds it");
    pair.cores[0].ended(second.op, Ok(()), pair.now);
    pair.run();
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
}
