//! Decides which peers an endpoint talks to, and protects packets.
//!
//! Two ends agree on keys by a Noise handshake (`noise.rs`): NNpsk0 if they have an authorization key, NN if they only
//! encrypt. The client's request in the clear is the handshake's prologue, and the server's grant its payload. An
//! attacker who changes a byte of either, for example to force a weaker suite, gets no session, and neither does a peer
//! with another authorization key. `protection.rs` holds the keys of packets, `suite.rs` the ciphers that use them;
//! `aes.rs` has two implementations of AES-GCM.

#[cfg(not(feature = "encryption"))]
mod absent;
#[cfg(feature = "encryption")]
mod aes;
#[cfg(feature = "encryption")]
mod identity;
#[cfg(feature = "encryption")]
mod noise;
#[cfg(feature = "encryption")]
mod protection;
#[cfg(feature = "encryption")]
mod suite;

use alloc::boxed::Box;
use core::net::SocketAddr;

#[cfg(not(feature = "encryption"))]
pub use absent::{Identity, Initiator, Protection, Responder};
#[cfg(feature = "encryption")]
pub use {
    identity::Identity,
    noise::{Initiator, Responder},
    protection::Protection,
};

use crate::hash::{self, Key};
use crate::wire::handshake::FIRST_LEN;
use crate::wire::suites;

/// Bytes of a public key.
pub const KEY_LEN: usize = 32;
/// Bytes that encryption adds to a message.
pub const TAG_LEN: usize = 16;
// The public key, and a tag if there is a pre-shared key; otherwise zeros.
const _: () = assert!(FIRST_LEN == KEY_LEN + TAG_LEN);

/// Limits on the use of a key. Both ends of a session must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packet numbers per key.
    pub packets: u64,
    /// Forged packets that end a session with AES-256-GCM.
    pub forgeries_aes: u64,
    /// Forged packets that end a session with ChaCha20-Poly1305.
    pub forgeries_chacha: u64,
}

impl Limits {
    /// Half of the packets that RFC 9001 allows AES-GCM for packets of up to 2^16 bytes (appendix B.1.1), so that bytes
    /// need not be counted separately, and its integrity limits (section 6.6).
    pub const RFC_9001: Self = Self { packets: 1 << 22, forgeries_aes: 1 << 52, forgeries_chacha: 1 << 36 };
}

/// What an end accepts, and what it reveals about itself.
pub struct Security {
    /// The [`suites`] that the end accepts. If both ends accept packets in the clear, packets are sent in the clear.
    pub suites: u8,
    /// An end talks only to ends with the same key. An empty key means none, and matches only an empty key.
    pub key: alloc::vec::Vec<u8>,
    /// Random, and never reused: anyone who knows it can read this endpoint's sessions.
    pub seed: [u8; 32],
    /// Addresses are translated on the path, so ends with a key cannot check that they were the intended destination.
    pub translated: bool,
    /// Limits on the use of keys: [`Limits::RFC_9001`] except in tests.
    pub limits: Limits,
}

impl Drop for Security {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.key);
        zeroize::Zeroize::zeroize(&mut self.seed);
    }
}

/// Why a session was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Refusal {
    /// The ends have different authorization keys.
    Key = 1,
    /// No suite is accepted by both ends.
    Suites = 2,
    /// The client sent its question to another address than this endpoint's.
    Address = 3,
}

/// A key or encrypted packets were asked for, but the crate was built without its feature `encryption`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoEncryption;

impl core::fmt::Display for NoEncryption {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(
            "authorization keys and encrypted packets need the feature `encryption`, which this build lacks",
        )
    }
}

impl core::error::Error for NoEncryption {}

/// A message that was altered or forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// A server's decision on a question.
pub enum Examined {
    /// A session with this suite may begin, after the handshake if there is one.
    Granted(u8, Option<Box<Responder>>),
    /// The question lacks the handshake's first message.
    #[cfg_attr(not(feature = "encryption"), expect(dead_code, reason = "nothing is insisted on"))]
    Bare,
    /// The session is refused.
    Refused(Refusal),
}

/// The number of packet numbers between two skipped ones: at least `LEAST_GAP`, and less than `LEAST_GAP + GAPS`.
const LEAST_GAP: u64 = 256;
const GAPS: u64 = 3840;

/// Chooses the numbers that a session skips, unpredictably for its peer.
struct Gaps(Key);

impl Gaps {
    /// The number of packets from `number` on before one number is skipped.
    fn gap(&self, session: u64, number: u64) -> u64 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&session.to_le_bytes());
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        LEAST_GAP + hash::sip(self.0, &bytes) % GAPS
    }
}

/// Whether `address` is one of `own`. Compares only IP address and port: the other fields have a meaning only on their
/// own host.
pub fn is_own(own: &[SocketAddr], address: &SocketAddr) -> bool {
    own.iter().any(|own| (own.ip(), own.port()) == (address.ip(), address.port()))
}
