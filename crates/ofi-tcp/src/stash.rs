//! Bytes that have arrived and could not be processed yet.

use std::ops::Deref;

/// Bytes that wait to be processed. Taking some from the front moves none of the others: an application that reads its
/// queue entry by entry takes one message at a time.
#[derive(Default)]
pub struct Stash {
    bytes: Vec<u8>,
    /// Bytes at the front that were taken.
    taken: usize,
}

impl<'a> Extend<&'a u8> for Stash {
    fn extend<I: IntoIterator<Item = &'a u8>>(&mut self, bytes: I) {
        // What was taken goes first: a stash that never gets empty would keep it all.
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.extend(bytes);
    }
}

impl Stash {
    /// Takes bytes from the front. Nothing is kept in memory once it is empty.
    pub fn skip(&mut self, len: usize) {
        self.taken += len.min(self.len());
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Takes all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Deref for Stash {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }
}

impl From<&[u8]> for Stash {
    fn from(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), taken: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_at_the_front_and_come_at_the_end() {
        let mut stash = Stash::from(&[1u8, 2, 3][..]);
        stash.skip(2);
        stash.extend(&[4, 5]);
        assert_eq!(stash[..], [3, 4, 5]);
        stash.skip(9);
        assert!(stash.is_empty() && stash.bytes.capacity() == 0, "nothing is kept");
        stash.extend(&[6]);
        assert_eq!(stash[..], [6]);
        for _ in 0..10_000 {
            stash.extend(&[7; 100]);
            stash.skip(100);
            assert_eq!(stash.len(), 1, "a part of a packet stays");
        }
        assert!(stash.bytes.capacity() < 1000, "what was taken is not kept");
    }
}
