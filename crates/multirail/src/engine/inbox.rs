//! Incoming notifications of one session, whose fragments arrive in any order and possibly twice, and the writes that
//! they wait for.
//!
//! A notification is delivered when all of its fragments and all writes of its transfer have arrived. Each write
//! carries the number of its transfer and its own number within the transfer, so a write that arrives twice because it
//! was sent again after a rail failed counts once. Only transfers with a notification count.
//!
//! Bounds: [`WINDOW`] notifications and [`BYTES`] that are unfinished, or that are neither taken nor acknowledged
//! (`unread.rs`); [`WINDOW`] gaps between the ids that were delivered, beyond which no id is taken that might leave one
//! more (what is unfinished by then may add as many); the length of a notification; and the writes of the last
//! [`NUMBERS`] transfers. All sessions together have a budget (`budget.rs`). How far ids lie apart does not matter:
//! while a program takes no notifications, the orders behind them go on. A sender that keeps to its bounds
//! (`session.rs`) stays within them: the bytes are equal, the numbers lower. Input beyond the bounds is dropped and
//! counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::budget::{ENTRY, NUMBER};
use super::delivered::Delivered;
use super::receipts::{ORDER_BYTES, UNACKED_BYTES};
use crate::wire::message::{FRAGMENT, Fragment};

/// Maximum notifications that are unfinished or not acknowledged, and maximum gaps between delivered ids.
pub(super) const WINDOW: u64 = 1024;
/// Bytes of unfinished notifications, and of those that are neither taken nor acknowledged. One of them may be longer,
/// if the others fit into [`ORDER_BYTES`].
pub(super) const BYTES: usize = UNACKED_BYTES + ORDER_BYTES;
/// Maximum transfers whose writes are counted at the same time.
pub(super) const NUMBERS: u16 = 2048;

/// Notifications of one session.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    arrivals: BTreeMap<u16, Arrivals>,
    /// Words of all marks in `arrivals`.
    words: usize,
    newest: Option<u16>,
    partial: HashMap<u64, Partial>,
    /// Complete notifications that wait for writes, by the transfer's number.
    waiting: HashMap<u16, Vec<u64>>,
    bytes: usize,
    /// Ids that were delivered or cancelled.
    delivered: Delivered,
    /// Ids that were delivered and are not to be acknowledged yet.
    unread: BTreeSet<u64>,
    /// Ids that the sender has put on hold, because counted writes may be sent again.
    held: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Arrivals {
    seen: Bits,
    count: u32,
}

#[derive(Debug)]
struct Partial {
    bytes: Vec<u8>,
    have: Bits,
    missing: u32,
    expected: u32,
    transfer: u16,
}

/// What the peer may make this agent keep, as a notification arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum length of a notification.
    pub(super) longest: usize,
    /// Notifications of the peer that are neither taken nor acknowledged, so that their sender counts them too: their
    /// number and bytes.
    pub(super) unread: (usize, usize),
    /// The longest of them, if they have more than [`BYTES`] together.
    pub(super) longest_unread: usize,
}

/// The result for a fragment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// More fragments or writes are needed.
    Incomplete,
    /// This notification may be delivered.
    Complete(u64, Vec<u8>),
    /// The program had the notification before: its acknowledgement was lost.
    Repeated,
    /// The fragment contradicts the bounds, or earlier fragments.
    Refused,
}

#[derive(Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    /// Sets a bit. Returns whether it was new.
    fn set(&mut self, at: usize) -> bool {
        let (word, bit) = (at / 64, 1 << (at % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }
}

impl Inbox {
    /// Records an arrived write. Returns the notifications that may be delivered now, or `None` if the write does not
    /// belong to a transfer that counts.
    pub(super) fn arrived(&mut self, transfer: u16, chunk: u16) -> Option<Vec<(u64, Vec<u8>)>> {
        let newest = *self.newest.get_or_insert(transfer);
        let ahead = transfer.wrapping_sub(newest).cast_signed();
        if ahead > 0 {
            self.newest = Some(transfer);
            self.arrivals.retain(|&number, old| {
                let is_near = transfer.wrapping_sub(number) < NUMBERS;
                self.words -= if is_near { 0 } else { old.seen.0.len() };
                is_near
            });
        } else if ahead.unsigned_abs() >= NUMBERS {
            return None;
        }
        let arrivals = self.arrivals.entry(transfer).or_default();
        let words = arrivals.seen.0.len();
        if arrivals.seen.set(usize::from(chunk)) {
            arrivals.count += 1;
            self.words += arrivals.seen.0.len() - words;
        }
        let count = arrivals.count;
        let Some(waiting) = self.waiting.get_mut(&transfer) else { return Some(Vec::new()) };
        let (partial, held) = (&self.partial, &self.held);
        let ready: Vec<u64> = waiting
            .extract_if(.., |id| {
                !held.contains(id) && partial.get(id).is_some_and(|partial| partial.expected <= count)
            })
            .collect();
        if waiting.is_empty() {
            self.waiting.remove(&transfer);
        }
        Some(ready.into_iter().filter_map(|id| Some((id, self.finish(id)?))).collect())
    }

    /// Records an arrived fragment.
    pub(super) fn take(&mut self, fragment: &Fragment, limits: Limits) -> Taken {
        let Fragment { id, expected, transfer, total, offset, ref bytes } = *fragment;
        if self.delivered.contains(id) {
            return if self.unread.contains(&id) { Taken::Incomplete } else { Taken::Repeated };
        }
        let total = total as usize;
        if !self.partial.contains_key(&id) {
            if !self.has_gaps() {
                return Taken::Refused;
            }
            let (count, kept) = (limits.unread.0 + self.partial.len(), limits.unread.1 + self.bytes);
            let is_too_much = kept + total > BYTES && {
                let longest = self.partial.values().map(|partial| partial.bytes.len()).max();
                let longest = total.max(limits.longest_unread).max(longest.unwrap_or(0));
                kept + total - longest > ORDER_BYTES
            };
            if count as u64 >= WINDOW || total > limits.longest || is_too_much {
                return Taken::Refused;
            }
            self.bytes += total;
            let missing = total.div_ceil(FRAGMENT).max(1) as u32;
            let fresh = Partial { bytes: vec![0; total], have: Bits::default(), missing, expected, transfer };
            self.partial.insert(id, fresh);
        }
        let Some(partial) = self.partial.get_mut(&id) else { return Taken::Refused };
        // The first fragment that arrives sets the notification's properties. `Fragment::parse` has checked each
        // fragment in itself.
        if (partial.bytes.len(), partial.expected, partial.transfer) != (total, expected, transfer) {
            return Taken::Refused;
        }
        if partial.missing > 0 && partial.have.set(offset as usize / FRAGMENT) {
            partial.bytes[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            partial.missing -= 1;
        } else {
            return Taken::Incomplete;
        }
        if partial.missing > 0 {
            return Taken::Incomplete;
        }
        let arrived = self.arrivals.get(&transfer).map_or(0, |arrivals| arrivals.count);
        if arrived < expected || self.held.contains(&id) {
            self.waiting.entry(transfer).or_default().push(id);
            return Taken::Incomplete;
        }
        match self.finish(id) {
            Some(bytes) => Taken::Complete(id, bytes),
            None => Taken::Refused,
        }
    }

    /// A notification was delivered, and is acknowledged when the program takes it.
    pub(super) fn is_unread(&mut self, id: u64) {
        self.unread.insert(id);
    }

    /// The program has taken a notification, or its sender has given it up.
    pub(super) fn was_read(&mut self, id: u64) -> bool {
        self.unread.remove(&id)
    }

    /// Cancels a notification that its sender has given up. Returns `false` for an id beyond the bounds.
    pub(super) fn void(&mut self, id: u64) -> bool {
        if self.delivered.contains(id) {
            return true;
        }
        if !self.partial.contains_key(&id) && !self.has_gaps() {
            return false;
        }
        if let Some(partial) = self.partial.remove(&id) {
            self.bytes -= partial.bytes.len();
            self.unlist(partial.transfer, id);
        }
        self.held.remove(&id);
        self.delivered.insert(id);
        true
    }

    /// Holds a notification until it is released. Returns whether it is too late: the notification was delivered or
    /// cancelled.
    pub(super) fn hold(&mut self, id: u64) -> bool {
        if self.delivered.contains(id) || self.held.len() as u64 >= WINDOW {
            return true;
        }
        self.held.insert(id);
        false
    }

    /// Releases a held notification. Returns it if it may be delivered now.
    pub(super) fn release(&mut self, id: u64) -> Option<Vec<u8>> {
        if !self.held.remove(&id) {
            return None;
        }
        let partial = self.partial.get(&id)?;
        let arrived = self.arrivals.get(&partial.transfer).map_or(0, |arrivals| arrivals.count);
        if partial.missing > 0 || arrived < partial.expected {
            return None;
        }
        self.unlist(partial.transfer, id);
        self.finish(id)
    }

    /// Removes a notification from `waiting`.
    fn unlist(&mut self, transfer: u16, id: u64) {
        if let Some(waiting) = self.waiting.get_mut(&transfer) {
            waiting.retain(|&other| other != id);
            if waiting.is_empty() {
                self.waiting.remove(&transfer);
            }
        }
    }

    /// Whether another id may be delivered or cancelled, which may leave a gap before it.
    fn has_gaps(&self) -> bool {
        (self.delivered.gaps() as u64) < WINDOW
    }

    fn finish(&mut self, id: u64) -> Option<Vec<u8>> {
        let partial = self.partial.remove(&id)?;
        self.bytes -= partial.bytes.len();
        if partial.expected > 0 {
            let gone = self.arrivals.remove(&partial.transfer);
            self.words -= gone.map_or(0, |gone| gone.seen.0.len());
        }
        self.delivered.insert(id);
        Some(partial.bytes)
    }

    /// What it keeps, in bytes.
    pub(super) fn kept(&self) -> usize {
        let entries = self.partial.len() + self.arrivals.len();
        let numbers = self.delivered.gaps() + self.unread.len() + self.held.len();
        self.bytes + 8 * self.words + ENTRY * entries + NUMBER * numbers
    }

    /// Sizes of the state: unfinished notifications, and transfers with counted writes.
    #[cfg(test)]
    fn sizes(&self) -> (usize, usize, usize) {
        (self.partial.len(), self.arrivals.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The program has taken everything.
    const FREE: Limits = Limits { longest: BYTES, unread: (0, 0), longest_unread: 0 };

    fn fragments(id: u64, expected: u32, transfer: u16, bytes: &[u8]) -> Vec<Fragment> {
        let count = bytes.len().div_ceil(FRAGMENT).max(1);
        let part = |nth: usize| {
            let range = nth * FRAGMENT..bytes.len().min((nth + 1) * FRAGMENT);
            let (total, offset) = (bytes.len() as u32, range.start as u32);
            Fragment { id, expected, transfer, total, offset, bytes: bytes[range].to_vec() }
        };
        (0..count).map(part).collect()
    }

    #[derive(Clone, Debug)]
    enum Input {
        Write(u16, u16),
        Part(Fragment),
    }

    proptest! {
        /// Whatever the order, and however often each fragment or write arrives: every notification is handed out once,
        /// whole, and never before the last of its writes.
        #[test]
        fn each_is_handed_out_once_after_its_writes(
            lens in prop::collection::vec((0..3 * FRAGMENT, 0..5_u16), 1..12),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
        ) {
            let mut inputs = Vec::new();
            for (nth, &(len, writes)) in lens.iter().enumerate() {
                inputs.extend((0..writes).map(|chunk| Input::Write(nth as u16, chunk)));
                let parts = fragments(nth as u64, u32::from(writes), nth as u16, &vec![nth as u8; len]);
                inputs.extend(parts.into_iter().map(Input::Part));
            }
            let mut script: Vec<Input> = order.iter().map(|index| inputs[index.index(inputs.len())].clone()).collect();
            script.extend(inputs.iter().cloned()); // each input at least once
            let mut inbox = Inbox::default();
            let mut written = vec![BTreeSet::new(); lens.len()];
            let mut out = vec![0; lens.len()];
            for input in script {
                let ready = match &input {
                    Input::Write(transfer, chunk) => {
                        written[usize::from(*transfer)].insert(*chunk);
                        inbox.arrived(*transfer, *chunk).unwrap()
                    }
                    Input::Part(fragment) => match inbox.take(fragment, FREE) {
                        Taken::Complete(id, bytes) => vec![(id, bytes)],
                        Taken::Refused => return Err(TestCaseError::fail("refused")),
                        _ => Vec::new(),
                    },
                };
                for (id, bytes) in ready {
                    let (len, writes) = lens[id as usize];
                    prop_assert_eq!(bytes, vec![id as u8; len]);
                    prop_assert_eq!(written[id as usize].len(), usize::from(writes));
                    out[id as usize] += 1;
                }
            }
            prop_assert_eq!(out, vec![1; lens.len()]);
            prop_assert_eq!(inbox.sizes().0, 0);
            prop_assert_eq!(inbox.bytes, 0);
            let words: usize = inbox.arrivals.values().map(|arrivals| arrivals.seen.0.len()).sum();
            prop_assert_eq!(inbox.words, words);
        }
    }

    #[test]
    fn writes_without_notification_are_forgotten_and_their_numbers_used_again() {
        let mut inbox = Inbox::default();
        for round in 0..70_000_u32 {
            assert_eq!(inbox.arrived(round as u16, 0), Some(Vec::new()));
            assert!(inbox.sizes().1 <= usize::from(NUMBERS) && inbox.words == inbox.sizes().1);
        }
        // A number that was used 65,536 transfers ago: writes that arrived then do not count.
        let number = 70_000_u32 as u16;
        let parts = fragments(0, 1, number, b"later");
        assert_eq!(inbox.take(&parts[0], FREE), Taken::Incomplete);
        assert_eq!(inbox.arrived(number, 0), Some(vec![(0, b"later".to_vec())]));
    }

    #[test]
    fn what_the_sender_gave_up_leaves_nothing_and_blocks_nothing() {
        let mut inbox = Inbox::default();
        let parts = fragments(0, 3, 1, &[1; 2 * FRAGMENT]);
        assert_eq!(
            (inbox.take(&parts[0], FREE), inbox.take(&parts[1], FREE)),
            (Taken::Incomplete, Taken::Incomplete)
        );
        assert!(inbox.void(0) && inbox.void(0));
        assert_eq!((inbox.partial.len(), inbox.bytes, inbox.waiting.len()), (0, 0, 0));
        assert!(inbox.delivered.contains(0) && inbox.delivered.gaps() == 0);
        assert_eq!(inbox.take(&parts[0], FREE), Taken::Repeated, "a fragment behind it");
        for chunk in 0..3 {
            assert_eq!(inbox.arrived(1, chunk), Some(Vec::new()));
        }
    }

    #[test]
    fn fragments_that_contradict_each_other_or_the_bounds_are_refused() {
        let mut inbox = Inbox::default();
        let parts = fragments(5, 0, 1, &[9; 2 * FRAGMENT]);
        assert_eq!(inbox.take(&parts[0], FREE), Taken::Incomplete);
        for wrong in [
            Fragment { total: 3 * FRAGMENT as u32, ..parts[1].clone() },
            Fragment { expected: 7, ..parts[1].clone() },
            Fragment { transfer: 2, ..parts[1].clone() },
        ] {
            assert_eq!(inbox.take(&wrong, FREE), Taken::Refused, "{:?}", wrong.id);
        }
        assert_eq!(inbox.take(&parts[0], FREE), Taken::Incomplete);
        assert_eq!(inbox.take(&parts[1], FREE), Taken::Complete(5, vec![9; 2 * FRAGMENT]));
        assert_eq!(inbox.take(&parts[1], FREE), Taken::Repeated);
        let endless =
            |id, total| Fragment { id, expected: 0, transfer: 0, total, offset: 0, bytes: vec![0; FRAGMENT] };
        assert_eq!(inbox.take(&endless(6, BYTES as u32), FREE), Taken::Incomplete);
        assert_eq!(inbox.take(&endless(7, BYTES as u32), FREE), Taken::Refused, "the budget is used up");
    }

    /// Ids may lie as far apart as they like, but each gap between them is kept.
    #[test]
    fn gaps_between_ids_are_bounded() {
        for voids in [false, true] {
            let mut inbox = Inbox::default();
            let took = (0..2 * WINDOW).filter(|nth| {
                let id = nth * 1_000_000 + 7;
                if voids {
                    inbox.void(id)
                } else {
                    inbox.take(&fragments(id, 0, 0, b"x")[0], FREE) != Taken::Refused
                }
            });
            assert_eq!(took.count() as u64, WINDOW);
            assert_eq!(inbox.delivered.gaps() as u64, WINDOW);
        }
        let mut inbox = Inbox::default();
        let held = (0..2 * WINDOW).filter(|nth| !inbox.hold(nth * 1000)).count();
        assert_eq!(held as u64, WINDOW);
    }

    /// An unfinished notification counts once, although each order that is delivered behind one leaves a gap: a sender
    /// with all its notifications unfinished may go on with its orders.
    #[test]
    fn orders_are_taken_between_unfinished_notifications() {
        let mut inbox = Inbox::default();
        let order = |id| fragments(id, 0, 0, b"order").remove(0);
        for nth in 0..super::super::receipts::UNACKED {
            let late = fragments(2 * nth, 1, nth as u16, b"after a write").remove(0);
            assert_eq!(inbox.take(&late, FREE), Taken::Incomplete);
            let id = 2 * nth + 1;
            assert_eq!(inbox.take(&order(id), FREE), Taken::Complete(id, b"order".to_vec()));
        }
        let next = 2 * super::super::receipts::UNACKED;
        for id in next..next + WINDOW {
            assert_eq!(inbox.take(&order(id), FREE), Taken::Complete(id, b"order".to_vec()));
        }
        for nth in 0..super::super::receipts::UNACKED {
            assert_eq!(inbox.arrived(nth as u16, 0), Some(vec![(2 * nth, b"after a write".to_vec())]));
        }
        assert_eq!((inbox.sizes().0, inbox.delivered.gaps()), (0, 0));
    }

    /// A notification that is longer than the budget stands in nobody's way: the orders beside it are taken.
    #[test]
    fn orders_are_taken_beside_a_long_notification() {
        let longest = 2 * BYTES;
        let one = |id| fragments(id, 0, 0, &[1; 100]).remove(0);
        let unread = Limits { longest, unread: (1, longest), longest_unread: longest };
        assert_eq!(Inbox::default().take(&one(0), unread), Taken::Complete(0, vec![1; 100]));
        let (mut inbox, free) = (Inbox::default(), Limits { longest, ..FREE });
        let long = Fragment {
            id: 0,
            expected: 0,
            transfer: 0,
            total: longest as u32,
            offset: 0,
            bytes: vec![0; FRAGMENT],
        };
        assert_eq!(inbox.take(&long, free), Taken::Incomplete);
        assert_eq!(inbox.take(&one(1), free), Taken::Complete(1, vec![1; 100]));
        // The order arrives first, and waits for writes.
        let (mut inbox, order) = (Inbox::default(), fragments(1, 1, 1, &[1; 100]).remove(0));
        assert_eq!(inbox.take(&order, free), Taken::Incomplete);
        assert_eq!(inbox.take(&long, free), Taken::Incomplete);
    }

    /// The length that a fragment announces is not allocated before it has been compared with the limits.
    #[test]
    fn announced_lengths_and_what_is_unread_are_bounded() {
        let mut inbox = Inbox::default();
        let first =
            |id, total| Fragment { id, expected: 0, transfer: 0, total, offset: 0, bytes: vec![0; FRAGMENT] };
        let limits = Limits { longest: 1 << 20, ..FREE };
        assert_eq!(inbox.take(&first(0, u32::MAX), limits), Taken::Refused);
        assert_eq!(inbox.take(&first(0, (1 << 20) + 1), limits), Taken::Refused);
        assert_eq!(inbox.sizes(), (0, 0, 0));
        assert_eq!(inbox.take(&first(0, 1 << 20), limits), Taken::Incomplete);
        let full = Limits { unread: (WINDOW as usize - 1, 0), ..limits };
        assert_eq!(inbox.take(&first(1, 9000), full), Taken::Refused, "one too many");
        let full = Limits { unread: (1, BYTES - (1 << 20)), ..limits };
        assert_eq!(inbox.take(&first(1, 9000), full), Taken::Refused, "too many bytes");
        let long = Limits { unread: (1, 2 * BYTES), longest_unread: 2 * BYTES, ..limits };
        assert_eq!(inbox.take(&first(1, 9000), long), Taken::Refused, "too many beside a long one");
        let parts = fragments(1, 0, 0, &[5; 2 * FRAGMENT]);
        assert_eq!(inbox.take(&parts[0], limits), Taken::Incomplete);
        assert_eq!(inbox.take(&parts[1], limits), Taken::Complete(1, vec![5; 2 * FRAGMENT]));
        // It is acknowledged when the program has it, and again when its acknowledgement was lost.
        inbox.is_unread(1);
        assert_eq!(inbox.take(&parts[0], limits), Taken::Incomplete);
        assert!(inbox.was_read(1) && !inbox.was_read(1));
        assert_eq!(inbox.take(&parts[0], limits), Taken::Repeated);
    }
}
