//! Authenticated encryption of packets (RFC 5116). The nonce is 12 bytes of the session's key material, changed by the packet's number,
//! which no session uses twice (as in RFC 9001, section 5.3). The header is authenticated along.

use aes_gcm::Aes256Gcm;
use alloc::boxed::Box;
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Nonce, Tag};

use super::suites;

/// Bytes of what shows that a packet is as it was sealed.
pub const TAG_LEN: usize = 16;

/// The faster suite of this architecture, and the other.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub const FIRST: u8 = suites::AES_256_GCM;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub const SECOND: u8 = suites::CHACHA20_POLY1305;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub const FIRST: u8 = suites::CHACHA20_POLY1305;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub const SECOND: u8 = suites::AES_256_GCM;

/// One direction of a session.
pub enum Cipher {
    Clear,
    Aes(Box<Aes256Gcm>, [u8; 12]),
    ChaCha(Box<ChaCha20Poly1305>, [u8; 12]),
}

impl Cipher {
    /// From 32 bytes of key and 12 of nonce.
    pub fn new(suite: u8, material: &[u8; 44]) -> Self {
        let key: [u8; 32] = core::array::from_fn(|at| material[at]);
        let nonce = core::array::from_fn(|at| material[32 + at]);
        match suite {
            suites::AES_256_GCM => Self::Aes(Box::new(Aes256Gcm::new(&key.into())), nonce),
            suites::CHACHA20_POLY1305 => Self::ChaCha(Box::new(ChaCha20Poly1305::new(&key.into())), nonce),
            _ => Self::Clear,
        }
    }

    /// Whether packets have a trailer.
    pub fn seals(&self) -> bool {
        !matches!(self, Self::Clear)
    }

    fn nonce(base: &[u8; 12], number: u64) -> Nonce {
        let mut nonce = *base;
        nonce.iter_mut().skip(4).zip(number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        nonce.into()
    }

    /// Encrypts `body` but for its trailer, which it writes.
    pub fn seal(&self, number: u64, head: &[u8], body: &mut [u8]) {
        let Some((text, trailer)) = body.split_last_chunk_mut::<TAG_LEN>() else { return };
        // Packets are far shorter than what these take, which is the only reason to refuse.
        let tag = match self {
            Self::Clear => return,
            Self::Aes(cipher, base) => {
                cipher.encrypt_inout_detached(&Self::nonce(base, number), head, text.into())
            }
            Self::ChaCha(cipher, base) => {
                cipher.encrypt_inout_detached(&Self::nonce(base, number), head, text.into())
            }
        };
        if let Ok(tag) = tag {
            trailer.copy_from_slice(&tag);
        }
    }

    /// Decrypts `body` in place, if it is what was sealed.
    pub fn open<'a>(&self, number: u64, head: &[u8], body: &'a mut [u8]) -> Option<&'a [u8]> {
        if !self.seals() {
            return Some(body);
        }
        let (text, trailer) = body.split_last_chunk_mut::<TAG_LEN>()?;
        let tag = Tag::from(*trailer);
        let opened = match self {
            Self::Clear => return None,
            Self::Aes(cipher, base) => {
                cipher.decrypt_inout_detached(&Self::nonce(base, number), head, (&mut *text).into(), &tag)
            }
            Self::ChaCha(cipher, base) => {
                cipher.decrypt_inout_detached(&Self::nonce(base, number), head, (&mut *text).into(), &tag)
            }
        };
        opened.ok().map(|()| &*text)
    }
}
