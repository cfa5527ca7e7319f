//! Sessions of `multirail`'s agents, from the greeting to the end: an engine, an honest peer of it, and a peer that
//! breaks the rules. There is no I/O, and time is virtual.
//!
//! The input is a script. Its steps are those of the hostile peer (it greets under several names, sends any message in
//! any of its sessions, once or many times, repeats its writes, lets operations of the engine succeed, fail or hang),
//! those of the engine's program (it posts to the hostile peer, cancels, takes notifications, loads metadata) and those
//! of the clock.
//!
//! After each step: the engine has come to rest, no timer is late, each of its transfers has ended by its deadline, and
//! it keeps no more memory than its bounds permit. From time to time, and at the end: a write of the honest peer with a
//! notification is done within [`HONEST`]. At the end, when the hostile peer has died: no transfer is left, and no
//! operation that the rails do not have.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use multirail::Way;
use multirail::engine::{
    Access, Audience, Config, Core, OpId, Outcome, PeerId, Piece, Plan, RailSpec, Refused, Sink, Time,
    TransferId,
};
use multirail::wire::message::{Body, FRAGMENT, Fragment, LeasedKey, Reason};
use multirail::wire::{Message, Metadata, RailInfo, RegionInfo, RegionKey};
use ofi::Errno;

use super::{Input, heap};

/// Rails of each agent.
const RAILS: usize = 2;
/// Operations that a rail of the engine takes.
const OPERATIONS: u32 = 1024;
/// Steps of a script, and messages of all of its steps together.
const STEPS: usize = 400;
const MESSAGES: usize = 20_000;
/// Rounds in which the engine comes to rest whatever a peer has said.
const ROUNDS: usize = 10_000;
/// Time in which the honest peer gets on.
const HONEST: Duration = Duration::from_secs(2);
/// Bytes that the engine keeps beside its budget: what its program has posted, a few sessions with their answers,
/// peers.
const BESIDE: isize = 4 << 20;
/// Operations of the engine that the hostile peer lets hang; the oldest of more ends. It does not fail: a message that
/// fails goes over each path in turn, and a peer of 32 rails has 32 paths with hundreds of messages each.
/// A peer that opens one session after the other, and lets operations of each hang, can take all places of a rail: only
/// its provider's limits stop it (`engine/places.rs` counts the operations of a session, not those of a peer).
const HANGING: usize = 400;
/// Transfers of the engine's program that it has not released.
const POSTED: usize = 24;
/// Tags of its sessions that the hostile peer remembers.
const HEARD: usize = 48;
/// Longest time that passes in one step.
const MAX_PAUSE: Duration = Duration::from_secs(20);
/// Names under which the hostile peer greets.
const NAMES: [&str; 5] = ["mallory", "mallet", "eve", "trudy", "chuck"];
const HONEST_NAME: &str = "alice";

/// The owner of an address.
const ALICE: u64 = 1;
const MALLORY: u64 = 2;

fn config(acknowledge_taken: bool) -> Config {
    Config {
        connect_timeout: Duration::from_secs(3),
        most_peers: 12,
        most_greeters: 4,
        most_regions: 16,
        longest_notification: 64 << 10,
        most_kept: 512 << 10,
        acknowledge_taken,
        ..Config::default()
    }
}

fn rail(owner: u64, rail: usize) -> RailInfo {
    let address = (owner << 8 | rail as u64).to_le_bytes().to_vec();
    RailInfo { provider: "fuzz".into(), format: 0, address }
}

fn agent(name: &str, owner: u64, config: Config) -> Core<()> {
    let spec = |nth| RailSpec {
        info: rail(owner, nth),
        bandwidth: None,
        wide_data: true,
        severs: false,
        operations: OPERATIONS,
    };
    let mut state = owner << 32;
    let random = move || {
        // splitmix64
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    };
    Core::new(name, (0..RAILS).map(spec).collect(), config, Box::new(random))
}

/// What an engine has handed to its rails.
enum Taken {
    Message { op: OpId, addr: u64, bytes: Vec<u8> },
    Access(Access),
}

#[derive(Default)]
struct Rails {
    taken: Vec<Taken>,
    /// Keys that were leased, so that each has another number.
    keys: u64,
    /// Accesses that the rails give up end with this.
    given_up: Vec<OpId>,
}

impl Sink<()> for Rails {
    fn access(&mut self, access: &Access, _: &Plan<()>, _: bool) -> Result<(), Refused> {
        self.taken.push(Taken::Access(*access));
        Ok(())
    }

    fn send(&mut self, op: OpId, _: usize, addr: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
        self.taken.push(Taken::Message { op, addr, bytes });
        Ok(())
    }

    fn insert(&mut self, _: usize, _: u32, address: &[u8]) -> Result<u64, Errno> {
        address.try_into().map(u64::from_le_bytes).map_err(|_| Errno::EINVAL)
    }

    fn remove(&mut self, _: usize, _: u64) {}

    fn abandon(&mut self, _: usize, op: OpId) -> Result<(), Errno> {
        self.given_up.push(op);
        Ok(())
    }

    fn lease(&mut self, _: u64, region: u64) -> Vec<RegionKey> {
        if region != 1 {
            return Vec::new();
        }
        let key = |rail| {
            self.keys += 1;
            RegionKey { rail, key: self.keys, base: 0 }
        };
        (0..RAILS as u8).map(key).collect()
    }

    fn close_leased(&mut self, _: u64, _: &[LeasedKey], _: &[(usize, u64)]) -> bool {
        true
    }
}

/// A transfer of the engine's program.
struct Posted {
    id: TransferId,
    deadline: Time,
}

struct World {
    now: Time,
    hub: Core<()>,
    hub_rails: Rails,
    alice: Core<()>,
    alice_rails: Rails,
    /// The hub, as the honest peer knows it.
    to_hub: PeerId,
    /// The upper halves of the hub's tags for the honest peer: nobody else can know them.
    secret: HashSet<u32>,
    /// Operations of the hub that the hostile peer has.
    open: VecDeque<OpId>,
    posted: VecDeque<Posted>,
    /// The hub's tags, and the numbers of its notifications and requests, that the hostile peer has heard.
    tags: VecDeque<u64>,
    ids: VecDeque<u64>,
    /// The tags that it has given its own sessions.
    greeted: u64,
    said: usize,
    /// Messages of its own that it may repeat.
    last: Option<Message>,
    /// What was allocated when both were connected.
    base: isize,
    written: u64,
    sessions: usize,
}

impl World {
    fn new(acknowledge_taken: bool) -> Self {
        let mut hub = agent("hub", 0, config(acknowledge_taken));
        let mut alice = agent(HONEST_NAME, ALICE, config(true));
        let keys = (0..RAILS as u8).map(|rail| RegionKey { rail, key: 7, base: 0 }).collect();
        let region = RegionInfo { id: 1, len: 1 << 20, keys, is_staged: false, export: None };
        let to_hub = alice.load(&hub.metadata(vec![region])).expect("the hub's metadata");
        hub.load(&alice.metadata(Vec::new())).expect("the honest peer's metadata");
        let mut world = Self {
            now: Duration::from_secs(100),
            hub,
            hub_rails: Rails::default(),
            alice,
            alice_rails: Rails::default(),
            to_hub,
            secret: HashSet::new(),
            open: VecDeque::with_capacity(4 * OPERATIONS as usize),
            posted: VecDeque::with_capacity(POSTED),
            tags: VecDeque::with_capacity(HEARD + 1),
            ids: VecDeque::with_capacity(HEARD + 1),
            greeted: 0,
            said: 0,
            last: None,
            base: 0,
            written: 0,
            sessions: 0,
        };
        world.honest();
        world.base = heap::live();
        world
    }

    /// Both engines work until they have nothing to do.
    fn settle(&mut self) {
        for _ in 0..ROUNDS {
            self.hub.tick(self.now);
            self.alice.tick(self.now);
            let mut was_busy = self.hub.perform(self.now, &mut self.hub_rails);
            was_busy |= self.alice.perform(self.now, &mut self.alice_rails);
            was_busy |= !self.hub_rails.taken.is_empty() || !self.alice_rails.taken.is_empty();
            for taken in std::mem::take(&mut self.hub_rails.taken) {
                self.take_from_hub(taken);
            }
            for op in std::mem::take(&mut self.hub_rails.given_up) {
                self.open.retain(|open| *open != op);
                self.hub.ended(op, Err(Errno::ECANCELED), self.now);
            }
            for taken in std::mem::take(&mut self.alice_rails.taken) {
                self.take_from_alice(taken);
            }
            while self.hub.take_order().is_some() {}
            drop((
                self.hub.take_events(),
                self.hub.take_gone(),
                self.alice.take_events(),
                self.alice.take_gone(),
            ));
            if !was_busy {
                return;
            }
        }
        panic!("the engine does not come to rest: {:?}", self.hub.counts());
    }

    fn take_from_hub(&mut self, taken: Taken) {
        let (op, addr) = match &taken {
            Taken::Message { op, addr, .. } => (*op, *addr),
            Taken::Access(access) => (access.op, access.addr),
        };
        if addr >> 8 == ALICE {
            if let Taken::Message { bytes, .. } = taken {
                self.alice.message(&bytes, self.now);
            }
            return self.hub.ended(op, Ok(()), self.now);
        }
        self.open.push_back(op);
        if self.open.len() > HANGING
            && let Some(oldest) = self.open.pop_front()
        {
            self.hub.ended(oldest, Ok(()), self.now);
        }
        let Taken::Message { bytes, .. } = taken else { return };
        let message = Message::parse(&bytes).expect("the engine's own messages parse");
        let heard = match message.body {
            Body::Welcome { tag, .. } | Body::Hello { tag, .. } => {
                remember(&mut self.tags, tag);
                return;
            }
            Body::Notify(fragment) => fragment.id,
            Body::Lease(id) | Body::Widen(id) | Body::Void(id) | Body::Release(id) => id,
            Body::Fence { serial, .. } => serial,
            Body::Leased { keys, .. } => keys.first().map_or(0, |key| key.key),
            _ => return,
        };
        remember(&mut self.ids, heard);
    }

    fn take_from_alice(&mut self, taken: Taken) {
        let op = match taken {
            Taken::Message { op, bytes, .. } => {
                let to = Message::parse(&bytes).map_or(0, |message| message.to);
                self.secret.insert((to >> 32) as u32);
                self.hub.message(&bytes, self.now);
                op
            }
            Taken::Access(access) => {
                if let Some(data) = access.data {
                    self.secret.insert((data >> 32) as u32);
                    self.hub.arrived(data);
                }
                access.op
            }
        };
        self.alice.ended(op, Ok(()), self.now);
    }

    /// Time passes.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        for _ in 0..ROUNDS {
            let timers = [self.hub.next_timeout(), self.alice.next_timeout()];
            let next = timers.into_iter().flatten().min().filter(|&next| next < until);
            let Some(next) = next else {
                self.now = until;
                return self.settle();
            };
            assert!(next >= self.now, "a timer is late");
            self.now = next;
            self.settle();
            let late = self.hub.next_timeout().is_some_and(|next| next <= self.now);
            assert!(!late, "a timer comes again at once");
        }
        panic!("too many timers in {time:?}");
    }

    /// The honest peer writes and notifies: that arrives, and is done.
    fn honest(&mut self) {
        self.written += 1;
        let (mark, until) = (self.written.to_le_bytes().to_vec(), self.now + HONEST);
        let (region, incarnation) = self.alice.region(self.to_hub, 1).expect("the hub's region");
        let piece = Piece { region: 0, local: 0, remote_region: 0, remote: 0, len: 64 };
        let plan = Plan {
            way: Way::Write,
            pieces: vec![piece],
            regions: vec![region],
            near: Vec::new(),
            incarnation,
            total: 64,
            guard: (),
            uses: Default::default(),
        };
        let posted = self.alice.post(self.to_hub, Arc::new(plan), Some(mark.clone()), until, self.now);
        let id = posted.expect("a plan of this incarnation");
        let mut is_told = false;
        loop {
            self.settle();
            while let Some(notification) = self.hub.take_notification() {
                is_told |= &*notification.peer == HONEST_NAME && notification.bytes == mark;
            }
            self.settle();
            let outcome = self.alice.progress(id).and_then(|progress| progress.outcome);
            if is_told && outcome == Some(Outcome::Done) {
                self.alice.release(id);
                return;
            }
            assert!(
                outcome.is_none() && self.now < until,
                "the honest peer is held up: told {is_told}, {outcome:?}, {:?}, {:?}, {} open",
                self.alice.awaited(id),
                self.hub.counts(),
                self.open.len()
            );
            self.pass(Duration::from_millis(50));
        }
    }

    /// What must hold after each step.
    fn check(&mut self) {
        self.settle();
        for Posted { id, deadline } in &self.posted {
            let outcome = self.hub.progress(*id).and_then(|progress| progress.outcome);
            assert!(outcome.is_some() || self.now < *deadline, "a transfer has outlived its deadline");
        }
        let kept = heap::live() - self.base;
        let most = config(true).most_kept as isize + BESIDE;
        assert!(kept < most, "{kept} bytes are kept: {:?}, {:?}", self.hub.kept(), self.hub.counts());
    }

    fn say(&mut self, message: Message) {
        // A tag of 32 random bits that only two agents know is not guessed.
        let is_secret = self.secret.contains(&((message.to >> 32) as u32));
        if !is_secret || matches!(message.body, Body::Hello { .. }) {
            self.hub.message(&message.encode(), self.now);
        }
        self.last = Some(message);
        self.said += 1;
    }

    /// A tag of one of its sessions with the hub.
    fn tag(&self, input: &mut Input<'_>) -> u64 {
        let which = usize::from(input.byte());
        match self.tags.len().checked_sub(1 + which % HEARD) {
            Some(at) if which < 240 => self.tags[at],
            _ => input.word(),
        }
    }

    fn number(&self, input: &mut Input<'_>) -> u64 {
        const EDGES: [u64; 12] =
            [255, 256, 511, 512, 1023, 1024, 2047, 2048, 4096, 1 << 32, u64::MAX - 1, u64::MAX];
        let which = input.byte();
        match which {
            0..128 => which.into(),
            128..192 => {
                let at = usize::from(which - 128) % HEARD;
                self.ids.len().checked_sub(1 + at).map_or(0, |at| self.ids[at])
            }
            192..216 => EDGES[usize::from(which - 192) % EDGES.len()],
            216..240 => input.short() as u64,
            _ => input.word(),
        }
    }

    fn keys(&self, input: &mut Input<'_>) -> Vec<RegionKey> {
        let rails = input.byte();
        let rails = (0..8).filter(|rail| rails >> rail & 1 == 1);
        rails.map(|rail| RegionKey { rail, key: self.number(input), base: self.number(input) }).collect()
    }

    fn list(&self, input: &mut Input<'_>, most: usize) -> Vec<u64> {
        let (count, first) = (usize::from(input.byte()) * 2 % (most + 1), self.number(input));
        (0..count as u64).map(|nth| first.wrapping_add(nth)).collect()
    }

    /// Any message in a session.
    fn body(&self, input: &mut Input<'_>) -> Body {
        match input.byte() % 24 {
            0 => Body::Confirm,
            1 => Body::Welcome { incarnation: self.number(input), tag: self.number(input) },
            2 => Body::Ready,
            3 => Body::Reject([Reason::Stale, Reason::Full, Reason::Taken][usize::from(input.byte()) % 3]),
            4 => Body::Goodbye,
            5 => Body::Ack(self.list(input, 512)),
            6 => Body::Arrived(self.list(input, 512)),
            7 => Body::Void(self.number(input)),
            8 => Body::Able,
            9 => Body::Lease(self.number(input)),
            10 => Body::Leased { region: self.number(input), keys: self.keys(input) },
            11 => {
                let key = |nth| LeasedKey { region: 1, rail: nth as u8 % 2, key: nth };
                let keys = self.list(input, 256).into_iter().map(key).collect();
                Body::Fence { serial: self.number(input), keys, notices: self.list(input, 256) }
            }
            12 => Body::Fenced { serial: self.number(input), out: self.list(input, 256) },
            13 => Body::Release(self.number(input)),
            14 => Body::Widen(self.number(input)),
            15 => Body::Widened { region: self.number(input), keys: self.keys(input) },
            20 => {
                Body::Rails { first: input.byte() % 8 + 1, rails: vec![rail(u64::from(input.byte() % 8), 0)] }
            }
            21 => Body::Taken(input.byte() % 32 + 1),
            22 => Body::Renew(self.number(input)),
            23 => Body::Renewed { region: self.number(input), keys: self.keys(input) },
            _ => {
                const TOTALS: [u32; 9] = [1, 9, 8000, 8001, 16_000, 40_000, 65_537, 65_538, u32::MAX];
                let id = self.number(input);
                let (shape, total) = (input.byte(), input.byte());
                let total =
                    if total < 128 { total.into() } else { TOTALS[usize::from(total) % TOTALS.len()] };
                let last = total.saturating_sub(1) / FRAGMENT as u32;
                let offset = u32::from(shape >> 4).min(last) * FRAGMENT as u32;
                let mut bytes = vec![7; ((total - offset) as usize).min(FRAGMENT)];
                if let Some(byte) = bytes.last_mut() {
                    *byte = [0, 0, 1, 2][usize::from(shape) % 4]; // the audience
                }
                let expected = u32::from(shape >> 2 & 3) * u32::from(shape & 1);
                let transfer = if shape & 2 == 0 { id as u16 } else { input.byte().into() };
                Body::Notify(Fragment { id, expected, transfer, total, offset, bytes })
            }
        }
    }

    /// The same with the next number, so that a flood has a message for each.
    fn next(body: &mut Body) {
        match body {
            Body::Void(id) | Body::Lease(id) | Body::Widen(id) | Body::Release(id) | Body::Renew(id) => {
                *id = id.wrapping_add(1)
            }
            Body::Leased { region: id, .. } | Body::Widened { region: id, .. } => *id = id.wrapping_add(1),
            Body::Fence { serial: id, .. } | Body::Fenced { serial: id, .. } => *id = id.wrapping_add(1),
            Body::Ack(ids) | Body::Arrived(ids) => {
                let count = ids.len() as u64;
                ids.iter_mut().for_each(|id| *id = id.wrapping_add(count));
            }
            Body::Notify(fragment) => {
                fragment.id = fragment.id.wrapping_add(1);
                fragment.transfer = fragment.transfer.wrapping_add(1);
            }
            Body::Hello { tag, .. } => *tag = tag.wrapping_add(1 << 32),
            _ => {}
        }
    }

    fn hello(&mut self, input: &mut Input<'_>) -> Message {
        let (who, how) = (input.byte(), input.byte());
        let name = match who {
            250..255 => "x".repeat(usize::from(who)),
            255 => "hub".into(),
            _ => NAMES[usize::from(who) % NAMES.len()].into(),
        };
        if how & 1 == 0 {
            self.greeted += 1;
        }
        let mut rails: Vec<_> = (0..1 + usize::from(how >> 1 & 1)).map(|nth| rail(MALLORY, nth)).collect();
        match how >> 2 & 7 {
            0 => rails = (0..32).map(|nth| rail(MALLORY, nth)).collect(),
            1 => rails[0].address = vec![1; 96],
            2 => rails[0].provider = "other".into(),
            _ => {}
        }
        let own = self.hub.metadata(Vec::new()).incarnation;
        let to = if how >> 5 == 0 { own ^ 1 } else { own };
        // Its own, an older one, or that of the hub.
        let incarnation = [99, 99, 98, own][usize::from(how >> 6)];
        Message { to, body: Body::Hello { name, incarnation, tag: self.greeted << 32, rails } }
    }

    /// The hostile peer ends an operation of the hub.
    fn end(&mut self, op: OpId, how: u8) {
        const RESULTS: [Result<(), Errno>; 8] = [
            Ok(()),
            Ok(()),
            Ok(()),
            Err(Errno::ETIMEDOUT),
            Err(Errno::ECONNREFUSED),
            Err(Errno::EACCES),
            Err(Errno::ECONNRESET),
            Err(Errno::ENOENT),
        ];
        self.hub.ended(op, RESULTS[usize::from(how) % RESULTS.len()], self.now);
    }

    /// The hub's program loads what the hostile peer says about itself.
    fn load(&mut self, input: &mut Input<'_>) {
        let name = NAMES[usize::from(input.byte()) % NAMES.len()].to_string();
        let (incarnation, count) = (98 + u64::from(input.byte() & 1), input.byte() % 4);
        let mut regions = Vec::new();
        for id in 0..u64::from(count) {
            let keys =
                (0..2).map(|rail| RegionKey { rail, key: self.number(input), base: id << 20 }).collect();
            regions.push(RegionInfo { id, len: 1 << 20, keys, is_staged: false, export: None });
        }
        let rails = (0..RAILS).map(|nth| rail(MALLORY, nth)).collect();
        let _ = self.hub.load(&Metadata { name, incarnation, rails, regions });
    }

    /// The hub's program posts a transfer to the hostile peer.
    fn post(&mut self, input: &mut Input<'_>) {
        let name = NAMES[usize::from(input.byte()) % NAMES.len()];
        let (how, count) = (input.byte(), u64::from(input.byte() % 40));
        let Some(peer) = self.hub.find(name) else { return };
        let regions = self.hub.regions(peer);
        let incarnation =
            regions.first().and_then(|region| self.hub.region(peer, region.id)).map_or(99, |it| it.1);
        let len = if how & 1 == 0 { 64 } else { 300_000 };
        let count = if regions.is_empty() { 0 } else { count };
        let piece = |nth: u64| Piece {
            region: 0,
            local: nth * len,
            remote_region: (nth % regions.len() as u64) as u32,
            remote: nth % 3 * len,
            len,
        };
        let plan = Plan {
            way: if how & 2 == 0 { Way::Write } else { Way::Read },
            pieces: (0..count).map(piece).collect(),
            regions: regions.clone(),
            near: Vec::new(),
            incarnation,
            total: count * len,
            guard: (),
            uses: Default::default(),
        };
        let notice = (how & 4 == 0 || count == 0).then(|| vec![5; if how & 8 == 0 { 20 } else { 20_000 }]);
        let audience = if how & 16 == 0 { Audience::Program } else { Audience::Memory };
        let deadline = self.now + Duration::from_millis(100 << (how >> 5));
        if self.posted.len() == POSTED {
            self.release(0);
        }
        let posted = self.hub.post_to(audience, peer, Arc::new(plan), notice, deadline, self.now);
        self.posted.extend(posted.map(|id| Posted { id, deadline }));
    }

    fn release(&mut self, at: usize) {
        if let Some(posted) = self.posted.remove(at % self.posted.len().max(1)) {
            self.hub.release(posted.id);
        }
    }

    /// The hostile peer answers as an honest one would: its operations end, and its sessions open.
    fn behave(&mut self) {
        for op in std::mem::take(&mut self.open) {
            self.hub.ended(op, Ok(()), self.now);
        }
        for to in self.tags.iter().copied().rev().take(2).collect::<Vec<_>>() {
            self.say(Message { to, body: Body::Confirm });
        }
        let ids: Vec<_> = self.ids.iter().copied().collect();
        if let Some(&to) = self.tags.back() {
            self.say(Message { to, body: Body::Ack(ids) });
        }
        self.open.reserve(4 * OPERATIONS as usize);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0 => {
                let hello = self.hello(input);
                self.say(hello);
            }
            1..=4 => {
                let (to, body) = (self.tag(input), self.body(input));
                self.say(Message { to, body });
            }
            5 => {
                let count = (usize::from(input.byte()) * 16).min(MESSAGES.saturating_sub(self.said));
                let (how, Some(mut message)) = (input.byte(), self.last.clone()) else { return };
                for _ in 0..count {
                    if how & 1 == 0 {
                        Self::next(&mut message.body);
                    }
                    self.say(message.clone());
                    self.settle();
                    if how & 2 == 0
                        && let Some(op) = self.open.pop_front()
                    {
                        self.end(op, 0);
                    }
                    // It confirms what it was welcomed to.
                    if how & 4 == 0
                        && matches!(message.body, Body::Hello { .. })
                        && let Some(&to) = self.tags.back()
                    {
                        self.hub.message(&Message { to, body: Body::Confirm }.encode(), self.now);
                    }
                }
            }
            6 => {
                let (at, how) = (usize::from(input.byte()), input.byte());
                if let Some(op) = self.open.remove(at % self.open.len().max(1)) {
                    self.end(op, how);
                    if how & 128 != 0 {
                        self.end(op, how / 8); // it ends twice
                    }
                }
            }
            7 => {
                let how = input.byte();
                for op in self.open.drain(..).collect::<Vec<_>>() {
                    self.end(op, how);
                }
            }
            8 => self.pass(Duration::from_millis(1 << (input.byte() % 16)).min(MAX_PAUSE)),
            9 => self.post(input),
            10 => self.load(input),
            11 => {
                let how = input.byte();
                match how % 5 {
                    0 => drop(self.hub.take_notification()),
                    1 => self.release(usize::from(how / 5)),
                    2 => {
                        if let Some(posted) = self.posted.get(usize::from(how / 5) % POSTED) {
                            self.hub.cancel(posted.id);
                        }
                    }
                    which => {
                        let name = NAMES[usize::from(how / 5) % NAMES.len()];
                        let Some(peer) = self.hub.find(name) else { return };
                        if which == 3 {
                            self.hub.disconnect(peer, self.now);
                        } else {
                            self.hub.forget(peer, self.now);
                        }
                    }
                }
            }
            12 => {
                let (tag, numbers, count) = (self.tag(input), input.word() & 0xFFFF_FFFF, input.byte());
                if !self.secret.contains(&((tag >> 32) as u32)) {
                    for nth in 0..u64::from(count) {
                        self.hub.arrived(tag & !0xFFFF_FFFF | (numbers + nth) & 0xFFFF_FFFF);
                    }
                }
            }
            13 => self.behave(),
            14 => {
                let len = input.short() % 400;
                self.hub.message(input.bytes(len), self.now);
            }
            _ => self.honest(),
        }
        let (_, _, sessions) = self.hub.kept();
        self.sessions = self.sessions.max(sessions);
    }

    /// The hostile peer dies: what it has of the hub's fails.
    fn die(&mut self) {
        while !self.posted.is_empty() {
            self.release(0);
        }
        for _ in 0..200 {
            for op in self.open.drain(..).collect::<Vec<_>>() {
                self.hub.ended(op, Err(Errno::ECONNREFUSED), self.now);
            }
            self.pass(Duration::from_millis(500));
            if self.open.is_empty() && self.hub.kept().0 == 0 && self.hub.kept().1 == 0 {
                break;
            }
        }
        let (operations, transfers, _) = self.hub.kept();
        // It may still try to reach the hostile peer in an open session. It waits for nothing that no rail has.
        let wanted = (self.open.len(), 0);
        assert_eq!((operations, transfers), wanted, "what is left: {:?}", self.hub.counts());
    }
}

/// Keeps the last numbers that were heard.
fn remember(list: &mut VecDeque<u64>, number: u64) {
    if !list.contains(&number) {
        list.push_back(number);
        if list.len() > HEARD {
            list.pop_front();
        }
    }
}

/// Runs a script. Returns whether the hostile peer had a session.
pub fn agents(input: &[u8]) -> bool {
    let mut input = Input(input);
    let mut world = World::new(input.byte() & 1 == 0);
    for nth in 1..=STEPS {
        if input.0.is_empty() {
            break;
        }
        world.step(&mut input);
        world.check();
        if nth % 32 == 0 {
            world.honest();
        }
    }
    world.honest();
    world.check();
    world.die();
    world.honest();
    world.sessions > 1
}
