//! The application of a simulated host: checks that the sent records arrive once and in order.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ofi_rdm::wire::Record;
use ofi_rdm::{Driver, Flow, Late, Lost, Sender, Sign, Stream};

use super::Net;
use super::link::Random;

/// A record as the model remembers it: sender's incarnation and session, number in the stream, stream, length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Incarnation of the sending host.
    pub incarnation: u32,
    /// Sessions that the sender had lost with this peer before.
    pub session: u32,
    /// Number among the records of this stream.
    pub number: u32,
}

/// A host's state about another host.
#[derive(Debug, Default)]
pub struct Model {
    /// Records sent to the peer in this session, per stream.
    pub sent: [u32; 2],
    /// Marks of sent records, and marks that were acknowledged, per stream.
    pub marked: [Vec<u64>; 2],
    /// In the order of the acknowledgements.
    pub acked: [Vec<u64>; 2],
    /// Records received from the peer, per stream.
    pub received: [Vec<Sent>; 2],
    /// Payloads of the peer: bytes received of each.
    pub payloads: BTreeMap<u64, u64>,
    /// Sessions lost.
    pub lost: u32,
    /// The reason of the last loss.
    pub reason: Option<Lost>,
}

impl Model {
    /// Whether everything sent in the current session has been acknowledged.
    pub fn is_acked(&self) -> bool {
        let sorted = |marks: &Vec<u64>| {
            let mut marks = marks.clone();
            marks.sort_unstable();
            marks
        };
        (0..2).all(|stream| sorted(&self.marked[stream]) == sorted(&self.acked[stream]))
    }
}

/// The application of a host: checks and remembers received records.
#[derive(Debug)]
pub struct Application {
    /// Indexed by peer.
    pub peers: Vec<(SocketAddr, Model)>,
    /// Signs of congestion that were reported, and the state then.
    pub signs: Vec<(Sign, Late)>,
    address: SocketAddr,
    pub(super) incarnation: u32,
    pub(super) random: Random,
    /// Probability of stopping commands, per 1,000.
    pub(super) stops: u32,
}

impl Application {
    pub(super) fn new(address: SocketAddr, incarnation: u32, random: Random, stops: u32) -> Self {
        Self { peers: Vec::new(), signs: Vec::new(), address, incarnation, random, stops }
    }
}

/// Source and destination host of a record, as stated in the record.
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

/// The period of the pattern: a prime, so that data placed a row of packets too far is detected.
const PERIOD: usize = 251;
/// A payload repeats a piece of this, so that its bytes need no arithmetic per byte.
const PATTERN: [u8; 2 * PERIOD] = {
    let (mut bytes, mut at) = ([0; 2 * PERIOD], 0);
    while at < bytes.len() {
        bytes[at] = ((at % PERIOD) as u8).wrapping_mul(0xb9);
        at += 1;
    }
    bytes
};

/// The bytes of payload `seed` from `at` on, up to the repetition.
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

    /// Takes some of the records, and stops at one that `record` refuses for now. Returns how many it has taken.
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

    fn congested(&mut self, _peer: u32, sign: Sign, state: Late) {
        self.signs.push((sign, state));
    }

    fn acked(&mut self, peer: u32, mark: u64) {
        let stream = (mark >> 63) as usize;
        self.peers[peer as usize].1.acked[stream].push(mark);
    }

    fn fill(&mut self, _peer: u32, token: u64, at: u64, to: &mut [u8]) {
        fill(token, at, to);
    }
}

/// Whether everything sent according to `model` has been acknowledged; true without a model.
pub fn all_acked(model: Option<&Model>) -> bool {
    model.is_none_or(Model::is_acked)
}

/// Whether everything that host `from` sent to `to` has arrived.
pub fn all_arrived(net: &Net, from: usize, to: usize) -> bool {
    let (Some(sent), Some(received)) = (net.model(from, to), net.model(to, from)) else { return true };
    (0..2).all(|stream| received.received[stream].len() as u32 == sent.sent[stream])
}
