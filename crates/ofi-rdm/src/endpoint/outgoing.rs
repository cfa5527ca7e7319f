//! Outgoing datagrams: serves peers in turn, and sends what remains when the endpoint closes.

use core::time::Duration;

use crate::time::Instant;
use crate::wire::header::{self, flag};

use super::{Endpoint, Transmit};
use crate::driver::Driver;

/// Bytes sent to a peer before the next peer's turn: about as many as the kernel accepts in one message.
const TURN: usize = 1 << 16;

impl Endpoint {
    /// Writes the next datagram to `buf`. Call it until it returns `None`.
    pub fn poll_transmit<D: Driver>(
        &mut self,
        now: Instant,
        buf: &mut [u8],
        driver: &mut D,
    ) -> Option<Transmit> {
        self.poll_train(now, 1, buf, driver)
    }

    /// Like [`Endpoint::poll_transmit`], but writes up to `most` datagrams of one length to one peer, without gaps.
    pub fn poll_train<D: Driver>(
        &mut self,
        now: Instant,
        most: usize,
        buf: &mut [u8],
        driver: &mut D,
    ) -> Option<Transmit> {
        if let Some((to, mut header, body)) = self.answers.pop_front() {
            let len = header::LEN + body.len();
            let packet = buf.get_mut(..len)?;
            packet[header::LEN..].copy_from_slice(&body);
            header.flags |= flag::CHECKED;
            header.write(packet);
            return Some(Transmit { to, len, count: 1, peer: None });
        }
        while let Some(&peer) = self.ready.front() {
            if let Some(transmit) = self.poll_train_to(now, peer, most, buf, driver) {
                self.turn += transmit.len * transmit.count;
                if self.turn >= TURN {
                    self.turn = 0;
                    self.ready.rotate_left(1);
                }
                return Some(transmit);
            }
            self.turn = 0;
            self.ready.pop_front();
            self.peers[peer as usize].queued = false;
            self.rest(peer);
        }
        None
    }

    /// Whether data for `peer` should leave now: everything in flight to the peer was sent more than `gap` ago, or a
    /// full packet waits. Otherwise it may soon be combined with more data, or with an acknowledgement.
    pub fn is_ready(&self, now: Instant, peer: u32, gap: Duration) -> bool {
        let since = Instant::from_nanos(now.as_nanos().saturating_sub(gap.as_nanos() as u64));
        self.peers.get(peer as usize).is_some_and(|connection| connection.is_ready(since))
    }

    /// Like [`Endpoint::poll_transmit`], for one peer.
    pub fn poll_transmit_to<D: Driver>(
        &mut self,
        now: Instant,
        peer: u32,
        buf: &mut [u8],
        driver: &mut D,
    ) -> Option<Transmit> {
        self.poll_train_to(now, peer, 1, buf, driver)
    }

    fn poll_train_to<D: Driver>(
        &mut self,
        now: Instant,
        peer: u32,
        most: usize,
        buf: &mut [u8],
        driver: &mut D,
    ) -> Option<Transmit> {
        let connection = self.peers.get_mut(peer as usize)?;
        if connection.wants_session() {
            let name = self.fresh_name();
            self.rename(peer, name);
            self.peers[peer as usize].connect(now, name);
        }
        let connection = &mut self.peers[peer as usize];
        let written = connection.transmit(now, &self.config, &self.identity, peer, buf, driver);
        let more = match &written {
            Some((_, len)) if most > 1 => {
                connection.train(now, &self.config, peer, most - 1, &mut buf[*len..], driver)
            }
            _ => 0,
        };
        self.set_timer(peer);
        let (to, len) = written?;
        Some(Transmit { to, len, count: 1 + more, peer: Some(peer) })
    }

    /// Writes a packet with arbitrary frames, for tests that play a hostile peer. `None` without a session or without
    /// room.
    #[doc(hidden)]
    pub fn forge(&mut self, peer: u32, frames: &[u8], buf: &mut [u8]) -> Option<Transmit> {
        let (to, len) = self.peers.get_mut(peer as usize)?.forge(&self.config, frames, buf)?;
        Some(Transmit { to, len, count: 1, peer: Some(peer) })
    }

    /// Prepares for closing. Of the driver's payloads, only those whose tokens are `lasting` remain readable, so
    /// nothing more is sent to peers that need others. The remaining data for other peers, such as answers, is sent
    /// even if the window is full: the search for the path's longest packet fills the window of a young session, and
    /// there will be no later chance to send.
    pub fn take_leave(&mut self, lasting: &dyn Fn(u64) -> bool) {
        for (peer, connection) in self.peers.iter_mut().enumerate() {
            connection.muted =
                !connection.sender.commands.is_plain(lasting) || !connection.sender.bulk.is_plain(lasting);
            connection.take_leave();
            if connection.sender.has_output() && !core::mem::replace(&mut connection.queued, true) {
                self.ready.push_back(peer as u32);
            }
        }
    }

    /// Writes a datagram that tells `peer` that the endpoint closes. `None` without a session.
    pub fn close(&mut self, peer: u32, buf: &mut [u8]) -> Option<Transmit> {
        let (to, len) = self.peers.get_mut(peer as usize)?.close(&self.config, buf)?;
        Some(Transmit { to, len, count: 1, peer: Some(peer) })
    }
}
