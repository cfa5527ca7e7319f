//! The format of the records in the rings. The user's half of a header word holds a kind and flags. A body consists of
//! words of 8 bytes in the host's byte order, then the payload.
//!
//! ```text
//! commands  Message   [op] [tag] [data] payload          arrived whole; op: tell when it is taken
//!           Announce  op len key offset [tag] [data]      payload is at the sender: ask for it with Send
//!           Write     op count count×(addr len key) [data] payload
//!           WriteLong op count count×(addr len key) [data] [ticket addr]    the last two with `LENT`: where the bytes are
//!           Read      op count count×(addr len key)
//!           Atomic    op count count×(addr len key) operands comparands   flags from bit 16 on: the executor
//!           Note      word word word word payload             from core to core (collectives)
//!           Notice    data len                            written directly, with remote CQ data
//! replies   Done      op errno
//!           Dones     op, op, ...                         several that are done
//!           Send      op into len                         stream `len` bytes as parts for `into`
//!           Share     op ticket len count count×(addr len)    copy from your end into these; the receiver copies from the front
//!           Offer     op ticket addr                      a long read: say how it shall come, by Share, Send or Done with `SERVED`
//!           Data      op payload                          a short read, or what an atomic found
//! bulk      parts     id offset (to 56 bytes) payload     id: `into`, or `op` of a read
//! ```
//!
//! The payload of a `Message` or `Write` of [`ALIGNED`] bytes or more begins on the next cache line, so that its copies
//! touch as few lines as possible.
//!
//! `Message`, `Announce`, `Notice` and writes with data carry from bit 16 on which receive context they are for.

use ofi_core::transport::RxName;

use ofi_ring::record::HEADER;

use crate::layout::{LINE, pair};

/// The maximum number of remote pieces in one operation (`rma_iov_limit`).
pub const RMA_IOV_LIMIT: usize = 8;

/// The maximum length of a read inside a reply, in bytes.
pub const SHORT_READ: usize = pair::REPLY_LINES / 4 * LINE - 16;

/// From this length on, a payload begins on a cache line (`docs/design-choices.md`). For shorter ones that may take an
/// additional line.
pub const ALIGNED: usize = 192;

/// Bytes of a body before a payload of `len` bytes that follows `words` words.
#[inline]
pub const fn before(words: usize, len: usize) -> usize {
    let used = words * 8;
    if len < ALIGNED { used } else { (HEADER + used).next_multiple_of(LINE) - HEADER }
}

/// From an address to the next cache line, in bytes.
#[inline]
fn to_line(at: usize) -> usize {
    at.wrapping_neg() % LINE
}

/// Kinds of record.
pub mod kind {
    pub const MESSAGE: u32 = 1;
    /// A message with a tag and nothing else: kind and flag.
    pub const TAGGED_MESSAGE: u32 = MESSAGE | super::flag::TAGGED;
    pub const ANNOUNCE: u32 = 2;
    pub const WRITE: u32 = 3;
    pub const WRITE_LONG: u32 = 4;
    pub const READ: u32 = 5;
    pub const NOTICE: u32 = 6;
    pub const ATOMIC: u32 = 7;
    pub const NOTE: u32 = 8;
    pub const DONE: u32 = 16;
    pub const SEND: u32 = 17;
    pub const DATA: u32 = 18;
    pub const SHARE: u32 = 19;
    pub const DONES: u32 = 20;
    pub const OFFER: u32 = 21;
    pub const MESSAGE_PART: u32 = 32;
    pub const WRITE_PART: u32 = 33;
    pub const READ_PART: u32 = 34;
    /// The bits of a kind.
    pub const MASK: u32 = 0xFF;
}

/// Flags, beside the kind.
pub mod flag {
    /// There is a tag.
    pub const TAGGED: u32 = 1 << 8;
    /// There is remote CQ data.
    pub const DATA: u32 = 1 << 9;
    /// A `Message` or `Announce` whose sender waits for `Done`, once it is in a buffer of the receiver.
    pub const CONFIRM: u32 = 1 << 10;
    /// The sender's library keeps the payload; the operation is complete.
    pub const KEPT: u32 = 1 << 11;
    /// An `Announce`, `WriteLong` or `Offer` whose payload is one piece of the sender's memory that the receiver may
    /// read. `key` says where the sender's pair memory holds the ticket (`layout::pair::LENT`), and `offset` is the
    /// payload's address.
    pub const LENT: u32 = 1 << 12;
    /// An `Announce`, `WriteLong` or `Offer` whose sender can write to the receiver's memory.
    pub const WRITES: u32 = 1 << 13;
    /// A reply to the offer for this end's read: `op` is this end's.
    pub const SERVED: u32 = 1 << 14;
    /// A `Message`, `Write` or part whose reader times its copy (`stores.rs`).
    pub const TIMED: u32 = 1 << 14;
    /// A `Message`, `Write` or part whose payload was written by streaming stores.
    pub const STREAMED: u32 = 1 << 15;
}

/// Where the number of a receive context begins.
const RX: u32 = 16;

/// `high` with the number of a receive context.
#[inline]
pub const fn rx_bits(high: u32, rx: RxName) -> u32 {
    high | (rx.to_wire() as u32) << RX
}

/// The receive context that a command is for.
#[inline]
pub const fn rx_of(high: u32) -> RxName {
    RxName::from_wire((high >> RX) as u16)
}

/// Bytes before the payload of a part, so that the payload starts on a cache line.
pub const PART_HEADER: usize = 56;

/// Reads the words at the start of a body that a peer may change concurrently. Each word is read once.
pub struct Words {
    at: *const u8,
    left: usize,
}

impl Words {
    /// Over a body of `len` bytes.
    ///
    /// # Safety
    /// `body` is aligned to 8 and readable for `len` bytes while the value lives.
    #[inline]
    pub const unsafe fn new(body: *const u8, len: usize) -> Self {
        Self { at: body, left: len }
    }

    /// The next word, if the body has one.
    #[inline]
    pub fn next(&mut self) -> Option<u64> {
        if self.left < 8 {
            return None;
        }
        // SAFETY: 8 bytes are left, aligned as the body is: only whole words were taken before, or all that there was.
        let word = unsafe { self.at.cast::<u64>().read_volatile() };
        self.skip(1);
        Some(word)
    }

    /// Skips up to `count` words.
    #[inline]
    pub fn skip(&mut self, words: usize) {
        let bytes = words.saturating_mul(8).min(self.left);
        self.at = self.at.wrapping_add(bytes);
        self.left -= bytes;
    }

    /// Skips to the payload of a `Message` or `Write`, and returns it. A body without padding has less than [`ALIGNED`]
    /// bytes left.
    #[inline]
    pub fn payload(&mut self) -> (*const u8, usize) {
        if self.left >= ALIGNED {
            let padding = to_line(self.at.addr());
            self.at = self.at.wrapping_add(padding);
            self.left -= padding;
        }
        self.rest()
    }

    /// As [`Words::payload`], behind `words` words at the start of a record, where its place does not depend on the
    /// address.
    #[inline]
    pub fn payload_after(mut self, words: usize) -> (*const u8, usize) {
        let padding = before(words, self.left) - words * 8;
        self.at = self.at.wrapping_add(padding);
        self.left -= padding; // not 0 only if `ALIGNED` bytes and more are left
        self.rest()
    }

    /// The rest, as it stands.
    #[inline]
    pub const fn rest(&self) -> (*const u8, usize) {
        (self.at, self.left)
    }
}

/// Writes words at the start of a body.
pub struct CommandWriter {
    at: *mut u8,
}

impl CommandWriter {
    /// Over a reserved body.
    ///
    /// # Safety
    /// `body` is aligned to 8 and has room for all that will be written.
    #[inline]
    pub const unsafe fn new(body: *mut u8) -> Self {
        Self { at: body }
    }

    /// Appends a word.
    #[inline]
    pub fn word(&mut self, word: u64) {
        // SAFETY: the promise of `new`.
        unsafe { self.at.cast::<u64>().write(word) };
        self.at = self.at.wrapping_add(8);
    }

    /// The destination of the payload of a `Message` or `Write` with `len` bytes.
    #[inline]
    pub fn payload(&self, len: usize) -> *mut u8 {
        if len < ALIGNED { self.at } else { self.at.wrapping_add(to_line(self.at.addr())) }
    }

    /// The place after the words.
    #[inline]
    pub const fn rest(&self) -> *mut u8 {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body as a ring has it: behind the header word of a record.
    #[repr(align(64))]
    struct Lines([u8; 1024]);

    #[test]
    fn a_payload_is_found_where_it_was_written_and_a_long_one_on_a_line() {
        for words in 0..=3 {
            for len in 0..=400 {
                let mut lines = Lines([0; 1024]);
                let body_len = before(words, len) + len;
                let body = lines.0[HEADER..].as_mut_ptr();
                // SAFETY: a body of `body_len` bytes fits behind the header word, and is aligned to 8.
                let mut writer = unsafe { CommandWriter::new(body) };
                for word in 0..words {
                    writer.word(word as u64);
                }
                let written = writer.payload(len);
                // SAFETY: as above; nothing writes to it meanwhile.
                let mut read = unsafe { Words::new(body, body_len) };
                for word in 0..words {
                    assert_eq!(read.next(), Some(word as u64));
                }
                assert_eq!(read.payload(), (written.cast_const(), len), "{words} words");
                // SAFETY: as above.
                let mut read = unsafe { Words::new(body, body_len) };
                read.skip(words);
                assert_eq!(read.payload_after(words), (written.cast_const(), len), "{words} words");
                assert!(len < ALIGNED || written.addr().is_multiple_of(LINE), "{words} words, {len} bytes");
            }
        }
    }

    #[test]
    fn a_forged_body_has_no_payload_beyond_its_end() {
        let lines = Lines([0; 1024]);
        for at in (HEADER..256).step_by(8) {
            for len in 0..=256 {
                let body = lines.0[at..].as_ptr();
                // SAFETY: so many bytes lie there.
                let (payload, left) = unsafe { Words::new(body, len) }.payload();
                assert!(payload.addr() >= body.addr() && payload.addr() + left == body.addr() + len);
                // SAFETY: as above.
                let (payload, left) = unsafe { Words::new(body, len) }.payload_after(0);
                assert!(payload.addr() >= body.addr() && payload.addr() + left == body.addr() + len);
            }
        }
    }
}
