//! Endpoints of type `FI_EP_DGRAM`: each message is a bare datagram, so any UDP program can be the peer, for example C
//! libfabric's `udp`. If the application requested tags, remote CQ data or remote memory, a small header precedes it
//! (`header.rs`).
//!
//! Messages are neither acknowledged nor resent. A message without room is dropped and counted. Accesses to remote
//! memory are reliable: they use sessions on the same socket (`beside.rs`).

mod beside;
mod groups;
mod header;
mod messages;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use ofi_api::{AddrFormat, Address, Caps, Errno, Error, Info, Result, Statistic};
use ofi_core::transport::{Arm, OutMessage, PeerId, Posted, Upcalls};

use crate::Udp;
use crate::address;
use crate::settings;
use crate::socket::Socket;
pub use beside::SharedNumbers;
pub use header::{MAGIC, MAX_HEADER_LEN};
pub use messages::{Messages, PeerNumbers};

/// Maximum number of batches that one poll receives.
const ROUNDS: usize = 4;

/// Peers by number, and by address.
#[derive(Default)]
struct Peers {
    peers: Vec<SocketAddr>,
    /// Numbers of removed peers.
    free: Vec<PeerId>,
    /// Hashed with a secret, because strangers choose their addresses.
    by_address: HashMap<SocketAddr, PeerId>,
}

impl PeerNumbers for Peers {
    fn find(&self, socket: SocketAddr) -> Option<PeerId> {
        self.by_address.get(&socket).copied()
    }

    fn meet<H: Upcalls<Udp>>(&mut self, host: &mut H, socket: SocketAddr) -> PeerId {
        if let Some(peer) = self.find(socket) {
            return peer;
        }
        let peer = match self.free.pop() {
            Some(peer) => {
                self.peers[peer as usize] = socket;
                peer
            }
            None => {
                self.peers.push(socket);
                self.peers.len() as PeerId - 1
            }
        };
        self.by_address.insert(socket, peer);
        host.introduce(peer, &Address::from(socket));
        peer
    }

    fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        self.peers.get(peer as usize).copied()
    }

    fn forget<H: Upcalls<Udp>>(&mut self, host: &mut H, peer: PeerId) -> bool {
        let Some(&socket) = self.peers.get(peer as usize) else { return false };
        if !host.retire(peer) {
            return false;
        }
        self.by_address.remove(&socket);
        self.free.push(peer);
        true
    }
}

/// The peers of an endpoint without sessions.
pub struct Datagrams {
    socket: Socket,
    peers: Peers,
    messages: Messages,
}

/// Whether an info's endpoints send each message as a datagram.
pub fn is_datagram(info: &Info) -> bool {
    info.ep_attr.ep_type == ofi_api::EpType::Dgram
}

/// Whether an info's endpoints have sessions.
pub fn has_sessions(info: &Info) -> bool {
    !is_datagram(info) || info.caps.contains(Caps::RMA)
}

/// Refuses an authorization key.
///
/// # Errors
/// `FI_EINVAL` if there is one.
pub fn without_key(info: &Info) -> Result<()> {
    if info.ep_attr.auth_key.is_empty() {
        return Ok(());
    }
    Err(Error::with(
        Errno::EINVAL,
        "datagram endpoints have no authorization keys; leave ep_attr.auth_key empty, or use FI_EP_RDM",
    ))
}

impl Datagrams {
    /// Binds the socket.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`, `FI_EMFILE`, `FI_ENOMEM`.
    pub fn new(info: &Info, name: Option<&Address>) -> Result<Self> {
        without_key(info)?;
        let name = name.map(address::socket).transpose()?;
        let wanted = address::to_bind(name, None, info.addr_format == AddrFormat::SockaddrIn6)?;
        let wanted = address::beside_groups(info, wanted)?;
        let socket =
            Socket::new(wanted, settings::SOCKET_BUFFER.get(), settings::SEGMENTS.get(), settings::driver())?;
        Ok(Self { socket, peers: Peers::default(), messages: Messages::new(info) })
    }

    /// Its address.
    pub fn address(&self) -> Address {
        Address::from(self.socket.name())
    }

    /// See [`ofi_core::transport::TransportEndpoint::peer`].
    pub fn peer<H: Upcalls<Udp>>(&mut self, host: &mut H, address: &Address) -> Result<PeerId> {
        let socket = address::socket(address)?;
        if socket.is_ipv4() != self.socket.address.is_ipv4() || socket.port() == 0 {
            return Err(Error::with(
                Errno::EADDRNOTAVAIL,
                format!(
                    "{socket} cannot be reached from {}: it needs a port, and the same address family",
                    self.socket.address
                ),
            ));
        }
        self.messages.look_again();
        Ok(self.peers.meet(host, socket))
    }

    /// See [`ofi_core::transport::TransportEndpoint::send_now`].
    ///
    /// # Safety
    /// `from` may be read for `len` bytes.
    #[inline]
    pub unsafe fn send_now(&mut self, peer: PeerId, from: *const u8, len: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.messages.send_now(&mut self.socket, &self.peers, peer, from, len) }
    }

    /// See [`ofi_core::transport::TransportEndpoint::send`].
    pub fn send(&mut self, out: &OutMessage<'_>) -> Result<Posted> {
        self.messages.send(&mut self.socket, &self.peers, out)
    }

    /// See [`ofi_core::transport::TransportEndpoint::poll`].
    pub fn poll<H: Upcalls<Udp>>(&mut self, host: &mut H) {
        for _ in 0..ROUNDS {
            if !host.hungry() {
                return;
            }
            let (got, more) = self.socket.receive();
            for index in 0..got {
                let (bytes, from) = self.socket.datagram(index);
                let (body, len) = (bytes.as_ptr(), bytes.len());
                // SAFETY: the datagram stays where it is until the next receive.
                unsafe { self.messages.take(host, &mut self.peers, from, body, len) };
            }
            if !more {
                break;
            }
        }
        let refused = std::mem::take(&mut self.socket.refused).len();
        self.messages.refused(refused);
        self.messages.poll_groups(host, &mut self.peers);
    }

    /// See [`ofi_core::transport::TransportEndpoint::arm`].
    pub fn arm(&mut self) -> Arm {
        let now = Some(std::time::Instant::now());
        if self.socket.holds() || ofi_core::sys::wait_readable(&[self.socket.fd()], now) {
            Arm::Ready
        } else {
            Arm::Armed
        }
    }

    /// Readable when datagrams wait.
    pub fn wait_fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// See [`ofi_core::transport::TransportEndpoint::join_group`].
    pub fn join_group(&mut self, group: &Address) -> Result<Address> {
        self.messages.join_group(&self.socket, group)
    }

    /// See [`ofi_core::transport::TransportEndpoint::leave_group`].
    pub fn leave_group(&mut self, group: &Address) {
        self.messages.leave_group(group);
    }

    /// See [`ofi_core::transport::TransportEndpoint::statistics`].
    pub fn statistics(&self, into: &mut Vec<Statistic>) {
        let peers = self.peers.peers.len() as u64;
        into.push(Statistic { name: "udp_peers", value: peers, help: "peers met" });
        self.messages.statistics(&self.socket, into);
    }
}
