//! Assembles a packet: writes the frames that a session has to send, in order.

use core::ops::Range;

use super::sent::Sent;
use super::{BASE_PACKET, Config, Session};
use crate::stream::Senders;
use crate::time::Instant;
use crate::wire::handshake::PACKET_COST;
use crate::wire::{Frame, Stream, frame, header};

/// Packets with room for this many bytes are long: in them, a long part of a payload comes first, so that its position
/// does not depend on what else the packet carries.
const LONG: usize = 8192;
/// Bytes of a long packet that the part leaves free for an acknowledgement, limits, and a short record of the other
/// stream.
const TAIL: usize = 128;
/// An acknowledgement of this many runs of received packets fits there. A longer one comes first.
const FEW_RUNS: usize = 8;
/// After this many probe timeouts, each further timeout sends one short packet among its packets.
const SHORT_AFTER: u32 = 2;

/// A packet that is being assembled in the driver's buffer.
pub(super) struct Draft<'a> {
    pub buf: &'a mut [u8],
    /// Bytes written so far, including the header.
    pub at: usize,
    /// Capacity in bytes.
    room: usize,
    /// Whether the packet asks for an acknowledgement.
    is_eliciting: bool,
    /// Whether the packet probes the path for packets of its length.
    pub is_probe: bool,
    /// Whether a payload ends in the packet.
    pub ends_payload: bool,
    tells_credit: bool,
    /// Packets that arrived with a congestion mark.
    pub marks: u64,
    /// One more than the highest number that the packet acknowledges.
    told: u64,
    /// The stream bytes in the packet.
    streams: [Range<u64>; 2],
}

impl<'a> Draft<'a> {
    pub fn new(buf: &'a mut [u8], room: usize) -> Self {
        Self {
            buf,
            at: header::LEN,
            room,
            is_eliciting: false,
            is_probe: false,
            ends_payload: false,
            tells_credit: false,
            marks: 0,
            told: 0,
            streams: [0..0, 0..0],
        }
    }

    /// Records that a frame of `len` bytes with bytes of a stream was written.
    fn carried(&mut self, senders: &mut Senders, stream: Stream, bytes: Range<u64>, len: usize) {
        self.at += len;
        self.streams[stream as usize] = bytes;
        self.is_eliciting = true;
        self.ends_payload |= senders.stream(stream).ends_with_payload();
    }

    /// Whether the packet has no frames.
    pub fn is_empty(&self) -> bool {
        self.at == header::LEN
    }
}

/// What a session may send now.
pub(super) struct Allowance {
    /// Stream bytes, if there are any.
    pub data: bool,
    /// The peer accepts more bytes.
    pub credit: bool,
    /// Whether data, if there is any, would wait for credit or the window.
    pub stalls: bool,
}

impl Session {
    /// The maximum number of bytes of the next packet.
    pub(super) fn packet_size(&self) -> u64 {
        // The second of two packets after a timeout has a size that every path carries. If only that one arrives, the
        // path's limit has shrunk.
        let short = self.probes == 1 && self.probe_count >= SHORT_AFTER;
        if short { self.size.packet().min(BASE_PACKET) } else { self.size.packet() }
    }

    /// Determines what may be sent. `wants`: there are stream bytes to send.
    pub(super) fn allowance(&mut self, now: Instant, wants: bool) -> Allowance {
        let cost = self.in_flight + self.in_flight_packets * PACKET_COST;
        // One packet may always be in flight, whatever the peer has granted.
        let credit = cost < self.peer.in_flight || self.in_flight_packets == 0;
        let room = credit && self.counted() < self.controller.window();
        let pace = self.pace();
        let allowed = room && wants && self.pacer.allows(now, pace) > 0;
        let beyond = !allowed && self.farewell > 0;
        let may = allowed || self.probes > 0 || beyond;
        let data = wants && may;
        self.farewell -= u32::from(data && beyond);
        Allowance { data, credit, stalls: !room && !may }
    }

    /// Whether the peer must be told new limits.
    fn has_new_limit(&self) -> bool {
        self.tell_credit || self.receive.iter().any(|stream| stream.new_limit().is_some())
    }

    /// Acknowledges received packets if that is due, or if the packet carries data anyway.
    pub(super) fn acknowledge(&mut self, now: Instant, config: &Config, data: bool, draft: &mut Draft<'_>) {
        if data && now.since(self.largest_at) <= config.ack_delay {
            self.quick = false; // a reply: a delayed acknowledgement would have travelled with it
        }
        if self.unacked == 0 && !self.ack_now {
            return;
        }
        let due = self.ack_now || self.ack_by.is_some_and(|by| by <= now);
        let goes_along = data || self.probes > 0 || self.has_new_limit();
        if !due && !goes_along {
            return;
        }
        let delay = u32::try_from(now.since(self.largest_at).as_micros()).unwrap_or(u32::MAX);
        let to = &mut draft.buf[draft.at..draft.room];
        let Some(len) = frame::write_ack(to, &self.received, delay) else { return };
        draft.at += len;
        if let count @ 1.. = draft.marks {
            // Without room here, the next acknowledgement reports it.
            let to = &mut draft.buf[draft.at..draft.room];
            draft.at += Frame::Marks { count }.write(to).unwrap_or(0);
        }
        draft.told = self.received.last().map_or(0, |run| run.end);
        self.quick |= !goes_along && !self.ack_now;
        (self.unacked, self.ack_now, self.ack_by) = (0, false, None);
    }

    /// Tells the peer how much more it may send on each stream, if that changed.
    pub(super) fn tell_limits(&mut self, draft: &mut Draft<'_>) {
        if draft.room - draft.at < 2 * frame::CREDIT_LEN || !self.has_new_limit() {
            return;
        }
        self.tell_credit = false;
        for (stream, receive) in Stream::ALL.into_iter().zip(&mut self.receive) {
            let limit = receive.tell_limit();
            let to = &mut draft.buf[draft.at..draft.room];
            draft.at += Frame::Credit { stream, limit }.write(to).unwrap_or(0);
        }
        (draft.is_eliciting, draft.tells_credit) = (true, true);
    }

    /// Puts a long part of a payload into a packet that is still empty.
    pub(super) fn carry_part(
        &mut self,
        senders: &mut Senders,
        draft: &mut Draft<'_>,
        fill: &mut impl FnMut(u64, u64, &mut [u8]),
    ) {
        if draft.room < LONG || self.received.len() > FEW_RUNS {
            return;
        }
        let mut order = Stream::ALL;
        if self.bulk_first {
            order.reverse();
        }
        for stream in order {
            let to = &mut draft.buf[draft.at..draft.room - TAIL];
            if let Some((range, len)) = senders.stream(stream).write_part(to, fill) {
                draft.carried(senders, stream, range, len);
                return;
            }
        }
    }

    /// Writes bytes of both streams; they take turns to be first. `fill` supplies bytes that lie in lent memory.
    pub(super) fn carry(
        &mut self,
        senders: &mut Senders,
        draft: &mut Draft<'_>,
        fill: &mut impl FnMut(u64, u64, &mut [u8]),
    ) {
        let mut order = Stream::ALL;
        if self.bulk_first {
            order.reverse();
        }
        self.bulk_first = !self.bulk_first;
        for stream in order {
            if !draft.streams[stream as usize].is_empty() {
                continue; // a long part is the only part of its stream in a packet
            }
            let to = &mut draft.buf[draft.at..draft.room];
            if let Some((range, len)) = senders.stream(stream).write(to, fill) {
                draft.carried(senders, stream, range, len);
            }
        }
    }

    /// Asks for an acknowledgement if a timeout requires one. In a packet without other frames, tests whether the path
    /// carries `probe` bytes. `None` if the packet has no room for that.
    pub(super) fn ping(&mut self, probe: Option<u64>, trailer: usize, draft: &mut Draft<'_>) -> Option<()> {
        if self.probes > 0 {
            self.probes -= 1;
            if !draft.is_eliciting {
                draft.at += Frame::Ping.write(&mut draft.buf[draft.at..draft.room])?;
                draft.is_eliciting = true;
            }
        } else if draft.is_empty()
            && let Some(size) = probe
        {
            Frame::Ping.write(&mut draft.buf[draft.at..])?;
            draft.buf[draft.at + 1..size as usize].fill(0);
            draft.at = (size as usize).checked_sub(trailer)?;
            (draft.is_eliciting, draft.is_probe) = (true, true);
            self.size.on_probe_sent();
        }
        Some(())
    }

    /// Records a packet of `size` bytes until the peer acknowledges it.
    pub(super) fn record(&mut self, now: Instant, number: u64, size: u64, draft: &Draft<'_>) {
        if !draft.is_eliciting {
            return;
        }
        self.last_eliciting = now;
        if !draft.is_probe {
            let pace = self.pace();
            self.pacer.sent(now, size, pace);
        }
        self.in_flight += size;
        self.in_flight_packets += 1;
        self.sent.push(Sent {
            first: number,
            count: 1,
            at: now,
            size,
            in_flight: true,
            streams: draft.streams.clone(),
            credit: draft.tells_credit,
            probe: draft.is_probe,
            told: draft.told,
        });
    }
}
