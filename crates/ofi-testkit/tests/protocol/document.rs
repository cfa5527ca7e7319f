//! Checks that the packets in `docs/protocol.md` are those that the code produces.

use std::net::SocketAddr;
use std::time::Duration;

use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::{Params, Record};
use ofi_rdm::{Config, Driver, Endpoint, Flow, Instant, Limits, Lost, Security, Sender, Stream, suites};

struct Application(usize);

impl Driver for Application {
    fn introduce(&mut self, _peer: u32, _address: SocketAddr) {}

    fn record(&mut self, _peer: u32, _sender: &mut Sender, _stream: Stream, record: Record<'_>) -> Flow {
        assert_eq!((record.kind, record.body), (1, &b"a record"[..]));
        self.0 += 1;
        Flow::Next
    }

    fn lost(&mut self, _peer: u32, reason: Lost) {
        panic!("{reason:?}");
    }

    fn acked(&mut self, _peer: u32, _mark: u64) {}

    fn fill(&mut self, _peer: u32, _token: u64, _at: u64, _to: &mut [u8]) {}
}

fn endpoint(number: u8, address: SocketAddr) -> Endpoint {
    let params =
        Params { window: 1 << 20, in_flight: 1 << 20, max_packet: 1232, liveness_port: 7472, flags: 0 };
    let config = Config {
        params,
        congestion: Congestion::Reno,
        patience: Duration::from_secs(5),
        ack_delay: Duration::from_micros(50),
        max_peers: 4,
        warm_peers: 4,
        max_of_host: 4,
        idle: Duration::from_secs(60),
    };
    let mut endpoint = Endpoint::new(config, [u64::from(number); 2]);
    let (suites, seed) = (suites::CHACHA20_POLY1305, [number; 32]);
    let (key, translated, limits) = (b"job 7".to_vec(), false, Limits::RFC_9001);
    endpoint.secure(&Security { suites, key, seed, translated, limits }).unwrap();
    endpoint.set_addresses([address]);
    endpoint
}

/// Formats a packet in lines of 32 bytes, without the zeros at its end.
fn hex(packet: &[u8]) -> String {
    let end = packet.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
    let line = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    packet[..end].chunks(32).map(line).collect()
}

#[test]
fn the_document_s_packets_are_those_of_the_code() {
    let addresses: [SocketAddr; 2] = [([10, 0, 0, 1], 7471).into(), ([10, 0, 0, 2], 7471).into()];
    let mut ends = [endpoint(0x11, addresses[0]), endpoint(0x22, addresses[1])];
    let mut applications = [Application(0), Application(0)];
    let mut now = Instant::from_nanos(1_000_000);
    let (peer, _) = ends[0].peer(addresses[1]);
    ends[0].sender(now, peer).unwrap().commands.record(1, 0, b"a record", 0, None);
    let document = include_str!("../../../../docs/protocol.md");
    let mut found = String::new();
    for (from, name) in [(0, "Init"), (1, "Retry"), (0, "Init with a cookie"), (1, "Accept"), (0, "Data")] {
        let (mut buf, to) = ([0u8; 1500], 1 - from);
        let sent = ends[from].poll_transmit(now, &mut buf, &mut applications[from]).expect(name);
        assert_eq!(sent.to, addresses[to]);
        found += &format!("{name}, {} bytes:\n\n```text\n{}```\n\n", sent.len, hex(&buf[..sent.len]));
        now = now + Duration::from_micros(50);
        ends[to].handle(now, addresses[from], &mut buf[..sent.len], &mut applications[to]);
    }
    assert_eq!(applications[1].0, 1, "the record has arrived");
    assert!(document.contains(found.trim_end()), "docs/protocol.md must contain:\n\n{found}");
}
