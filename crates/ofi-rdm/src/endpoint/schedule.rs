//! Which peers are looked at, and when: those that may have something to send stand in a queue, those to which time
//! means something in a heap. So peers at rest cost nothing but their memory, and little of that.

use core::cmp::Reverse;

use super::Endpoint;
use crate::driver::Driver;
use crate::time::Instant;

impl Endpoint {
    /// Something has happened with a peer: it may have something to send, and time means something to it.
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

    /// A peer will be asked for packets.
    pub(super) fn enqueue(&mut self, peer: u32) {
        let connection = &mut self.peers[peer as usize];
        if !core::mem::replace(&mut connection.queued, true) {
            self.ready.push_back(peer);
        }
    }

    /// Makes sure that a peer is looked at when it has to be.
    pub(super) fn set_timer(&mut self, peer: u32) {
        let connection = &mut self.peers[peer as usize];
        let Some(time) = connection.timeout(&self.config) else { return };
        if connection.timer.is_none_or(|timer| time < timer) {
            connection.timer = Some(time);
            self.timers.push(Reverse((time, peer)));
        }
    }

    /// The next peer to be looked at, and when; entries that are stale or early are put right.
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

    /// A peer has nothing to send; if time means nothing to it either, it is not looked at any more.
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

    /// Peers that have been at rest longer than so many others give back the memory that they do not need for it.
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

    /// Reacts to the passing of time. To be called now and then in any case, and at [`Endpoint::poll_timeout`].
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
            if let Err(reason) = self.peers[peer as usize].on_time(now, &self.config)
                && !self.peers[peer as usize].closed
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
