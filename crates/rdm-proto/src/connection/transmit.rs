//! Makes packets.

use core::net::SocketAddr;

use super::sent::Sent;
use super::{BASE_PACKET, Config, Connection, Session};
use crate::crypto::Identity;
use crate::endpoint::Driver;
use crate::stream::Stream;
use crate::time::Instant;
use crate::wire::handshake::PACKET_COST;
use crate::wire::header::{self, flag};
use crate::wire::{Frame, Header, Kind, frame};

/// Probe timeouts from which on one of the packets after each is short.
const SHORT_AFTER: u32 = 2;
/// Packets that an end which closes sends beyond the window: about an initial window more (RFC 6928 allows ten).
const FAREWELL: u32 = 10;

impl Session {
    /// Bytes under way that count in the window: not those of a packet that only looks what the path carries, which may be longer than
    /// the window is.
    pub(super) fn counted(&self) -> u64 {
        self.in_flight.saturating_sub(self.size.under_way())
    }
}

impl Connection {
    /// Writes the next packet to `buf`; answers to whom, and its length.
    pub fn transmit<D: Driver>(
        &mut self,
        now: Instant,
        config: &Config,
        identity: &Identity,
        peer: u32,
        buf: &mut [u8],
        driver: &mut D,
    ) -> Option<(SocketAddr, usize)> {
        if self.muted {
            return None;
        }
        if self.question.is_some()
            && let Some(len) = self.ask(now, config.params, identity, buf)
        {
            return Some((self.address, len));
        }
        if let Some(session) = self.session.as_deref_mut()
            && core::mem::take(&mut session.ask)
            && let Some((address, peer_epoch)) = self.liveness()
        {
            if let Some(session) = self.session.as_deref_mut() {
                session.asks += 1;
            }
            let packet = buf.get_mut(..header::LEN)?;
            Header { flags: flag::CHECKED, ..Header::new(Kind::Ask, peer_epoch, self.local) }.write(packet);
            return Some((address, header::LEN));
        }
        let len = self.packet(now, config, identity, peer, buf, driver)?;
        Some((self.address, len))
    }

    /// Lets some packets go beyond the window.
    pub fn take_leave(&mut self) {
        if let Some(session) = self.session.as_deref_mut() {
            session.farewell = FAREWELL;
        }
    }

    fn packet<D: Driver>(
        &mut self,
        now: Instant,
        config: &Config,
        identity: &Identity,
        peer: u32,
        buf: &mut [u8],
        driver: &mut D,
    ) -> Option<usize> {
        let (checked, trailer) = (self.is_checked(config), self.trailer());
        let session = self.session.as_deref_mut()?;
        if self.sender.has_output() {
            session.size.raise(now);
        }
        let probe = session.size.probe().filter(|&size| size as usize <= buf.len());
        // Of two packets after a timeout the second is one that every path carries: if that alone arrives, the path has become shorter.
        let short = session.probes == 1 && session.probe_count >= SHORT_AFTER;
        let size = if short { session.size.packet().min(BASE_PACKET) } else { session.size.packet() };
        let room = (size as usize).min(buf.len()).checked_sub(trailer)?;
        let cost = session.in_flight + session.in_flight_packets * PACKET_COST;
        let wants = self.sender.has_output();
        // One packet may always be under way, whatever the peer says.
        let credit = cost < session.peer.in_flight || session.in_flight_packets == 0;
        let window = session.counted() < session.controller.window();
        let pace = session.pace();
        let allowed = credit && window && wants && session.pacer.allows(now, pace) > 0;
        let beyond = !allowed && session.farewell > 0;
        let may_send = allowed || session.probes > 0 || beyond;
        if wants && !(credit && window) && !may_send {
            self.stats.stalls[usize::from(credit)] += 1;
        }
        let (mut at, mut told) = (header::LEN, 0);
        let due = session.ack_now || session.ack_by.is_some_and(|by| by <= now);
        let new_limit = session.tell_credit || session.receive.iter().any(|s| s.new_limit().is_some());
        let data = wants && may_send;
        session.farewell -= u32::from(data && beyond);
        if data && now.since(session.largest_at) <= config.ack_delay {
            session.quick = false; // an answer: it would have had company
        }
        if session.unacked > 0 || session.ack_now {
            let goes_along = data || new_limit || session.probes > 0;
            if (due || goes_along)
                && let delay = now.since(session.largest_at).as_micros()
                && let Some(len) = frame::write_ack(
                    &mut buf[at..room],
                    &session.received,
                    u32::try_from(delay).unwrap_or(u32::MAX),
                )
            {
                at += len;
                told = session.received.last().map_or(0, |run| run.end);
                session.quick |= !goes_along && !session.ack_now;
                (session.unacked, session.ack_now, session.ack_by) = (0, false, None);
            }
        }
        let mut streams = [0..0, 0..0];
        let (mut eliciting, mut awaited) = (false, false);
        if new_limit && room - at >= 2 * frame::CREDIT_LEN {
            session.tell_credit = false;
            for (stream, receive) in Stream::ALL.into_iter().zip(&mut session.receive) {
                let limit = receive.tell_limit();
                at += Frame::Credit { stream, limit }.write(&mut buf[at..room]).unwrap_or(0);
            }
            eliciting = true;
        }
        let credit_told = eliciting;
        if data {
            let mut order = Stream::ALL;
            if session.bulk_first {
                order.reverse();
            }
            session.bulk_first = !session.bulk_first;
            for stream in order {
                let fill = &mut |token, at, to: &mut [u8]| {
                    if checked || trailer > 0 {
                        driver.fill(peer, token, at, to);
                    } else {
                        driver.refer(peer, token, at, to);
                    }
                };
                if let Some((range, len)) = self.sender.stream(stream).write(&mut buf[at..room], fill) {
                    at += len;
                    streams[stream as usize] = range;
                    eliciting = true;
                    awaited |= self.sender.stream(stream).ends_with_payload();
                }
            }
        }
        let mut is_probe = false;
        if session.probes > 0 {
            session.probes -= 1;
            if !eliciting {
                at += Frame::Ping.write(&mut buf[at..room])?;
                eliciting = true;
            }
        } else if at == header::LEN
            && credit
            && let Some(size) = probe
        {
            Frame::Ping.write(&mut buf[at..])?;
            buf[at + 1..size as usize].fill(0);
            at = (size as usize).checked_sub(trailer)?;
            (eliciting, is_probe) = (true, true);
            session.size.on_probe_sent();
        }
        if at == header::LEN {
            return None;
        }
        let number = session.skips.number(session.next_number, |number| identity.gap(self.local, number));
        session.next_number = number + 1;
        let mut flags = if checked { flag::CHECKED } else { 0 };
        if trailer > 0 {
            flags |= flag::SEALED;
            at += trailer;
        }
        // After a payload's end the peer's program has what it waited for, and may not look again to let a delayed
        // acknowledgement out.
        if session.probe_count > 0 || is_probe || awaited {
            flags |= flag::URGENT;
        }
        Header { flags, ..Header::new(Kind::Data, session.remote, number) }.write(&mut buf[..at]);
        if let Some(protection) = self.protection.as_deref_mut() {
            protection.seal(number, &mut buf[..at]);
        }
        if eliciting {
            session.last_eliciting = now;
            if !is_probe {
                session.pacer.sent(now, at as u64, pace);
            }
            session.in_flight += at as u64;
            session.in_flight_packets += 1;
            session.sent.push(Sent {
                first: number,
                count: 1,
                at: now,
                size: at as u64,
                in_flight: true,
                streams,
                credit: credit_told,
                probe: is_probe,
                told,
            });
        }
        self.stats.packets[0] += 1;
        Some(at)
    }

    /// Writes a packet with these frames, whatever they say: what a hostile peer may send, for tests.
    pub fn forge(&mut self, config: &Config, frames: &[u8], buf: &mut [u8]) -> Option<(SocketAddr, usize)> {
        self.thaw();
        let (checked, trailer) = (self.is_checked(config), self.trailer());
        let session = self.session.as_deref_mut()?;
        let number = session.next_number;
        session.next_number += 1;
        let packet = buf.get_mut(..header::LEN + frames.len() + trailer)?;
        packet[header::LEN..][..frames.len()].copy_from_slice(frames);
        let sealed = if trailer > 0 { flag::SEALED } else { 0 };
        let flags = if checked { flag::CHECKED } else { sealed };
        Header { flags, ..Header::new(Kind::Data, session.remote, number) }.write(packet);
        if let Some(protection) = self.protection.as_deref_mut() {
            protection.seal(number, packet);
        }
        Some((self.address, packet.len()))
    }

    /// The system refused to send a packet of `size` bytes as too long.
    pub fn on_too_long(&mut self, size: u64) {
        let Some(session) = self.session.as_deref_mut() else { return };
        if let Some(sent) = session.sent.iter_mut().rev().find(|sent| sent.in_flight && sent.size == size)
            && sent.probe
        {
            sent.in_flight = false;
            session.in_flight -= size;
            session.in_flight_packets -= 1;
            session.size.on_probe_lost(size, true);
        } else if session.size.on_black_hole() {
            session.controller.set_packet_size(session.size.packet());
        }
    }

    /// Writes a packet that ends the session. What has come is acknowledged first: it has arrived, whatever follows.
    pub fn close(&mut self, config: &Config, buf: &mut [u8]) -> Option<(SocketAddr, usize)> {
        self.thaw();
        let (checked, trailer) = (self.is_checked(config), self.trailer());
        let session = self.session.as_deref_mut()?;
        let room = (session.size.packet() as usize).min(buf.len()).checked_sub(frame::CLOSE_LEN + trailer)?;
        let mut len = header::LEN;
        len += frame::write_ack(buf.get_mut(len..room)?, &session.received, 0).unwrap_or(0);
        len += Frame::Close { reason: 0 }.write(&mut buf[len..])?;
        let number = session.next_number;
        session.next_number += 1;
        len += trailer;
        let sealed = if trailer > 0 { flag::SEALED } else { 0 };
        let flags = if checked { flag::CHECKED } else { sealed };
        let packet = buf.get_mut(..len)?;
        Header { flags, ..Header::new(Kind::Data, session.remote, number) }.write(packet);
        if let Some(protection) = self.protection.as_deref_mut() {
            protection.seal(number, packet);
        }
        Some((self.address, len))
    }
}
