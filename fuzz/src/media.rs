//! Connections of `mxl-fabrics`, from the greeting to the end, over shared memory: a target, an initiator with an
//! honest target, and a peer of each that breaks the rules. With one bit of the input the target is one of provider
//! `tcp`, and also has a hostile initiator of the C++ SDK's protocol.
//!
//! The input is a script. Its steps are those of the hostile initiator and of the hostile target (they greet or
//! welcome, send any message with numbers that they have heard, once or many times, write remotely with any CQ data, read their
//! messages or do not, and come back under another address), and those of the honest ends (a grain or a batch is sent,
//! an end is polled, the hostile target is added again).
//!
//! After each step no end has failed, and none keeps more memory than its bounds permit. At the end the honest target
//! gets what is sent then, and an honest initiator takes the place of the hostile one.
//!
//! Time is real here, so an input must do without pauses: what only time brings (greetings that are repeated, targets
//! that do not answer for a second) happens at the end alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mxl::{BatchHints, FlowDefinition, Geometry, GrainWriter, Rational, SampleWriter};
use mxl_fabrics::message::{self, Commit, Message, Piece, Remote, Span, VERSION, Why};
use mxl_fabrics::{Initiator, Options, OwnKeys, PeerState, Provider, Target, TargetInfo};
use ofi::{AddrFormat, Address, CompletionKind, FiAddr, Hints, Node, RemoteWindow};

use super::foreign::Foreign;
use super::mxl::Folder;
use super::{Input, heap};

/// Steps of a script, and messages of all of its steps together.
const STEPS: usize = 160;
const MESSAGES: usize = 4_000;
/// Time in which honest ends get on, on a machine that does much else.
const HONEST: Duration = Duration::from_secs(60);
/// Bytes that all ends may keep beyond what they have after they were opened: events, messages under way, answers.
const KEPT: isize = 12 << 20;
/// Numbers that a hostile end remembers.
const HEARD: usize = 64;
/// Messages of a hostile end that are under way.
const UNDER_WAY: usize = 64;
/// The hostile target's id, and that of the honest one.
const TRENT: u64 = 66;
const BOB: u64 = 1;
const ANY: (Option<&str>, Option<&str>) = (None, None);

enum Writer {
    Grains(GrainWriter),
    Samples(Box<SampleWriter>),
}

/// An endpoint that says whatever the input wants.
struct Hostile {
    node: Node,
    peer: Option<FiAddr>,
    heard: VecDeque<u64>,
    /// What it said last, without its payload.
    last: Vec<u8>,
    reads: usize,
}

impl Hostile {
    fn open() -> Self {
        let node = Node::open(&Hints::new().provider("shm")).expect("shared memory");
        Self { node, peer: None, heard: VecDeque::new(), last: Vec::new(), reads: 0 }
    }

    fn name(&self) -> (u32, Vec<u8>) {
        let name = self.node.name().expect("an endpoint that is enabled");
        (name.format().as_c(), name.bytes().to_vec())
    }

    fn reach(&mut self, format: u32, address: &[u8]) {
        let Some(format) = AddrFormat::from_c(format) else { return };
        self.peer = self.node.insert(&Address::new(format, address)).ok().or(self.peer);
    }

    /// Sends a message, unless too many are under way.
    fn say(&mut self, bytes: Vec<u8>) {
        if self.last != bytes {
            self.last.clone_from(&bytes);
        }
        if let Some(peer) = self.peer.filter(|_| self.node.in_flight() < UNDER_WAY) {
            let _ = self.node.send(bytes, peer);
        }
    }

    fn hear(&mut self, numbers: &[u64]) {
        for number in numbers {
            if !self.heard.contains(number) {
                self.heard.push_back(*number);
                if self.heard.len() > HEARD {
                    self.heard.pop_front();
                }
            }
        }
    }

    /// Reads what has come. A greeting tells it whom to answer.
    fn poll(&mut self) {
        while self.reads < 4 && self.node.recv(vec![0; 4096]).is_ok() {
            self.reads += 1;
        }
        for _ in 0..32 {
            let Ok(Some(completion)) = self.node.poll() else { break };
            if completion.kind() != CompletionKind::Receive {
                continue;
            }
            self.reads -= 1;
            let Ok(done) = completion.into_result() else { continue };
            match Message::parse(done.bytes()) {
                Some(Message::Hello { nonce, target, format, address, .. }) => {
                    self.hear(&[target, nonce]);
                    self.reach(format, &address);
                }
                Some(Message::Welcome { nonce, token, rings, length, receive }) => {
                    self.hear(&[nonce, rings.addr, rings.key, length, receive, token]);
                }
                Some(Message::Grant { index, payload, .. }) => {
                    self.hear(&[payload.addr, payload.key, index]);
                }
                Some(Message::Open { index, floor, .. }) => self.hear(&[floor, index]),
                Some(Message::Room { until, .. }) => self.hear(&[until]),
                Some(Message::Published { number, .. } | Message::Verdict { number, .. }) => {
                    self.hear(&[number]);
                }
                _ => {}
            }
        }
    }

    fn number(&self, input: &mut Input<'_>) -> u64 {
        const EDGES: [u64; 12] =
            [48, 64, 255, 512, 4096, 65_535, 65_536, 1 << 32, (1 << 32) + 1, 1 << 63, u64::MAX - 1, u64::MAX];
        let which = input.byte();
        match which {
            0..64 => which.into(),
            64..192 => {
                let at = usize::from(which / 2) % HEARD;
                let near = self.heard.len().checked_sub(1 + at).map_or(0, |at| self.heard[at]);
                near.wrapping_add((which & 1).into())
            }
            192..216 => EDGES[usize::from(which - 192) % EDGES.len()],
            216..240 => input.short() as u64,
            _ => input.word(),
        }
    }

    /// The token or nonce that it heard last, or any number.
    fn token(&self, input: &mut Input<'_>) -> u64 {
        if self.heard.is_empty() { input.word() } else { self.number(input) }
    }

    /// A message of either kind of end.
    fn message(&self, input: &mut Input<'_>) -> Vec<u8> {
        let remote = |input: &mut Input<'_>| Remote { addr: self.number(input), key: self.number(input) };
        match input.byte() % 12 {
            0 => Message::Welcome {
                nonce: self.token(input),
                token: self.number(input),
                rings: remote(input),
                length: self.number(input),
                receive: self.number(input),
            },
            1 => {
                Message::Grant { token: self.token(input), index: self.number(input), payload: remote(input) }
            }
            2 => Message::Room { token: self.token(input), until: self.number(input) },
            3 => Message::Published { token: self.token(input), number: self.number(input) },
            4 => {
                const ALL: [Why; 8] = [
                    Why::Version,
                    Why::Target,
                    Why::Geometry,
                    Why::Replaced,
                    Why::Broken,
                    Why::Closed,
                    Why::Failed,
                    Why::Unheard,
                ];
                Message::Refused { nonce: self.token(input), why: ALL[usize::from(input.byte()) % ALL.len()] }
            }
            5 | 6 => Message::Open {
                token: self.token(input),
                index: self.number(input),
                floor: self.number(input),
            },
            7 => Message::Invalid {
                token: self.token(input),
                number: self.number(input),
                index: self.number(input),
            },
            8 => Message::Verdict {
                token: self.token(input),
                number: self.number(input),
                whole: u64::from(input.byte() % 4),
            },
            9 => Message::Bye { token: self.token(input) },
            10 => {
                let (token, number, index) = (self.token(input), self.number(input), self.number(input));
                let (amount, parts, spans) =
                    (self.number(input) as u32, input.byte().into(), input.byte() % 4);
                let mut span = |_| Span { from: 0, to: self.number(input), len: input.byte().into() };
                let spans: Vec<Span> = (0..spans).map(&mut span).collect();
                let len = spans.iter().map(|span| span.len).sum::<u64>() as usize;
                let piece = Piece { token, number, index, amount, parts, spans };
                return [piece.encode(), vec![9; len]].concat();
            }
            _ => {
                let len = usize::from(input.byte());
                return input.bytes(len).to_vec();
            }
        }
        .encode()
    }
}

struct World {
    // The hostile ends go first: what they have not read does not delay the others.
    mallory: Hostile,
    trent: Hostile,
    foreign: Option<Foreign>,
    initiator: Initiator,
    writer: Writer,
    bob: Target,
    victim: Target,
    definition: FlowDefinition,
    options: Options,
    /// The provider of `victim`.
    provider: Provider,
    /// Bytes and slices of a grain; 0 for samples.
    grain: (u32, u16),
    turn: u64,
    said: usize,
    /// A hostile end was connected.
    was_connected: bool,
    base: isize,
    near: Folder,
    _far: [Folder; 2],
}

impl World {
    fn new(is_video: bool, messages_only: bool, is_tcp: bool) -> Self {
        let rate = |number| Rational::new(number, 1);
        let definition = if is_video {
            FlowDefinition::video("camera", 192, 40, rate(50))
        } else {
            FlowDefinition::audio("microphone", 2, rate(48_000))
        };
        let definition = definition.expect("a definition");
        let (near, far) = (Folder::new(), [Folder::new(), Folder::new()]);
        let hints = BatchHints::default();
        let source = near.domain();
        let geometry = definition.geometry();
        let (writer, grain) = match geometry {
            Geometry::Grains { payload, slices, .. } => {
                let made = source.create_grains(&definition, &hints).expect("a flow");
                (Writer::Grains(made.writer), (payload, slices))
            }
            _ => {
                let made = source.create_samples(&definition, &hints).expect("a flow");
                (Writer::Samples(Box::new(made.writer)), (0, 0))
            }
        };
        let mut options = Options::default();
        options.messages_only = messages_only && !is_tcp;
        let (provider, place) =
            if is_tcp { (Provider::Tcp, (Some("127.0.0.1"), None)) } else { (Provider::Shm, ANY) };
        let target = |folder: &Folder, provider, place, id| {
            let opened = Target::open_with(&folder.domain(), &definition, provider, place, id, &options);
            opened.expect("a target")
        };
        let bob = target(&far[0], Provider::Shm, ANY, Some(BOB));
        let victim = target(&far[1], provider, place, None);
        let initiator = Initiator::open_with(&source, definition.id, Provider::Shm, ANY, &options);
        let mut initiator = initiator.expect("an initiator");
        initiator.add(bob.info()).expect("the honest target");
        let mut world = Self {
            mallory: Hostile::open(),
            trent: Hostile::open(),
            foreign: None,
            initiator,
            writer,
            bob,
            victim,
            definition,
            options,
            provider,
            grain,
            turn: 100,
            said: 0,
            was_connected: false,
            base: 0,
            near,
            _far: far,
        };
        world.meet();
        world.until("connected to the honest target", |world| {
            world.initiator.target(BOB).is_some_and(|(state, _)| state == PeerState::Connected)
        });
        let _ = world.initiator.add(&world.info());
        world.base = heap::live();
        world
    }

    /// The hostile target's info.
    fn info(&self) -> TargetInfo {
        let (format, address) = self.trent.name();
        let geometry = Some(message::geometry(&self.definition.geometry()));
        let has_writes = !self.options.messages_only;
        let ours = OwnKeys { version: VERSION, geometry, has_writes, epoch: 1, address: None };
        TargetInfo {
            id: TRENT,
            provider: Provider::Shm,
            format,
            address,
            regions: Vec::new(),
            bounce: None,
            ours: Some(ours),
        }
    }

    /// The hostile initiator knows where the target is.
    fn meet(&mut self) {
        if self.provider == Provider::Tcp {
            return; // it is reached by connections alone
        }
        let (format, address) = (self.victim.info().format, self.victim.info().address.clone());
        self.mallory.reach(format, &address);
    }

    /// All honest ends make progress, and their programs take all events.
    fn poll(&mut self) {
        while self.victim.poll().expect("a target that works").is_some() {}
        while self.bob.poll().expect("the honest target").is_some() {}
        self.initiator.poll().expect("an initiator that works");
        while self.initiator.event().is_some() {}
    }

    fn until(&mut self, what: &str, is_done: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !is_done(self) {
            self.poll();
            assert!(
                begin.elapsed() < HONEST,
                "not {what}: {:?}, {:?}, {:?}",
                self.initiator.targets().collect::<Vec<_>>(),
                self.bob.stats(),
                self.victim.stats()
            );
        }
    }

    /// The program writes and sends the next grain or batch.
    fn send(&mut self) {
        self.turn += 1;
        match &mut self.writer {
            Writer::Grains(writer) => {
                writer.open(self.turn).and_then(|open| open.commit()).expect("the next grain");
                self.initiator.send(self.turn).expect("a grain that is there");
            }
            Writer::Samples(writer) => {
                let index = self.turn * 48;
                writer.open(index, 48).and_then(|open| open.commit()).expect("the next batch");
                self.initiator.send_samples(index, 48).expect("samples that are there");
            }
        }
    }

    fn hello(&mut self, input: &mut Input<'_>) {
        let (how, nonce) = (input.byte(), self.mallory.number(input));
        let (format, mut address) = self.mallory.name();
        let mut geometry = message::geometry(&self.definition.geometry());
        match how & 7 {
            1 => geometry[usize::from(how >> 5)] ^= 1,
            2 => address = vec![how; 1 + usize::from(how >> 3)],
            3 => address = self.victim.info().address.clone(),
            4 => address = self.bob.info().address.clone(),
            _ => {}
        }
        let id = self.victim.info().id;
        let hello = Message::Hello {
            version: if how & 7 == 5 { VERSION + 1 } else { VERSION },
            target: if how & 7 == 6 { nonce } else { id },
            nonce,
            geometry,
            messages: u8::from(how & 8 != 0 || self.options.messages_only),
            format: if how & 7 == 7 { nonce as u32 } else { format },
            address,
        };
        self.mallory.say(hello.encode());
    }

    /// A remote write with CQ data, to memory that was granted or anywhere else.
    fn write(&mut self, input: &mut Input<'_>) {
        let mallory = &self.mallory;
        let (key, base) = (mallory.number(input), mallory.number(input));
        let number = mallory.number(input) as u8;
        let (index, end, parts) = (mallory.number(input), input.short() as u16, u16::from(input.byte() % 4));
        let commit = match &self.writer {
            Writer::Grains(_) => Commit::Grain { number, index: index as u16, end, parts },
            Writer::Samples(_) => {
                Commit::Samples { number, index: index as u32, count: end, parts: parts as u8 }
            }
        };
        let data = if input.byte() & 7 == 0 { input.word() } else { commit.encode() };
        let len = usize::from(input.byte()).min(self.grain.0.max(64) as usize);
        let there = RemoteWindow { key, base, len: len as u64 };
        if let Some(peer) = mallory.peer.filter(|_| mallory.node.in_flight() < UNDER_WAY) {
            let _ = mallory.node.write_with_data(vec![8_u8; len], data, peer, there);
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        match what % 16 {
            0 => self.hello(input),
            1..=3 => {
                let bytes = self.mallory.message(input);
                self.mallory.say(bytes);
            }
            4 | 5 => self.write(input),
            6..=8 => {
                let bytes = self.trent.message(input);
                self.trent.say(bytes);
            }
            9 => {
                let (count, how) = (usize::from(input.byte()), input.byte());
                for _ in 0..count.min(MESSAGES.saturating_sub(self.said)) {
                    self.said += 1;
                    let end = if how & 1 == 0 { &mut self.mallory } else { &mut self.trent };
                    let mut bytes = end.last.clone();
                    // The next number: of a nonce, an index or a part.
                    let at = 1 + 8 * usize::from(how >> 2 & 3);
                    if how & 2 == 0
                        && let Some(byte) = bytes.get_mut(at)
                    {
                        *byte = byte.wrapping_add(1);
                    }
                    end.say(bytes);
                    if how & 16 == 0 {
                        end.poll();
                    }
                    self.poll();
                }
            }
            10 => self.send(),
            _ if self.provider == Provider::Tcp && what < 192 => self.foreign(input),
            11 => self.mallory.poll(),
            12 => self.trent.poll(),
            13 => {
                for _ in 0..input.byte() % 32 {
                    self.poll();
                    self.trent.poll();
                    self.mallory.poll();
                }
            }
            14 => match input.byte() % 4 {
                0 => {
                    self.mallory = Hostile::open();
                    self.meet();
                }
                1 => {
                    // The program hears that it is somewhere else.
                    let _ = self.initiator.remove(TRENT);
                    self.trent = Hostile::open();
                    let _ = self.initiator.add(&self.info());
                }
                2 => drop(self.initiator.remove(TRENT)),
                _ => drop(self.initiator.add(&self.info())),
            },
            _ => {
                for _ in 0..input.byte() % 16 {
                    self.send();
                    self.poll();
                }
            }
        }
    }

    /// A step of the C++ SDK's initiator.
    fn foreign(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        let Some(foreign) = self.foreign.as_mut().filter(|_| what % 8 > 1) else {
            // It ends without a word, and comes again.
            self.foreign = None;
            if what % 8 > 0 {
                self.foreign = Foreign::call(self.victim.info());
            }
            return;
        };
        match what % 8 {
            2 => {
                for _ in 0..input.byte() {
                    foreign.again();
                }
            }
            3 | 4 => {
                for _ in 0..what {
                    foreign.poll();
                    while self.victim.poll().expect("a target that works").is_some() {}
                }
            }
            _ => foreign.write(input, self.grain),
        }
    }

    fn check(&mut self) {
        self.poll();
        self.was_connected |= self.victim.stats().taken > 0
            || self.initiator.target(TRENT).is_some_and(|(_, stats)| stats.connected > 0);
        let kept = heap::live() - self.base;
        assert!(
            kept < KEPT,
            "{kept} bytes are kept: {:?}, {}",
            self.victim.stats(),
            self.initiator.nonsense()
        );
    }

    /// Honest ends get on beside the hostile ones.
    fn honest(&mut self) {
        let before = self.bob.stats().published;
        for _ in 0..3 {
            self.send();
            self.poll();
        }
        self.until("published by the honest target", |world| {
            world.bob.stats().published > before
                && world.initiator.target(BOB).is_some_and(|(state, _)| state == PeerState::Connected)
        });
        let domain = self.near.domain();
        let opened = Initiator::open_with(&domain, self.definition.id, self.provider, ANY, &self.options);
        let mut alice = opened.expect("another initiator");
        alice.add(self.victim.info()).expect("the target");
        let (id, begin) = (self.victim.info().id, Instant::now());
        while alice.target(id).is_none_or(|(_, stats)| stats.done == 0) {
            self.poll();
            alice.poll().expect("an initiator that works");
            let is_connected = alice.target(id).is_some_and(|(state, _)| state == PeerState::Connected);
            if is_connected && alice.is_idle() {
                self.send();
                let sent = match &self.writer {
                    Writer::Grains(_) => alice.send(self.turn),
                    Writer::Samples(_) => alice.send_samples(self.turn * 48, 48),
                };
                sent.expect("what was just written");
            }
            let stats = self.victim.stats();
            assert!(
                begin.elapsed() < HONEST,
                "an honest initiator is kept out: {stats:?}, {:?}",
                alice.target(id)
            );
        }
    }
}

/// Runs a script. Returns whether a hostile end was connected.
pub fn media(input: &[u8]) -> bool {
    let mut input = Input(input);
    let how = input.byte();
    let mut world = World::new(how & 1 == 0, how & 2 == 0, how & 4 != 0);
    for _ in 0..STEPS {
        if input.0.is_empty() {
            break;
        }
        world.step(&mut input);
        world.check();
    }
    let was_connected = world.was_connected;
    world.honest();
    world.check();
    was_connected
}
