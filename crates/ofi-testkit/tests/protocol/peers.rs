//! The cost of many peers of an `ofi-rdm` endpoint, their turns, and acknowledgements owed to a peer. A separate test
//! program, because it measures its memory.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::{Params, Record};
use ofi_rdm::{Config, Driver, Endpoint, Flow, Instant, Lost, Sender, Stream};

const PEERS: u32 = 10_000;
/// The maximum number of bytes of a peer: of the 1,024 that an idle peer may take, the transport and the core get the
/// rest.
const EACH: u64 = 640;

/// A driver that counts.
#[derive(Default)]
struct Application {
    records: u64,
    acked: u64,
}

impl Driver for Application {
    fn introduce(&mut self, _peer: u32, _address: SocketAddr) {}
    fn record(&mut self, _peer: u32, _sender: &mut Sender, _stream: Stream, _record: Record<'_>) -> Flow {
        self.records += 1;
        Flow::Next
    }
    fn lost(&mut self, peer: u32, reason: Lost) {
        panic!("{peer}: {reason:?}");
    }
    fn acked(&mut self, _peer: u32, _mark: u64) {
        self.acked += 1;
    }
    fn fill(&mut self, _peer: u32, _token: u64, _at: u64, to: &mut [u8]) {
        to.fill(7);
    }
}

fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 =
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).expect("Linux says RssAnon");
    kib * 1024
}

fn config() -> Config {
    let params =
        Params { window: 1 << 20, in_flight: 1 << 20, max_packet: 65_000, liveness_port: 9, flags: 0 };
    Config {
        params,
        congestion: Congestion::Reno,
        patience: Duration::from_secs(5),
        ack_delay: Duration::from_micros(50),
        max_peers: 1 << 20,
        max_of_host: 1 << 20,
        idle: Duration::from_secs(600),
        warm_peers: 64,
    }
}

/// Carries datagrams between the hub and one peer until neither has anything to send.
fn converse(
    now: &mut Instant,
    hub: &mut (Endpoint, Application),
    peer: &mut (Endpoint, Application),
    at: SocketAddr,
) {
    let here: SocketAddr = (Ipv4Addr::LOCALHOST, 1).into();
    let mut buffer = vec![0u8; 65_536];
    loop {
        let mut moved = false;
        *now = *now + Duration::from_micros(100);
        moved |= carry(*now, hub, peer, here, &mut buffer);
        moved |= carry(*now, peer, hub, at, &mut buffer);
        if !moved {
            return;
        }
    }
}

/// Carries all datagrams of `one`, which is at `from`, to `other`. Returns whether there were any.
fn carry(
    now: Instant,
    one: &mut (Endpoint, Application),
    other: &mut (Endpoint, Application),
    from: SocketAddr,
    buffer: &mut [u8],
) -> bool {
    let mut any = false;
    one.0.handle_time(now, &mut one.1);
    while let Some(transmit) = one.0.poll_transmit(now, buffer, &mut one.1) {
        any = true;
        other.0.handle(now, from, &mut buffer[..transmit.len], &mut other.1);
    }
    any
}

fn address(number: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number)), 7000)
}

/// Exchanges one message in each direction, and discovers the packet size. Returns the peer.
fn meet(now: &mut Instant, hub: &mut (Endpoint, Application), number: u32) -> (Endpoint, Application) {
    let at = address(number);
    let mut peer = (Endpoint::new(config(), [u64::from(number) + 100, 5]), Application::default());
    let (index, _) = hub.0.peer(at);
    let sender = hub.0.sender(*now, index).expect("it was just made");
    sender.commands.record(1, 0, b"fields", 64, Some(1)).fill(1);
    converse(now, hub, &mut peer, at);
    let (back, _) = peer.0.peer((Ipv4Addr::LOCALHOST, 1).into());
    peer.0.sender(*now, back).expect("they have met").commands.record(1, 0, b"fields", 64, Some(1)).fill(2);
    converse(now, hub, &mut peer, at);
    assert_eq!((peer.1.records, peer.1.acked), (1, 1));
    peer
}

#[test]
fn ten_thousand_idle_peers_cost_little_each() {
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut hub = (Endpoint::new(config(), [1, 2]), Application::default());
    (0..500).for_each(|number| drop(meet(&mut now, &mut hub, number)));
    let before = anonymous_bytes();
    (500..500 + PEERS).for_each(|number| drop(meet(&mut now, &mut hub, number)));
    let each = anonymous_bytes().saturating_sub(before) / u64::from(PEERS);
    println!("{each} bytes for each of {PEERS} peers");
    assert_eq!((hub.1.records, hub.1.acked), (u64::from(PEERS) + 500, u64::from(PEERS) + 500));
    assert!(each <= EACH, "{each} bytes for each peer");
    // They work like new ones.
    let stats = hub.0.peer_statistics(3).expect("it was met");
    assert_eq!((stats.packet_size, hub.0.is_open(3), hub.0.poll_timeout()), (65_000, true, None));
}

#[test]
fn peers_send_by_turns() {
    const LEN: usize = 16_000;
    const EACH_SENDS: usize = 30;
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut hub = (Endpoint::new(config(), [1, 2]), Application::default());
    let _peers: Vec<_> = (0..3).map(|number| meet(&mut now, &mut hub, number)).collect();
    for peer in 0..3 {
        let sender = hub.0.sender(now, peer).expect("they have met");
        (0..EACH_SENDS).for_each(|_| sender.commands.record(1, 0, b"fields", LEN, None).fill(1));
    }
    let mut buffer = vec![0u8; 65_536];
    let mut runs: Vec<(Option<u32>, usize)> = Vec::new();
    while let Some(transmit) = hub.0.poll_transmit(now, &mut buffer, &mut hub.1) {
        match runs.last_mut() {
            Some((peer, bytes)) if *peer == transmit.peer => *bytes += transmit.len,
            _ => runs.push((transmit.peer, transmit.len)),
        }
    }
    let sent: usize = runs.iter().map(|(_, bytes)| bytes).sum();
    assert!(sent >= 3 * EACH_SENDS * LEN, "{sent} bytes");
    // A turn ends with the packet that fills it.
    assert!(runs.iter().all(|(_, bytes)| *bytes < (64 << 10) + 65_000), "{runs:?}");
    for (turn, (peer, _)) in runs.iter().enumerate().take(9) {
        assert_eq!(*peer, runs[turn % 3].0, "{runs:?}");
    }
}

#[test]
fn an_acknowledgement_that_waits_for_company_is_let_out() {
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut hub = (Endpoint::new(config(), [1, 2]), Application::default());
    let mut peer = meet(&mut now, &mut hub, 0);
    let mut buffer = vec![0u8; 65_536];
    let here = (Ipv4Addr::LOCALHOST, 1).into();
    for round in 0..3 {
        now = now + Duration::from_secs(1);
        for answered in [true, false] {
            let sender = hub.0.sender(now, 0).expect("they have met");
            sender.commands.record(1, 0, b"fields", 64, Some(2)).fill(1);
            assert!(carry(now, &mut hub, &mut peer, here, &mut buffer));
            if answered {
                // The acknowledgement of a message that is answered at once may travel with the answer, so the next
                // message waits for an answer too.
                let sender = peer.0.sender(now, 0).expect("they have met");
                sender.commands.record(1, 0, b"fields", 64, None).fill(2);
                assert!(carry(now, &mut peer, &mut hub, address(0), &mut buffer));
            }
        }
        assert!(
            peer.0.poll_transmit(now, &mut buffer, &mut peer.1).is_none(),
            "the acknowledgement did not wait, round {round}"
        );
        assert!(peer.0.hasten(), "round {round}");
        assert!(carry(now, &mut peer, &mut hub, address(0), &mut buffer), "round {round}");
        assert!(!peer.0.hasten() && hub.1.acked == 3 + 2 * round, "round {round}");
    }
}
