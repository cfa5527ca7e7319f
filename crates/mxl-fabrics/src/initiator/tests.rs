//! Greetings, from inside an initiator.

use std::net::UdpSocket;

use mxl::{BatchHints, FlowDefinition, Rational};
use ofi::Address;

use super::*;
use crate::Target;
use crate::folder::Folder;

const ANY: (Option<&str>, Option<&str>) = (None, None);
/// Fewer than the places that an endpoint has for greetings, but more than a quarter of them.
const HUNG: u64 = 80;
/// Longer than any operation takes on a loaded machine.
const LONG: Duration = Duration::from_secs(40);

/// Regression test: each hung target had up to four greetings under way, in places that those of others need.
#[test]
fn hung_targets_leave_places_to_the_greetings_of_others() {
    let (near, far) = (Folder::new(), Folder::new());
    let camera = FlowDefinition::video("camera", 192, 40, Rational::new(50, 1)).unwrap();
    let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    let mut target = Target::open(&far.domain(), &camera, Provider::Udp, ANY, None).unwrap();
    let mut initiator = Initiator::open(&near.domain(), camera.id, Provider::Udp, ANY).unwrap();
    let ports: Vec<_> = (1..=HUNG).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    for (port, id) in ports.iter().zip(1..) {
        let address = Address::from(port.local_addr().unwrap()).bytes().to_vec();
        initiator.add(&TargetInfo { id, address, ..target.info().clone() }).unwrap();
    }
    let begin = Instant::now();
    while begin.elapsed() < 6 * GREET_EVERY {
        initiator.poll().unwrap();
        let most = initiator.peers.iter().map(|peer| peer.flights.len()).max();
        assert!(most <= Some(1), "{most:?} under way to one, after {:?}", begin.elapsed());
    }
    // Nor are greetings transfers to wait for.
    assert!(initiator.link.is_sending() && initiator.flush(Duration::ZERO).unwrap());
    let id = target.info().id;
    initiator.add(target.info()).unwrap();
    let begin = Instant::now();
    while initiator.target(id).unwrap().0 != PeerState::Connected {
        initiator.poll().unwrap();
        target.poll().unwrap();
        assert!(begin.elapsed() < LONG, "timeout: {:?}", target.stats());
    }
}
