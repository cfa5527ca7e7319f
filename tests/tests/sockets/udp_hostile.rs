//! Hostile peers with a session over real sockets, built on `ofi-rdm` with forged packets.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::{Frame, Params, Record, record};
use ofi_rdm::{Config, Driver, Endpoint, Flow, Lost, Sender, Stream};
use ofi_testkit::prelude::*;
use ofi_tests::udp::{local, socket};

/// Records and events that the hostile end received.
#[derive(Default)]
struct Heard {
    records: Vec<(u8, Vec<u8>)>,
    lost: Option<Lost>,
}

impl Driver for Heard {
    fn introduce(&mut self, _peer: u32, _address: SocketAddr) {}

    fn record(&mut self, _peer: u32, _sender: &mut Sender, _stream: Stream, record: Record<'_>) -> Flow {
        self.records.push((record.kind, record.body.to_vec()));
        Flow::Next
    }

    fn lost(&mut self, _peer: u32, reason: Lost) {
        self.lost = Some(reason);
    }

    fn acked(&mut self, _peer: u32, _mark: u64) {}

    fn fill(&mut self, _peer: u32, _token: u64, _at: u64, to: &mut [u8]) {
        to.fill(0);
    }
}

/// A peer that follows the protocol only in `behave`.
struct Hostile {
    endpoint: Endpoint,
    heard: Heard,
    socket: UdpSocket,
    to: SocketAddr,
    start: Instant,
    /// The next offset of each stream, and the credit limit of the commands.
    at: [u64; 2],
    limit: u64,
}

impl Hostile {
    /// Establishes a session with `side`.
    fn meet(side: &TestEndpoint) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_nonblocking(true).expect("a socket that does not block");
        let window = 1 << 16;
        let params = Params { window, in_flight: 1 << 20, max_packet: 65_000, liveness_port: 0, flags: 0 };
        let config = Config {
            params,
            congestion: Congestion::Fixed,
            patience: Duration::from_secs(60),
            ack_delay: Duration::from_micros(50),
            max_peers: 4,
            max_of_host: 4,
            idle: Duration::from_secs(600),
            warm_peers: 4,
        };
        let secret = [std::process::id().into(), u64::from(socket.local_addr().expect("an address").port())];
        let (to, start) = (self::socket(&side.name()), Instant::now());
        let (endpoint, heard) = (Endpoint::new(config, secret), Heard::default());
        let mut hostile = Self { endpoint, heard, socket, to, start, at: [0; 2], limit: window };
        let (peer, now) = (hostile.endpoint.peer(to).0, hostile.now());
        // A record of a kind without effects: payloads need not be announced.
        hostile.endpoint.sender(now, peer).expect("a peer").bulk.record(20, 0, &[0; 8], 0, None);
        wait::drive(&[side], "a session", || {
            hostile.behave();
            hostile.endpoint.is_drained().then_some(()).filter(|()| hostile.endpoint.is_open(0))
        });
        hostile.at[1] = 16;
        hostile.limit = 2 * (hostile.endpoint.longest_record(0) as u64 + 8);
        hostile
    }

    fn now(&self) -> ofi_rdm::Instant {
        ofi_rdm::Instant::from_nanos(1 + self.start.elapsed().as_nanos() as u64)
    }

    /// Receives all packets that have arrived.
    fn listen(&mut self) {
        let mut buf = vec![0u8; 65_536];
        while let Ok((len, from)) = self.socket.recv_from(&mut buf) {
            // The session is in the clear, so its frames show the credit.
            let mut frames = buf.get(24..len).unwrap_or_default();
            while buf[1] == 0
                && let Ok(Some((frame, rest))) = Frame::parse(frames)
            {
                if let Frame::Credit { stream: Stream::Commands, limit } = frame {
                    self.limit = self.limit.max(limit);
                }
                frames = rest;
            }
            let now = self.now();
            self.endpoint.handle(now, from, &mut buf[..len], &mut self.heard);
        }
    }

    /// Acts as a well-behaved peer: also acknowledges.
    fn behave(&mut self) {
        self.listen();
        let (now, mut buf) = (self.now(), vec![0u8; 65_536]);
        self.endpoint.hasten();
        self.endpoint.handle_time(now, &mut self.heard);
        while let Some(sent) = self.endpoint.poll_transmit(now, &mut buf, &mut self.heard) {
            let _ = self.socket.send_to(&buf[..sent.len], sent.to);
        }
    }

    /// Sends arbitrary records of a stream in one packet. Returns false if the credit is not enough.
    fn say(&mut self, stream: Stream, records: &[(u8, &[u8])]) -> bool {
        let mut bytes = Vec::new();
        for (kind, body) in records {
            bytes.extend_from_slice(&record::head(*kind, 0, body.len()));
            bytes.extend_from_slice(body);
        }
        let offset = self.at[stream as usize];
        if stream == Stream::Commands && offset + bytes.len() as u64 > self.limit {
            return false;
        }
        self.at[stream as usize] += bytes.len() as u64;
        let mut frame = vec![0u8; bytes.len() + 12];
        Frame::Data { stream, offset, bytes: &bytes }.write(&mut frame).expect("room");
        let mut buf = vec![0u8; 65_536];
        if let Some(packet) = self.endpoint.forge(0, &frame, &mut buf) {
            self.socket.send_to(&buf[..packet.len], self.to).expect("a send");
        }
        true
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Two well-behaved endpoints exchange a message.
fn others_are_served(side: &TestEndpoint) {
    let other = local();
    let to = other.insert(side);
    let (from, into) = (Memory::patterned(64, 3), Memory::new(64));
    side.receive(&into).context(1).post().expect("a receive");
    wait::drive(&[side, &other], "room", || other.out(to, &from).context(2).send().ok());
    wait::drive(&[side, &other], "the message", || side.next_of(1)).done();
    into.check(64, 3);
}

#[test]
fn a_peer_that_takes_no_answers_is_asked_no_questions() {
    let side = local();
    let mut hostile = Hostile::meet(&side);
    // Reads of no region: 48 bytes, each answered by 32.
    let read = words(&[7, 1, 4_096, 64, 99]);
    let reads: Vec<(u8, &[u8])> = (0..800).map(|_| (6, &read[..])).collect();
    let (mut said, mut quiet) = (0u64, 0);
    // A window full of commands, and those whose answers wait.
    let bound = hostile.limit / 48 + (1 << 20) / 24 + 10_000;
    while quiet < 200 {
        hostile.listen(); // sends no acknowledgements
        if hostile.say(Stream::Commands, &reads) {
            (said, quiet) = (said + reads.len() as u64, 0);
        } else {
            quiet += 1;
        }
        side.poll();
        assert!(said < bound, "requests are accepted without bound, and their answers kept");
    }
    assert!(said > 20_000, "too few requests were accepted: {said}");
    others_are_served(&side);
    // Once it acknowledges the answers, it gets more credit.
    let before = hostile.limit;
    wait::drive(&[&side], "more credit", || {
        hostile.behave();
        (hostile.limit > before + (1 << 20)).then_some(()).or_else(|| {
            hostile.say(Stream::Commands, &reads);
            None
        })
    });
    assert_eq!(hostile.heard.lost, None);
}

#[test]
fn a_payload_is_sent_once_however_often_it_is_asked_for() {
    let side = local();
    let mut hostile = Hostile::meet(&side);
    let to = side.insert_address(&Address::from(hostile.socket.local_addr().expect("an address")));
    let message = Memory::patterned(100_000, 1);
    wait::drive(&[&side], "room", || side.out(to, &message).context(5).send().ok());
    let announce = wait::drive(&[&side], "the announcement", || {
        hostile.behave();
        hostile.heard.records.iter().find(|(kind, _)| *kind == 2).map(|(_, body)| body.clone())
    });
    let op = u64::from_be_bytes(announce[..8].try_into().expect("8 bytes"));
    let send = words(&[op, 1, 100_000]);
    hostile.say(Stream::Bulk, &[(17, &send)]);
    hostile.say(Stream::Bulk, &[(17, &send)]);
    let failed = wait::drive(&[&side], "the end of the session", || {
        hostile.listen();
        side.next_of(5)
    });
    assert_eq!(failed.failed().err, Errno::EIO);
    others_are_served(&side);
}

/// A part of a payload ahead of its request.
fn part_ahead(op: u64, at: u64, len: usize) -> Vec<u8> {
    [words(&[op, at]), vec![1; len]].concat()
}

#[test]
fn what_comes_ahead_of_a_request_takes_no_memory_and_is_one_message_from_its_beginning_to_its_end() {
    const AHEAD: u8 = 10;
    const PART: u8 = 11;
    let side = local();
    let begin = |len| words(&[1, len]);
    let read = words(&[7, 1, 4_096, 64, 99]);
    let broken: [&[(u8, Vec<u8>)]; 6] = [
        &[(PART, part_ahead(1, 0, 10))],
        &[(AHEAD, begin(0))],
        &[(AHEAD, begin(50_000)), (6, read)],
        &[(AHEAD, begin(50_000)), (PART, part_ahead(2, 0, 10))],
        &[(AHEAD, begin(50_000)), (PART, part_ahead(1, 5, 10))],
        &[(AHEAD, begin(10)), (PART, part_ahead(1, 0, 11))],
    ];
    let message = Memory::patterned(100_000, 1);
    for records in broken {
        let mut hostile = Hostile::meet(&side);
        let to = side.insert_address(&Address::from(hostile.socket.local_addr().expect("an address")));
        wait::drive(&[&side], "room", || side.out(to, &message).context(5).send().ok());
        let before = side.statistic("rx_unexpected_now");
        // A whole one first, which breaks nothing.
        let (whole, part) = (begin(30_000), part_ahead(1, 0, 30_000));
        hostile.say(Stream::Commands, &[(AHEAD, &whole), (PART, &part)]);
        let records: Vec<(u8, &[u8])> = records.iter().map(|(kind, body)| (*kind, &body[..])).collect();
        wait::drive(&[&side], "the message without a receive", || {
            hostile.listen();
            (side.statistic("rx_unexpected_now") > before).then_some(())
        });
        assert_eq!(side.statistic("rx_unexpected_bytes"), 0, "{}", side.report());
        assert!(side.next_of(5).is_none(), "the session stands");
        hostile.say(Stream::Commands, &records);
        let failed = wait::drive(&[&side], "the end of the session", || {
            hostile.listen();
            side.next_of(5)
        });
        assert_eq!(failed.failed().err, Errno::EIO, "{records:?}");
    }
}
