//! Peers that send each kind of message without end: what a target and an initiator keep is bounded, and both go on.
//!
//! They measure the memory of the whole process, the hostile peer's included: run them with nextest, which gives each
//! test one of its own.

use mxl::{BatchHints, FlowDefinition};
use mxl_fabrics::message::{Message, Piece, Remote, Span, VERSION, Why};
use mxl_fabrics::{Initiator, Options, PeerState, Provider, Target};
use ofi::{AddrFormat, Address, CompletionKind, FiAddr, Hints, Node};
use ofi_testkit::wait::drive_for;

use super::common::{ANY, Ends, Folder, LONG, camera, microphone};
use super::hostile_target;

/// Messages of each kind: more than an end keeps of any.
const MANY: u64 = 5000;
/// Bytes that the messages of a peer may cost an end.
const MAX_COST: usize = 3 << 20;
const SHM: (Provider, &str) = (Provider::Shm, "shm");
const UDP: (Provider, &str) = (Provider::Udp, "udp");

/// A kind of message: what it is, and the message with this number.
type Kind<'a, M> = (&'static str, Box<dyn Fn(u64) -> M + 'a>);

/// Bytes of memory that this process has.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Sends a message, and drives both until it has arrived or failed: what is under way at the sender costs nothing.
/// Returns what was said to it meanwhile.
fn say(node: &Node, peer: FiAddr, bytes: &[u8], mut turn: impl FnMut()) -> Vec<Vec<u8>> {
    let mut heard = Vec::new();
    drive_for(LONG, &[], "room for a message", || {
        turn();
        hear(node, &mut heard);
        match node.send(bytes.to_vec(), peer) {
            Ok(_) => Some(()),
            Err(refused) if refused.is_again() => None,
            Err(refused) => panic!("{}", refused.error),
        }
    });
    drive_for(LONG, &[], "the end of a message", || {
        turn();
        hear(node, &mut heard).then_some(())
    });
    heard
}

/// Takes what was said to it. Returns whether a message of its own has ended.
fn hear(node: &Node, heard: &mut Vec<Vec<u8>>) -> bool {
    let mut has_ended = false;
    while let Some(completion) = node.poll().unwrap() {
        if completion.kind() == CompletionKind::Receive {
            listen(node);
            heard.extend(completion.into_result().map(|done| done.bytes().to_vec()));
        } else {
            has_ended = true;
        }
    }
    has_ended
}

fn listen(node: &Node) {
    node.recv(vec![0; 512]).map_err(|rejected| rejected.to_string()).unwrap();
}

fn cost(what: &str, mut flood: impl FnMut(u64)) {
    flood(0); // what is made once
    let before = resident();
    (1..=MANY).for_each(&mut flood);
    let cost = resident().saturating_sub(before);
    println!("{what}: {cost} bytes");
    assert!(cost < MAX_COST, "{what}: {cost} bytes");
}

/// What an initiator says, with the target's token for it.
fn of_initiator(definition: &FlowDefinition, token: u64) -> Vec<Kind<'static, Vec<u8>>> {
    let span = Span { from: 0, to: 0, len: 8 };
    let piece = move |number, index| {
        let piece = Piece { token, number, index, amount: 1, parts: 1000, spans: vec![span] };
        [piece.encode(), vec![1; 8]].concat()
    };
    let is_audio = matches!(definition.geometry(), mxl::Geometry::Samples { .. });
    vec![
        ("requests", Box::new(move |nth| Message::Open { token, index: nth, floor: nth }.encode())),
        ("requests for one index", Box::new(move |_| Message::Open { token, index: 7, floor: 0 }.encode())),
        (
            "requests at the end",
            Box::new(move |_| {
                let index = if is_audio { u64::MAX / 2 } else { u64::MAX };
                Message::Open { token, index, floor: 0 }.encode()
            }),
        ),
        ("invalid grains", Box::new(move |number| Message::Invalid { token, number, index: 7 }.encode())),
        ("verdicts", Box::new(move |number| Message::Verdict { token, number, whole: number % 4 }.encode())),
        ("parts", Box::new(move |nth| piece(nth % 64, 7 + nth / 64))),
        ("parts of any commit", Box::new(move |nth| piece(nth, nth))),
        ("messages of a target", Box::new(move |nth| Message::Published { token, number: nth }.encode())),
        ("nonsense", Box::new(|nth| vec![nth as u8; 300])),
    ]
}

fn what_an_initiator_makes_a_target_keep_is_bounded((provider, name): (Provider, &str)) {
    for definition in [camera(), microphone(2)] {
        let is_audio = matches!(definition.geometry(), mxl::Geometry::Samples { .. });
        let far = Folder::new();
        let mut options = Options::default();
        options.messages_only = true;
        let mut target =
            Target::open_with(&far.domain(), &definition, provider, ANY, None, &options).unwrap();
        let node = Node::open(&Hints::new().provider(name)).unwrap();
        let format = AddrFormat::from_c(target.info().format).unwrap();
        let peer = node.insert(&Address::new(format, &target.info().address)).unwrap();
        (0..8).for_each(|_| listen(&node));
        let own = node.name().unwrap();
        let geometry = mxl_fabrics::message::geometry(&definition.geometry());
        let id = target.info().id;
        let hello = |nonce, target| Message::Hello {
            version: VERSION,
            target,
            nonce,
            geometry,
            messages: 1,
            format: own.format().as_c(),
            address: own.bytes().to_vec(),
        };
        let greetings: [Kind<'_, Message>; 2] = [
            ("greetings", Box::new(|nonce| hello(1 << 40 | nonce, id))),
            ("greetings of another target", Box::new(|nonce| hello(1 << 41 | nonce, !id))),
        ];
        for (what, greeting) in greetings {
            cost(&format!("{name}: {what}"), |nth| {
                say(&node, peer, &greeting(nth).encode(), || while target.poll().unwrap().is_some() {});
            });
        }
        let kinds = of_initiator(&definition, 0).len();
        for kind in 0..kinds {
            // A session for each kind: some of them end it.
            let token = welcome(&node, peer, &mut target, hello(1 << 42 | kind as u64, id));
            let (what, message) = of_initiator(&definition, token).swap_remove(kind);
            cost(&format!("{name}, audio {is_audio}: {what}"), |nth| {
                say(&node, peer, &message(nth), || while target.poll().unwrap().is_some() {});
            });
        }
        // Another one is accepted.
        let again = welcome(&node, peer, &mut target, hello(1 << 43, id));
        assert!(again != 0 && target.is_connected());
    }
}

/// Greets until the target answers this greeting. Returns its token.
fn welcome(node: &Node, peer: FiAddr, target: &mut Target, hello: Message) -> u64 {
    let Message::Hello { nonce: given, .. } = hello else { panic!("a greeting") };
    let mut heard = say(node, peer, &hello.encode(), || while target.poll().unwrap().is_some() {});
    drive_for(LONG, &[], "a welcome", || {
        target.poll().unwrap();
        hear(node, &mut heard);
        heard.drain(..).find_map(|bytes| match Message::parse(&bytes) {
            Some(Message::Welcome { nonce, token, .. }) if nonce == given => Some(token),
            _ => None,
        })
    })
}

fn what_a_target_makes_an_initiator_keep_is_bounded((provider, name): (Provider, &str)) {
    let Ends { near, far: _far, definition, writer, mut target, mut initiator } = Ends::open(provider);
    let mut hostile = hostile_target::Hostile::open((provider, name), &definition, 2);
    initiator.add(&hostile.info).unwrap();
    let mut index = 500;
    type OfTarget = fn(u64, u64) -> Message;
    let kinds: [(&str, OfTarget); 8] = [
        ("grants", |token, nth| {
            let payload = Remote { addr: nth, key: nth };
            Message::Grant { token, index: nth, payload }
        }),
        ("room", |token, nth| Message::Room { token, until: nth }),
        ("publications", |token, nth| Message::Published { token, number: nth % 100 }),
        ("another welcome", |token, nth| {
            let rings = Remote::default();
            Message::Welcome { nonce: token ^ 5, token: token ^ nth, rings, length: nth, receive: 4096 }
        }),
        ("refusals", |token, nth| Message::Refused { nonce: token ^ 5 ^ (nth << 20 | 1), why: Why::Closed }),
        ("verdicts", |token, number| Message::Verdict { token, number, whole: 1 }),
        ("requests", |token, index| Message::Open { token, index, floor: index }),
        ("farewells of an initiator", |token, _| Message::Bye { token }),
    ];
    hostile.accept(&mut initiator);
    let (token, peer) = (hostile.nonce ^ 5, hostile.initiator.unwrap());
    for (what, kind) in kinds {
        cost(&format!("{name}: {what}"), |nth| {
            say(&hostile.node, peer, &kind(token, nth).encode(), || {
                initiator.poll().unwrap();
                while initiator.event().is_some() {}
                while target.poll().unwrap().is_some() {}
            });
        });
    }
    // The other target gets what is sent now.
    let before = target.stats().published;
    drive_for(LONG, &[], "a grain at the other target", || {
        index += 1;
        writer.open(index).unwrap().commit().unwrap();
        initiator.send(index).unwrap();
        for _ in 0..50 {
            initiator.poll().unwrap();
            while target.poll().unwrap().is_some() {}
        }
        (target.stats().published > before).then_some(())
    });
    assert_eq!(initiator.target(target.info().id).unwrap().0, PeerState::Connected);
    drop(near);
}

/// The grains that a program sends wait in a queue for each target, of which the oldest are lost.
fn a_target_that_takes_nothing_costs_its_initiator_a_bounded_queue((provider, name): (Provider, &str)) {
    let (near, definition) = (Folder::new(), camera());
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
    let mut hostile = hostile_target::Hostile::open((provider, name), &definition, 2);
    initiator.add(&hostile.info).unwrap();
    hostile.accept(&mut initiator);
    cost(name, |nth| {
        writer.open(500 + nth).unwrap().commit().unwrap();
        initiator.send(500 + nth).unwrap();
        initiator.poll().unwrap();
    });
    assert!(initiator.target(2).unwrap().1.lost > MANY / 2);
}

#[test]
fn what_an_initiator_makes_a_target_keep_is_bounded_over_shared_memory() {
    what_an_initiator_makes_a_target_keep_is_bounded(SHM);
}

#[test]
fn what_an_initiator_makes_a_target_keep_is_bounded_over_sockets() {
    what_an_initiator_makes_a_target_keep_is_bounded(UDP);
}

#[test]
fn what_a_target_makes_an_initiator_keep_is_bounded_over_shared_memory() {
    what_a_target_makes_an_initiator_keep_is_bounded(SHM);
}

#[test]
fn what_a_target_makes_an_initiator_keep_is_bounded_over_sockets() {
    what_a_target_makes_an_initiator_keep_is_bounded(UDP);
}

#[test]
fn a_target_that_takes_nothing_costs_its_initiator_a_bounded_queue_over_shared_memory() {
    a_target_that_takes_nothing_costs_its_initiator_a_bounded_queue(SHM);
}

#[test]
fn a_target_that_takes_nothing_costs_its_initiator_a_bounded_queue_over_sockets() {
    a_target_that_takes_nothing_costs_its_initiator_a_bounded_queue(UDP);
}
