//! What acknowledgements say: what has arrived, and what is lost (RFC 9002, section 6.1).

use core::time::Duration;

use super::{Connection, Sent, Session};
use crate::stream::{Sender, Stream};
use crate::time::Instant;
use crate::wire::Ack;

/// Packets that may overtake another before it counts as lost.
const REORDERING: u64 = 3;
/// The longest delay of an acknowledgement that is believed.
const LONGEST_DELAY: Duration = Duration::from_millis(20);

impl Connection {
    /// Takes an acknowledgement. `false` if it is of packets that were never sent.
    pub(super) fn on_ack(&mut self, now: Instant, ack: &Ack<'_>) -> bool {
        let Some(session) = self.session.as_deref_mut() else { return true };
        if ack.largest >= session.next_number {
            return false;
        }
        let mut fresh = false;
        for run in ack.runs() {
            let run = run.start.max(session.first_sent)..run.end.min(session.next_number);
            for number in run {
                fresh |= session.acked(&mut self.sender, now, number, ack);
            }
        }
        if fresh {
            session.probe_count = 0;
            session.probes = 0;
            session.largest_acked = session.largest_acked.max(Some(ack.largest));
            self.stats.lost += session.find_lost(&mut self.sender, now);
        }
        session.forget();
        true
    }
}

impl Session {
    /// One packet has arrived. Whether that is news.
    fn acked(&mut self, sender: &mut Sender, now: Instant, number: u64, ack: &Ack<'_>) -> bool {
        let index = (number - self.first_sent) as usize;
        let limited = self.in_flight * 2 >= self.controller.window();
        let Some(sent) = self.sent.get_mut(index) else { return false };
        for (stream, range) in Stream::ALL.into_iter().zip(&mut sent.streams) {
            // Also of a packet that was taken for lost: its bytes need not be sent again.
            sender.stream(stream).ack(core::mem::replace(range, 0..0));
        }
        if !sent.in_flight {
            return false;
        }
        sent.in_flight = false;
        let (at, size, probe) = (sent.at, u64::from(sent.size), sent.probe);
        self.in_flight -= size;
        self.in_flight_packets -= 1;
        if number == ack.largest {
            let delay = Duration::from_micros(u64::from(ack.delay_us)).min(LONGEST_DELAY);
            self.rtt.sample(now.since(at), delay);
        }
        if probe {
            if self.size.on_probe_acked(size) {
                self.controller.set_packet_size(self.size.packet());
            }
        } else {
            self.controller.on_acked(now, at, size, limited);
        }
        true
    }

    /// Finds packets that are lost, and has their contents sent again. Answers how many there were.
    pub(super) fn find_lost(&mut self, sender: &mut Sender, now: Instant) -> u64 {
        self.loss_time = None;
        let Some(largest) = self.largest_acked else { return 0 };
        let delay = self.rtt.loss_delay();
        let (mut number, mut lost) = (self.first_sent, 0);
        while number < largest {
            let index = (number - self.first_sent) as usize;
            let Some(sent) = self.sent.get(index) else { break };
            if sent.in_flight {
                let by = sent.at + delay;
                if largest - number >= REORDERING || by <= now {
                    self.lose(sender, now, index);
                    lost += 1;
                } else {
                    self.loss_time = Some(self.loss_time.map_or(by, |before| before.min(by)));
                }
            }
            number += 1;
        }
        lost
    }

    fn lose(&mut self, sender: &mut Sender, now: Instant, index: usize) {
        let sent = &mut self.sent[index];
        sent.in_flight = false;
        let (at, size, probe) = (sent.at, u64::from(sent.size), sent.probe);
        self.in_flight -= size;
        self.in_flight_packets -= 1;
        self.tell_credit |= sent.credit;
        for (stream, range) in Stream::ALL.into_iter().zip(&sent.streams) {
            sender.stream(stream).lose(range.clone());
        }
        if probe {
            self.size.on_probe_lost(size, false);
        } else {
            self.controller.on_lost(now, at, size, self.rtt.shows_queue());
        }
    }

    /// Has what the oldest packets under way carry sent again, without taking them for lost.
    pub(super) fn repeat_oldest(&mut self, sender: &mut Sender) {
        let oldest = self.sent.iter().filter(|sent| sent.in_flight && !sent.probe).take(2);
        for Sent { streams, credit, .. } in oldest {
            self.tell_credit |= credit;
            for (stream, range) in Stream::ALL.into_iter().zip(streams) {
                sender.stream(stream).lose(range.clone());
            }
        }
    }

    /// Forgets packets of which nothing is to be learned any more. Those that were taken for lost are kept while younger ones are under way.
    pub(super) fn forget(&mut self) {
        while self.sent.front().is_some_and(|sent| !sent.in_flight) {
            self.sent.pop_front();
            self.first_sent += 1;
        }
    }
}
