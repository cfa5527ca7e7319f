//! Schedules peers: those that may have something to send are in a queue, those with a timer in a heap. Peers at rest
//! cost only a little memory.

use core::cmp::Reverse;

use super::Endpoint;
use crate::driver::{Driver, Sign};
use crate::time::Instant;

impl Endpoint {
    /// Schedules a peer after an event: it may have something to send, and may have a timer.
    pub(super) fn activate(&mut self, now: Instant, peer: u32) {
        let Some(connection) = self.peers.get_mut(peer as usize) else { return };
        if connection.place.is_none() {
            connection.place = Some(self.active.len() as u32);
            connection.wake(now);
            self.active.push(peer);
        }
        self.enqueue(peer);
        self.set_timer(peer);
    }

    /// Queues a peer to be asked for packets.
    pub(super) fn enqueue(&mut self, peer: u32) {
        let connection = &mut self.peers[peer as usize];
        if !core::mem::replace(&mut connection.queued, true) {
            self.ready.push_back(peer);
        }
    }

    /// Ensures that a peer is processed when its timer expires.
    pub(super) fn set_timer(&mut self, peer: u32) {
        let connection = &mut self.peers[peer as usize];
        let Some(time) = connection.timeout(&self.config) else { return };
        if connection.timer.is_none_or(|timer| time < timer) {
            connection.timer = Some(time);
            self.timers.push(Reverse((time, peer)));
        }
    }

    /// The next peer with a timer, and its time. Corrects entries that are stale or early.
    fn next_timer(&mut self) -> Option<(Instant, u32)> {
        while let Some(&Reverse((time, peer))) = self.timers.peek() {
            let connection = &mut self.peers[peer as usize];
            if connection.timer == Some(time) {
                let real = connection.timeout(&self.config);
                if real == Some(time) {
                    return Some((time, peer));
                }
                connection.timer = real;
                self.timers.pop();
                if let Some(real) = real {
                    self.timers.push(Reverse((real, peer)));
                }
                continue;
            }
            self.timers.pop();
        }
        None
    }

    /// Handles a peer that has nothing to send. Without a timer, it is also removed from the active peers.
    pub(super) fn rest(&mut self, peer: u32) {
        let connection = &mut self.peers[peer as usize];
        if connection.is_quiet()
            && let Some(place) = connection.place.take()
        {
            self.active.swap_remove(place as usize);
            if let Some(&moved) = self.active.get(place as usize) {
                self.peers[moved as usize].place = Some(place);
            }
            self.keep_few_warm(peer);
        }
    }

    /// Compacts the sessions of the peers that have rested longest, beyond the configured number.
    fn keep_few_warm(&mut self, peer: u32) {
        if core::mem::replace(&mut self.peers[peer as usize].resting, true) {
            return;
        }
        self.resting.push_back(peer);
        if self.resting.len() > self.config.warm_peers
            && let Some(longest) = self.resting.pop_front()
        {
            let connection = &mut self.peers[longest as usize];
            connection.resting = false;
            if connection.place.is_none() {
                connection.freeze();
            }
        }
    }

    /// Handles the passing of time. Call it now and then in any case, and at [`Endpoint::poll_timeout`].
    pub fn handle_time<D: Driver>(&mut self, now: Instant, driver: &mut D) {
        let mut due = core::mem::take(&mut self.due);
        while let Some((time, peer)) = self.next_timer()
            && time <= now
        {
            self.timers.pop();
            self.peers[peer as usize].timer = None;
            due.push(peer);
        }
        for peer in due.drain(..) {
            let connection = &mut self.peers[peer as usize];
            let probes = connection.stats.probes;
            let was_silent = connection.is_silent();
            let ended = connection.on_time(now, &self.config);
            if connection.was_cut() {
                driver.congested(peer, Sign::Lost, connection.late());
            }
            if connection.stats.probes != probes {
                driver.timed_out(peer, connection.late());
            }
            if connection.is_silent() && !was_silent {
                driver.congested(peer, Sign::Silent, connection.late());
            }
            if let Err(reason) = ended
                && !connection.closed
            {
                self.lose(peer, reason, driver);
            }
            self.activate(now, peer);
        }
        self.due = due;
    }

    /// When [`Endpoint::handle_time`] has something to do.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.next_timer().map(|(time, _)| time)
    }
}
