//! Hostile peers with a session: their cost is bounded, and other peers are not affected. In the clear and
//! encrypted.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::{Frame, Params, Record};
use ofi_rdm::{Config, Driver, Endpoint, Flow, Instant, Lost, Sender, Stream};
use ofi_testkit::net::{Net, NetworkLink};

/// Networks whose packets are in the clear, and encrypted.
const SEEDS: [u64; 2] = [0, 4];

/// Three hosts; hosts 0 and 2 have a session with host 1.
fn net(seed: u64) -> Net {
    let mut net = Net::new(seed, 3, NetworkLink::default(), Congestion::Reno);
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

/// Checks that host 2 is served as usual.
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
        assert!(crowded + 1 >= (places.len() / 4_900) as u64, "only {crowded} packets were dropped");
        others_are_served(&mut net);
        // Its session continues: refused data counts as lost.
        net.record(0, 1, Stream::Bulk, 100);
        net.run(Duration::from_millis(10));
        assert_eq!(net.model(1, 0).map(|model| model.received[1].len()), Some(1));
    }
}

/// Endpoints on many ports of one host, and the endpoint that they contact.
struct Crowd {
    server: (Endpoint, Application),
    now: Instant,
}

#[derive(Default)]
struct Application {
    introduced: usize,
    lost: Vec<u32>,
}

impl Driver for Application {
    fn introduce(&mut self, _peer: u32, _address: SocketAddr) {
        self.introduced += 1;
    }

    fn record(&mut self, _peer: u32, _sender: &mut Sender, _stream: Stream, _record: Record<'_>) -> Flow {
        Flow::Next
    }

    fn lost(&mut self, peer: u32, _reason: Lost) {
        self.lost.push(peer);
    }

    fn acked(&mut self, _peer: u32, _mark: u64) {}

    fn fill(&mut self, _peer: u32, _token: u64, _at: u64, to: &mut [u8]) {
        to.fill(0);
    }
}

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 1);

impl Crowd {
    fn config() -> Config {
        let params =
            Params { window: 1 << 16, in_flight: 1 << 16, max_packet: 1232, liveness_port: 0, flags: 0 };
        Config {
            params,
            congestion: Congestion::Reno,
            patience: Duration::from_secs(5),
            ack_delay: Duration::from_micros(50),
            max_peers: 20,
            max_of_host: 8,
            idle: Duration::from_secs(600),
            warm_peers: 4,
        }
    }

    fn new() -> Self {
        let server = (Endpoint::new(Self::config(), [1, 2]), Application::default());
        Self { server, now: Instant::from_nanos(1_000_000_000) }
    }

    /// A stranger at `from` begins a session, sends a record, and then stays silent. Returns whether it got a
    /// session.
    fn visit(&mut self, from: SocketAddr) -> bool {
        let mut client = (Endpoint::new(Self::config(), [from.port().into(), 7]), Application::default());
        let (peer, _) = client.0.peer(SERVER);
        client.0.sender(self.now, peer).expect("a peer").commands.record(1, 0, &[], 0, None);
        let mut buf = [0u8; 2000];
        for _ in 0..6 {
            while let Some(sent) = client.0.poll_transmit(self.now, &mut buf, &mut client.1) {
                self.server.0.handle(self.now, from, &mut buf[..sent.len], &mut self.server.1);
            }
            while let Some(sent) = self.server.0.poll_transmit(self.now, &mut buf, &mut self.server.1) {
                if sent.to == from {
                    client.0.handle(self.now, SERVER, &mut buf[..sent.len], &mut client.1);
                }
            }
            self.now = self.now + Duration::from_millis(1);
        }
        client.0.is_open(peer)
    }

    /// Time passes without answers to the server. Lost peers are forgotten, as a driver does.
    fn wait(&mut self, time: Duration) {
        let (end, mut buf) = (self.now + time, [0u8; 2000]);
        while let Some(next) = self.server.0.poll_timeout().filter(|&next| next <= end) {
            self.now = self.now.max(next);
            self.server.0.handle_time(self.now, &mut self.server.1);
            while self.server.0.poll_transmit(self.now, &mut buf, &mut self.server.1).is_some() {}
            for peer in std::mem::take(&mut self.server.1.lost) {
                self.server.0.forget(peer);
            }
        }
        self.now = end;
    }
}

#[test]
fn one_host_does_not_fill_an_endpoint_and_strangers_that_are_gone_are_forgotten() {
    let mut crowd = Crowd::new();
    let of = |host: u8, port: u16| SocketAddr::new(Ipv4Addr::new(10, 0, 1, host).into(), port);
    let began: Vec<bool> = (1..13).map(|port| crowd.visit(of(1, port))).collect();
    assert_eq!(began.iter().filter(|&&began| began).count(), 8, "{began:?}");
    assert_eq!(crowd.server.0.turned_away(), 4);
    assert!(crowd.visit(of(2, 1)), "another host has room");
    crowd.wait(Duration::from_secs(500));
    assert!(!crowd.visit(of(1, 20)), "silent peers are forgotten too early");
    // Much later: for each new stranger two silent ones are probed, and do not answer.
    crowd.wait(Duration::from_secs(200));
    for port in 10..18 {
        assert!(crowd.visit(of(3, port)));
        crowd.wait(Duration::from_secs(20));
    }
    assert!(crowd.visit(of(1, 21)), "no silent peer was forgotten");
}

/// An acknowledgement of all numbers up to `largest`.
fn ack(largest: u64) -> Vec<u8> {
    let mut frame = vec![2u8, 1];
    frame.extend_from_slice(&largest.to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&(largest as u32 + 1).to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame
}

#[test]
fn who_acknowledges_what_has_not_come_is_found_out() {
    for seed in SEEDS {
        let mut net = net(seed);
        let mut told = 0;
        while net.model(1, 0).map(|model| model.reason) == Some(None) {
            assert!(told < 8192, "{told} packets were acknowledged before they arrived");
            net.record(1, 0, Stream::Commands, 1000);
            net.run(Duration::from_millis(1));
            told += 1;
            assert!(net.forge(0, 1, &ack(told)), "the session is there");
            net.run(Duration::from_millis(1));
        }
        assert_eq!(net.model(1, 0).map(|model| model.reason), Some(Some(Lost::Broken)));
        assert!(told > 200, "after {told}");
        others_are_served(&mut net);
    }
}

#[test]
fn a_session_ended_by_a_lie_about_bytes_never_sent_takes_nobody_along() {
    for seed in SEEDS {
        let mut net = net(seed);
        let ack = [2u8, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        assert!(net.forge(0, 1, &ack), "an acknowledgement of packet 65,536");
        net.run(Duration::from_millis(1));
        assert_eq!(net.model(1, 0).map(|model| model.reason), Some(Some(Lost::Broken)));
        others_are_served(&mut net);
    }
}
