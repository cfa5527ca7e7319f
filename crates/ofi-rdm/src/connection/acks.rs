//! Processes acknowledgements: which packets arrived, and which are lost (RFC 9002, section 6.1).

use core::ops::Range;
use core::time::Duration;

use super::{Connection, Session};
use crate::driver::{Driver, Sign};
use crate::stream::Sender;
use crate::time::Instant;
use crate::wire::{Ack, Stream};

/// A packet is lost once this many later packets were acknowledged.
const REORDERING: u64 = 3;
/// Acknowledgements repeat this many packet numbers below the highest acknowledged one. Packets overtaken by more than
/// these count as received.
const REPEATED_NUMBERS: u64 = 128;
/// After this many probe timeouts in a row, a round-trip sample is not attributed to the path. The second number says
/// how many such samples in a row are ignored.
const SILENCE: u32 = 2;
const ODD_SAMPLES: u8 = 4;
/// The maximum acknowledgement delay that is accepted from a peer; longer ones are clamped to it.
const MAX_ACK_DELAY: Duration = Duration::from_millis(20);

impl Connection {
    /// Processes an acknowledgement. `false` if it covers packets that were never sent, or skipped numbers.
    pub(super) fn on_ack<D: Driver>(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
        peer: u32,
        driver: &mut D,
    ) -> bool {
        let Some(session) = self.session.as_deref_mut() else { return true };
        let is_acked =
            |number| ack.runs().take_while(|run| run.end > number).any(|run| run.contains(&number));
        if ack.largest >= session.next_number || session.skips.last().is_some_and(is_acked) {
            return false;
        }
        let oldest = session.sent.get(0).map_or(session.next_number, |sent| sent.first);
        let mut fresh = false;
        for run in ack.runs().take_while(|run| run.end > oldest) {
            fresh |= session.acked(&mut self.sender, now, run, ack);
        }
        let mut lost = 0;
        if fresh {
            (session.probe_count, session.unanswered) = (0, 0);
            session.probes = 0;
            session.largest_acked = session.largest_acked.max(Some(ack.largest));
            session.end_silence(now);
            lost = session.find_lost(&mut self.sender, now);
        }
        session.sent.forget();
        if lost > 0 {
            self.has_lost(lost, peer, driver);
        }
        true
    }

    #[cold]
    fn has_lost<D: Driver>(&mut self, count: u64, peer: u32, driver: &mut D) {
        self.stats.lost += count;
        if self.was_cut() {
            driver.congested(peer, Sign::Lost, self.late());
        }
    }

    /// Whether losses have reduced the congestion window since the last call.
    pub fn was_cut(&mut self) -> bool {
        self.session.as_deref_mut().is_some_and(|session| core::mem::take(&mut session.is_cut))
    }
}

impl Session {
    /// Marks a run of packet numbers as arrived. Returns whether any of them is new.
    fn acked(&mut self, sender: &mut Sender, now: Instant, run: Range<u64>, ack: &Ack<'_>) -> bool {
        let (mut index, mut fresh) = (self.sent.find(run.start), false);
        while let Some(sent) = self.sent.get(index).filter(|sent| sent.first < run.end) {
            // Packets presumed lost count too: their bytes no longer need retransmission.
            if sent.in_flight || sent.streams.iter().any(|range| !range.is_empty()) {
                index = self.sent.isolate(index, &run);
                fresh |= self.acked_run(sender, now, index, ack);
            }
            index += 1;
        }
        fresh
    }

    fn acked_run(&mut self, sender: &mut Sender, now: Instant, index: usize, ack: &Ack<'_>) -> bool {
        let limited = self.in_flight * 2 >= self.controller.window();
        let Some(sent) = self.sent.get_mut(index) else { return false };
        for (stream, range) in Stream::ALL.into_iter().zip(&mut sent.streams) {
            sender.stream(stream).ack(core::mem::replace(range, 0..0));
        }
        if !core::mem::take(&mut sent.in_flight) {
            return false;
        }
        let (at, bytes, probe, told) = (sent.at, sent.bytes(), sent.probe, sent.told);
        self.forget_told(told);
        let Some(sent) = self.sent.get(index) else { return false };
        self.in_flight -= bytes;
        self.in_flight_packets -= sent.count;
        self.vanishing.on_acked(sent.size);
        if sent.end() == ack.largest + 1 {
            self.largest_left = at;
            // After a silence, the sample measures the silence. If the path's round trip really became that long, more
            // such samples follow.
            if self.probe_count >= SILENCE && self.odd_samples < ODD_SAMPLES && self.rtt.least().is_some() {
                self.odd_samples += 1;
            } else {
                let delay = Duration::from_micros(u64::from(ack.delay_us)).min(MAX_ACK_DELAY);
                self.rtt.sample(now.since(at), delay);
                self.odd_samples = 0;
            }
        }
        if probe {
            if self.size.on_probe_acked(bytes) {
                self.controller.set_packet_size(self.size.packet());
            }
        } else {
            self.controller.on_acked(now, at, bytes, limited);
        }
        true
    }

    /// Ends a silence, if there was one.
    pub(super) fn end_silence(&mut self, now: Instant) {
        if core::mem::take(&mut self.changed) {
            self.controller.on_heard(now);
        }
    }

    /// Records that the peer knows that numbers up to `told` have arrived. Acknowledgements need not repeat numbers far
    /// below that, nor report gaps among them.
    fn forget_told(&mut self, told: u64) {
        let below = told.saturating_sub(REPEATED_NUMBERS);
        if below > self.floor {
            self.received.remove(0..below);
            self.floor = below;
        }
    }

    /// Finds lost packets and queues their contents for retransmission. Returns their number.
    pub(super) fn find_lost(&mut self, sender: &mut Sender, now: Instant) -> u64 {
        self.loss_time = None;
        let Some(largest) = self.largest_acked else { return 0 };
        let delay = self.rtt.loss_delay();
        let (mut index, mut lost) = (0, 0);
        while let Some(sent) = self.sent.get(index).filter(|sent| sent.first < largest) {
            if sent.in_flight {
                let by = sent.at + delay;
                // Within a run, enough later packets may have overtaken the first packets, but not the last ones.
                let below = if by <= now { largest } else { (largest + 1).saturating_sub(REORDERING) };
                let numbers = sent.first..below.min(sent.end());
                if !numbers.is_empty() {
                    index = self.sent.isolate(index, &numbers);
                    lost += self.lose(sender, now, index);
                } else {
                    self.loss_time = Some(self.loss_time.map_or(by, |before| before.min(by)));
                }
            }
            index += 1;
        }
        lost
    }

    /// Marks the packets of a run as lost. Returns their number.
    fn lose(&mut self, sender: &mut Sender, now: Instant, index: usize) -> u64 {
        let Some(sent) = self.sent.get_mut(index) else { return 0 };
        sent.in_flight = false;
        let (at, bytes, count, probe, size) = (sent.at, sent.bytes(), sent.count, sent.probe, sent.size);
        self.in_flight -= bytes;
        self.in_flight_packets -= count;
        self.tell_credit |= sent.credit;
        for (stream, range) in Stream::ALL.into_iter().zip(&sent.streams) {
            sender.stream(stream).lose(range.clone());
        }
        if probe {
            self.size.on_probe_lost(bytes, false);
        } else {
            let window = self.controller.window();
            self.controller.on_lost(now, at, bytes, self.rtt.shows_queue());
            self.is_cut |= self.controller.window() < window;
            if self.vanishing.on_lost(now, at, size) && self.size.on_black_hole() {
                self.controller.set_packet_size(self.size.packet());
            }
        }
        count
    }

    /// Queues the contents of the two oldest packets in flight for retransmission without treating them as lost.
    pub(super) fn repeat_oldest(&mut self, sender: &mut Sender) {
        let mut left = 2;
        for sent in self.sent.iter().filter(|sent| sent.in_flight && !sent.probe) {
            if left == 0 {
                return;
            }
            self.tell_credit |= sent.credit;
            for (stream, range) in Stream::ALL.into_iter().zip(sent.carried(left)) {
                sender.stream(stream).lose(range);
            }
            left -= left.min(sent.count);
        }
    }
}
