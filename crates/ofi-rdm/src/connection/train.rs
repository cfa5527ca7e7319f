//! Rows of packets that differ only in their numbers: consecutive packets of a payload, made together.

use super::{Config, Connection};
use crate::driver::{Driver, GsoBatch, Heads};
use crate::time::Instant;
use crate::wire::handshake::PACKET_COST;
use crate::wire::header::{self, flag};
use crate::wire::{Header, Kind, Stream, frame};

impl Connection {
    /// Writes up to `most` more packets like the one just made to `buf`, if one part of a payload filled that packet.
    /// Returns their number. The payload's last part is left to a packet that may carry other frames too.
    pub fn train<D: Driver>(
        &mut self,
        now: Instant,
        config: &Config,
        peer: u32,
        most: usize,
        buf: &mut [u8],
        driver: &mut D,
    ) -> usize {
        let (checked, trailer) = (self.is_checked(config), self.trailer());
        let Some(session) = self.session.as_deref_mut().filter(|session| session.probes == 0) else {
            return 0;
        };
        let Some(last) = session.sent.last().filter(|last| last.at == now && !last.probe && !last.credit)
        else {
            return 0;
        };
        let (size, number) = (last.size, last.end());
        let (stream, carried) = match last.streams.each_ref() {
            [commands, bulk] if bulk.is_empty() => (Stream::Commands, commands.clone()),
            [commands, bulk] if commands.is_empty() => (Stream::Bulk, bulk.clone()),
            _ => return 0,
        };
        // The packet carries nothing but this.
        let bare = (header::LEN + frame::STREAM_LEN + trailer) as u64 + carried.end - carried.start;
        if last.count != 1 || bare != size || number != session.next_number {
            return 0;
        }
        let cost = session.in_flight + session.in_flight_packets * PACKET_COST;
        let credit = session.peer.in_flight.saturating_sub(cost).div_ceil(size + PACKET_COST);
        let window = session.controller.window().saturating_sub(session.counted()).div_ceil(size);
        let pace = session.pace();
        let paced = session.pacer.allows(now, pace) / size;
        let most = (most as u64).min(buf.len() as u64 / size).min(credit).min(window).min(paced);
        let Some(train) = self.sender.stream(stream).train(&carried, most) else { return 0 };

        let (count, len, stride) = (train.count as usize, size as usize, train.stride());
        let Some(bytes) = buf.get_mut(..count * len) else { return 0 };
        let sealed = if trailer > 0 { flag::SEALED } else { 0 };
        let flags = if checked { flag::CHECKED } else { sealed };
        let (token, at, part) = train.payload();
        let heads = Heads::new(&Header::new(Kind::Data, session.remote, number), stream, &train);
        driver.fill_row(peer, token, at, GsoBatch { bytes: &mut *bytes, len, part, heads });
        // Flags that only a full packet can have.
        if flags != 0 {
            for (number, packet) in (number..).zip(bytes.chunks_exact_mut(len)) {
                Header { flags, ..Header::new(Kind::Data, session.remote, number) }.write(packet);
                if let Some(protection) = self.protection.as_deref_mut() {
                    protection.seal(number, packet);
                }
            }
        }
        session.next_number += train.count;
        session.pacer.sent(now, train.count * size, pace);
        session.in_flight += train.count * size;
        session.in_flight_packets += train.count;
        if let Some(last) = session.sent.last_mut() {
            last.count += train.count;
            last.streams[stream as usize].end += train.count * stride;
        }
        self.stats.packets[0] += train.count;
        count
    }
}
