//! Authenticated encryption of packets (RFC 5116). The nonce is 12 bytes of key material combined with the packet's
//! number, which no session uses twice (as in RFC 9001, section 5.3). The header is authenticated, too.

use alloc::boxed::Box;
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Nonce, Tag};

use super::TAG_LEN;
use super::aes::Aes256Gcm;
use super::identity::expand;
use super::noise::Secret;
use crate::wire::suites;

/// The faster suite of this architecture, then the other.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub const FIRST: u8 = suites::AES_256_GCM;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub const SECOND: u8 = suites::CHACHA20_POLY1305;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub const FIRST: u8 = suites::CHACHA20_POLY1305;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub const SECOND: u8 = suites::AES_256_GCM;

/// A key of one direction of a session.
pub enum Cipher {
    /// AES-256-GCM.
    Aes(Aes256Gcm, [u8; 12]),
    /// ChaCha20-Poly1305.
    ChaCha(Box<ChaCha20Poly1305>, [u8; 12]),
}

impl Cipher {
    /// Derives a key from a secret. The secret must be used for nothing else, except to derive the next secret.
    pub fn new(suite: u8, secret: &Secret) -> Self {
        let (key, nonce) = (expand::<32>(secret, b"ofi-udp 2 key"), *expand::<12>(secret, b"ofi-udp 2 iv"));
        match suite {
            suites::AES_256_GCM => Self::Aes(Aes256Gcm::new(&key), nonce),
            _ => Self::ChaCha(Box::new(ChaCha20Poly1305::new(&(*key).into())), nonce),
        }
    }

    fn nonce(base: &[u8; 12], number: u64) -> [u8; 12] {
        let mut nonce = *base;
        nonce.iter_mut().skip(4).zip(number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        nonce
    }

    /// Encrypts `body` except for its trailer, and writes the trailer. If the cipher fails, which does not happen for
    /// packets this short, no plaintext remains in the packet.
    pub fn seal(&self, number: u64, head: &[u8], body: &mut [u8]) {
        let Some((text, trailer)) = body.split_last_chunk_mut::<TAG_LEN>() else { return body.fill(0) };
        let tag: Option<[u8; TAG_LEN]> = match self {
            Self::Aes(cipher, base) => cipher.seal(&Self::nonce(base, number), head, text),
            Self::ChaCha(cipher, base) => {
                let nonce = Nonce::from(Self::nonce(base, number));
                cipher.encrypt_inout_detached(&nonce, head, (&mut *text).into()).ok().map(Into::into)
            }
        };
        match tag {
            Some(tag) => trailer.copy_from_slice(&tag),
            None => body.fill(0),
        }
    }

    /// Decrypts `body` except for its trailer, in place. Returns whether it was authentic; otherwise its bytes are
    /// undefined.
    pub fn open(&self, number: u64, head: &[u8], body: &mut [u8]) -> bool {
        let Some((text, trailer)) = body.split_last_chunk_mut::<TAG_LEN>() else { return false };
        match self {
            Self::Aes(cipher, base) => cipher.open(&Self::nonce(base, number), head, text, trailer),
            Self::ChaCha(cipher, base) => {
                let nonce = Nonce::from(Self::nonce(base, number));
                cipher.decrypt_inout_detached(&nonce, head, text.into(), &Tag::from(*trailer)).is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use zeroize::ZeroizeOnDrop;

    use super::*;

    /// Compiles only for types that wipe themselves. The ciphers do so by a feature that a build could lack.
    const fn wiped<T: ZeroizeOnDrop>() {}

    #[test]
    fn what_holds_a_key_wipes_it_at_its_end() {
        wiped::<ChaCha20Poly1305>();
        wiped::<Secret>();
        // This one has no such mark. For the types of AES see `aes.rs`.
        assert!(core::mem::needs_drop::<x25519_dalek::StaticSecret>());
    }
}
