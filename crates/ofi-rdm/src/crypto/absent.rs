//! The security of a build without the feature `encryption`: packets are sent in the clear, and only to peers without a
//! key. Such a build accepts no key and cannot protect a packet.

use alloc::boxed::Box;

use super::{Examined, FIRST_LEN, Forged, Gaps, KEY_LEN, NoEncryption, Refusal, Security, TAG_LEN, suites};
use crate::hash::Key;
use crate::time::Instant;
use crate::wire::handshake::SEALED_ACCEPT_LEN;
use crate::wire::{Accept, Init};

/// A client's half of a handshake. Has no value.
#[derive(Debug)]
pub enum Initiator {}

/// A server's half of a handshake. Has no value.
pub enum Responder {}

/// The keys of a session. Has no value: nothing is protected.
#[derive(Debug)]
pub enum Protection {}

impl Protection {
    pub fn trailer(&self) -> usize {
        match *self {}
    }

    pub fn seal(&mut self, _number: u64, _packet: &mut [u8]) {
        match *self {}
    }

    pub fn open<'a>(
        &mut self,
        _now: Instant,
        _number: u64,
        _head: &[u8],
        _body: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        match *self {}
    }

    pub fn is_spent(&self) -> bool {
        match *self {}
    }
}

/// [`Security`], prepared.
pub struct Identity {
    /// The epoch that the endpoint uses in its handshakes.
    pub epoch: u64,
    gaps: Gaps,
}

impl core::fmt::Debug for Identity {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive() // the rest is secret
    }
}

impl Identity {
    /// The identity of an end without keys.
    pub fn clear(epoch: u64) -> Self {
        Self::of(epoch, &[0; 32])
    }

    /// Prepares the identity of an end.
    ///
    /// # Errors
    /// `security` asks for a key or for encrypted packets.
    pub fn new(epoch: u64, security: &Security) -> Result<Self, NoEncryption> {
        if security.suites & suites::CLEAR == 0 || !security.key.is_empty() {
            return Err(NoEncryption);
        }
        Ok(Self::of(epoch, &security.seed))
    }

    fn of(epoch: u64, seed: &[u8; 32]) -> Self {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| seed[at + index]));
        Self { epoch, gaps: Gaps(Key(word(0), word(8))) }
    }

    /// The distance to the next skipped packet number of a session.
    pub fn gap(&self, session: u64, number: u64) -> u64 {
        self.gaps.gap(session, number)
    }

    /// The [`suites`] that the end accepts.
    pub fn suites(&self) -> u8 {
        suites::CLEAR
    }

    /// Whether the end refuses sessions without a Noise handshake.
    pub fn insists(&self) -> bool {
        false
    }

    /// Whether an end checks that each peer sees its true address.
    pub fn knows_addresses(&self) -> bool {
        false
    }

    /// The client's part of a handshake, which is none. A server that requires a handshake refuses the question.
    pub fn initiate(&mut self, _prologue: &[u8], _asked: bool) -> Option<(Box<Initiator>, [u8; FIRST_LEN])> {
        None
    }

    /// Evaluates a question as server.
    pub fn examine(&self, init: &Init, _prologue: &[u8]) -> Examined {
        if init.message[KEY_LEN..] != [0; TAG_LEN] {
            return Examined::Refused(Refusal::Key); // the client has a key
        }
        match init.suites & suites::CLEAR {
            0 => Examined::Refused(Refusal::Suites),
            clear => Examined::Granted(clear, None),
        }
    }

    /// Never called: there is no responder.
    pub fn respond(
        &mut self,
        responder: Responder,
        _accept: &Accept,
    ) -> Result<([u8; SEALED_ACCEPT_LEN], Option<Box<Protection>>), Refusal> {
        match responder {}
    }

    /// Never called: there is no initiator.
    pub fn finish(
        &self,
        initiator: &Initiator,
        _message: &[u8],
    ) -> Result<(Accept, Option<Box<Protection>>), Forged> {
        match *initiator {}
    }

    /// The keys of a session of the endpoint with itself: none.
    pub fn with_itself(&mut self) -> Option<Box<Protection>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::wire::Params;
    use alloc::vec::Vec;

    fn security(suites: u8, key: &[u8]) -> Security {
        Security { suites, key: Vec::from(key), seed: [7; 32], translated: false, limits: Limits::RFC_9001 }
    }

    #[test]
    fn what_cannot_be_protected_is_refused() {
        assert!(Identity::new(1, &security(suites::ALL, b"")).is_ok());
        assert!(Identity::new(1, &security(suites::CLEAR, b"")).is_ok());
        for (suites, key) in
            [(suites::ENCRYPTED, &b""[..]), (suites::ALL, b"job 7"), (suites::CLEAR, b"job 7")]
        {
            assert_eq!(Identity::new(1, &security(suites, key)).err(), Some(NoEncryption));
        }
    }

    #[test]
    fn only_who_takes_packets_in_the_clear_gets_a_session() {
        let end = Identity::new(1, &security(suites::ALL, b"")).unwrap();
        let examine = |suites, message: [u8; FIRST_LEN]| {
            let server = "10.0.0.1:7000".parse().unwrap();
            let params =
                Params { window: 1 << 20, in_flight: 1 << 20, max_packet: 1232, liveness_port: 1, flags: 0 };
            let init = Init { suites, message, ..Init::plain(1, 2, 3, params, server) };
            end.examine(&init, b"")
        };
        let bare = [0; FIRST_LEN];
        let (mut anonymous, mut with_key) = (bare, [9; FIRST_LEN]);
        anonymous[..KEY_LEN].fill(9);
        assert!(matches!(examine(suites::ALL, bare), Examined::Granted(suites::CLEAR, None)));
        assert!(matches!(examine(suites::ALL, anonymous), Examined::Granted(suites::CLEAR, None)));
        assert!(matches!(examine(suites::ENCRYPTED, bare), Examined::Refused(Refusal::Suites)));
        assert!(matches!(examine(suites::ENCRYPTED, anonymous), Examined::Refused(Refusal::Suites)));
        assert!(matches!(examine(suites::ALL, with_key), Examined::Refused(Refusal::Key)));
        with_key[..KEY_LEN].fill(0);
        assert!(matches!(examine(suites::ALL, with_key), Examined::Refused(Refusal::Key)));
    }
}
