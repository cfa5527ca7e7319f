//! Unsignaled requests, whose success the device does not report. No operation waits for them, and a completion would
//! cost the device a write and this end a poll.
//!
//! A queue pair executes its requests in order, so a quiet one has ended when a later one is reported. The device
//! always reports a failed request, which ends the connection.

use std::collections::VecDeque;

use ofi_core::slots::SlotId;

/// The quiet requests of a queue pair, oldest first, by their numbers among all of its requests.
#[derive(Default)]
pub struct Quiet {
    posted: VecDeque<(u64, SlotId)>,
    next: u64,
}

impl Quiet {
    /// The number of the next request, quiet or not.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Whether one more request may be quiet, on a queue of `requests`. Most of them are reported, so that a report is
    /// always due.
    pub fn has_room(&self, requests: usize) -> bool {
        self.posted.len() < requests / 4
    }

    /// Whether there are quiet requests, and all `requests` in flight are quiet, so that no report is due.
    pub fn is_all(&self, requests: usize) -> bool {
        !self.posted.is_empty() && self.posted.len() == requests
    }

    /// Number of quiet requests.
    pub fn len(&self) -> usize {
        self.posted.len()
    }

    /// The number of the newest quiet request.
    pub fn newest(&self) -> Option<u64> {
        self.posted.back().map(|&(number, _)| number)
    }

    /// Adds a posted quiet request.
    pub fn push(&mut self, number: u64, id: SlotId) {
        self.posted.push_back((number, id));
    }

    /// The oldest quiet request, if the report of request `number` shows that it has ended.
    pub fn pop_before(&mut self, number: u64) -> Option<SlotId> {
        let (_, id) = self.posted.pop_front_if(|&mut (own, _)| own < number)?;
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use ofi_core::slots::Slots;

    use super::*;

    #[test]
    fn quiet_requests_have_ended_when_a_later_one_has() {
        let (mut slots, mut quiet) = (Slots::default(), Quiet::default());
        let mut ids = Vec::new();
        for _ in 0..3 {
            let (number, id) = (quiet.number(), slots.insert(()));
            quiet.push(number, id);
            ids.push(id);
        }
        let reported = quiet.number();
        let (number, later) = (quiet.number(), slots.insert(()));
        quiet.push(number, later);
        let mut ended = Vec::new();
        while let Some(id) = quiet.pop_before(reported) {
            ended.push(id);
        }
        assert_eq!(
            ended.iter().map(|id| id.to_wire()).collect::<Vec<_>>(),
            ids.iter().map(|id| id.to_wire()).collect::<Vec<_>>()
        );
        assert!(quiet.is_all(1) && !quiet.is_all(2), "one was posted after the report");
        let last = quiet.number();
        assert!(quiet.pop_before(last).is_some() && !quiet.is_all(0));
    }

    #[test]
    fn most_of_a_queue_is_reported() {
        let (mut slots, mut quiet) = (Slots::default(), Quiet::default());
        let mut posted = 0;
        while quiet.has_room(96) {
            let number = quiet.number();
            quiet.push(number, slots.insert(()));
            posted += 1;
        }
        assert_eq!(posted, 24);
    }
}
