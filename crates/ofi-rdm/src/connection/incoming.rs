//! Rows of packets that arrive as they were sent: each packet is the next in sequence and has only stream bytes. A row
//! avoids the per-packet work that other packets need.

use super::{ACK_EVERY, Config, Connection};
use crate::driver::{Driver, Lost};
use crate::stream::{Flow, Refused};
use crate::time::Instant;
use crate::wire::{Frame, Header, Record, Stream, header};

/// Packets of a row whose records are offered to the driver together.
const TOGETHER: usize = 64;

/// A packet that contains only stream bytes.
struct Plain<'a> {
    urgent: bool,
    stream: Stream,
    offset: u64,
    bytes: &'a [u8],
}

impl<'a> Plain<'a> {
    /// Parses `packet` if it is packet `number` of the session and plain.
    #[inline]
    fn of(packet: &'a [u8], session: u64, number: u64) -> Option<Self> {
        let (flags, _) = Header::of_data(packet, session).filter(|&(_, found)| found == number)?;
        let (stream, offset, bytes) = Frame::only_data(&packet[header::LEN..])?;
        Some(Self { urgent: flags & header::flag::URGENT != 0, stream, offset, bytes })
    }
}

impl Connection {
    /// Takes plain packets of `len` bytes each off the front of `row`. Returns the number of bytes taken. The next
    /// packet is not plain, and [`Connection::on_data`] must handle it. If payloads were `placed` elsewhere, takes only
    /// packets whose payload need not be read.
    ///
    /// # Errors
    /// Why the session ended.
    pub fn on_row<D: Driver>(
        &mut self,
        now: Instant,
        config: &Config,
        peer: u32,
        (row, len, placed): (&[u8], usize, bool),
        driver: &mut D,
    ) -> Result<usize, Lost> {
        if self.trailer() > 0 || self.is_checked(config) {
            return Ok(0);
        }
        self.thaw();
        let local = self.local;
        let Some(session) = self.session.as_deref_mut() else { return Ok(0) };
        let first = session.received.last().map_or(0, |run| run.end);
        let (mut next, mut urgent, mut rest) = (first, false, row);
        let mut records = [Record { kind: 0, flags: 0, body: &[] }; TOGETHER];
        while let Some(head) = rest.get(..len).and_then(|packet| Plain::of(packet, local, next)) {
            let (stream, stride) = (head.stream, head.bytes.len());
            let (sender, receive) = (&mut self.sender, &mut session.receive[stream as usize]);
            // Read all heads before payloads are copied, so that their cache misses overlap.
            let mut whole = 0;
            for ((packet, number), record) in rest.chunks_exact(len).zip(next..).zip(&mut records) {
                let plain = Plain::of(packet, local, number).filter(|plain| plain.stream == stream);
                let Some(plain) = plain else { break };
                let before = (whole * stride) as u64;
                let Some(found) = receive.whole(before, plain.offset, plain.bytes) else { break };
                *record = found;
                urgent |= plain.urgent;
                whole += 1;
            }
            let mut taken = 0;
            while taken < whole {
                match driver.records(peer, sender, stream, &records[taken..whole]) {
                    (count, Flow::Next) => taken += count.clamp(1, whole - taken),
                    (_, Flow::Stop) => break,
                    (_, Flow::Broken) => return Err(Lost::Broken),
                }
            }
            receive.took((taken * stride) as u64);
            if !placed
                && (whole == 0 || taken < whole)
                && let Some(packet) = rest.chunks_exact(len).nth(taken)
                && let Some(plain) = Plain::of(packet, local, next + taken as u64)
            {
                // A part of a record, or a record that has to wait: store its bytes.
                let mut take = |record: Record<'_>| driver.record(peer, sender, stream, record);
                match receive.receive(plain.offset, plain.bytes, &mut take) {
                    Ok(()) => {
                        urgent |= plain.urgent;
                        taken += 1;
                    }
                    Err(Refused::Crowded) => {} // the next: `on_data` counts it
                    Err(Refused::Violation) => return Err(Lost::Broken),
                }
            }
            (next, rest) = (next + taken as u64, &rest[taken * len..]);
            if taken == 0 {
                break;
            }
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
    /// Records that `count` packets that ask for an acknowledgement arrived. `urgent`: send it at once.
    pub(super) fn on_eliciting(&mut self, now: Instant, config: &Config, count: u64, urgent: bool) {
        self.unacked = self.unacked.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        self.ack_now |= urgent || self.quick || self.unacked >= ACK_EVERY;
        let by = now + config.ack_delay;
        self.ack_by = Some(self.ack_by.map_or(by, |before| before.min(by)));
    }
}
