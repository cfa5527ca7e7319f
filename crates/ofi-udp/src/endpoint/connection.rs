//! Connection management of a connected endpoint.
//!
//! Peer 0 of a connecting endpoint is first the passive endpoint, then the endpoint that accepts. All other sessions
//! carry only connection management packets; anything else is a protocol error.

use std::net::SocketAddr;
use std::time::Duration;

use ofi_api::{Address, Errno, Error, Result};
use ofi_core::transport::{Reaction, Upcalls};
use ofi_rdm::{Instant, Lost};

use super::UdpEndpoint;
use crate::Udp;
use crate::address;
use crate::answer::is_answer;
use crate::command::kind;
use crate::connected::{CONNECTION, Connected};
use crate::peer::{Peer, errno_of};
use crate::probe::Probe;
use crate::time::now;

/// Time for which an end resends its last packets after a shutdown.
const GOODBYE: Duration = Duration::from_secs(5);

impl UdpEndpoint {
    fn connection(&mut self) -> Result<&mut Connected> {
        self.common.connection.as_deref_mut().ok_or_else(|| Error::new(Errno::EOPNOTSUPP))
    }

    fn peer_at(&mut self, socket: SocketAddr) -> u32 {
        let (peer, _) = self.endpoint.peer(socket);
        while self.peers.len() < self.endpoint.peers() {
            self.peers.push(Peer::default());
        }
        peer
    }

    /// See [`ofi_core::transport::TransportEndpoint::packet`].
    pub fn packet(&mut self, to: &Address, packet: &[u8], watch: bool) -> Result<()> {
        let (time, to) = (now(), address::socket(to)?);
        let from = self.socket.address;
        if to.is_ipv4() != from.is_ipv4() || to.port() == 0 {
            return Err(Error::with(
                Errno::EADDRNOTAVAIL,
                format!("{to} cannot be reached from {from}: it needs a port, and the same address family"),
            ));
        }
        let connection = self.connection()?;
        connection.probe = if watch { Probe::new(from.ip(), to, time) } else { None };
        let strangers = watch && !connection.joined;
        // The address of the endpoint that will accept is not known yet.
        self.endpoint.admit(strangers);
        let peer = self.peer_at(to);
        let sender = self.endpoint.sender(time, peer).ok_or(Error::AGAIN)?;
        sender.commands.record(kind::CONNECTION, 0, packet, 0, Some(CONNECTION));
        self.endpoint.expect(time, peer, true);
        self.connection()?.sent.push(peer);
        self.dirty = true;
        Ok(())
    }

    /// See [`ofi_core::transport::TransportEndpoint::join`].
    pub fn join<H: Upcalls<Udp>>(&mut self, host: &mut H, address: &Address) -> Result<()> {
        let socket = address::socket(address)?;
        let peer = self.peer_at(socket);
        let connection = self.connection()?;
        connection.joined = true;
        connection.sent.clear(); // packets to other peers no longer matter
        self.endpoint.admit(false);
        self.endpoint.swap(0, peer);
        self.peers.swap(0, peer as usize);
        for other in 1..self.endpoint.peers() as u32 {
            self.leave(other);
        }
        host.introduce(0, address);
        self.endpoint.expect(now(), 0, true);
        Ok(())
    }

    /// Closes the session with a peer, and forgets the peer.
    fn leave(&mut self, peer: u32) {
        if self.socket.next().is_none() {
            self.flush();
        }
        if let Some((buffer, _)) = self.socket.next()
            && let Some(transmit) = self.endpoint.close(peer, buffer)
        {
            self.socket.push(&transmit);
            self.flush();
        }
        self.endpoint.forget(peer);
        if let Ok(connection) = self.connection() {
            connection.sent.retain(|&other| other != peer);
        }
    }

    /// See [`ofi_core::transport::TransportEndpoint::part`].
    pub fn part<H: Upcalls<Udp>>(&mut self, host: &mut H, drain: bool) {
        self.endpoint.admit(false);
        let Some(connection) = self.common.connection.as_deref_mut() else { return };
        connection.probe = None;
        if !connection.joined || connection.parted {
            return;
        }
        connection.parted = true;
        let errno = if drain { Errno::ECONNRESET } else { Errno::ECANCELED };
        self.peers[0].settle_answers(&mut self.common.spare);
        let answers = self.peers[0].long.as_mut().map(|long| std::mem::take(&mut long.answers));
        self.peers[0].lose(&mut self.common, host, 0, errno);
        // Payloads return to the application. Answers to reads stay, to be sent.
        if let Some(answers) = answers {
            self.peers[0].long().answers = answers;
        }
        let sender = self.endpoint.sender(now(), 0);
        let plain = sender.is_none_or(|s| s.commands.is_plain(&is_answer) && s.bulk.is_plain(&is_answer));
        if drain || !plain {
            return self.leave(0);
        }
        if let Ok(connection) = self.connection() {
            connection.closing = Some(now() + GOODBYE);
        }
        self.transmit(host, now(), 1);
    }

    /// Processes connection management packets.
    #[cold]
    pub fn move_connection<H: Upcalls<Udp>>(&mut self, host: &mut H, time: Instant) {
        let Some(connection) = self.common.connection.as_deref_mut() else { return };
        let (packets, lost) = (std::mem::take(&mut connection.packets), std::mem::take(&mut connection.lost));
        let one = connection.joined && !connection.parted;
        let address = |peer| self.endpoint.address(peer).map(Address::from);
        // Joining renumbers peers, so keep addresses.
        let packets: Vec<_> =
            packets.into_iter().filter_map(|(peer, packet)| Some((address(peer)?, packet))).collect();
        let (mine, others): (Vec<_>, Vec<_>) = lost.into_iter().partition(|&(peer, _)| one && peer == 0);
        let others: Vec<_> =
            others.into_iter().filter_map(|(peer, reason)| Some((address(peer)?, reason))).collect();
        if !packets.is_empty() {
            self.endpoint.hasten(); // no later poll may send the acknowledgements
        }
        for (from, packet) in packets {
            self.take_packet(host, &from, &packet);
        }
        for (_, reason) in mine {
            self.peers[0].lose(&mut self.common, host, 0, errno_of(reason));
        }
        for (from, reason) in others {
            let errno = match reason {
                Lost::Refused | Lost::Closed | Lost::Reset => Errno::ECONNREFUSED,
                other => errno_of(other),
            };
            host.packet_lost(&from, errno);
        }
        self.look(host, time);
    }

    /// Fails the connection if the peer's host refuses the port, and ends a closing one that is drained or overdue.
    fn look<H: Upcalls<Udp>>(&mut self, host: &mut H, time: Instant) {
        let Some(connection) = self.common.connection.as_deref_mut() else { return };
        if let Some(probe) = &mut connection.probe
            && probe.is_refused(time)
        {
            let to = Address::from(probe.to);
            connection.probe = None;
            host.packet_lost(&to, Errno::ECONNREFUSED);
        }
        let Some(connection) = self.common.connection.as_deref_mut() else { return };
        if connection.closing.is_some_and(|end| end <= time || self.endpoint.is_drained()) {
            connection.closing = None;
            self.leave(0);
        }
    }

    fn take_packet<H: Upcalls<Udp>>(&mut self, host: &mut H, from: &Address, packet: &[u8]) {
        let reaction = host.packet(from, packet);
        let done = match reaction {
            Reaction::Nothing => {
                // The peer has confirmed or refused, so it exists.
                let confirmed = self.connection().map(|connection| connection.joined);
                if let (Ok(true), Ok(connection)) = (confirmed, self.connection()) {
                    connection.probe = None;
                }
                Ok(())
            }
            Reaction::Part => {
                self.part(host, true);
                Ok(())
            }
            Reaction::Reply(reply) => self.packet(from, &reply, false),
            Reaction::Join(reply) => self.join(host, from).and_then(|()| self.packet(from, &reply, false)),
        };
        if let Err(error) = done {
            host.packet_lost(from, error.errno());
        }
    }
}
