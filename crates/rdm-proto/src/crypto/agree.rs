//! Keys of a session, from what two ends share and what they said.

use hkdf::Hkdf;
use sha2::{Digest, Sha256};

use super::suite::{Cipher, TAG_LEN};
use crate::wire::header;

/// Of the body of a question, all but the cookie, which another packet has, and the proof, which is about the rest.
pub fn said(init: &[u8], mut tell: impl FnMut(&[u8])) {
    for range in [0..24, 32..96] {
        tell(init.get(range).unwrap_or_default());
    }
}

/// Whether two proofs are the same; takes as long wherever they differ.
pub fn same(one: &[u8; 16], other: &[u8; 16]) -> bool {
    one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}

/// What protects the packets of a session, in each direction.
pub struct Protection {
    /// What the answer is proved with.
    pub proof: [u8; 16],
    /// Which one it is.
    pub suite: u8,
    send: Cipher,
    receive: Cipher,
}

impl core::fmt::Debug for Protection {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Protection").field("suite", &self.suite).finish_non_exhaustive() // the rest is secret
    }
}

impl Protection {
    pub(super) fn new(
        shared: &[u8; 32],
        key: &[u8; 32],
        question: &[u8],
        answer: &[u8],
        suite: u8,
        client: bool,
    ) -> Self {
        let mut transcript = Sha256::new_with_prefix(b"ofi-udp 1 session");
        said(question, |part| transcript.update(part));
        transcript.update(answer.get(..88).unwrap_or_default());
        let transcript = transcript.finalize();
        let keys = Hkdf::<Sha256>::new(Some(key), shared);
        let derive = |label: &[u8], to: &mut [u8]| {
            // Of fewer than 8,160 bytes, which is the only reason to refuse.
            let _ = keys.expand_multi_info(&[label, &transcript], to);
        };
        let cipher = |label: &[u8]| {
            let mut bytes = [0u8; 44];
            derive(label, &mut bytes);
            Cipher::new(suite, &bytes)
        };
        let mut proof = [0u8; 16];
        derive(b"answer", &mut proof);
        let (ask, answer) = (cipher(b"client"), cipher(b"server"));
        let (send, receive) = if client { (ask, answer) } else { (answer, ask) };
        Self { proof, suite, send, receive }
    }

    /// Of the session `name` of an endpoint with itself: its packets go one way only.
    pub(super) fn with_itself(secret: &[u8; 32], name: u64, suite: u8) -> Self {
        let mut bytes = [0u8; 44];
        // Of fewer than 8,160 bytes, which is the only reason to refuse.
        let _ = Hkdf::<Sha256>::new(None, secret)
            .expand_multi_info(&[b"ofi-udp 1 self", &name.to_be_bytes()], &mut bytes);
        let [send, receive] = [(); 2].map(|()| Cipher::new(suite, &bytes));
        Self { proof: [0; 16], suite, send, receive }
    }

    /// Bytes behind the frames of each packet.
    pub fn trailer(&self) -> usize {
        if self.send.seals() { TAG_LEN } else { 0 }
    }

    /// Seals a packet with its header in place, whose trailer is its last bytes. A number must not come twice.
    pub fn seal(&self, number: u64, packet: &mut [u8]) {
        let Some((head, body)) = packet.split_first_chunk_mut::<{ header::LEN }>() else { return };
        self.send.seal(number, head, body);
    }

    /// Opens the body of a packet in place; `None` if it is not what the peer sealed.
    pub fn open<'a>(&self, number: u64, head: &[u8], body: &'a mut [u8]) -> Option<&'a [u8]> {
        self.receive.open(number, head, body)
    }
}
