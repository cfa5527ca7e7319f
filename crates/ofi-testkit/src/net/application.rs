//! The application of a simulated host: says what arrived, and checks that it is what was sent, each once and in order.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ofi_rdm::wire::Record;
use ofi_rdm::{Driver, Flow, Lost, Sender, Stream};

use super::Net;
use super::link::Random;

/// A record as the model remembers it: sender's incarnation and session, number in the stream, stream, length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Incarnation of the sending host.
    pub incarnation: u32,
    /// Sessions that it had lost with this peer before.
    pub session: u32,
    /// Number among the records of this stream.
    pub number: u32,
}

/// What a host knows of another.
#[derive(Debug, Default)]
pub struct Model {
    /// Records of this session to the peer, of each stream.
    pub sent: [u32; 2],
    /// Marks handed out, and those that came back as arrived, of each stream.
    pub marked: [Vec<u64>; 2],
    /// In the order in which they came back.
    pub acked: [Vec<u64>; 2],
    /// What arrived of the peer, of each stream.
    pub received: [Vec<Sent>; 2],
    /// Payloads of the peer: bytes that arrived of each.
    pub payloads: BTreeMap<u64, u64>,
    /// Sessions lost.
    pub lost: u32,
    /// Why the last one was.
    pub reason: Option<Lost>,
}

impl Model {
    /// Whether everything that was sent in the session that there is has been acknowledged.
    pub fn is_acked(&self) -> bool {
        let sorted = |marks: &Vec<u64>| {
            let mut marks = marks.clone();
            marks.sort_unstable();
            marks
        };
        (0..2).all(|stream| sorted(&self.marked[stream]) == sorted(&self.acked[stream]))
    }
}

/// The application of a host: checks what arrives, and remembers it.
#[derive(Debug)]
pub struct Application {
    /// By peer.
    pub peers: Vec<(SocketAddr, Model)>,
    address: SocketAddr,
    pub(super) incarnation: u32,
    pub(super) random: Random,
    /// Stops commands, of 1,000.
    pub(super) stops: u32,
}

impl Application {
    pub(super) fn new(address: SocketAddr, incarnation: u32, random: Random, stops: u32) -> Self {
        Self { peers: Vec::new(), address, incarnation, random, stops }
    }
}

/// From which host to which a record goes, as it says itself.
pub(super) fn way(from: SocketAddr, to: SocketAddr) -> u16 {
    let host = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(ip) => ip.octets()[15],
    };
    u16::from_be_bytes([host(from), host(to)])
}

/// Kinds of records: a whole one, and a part of a payload.
pub(super) const RECORD: u8 = 1;
pub(super) const PART: u8 = 2;

/// How long a pattern is: a prime, so that what lies a row of packets too far shows.
const PERIOD: usize = 251;
/// A payload is a piece of this, over and over: which bytes lie where takes no arithmetic, byte by byte.
const PATTERN: [u8; 2 * PERIOD] = {
    let (mut bytes, mut at) = ([0; 2 * PERIOD], 0);
    while at < bytes.len() {
        bytes[at] = ((at % PERIOD) as u8).wrapping_mul(0xb9);
        at += 1;
    }
    bytes
};

/// The bytes of payload `seed` from `at` on, as many as there are before they repeat.
fn pattern(seed: u64, at: u64) -> &'static [u8] {
    &PATTERN[(seed.wrapping_mul(31).wrapping_add(at) % PERIOD as u64) as usize..][..PERIOD]
}

pub(super) fn fill(seed: u64, at: u64, to: &mut [u8]) {
    let pattern = pattern(seed, at);
    to.chunks_mut(PERIOD).for_each(|chunk| chunk.copy_from_slice(&pattern[..chunk.len()]));
}

fn check(seed: u64, at: u64, bytes: &[u8], what: &dyn std::fmt::Debug) {
    let pattern = pattern(seed, at);
    for (number, chunk) in bytes.chunks(PERIOD).enumerate() {
        assert_eq!(chunk, &pattern[..chunk.len()], "{what:?}, from {} on", at + (PERIOD * number) as u64);
    }
}

impl Driver for Application {
    fn introduce(&mut self, peer: u32, address: SocketAddr) {
        assert_eq!(peer as usize, self.peers.len(), "peers are numbered from 0");
        self.peers.push((address, Model::default()));
    }

    fn record(&mut self, peer: u32, _sender: &mut Sender, stream: Stream, record: Record<'_>) -> Flow {
        if stream == Stream::Commands && self.random.chance(self.stops) {
            return Flow::Stop;
        }
        let (from, model) = &mut self.peers[peer as usize];
        let word = |at: usize| u64::from_be_bytes(record.body[at..at + 8].try_into().expect("8 bytes"));
        match record.kind {
            RECORD => {
                let (who, number) = (word(0), word(8));
                let sent =
                    Sent { incarnation: (who >> 32) as u32, session: who as u32, number: number as u32 };
                check(who ^ number, 0, &record.body[16..], &sent);
                assert_eq!(
                    (number >> 32) as u16,
                    way(*from, self.address),
                    "{sent:?} is of {from}, to this host"
                );
                let before = model.received[stream as usize].last().copied();
                match before {
                    Some(last) if (last.incarnation, last.session) == (sent.incarnation, sent.session) => {
                        assert_eq!(sent.number, last.number + 1, "each once and in order");
                    }
                    _ => assert_eq!(
                        sent.number, 0,
                        "a session begins with its first record, not after {before:?}"
                    ),
                }
                model.received[stream as usize].push(sent);
            }
            PART => {
                let (id, offset) = (word(0), word(8));
                let got = model.payloads.entry(id).or_default();
                assert_eq!(offset, *got, "parts of {id:#x} come in order");
                check(id, offset, &record.body[16..], &format_args!("{id:#x}"));
                *got += record.body.len() as u64 - 16;
            }
            other => panic!("a record of kind {other}"),
        }
        Flow::Next
    }

    /// Some of them, up to one that is stopped.
    fn records(
        &mut self,
        peer: u32,
        sender: &mut Sender,
        stream: Stream,
        records: &[Record<'_>],
    ) -> (usize, Flow) {
        let most = 1 + self.random.below(records.len() as u64) as usize;
        for (taken, &record) in records[..most].iter().enumerate() {
            if self.record(peer, sender, stream, record) == Flow::Stop {
                return if taken == 0 { (0, Flow::Stop) } else { (taken, Flow::Next) };
            }
        }
        (most, Flow::Next)
    }

    fn lost(&mut self, peer: u32, reason: Lost) {
        let model = &mut self.peers[peer as usize].1;
        model.lost += 1;
        model.reason = Some(reason);
        (model.sent, model.marked, model.acked) = Default::default();
    }

    fn acked(&mut self, peer: u32, mark: u64) {
        let stream = (mark >> 63) as usize;
        self.peers[peer as usize].1.acked[stream].push(mark);
    }

    fn fill(&mut self, _peer: u32, token: u64, at: u64, to: &mut [u8]) {
        fill(token, at, to);
    }
}

/// Whether everything that `model` says was sent has been acknowledged; where there is none, nothing was.
pub fn all_acked(model: Option<&Model>) -> bool {
    model.is_none_or(Model::is_acked)
}

/// Whether everything that host `from` sent to `to` is there.
pub fn all_arrived(net: &Net, from: usize, to: usize) -> bool {
    let (Some(sent), Some(received)) = (net.model(from, to), net.model(to, from)) else { return true };
    (0..2).all(|stream| received.received[stream].len() as u32 == sent.sent[stream])
}
