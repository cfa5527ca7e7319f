//! Rows of packets that come in as they were sent: each the next one, with nothing but bytes of a stream. They are taken without
//! what others need for each packet.

use super::{ACK_EVERY, Config, Connection, Lost};
use crate::endpoint::Driver;
use crate::time::Instant;
use crate::wire::{Frame, Header, header};

impl Connection {
    /// Takes packets off the front of `row`, in which each has `len` bytes, as long as they are of that kind. Answers how many
    /// bytes they are: whatever is wrong with the next one is for [`Connection::on_data`] to find.
    ///
    /// # Errors
    /// Why the session is over.
    pub fn on_row<D: Driver>(
        &mut self,
        now: Instant,
        config: &Config,
        peer: u32,
        (row, len): (&[u8], usize),
        driver: &mut D,
    ) -> Result<usize, Lost> {
        if self.trailer() > 0 || self.is_checked(config) {
            return Ok(0);
        }
        self.thaw();
        let local = self.local;
        let Some(session) = self.session.as_deref_mut() else { return Ok(0) };
        let first = session.received.last().map_or(0, |run| run.end);
        let (mut next, mut urgent) = (first, false);
        let (sender, receive) = (&mut self.sender, &mut session.receive);
        for packet in row.chunks_exact(len) {
            let Some((flags, number)) = Header::of_data(packet, local) else { break };
            let Some((stream, offset, bytes)) = Frame::only_data(&packet[header::LEN..]) else { break };
            if number != next {
                break;
            }
            receive[stream as usize]
                .receive(offset, bytes, &mut |record| driver.record(peer, sender, stream, record))
                .map_err(|_| Lost::Broken)?;
            next += 1;
            urgent |= flags & header::flag::URGENT != 0;
        }
        let count = next - first;
        if count == 0 {
            return Ok(0);
        }
        session.received.insert(first..next);
        session.largest_at = now;
        session.on_eliciting(now, config, count, urgent);
        self.hear(now);
        self.stats.packets[1] += count;
        Ok(count as usize * len)
    }
}

impl super::Session {
    /// `count` packets have come that ask for an acknowledgement; `urgent`: at once.
    pub(super) fn on_eliciting(&mut self, now: Instant, config: &Config, count: u64, urgent: bool) {
        self.unacked = self.unacked.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        self.ack_now |= urgent || self.quick || self.unacked >= ACK_EVERY;
        let by = now + config.ack_delay;
        self.ack_by = Some(self.ack_by.map_or(by, |before| before.min(by)));
    }
}
