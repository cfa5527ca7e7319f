//! An end of a build without the feature `encryption`: it talks in the clear, with ends that have no key, or with
//! nobody. It cannot be given a key, and there is nothing that could protect a packet.

use alloc::boxed::Box;

use super::{Examined, FIRST_LEN, Forged, Gaps, KEY_LEN, NoEncryption, Refusal, Security, TAG_LEN, suites};
use crate::hash::Key;
use crate::time::Instant;
use crate::wire::handshake::SEALED_ACCEPT_LEN;
use crate::wire::{Accept, Init};

/// A client's half of a handshake: there is none.
#[derive(Debug)]
pub enum Initiator {}

/// A server's half of a handshake: there is none.
pub enum Responder {}

/// What protects a session: nothing does.
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
    /// Of the endpoint, for its handshakes.
    pub epoch: u64,
    gaps: Gaps,
}

impl core::fmt::Debug for Identity {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive() // the rest is secret
    }
}

impl Identity {
    /// Of an end that knows no keys.
    pub fn clear(epoch: u64) -> Self {
        Self::of(epoch, &[0; 32])
    }

    /// Of an end with these wishes.
    ///
    /// # Errors
    /// It wants a key, or packets that are encrypted.
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

    /// Which numbers of a session are left out.
    pub fn gap(&self, session: u64, number: u64) -> u64 {
        self.gaps.gap(session, number)
    }

    /// [`suites`] that it takes.
    pub fn suites(&self) -> u8 {
        suites::CLEAR
    }

    /// Whether sessions begin with a handshake of Noise or not at all.
    pub fn insists(&self) -> bool {
        false
    }

    /// Whether the addresses that both ends have heard of must be theirs.
    pub fn knows_addresses(&self) -> bool {
        false
    }

    /// The client's part of a handshake: a server that insists on one refuses the question without it.
    pub fn initiate(&mut self, _prologue: &[u8], _asked: bool) -> Option<(Box<Initiator>, [u8; FIRST_LEN])> {
        None
    }

    /// What a server makes of a question.
    pub fn examine(&self, init: &Init, _prologue: &[u8]) -> Examined {
        if init.message[KEY_LEN..] != [0; TAG_LEN] {
            return Examined::Refused(Refusal::Key); // the client has one
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

    /// Nothing protects a session of the endpoint with itself either.
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
