//! Connections (`FI_EP_MSG`): their packets, and the one peer.

use ofi_api::{Address, Errno, Error, Result};
use ofi_core::transport::{PeerId, Reaction, Upcalls};

use super::ShmEndpoint;
use crate::Shm;
use crate::connected::Connected;
use crate::name;

impl ShmEndpoint {
    fn connection(&self) -> Result<&Connected> {
        self.common.shared.connection.as_ref().ok_or_else(|| Error::new(Errno::EOPNOTSUPP))
    }

    /// See [`ofi_core::transport::TransportEndpoint::packet`].
    pub fn packet(&mut self, to: &Address, packet: &[u8], watch: bool) -> Result<()> {
        let socket = name::socket_name(to)?;
        self.connection()?.watch(watch.then(|| socket.clone()));
        // The helper serves the socket from its next round on, which this starts.
        self.common.helper.packet(&self.common.shared, &socket, packet);
        if watch {
            self.common.helper.wake();
        }
        Ok(())
    }

    /// See [`ofi_core::transport::TransportEndpoint::join`].
    pub fn join<H: Upcalls<Shm>>(&mut self, host: &mut H, address: &Address, first: bool) -> Result<()> {
        let socket = name::socket_name(address)?;
        self.connection()?.admit(socket.clone());
        let peer = self.meet(host, &socket).ok_or_else(|| Error::new(Errno::EADDRNOTAVAIL))?;
        if first { self.peers[peer as usize].connect(&self.common) } else { Ok(()) }
    }

    /// See [`ofi_core::transport::TransportEndpoint::part`].
    pub fn part<H: Upcalls<Shm>>(&mut self, host: &mut H, drain: bool) {
        self.common.shared.shut_out();
        for peer in 0..self.peers.len() as PeerId {
            if drain && self.peers[peer as usize].up().is_some() {
                self.mark_gone(peer);
            } else {
                self.give_up(host, peer, if drain { Errno::ECONNRESET } else { Errno::ECANCELED });
            }
        }
    }

    /// Takes a packet of connection management.
    pub fn take_packet<H: Upcalls<Shm>>(&mut self, host: &mut H, socket: &[u8], packet: &[u8]) {
        if let Ok(connection) = self.connection() {
            connection.end_packet();
        }
        let Some(from) = name::address_of(socket, self.format) else { return };
        match host.packet(&from, packet) {
            Reaction::Nothing => {}
            Reaction::Part => self.part(host, true),
            Reaction::Reply(reply) => self.common.helper.packet(&self.common.shared, socket, &reply),
            Reaction::Join(reply) => {
                let joined = self.packet(&from, &reply, true).and_then(|()| self.join(host, &from, true));
                if let Err(error) = joined {
                    host.packet_lost(&from, error.errno());
                }
            }
        }
    }

    /// Handles a packet that was not delivered, or whose destination is gone. What the peer sent before is still
    /// processed.
    pub fn packet_lost<H: Upcalls<Shm>>(&mut self, host: &mut H, socket: &[u8], errno: Errno) {
        if let Some(&peer) = self.by_socket.get(socket)
            && self.peers[peer as usize].up().is_some()
        {
            return self.mark_gone(peer);
        }
        if let Some(to) = name::address_of(socket, self.format) {
            host.packet_lost(&to, errno);
        }
    }
}
