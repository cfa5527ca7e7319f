//! What was sent and is not forgotten yet: packets in runs, so that a train of them costs what one costs.

use alloc::collections::VecDeque;
use core::ops::Range;

use crate::time::Instant;

/// Packets with numbers one behind the other that left together: all of one length, each with as many bytes of each
/// stream.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// The number of the first.
    pub first: u64,
    /// How many they are.
    pub count: u64,
    pub at: Instant,
    /// Bytes of each.
    pub size: u64,
    /// Neither acknowledged nor taken for lost.
    pub in_flight: bool,
    /// The bytes of both streams that they carry, all together; none of those that have arrived.
    pub streams: [Range<u64>; 2],
    pub credit: bool,
    pub probe: bool,
    /// One more than the highest number that they acknowledge, 0 if none.
    pub told: u64,
}

impl Sent {
    /// One more than the number of the last.
    pub fn end(&self) -> u64 {
        self.first + self.count
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.size * self.count
    }

    /// The bytes of streams in the first `count` of them.
    pub fn carried(&self, count: u64) -> [Range<u64>; 2] {
        let count = count.min(self.count);
        self.streams
            .each_ref()
            .map(|range| range.start..range.start + (range.end - range.start) / self.count * count)
    }

    /// Keeps the first `count`; answers the others.
    fn split_off(&mut self, count: u64) -> Self {
        let kept = self.carried(count);
        let mut rest = self.clone();
        (rest.first, rest.count) = (self.first + count, self.count - count);
        for (rest, kept) in rest.streams.iter_mut().zip(&kept) {
            rest.start = kept.end;
        }
        (self.count, self.streams) = (count, kept);
        rest
    }
}

/// See the module. Lowest numbers first; numbers of packets that asked for no acknowledgement are missing.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Sent>);

impl History {
    pub const fn new() -> Self {
        Self(VecDeque::new())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn push(&mut self, sent: Sent) {
        self.0.push_back(sent);
    }

    /// The youngest.
    pub fn last(&self) -> Option<&Sent> {
        self.0.back()
    }

    /// The youngest.
    pub fn last_mut(&mut self) -> Option<&mut Sent> {
        self.0.back_mut()
    }

    pub fn get(&self, index: usize) -> Option<&Sent> {
        self.0.get(index)
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut Sent> {
        self.0.get_mut(index)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Sent> {
        self.0.iter()
    }

    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Sent> {
        self.0.iter_mut()
    }

    /// The first run that does not end at or below `number`.
    pub fn find(&self, number: u64) -> usize {
        // The oldest ones are what acknowledgements are about.
        if self.0.front().is_none_or(|sent| sent.end() > number) {
            return 0;
        }
        self.0.partition_point(|sent| sent.end() <= number)
    }

    /// Makes what run `index` has in common with `numbers` a run of its own, and answers where that is. They have
    /// something in common.
    pub fn isolate(&mut self, mut index: usize, numbers: &Range<u64>) -> usize {
        if let Some(sent) = self.0.get_mut(index).filter(|sent| sent.first < numbers.start) {
            let rest = sent.split_off(numbers.start - sent.first);
            index += 1;
            self.0.insert(index, rest);
        }
        if let Some(sent) = self.0.get_mut(index).filter(|sent| sent.end() > numbers.end) {
            let rest = sent.split_off(numbers.end - sent.first);
            self.0.insert(index + 1, rest);
        }
        index
    }

    /// Forgets what nothing is to be learned of any more. What was taken for lost is kept while older ones are under
    /// way.
    pub fn forget(&mut self) {
        while self.0.front().is_some_and(|sent| !sent.in_flight) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_run_is_cut_where_it_is_to_be_and_each_packet_keeps_its_bytes() {
        let run = Sent {
            first: 10,
            count: 5,
            at: Instant::default(),
            size: 1_452,
            in_flight: true,
            streams: [0..0, 100..150],
            credit: false,
            probe: false,
            told: 0,
        };
        for start in 10..15 {
            for end in start + 1..=15 {
                let mut history = History::new();
                history.push(run.clone());
                assert_eq!((history.find(9), history.find(14), history.find(15)), (0, 0, 1));
                let index = history.isolate(0, &(start..end));
                let all: Vec<_> =
                    history.iter().map(|sent| (sent.first..sent.end(), &sent.streams)).collect();
                assert_eq!(all[index].0, start..end);
                let mut next = 10;
                for (numbers, [commands, bulk]) in all.iter().map(|(numbers, streams)| (numbers, *streams)) {
                    assert_eq!((numbers.start, commands), (next, &(0..0)));
                    let bytes = |number: u64| 100 + (number - 10) * 10;
                    assert_eq!(*bulk, bytes(numbers.start)..bytes(numbers.end));
                    next = numbers.end;
                }
                assert_eq!(next, 15);
                assert_eq!(history.get(index).unwrap().bytes(), (end - start) * 1_452);
                assert_eq!(history.get(index).unwrap().carried(1)[1].clone().count(), 10);
            }
        }
    }
}
