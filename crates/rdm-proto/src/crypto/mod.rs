//! Who may talk to this end, and how packets are protected.
//!
//! Two ends agree on a key by X25519, mixed with their authorization key by HKDF-SHA-256 over everything that both said in the
//! handshake: whoever changed a byte of it, to have them take a weaker suite for one, or has another authorization key, gets no
//! session. `suite.rs` has what protects packets.

mod agree;
mod suite;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use x25519_dalek::{PublicKey, StaticSecret};

pub use agree::Protection;

use crate::wire::{Accept, Init};

/// Ways to protect packets. An end offers a set of them, and takes one.
pub mod suites {
    /// Not at all.
    pub const CLEAR: u8 = 1;
    /// AES-256-GCM.
    pub const AES_256_GCM: u8 = 2;
    /// ChaCha20-Poly1305.
    pub const CHACHA20_POLY1305: u8 = 4;
    /// Those that encrypt and authenticate.
    pub const ENCRYPTED: u8 = AES_256_GCM | CHACHA20_POLY1305;
    /// All.
    pub const ALL: u8 = CLEAR | ENCRYPTED;
}

/// What an end is willing to do, and what it shows of itself.
pub struct Security {
    /// [`suites`] that it takes. Where both ends take packets in the clear, that is done.
    pub suites: u8,
    /// Only ends with the same key talk to each other; empty for none, which is a key like another.
    pub key: alloc::vec::Vec<u8>,
    /// Random, and never used again: whoever knows it reads this endpoint's sessions.
    pub private: [u8; 32],
}

/// Why a session is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Refusal {
    /// The ends have different authorization keys.
    Key = 1,
    /// There is no suite that both take.
    Suites = 2,
}

/// Somebody has changed it, or made it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// [`Security`], prepared.
pub struct Identity {
    /// Of the endpoint, for its handshakes.
    pub epoch: u64,
    suites: u8,
    key: Option<[u8; 32]>,
    private: Option<StaticSecret>,
    public: [u8; 32],
}

impl core::fmt::Debug for Identity {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Identity").field("suites", &self.suites).finish_non_exhaustive() // the rest is secret
    }
}

impl Identity {
    /// Of an end that knows no keys.
    pub fn clear(epoch: u64) -> Self {
        Self { epoch, suites: suites::CLEAR, key: None, private: None, public: [0; 32] }
    }

    /// Of an end with these wishes.
    pub fn new(epoch: u64, security: &Security) -> Self {
        let key = (!security.key.is_empty())
            .then(|| Sha256::new_with_prefix(b"ofi-udp 1 key").chain_update(&security.key).finalize().into());
        let private = (key.is_some() || security.suites & suites::ENCRYPTED != 0)
            .then(|| StaticSecret::from(security.private));
        let public = private.as_ref().map_or([0; 32], |private| PublicKey::from(private).to_bytes());
        Self { epoch, suites: security.suites & suites::ALL, key, private, public }
    }

    /// Whether handshakes with this suite prove anything.
    fn proves(&self, suite: u8) -> bool {
        self.key.is_some() || suite != suites::CLEAR
    }

    /// What others need to agree on a key with this end.
    pub fn public(&self) -> [u8; 32] {
        self.public
    }

    /// Puts what this end offers into its question.
    pub fn offer(&self, init: &mut Init) {
        (init.suites, init.public, init.proof) = (self.suites, self.public, [0; 16]);
        let mut body = [0u8; Init::LEN];
        init.write(&mut body);
        init.proof = self.proof(&body);
    }

    /// Shows that one has the key, about a question: all of its body but the cookie.
    fn proof(&self, init: &[u8]) -> [u8; 16] {
        let Some(Ok(mut mac)) = self.key.map(|key| Hmac::<Sha256>::new_from_slice(&key)) else {
            return [0; 16];
        };
        mac.update(b"ofi-udp 1 init");
        agree::said(init, |part| mac.update(part));
        let hash = mac.finalize().into_bytes();
        core::array::from_fn(|at| hash[at])
    }

    /// The suite of a session that a peer asks for.
    ///
    /// # Errors
    /// Why there is none.
    pub fn choose(&self, init: &Init, body: &[u8]) -> Result<u8, Refusal> {
        if !agree::same(&self.proof(body), &init.proof) {
            return Err(Refusal::Key);
        }
        let common = self.suites & init.suites;
        // Where both let packets go in the clear, nobody wants more. AES is the faster one on processors that have it.
        [suites::CLEAR, suite::FIRST, suite::SECOND]
            .into_iter()
            .find(|suite| common & suite != 0)
            .ok_or(Refusal::Suites)
    }

    /// The server's part: what it adds to its answer, and what protects the session.
    ///
    /// # Errors
    /// The client's public key is no key.
    pub fn answer(
        &self,
        init: &Init,
        question: &[u8],
        suite: u8,
        accept: &mut Accept,
    ) -> Result<Option<Protection>, Refusal> {
        (accept.suite, accept.public, accept.proof) = (suite, self.public, [0; 16]);
        if !self.proves(suite) {
            return Ok(None);
        }
        let mut body = [0u8; Accept::LEN];
        accept.write(&mut body);
        let protection = self.agree(&init.public, question, &body, suite, false).ok_or(Refusal::Key)?;
        accept.proof = protection.proof;
        Ok(Some(protection))
    }

    /// What protects the session `name` of the endpoint with itself: as others are, but under keys that it needs to agree on with nobody.
    pub fn with_itself(&self, name: u64) -> Option<Protection> {
        let suite = [suite::FIRST, suite::SECOND].into_iter().find(|suite| self.suites & suite != 0)?;
        let private = self.private.as_ref().filter(|_| self.suites & suites::CLEAR == 0)?;
        Some(Protection::with_itself(private.as_bytes(), name, suite))
    }

    /// The client's part.
    ///
    /// # Errors
    /// The answer is not one to this question by somebody with its key.
    pub fn check(
        &self,
        question: &[u8],
        accept: &Accept,
        answer: &[u8],
    ) -> Result<Option<Protection>, Forged> {
        if !accept.suite.is_power_of_two() || accept.suite & self.suites == 0 {
            return Err(Forged);
        }
        if !self.proves(accept.suite) {
            return Ok(None);
        }
        let protection = self.agree(&accept.public, question, answer, accept.suite, true).ok_or(Forged)?;
        if agree::same(&protection.proof, &accept.proof) { Ok(Some(protection)) } else { Err(Forged) }
    }

    fn agree(
        &self,
        theirs: &[u8; 32],
        question: &[u8],
        answer: &[u8],
        suite: u8,
        client: bool,
    ) -> Option<Protection> {
        let shared = self.private.as_ref()?.diffie_hellman(&PublicKey::from(*theirs));
        // A point of small order gives a key that everybody knows.
        shared.was_contributory().then(|| {
            Protection::new(shared.as_bytes(), &self.key.unwrap_or_default(), question, answer, suite, client)
        })
    }
}
