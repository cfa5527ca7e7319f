//! Two connected endpoints of provider `verbs` on a simulated device, against a model: seed by seed, in
//! simulated time. Messages arrive whole, once and in order, in receives in posting order; reads and writes
//! transfer the right bytes; each operation completes once. Nothing fails unless the connection ends
//! ([`Trouble`]). In that case all open operations complete, a failure has the status of its request at the
//! device, messages received by one end complete successfully at the other, and messages that completed
//! successfully at the end that caused the trouble have arrived. Without trouble, there is as much room for
//! injected messages at the end as at the beginning.
//!
//! `OFI_CONNECTED_SEEDS` sets the number of seeds, `OFI_CONNECTED_FIRST` the first one.

use std::collections::VecDeque;
use std::sync::Arc;

use ofi_testkit::net::Random;
use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};

const DEVICE: &str = "connected0";
/// Maximum length of a message or access in bytes, and the size of the memory that is accessed.
const MAX_MESSAGE_LEN: usize = 4096;
const REGION: usize = 1 << 16;
/// Operations of a run.
const OPS: usize = 400;
/// Polls after which everything must have ended.
const BOUND: usize = 20_000;
/// Messages that the first end has not polled for when the connection ends: more than it takes between two
/// checks for connection events.
const UNREAD: usize = 100;
/// Bytes of an injected message that do not fit inline in a request.
const INJECTED: usize = 700;
/// The status of a request that the device did not execute (`IBV_WC_WR_FLUSH_ERR`).
const FLUSHED: i32 = 5;

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

/// How the connection ends.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// The second end closes.
    Close,
    /// The second end shuts the connection down, and stays.
    Shutdown,
    /// The second end accesses memory for which it has no key.
    Refused,
}

#[derive(Clone, Copy)]
enum Kind {
    Send,
    Receive,
    /// The offset in the peer's memory.
    Write(usize),
    Read(usize),
    /// With a key that was never issued.
    Refused,
}

/// An operation, and its bytes, which are lent to the library until it ends.
struct Op {
    at: usize,
    kind: Kind,
    memory: Memory,
    ended: bool,
    /// It counted as complete when it was posted.
    injected: bool,
    /// It completed successfully.
    well: bool,
    /// A message: it was received.
    came: bool,
}

struct Model {
    device: Arc<SimulatedDevice>,
    sides: [Option<TestEndpoint>; 2],
    to: [FiAddr; 2],
    regions: [Arc<dyn MemoryRegion>; 2],
    /// The target of the other end's accesses: the first half is written to, the second half is read.
    memory: [Memory; 2],
    ops: Vec<Op>,
    /// For each end, its messages that have not arrived, and its receives that have no message.
    sent: [VecDeque<usize>; 2],
    receives: [VecDeque<usize>; 2],
    /// The open writes of each end.
    writes: [usize; 2],
    troubled: Option<Trouble>,
    /// Whether the device has room for every receive.
    takes_all: bool,
    done: usize,
}

impl Model {
    /// Reads all completions, or only one: then the others stay with the device.
    fn poll(&mut self, at: usize, one: bool) {
        let Some(side) = &self.sides[at] else { return };
        let mut entries = [CqTaggedEntry::EMPTY; 1];
        let read = if one { side.rx.read(&mut CqBuffer::new(&mut entries)) } else { Ok(0) };
        match read {
            Ok(1) => return self.ended(at, &Event::Done(entries[0], FiAddr::NOTAVAIL)),
            Err(error) if error.is_again() => return,
            // `TestEndpoint::poll` reads errors as usual.
            Ok(_) | Err(_) => side.poll(),
        }
        let events: Vec<Event> = std::iter::from_fn(|| side.next()).collect();
        events.iter().for_each(|event| self.ended(at, event));
    }

    fn ended(&mut self, at: usize, event: &Event) {
        let number = event.context();
        let op = &mut self.ops[number];
        assert_eq!(op.at, at, "operation {number}");
        // An operation that counted as complete when it was posted may still fail, and then reports it.
        let open = !op.ended || (op.injected && matches!(event, Event::Failed(_)));
        assert!(open, "operation {number} ended twice");
        (op.ended, op.injected) = (true, false);
        if let Kind::Write(_) = op.kind {
            self.writes[at] -= 1;
        }
        match event {
            Event::Done(entry, _) => self.ended_well(at, number, entry),
            Event::Failed(error) => {
                assert!(self.troubled.is_some(), "operation {number}: {error:?}");
                op.well = false;
                // Every operation that reached the device has its status.
                let says = match error.err {
                    Errno::ECANCELED => error.prov_errno == FLUSHED,
                    _ => error.prov_errno != 0 && error.prov_errno != FLUSHED,
                };
                let has_had = !matches!(op.kind, Kind::Receive) || self.takes_all;
                assert!(says || !has_had, "operation {number}: {error:?}");
            }
        }
    }

    fn ended_well(&mut self, at: usize, number: usize, entry: &CqTaggedEntry) {
        self.done += 1;
        self.ops[number].well = true;
        let op = &self.ops[number];
        match op.kind {
            Kind::Send => {}
            Kind::Receive => {
                assert_eq!(self.receives[at].pop_front(), Some(number), "receives are used in order");
                let sent = self.sent[1 - at].pop_front().expect("a message that was sent");
                let from = &self.ops[sent].memory;
                assert_eq!((entry.len, entry.data), (from.len(), sent as u64), "message {sent}");
                assert_eq!(op.memory.bytes()[..entry.len], from.bytes(), "message {sent}");
                self.ops[sent].came = true;
            }
            // The peer's device acknowledges a write before it is in memory. A read behind it checks the
            // bytes.
            Kind::Write(_) => {}
            Kind::Read(offset) => {
                let there = self.memory[1 - at].slice(offset..offset + op.memory.len()).bytes();
                assert_eq!(op.memory.bytes(), there, "read {number}");
            }
            Kind::Refused => panic!("access {number}, which was not allowed, succeeded"),
        }
    }

    fn begin(&mut self, random: &mut Random) {
        let at = random.below(2) as usize;
        let most = [MAX_MESSAGE_LEN, MAX_MESSAGE_LEN, INJECTED][random.below(3) as usize];
        let len = random.below(most as u64 + 1) as usize;
        let half = REGION / 2;
        let offset = random.below((half - len) as u64) as usize;
        match random.below(7) {
            0 | 1 => self.post(at, Kind::Send, len, false),
            2 | 3 => self.post(at, Kind::Receive, MAX_MESSAGE_LEN, false),
            4 => self.post(at, Kind::Send, len.min(INJECTED), true),
            // One write at a time, so that the final contents are known.
            5 if self.writes[at] == 0 => self.post(at, Kind::Write(offset), len, false),
            _ => self.post(at, Kind::Read(half + offset), len, false),
        };
    }

    /// Posts an operation. Returns whether the end still exists and had room.
    fn post(&mut self, at: usize, kind: Kind, len: usize, injected: bool) -> bool {
        let Some(side) = &self.sides[at] else { return false };
        let number = self.ops.len();
        let remote = |offset| [remote_at(&self.regions[1 - at], offset, len)];
        let memory = match kind {
            Kind::Receive => Memory::new(len),
            _ => Memory::patterned(len, (number * 31 + 7) as u8),
        };
        let out = || side.out(self.to[at], &memory).context(number);
        let posted = match kind {
            Kind::Send if injected => {
                // The application may reuse the bytes at once.
                let lent = Memory::patterned(len, (number * 31 + 7) as u8);
                let out = side.out(self.to[at], &lent).context(number).data(number as u64);
                let posted = out.inject().send();
                lent.fill(0xEE);
                posted
            }
            Kind::Send => out().data(number as u64).send(),
            Kind::Receive => side.receive(&memory).context(number).post(),
            Kind::Write(offset) => out().write(&remote(offset)),
            Kind::Read(offset) => out().read(&remote(offset)),
            Kind::Refused => out().read(&[RemotePiece { key: u32::MAX.into(), ..remote(0)[0] }]),
        };
        match posted {
            Ok(()) => {}
            Err(error) if error.is_again() => return false,
            Err(error) => {
                assert!(self.troubled.is_some(), "{error}");
                return false;
            }
        }
        match kind {
            Kind::Send => self.sent[at].push_back(number),
            Kind::Receive => self.receives[at].push_back(number),
            Kind::Write(_) => self.writes[at] += 1,
            Kind::Read(_) | Kind::Refused => {}
        }
        self.ops.push(Op { at, kind, memory, ended: injected, injected, well: false, came: false });
        true
    }

    /// The first end does not poll while the second one sends: completions are still with the device when the
    /// connection ends.
    fn send_unread(&mut self) {
        for _ in 0..UNREAD {
            self.post(0, Kind::Receive, MAX_MESSAGE_LEN, false);
            self.post(1, Kind::Send, 16, false);
            self.poll(1, false);
        }
        (0..2 * UNREAD).for_each(|_| self.poll(1, false));
    }

    fn trouble(&mut self, what: Trouble, unread: bool) {
        if unread {
            self.send_unread();
        }
        self.troubled = Some(what);
        match what {
            Trouble::Close => self.sides[1] = None,
            Trouble::Shutdown => self.sides[1].as_ref().expect("an end").ep.shutdown().expect("a connection"),
            Trouble::Refused => {
                // If the queue is full of messages that wait for receives of the peer, the access cannot be
                // posted, and there is no trouble.
                let posted = (0..64).any(|_| {
                    self.poll(1, false);
                    self.post(1, Kind::Refused, 8, false)
                });
                self.troubled = posted.then_some(what);
            }
        }
        if unread {
            (0..UNREAD).for_each(|_| self.poll(0, true));
        }
    }

    /// Open operations of live ends, without receives that no message was sent to.
    fn open(&self) -> usize {
        let spare = |at: usize| self.sent[1 - at].is_empty() && self.troubled.is_none();
        let is_open = |op: &&Op| {
            let waits = matches!(op.kind, Kind::Receive) && spare(op.at);
            !op.ended && self.sides[op.at].is_some() && !waits
        };
        self.ops.iter().filter(is_open).count()
    }

    /// Messages that must still arrive, plus one if the device is busy: the ends of injected messages are not
    /// reported.
    fn missing(&self) -> usize {
        let missing =
            self.sent.iter().map(VecDeque::len).sum::<usize>() + usize::from(!self.device.is_still());
        if self.troubled.is_none() { missing } else { 0 }
    }

    /// Posts a receive for each message that has none.
    fn make_room(&mut self) {
        for at in 0..2 {
            while self.sides[at].is_some() && self.receives[at].len() < self.sent[1 - at].len() {
                if !self.post(at, Kind::Receive, MAX_MESSAGE_LEN, false) {
                    break;
                }
            }
        }
    }

    /// Goes on until everything has ended.
    fn drain(&mut self) {
        for turn in 0..BOUND {
            if self.open() == 0 && self.missing() == 0 {
                return (0..2).for_each(|at| self.poll(at, false));
            }
            // Receives are posted once only, so that only the completion of others brings them to the device.
            // The refused access may wait behind messages.
            if turn == 0 && matches!(self.troubled, None | Some(Trouble::Refused)) {
                self.make_room();
            }
            // Completions are read slowly, so that many are still with the device when the end of the
            // connection is noticed.
            let one = self.troubled.is_some() && turn < 200;
            (0..2).for_each(|at| self.poll(at, one));
        }
        let left = (self.open(), self.missing());
        panic!("open operations, missing messages: {left:?}, {:?}", self.troubled);
    }

    /// The number of injected messages that each end has room for, while the other end receives none.
    fn room(&mut self) -> [usize; 2] {
        let room = [0, 1].map(|at| {
            // Uses up receives of the other end, which would take the messages.
            for turn in 0.. {
                if self.receives[1 - at].len() <= self.sent[at].len() {
                    break;
                }
                assert!(turn < BOUND, "messages do not reach the receives of {}", 1 - at);
                if !self.post(at, Kind::Send, 1, false) {
                    (0..2).for_each(|at| self.poll(at, false));
                }
            }
            // A message with a completion also completes the injected ones before it, which are not reported
            // themselves.
            self.post(1 - at, Kind::Receive, MAX_MESSAGE_LEN, false);
            self.post(at, Kind::Send, 1, false);
            self.drain();
            (0..BOUND).take_while(|_| self.post(at, Kind::Send, INJECTED, true)).count()
        });
        self.drain();
        room
    }

    /// Checks the guarantees that hold after the end of a connection.
    fn check_ends(&self) {
        let Some(trouble) = self.troubled else { return };
        let sends = self.ops.iter().enumerate().filter(|(_, op)| matches!(op.kind, Kind::Send));
        for (number, op) in sends {
            match op.at {
                // Messages that the second end received before it left were acknowledged.
                0 if op.came && !matches!(trouble, Trouble::Refused) => {
                    assert!(op.ended && (op.well || op.injected), "message {number} arrived, {trouble:?}");
                }
                // Messages that it sent successfully had a receive.
                1 if op.well => assert!(op.came, "message {number} did not arrive, {trouble:?}"),
                _ => {}
            }
        }
    }
}

fn run(device: &Arc<SimulatedDevice>, seed: u64) -> usize {
    let mut random = Random(seed);
    let mut of = |choice: &[u64]| choice[random.below(choice.len() as u64) as usize];
    // With few requests, receives and operations wait for the completion of others.
    let requests = of(&[1024, 1024, 8]) as usize;
    device.begin(Plan {
        seed,
        not_ready: of(&[0, 0, 5, 40]),
        late: of(&[0, 10, 90]),
        unplaced: of(&[0, 50]),
        slow: of(&[0, 10]),
        overtaken: of(&[0, 100]),
        inline: of(&[0, 64, 256]) as usize,
        cleans: of(&[0, 1]) == 1,
        requests,
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
        device: Arc::clone(device),
        sides: [Some(a), Some(b)],
        to: [to_b, to_a],
        regions: regions.try_into().expect("two"),
        memory,
        ops: Vec::new(),
        sent: Default::default(),
        receives: Default::default(),
        writes: [0; 2],
        troubled: None,
        takes_all: requests > OPS,
        done: 0,
    };
    let room = model.room();
    let trouble = [Trouble::Close, Trouble::Shutdown, Trouble::Refused][random.below(3) as usize];
    let stop = random.chance(400).then(|| random.below(OPS as u64));
    for step in 0..OPS as u64 {
        match random.below(9) {
            0 | 1 => model.poll(random.below(2) as usize, false),
            2 => model.poll(random.below(2) as usize, true),
            _ => model.begin(&mut random),
        }
        if stop == Some(step) {
            let unread = random.chance(500);
            model.trouble(trouble, unread);
        }
    }
    model.drain();
    model.check_ends();
    if model.troubled.is_none() {
        assert_eq!(model.room(), room, "injected messages that each end has room for");
        let ended = |op: &&Op| matches!(op.kind, Kind::Write(_)) && op.ended;
        for at in 0..2 {
            // The last write of each end is in the other end's memory: a read by the device follows it.
            let last = model.ops.iter().rev().filter(ended).find(|op| op.at == at);
            let Some(Op { kind: Kind::Write(offset), memory, .. }) = last else { continue };
            let (offset, written) = (*offset, memory.bytes());
            let side = model.sides[at].as_ref().expect("both ends");
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
    // SAFETY: this binary has one test, which starts no threads that read the environment.
    unsafe { std::env::set_var("FI_VERBS_LINGER_MS", "20") };
    let device = SimulatedDevice::driven(DEVICE, Plan::default());
    ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
    // Refused if the provider is already registered.
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
