//! Protection of a session's packets: a key for each direction and each range of packet numbers.
//!
//! The secret of a direction yields the key for the first [`Limits::packets`] numbers, and the secret for the next
//! range; then it is wiped. A receiver knows from the packet number, which is in the clear, which key a packet uses. It
//! accepts packets of the previous key for a while, since they may arrive late, and switches to a later key once a
//! packet under it has been authenticated.

use alloc::boxed::Box;
use core::time::Duration;

use super::identity::expand;
use super::noise::Secret;
use super::suite::Cipher;
use super::{Limits, TAG_LEN};
use crate::time::Instant;
use crate::wire::{header, suites};

/// How long late packets of the previous key are accepted: three times the longest probe timeout.
const LATE: Duration = Duration::from_millis(1500);
/// Keys that may be skipped because all packets under them were lost.
const SKIPPED: u64 = 4;

/// A key of one direction, for the packet numbers from `first` on.
struct Key {
    first: u64,
    secret: Secret,
    cipher: Cipher,
}

impl Key {
    fn new(suite: u8, first: u64, secret: Secret) -> Self {
        Self { first, cipher: Cipher::new(suite, &secret), secret }
    }

    fn next(&self, suite: u8, limits: &Limits) -> Self {
        Self::new(suite, self.first + limits.packets, expand(&self.secret, b"ofi-udp 2 next"))
    }
}

/// The keys of one session, for both directions.
pub struct Protection {
    suite: u8,
    limits: Limits,
    send: Key,
    receive: Key,
    /// The previous key, and the time until which it is accepted.
    late: Option<Box<(Key, Instant)>>,
    /// The next key, if a packet has claimed to use it.
    next: Option<Box<Key>>,
    forged: u64,
}

impl core::fmt::Debug for Protection {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Protection").field("suite", &self.suite).finish_non_exhaustive() // the rest is secret
    }
}

impl Protection {
    /// Creates the protection at one end of a session. `client` and `server` are the secrets of their sending
    /// directions.
    pub(super) fn new([client, server]: [Secret; 2], suite: u8, limits: Limits, is_client: bool) -> Self {
        let [client, server] = [client, server].map(|secret| Key::new(suite, 0, secret));
        let (send, receive) = if is_client { (client, server) } else { (server, client) };
        Self { suite, limits, send, receive, late: None, next: None, forged: 0 }
    }

    /// Bytes after the frames of each packet.
    pub fn trailer(&self) -> usize {
        TAG_LEN
    }

    /// Seals a packet that has its header in place and its trailer as its last bytes. Numbers must increase.
    pub fn seal(&mut self, number: u64, packet: &mut [u8]) {
        while number - self.send.first >= self.limits.packets {
            self.send = self.send.next(self.suite, &self.limits);
        }
        match packet.split_first_chunk_mut::<{ header::LEN }>() {
            Some((head, body)) => self.send.cipher.seal(number, head, body),
            None => packet.fill(0),
        }
    }

    /// Decrypts the body of a packet in place. `None` if it is not authentic.
    pub fn open<'a>(
        &mut self,
        now: Instant,
        number: u64,
        head: &[u8],
        body: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        if self.late.as_ref().is_some_and(|late| late.1 < now) {
            self.late = None;
        }
        let ahead = number.wrapping_sub(self.receive.first);
        let opened = if ahead < self.limits.packets {
            self.receive.cipher.open(number, head, body)
        } else if number < self.receive.first {
            let late = self.late.as_ref().filter(|late| number >= late.0.first);
            late?.0.cipher.open(number, head, body)
        } else {
            self.open_next(now, ahead / self.limits.packets, number, head, body)
        };
        if !opened {
            self.forged += 1;
            return None;
        }
        body.split_last_chunk::<TAG_LEN>().map(|(text, _)| text)
    }

    /// Decrypts a packet of a key that comes `steps` after the current one. If the packet is authentic, that key
    /// becomes the current one.
    #[cold]
    fn open_next(&mut self, now: Instant, steps: u64, number: u64, head: &[u8], body: &mut [u8]) -> bool {
        if steps > SKIPPED {
            return false;
        }
        let (suite, limits) = (self.suite, self.limits);
        let mut key = match self.next.take() {
            Some(next) => next,
            None => Box::new(self.receive.next(suite, &limits)),
        };
        for _ in 1..steps {
            let after = key.next(suite, &limits);
            if key.first == self.receive.first + limits.packets {
                self.next = Some(core::mem::replace(&mut key, Box::new(after)));
            } else {
                *key = after;
            }
        }
        let opened = key.cipher.open(number, head, body);
        if opened {
            let before = core::mem::replace(&mut self.receive, *key);
            self.late = Some(Box::new((before, now + LATE)));
            self.next = None;
        } else if steps == 1 {
            self.next = Some(key);
        }
        opened
    }

    /// Whether the limit of forged packets is reached.
    pub fn is_spent(&self) -> bool {
        let limit = match self.suite {
            suites::AES_256_GCM => self.limits.forgeries_aes,
            _ => self.limits.forgeries_chacha,
        };
        self.forged >= limit
    }
}
