//! AES-256-GCM by one of two libraries, which compute the same bytes: graviola, if it is compiled in and the processor
//! has the instructions that it needs, otherwise RustCrypto's aes-gcm, which runs on every processor.
//!
//! graviola encrypts and authenticates in one pass, with vector instructions where they exist (VAES): packets of 1.4
//! KiB and more take less than half of the time.

use aes_gcm::aead::{AeadInOut, KeyInit};
use alloc::boxed::Box;

use super::TAG_LEN;
use vector::Vector;

/// A key. Its memory is wiped when it is dropped.
pub struct Aes256Gcm(Implementation);

enum Implementation {
    Vector(Vector),
    Portable(Box<aes_gcm::Aes256Gcm>),
}

impl Aes256Gcm {
    pub fn new(key: &[u8; 32]) -> Self {
        Self(match Vector::new(key) {
            Some(vector) => Implementation::Vector(vector),
            None => Implementation::Portable(Box::new(aes_gcm::Aes256Gcm::new(key.into()))),
        })
    }

    /// Encrypts `text` in place and returns the tag. `None` if `text` is too long; part of it may then be encrypted.
    pub fn seal(&self, nonce: &[u8; 12], head: &[u8], text: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        match &self.0 {
            Implementation::Vector(vector) => Some(vector.seal(nonce, head, text)),
            Implementation::Portable(cipher) => {
                cipher.encrypt_inout_detached(nonce.into(), head, text.into()).ok().map(Into::into)
            }
        }
    }

    /// Decrypts `text` in place. Returns whether it was authentic; otherwise its bytes are undefined.
    pub fn open(&self, nonce: &[u8; 12], head: &[u8], text: &mut [u8], tag: &[u8; TAG_LEN]) -> bool {
        match &self.0 {
            Implementation::Vector(vector) => vector.open(nonce, head, text, tag),
            Implementation::Portable(cipher) => {
                cipher.decrypt_inout_detached(nonce.into(), head, text.into(), tag.into()).is_ok()
            }
        }
    }
}

#[cfg(all(
    feature = "vector-aes",
    any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))
))]
mod vector {
    use alloc::boxed::Box;

    use graviola::aead::AesGcm;

    use super::TAG_LEN;

    pub struct Vector(Box<AesGcm>);

    impl Vector {
        /// `None` if the processor lacks an instruction that graviola needs.
        pub fn new(key: &[u8; 32]) -> Option<Self> {
            graviola::util::is_cpu_supported().then(|| Self(Box::new(AesGcm::new(key))))
        }

        pub fn seal(&self, nonce: &[u8; 12], head: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
            let mut tag = [0; TAG_LEN];
            self.0.encrypt(nonce, head, text, &mut tag);
            tag
        }

        pub fn open(&self, nonce: &[u8; 12], head: &[u8], text: &mut [u8], tag: &[u8; TAG_LEN]) -> bool {
            self.0.decrypt(nonce, head, text, tag).is_ok()
        }
    }
}

#[cfg(not(all(
    feature = "vector-aes",
    any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))
)))]
mod vector {
    use super::TAG_LEN;

    pub enum Vector {}

    impl Vector {
        pub fn new(_: &[u8; 32]) -> Option<Self> {
            None
        }

        pub fn seal(&self, _: &[u8; 12], _: &[u8], _: &mut [u8]) -> [u8; TAG_LEN] {
            match *self {}
        }

        pub fn open(&self, _: &[u8; 12], _: &[u8], _: &mut [u8], _: &[u8; TAG_LEN]) -> bool {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use std::eprintln;

    use zeroize::ZeroizeOnDrop;

    use super::*;

    #[test]
    fn keys_are_wiped() {
        const fn wiped<T: ZeroizeOnDrop>() {}
        wiped::<aes_gcm::Aes256Gcm>();
        // graviola wipes its keys, but does not mark the type.
        #[cfg(all(
            feature = "vector-aes",
            any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))
        ))]
        assert!(core::mem::needs_drop::<graviola::aead::AesGcm>());
    }

    #[test]
    fn both_implementations_compute_the_same_bytes() {
        let key = core::array::from_fn(|at| at as u8 * 7 + 3);
        let portable = Aes256Gcm(Implementation::Portable(Box::new(aes_gcm::Aes256Gcm::new(&key.into()))));
        let chosen = Aes256Gcm::new(&key);
        if matches!(chosen.0, Implementation::Portable(_)) {
            eprintln!(
                "NOT RUN: both_implementations_compute_the_same_bytes: graviola is absent, or the processor too old"
            );
        }
        for len in (0..300).chain([1_023, 1_024, 1_400, 8_191, 8_192, 65_000]) {
            let text: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8).collect();
            let (nonce, head) = (core::array::from_fn(|at| (at * len) as u8), &text[..len.min(len % 40)]);
            let (mut one, mut other) = (text.clone(), text.clone());
            let tag = portable.seal(&nonce, head, &mut one).unwrap();
            assert_eq!(chosen.seal(&nonce, head, &mut other), Some(tag), "{len}");
            assert_eq!(one, other, "{len}");
            assert!(len < 16 || one != text, "{len}");

            let mut forged = tag;
            forged[len % TAG_LEN] ^= 1;
            for cipher in [&portable, &chosen] {
                let mut body = one.clone();
                assert!(cipher.open(&nonce, head, &mut body, &tag), "{len}");
                assert_eq!(body, text, "{len}");
                assert!(!cipher.open(&nonce, head, &mut one.clone(), &forged), "{len}");
                assert!(!cipher.open(&nonce, b"another head", &mut one.clone(), &tag), "{len}");
                body.clone_from(&one);
                body.iter_mut().skip(len / 2).take(1).for_each(|byte| *byte ^= 0x80);
                assert!(len == 0 || !cipher.open(&nonce, head, &mut body, &tag), "{len}");
            }
        }
    }
}
