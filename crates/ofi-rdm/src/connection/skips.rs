//! Skips a packet number now and then, to detect optimistic acknowledgements (RFC 9000, section 21.4): a peer that
//! acknowledges packets before they arrive, to make this end send more than the path carries, also acknowledges skipped
//! numbers.

/// The skipped numbers of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skips {
    /// The last skipped number.
    last: Option<u64>,
    /// The first packet number from here on skips one. 0: not chosen yet.
    due: u64,
}

impl Skips {
    /// The number to give a packet if `next` is next in sequence. `gap` returns the distance from a number to the next
    /// skipped one, which the peer must not be able to predict.
    #[inline]
    pub fn number(&mut self, next: u64, gap: impl FnOnce(u64) -> u64) -> u64 {
        if next < self.due {
            return next;
        }
        let mut number = next;
        if self.due > 0 {
            self.last = Some(next);
            number += 1;
        }
        self.due = number + gap(number).max(1);
        number
    }

    /// The last skipped number.
    pub fn last(&self) -> Option<u64> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn one_number_is_left_out_for_each_gap() {
        let (mut skips, mut next, mut left_out) = (Skips::default(), 0, Vec::new());
        for _ in 0..1000 {
            let number = skips.number(next, |from| from % 7 + 100);
            if number != next {
                assert_eq!((number, skips.last()), (next + 1, Some(next)));
                left_out.push(next);
            }
            next = number + 1;
        }
        assert_eq!(left_out[0], 100, "none before the first gap");
        assert!(left_out.windows(2).all(|pair| (101..=107).contains(&(pair[1] - pair[0]))), "{left_out:?}");
    }
}
