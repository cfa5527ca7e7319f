//! Acknowledgements of `ofi-rdm` under the simulated network: their timing and length.

use std::time::Duration;

use ofi_rdm::Stream;
use ofi_rdm::congestion::Congestion;
use ofi_testkit::net::{Net, NetworkLink, all_acked, all_arrived};

/// A program that got its message may not poll again, and the sender's buffer must not wait for that.
#[test]
fn a_payload_is_acknowledged_by_the_look_that_takes_its_end() {
    let mut net = Net::new(1, 2, NetworkLink::default(), Congestion::Reno);
    let until = |net: &mut Net, there: &dyn Fn(&Net) -> bool| {
        for _ in 0..100_000 {
            net.run(Duration::from_micros(1));
            if there(net) {
                return;
            }
        }
        panic!("no message arrived");
    };
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(1)); // a session, packet sizes
    for len in (1..12).map(|packets| packets * 20_000) {
        // An answer that carries an acknowledgement: the next acknowledgement then waits to be combined too.
        net.record(0, 1, Stream::Commands, 10);
        until(&mut net, &|net| all_arrived(net, 0, 1));
        net.record(1, 0, Stream::Commands, 10);
        net.run(Duration::from_millis(10));
        let name = net.payload(0, 1, Stream::Bulk, len);
        until(&mut net, &|net| net.model(1, 0).is_some_and(|model| model.payloads.get(&name) == Some(&len)));
        net.sleep(1, Duration::from_secs(1));
        net.run(Duration::from_millis(10));
        assert!(all_acked(net.model(0, 1)), "{len} bytes have arrived, and are not acknowledged");
        net.run(Duration::from_secs(2));
    }
}

/// A message of a program that does not poll again leaves with the post, unless another message of its own is in
/// flight. A probe for the peer or for the longest packet brings no acknowledgement that the program would process.
#[test]
fn a_message_does_not_gather_behind_packets_that_carry_none() {
    let mut net = Net::new(1, 2, NetworkLink::default(), Congestion::Reno);
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(1));
    let (now, there) = (net.now_at(0), net.address(1));
    net.hosts[0].endpoint.as_mut().unwrap().unreachable(now, there);
    let before = net.datagrams;
    net.turn(0);
    assert!(net.datagrams > before, "no question was sent");
    let endpoint = net.hosts[0].endpoint.as_mut().unwrap();
    let peer = endpoint.find(there).unwrap();
    let gap = Duration::from_micros(20);
    let post = |endpoint: &mut ofi_rdm::Endpoint| {
        endpoint.sender(now, peer).unwrap().commands.record(1, 0, &[], 0, None);
        endpoint.is_ready(now, peer, gap)
    };
    assert!(post(endpoint), "a question in flight delays a message");
    let mut buf = vec![0u8; 2000];
    let Net { hosts, .. } = &mut net;
    let host = &mut hosts[0];
    let endpoint = host.endpoint.as_mut().unwrap();
    assert!(endpoint.poll_transmit_to(now, peer, &mut buf, &mut host.application).is_some());
    assert!(!post(endpoint), "a message in flight does not delay the next");
}

#[test]
fn a_network_that_repeats_everything_comes_to_rest() {
    let mut net =
        Net::new(12, 2, NetworkLink { duplicate: 1000, ..NetworkLink::default() }, Congestion::Reno);
    net.record(0, 1, Stream::Commands, 10);
    net.payload(0, 1, Stream::Bulk, 100_000);
    net.run(Duration::from_secs(1));
    assert!(all_acked(net.model(0, 1)) && all_arrived(&net, 0, 1));
    assert!(net.datagrams < 200, "{}", net.datagrams);
}

/// Gaps in the packet numbers are reported only while they are new to the peer.
#[test]
fn acknowledgements_become_short_again_after_losses() {
    let mut net =
        Net::new(0, 2, NetworkLink { loss: 30, longest: 1472, ..NetworkLink::default() }, Congestion::Reno);
    let longest = |net: &mut Net| {
        let mut longest = 0;
        for _ in 0..100 {
            net.longest = 0;
            net.record(1, 0, Stream::Commands, 10);
            net.record(0, 1, Stream::Commands, 10);
            net.run(Duration::from_millis(2));
            longest = longest.max(net.longest);
        }
        longest
    };
    for _ in 0..30 {
        net.payload(0, 1, Stream::Bulk, 100_000);
        net.payload(1, 0, Stream::Bulk, 100_000);
        net.run(Duration::from_millis(100));
    }
    net.run(Duration::from_secs(1));
    net.link.loss = 0;
    longest(&mut net);
    longest(&mut net);
    // Header, acknowledgement of one run, and a record.
    let found = longest(&mut net);
    assert!(found < 140, "{found} bytes around a message of 10");
}
