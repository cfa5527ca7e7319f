//! The sockets of passive endpoints.

use std::os::fd::RawFd;

use ofi_api::{AddrFormat, Address, Info, Result};
use ofi_core::auth::AuthKey;
use ofi_core::transport::Port;

use crate::control::{self, ControlMessage};
use crate::name;
use crate::sys::{self, ControlSocket};

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
        let proof = self.auth.proof(&control::packet_text(&self.name, &to, packet));
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
                if self.auth.accepts(&control::packet_text(&datagram.from, &self.name, packet), proof) {
                    return Some((from, packet.to_vec()));
                }
                // Sent once: a requester whose socket has no room for it gives up when its time is over.
                let _ = self.socket.send(
                    &datagram.from,
                    &ControlMessage::Rejected { incarnation: 0 }.encode(),
                    &[],
                );
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
