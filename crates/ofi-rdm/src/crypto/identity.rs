//! The security of an end with keys and ciphers: its part of each handshake, and the keys that result.

use alloc::boxed::Box;

use hkdf::Hkdf;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::noise::{Initiator, Responder, Secret};
use super::protection::Protection;
use super::{
    Examined, FIRST_LEN, Forged, Gaps, KEY_LEN, Limits, NoEncryption, Refusal, Security, TAG_LEN, suite,
    suites,
};
use crate::hash::Key;
use crate::wire::handshake::SEALED_ACCEPT_LEN;
use crate::wire::{Accept, Init};

/// HKDF-Expand (RFC 5869).
pub(super) fn expand<const N: usize>(secret: &Secret, label: &[u8]) -> Zeroizing<[u8; N]> {
    let mut output = Zeroizing::new([0; N]);
    let keys = Hkdf::<Sha256>::from_prk(&**secret).expect("32 bytes");
    keys.expand(label, &mut *output).expect("fewer than 8,160 bytes");
    output
}

/// Generates private keys from the seed. Each key replaces the seed, so that earlier keys cannot be recovered from it.
struct Generator(Secret);

impl Generator {
    fn next(&mut self) -> Secret {
        let key = expand(&self.0, b"ofi-udp 2 ephemeral");
        self.0 = expand(&self.0, b"ofi-udp 2 seed");
        key
    }
}

/// [`Security`], prepared.
pub struct Identity {
    /// The epoch that the endpoint uses in its handshakes.
    pub epoch: u64,
    suites: u8,
    psk: Option<Secret>,
    generator: Generator,
    gaps: Gaps,
    translated: bool,
    limits: Limits,
}

impl core::fmt::Debug for Identity {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Identity").field("suites", &self.suites).finish_non_exhaustive() // the rest is secret
    }
}

impl Identity {
    /// The identity of an end without keys.
    pub fn clear(epoch: u64) -> Self {
        let (suites, key, seed) = (suites::CLEAR, alloc::vec::Vec::new(), [0; 32]);
        Self::of(epoch, &Security { suites, key, seed, translated: false, limits: Limits::RFC_9001 })
    }

    /// Prepares the identity of an end.
    ///
    /// # Errors
    /// None. A build without ciphers (`absent.rs`) refuses keys here.
    pub fn new(epoch: u64, security: &Security) -> Result<Self, NoEncryption> {
        Ok(Self::of(epoch, security))
    }

    fn of(epoch: u64, security: &Security) -> Self {
        let psk = (!security.key.is_empty()).then(|| {
            let hash = Sha256::new_with_prefix(b"ofi-udp 2 psk").chain_update(&security.key).finalize();
            Zeroizing::new(hash.into())
        });
        let seed = Zeroizing::new(security.seed);
        let (one, other) =
            (expand::<8>(&seed, b"ofi-udp 2 gap one"), expand::<8>(&seed, b"ofi-udp 2 gap two"));
        let gaps = Gaps(Key(u64::from_le_bytes(*one), u64::from_le_bytes(*other)));
        let (suites, generator) = (security.suites & suites::ALL, Generator(seed));
        let Security { translated, limits, .. } = *security;
        Self { epoch, suites, psk, generator, gaps, translated, limits }
    }

    /// The distance to the next skipped packet number of a session.
    pub fn gap(&self, session: u64, number: u64) -> u64 {
        self.gaps.gap(session, number)
    }

    /// The [`suites`] that the end accepts.
    pub fn suites(&self) -> u8 {
        self.suites
    }

    /// Whether the end refuses sessions without a Noise handshake.
    pub fn insists(&self) -> bool {
        self.psk.is_some() || self.suites & suites::CLEAR == 0
    }

    /// Whether an end checks that each peer sees its true address.
    pub fn knows_addresses(&self) -> bool {
        self.psk.is_some() && !self.translated
    }

    /// The client's part of a handshake: its first message, bound to a question with this prologue, if the question has
    /// a message. `asked`: the server has said that it requires a handshake.
    pub fn initiate(&mut self, prologue: &[u8], asked: bool) -> Option<(Box<Initiator>, [u8; FIRST_LEN])> {
        let may = asked && self.suites & suites::ENCRYPTED != 0;
        (self.insists() || may).then(|| {
            let private = self.generator.next();
            let (initiator, message) = Initiator::new(self.psk.as_deref(), prologue, &private);
            (Box::new(initiator), message)
        })
    }

    /// Evaluates a question as server.
    pub fn examine(&self, init: &Init, prologue: &[u8]) -> Examined {
        let responder = if init.message == [0; FIRST_LEN] {
            if self.psk.is_some() {
                return Examined::Refused(Refusal::Key);
            }
            None
        } else {
            match Responder::new(self.psk.as_deref(), prologue, &init.message) {
                Ok(responder) => Some(Box::new(responder)),
                Err(Forged) => return Examined::Refused(Refusal::Key),
            }
        };
        let common = self.suites & init.suites;
        // If both ends accept packets in the clear, they need nothing else. AES is the faster suite on processors with
        // instructions for it.
        let suite =
            [suites::CLEAR, suite::FIRST, suite::SECOND].into_iter().find(|suite| common & suite != 0);
        match suite {
            None => Examined::Refused(Refusal::Suites),
            Some(suites::CLEAR) if self.psk.is_none() => Examined::Granted(suites::CLEAR, None),
            Some(_) if responder.is_none() => Examined::Bare,
            Some(suite) => Examined::Granted(suite, responder),
        }
    }

    /// The server's part of a handshake: its message, and the keys of the session, if it is protected.
    ///
    /// # Errors
    /// The client's public key is invalid.
    pub fn respond(
        &mut self,
        responder: Responder,
        accept: &Accept,
    ) -> Result<([u8; SEALED_ACCEPT_LEN], Option<Box<Protection>>), Refusal> {
        let mut message = [0u8; SEALED_ACCEPT_LEN];
        accept.write(&mut message[KEY_LEN..SEALED_ACCEPT_LEN - TAG_LEN]);
        let private = self.generator.next();
        let keys = responder.finish(&mut message, &private).map_err(|Forged| Refusal::Key)?;
        Ok((message, self.protect(keys, accept.suite, false)))
    }

    /// Processes the server's message, if the client has sent one itself.
    ///
    /// # Errors
    /// The answer does not belong to this question, or its sender does not have the authorization key.
    pub fn finish(
        &self,
        initiator: &Initiator,
        message: &[u8],
    ) -> Result<(Accept, Option<Box<Protection>>), Forged> {
        let (payload, keys) = initiator.finish::<{ Accept::LEN }>(message)?;
        let accept = Accept::parse(&payload).map_err(|_| Forged)?;
        if !accept.suite.is_power_of_two() || accept.suite & self.suites == 0 {
            return Err(Forged);
        }
        let protection = self.protect(keys, accept.suite, true);
        Ok((accept, protection))
    }

    fn protect(&self, keys: [Secret; 2], suite: u8, client: bool) -> Option<Box<Protection>> {
        let keys = keys.map(|key| expand(&key, b"ofi-udp 2 packets"));
        (suite != suites::CLEAR).then(|| Box::new(Protection::new(keys, suite, self.limits, client)))
    }

    /// The keys of a session of the endpoint with itself. It is protected like others, but its keys need no agreement.
    pub fn with_itself(&mut self) -> Option<Box<Protection>> {
        let suite = [suite::FIRST, suite::SECOND].into_iter().find(|suite| self.suites & suite != 0)?;
        if self.suites & suites::CLEAR != 0 {
            return None;
        }
        let secret = self.generator.next();
        Some(Box::new(Protection::new([secret.clone(), secret], suite, self.limits, true)))
    }
}
