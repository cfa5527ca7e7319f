//! A target that sends arbitrary messages: its initiator survives, sends to its other targets, and counts the rest.

use std::time::{Duration, Instant};

use mxl::{BatchHints, FlowDefinition, GrainWriter, SampleWriter};
use mxl_fabrics::message::{Message, Remote};
use mxl_fabrics::{Initiator, Provider, Target, Transfer};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::common::{ANY, Folder, LONG, camera, microphone};
use super::hostile_target::Hostile;

/// The source's writer.
enum Writer {
    Grains(GrainWriter),
    Samples(Box<SampleWriter>),
}

impl Writer {
    fn open(near: &Folder, definition: &FlowDefinition) -> Self {
        let (domain, hints) = (near.domain(), BatchHints::default());
        if matches!(definition.geometry(), mxl::Geometry::Grains { .. }) {
            Self::Grains(domain.create_grains(definition, &hints).unwrap().writer)
        } else {
            Self::Samples(Box::new(domain.create_samples(definition, &hints).unwrap().writer))
        }
    }

    /// Writes the next grain or batch, and sends it to all targets.
    fn send(&mut self, initiator: &mut Initiator, turn: u64) {
        match self {
            Self::Grains(writer) => {
                writer.open(turn).unwrap().commit().unwrap();
                initiator.send(turn).unwrap();
            }
            Self::Samples(writer) => {
                writer.open(turn * 48, 48).unwrap().commit().unwrap();
                initiator.send_samples(turn * 48, 48).unwrap();
            }
        }
    }
}

/// A number that is near something: an index, a count, the end of a range.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..60, 0_u64..3000, Just(1 << 32), Just(u64::MAX), any::<u64>()]
}

/// Messages of one connection: those of a target, with the right token or nonce more often than not.
fn said() -> impl Strategy<Value = (u8, bool, [u64; 3])> {
    (0_u8..8, prop::bool::weighted(0.8), [number(), number(), number()])
}

/// The bytes of a message; `sent` is what was sent last.
fn encoded(nonce: u64, sent: u64, (kind, right, [a, b, c]): (u8, bool, [u64; 3])) -> Vec<u8> {
    let token = if right { nonce ^ 5 } else { a };
    let remote = Remote { addr: b, key: c };
    match kind {
        0 => Message::Grant { token, index: a, payload: remote }.encode(),
        1 => Message::Grant { token, index: sent - a % 2, payload: remote }.encode(),
        2 => Message::Room { token, until: b }.encode(),
        3 => Message::Published { token, number: b }.encode(),
        4 => Message::Welcome { nonce, token, rings: remote, length: a, receive: 0 }.encode(),
        5 => Message::Verdict { token, number: a, whole: b }.encode(),
        6 => Message::Bye { token }.encode(),
        _ => [a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes()].concat(),
    }
}

#[test]
fn an_initiator_survives_what_a_target_says() {
    for definition in [camera(), microphone(3)] {
        let (near, far) = (Folder::new(), Folder::new());
        let mut writer = Writer::open(&near, &definition);
        let mut honest = Target::open(&far.domain(), &definition, Provider::Shm, ANY, Some(1)).unwrap();
        let mut initiator = Initiator::open(&near.domain(), definition.id, Provider::Shm, ANY).unwrap();
        initiator.add(honest.info()).unwrap();
        let mut hostile = Hostile::open((Provider::Shm, "shm"), &definition, 2);
        let (mut turn, mut connected) = (100, 0);
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(150) });
        let welcome = (number(), number(), prop_oneof![Just(0), Just(600), Just(4096), number()]);
        let all = (welcome, proptest::collection::vec(said(), 0..12));
        let all_of = (&mut initiator, &mut honest, &mut hostile, &mut writer, &mut turn, &mut connected);
        let shared = std::cell::RefCell::new(all_of);
        runner
            .run(&all, |((addr, length, receive), messages)| {
                let (initiator, honest, hostile, writer, turn, connected) = &mut *shared.borrow_mut();
                initiator.add(&hostile.info).unwrap();
                hostile.hear_greeting(initiator);
                let nonce = hostile.nonce;
                let rings = Remote { addr, key: length };
                let welcome = Message::Welcome { nonce, token: nonce ^ 5, rings, length, receive };
                hostile.say(welcome.encode());
                for message in messages {
                    for _ in 0..3 {
                        hostile.turn(initiator);
                        honest.poll().unwrap();
                    }
                    **turn += 1;
                    writer.send(initiator, **turn);
                    hostile.say(encoded(nonce, **turn, message));
                }
                for _ in 0..5 {
                    hostile.turn(initiator);
                    honest.poll().unwrap();
                }
                while let Some(event) = initiator.event() {
                    **connected += u32::from(event == Transfer::Connected { target: hostile.info.id });
                }
                initiator.remove(hostile.info.id).unwrap();
                Ok(())
            })
            .unwrap();
        // Most greetings are answered by what an initiator can use.
        assert!(connected > 30 && initiator.nonsense() > 0, "{connected} {}", initiator.nonsense());
        // The other target gets what is sent now.
        let before = honest.stats().published;
        let begin = Instant::now();
        while honest.stats().published < before + 3 {
            turn += 1;
            writer.send(&mut initiator, turn);
            for _ in 0..50 {
                initiator.poll().unwrap();
                honest.poll().unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
            assert!(begin.elapsed() < LONG, "{:?}", honest.stats());
        }
    }
}
