//! Strangers that greet a target and read none of its answers do not keep initiators from it.

use std::time::Instant;

use mxl::BatchHints;
use mxl_fabrics::message::{Message, VERSION, Why};
use mxl_fabrics::{Initiator, PeerState, Provider, Target, TargetInfo};
use ofi::{AddrFormat, Address, Hints, Node};

use super::common::{Folder, LONG, camera};

const ANY: (Option<&str>, Option<&str>) = (None, None);
/// More than the refusals that a target has in flight.
const STRANGERS: u64 = 40;

/// Greets a target by a wrong id until it is refused or left out, and does nothing afterwards.
fn greet(target: &mut Target, provider: &str, nonce: u64) -> Node {
    let node = Node::open(&Hints::new().provider(provider)).unwrap();
    let format = AddrFormat::from_c(target.info().format).unwrap();
    let peer = node.insert(&Address::new(format, &target.info().address)).unwrap();
    let own = node.name().unwrap();
    let hello = Message::Hello {
        version: VERSION,
        target: !target.info().id,
        nonce,
        geometry: [0; 8],
        messages: 0,
        format: own.format().as_c(),
        address: own.bytes().to_vec(),
    };
    node.send(hello.encode(), peer).map_err(|rejected| rejected.to_string()).unwrap();
    let count = |target: &Target| target.stats().refused + target.stats().nonsense;
    let before = count(target);
    let begin = Instant::now();
    while count(target) == before {
        node.poll().unwrap();
        target.poll().unwrap();
        assert!(begin.elapsed() < LONG, "{provider}: stranger {nonce} is not heard: {:?}", target.stats());
    }
    node
}

/// Regression test: sixteen strangers that lived kept a target of shared memory from taking any greeting.
#[test]
fn strangers_that_read_no_refusal_do_not_keep_an_initiator_out() {
    for (provider, name) in [(Provider::Shm, "shm"), (Provider::Udp, "udp")] {
        let (near, far) = (Folder::new(), Folder::new());
        let definition = camera();
        let _writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let mut target = Target::open(&far.domain(), &definition, provider, ANY, None).unwrap();
        let id = target.info().id;
        let strangers: Vec<_> = (1..=STRANGERS).map(|nonce| greet(&mut target, name, nonce)).collect();
        let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        initiator.add(target.info()).unwrap();
        let begin = Instant::now();
        while initiator.target(id).unwrap().0 != PeerState::Connected {
            initiator.poll().unwrap();
            target.poll().unwrap();
            assert!(begin.elapsed() < LONG, "{name}: the initiator is kept out: {:?}", target.stats());
        }
        // One that is wrong by mistake learns it too, and the farewell arrives.
        let mistaken = TargetInfo { id: id ^ 1, ..target.info().clone() };
        let mut lost = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        lost.add(&mistaken).unwrap();
        let begin = Instant::now();
        while lost.target(id ^ 1).unwrap().0 != PeerState::Refused(Why::Target) {
            lost.poll().unwrap();
            initiator.poll().unwrap();
            target.poll().unwrap();
            assert!(begin.elapsed() < LONG, "{name}: no refusal: {:?}", target.stats());
        }
        drop(target);
        let begin = Instant::now();
        while initiator.target(id).unwrap().0 != PeerState::Parted(Why::Closed) {
            initiator.poll().unwrap();
            assert!(begin.elapsed() < LONG, "{name}: no farewell");
        }
        drop(strangers);
    }
}
