//! Datagrams between the helper threads of two processes: they introduce two endpoints and pass descriptors.
//!
//! Every message is an array of words in the host's byte order (both ends are on this host). Incoming messages are
//! checked here; the helper drops and counts those that do not parse.

use ofi_core::auth::Proof;
use ofi_core::hmem::DeviceHandle;

use crate::cma::Token;

/// Version of all formats that two processes share: this file, `layout.rs`, `command.rs` and `ofi_ring::record`.
pub const VERSION: u64 = 9;
/// First word of every message.
const MAGIC: u64 = u64::from_le_bytes(*b"ofi-shm\0") ^ VERSION << 56;
/// The maximum length of a message, and of a datagram of any kind, in bytes.
const MAX_MESSAGE: usize = WORDS * 8;
pub const MAX_BYTES: usize = 24 + ofi_core::transport::MAX_PACKET;
/// First word of a datagram that carries a packet of connection management.
const PACKET: u64 = u64::from_le_bytes(*b"ofi-shm\0") ^ (VERSION | 1 << 7) << 56;
const WORDS: usize = 19;

/// An endpoint's introduction to a peer. Its descriptors are the pair memory for this peer, the endpoint memory, the
/// doorbell memory, the ring of commands and, with `wakes`, the eventfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Chosen at random when the endpoint was enabled.
    pub incarnation: u64,
    /// Lines of the ring of commands.
    pub command_lines: u32,
    /// The hint byte of its doorbell memory that the peer uses.
    pub hint: u32,
    /// Whether an eventfd is attached.
    pub wakes: bool,
    /// Proof of its authorization key, over [`greeting_text`].
    pub proof: Proof,
    /// Identifies its process to peers that copy from or to its memory, if it permits that.
    pub token: Token,
}

/// The text that the proof of an introduction covers: only its receiver accepts it, and only for this incarnation of
/// its sender.
pub fn greeting_text<'a>(
    welcome: bool,
    from: &'a [u8],
    to: &'a [u8],
    incarnation: &'a [u8],
) -> [&'a [u8]; 4] {
    [if welcome { b"shm welcome" } else { b"shm hello" }, from, to, incarnation]
}

/// The text that the proof of a connection management packet covers.
pub fn packet_text<'a>(from: &'a [u8], to: &'a [u8], packet: &'a [u8]) -> [&'a [u8]; 4] {
    [b"shm packet", from, to, packet]
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// An endpoint that wants to send. Answered by a welcome.
    Hello(Introduction),
    /// The answer.
    Welcome(Introduction),
    /// The endpoint is closing.
    Close { incarnation: u64 },
    /// The receiver was asleep, and the sender does not have its eventfd.
    Wake,
    /// The sender's bulk memory, with its descriptor.
    Bulk { incarnation: u64, lines: u32 },
    /// The sender asks to map the memory behind `key`; with `write`, for writing too. It can map a device's memory if
    /// `devices` says so.
    Request { incarnation: u64, key: u64, write: bool, devices: bool },
    /// The answer, with the descriptor if `len` is not 0.
    Grant { incarnation: u64, key: u64, grant: Terms },
    /// The answer, if the memory is a device's that the receiver may map.
    Device { incarnation: u64, key: u64, grant: Terms, device: DeviceHandle },
    /// The sender has closed the registration behind `key`, whose device memory the receiver may have mapped.
    Withdrawn { incarnation: u64, key: u64 },
    /// The sender's authorization key differs from that of this incarnation of the receiver or, if it is 0, from that
    /// of the sender of a connection management packet.
    Rejected { incarnation: u64 },
}

/// The terms of a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Bytes that may be accessed; 0 if the memory cannot be mapped and the owner must execute accesses.
    pub len: u64,
    /// The address that names the first byte in remote operations.
    pub base: u64,
    /// The slot that says whether the grant still holds.
    pub slot: u32,
    /// The value of that slot while it holds.
    pub generation: u32,
    /// Whether it may be mapped for writing.
    pub write: bool,
}

impl ControlMessage {
    /// Encodes it as words.
    pub fn encode(&self) -> Vec<u8> {
        let words: Vec<u64> = match *self {
            Self::Hello(who) => introduction(1, &who),
            Self::Welcome(who) => introduction(2, &who),
            Self::Close { incarnation } => vec![3, incarnation],
            Self::Wake => vec![4],
            Self::Bulk { incarnation, lines } => vec![5, incarnation, lines.into()],
            Self::Request { incarnation, key, write, devices } => {
                vec![6, incarnation, key, u64::from(write) | u64::from(devices) << 1]
            }
            Self::Rejected { incarnation } => vec![8, incarnation],
            Self::Grant { incarnation, key, grant } => granted(7, incarnation, key, &grant),
            Self::Device { incarnation, key, grant, device } => {
                let mut words = granted(9, incarnation, key, &grant);
                let bytes = device.uuid.chunks_exact(8).chain(device.handle.chunks_exact(8));
                words.extend(bytes.map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default())));
                words.push(device.offset);
                words
            }
            Self::Withdrawn { incarnation, key } => vec![10, incarnation, key],
        };
        std::iter::once(MAGIC).chain(words).flat_map(u64::to_ne_bytes).collect()
    }

    /// Decodes words. `None` for anything that [`ControlMessage::encode`] does not produce.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_MESSAGE || !bytes.len().is_multiple_of(8) {
            return None;
        }
        let mut words = [0u64; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().ok()?);
        }
        let [magic, kind, rest @ ..] = words;
        let count = (bytes.len() / 8).checked_sub(2)?;
        if magic != MAGIC {
            return None;
        }
        let small = |word: u64| u32::try_from(word).ok();
        let flag = |word: u64| (word <= 1).then_some(word == 1);
        let who = || {
            Some(Introduction {
                incarnation: rest[0],
                command_lines: small(rest[1])?,
                hint: small(rest[2])?,
                wakes: flag(rest[3])?,
                proof: Proof([rest[4], rest[5]]),
                token: Token { page: rest[6], nonce: rest[7] },
            })
        };
        let grant = || {
            Some(Terms {
                len: rest[2],
                base: rest[3],
                slot: rest[4] as u32,
                generation: (rest[4] >> 32) as u32,
                write: flag(rest[5])?,
            })
        };
        Some(match (kind, count) {
            (1, 8) => Self::Hello(who()?),
            (2, 8) => Self::Welcome(who()?),
            (3, 1) => Self::Close { incarnation: rest[0] },
            (4, 0) => Self::Wake,
            (5, 2) => Self::Bulk { incarnation: rest[0], lines: small(rest[1])? },
            (6, 3) if rest[2] < 4 => Self::Request {
                incarnation: rest[0],
                key: rest[1],
                write: rest[2] & 1 != 0,
                devices: rest[2] & 2 != 0,
            },
            (7, 6) => Self::Grant { incarnation: rest[0], key: rest[1], grant: grant()? },
            (9, 17) => {
                let bytes =
                    |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
                let device = DeviceHandle {
                    uuid: bytes(&rest[6..8]).try_into().ok()?,
                    handle: bytes(&rest[8..16]).try_into().ok()?,
                    offset: rest[16],
                };
                Self::Device { incarnation: rest[0], key: rest[1], grant: grant()?, device }
            }
            (10, 2) => Self::Withdrawn { incarnation: rest[0], key: rest[1] },
            (8, 1) => Self::Rejected { incarnation: rest[0] },
            _ => return None,
        })
    }
}

/// A datagram around a packet of connection management, with a proof about [`packet_text`].
pub fn wrap_packet(Proof([first, second]): Proof, packet: &[u8]) -> Vec<u8> {
    [&PACKET.to_ne_bytes(), &first.to_ne_bytes(), &second.to_ne_bytes(), packet].concat()
}

/// The packet of connection management in a datagram, and its proof.
pub fn packet_in(bytes: &[u8]) -> Option<(Proof, &[u8])> {
    let (first, rest) = bytes.strip_prefix(&PACKET.to_ne_bytes())?.split_first_chunk()?;
    let (second, packet) = rest.split_first_chunk()?;
    let proof = Proof([u64::from_ne_bytes(*first), u64::from_ne_bytes(*second)]);
    (packet.len() <= ofi_core::transport::MAX_PACKET).then_some((proof, packet))
}

fn granted(kind: u64, incarnation: u64, key: u64, grant: &Terms) -> Vec<u64> {
    let slot = u64::from(grant.generation) << 32 | u64::from(grant.slot);
    vec![kind, incarnation, key, grant.len, grant.base, slot, grant.write.into()]
}

fn introduction(kind: u64, who: &Introduction) -> Vec<u64> {
    let (Proof([first, second]), Token { page, nonce }) = (who.proof, who.token);
    let Introduction { incarnation, command_lines, hint, wakes, .. } = *who;
    vec![kind, incarnation, command_lines.into(), hint.into(), wakes.into(), first, second, page, nonce]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_inverts_encode() {
        let (proof, token) = (Proof([5, 6]), Token { page: 1 << 40, nonce: 11 });
        let who = Introduction { incarnation: 7, command_lines: 512, hint: 3, wakes: true, proof, token };
        let grant = Terms { len: 4096, base: 1 << 40, slot: 5, generation: 9, write: true };
        let handle = std::array::from_fn(|at| at as u8);
        let device = DeviceHandle { uuid: *b"0123456789abcdef", handle, offset: 77 };
        for message in [
            ControlMessage::Hello(who),
            ControlMessage::Welcome(Introduction { wakes: false, ..who }),
            ControlMessage::Close { incarnation: u64::MAX },
            ControlMessage::Wake,
            ControlMessage::Bulk { incarnation: 1, lines: 8192 },
            ControlMessage::Request { incarnation: 1, key: 2, write: false, devices: true },
            ControlMessage::Request { incarnation: 1, key: 2, write: true, devices: false },
            ControlMessage::Device { incarnation: 1, key: 2, grant, device },
            ControlMessage::Withdrawn { incarnation: 1, key: 2 },
            ControlMessage::Rejected { incarnation: 9 },
            ControlMessage::Grant { incarnation: 1, key: 2, grant },
        ] {
            assert_eq!(ControlMessage::parse(&message.encode()), Some(message));
        }
    }

    #[test]
    fn a_packet_is_no_message_and_a_message_no_packet() {
        let packet = wrap_packet(Proof([1, 2]), b"anything");
        assert_eq!(packet_in(&packet), Some((Proof([1, 2]), &b"anything"[..])));
        assert_eq!(ControlMessage::parse(&packet), None);
        assert_eq!(packet_in(&ControlMessage::Wake.encode()), None);
        assert_eq!(packet_in(&packet[..23]), None);
        assert_eq!(
            packet_in(&wrap_packet(Proof::default(), &[0; ofi_core::transport::MAX_PACKET + 1])),
            None
        );
    }

    #[test]
    fn what_nobody_encodes_is_refused() {
        let good = ControlMessage::Wake.encode();
        for bad in [&good[..8], &good[1..], &[], &[0; 16], &[good.clone(), vec![0; 8]].concat()] {
            assert_eq!(ControlMessage::parse(bad), None, "{bad:?}");
        }
    }
}
