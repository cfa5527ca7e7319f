//! Who may talk to this end, and how packets are protected.
//!
//! Two ends agree on keys by Noise (`noise.rs`): NNpsk0 where they have an authorization key, NN where they only
//! encrypt. What the client asks for in the clear is the handshake's prologue, and what the server grants its payload:
//! whoever changes a byte of either, to have them take a weaker suite for one, or has another authorization key, gets
//! no session. `protection.rs` has the keys of packets, `suite.rs` what they are used with.

#[cfg(not(feature = "encryption"))]
mod absent;
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
/// Bytes by which a message is longer than what it carries.
pub const TAG_LEN: usize = 16;
// The public key, and a tag where there is a pre-shared key; zeros otherwise.
const _: () = assert!(FIRST_LEN == KEY_LEN + TAG_LEN);

/// How much a key is used. Both ends of a session must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Numbers of packets under one key.
    pub packets: u64,
    /// Packets that do not open after which a session ends, whose suite is AES-256-GCM.
    pub forgeries_aes: u64,
    /// And whose suite is ChaCha20-Poly1305.
    pub forgeries_chacha: u64,
}

impl Limits {
    /// Half of what RFC 9001 allows AES-GCM with packets of up to 2^16 bytes (appendix B.1.1), so that bytes need no
    /// count of their own; and its integrity limits (section 6.6).
    pub const RFC_9001: Self = Self { packets: 1 << 22, forgeries_aes: 1 << 52, forgeries_chacha: 1 << 36 };
}

/// What an end is willing to do, and what it shows of itself.
pub struct Security {
    /// [`suites`] that it takes. Where both ends take packets in the clear, that is done.
    pub suites: u8,
    /// Only ends with the same key talk to each other; empty for none, which is a key like another.
    pub key: alloc::vec::Vec<u8>,
    /// Random, and never used again: whoever knows it reads this endpoint's sessions.
    pub seed: [u8; 32],
    /// Addresses change on the way, so that ends with a key do not insist on having been meant.
    pub translated: bool,
    /// How much keys are used: [`Limits::RFC_9001`] but in tests.
    pub limits: Limits,
}

impl Drop for Security {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.key);
        zeroize::Zeroize::zeroize(&mut self.seed);
    }
}

/// Why a session is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Refusal {
    /// The ends have different authorization keys.
    Key = 1,
    /// There is no suite that both take.
    Suites = 2,
    /// The client asked an end at another address.
    Address = 3,
}

/// The crate was built without its feature `encryption`, and somebody wants a key or encrypted packets.
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

/// Somebody has changed it, or made it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// What becomes of a question.
pub enum Examined {
    /// A session of this suite may begin, after the handshake if there is one.
    Granted(u8, Option<Box<Responder>>),
    /// It lacks the handshake's first message.
    #[cfg_attr(not(feature = "encryption"), expect(dead_code, reason = "nothing is insisted on"))]
    Bare,
    /// There will be none.
    Refused(Refusal),
}

/// Numbers between two that are left out: at least so many, and fewer than so many more.
const LEAST_GAP: u64 = 256;
const GAPS: u64 = 3840;

/// Which numbers a session leaves out: nobody else can tell.
struct Gaps(Key);

impl Gaps {
    /// How many numbers are used before one is left out, from `number` on.
    fn gap(&self, session: u64, number: u64) -> u64 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&session.to_le_bytes());
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        LEAST_GAP + hash::sip(self.0, &bytes) % GAPS
    }
}

/// Whether `address` is one of `own`: by address and port, since all else of one means something on its host only.
pub fn is_own(own: &[SocketAddr], address: &SocketAddr) -> bool {
    own.iter().any(|own| (own.ip(), own.port()) == (address.ip(), address.port()))
}
