//! Two endpoints of `ofi-rdm` on a network that the input controls: operations, and which datagrams arrive, in which
//! order, how often, with which bytes changed, and how much time passes. It also forges datagrams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::{Params, Record, VERSION};
use ofi_rdm::{
    Arrivals, Config, Driver, Endpoint, Flow, Instant, Limits, Lost, Security, Sender, Stream, suites,
};

use super::Input;

/// An application that accepts and counts records.
#[derive(Default)]
struct Application {
    records: u64,
    peers: u32,
    stop: bool,
}

impl Driver for Application {
    fn introduce(&mut self, peer: u32, _address: SocketAddr) {
        assert_eq!(peer, self.peers);
        self.peers += 1;
    }

    fn record(&mut self, _peer: u32, sender: &mut Sender, stream: Stream, record: Record<'_>) -> Flow {
        if self.stop && stream == Stream::Commands {
            return Flow::Stop;
        }
        self.records += 1;
        if stream == Stream::Commands && record.kind == 9 && sender.bulk.buffered() < 1 << 16 {
            sender.bulk.record(1, 0, record.body, 0, None);
        }
        Flow::Next
    }

    fn lost(&mut self, _peer: u32, _reason: Lost) {}

    fn acked(&mut self, _peer: u32, _mark: u64) {}

    fn fill(&mut self, _peer: u32, _token: u64, _at: u64, to: &mut [u8]) {
        to.fill(7);
    }
}

/// Maximum number of datagrams in flight.
const WIRE: usize = 64;

/// Runs an input. Returns the number of sessions that the two endpoints have started since their last restart.
pub fn protocol(input: &[u8]) -> u64 {
    let mut input = Input(input);
    // An input of even length: idle sessions are put away at once.
    let warm = input.0.len() % 2 == 1;
    // Every third length: encrypted.
    let security = |number: u8| Security {
        suites: if input.0.len() % 3 == 0 { suites::ENCRYPTED } else { suites::CLEAR },
        key: Vec::new(),
        seed: [number; 32],
        translated: false,
        limits: Limits::RFC_9001,
    };
    let security = [security(1), security(2)];
    let address = |number: u8| SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, number)), 9);
    let params = Params { window: 1 << 16, in_flight: 1 << 16, max_packet: 4000, liveness_port: 7, flags: 0 };
    let config = Config {
        params,
        congestion: Congestion::Reno,
        patience: Duration::from_secs(5),
        ack_delay: Duration::from_micros(50),
        max_peers: 4,
        max_of_host: 1 << 20,
        idle: Duration::from_secs(600),
        warm_peers: usize::from(warm),
    };
    let mut ends: Vec<(Endpoint, Application)> =
        (1..3u64).map(|number| (Endpoint::new(config, [number, number]), Application::default())).collect();
    ends.iter_mut().zip(&security).for_each(|((endpoint, _), security)| {
        endpoint.secure(security).expect("feature `encryption`");
    });
    let mut wire: Vec<(usize, SocketAddr, Vec<u8>)> = Vec::new();
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut buffer = vec![0u8; 65_536];
    let mut steps = 0;
    while !input.0.is_empty() && steps < 2000 {
        steps += 1;
        let what = input.byte();
        let (who, other) = (usize::from(what >> 7), usize::from(what >> 7 == 0));
        match what & 15 {
            0..=3 => {
                let (endpoint, application) = &mut ends[who];
                let (peer, new) = endpoint.peer(address(other as u8 + 1));
                if new {
                    application.introduce(peer, address(other as u8 + 1));
                }
                let len = input.short() % 3000;
                let sender = endpoint.sender(now, peer).expect("it was just made");
                let stream = if what & 1 == 0 { &mut sender.commands } else { &mut sender.bulk };
                if stream.buffered() < 1 << 17 {
                    if what & 2 == 0 {
                        stream.record(9, 0, b"fields", len, Some(1));
                    } else {
                        stream.payload(2, 0, 1, 2, len as u64 * 16);
                    }
                }
            }
            4..=7 if !wire.is_empty() => {
                let at = usize::from(input.byte()) % wire.len();
                let (to, from, mut bytes) =
                    if what & 1 == 0 { wire.swap_remove(at) } else { wire[at].clone() };
                if what & 2 != 0 && !bytes.is_empty() {
                    let place = input.short() % bytes.len();
                    bytes[place] = input.byte();
                }
                // Followed by others of the same length, as the kernel coalesces them (UDP_GRO).
                let len = bytes.len();
                let alike = wire.iter().filter(|other| (other.0, other.1, other.2.len()) == (to, from, len));
                alike
                    .take(usize::from(what >> 4) & 3)
                    .for_each(|(_, _, other)| bytes.extend_from_slice(other));
                let (endpoint, application) = &mut ends[to];
                let arrivals = Arrivals { bytes: &mut bytes, len, marked: what & 64 != 0 };
                endpoint.handle_row(now, from, arrivals, application);
            }
            8 if !wire.is_empty() => drop(wire.swap_remove(usize::from(input.byte()) % wire.len())),
            9 => {
                let len = input.short() % 1500;
                let mut bytes = input.bytes(len).to_vec();
                if what & 16 != 0 && bytes.len() >= 8 {
                    let head = [VERSION, bytes[1] % 9, 0, 0, 0, 0, 0, 0];
                    bytes[..8].copy_from_slice(&head);
                }
                let (endpoint, application) = &mut ends[who];
                endpoint.handle(now, address(input.byte() % 4), &mut bytes, application);
            }
            10 => now = now + Duration::from_micros(input.short() as u64 * 50),
            11 => ends[who].1.stop = what & 16 != 0,
            12 => {
                let (endpoint, application) = &mut ends[who];
                endpoint.resume(now, application);
            }
            13 => endpoint_restarts(&mut ends[who], config, &security[who], input.byte()),
            14 => ends[who].0.too_long(0, input.short()),
            _ => {
                let (endpoint, application) = &mut ends[who];
                endpoint.handle_time(now, application);
                let mut sent = 0;
                // One at a time, or in batches.
                let most = 1 + usize::from(what >> 4);
                while let Some(transmit) = endpoint.poll_train(now, most, &mut buffer, application) {
                    sent += 1;
                    assert!(sent < 10_000, "an endpoint that never stops sending");
                    assert!(transmit.count >= 1 && transmit.count <= most);
                    for packet in buffer[..transmit.len * transmit.count].chunks(transmit.len) {
                        if wire.len() < WIRE {
                            let to = usize::from(transmit.to == address(2));
                            wire.push((to, address(who as u8 + 1), packet.to_vec()));
                        }
                    }
                }
                assert!(endpoint.poll_timeout().is_none_or(|time| time >= now));
            }
        }
    }
    ends.iter().map(|(endpoint, _)| endpoint.statistics().sessions).sum()
}

fn endpoint_restarts(end: &mut (Endpoint, Application), config: Config, security: &Security, seed: u8) {
    *end = (Endpoint::new(config, [u64::from(seed) + 10, 3]), Application::default());
    end.0.secure(security).expect("feature `encryption`");
}
