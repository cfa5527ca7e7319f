//! What connected endpoints (`FI_EP_MSG`) need besides: passive endpoints' sockets, packets of connection management,
//! and that only the one peer is let in.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ofi_api::{AddrFormat, Address, Errno, Error, Info, Result};
use ofi_core::auth::AuthKey;
use ofi_core::transport::{Host, Peer, Port, Reaction};

use crate::Shm;
use crate::control::{self, Message};
use crate::farewell::{End, Farewell};
use crate::lanes::ShmLanes;
use crate::name;
use crate::shared::{Event, Shared};
use crate::sys::{self, ControlSocket};

/// Packets that an endpoint takes in before it looks at them. Only a hostile peer sends more.
const PACKETS: usize = 64;
/// How long a goodbye is tried at a peer whose socket is full: that is one whose helper does not run.
const GOODBYE: Duration = Duration::from_millis(50);

/// What the helper must know of a connected endpoint. Sockets go by their names.
#[derive(Default)]
pub struct Connected(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// The one peer.
    admitted: Option<Vec<u8>>,
    /// Whose end has to be noticed, before the peer's process is watched.
    watched: Option<Vec<u8>>,
    /// Packets that the endpoint has not taken.
    waiting: usize,
}

impl Connected {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `peer` may be met.
    pub fn admits(&self, peer: &[u8]) -> bool {
        self.inner().admitted.as_deref() == Some(peer)
    }
}

impl Shared {
    /// Hands a packet to the endpoint.
    pub fn take_packet(&self, peer: Vec<u8>, packet: &[u8]) {
        let Some(connection) = &self.connection else { return };
        {
            let mut inner = connection.inner();
            if inner.waiting >= PACKETS {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            inner.waiting += 1;
        }
        self.tell(Event::Packet { peer, packet: packet.to_vec() });
    }

    /// The connection is over: a successor of the peer under its name is not let in.
    pub fn shut_out(&self) {
        if let Some(connection) = &self.connection {
            let mut inner = connection.inner();
            (inner.admitted, inner.watched) = (None, None);
        }
    }

    /// Says goodbye to the one peer, which has to be told of the end, and may know this endpoint though this one has
    /// not met it. Nobody else does it: an idle connection is not polled for the word in its memory.
    pub fn part_from_admitted(&self) {
        let admitted = self.connection.as_ref().and_then(|connection| connection.inner().admitted.clone());
        let Some(peer) = admitted else { return };
        let bye = Message::Bye { incarnation: self.incarnation }.encode();
        let deadline = Instant::now() + GOODBYE;
        while self.socket.send(&peer, &bye, &[]).is_err_and(|error| error.is_again())
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether [`Shared::look_after`] has to be called from time to time.
    pub fn watches(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.inner().watched.is_some())
    }

    /// Notices if the watched socket is gone.
    pub fn look_after(self: &Arc<Self>) -> Option<Farewell> {
        let connection = self.connection.as_ref()?;
        let watched = connection.inner().watched.clone()?;
        let met = self.incarnation_of(&watched).is_some(); // its process is watched, then
        if !met && sys::is_bound(&watched) {
            return None;
        }
        let mut inner = connection.inner();
        if inner.watched.as_ref() == Some(&watched) {
            inner.watched = None;
        }
        drop(inner);
        (!met).then(|| Farewell::new(self, watched, End::Unreached(Errno::ECONNREFUSED)))
    }
}

impl ShmLanes {
    fn connection(&self) -> Result<&Connected> {
        self.common.shared.connection.as_ref().ok_or_else(|| Error::new(Errno::EOPNOTSUPP))
    }

    /// See [`ofi_core::transport::Lanes::packet`].
    pub fn packet(&mut self, to: &Address, packet: &[u8], watch: bool) -> Result<()> {
        let socket = name::socket_name(to)?;
        self.connection()?.inner().watched = watch.then(|| socket.clone());
        // The helper looks after the socket from its next round on, which this begins.
        self.common.helper.packet(&self.common.shared, &socket, packet);
        if watch {
            self.common.helper.poke();
        }
        Ok(())
    }

    /// See [`ofi_core::transport::Lanes::join`].
    pub fn join<H: Host<Shm>>(&mut self, host: &mut H, address: &Address, first: bool) -> Result<()> {
        let socket = name::socket_name(address)?;
        self.connection()?.inner().admitted = Some(socket.clone());
        let peer = self.meet(host, &socket).ok_or_else(|| Error::new(Errno::EADDRNOTAVAIL))?;
        if first { self.lanes[peer as usize].connect(&self.common) } else { Ok(()) }
    }

    /// See [`ofi_core::transport::Lanes::part`].
    pub fn part<H: Host<Shm>>(&mut self, host: &mut H, drain: bool) {
        self.common.shared.shut_out();
        for peer in 0..self.lanes.len() as Peer {
            if drain && self.lanes[peer as usize].up().is_some() {
                self.bury(peer);
            } else {
                self.give_up(host, peer, if drain { Errno::ECONNRESET } else { Errno::ECANCELED });
            }
        }
    }

    /// Takes a packet of connection management.
    pub fn take_packet<H: Host<Shm>>(&mut self, host: &mut H, peer: &[u8], packet: &[u8]) {
        if let Ok(connection) = self.connection() {
            connection.inner().waiting -= 1;
        }
        let Some(from) = name::address_of(peer, self.format) else { return };
        match host.packet(&from, packet) {
            Reaction::Nothing => {}
            Reaction::Part => self.part(host, true),
            Reaction::Reply(reply) => self.common.helper.packet(&self.common.shared, peer, &reply),
            Reaction::Join(reply) => {
                let joined = self.packet(&from, &reply, true).and_then(|()| self.join(host, &from, true));
                if let Err(error) = joined {
                    host.packet_lost(&from, error.errno());
                }
            }
        }
    }

    /// A packet did not arrive, or whoever it went to is gone. What a peer has sent before is still taken.
    pub fn packet_lost<H: Host<Shm>>(&mut self, host: &mut H, peer: &[u8], errno: Errno) {
        if let Some(&lane) = self.by_socket.get(peer)
            && self.lanes[lane as usize].up().is_some()
        {
            return self.bury(lane);
        }
        if let Some(to) = name::address_of(peer, self.format) {
            host.packet_lost(&to, errno);
        }
    }
}

/// The socket of a passive endpoint.
pub struct ShmPort {
    address: Address,
    socket: ControlSocket,
    format: AddrFormat,
    auth: AuthKey,
    /// The name of its socket.
    name: Vec<u8>,
}

impl ShmPort {
    /// Binds it.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`.
    pub fn open(info: &Info, wanted: Option<&Address>) -> Result<Self> {
        let (address, socket) = name::bind(wanted, false, info.addr_format)?;
        let name = name::socket_name(&address)?;
        Ok(Self { address, socket, format: info.addr_format, auth: AuthKey::of(info), name })
    }
}

impl Port for ShmPort {
    fn address(&self) -> &Address {
        &self.address
    }

    fn send(&self, to: &Address, packet: &[u8]) -> Result<()> {
        let to = name::socket_name(to)?;
        let proof = self.auth.proof(&control::errand(&self.name, &to, packet));
        self.socket.send(&to, &control::wrap_packet(proof, packet), &[])
    }

    fn receive(&self) -> Option<(Address, Vec<u8>)> {
        let mut buffer = [0u8; control::MAX_BYTES + 1];
        loop {
            let datagram = self.socket.receive(&mut buffer)?;
            let user = datagram.credentials.uid;
            let bytes = &buffer[..datagram.len.min(buffer.len())];
            let packet = control::packet_in(bytes).filter(|_| user == sys::effective_user() || user == 0);
            if let Some((proof, packet)) = packet
                && let Some(from) = name::address_of(&datagram.from, self.format)
            {
                if self.auth.accepts(&control::errand(&datagram.from, &self.name, packet), proof) {
                    return Some((from, packet.to_vec()));
                }
                // Once: a requester whose socket has no room for it gives up when its time is over.
                let _ = self.socket.send(&datagram.from, &Message::Rejected { incarnation: 0 }.encode(), &[]);
                tracing::debug!(target: "ofi::shm::ep_ctrl", %from, "refused a request with another authorization key");
                continue;
            }
            tracing::debug!(target: "ofi::shm::ep_ctrl", user, "a passive endpoint dropped a datagram");
        }
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.socket.fd())
    }
}

/// Whether an info's endpoints are connected.
pub fn is_connected(info: &Info) -> bool {
    info.ep_attr.ep_type == ofi_api::EpType::Msg
}
