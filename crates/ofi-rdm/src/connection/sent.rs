//! Records of sent packets, kept as runs so that a train of packets costs as much as one packet.

use alloc::collections::VecDeque;
use core::ops::Range;

use crate::time::Instant;

/// Packets with consecutive numbers that were sent together. They all have the same length, and the same number of
/// bytes of each stream.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// The number of the first.
    pub first: u64,
    /// Number of packets.
    pub count: u64,
    pub at: Instant,
    /// Bytes of each packet.
    pub size: u64,
    /// Neither acknowledged nor presumed lost.
    pub in_flight: bool,
    /// The bytes of both streams in all packets together. Empty once they have arrived.
    pub streams: [Range<u64>; 2],
    pub credit: bool,
    pub probe: bool,
    /// One more than the highest number that the packets acknowledge, 0 if none.
    pub told: u64,
}

impl Sent {
    /// One more than the number of the last.
    pub fn end(&self) -> u64 {
        self.first + self.count
    }

    /// Total bytes.
    pub fn bytes(&self) -> u64 {
        self.size * self.count
    }

    /// The stream bytes in the first `count` packets.
    pub fn carried(&self, count: u64) -> [Range<u64>; 2] {
        let count = count.min(self.count);
        self.streams
            .each_ref()
            .map(|range| range.start..range.start + (range.end - range.start) / self.count * count)
    }

    /// Keeps the first `count` packets and returns the others.
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

/// The records of one session's sent packets, lowest numbers first. Packets that asked for no acknowledgement are not
/// recorded.
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
        // Acknowledgements are mostly about the oldest packets.
        if self.0.front().is_none_or(|sent| sent.end() > number) {
            return 0;
        }
        self.0.partition_point(|sent| sent.end() <= number)
    }

    /// Splits run `index` so that its intersection with `numbers`, which must not be empty, becomes a run of its own.
    /// Returns the index of that run.
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

    /// Drops records that no longer matter. A packet presumed lost is kept while older ones are in flight.
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
