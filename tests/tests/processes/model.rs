//! The whole stack, three endpoints in one process, against a model that is only vectors searched from the front.
//!
//! Between two endpoints everything is ordered, so the model predicts which receive gets which message, and
//! the contents of memory. Where the order is undefined (two senders to one receiver, a search while messages
//! are in flight), the test first lets everything arrive.

use std::collections::HashMap;

use ofi_testkit::memory::Slice;
use ofi_testkit::prelude::{Result, *};
use ofi_tests::{Naming, hints};
use proptest::collection::vec;
use proptest::prelude::*;

const ENDPOINTS: usize = 3;
/// Bytes of remote memory at each endpoint, of each kind.
const MEMORY: usize = 20_000;
/// Lengths of messages: around the limit of a payload inside a command, and well above.
const LENGTHS: [usize; 6] = [0, 5, 64, 4_000, 9_000, 70_000];

/// The messages that a receive or a search matches.
#[derive(Clone, Copy, Debug)]
struct Want {
    tag: Option<(u64, u64)>,
    source: Option<usize>,
}

#[derive(Clone, Debug)]
enum Step {
    Send { from: usize, to: usize, tag: Option<u64>, len: usize, confirm: bool },
    Receive { at: usize, want: Want, room: usize },
    Cancel { at: usize, which: usize },
    Peek { at: usize, want: Want, discard: bool },
    Claim { at: usize, want: Want },
    TakeClaimed { at: usize, which: usize, discard: bool },
    Write { from: usize, to: usize, library: bool, offset: usize, len: usize },
    Read { from: usize, to: usize, library: bool, offset: usize, len: usize },
    Settle,
}

fn wants(tagged_only: bool) -> impl Strategy<Value = Want> {
    let tag = (0..4_u64, prop_oneof![3 => Just(0_u64), 1 => Just(1), 1 => Just(u64::MAX)]);
    let tag = if tagged_only { tag.prop_map(Some).boxed() } else { proptest::option::of(tag).boxed() };
    (tag, proptest::option::of(0..ENDPOINTS)).prop_map(|(tag, source)| Want { tag, source })
}

fn steps() -> impl Strategy<Value = Step> {
    let endpoint = || 0..ENDPOINTS;
    let range = || (0..MEMORY, 0..MEMORY).prop_map(|(a, b)| (a.min(b), a.abs_diff(b)));
    let length = || proptest::sample::select(&LENGTHS[..]);
    prop_oneof![
        8 => (endpoint(), endpoint(), proptest::option::of(0..4_u64), length(), any::<bool>())
            .prop_map(|(from, to, tag, len, confirm)| Step::Send { from, to, tag, len, confirm }),
        8 => (endpoint(), wants(false), length()).prop_map(|(at, want, room)| Step::Receive { at, want, room }),
        1 => (endpoint(), any::<usize>()).prop_map(|(at, which)| Step::Cancel { at, which }),
        1 => (endpoint(), wants(true), any::<bool>())
            .prop_map(|(at, want, discard)| Step::Peek { at, want, discard }),
        1 => (endpoint(), wants(true)).prop_map(|(at, want)| Step::Claim { at, want }),
        1 => (endpoint(), any::<usize>(), any::<bool>())
            .prop_map(|(at, which, discard)| Step::TakeClaimed { at, which, discard }),
        2 => (endpoint(), endpoint(), any::<bool>(), range())
            .prop_map(|(from, to, library, (offset, len))| Step::Write { from, to, library, offset, len }),
        2 => (endpoint(), endpoint(), any::<bool>(), range())
            .prop_map(|(from, to, library, (offset, len))| Step::Read { from, to, library, offset, len }),
        1 => Just(Step::Settle),
    ]
}

/// A message in the model. Its number is its remote CQ data, and determines its pattern.
#[derive(Clone, Debug)]
struct Message {
    number: usize,
    from: usize,
    tag: Option<u64>,
    len: usize,
}

impl Message {
    fn suits(&self, want: &Want) -> bool {
        let tag = match (want.tag, self.tag) {
            (None, None) => true,
            (Some((tag, ignore)), Some(sent)) => tag | ignore == sent | ignore,
            _ => false,
        };
        tag && want.source.is_none_or(|source| source == self.from)
    }
}

#[derive(Clone, Debug)]
struct Posted {
    context: usize,
    want: Want,
    room: usize,
}

/// The event that the model expects from an endpoint's queue, for one context.
#[derive(Debug)]
enum Expected {
    /// A message, received into a buffer.
    Received {
        message: Message,
        room: usize,
        into: Option<Memory>,
    },
    /// A peek or a discard: a success with the message's length.
    Found(Message),
    Nothing,
    Cancelled,
    /// A send or access; a read brings these bytes.
    Done {
        bytes: Option<(Memory, Vec<u8>)>,
    },
}

/// One endpoint, and the model of it.
struct Node {
    side: TestEndpoint,
    to: Vec<FiAddr>,
    regions: [RemotePiece; 2],
    bytes: [Vec<u8>; 2],
    posted: Vec<Posted>,
    arrived: Vec<Message>,
    claimed: Vec<(usize, Message)>,
    buffers: HashMap<usize, Memory>,
    expected: HashMap<usize, Expected>,
    /// The node that has messages or accesses in flight to this one.
    busy_with: Option<usize>,
}

struct World {
    nodes: Vec<Node>,
    next: usize,
}

/// Contexts of remote accesses are odd, all others even.
const fn is_access(context: usize) -> bool {
    context % 2 == 1
}

impl World {
    fn new(progress: Progress) -> Self {
        let sides: Vec<TestEndpoint> = (0..ENDPOINTS)
            .map(|_| {
                let opening = Opening::new(hints(Naming::Names));
                opening.hints(|hints| hints.mr_mode(MrMode::PROV_KEY).progress(progress)).open()
            })
            .collect();
        let names: Vec<Address> = sides.iter().map(TestEndpoint::name).collect();
        let nodes = sides.into_iter().map(|side| {
            let to = names.iter().map(|name| side.insert_address(name)).collect();
            let memories = [Memory::new(MEMORY), Memory::library(&side.domain, MEMORY)];
            let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
            let regions = memories.map(|memory| {
                let region = side.register(&memory, rights).unwrap();
                let piece = remote(&region);
                std::mem::forget(region); // stays registered until the domain closes
                piece
            });
            Node {
                side,
                to,
                regions,
                bytes: [vec![0; MEMORY], vec![0; MEMORY]],
                posted: Vec::new(),
                arrived: Vec::new(),
                claimed: Vec::new(),
                buffers: HashMap::new(),
                expected: HashMap::new(),
                busy_with: None,
            }
        });
        Self { nodes: nodes.collect(), next: 0 }
    }

    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// Drives everything until `done` is.
    fn drive(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        loop {
            for at in 0..ENDPOINTS {
                self.nodes[at].side.poll();
                while let Some(event) = self.nodes[at].side.next() {
                    self.nodes[at].take(event);
                }
            }
            if done(self) {
                return;
            }
            if start.elapsed() > wait::BOUND {
                let nodes = self.nodes.iter();
                let report: Vec<String> =
                    nodes.map(|node| format!("{:?}\n{}", node.expected, node.side.report())).collect();
                panic!("waited for {what}\n{}", report.join("\n"));
            }
            std::thread::yield_now();
        }
    }

    fn post(&mut self, mut post: impl FnMut(&Self) -> Result<()>) {
        self.drive("room to post", |world| match post(world) {
            Ok(()) => true,
            Err(error) => {
                assert!(error.is_again(), "{error}");
                false
            }
        });
    }

    /// Lets everything in flight arrive.
    fn settle(&mut self) {
        self.drive("everything to arrive", |world| {
            world.nodes.iter().all(|node| {
                let unexpected = node.side.statistic("rx_unexpected_now") as usize;
                let waiting = node.arrived.len();
                // All but sends: those may have to wait for a receive.
                let others = node.expected.iter().any(|(&context, expected)| {
                    is_access(context) || !matches!(expected, Expected::Done { .. })
                });
                unexpected == waiting + node.claimed.len() && !others
            })
        });
        self.nodes.iter_mut().for_each(|node| node.busy_with = None);
    }

    /// Settles if another node has something in flight to `to`.
    fn claim_way(&mut self, from: usize, to: usize) {
        if self.nodes[to].busy_with.is_some_and(|busy| busy != from) {
            self.settle();
        }
        self.nodes[to].busy_with = Some(from);
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Send { from, to, tag, len, confirm } => self.send(from, to, tag, len, confirm),
            Step::Receive { at, want, room } => self.receive(at, want, room),
            Step::Cancel { at, which } => self.cancel(at, which),
            Step::Peek { at, want, discard } => self.peek(at, want, discard),
            Step::Claim { at, want } => self.claim(at, want),
            Step::TakeClaimed { at, which, discard } => self.take_claimed(at, which, discard),
            Step::Write { from, to, library, offset, len } => {
                self.access(true, (from, to), library, offset, len)
            }
            Step::Read { from, to, library, offset, len } => {
                self.access(false, (from, to), library, offset, len)
            }
            Step::Settle => self.settle(),
        }
    }

    fn send(&mut self, from: usize, to: usize, tag: Option<u64>, len: usize, confirm: bool) {
        self.claim_way(from, to);
        let number = self.number();
        let context = 2 * number;
        let memory = Memory::patterned(len, number as u8);
        let flags = if confirm { OpFlags::DELIVERY_COMPLETE } else { OpFlags::empty() };
        self.post(|world| {
            let node = &world.nodes[from];
            let out = node.side.out(node.to[to], &memory).context(context).data(number as u64).msg(flags);
            // `msg` replaces the flags; the data goes with every message here.
            let out = out.data(number as u64);
            if let Some(tag) = tag { out.tag(tag) } else { out }.send()
        });
        self.nodes[from].expected.insert(context, Expected::Done { bytes: None });
        let message = Message { number, from, tag, len };
        let node = &mut self.nodes[to];
        match node.posted.iter().position(|posted| message.suits(&posted.want)) {
            Some(at) => {
                let posted = node.posted.remove(at);
                node.expect_message(posted.context, message, posted.room);
            }
            None => node.arrived.push(message),
        }
    }

    fn receive(&mut self, at: usize, want: Want, room: usize) {
        let context = 2 * self.number();
        let memory = Memory::new(room);
        self.post(|world| {
            let node = &world.nodes[at];
            node.search(want, OpFlags::empty(), context, Some(memory.slice(..))).post()
        });
        let node = &mut self.nodes[at];
        node.buffers.insert(context, memory);
        match node.arrived.iter().position(|message| message.suits(&want)) {
            Some(found) => {
                let message = node.arrived.remove(found);
                node.expect_message(context, message, room);
            }
            None => node.posted.push(Posted { context, want, room }),
        }
    }

    fn cancel(&mut self, at: usize, which: usize) {
        self.settle();
        let node = &mut self.nodes[at];
        if node.posted.is_empty() {
            return;
        }
        let posted = node.posted.remove(which % node.posted.len());
        node.expected.insert(posted.context, Expected::Cancelled);
        node.side.cancel(posted.context).unwrap();
        self.settle();
    }

    fn peek(&mut self, at: usize, want: Want, discard: bool) {
        self.settle();
        let context = 2 * self.number();
        let flags = OpFlags::PEEK | if discard { OpFlags::DISCARD } else { OpFlags::empty() };
        let node = &mut self.nodes[at];
        node.search(want, flags, context, None).post().unwrap();
        let expected = match node.arrived.iter().position(|message| message.suits(&want)) {
            Some(found) if discard => Expected::Found(node.arrived.remove(found)),
            Some(found) => Expected::Found(node.arrived[found].clone()),
            None => Expected::Nothing,
        };
        node.expected.insert(context, expected);
        self.settle();
    }

    fn claim(&mut self, at: usize, want: Want) {
        self.settle();
        let context = 2 * self.number();
        let node = &mut self.nodes[at];
        node.search(want, OpFlags::PEEK | OpFlags::CLAIM, context, None).post().unwrap();
        let expected = match node.arrived.iter().position(|message| message.suits(&want)) {
            Some(found) => {
                let message = node.arrived.remove(found);
                node.claimed.push((context, message.clone()));
                Expected::Found(message)
            }
            None => Expected::Nothing,
        };
        node.expected.insert(context, expected);
        self.settle();
    }

    fn take_claimed(&mut self, at: usize, which: usize, discard: bool) {
        self.settle();
        let node = &mut self.nodes[at];
        if node.claimed.is_empty() {
            return;
        }
        let (context, message) = node.claimed.remove(which % node.claimed.len());
        let want = Want { tag: Some((0, 0)), source: None };
        if discard {
            node.search(want, OpFlags::CLAIM | OpFlags::DISCARD, context, None).post().unwrap();
            node.expected.insert(context, Expected::Found(message));
        } else {
            let room = message.len;
            let memory = Memory::new(room);
            node.search(want, OpFlags::CLAIM, context, Some(memory.slice(..))).post().unwrap();
            node.buffers.insert(context, memory);
            node.expect_message(context, message, room);
        }
        self.settle();
    }

    fn access(&mut self, write: bool, (from, to): (usize, usize), library: bool, offset: usize, len: usize) {
        self.claim_way(from, to);
        let number = self.number();
        let context = 2 * number + 1; // see `is_access`
        let region = self.nodes[to].regions[usize::from(library)];
        let there = [RemotePiece { addr: region.addr + offset as u64, len, key: region.key }];
        let local = if write { Memory::patterned(len, number as u8) } else { Memory::new(len) };
        self.post(|world| {
            let node = &world.nodes[from];
            let out = node.side.out(node.to[to], &local).context(context);
            if write { out.write(&there) } else { out.read(&there) }
        });
        let bytes = &mut self.nodes[to].bytes[usize::from(library)][offset..offset + len];
        let read = if write {
            bytes.copy_from_slice(&local.bytes());
            None
        } else {
            Some((local, bytes.to_vec()))
        };
        self.nodes[from].expected.insert(context, Expected::Done { bytes: read });
    }

    /// Receives the remaining messages, and checks that no others arrive.
    fn finish(&mut self) {
        self.settle();
        for at in 0..ENDPOINTS {
            while !self.nodes[at].claimed.is_empty() {
                self.take_claimed(at, 0, false);
            }
            while let Some(message) = self.nodes[at].arrived.first() {
                let want = Want { tag: message.tag.map(|tag| (tag, 0)), source: None };
                let room = message.len;
                self.receive(at, want, room);
            }
        }
        self.settle();
        self.drive("the end of all operations", |world| {
            world.nodes.iter().all(|node| node.expected.is_empty())
        });
        for node in &self.nodes {
            assert_eq!(node.side.statistic("rx_posted") as usize, node.posted.len());
            assert_eq!(node.side.statistic("tx_outstanding"), 0);
        }
    }
}

impl Node {
    /// A receive or a search.
    fn search(
        &self,
        want: Want,
        flags: OpFlags,
        context: usize,
        into: Option<Slice>,
    ) -> ofi_testkit::post::In<'_> {
        let buffers: Vec<Slice> = into.into_iter().collect();
        let receive = self.side.receive(buffers).context(context).msg(flags);
        let receive = if let Some(source) = want.source { receive.from(self.to[source]) } else { receive };
        if let Some((tag, ignore)) = want.tag { receive.tag_ignoring(tag, ignore) } else { receive }
    }

    fn expect_message(&mut self, context: usize, message: Message, room: usize) {
        let into = self.buffers.remove(&context);
        self.expected.insert(context, Expected::Received { message, room, into });
    }

    /// Compares an event of the queue with the model's expectation.
    fn take(&mut self, event: Event) {
        let context = event.context();
        let expected = self.expected.remove(&context).unwrap_or_else(|| panic!("unexpected {event:?}"));
        match (expected, event) {
            (Expected::Received { message, room, into }, Event::Done(entry, source))
                if message.len <= room =>
            {
                assert_eq!((entry.data, entry.len), (message.number as u64, message.len));
                assert_eq!(entry.tag, message.tag.unwrap_or(0));
                assert_eq!(source, self.to[message.from]);
                if let Some(into) = into {
                    into.check(message.len, message.number as u8);
                }
            }
            (Expected::Received { message, room, into }, Event::Failed(error)) if message.len > room => {
                assert_eq!(error.err, Errno::ETRUNC);
                assert_eq!(
                    (error.data, error.len, error.olen),
                    (message.number as u64, room, message.len - room)
                );
                if let Some(into) = into {
                    into.check(room, message.number as u8);
                }
            }
            (Expected::Found(message), Event::Done(entry, source)) => {
                assert_eq!((entry.data, entry.len), (message.number as u64, message.len));
                assert_eq!((entry.tag, source), (message.tag.unwrap_or(0), self.to[message.from]));
            }
            (Expected::Nothing, Event::Failed(error)) => assert_eq!(error.err, Errno::ENOMSG),
            (Expected::Cancelled, Event::Failed(error)) => assert_eq!(error.err, Errno::ECANCELED),
            (Expected::Done { bytes }, Event::Done(..)) => {
                if let Some((memory, wanted)) = bytes {
                    assert!(
                        memory.bytes() == wanted,
                        "a read of {} bytes returned wrong contents",
                        wanted.len()
                    );
                }
            }
            (expected, event) => panic!("expected {expected:?}, found {event:?}"),
        }
    }
}

fn play(steps: &[Step], progress: Progress) {
    let mut world = World::new(progress);
    steps.iter().for_each(|step| world.run(step));
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_stack_does_what_the_model_says(steps in vec(steps(), 1..80)) {
        play(&steps, Progress::Manual);
    }

    #[test]
    fn the_stack_does_what_the_model_says_with_threads_of_its_own(steps in vec(steps(), 1..80)) {
        play(&steps, Progress::Auto);
    }
}
