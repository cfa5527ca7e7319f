//! Records of an established connection (RFC 8446, section 5), sealed and opened where they lie.

use graviola::aead::AesGcm;
use rustls::{AlertDescription, ConnectionTrafficSecrets};

/// The most plaintext of a record.
pub const MAX_PLAIN: usize = 16 << 10;
/// What precedes a record's ciphertext: its type, its version, its length.
pub const HEADER: usize = 5;
const TAG: usize = 16;
/// How much longer a sealed record is than its plaintext: its header, the type inside, and the tag.
pub const OVERHEAD: usize = HEADER + 1 + TAG;
/// The longest ciphertext (RFC 8446, section 5.2).
const MAX_SEALED: usize = MAX_PLAIN + 256;
/// Records that one key seals. AES-GCM is safe for 2^24.5 of them (RFC 8446, section 5.5).
const RECORDS_OF_A_KEY: u64 = 1 << 24;

/// What a record holds.
pub const ALERT: u8 = 21;
pub const HANDSHAKE: u8 = 22;
pub const DATA: u8 = 23;

/// The records of one direction.
pub struct Direction {
    cipher: Box<AesGcm>,
    iv: [u8; 12],
    /// The number of the next record.
    next: u64,
}

impl Direction {
    /// With a key, and the number of the next record. `None` for another cipher than AES-256-GCM.
    pub fn new((next, secrets): (u64, ConnectionTrafficSecrets)) -> Option<Self> {
        let ConnectionTrafficSecrets::Aes256Gcm { key, iv } = secrets else { return None };
        let cipher = Box::new(AesGcm::new(key.as_ref()));
        Some(Self { cipher, iv: iv.as_ref().try_into().ok()?, next })
    }

    /// Whether the key has sealed as much as it may.
    pub fn is_worn(&self) -> bool {
        self.next >= RECORDS_OF_A_KEY
    }

    #[cfg(test)]
    pub fn wear(&mut self) {
        self.next = RECORDS_OF_A_KEY - 1;
    }

    /// A nonce that no other record of the key has.
    fn nonce(&mut self) -> [u8; 12] {
        let mut nonce = self.iv;
        let number = self.next.to_be_bytes();
        nonce[4..].iter_mut().zip(number).for_each(|(byte, of_number)| *byte ^= of_number);
        self.next += 1;
        nonce
    }

    /// Seals a record of `len` bytes, at most [`MAX_PLAIN`], whose plaintext is behind the room for the header. Returns
    /// the record's length, [`OVERHEAD`] more. `record` has room for all of it.
    pub fn seal(&mut self, kind: u8, record: &mut [u8], len: usize) -> usize {
        let (header, rest) = record.split_at_mut(HEADER);
        let (text, rest) = rest.split_at_mut(len + 1);
        let sealed = (len + 1 + TAG) as u16; // MAX_SEALED fits
        header.copy_from_slice(&[DATA, 3, 3, (sealed >> 8) as u8, sealed as u8]);
        text[len] = kind;
        let (nonce, mut tag) = (self.nonce(), [0; TAG]);
        self.cipher.encrypt(&nonce, header, text, &mut tag);
        rest[..TAG].copy_from_slice(&tag);
        len + OVERHEAD
    }

    /// Opens a record of a [length that was checked](length). Returns what it holds.
    ///
    /// # Errors
    /// The alert for a peer whose record is not authentic, or has no type.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<(u8, &'a [u8]), AlertDescription> {
        let nonce = self.nonce();
        let (header, sealed) = record.split_at_mut(HEADER);
        let (text, tag) = sealed.split_at_mut(sealed.len() - TAG);
        let opened = self.cipher.decrypt(&nonce, header, text, tag);
        opened.map_err(|_| AlertDescription::BadRecordMac)?;
        if text.len() > MAX_PLAIN + 1 {
            return Err(AlertDescription::RecordOverflow);
        }
        // Zeros may follow the type.
        let at = text.iter().rposition(|&byte| byte != 0).ok_or(AlertDescription::UnexpectedMessage)?;
        Ok((text[at], &text[..at]))
    }
}

/// The length of the record that begins with `bytes`. `None`: its header is not whole yet.
///
/// # Errors
/// The alert for a peer whose record cannot be one.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, AlertDescription> {
    match *bytes {
        [kind, ..] if kind != DATA => Err(AlertDescription::UnexpectedMessage),
        [_, _, _, a, b, ..] => match usize::from(u16::from_be_bytes([a, b])) {
            len if len > MAX_SEALED => Err(AlertDescription::RecordOverflow),
            len if len <= TAG => Err(AlertDescription::BadRecordMac),
            len => Ok(Some(HEADER + len)),
        },
        _ => Ok(None),
    }
}
