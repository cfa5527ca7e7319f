//! Peers that have a session and mean harm: what they cost is bounded, and others do not notice them. In the clear and encrypted.

use std::time::Duration;

use rdm_proto::Stream;
use rdm_proto::congestion::Congestion;
use rdm_proto::wire::Frame;
use testkit::net::{Link, Net};

/// Networks whose packets are in the clear, and encrypted.
const SEEDS: [u64; 2] = [0, 4];

/// Three hosts, of which 0 and 2 have a session with 1.
fn net(seed: u64) -> Net {
    let mut net = Net::new(seed, 3, Link::default(), Congestion::Reno);
    for host in [0, 2] {
        net.record(host, 1, Stream::Commands, 10);
    }
    net.run(Duration::from_secs(1));
    net
}

/// A stream frame.
fn bytes(stream: Stream, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0u8; 12 + bytes.len()];
    let len = Frame::Data { stream, offset, bytes }.write(&mut frame).expect("room");
    frame.truncate(len);
    frame
}

/// Host 2 is served as if nothing were.
fn others_are_served(net: &mut Net) {
    let before = net.model(1, 2).expect("it has a session").received[0].len();
    net.record(2, 1, Stream::Commands, 100);
    net.run(Duration::from_millis(10));
    assert_eq!(net.model(1, 2).map(|model| model.received[0].len()), Some(before + 1));
}

#[test]
fn a_stream_in_shreds_costs_little() {
    for seed in SEEDS {
        let mut net = net(seed);
        // Every second byte of the window, from its end on: 5,000 to a packet.
        let places: Vec<u64> = (0..(1u64 << 17) - 20).map(|n| (1 << 18) - 1 - 2 * n).collect();
        for packet in places.chunks(4_900) {
            let frames: Vec<u8> = packet.iter().flat_map(|&at| bytes(Stream::Commands, at, &[7])).collect();
            assert!(net.forge(0, 1, &frames));
            net.run(Duration::from_millis(1));
        }
        let endpoint = net.hosts[1].endpoint.as_ref().expect("it lives");
        let crowded = endpoint.statistics().crowded;
        assert!(crowded + 1 >= (places.len() / 4_900) as u64, "{crowded} packets turned away");
        others_are_served(&mut net);
        // Its session goes on: what was turned away was as if lost.
        net.record(0, 1, Stream::Bulk, 100);
        net.run(Duration::from_millis(10));
        assert_eq!(net.model(1, 0).map(|model| model.received[1].len()), Some(1));
    }
}
