//! Two connected endpoints of provider `verbs` on a simulated device, against a model: seed by seed, in the time of the
//! fabric. Messages come whole, once and in order, into receives in the order in which they were posted; a read gives,
//! and a write leaves, what it should; each operation ends once. Nothing fails unless an end closes, and then all that
//! is open at the other end still ends.
//!
//! `OFI_CONNECTED_SEEDS` says how many seeds, `OFI_CONNECTED_FIRST` with which one to begin.

use std::collections::VecDeque;
use std::sync::Arc;

use ofi_testkit::net::Random;
use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};

const DEVICE: &str = "connected0";
/// Bytes of the longest message or access, and of the memory that is accessed.
const LONGEST: usize = 4096;
const REGION: usize = 1 << 16;
/// Operations of a run.
const OPS: usize = 400;
/// Polls after which everything must have ended.
const BOUND: usize = 20_000;

struct Connected;

impl Kit for Connected {
    fn hints(&self) -> Hints {
        let hints = Hints::new().provider("verbs").ep_type(EpType::Msg).domain(DEVICE);
        hints.addr_format(AddrFormat::SockaddrIn).mode(Mode::RX_CQ_DATA)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::RMA
    }

    fn connected_caps(&self) -> Caps {
        self.usual_caps()
    }

    fn moves_by_itself(&self) -> bool {
        true
    }
}

enum Kind {
    Send,
    Receive,
    /// From where in the peer's memory on.
    Write(usize),
    Read(usize),
}

/// An operation, and its bytes, which are lent to the library until it ends.
struct Op {
    at: usize,
    kind: Kind,
    memory: Memory,
    ended: bool,
}

struct Model {
    sides: [Option<Side>; 2],
    to: [FiAddr; 2],
    regions: [Arc<dyn MemoryRegion>; 2],
    /// What accesses of the other end are made to: the first half is written to, the second is read.
    memory: [Memory; 2],
    ops: Vec<Op>,
    /// Of each end, messages that it has sent and that have not come, and its receives that have nothing.
    sent: [VecDeque<usize>; 2],
    receives: [VecDeque<usize>; 2],
    /// Operations of each end that are open and would change the memory that a later one is about.
    writes: [usize; 2],
    troubled: bool,
    done: usize,
}

impl Model {
    fn poll(&mut self, at: usize) {
        let Some(side) = &self.sides[at] else { return };
        side.poll();
        let events: Vec<Event> = std::iter::from_fn(|| side.next()).collect();
        for event in events {
            let number = event.context();
            let op = &mut self.ops[number];
            assert_eq!(op.at, at, "operation {number}");
            assert!(!std::mem::replace(&mut op.ended, true), "operation {number} ended twice");
            if let Kind::Write(_) = op.kind {
                self.writes[at] -= 1;
            }
            match event {
                Event::Done(entry, _) => self.ended_well(at, number, &entry),
                Event::Failed(error) => assert!(self.troubled, "operation {number}: {error:?}"),
            }
        }
    }

    fn ended_well(&mut self, at: usize, number: usize, entry: &CqTaggedEntry) {
        self.done += 1;
        let op = &self.ops[number];
        match op.kind {
            Kind::Send => {}
            Kind::Receive => {
                assert_eq!(self.receives[at].pop_front(), Some(number), "receives are used in order");
                let sent = self.sent[1 - at].pop_front().expect("a message that was sent");
                let from = &self.ops[sent].memory;
                assert_eq!((entry.len, entry.data), (from.len(), sent as u64), "message {sent}");
                assert_eq!(op.memory.bytes()[..entry.len], from.bytes(), "message {sent}");
            }
            // Acknowledged by the peer's device, it may be in memory a little later: a read behind it looks.
            Kind::Write(_) => {}
            Kind::Read(offset) => {
                let there = self.memory[1 - at].slice(offset..offset + op.memory.len()).bytes();
                assert_eq!(op.memory.bytes(), there, "read {number}");
            }
        }
    }

    fn begin(&mut self, random: &mut Random) {
        let at = random.below(2) as usize;
        let Some(side) = &self.sides[at] else { return };
        let (number, len) = (self.ops.len(), random.below(LONGEST as u64 + 1) as usize);
        let half = REGION / 2;
        let offset = random.below((half - len) as u64) as usize;
        let remote = |offset| [remote_at(&self.regions[1 - at], offset, len)];
        let memory = Memory::patterned(len, (number * 31 + 7) as u8);
        let (kind, memory) = match random.below(6) {
            0 | 1 => (Kind::Send, memory),
            2 | 3 => (Kind::Receive, Memory::new(LONGEST)),
            // One write at a time, so that what is there in the end is known.
            4 if self.writes[at] == 0 => (Kind::Write(offset), memory),
            _ => (Kind::Read(half + offset), memory),
        };
        let out = || side.out(self.to[at], &memory).context(number);
        let posted = match kind {
            Kind::Send => out().data(number as u64).send(),
            Kind::Receive => side.receive(&memory).context(number).post(),
            Kind::Write(offset) => out().write(&remote(offset)),
            Kind::Read(offset) => out().read(&remote(offset)),
        };
        match posted {
            Ok(()) => {}
            Err(error) if error.is_again() || self.troubled => return,
            Err(error) => panic!("{error}"),
        }
        match kind {
            Kind::Send => self.sent[at].push_back(number),
            Kind::Receive => self.receives[at].push_back(number),
            Kind::Write(_) => self.writes[at] += 1,
            Kind::Read(_) => {}
        }
        self.ops.push(Op { at, kind, memory, ended: false });
    }

    /// Operations of ends that are there and have not ended, beside receives that nothing was sent to.
    fn open(&self) -> usize {
        let spare = |at: usize| self.sent[1 - at].is_empty() && !self.troubled;
        let is_open = |op: &&Op| {
            let waits = matches!(op.kind, Kind::Receive) && spare(op.at);
            !op.ended && self.sides[op.at].is_some() && !waits
        };
        self.ops.iter().filter(is_open).count()
    }

    /// Posts a receive for each message that has none.
    fn make_room(&mut self) {
        for at in 0..2 {
            let Some(side) = &self.sides[at] else { continue };
            while self.receives[at].len() < self.sent[1 - at].len() {
                let (number, memory) = (self.ops.len(), Memory::new(LONGEST));
                match side.receive(&memory).context(number).post() {
                    Ok(()) => self.receives[at].push_back(number),
                    Err(_) => break,
                }
                self.ops.push(Op { at, kind: Kind::Receive, memory, ended: false });
            }
        }
    }
}

fn run(device: &SimulatedDevice, seed: u64) -> usize {
    let mut random = Random(seed);
    let mut of = |choice: &[u64]| choice[random.below(choice.len() as u64) as usize];
    device.begin(Plan {
        seed,
        not_ready: of(&[0, 0, 5, 40]),
        late: of(&[0, 10, 90]),
        unplaced: of(&[0, 50]),
        slow: of(&[0, 10]),
        inline: of(&[0, 64, 256]) as usize,
        cleans: of(&[0, 1]) == 1,
        ..Plan::default()
    });
    let kit: &dyn Kit = &Connected;
    let Pair { a, b, to_a, to_b } = kit.pair();
    let memory = [Memory::patterned(REGION, 3), Memory::patterned(REGION, 4)];
    let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    let regions =
        [&a, &b].into_iter().zip(&memory).map(|(side, memory)| side.register(memory, rights).unwrap());
    let regions: Vec<_> = regions.collect();
    let mut model = Model {
        sides: [Some(a), Some(b)],
        to: [to_b, to_a],
        regions: regions.try_into().expect("two"),
        memory,
        ops: Vec::new(),
        sent: Default::default(),
        receives: Default::default(),
        writes: [0; 2],
        troubled: false,
        done: 0,
    };
    let stop = random.chance(250).then(|| random.below(OPS as u64));
    for step in 0..OPS as u64 {
        match random.below(3) {
            0 => model.poll(random.below(2) as usize),
            _ => model.begin(&mut random),
        }
        if stop == Some(step) {
            model.troubled = true;
            model.sides[1] = None;
        }
    }
    for _ in 0..BOUND {
        if model.open() == 0 {
            break;
        }
        if !model.troubled {
            model.make_room();
        }
        (0..2).for_each(|at| model.poll(at));
    }
    assert_eq!(model.open(), 0, "operations that have not ended; an end closed: {}", model.troubled);
    if !model.troubled {
        assert!(model.sent.iter().all(VecDeque::is_empty), "messages that have not come");
        let ended = |op: &&Op| matches!(op.kind, Kind::Write(_)) && op.ended;
        for at in 0..2 {
            // The last write of each end is in the other one's memory: a read by the device comes behind it.
            let last = model.ops.iter().rev().filter(ended).find(|op| op.at == at);
            let Some(Op { kind: Kind::Write(offset), memory, .. }) = last else { continue };
            let (offset, written) = (*offset, memory.bytes());
            let side = model.sides[at].as_ref().expect("both are there");
            let (back, sides) = (Memory::new(written.len()), [side]);
            let there = [remote_at(&model.regions[1 - at], offset, written.len())];
            wait::drive(&sides, "room", || {
                side.out(model.to[at], &back).context(usize::MAX).read(&there).ok()
            });
            wait::drive(&sides, "a read", || side.next_of(usize::MAX)).done();
            assert_eq!(back.bytes(), written, "the last write of {at}");
        }
    }
    model.done
}

#[test]
fn connected_endpoints_keep_to_the_model_whatever_their_devices_do() {
    let device = SimulatedDevice::driven(DEVICE, Plan::default());
    ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
    // Where the library has it already, this is refused.
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
    let number = |what: &str| {
        let value = std::env::var(format!("OFI_CONNECTED_{what}")).ok()?;
        Some(value.parse::<u64>().expect("a number of seeds"))
    };
    let (first, seeds) = (number("FIRST").unwrap_or(1), number("SEEDS").unwrap_or(100));
    let mut done = 0;
    for seed in first..first + seeds {
        println!("seed {seed}: OFI_CONNECTED_FIRST={seed} OFI_CONNECTED_SEEDS=1");
        done += run(&device, seed);
    }
    assert!(done as u64 > seeds * 50, "{done} operations in {seeds} seeds");
}
