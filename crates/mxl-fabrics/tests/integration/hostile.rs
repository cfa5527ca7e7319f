//! An initiator that sends arbitrary messages: the target's flow has only valid data, and the rest is counted.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use mxl::{FlowDefinition, Geometry, Wait};
use mxl_fabrics::message::{Message, Piece, VERSION};
use mxl_fabrics::{Options, Provider, Received, Target};
use ofi::{AddrFormat, Address, CompletionKind, FiAddr, Hints, Node};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::common::{Folder, LONG, camera, microphone};

/// An initiator whose messages the test writes one by one.
struct Hostile {
    node: Node,
    target: FiAddr,
    token: u64,
}

impl Hostile {
    /// Greets the target until it accepts.
    fn greet(target: &mut Target, provider: &str, geometry: [u64; 8]) -> Self {
        let node = Node::open(&Hints::new().provider(provider)).unwrap();
        let format = AddrFormat::from_c(target.info().format).unwrap();
        let peer = node.insert(&Address::new(format, &target.info().address)).unwrap();
        let mut this = Self { node, target: peer, token: 0 };
        let own = this.node.name().unwrap();
        let given = target.stats().taken + 77;
        let hello = Message::Hello {
            version: VERSION,
            target: target.info().id,
            nonce: given,
            geometry,
            messages: 1,
            format: own.format().as_c(),
            address: own.bytes().to_vec(),
        };
        this.say(hello.encode());
        let Message::Welcome { nonce, token, receive, .. } = this.hear(target) else { panic!("no welcome") };
        assert!(nonce == given && receive >= 512);
        this.token = token;
        this
    }

    fn say(&self, bytes: Vec<u8>) {
        self.node.send(bytes, self.target).map_err(|rejected| rejected.to_string()).unwrap();
    }

    /// The target's next message.
    fn hear(&self, target: &mut Target) -> Message {
        self.node.recv(vec![0; 512]).map_err(|rejected| rejected.to_string()).unwrap();
        let begin = Instant::now();
        loop {
            target.poll().unwrap();
            while let Some(completion) = self.node.poll().unwrap() {
                if completion.kind() == CompletionKind::Receive {
                    return Message::parse(completion.into_result().unwrap().bytes()).unwrap();
                }
            }
            assert!(begin.elapsed() < LONG, "no message from the target");
        }
    }

    /// Sends a message, and polls both until the target has counted it as nonsense.
    fn is_nonsense(&self, target: &mut Target, bytes: Vec<u8>, what: &str) {
        let before = target.stats();
        self.say(bytes);
        let begin = Instant::now();
        while target.stats().nonsense == before.nonsense {
            let received = target.poll().unwrap();
            assert!(!matches!(received, Some(Received::Grain { .. } | Received::Samples { .. })), "{what}");
            while self.node.poll().unwrap().is_some() {}
            assert!(begin.elapsed() < LONG, "{what} was not counted");
        }
        assert_eq!(target.stats().published, before.published, "{what}");
    }

    /// Polls both until the target reports an event of its flow.
    fn until_published(&self, target: &mut Target) -> Received {
        let begin = Instant::now();
        loop {
            match target.poll().unwrap() {
                Some(received @ (Received::Grain { .. } | Received::Samples { .. })) => return received,
                _ => while self.node.poll().unwrap().is_some() {},
            }
            assert!(begin.elapsed() < LONG, "nothing was published: {:?}", target.stats());
        }
    }
}

fn numbers(definition: &FlowDefinition) -> [u64; 8] {
    mxl_fabrics::message::geometry(&definition.geometry())
}

/// A message whose payload consists of one value.
fn bytes(piece: &Piece, value: u8) -> Vec<u8> {
    let len: u64 = piece.spans.iter().map(|span| span.len).sum();
    [piece.encode(), vec![value; len as usize]].concat()
}

fn span(to: u64, len: u64) -> mxl_fabrics::message::Span {
    mxl_fabrics::message::Span { from: 0, to, len }
}

fn open(far: &Folder, definition: &FlowDefinition, provider: Provider) -> Target {
    let (mut options, any) = (Options::default(), (None, None));
    options.messages_only = true;
    Target::open_with(&far.domain(), definition, provider, any, None, &options).unwrap()
}

#[test]
fn grains_that_make_no_sense_are_counted_and_the_right_one_is_published() {
    for (provider, name) in [(Provider::Shm, "shm"), (Provider::Udp, "udp")] {
        let far = Folder::new();
        let definition = camera();
        let Geometry::Grains { payload, slices, .. } = definition.geometry() else { panic!("no grains") };
        let (whole, line) = (u64::from(payload), u64::from(payload) / u64::from(slices));
        let mut target = open(&far, &definition, provider);
        let hostile = Hostile::greet(&mut target, name, numbers(&definition));
        let token = hostile.token;
        hostile.say(Message::Open { token, index: 500, floor: 500 }.encode());
        while !matches!(hostile.hear(&mut target), Message::Grant { index: 502, .. }) {}
        let half = slices / 2;
        let good = Piece {
            token,
            number: 0,
            index: 500,
            amount: half.into(),
            parts: 2,
            spans: vec![span(0, 100), span(200, 300)],
        };
        let nonsense = [
            ("another's token", Piece { token: token ^ 1, ..good.clone() }),
            ("a grain whose slot is not open", Piece { index: 503, ..good.clone() }),
            ("a far number", Piece { number: 1000, ..good.clone() }),
            ("no slices", Piece { amount: 0, ..good.clone() }),
            ("more slices than the grain has", Piece { amount: u32::from(slices) + 1, ..good.clone() }),
            ("slices beyond 16 bits", Piece { amount: 65_536 + 1, ..good.clone() }),
            ("bytes beyond the grain", Piece { spans: vec![span(whole - 1, 2)], ..good.clone() }),
            ("bytes far beyond", Piece { spans: vec![span(u64::MAX - 4, 2)], ..good.clone() }),
            (
                "bytes beyond its slices",
                Piece { spans: vec![span(u64::from(half) * line, 1)], ..good.clone() },
            ),
            (
                "one good span and a bad one",
                Piece { spans: vec![span(0, 4), span(whole, 4)], ..good.clone() },
            ),
        ];
        for (what, piece) in nonsense {
            hostile.is_nonsense(&mut target, bytes(&piece, 0xee), &format!("{name}: {what}"));
        }
        let cut = bytes(&good, 1);
        hostile.is_nonsense(&mut target, cut[..cut.len() - 1].to_vec(), "a truncated payload");
        hostile.is_nonsense(&mut target, [cut, vec![0]].concat(), "a payload with a byte too many");
        hostile.is_nonsense(&mut target, vec![10], "a kind without content");
        // The first of two parts; then parts that disagree with it.
        hostile.say(bytes(&good, 0x11));
        for (what, piece) in [
            ("another count of parts", Piece { parts: 3, ..good.clone() }),
            ("another end", Piece { amount: 1, spans: vec![span(0, 1)], ..good.clone() }),
            ("another grain", Piece { index: 501, ..good.clone() }),
        ] {
            hostile.is_nonsense(&mut target, bytes(&piece, 0xee), &format!("{name}: {what}"));
        }
        hostile.say(bytes(&Piece { spans: vec![span(100, 100)], ..good.clone() }, 0x22));
        let more = Piece { spans: vec![span(100, 100)], ..good.clone() };
        hostile.is_nonsense(&mut target, bytes(&more, 0xee), "a third of two");
        hostile.is_nonsense(
            &mut target,
            Message::Verdict { token, number: 0, whole: 3 }.encode(),
            "a verdict",
        );
        hostile.say(Message::Verdict { token, number: 0, whole: 1 }.encode());
        let published = hostile.until_published(&mut target);
        assert_eq!(published, Received::Grain { index: 500, slices: half, invalid: false });
        let reader = far.domain().read_grains(definition.id).unwrap();
        let mut there = vec![0; 500];
        reader.read_slices(500, half, Wait::Not).unwrap().read_into(0, &mut there).unwrap();
        let wanted = [vec![0x11; 100], vec![0x22; 100], vec![0x11; 300]].concat();
        assert_eq!(there, wanted, "{name}");
        // A published commit is complete.
        hostile.is_nonsense(&mut target, bytes(&good, 0xee), "a commit that is over");
    }
}

#[test]
fn samples_that_make_no_sense_are_counted_and_the_right_ones_are_published() {
    for (provider, name) in [(Provider::Shm, "shm"), (Provider::Udp, "udp")] {
        let far = Folder::new();
        let definition = microphone(3);
        let mut target = open(&far, &definition, provider);
        let hostile = Hostile::greet(&mut target, name, numbers(&definition));
        let token = hostile.token;
        let reader = far.domain().read_samples(definition.id).unwrap();
        let (word, stride) = (reader.word(), reader.stride() as u64);
        let (start, count) = (1_000_u64, 48);
        let at = |channel: u64, sample: u64| channel * stride + sample % (stride / word) * word;
        let piece = |spans| Piece { token, number: 0, index: start + count, amount: 48, parts: 1, spans };
        let all = count * word;
        let good = piece((0..3).map(|channel| span(at(channel, start), all)).collect());
        hostile.is_nonsense(&mut target, bytes(&good, 1), "samples before room was asked for");
        hostile.say(Message::Open { token, index: start, floor: start }.encode());
        let Message::Room { until, .. } = hostile.hear(&mut target) else { panic!("no room") };
        let one = |to, len| piece(vec![span(to, len)]);
        for (what, wrong) in [
            ("the sample before", one(at(0, start - 1), word)),
            ("the sample after", one(at(0, start + count), word)),
            ("a span that leaves the window", one(at(1, start), all + word)),
            ("a channel that does not exist", one(at(3, start), word)),
            ("beyond", one(u64::MAX - word, word)),
            ("published samples", Piece { index: start + count - 1, ..good.clone() }),
            (
                "beyond the room",
                Piece { index: until + 1, amount: 1, spans: vec![span(at(0, until), word)], ..good.clone() },
            ),
            ("none", Piece { amount: 0, ..good.clone() }),
            ("more than the ring", Piece { amount: u32::MAX, ..good.clone() }),
        ] {
            hostile.is_nonsense(&mut target, bytes(&wrong, 0xee), &format!("{name}: {what}"));
        }
        hostile.say(bytes(&good, 0x40));
        hostile.say(Message::Verdict { token, number: 0, whole: 1 }.encode());
        let published = hostile.until_published(&mut target);
        assert_eq!(published, Received::Samples { index: start + count, count });
        let samples = reader.read(start + count, count, Wait::Not).unwrap();
        let mut there = vec![0_f32; count as usize];
        for channel in 0..3 {
            samples.read_channel(channel, &mut there).unwrap();
            assert!(there.iter().all(|sample| sample.to_bits() == 0x4040_4040), "{name}: channel {channel}");
        }
    }
}

/// An initiator that requests room and reads none of the answers does not fill the target's memory.
#[test]
fn whoever_asks_and_does_not_listen_is_parted_from() {
    let far = Folder::new();
    let definition = microphone(2);
    let mut target = open(&far, &definition, Provider::Shm);
    let hostile = Hostile::greet(&mut target, "shm", numbers(&definition));
    let open = Message::Open { token: hostile.token, index: 5_000, floor: 5_000 }.encode();
    let begin = Instant::now();
    while target.poll().unwrap() != Some(Received::Disconnected) {
        // Back-pressure does not matter here.
        let _ = hostile.node.inject(&open, hostile.target);
        assert!(begin.elapsed() < LONG, "the target never disconnects it");
    }
}

/// Random messages, half of them with the right token: the target survives, and its flow has no uncommitted data.
#[test]
fn random_messages_do_no_harm() {
    let far = Folder::new();
    let definition = camera();
    let mut target = open(&far, &definition, Provider::Shm);
    let hostile = Hostile::greet(&mut target, "shm", numbers(&definition));
    let token = hostile.token;
    let shared = RefCell::new(target);
    let small = prop_oneof![0_u64..6, any::<u64>()];
    let piece = (
        small.clone(),
        small.clone(),
        0_u32..50,
        0_u32..4,
        proptest::collection::vec((small.clone(), 0_u64..40), 0..9),
    )
        .prop_map(move |(number, index, amount, parts, spans)| {
            let spans = spans.into_iter().map(|(to, len)| span(to, len)).collect();
            bytes(&Piece { token, number, index, amount, parts, spans }, 0xee)
        });
    let said = (small.clone(), small.clone(), 0..3).prop_map(move |(a, b, which)| {
        let message = match which {
            0 => Message::Open { token, index: a, floor: b },
            1 => Message::Invalid { token, number: a, index: b },
            _ => Message::Verdict { token, number: a, whole: b },
        };
        message.encode()
    });
    let any = prop_oneof![piece, said, proptest::collection::vec(any::<u8>(), 0..200)];
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(2000) });
    runner
        .run(&any, |bytes| {
            hostile.say(bytes);
            for _ in 0..3 {
                shared.borrow_mut().poll().unwrap();
                while hostile.node.poll().unwrap().is_some() {}
            }
            Ok(())
        })
        .unwrap();
    let mut target = shared.into_inner();
    // It still accepts an initiator.
    let again = Hostile::greet(&mut target, "shm", numbers(&definition));
    again.say(Message::Open { token: again.token, index: 9_000, floor: 9_000 }.encode());
    let begin = Instant::now();
    while !matches!(again.hear(&mut target), Message::Grant { index: 9_000, .. }) {
        assert!(begin.elapsed() < LONG + Duration::from_secs(1));
    }
}
