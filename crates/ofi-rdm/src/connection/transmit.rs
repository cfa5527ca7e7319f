//! Decides what is sent, and when. `draft.rs` assembles the packets of a session.

use core::net::SocketAddr;

use super::draft::Draft;
use super::{Config, Connection, Session};
use crate::crypto::Identity;
use crate::driver::Driver;
use crate::time::Instant;
use crate::wire::header::{self, flag};
use crate::wire::{Frame, Header, Kind, frame};

/// Packets that a closing end may send beyond the window: about one more initial window (RFC 6928 allows ten).
const FAREWELL: u32 = 10;

impl Session {
    /// Bytes in flight that count against the window. A path probe is excluded: it may be longer than the window.
    pub(super) fn counted(&self) -> u64 {
        self.in_flight.saturating_sub(self.size.under_way())
    }
}

impl Connection {
    /// Writes the next packet to `buf`; returns its destination and length.
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

    /// Allows some packets beyond the window.
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
        let (checked, trailer, marks) = (self.is_checked(config), self.trailer(), self.marked());
        let wants = self.sender.has_output();
        let session = self.session.as_deref_mut()?;
        if wants {
            session.size.raise(now);
        }
        let probe = session.size.probe().filter(|&size| size as usize <= buf.len());
        let room = (session.packet_size() as usize).min(buf.len()).checked_sub(trailer)?;
        let may = session.allowance(now, wants);
        if wants && may.stalls {
            self.stats.stalls[usize::from(may.credit)] += 1;
        }
        let mut draft = Draft::new(buf, room);
        draft.marks = marks;
        let mut fill = |token, at, to: &mut [u8]| {
            if checked || trailer > 0 {
                driver.fill(peer, token, at, to);
            } else {
                driver.refer(peer, token, at, to);
            }
        };
        if may.data {
            session.carry_part(&mut self.sender, &mut draft, &mut fill);
        }
        session.acknowledge(now, config, may.data, &mut draft);
        session.tell_limits(&mut draft);
        if may.data {
            session.carry(&mut self.sender, &mut draft, &mut fill);
        }
        session.ping(probe.filter(|_| may.credit), trailer, &mut draft)?;
        if draft.is_empty() {
            return None;
        }
        let number = session.skips.number(session.next_number, |number| identity.gap(self.local, number));
        session.next_number = number + 1;
        let len = draft.at + trailer;
        let mut flags = if checked { flag::CHECKED } else { 0 };
        if trailer > 0 {
            flags |= flag::SEALED;
        }
        // At the end of a payload, the peer's program has the data that it waited for. It may not poll again to send a
        // delayed acknowledgement.
        if session.probe_count > 0 || draft.is_probe || draft.ends_payload {
            flags |= flag::URGENT;
        }
        let header = Header { flags, ..Header::new(Kind::Data, session.remote, number) };
        session.record(now, number, len as u64, &draft);
        let packet = &mut draft.buf[..len];
        header.write(packet);
        if let Some(protection) = self.protection.as_deref_mut() {
            protection.seal(number, packet);
        }
        self.stats.packets[0] += 1;
        Some(len)
    }

    /// Writes a packet with these frames without checking them, for tests that play a hostile peer.
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

    /// The system refused a packet of `size` bytes as too long.
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

    /// Writes a packet that ends the session. Received packets are acknowledged first, because they did arrive.
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
