//! The parts of the Noise protocol framework (revision 34, <https://noiseprotocol.org/noise.html>) that this crate
//! needs: the patterns NN and NNpsk0 with 25519, ChaChaPoly and SHA256.
//!
//! ```text
//! NN:                NNpsk0:
//!   -> e               -> psk, e
//!   <- e, ee           <- e, ee
//! ```
//!
//! The first message has no payload. Each handshake has its own ephemeral keys. Secrets are wiped when dropped.

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Nonce, Tag};
use hkdf::Hkdf;
use sha2::{Digest, Sha256};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::{FIRST_LEN, Forged, KEY_LEN, TAG_LEN};

/// A key that is wiped when dropped.
pub type Secret = Zeroizing<[u8; 32]>;

/// "SymmetricState" of section 5.2, including the "CipherState" of section 5.1.
struct Symmetric {
    chaining: Secret,
    hash: [u8; 32],
    key: Option<Secret>,
    nonce: u64,
}

impl Symmetric {
    /// `Initialize`, then mixes in the prologue.
    fn new(psk: Option<&[u8; 32]>, prologue: &[u8]) -> Self {
        let hash: [u8; 32] = match psk {
            Some(_) => Sha256::digest(b"Noise_NNpsk0_25519_ChaChaPoly_SHA256").into(),
            None => *b"Noise_NN_25519_ChaChaPoly_SHA256", // 32 bytes, so it is its own hash
        };
        let mut state = Self { chaining: Zeroizing::new(hash), hash, key: None, nonce: 0 };
        state.mix_hash(prologue);
        if let Some(psk) = psk {
            state.mix_key_and_hash(psk);
        }
        state
    }

    /// `HKDF` of section 4.3: the HKDF of RFC 5869 without an info.
    fn hkdf<const N: usize>(&self, input: &[u8]) -> [Secret; N] {
        let mut output = [(); N].map(|()| Secret::default());
        let mut bytes = Zeroizing::new([0u8; 96]);
        Hkdf::<Sha256>::new(Some(&*self.chaining), input)
            .expand(&[], &mut bytes[..32 * N])
            .expect("fewer than 8,160 bytes");
        for (key, bytes) in output.iter_mut().zip(bytes.as_chunks::<32>().0) {
            **key = *bytes;
        }
        output
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash = Sha256::new_with_prefix(self.hash).chain_update(data).finalize().into();
    }

    fn mix_key(&mut self, input: &[u8]) {
        let [chaining, key] = self.hkdf(input);
        (self.chaining, self.key, self.nonce) = (chaining, Some(key), 0);
    }

    fn mix_key_and_hash(&mut self, input: &[u8]) {
        let [chaining, hash, key] = self.hkdf(input);
        self.chaining = chaining;
        self.mix_hash(&*hash);
        (self.key, self.nonce) = (Some(key), 0);
    }

    /// Token "e". With a pre-shared key, the public key is also mixed into the chaining key (section 9.2).
    fn mix_public(&mut self, public: &[u8; 32], psk: bool) {
        self.mix_hash(public);
        if psk {
            self.mix_key(public);
        }
    }

    /// Token "ee". Fails for a point of small order, which would give a publicly known secret.
    fn mix_agreed(&mut self, own: &StaticSecret, theirs: &[u8; 32]) -> Result<(), Forged> {
        let shared = own.diffie_hellman(&PublicKey::from(*theirs));
        if !shared.was_contributory() {
            return Err(Forged);
        }
        self.mix_key(shared.as_bytes());
        Ok(())
    }

    /// The cipher and the nonce for the next payload.
    fn cipher(&mut self) -> Option<(ChaCha20Poly1305, Nonce)> {
        let key = self.key.as_ref()?;
        let mut nonce = [0u8; 12];
        nonce[4..].copy_from_slice(&self.nonce.to_le_bytes());
        self.nonce += 1;
        Some((ChaCha20Poly1305::new(&(**key).into()), nonce.into()))
    }

    /// `EncryptAndHash`: encrypts `text` in place and returns the tag.
    fn encrypt(&mut self, text: &mut [u8]) -> [u8; TAG_LEN] {
        let (cipher, nonce) = self.cipher().expect("a key was mixed in");
        let tag =
            cipher.encrypt_inout_detached(&nonce, &self.hash, (&mut *text).into()).expect("a short text");
        let hash = Sha256::new_with_prefix(self.hash).chain_update(text).chain_update(tag);
        self.hash = hash.finalize().into();
        tag.into()
    }

    /// `DecryptAndHash`, in place.
    fn decrypt(&mut self, text: &mut [u8], tag: &[u8; TAG_LEN]) -> Result<(), Forged> {
        let hash = Sha256::new_with_prefix(self.hash).chain_update(&*text).chain_update(tag).finalize();
        let (cipher, nonce) = self.cipher().ok_or(Forged)?;
        cipher
            .decrypt_inout_detached(&nonce, &self.hash, text.into(), &Tag::from(*tag))
            .map_err(|_| Forged)?;
        self.hash = hash.into();
        Ok(())
    }

    /// `Split`: the keys for the initiator's packets and for the responder's.
    fn split(&self) -> [Secret; 2] {
        self.hkdf(&[])
    }
}

/// The end that sent the first message and waits for the second.
pub struct Initiator {
    state: Symmetric,
    own: StaticSecret,
    psk: bool,
}

impl core::fmt::Debug for Initiator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Initiator").finish_non_exhaustive() // the state is secret
    }
}

impl Initiator {
    /// Creates the first message. `private` must not be used for anything else.
    pub fn new(psk: Option<&[u8; 32]>, prologue: &[u8], private: &Secret) -> (Self, [u8; FIRST_LEN]) {
        let mut state = Symmetric::new(psk, prologue);
        let own = StaticSecret::from(**private);
        let public = PublicKey::from(&own).to_bytes();
        state.mix_public(&public, psk.is_some());
        let mut message = [0u8; FIRST_LEN];
        message[..KEY_LEN].copy_from_slice(&public);
        if psk.is_some() {
            message[KEY_LEN..].copy_from_slice(&state.encrypt(&mut []));
        } else {
            state.mix_hash(&[]);
        }
        (Self { state, own, psk: psk.is_some() }, message)
    }

    /// Processes the second message. Returns its payload of `N` bytes, and the keys for the initiator's and the
    /// responder's packets.
    ///
    /// # Errors
    /// The message does not answer this end's message.
    pub fn finish<const N: usize>(&self, message: &[u8]) -> Result<([u8; N], [Secret; 2]), Forged> {
        let (theirs, rest) = message.split_first_chunk::<KEY_LEN>().ok_or(Forged)?;
        let (text, rest) = rest.split_first_chunk::<N>().ok_or(Forged)?;
        let tag: &[u8; TAG_LEN] = rest.try_into().map_err(|_| Forged)?;
        // Work on a copy: a forged answer leaves this state unchanged.
        let Symmetric { chaining, hash, key, nonce } = &self.state;
        let mut state =
            Symmetric { chaining: chaining.clone(), hash: *hash, key: key.clone(), nonce: *nonce };
        state.mix_public(theirs, self.psk);
        state.mix_agreed(&self.own, theirs)?;
        let mut payload = *text;
        state.decrypt(&mut payload, tag)?;
        Ok((payload, state.split()))
    }
}

/// The end that received the first message.
pub struct Responder {
    state: Symmetric,
    theirs: [u8; 32],
    psk: bool,
}

impl Responder {
    /// Processes the first message.
    ///
    /// # Errors
    /// Its sender has a different pre-shared key or a different prologue.
    pub fn new(psk: Option<&[u8; 32]>, prologue: &[u8], message: &[u8; FIRST_LEN]) -> Result<Self, Forged> {
        let mut state = Symmetric::new(psk, prologue);
        let (theirs, tag) = message.split_first_chunk::<KEY_LEN>().ok_or(Forged)?;
        state.mix_public(theirs, psk.is_some());
        if psk.is_some() {
            state.decrypt(&mut [], tag.try_into().map_err(|_| Forged)?)?;
        } else if tag != [0; TAG_LEN] {
            return Err(Forged); // the client has a key
        } else {
            state.mix_hash(&[]);
        }
        Ok(Self { state, theirs: *theirs, psk: psk.is_some() })
    }

    /// Creates the second message in place. In `message` the payload lies after [`KEY_LEN`] bytes and before
    /// [`TAG_LEN`] bytes. Returns the keys as [`Initiator::finish`] does.
    ///
    /// # Errors
    /// The initiator's public key is invalid.
    pub fn finish(mut self, message: &mut [u8], private: &Secret) -> Result<[Secret; 2], Forged> {
        let own = StaticSecret::from(**private);
        let (head, rest) = message.split_first_chunk_mut::<KEY_LEN>().ok_or(Forged)?;
        let (text, tag) = rest.split_last_chunk_mut::<TAG_LEN>().ok_or(Forged)?;
        *head = PublicKey::from(&own).to_bytes();
        self.state.mix_public(head, self.psk);
        self.state.mix_agreed(&own, &self.theirs)?;
        *tag = self.state.encrypt(text);
        Ok(self.state.split())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// Test vectors of another implementation (Python's `noiseprotocol` 0.3.1), for the prologue "a prologue", private
    /// keys of 0x11 and of 0x22, the pre-shared key 0, 1, 2, ... and the payload "an answer": both messages, the
    /// handshake's hash, and both keys.
    const VECTORS: [(bool, [&str; 5]); 2] = [
        (
            true,
            [
                "7b4e909bbe7ffe44c465a220037d608ee35897d31ef972f07f74892cb0f73f13d0774063fa4ebda13d7c2f256b104f4e",
                "0faa684ed28867b97f4a6a2dee5df8ce974e76b7018e3f22a1c4cf2678570f2028f17524869784136e6707eff208c147f788ea4d35d3be97a1",
                "51317bdc4be2a409a56f23414a7ba8eae6f9701896f30650daf16065629671c5",
                "db72db7b88aa6a8223bac741154c7881c10c92ab4a4b7a9c36d0f107e18695a4",
                "3963f3cddd9ae1ba54b5617120c40b1292120b671eb5ccbd9ce7b550122eec41",
            ],
        ),
        (
            false,
            [
                "7b4e909bbe7ffe44c465a220037d608ee35897d31ef972f07f74892cb0f73f13",
                "0faa684ed28867b97f4a6a2dee5df8ce974e76b7018e3f22a1c4cf2678570f20468c1cffe92ae3822cbbf9a02a288cdcd07e47280fc60592ba",
                "766edaf023470c1f4004e1ff5d0d5be567fef6798dc84c156c2327871a8e5a02",
                "e90daad873c061b577ba181820daac6d581a29983ddd3502093c0e2762f4fbbe",
                "c5db77306d9fd3b90d9f73b0b1f9af353a0bb9c5d9337253d630f206f9fbc9b1",
            ],
        ),
    ];

    #[test]
    fn handshakes_are_those_of_another_implementation() {
        let key: [u8; 32] = core::array::from_fn(|at| at as u8);
        let private = |byte| Zeroizing::new([byte; 32]);
        for (with_key, expected) in VECTORS {
            let [first, second, hash, client, server] = expected.map(bytes);
            let psk = with_key.then_some(&key);
            let (initiator, message) = Initiator::new(psk, b"a prologue", &private(0x11));
            assert_eq!(message[..first.len()], first);
            assert!(message[first.len()..].iter().all(|&byte| byte == 0));
            let responder = Responder::new(psk, b"a prologue", &message).unwrap();
            let mut answer = [0u8; KEY_LEN + 9 + TAG_LEN];
            answer[KEY_LEN..KEY_LEN + 9].copy_from_slice(b"an answer");
            let keys = responder.finish(&mut answer, &private(0x22)).unwrap();
            assert_eq!(answer, *second);
            let (payload, same) = initiator.finish::<9>(&answer).unwrap();
            assert_eq!((&payload, &same), (b"an answer", &keys));
            assert_eq!(keys.map(|key| key.to_vec()), [client, server]);
            assert_eq!(hash.len(), 32);
        }
    }

    #[test]
    fn a_changed_bit_an_other_prologue_or_an_other_key_ends_a_handshake() {
        let (key, private) = ([7; 32], |byte| Zeroizing::new([byte; 32]));
        for psk in [Some(&key), None] {
            let (initiator, message) = Initiator::new(psk, b"this", &private(1));
            for bit in 0..FIRST_LEN * 8 {
                let mut bad = message;
                bad[bit / 8] ^= 1 << (bit % 8);
                let Ok(responder) = Responder::new(psk, b"this", &bad) else { continue };
                assert!(
                    psk.is_none() && bit / 8 < KEY_LEN,
                    "only bytes that are not authenticated, and only within the key"
                );
                let mut answer = [0u8; KEY_LEN + TAG_LEN];
                if responder.finish(&mut answer, &private(2)).is_ok() && bit != 255 {
                    assert_eq!(initiator.finish::<0>(&answer).err(), Some(Forged), "bit {bit}");
                }
            }
            let mut answer = [0u8; KEY_LEN + TAG_LEN];
            Responder::new(psk, b"this", &message).unwrap().finish(&mut answer, &private(2)).unwrap();
            assert!(initiator.finish::<0>(&answer).is_ok());
            for bit in 0..answer.len() * 8 {
                let mut bad = answer;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(initiator.finish::<0>(&bad).err(), Some(Forged), "bit {bit}");
            }
            let other = Responder::new(psk, b"that", &message);
            assert_eq!(other.is_err(), psk.is_some());
            if let Ok(other) = other {
                other.finish(&mut answer, &private(2)).unwrap();
                assert_eq!(initiator.finish::<0>(&answer).err(), Some(Forged));
            }
        }
        let (_, message) = Initiator::new(Some(&key), b"this", &private(1));
        assert!(Responder::new(Some(&[8; 32]), b"this", &message).is_err());
        assert!(Responder::new(None, b"this", &message).is_err());
        let mut weak = Initiator::new(None, b"this", &private(1)).1;
        weak[..KEY_LEN].fill(0);
        let responder = Responder::new(None, b"this", &weak).unwrap();
        assert_eq!(responder.finish(&mut [0; KEY_LEN + TAG_LEN], &private(2)).err(), Some(Forged));
    }
}
