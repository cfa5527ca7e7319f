//! Connections ([`crate::cm`]): a transport's part of passive endpoints, and its reactions to packets.

use std::os::fd::RawFd;
use std::sync::Arc;

use ofi_api::{Address, Errno, Result};

#[cfg(doc)]
use super::TransportEndpoint;

/// The maximum length of the data that an application attaches, in bytes (`FI_OPT_CM_DATA_SIZE`), as in C libfabric.
pub const DATA_SIZE: usize = 256;

/// Receives and answers the connection packets of a passive endpoint. No packet is lost: it arrives, or the peer's
/// process is gone.
pub trait Port: Send + Sync {
    /// Its address.
    fn address(&self) -> &Address;
    /// The address by which the connecting endpoint at `from` knows this port, if the port has several.
    fn address_towards(&self, from: &Address) -> Address {
        let _ = from;
        self.address().clone()
    }
    /// Sends a packet of up to [`MAX_PACKET`] bytes to a connecting endpoint.
    ///
    /// # Errors
    /// `FI_EAGAIN` if it has to be tried again; others if the peer is gone.
    fn send(&self, to: &Address, packet: &[u8]) -> Result<()>;
    /// Takes the next packet: its sender and its bytes.
    fn receive(&self) -> Option<(Address, Vec<u8>)>;
    /// The data that accepting the just received request with this cookie needs. It is kept with the request and passed
    /// to [`TransportEndpoint::adopt`].
    fn held(&self, _cookie: u64) -> Option<RequestData> {
        None
    }
    /// The error with which the port has lost its device, after which nothing arrives.
    fn lost(&self) -> Option<Errno> {
        None
    }
    /// Readable while packets wait.
    fn wait_fd(&self) -> Option<RawFd>;
}

/// A transport's data of a connection request.
pub type RequestData = Arc<dyn std::any::Any + Send + Sync>;

/// The maximum length of a connection packet, in bytes.
pub const MAX_PACKET: usize = 512;

/// The reaction of the endpoint's transport to a connection packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Nothing.
    Nothing,
    /// [`TransportEndpoint::join`] the sender, and send it this packet.
    Join(Vec<u8>),
    /// Send this packet back.
    Reply(Vec<u8>),
    /// [`TransportEndpoint::part`]: the peer sends no more.
    Part,
}
