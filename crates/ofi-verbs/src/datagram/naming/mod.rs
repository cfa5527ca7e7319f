//! Endpoints by node and service. The device chooses the number of a queue pair, so a peer cannot derive an address
//! from a host's name. Each host has a name server, in the first process that opens an endpoint with a service, and
//! `getinfo` queries the node's server. C libfabric's verbs provider has the same servers and requests (`wire.rs`).
//!
//! When the serving process ends, all names of the host are lost: endpoints of other processes are unknown until they
//! are opened again.

mod server;
mod wire;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi_api::Address;

use self::server::Server;
use self::wire::{MAX_MESSAGE_LEN, NameRequest};
use crate::settings;

/// Timeout of the connection to a name server, and of its answer.
const NAME_SERVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The name of an endpoint, at this host's name server until it is dropped.
pub struct Registered {
    service: u32,
    name: Address,
    port: u16,
    /// The server, if this process runs it.
    server: Option<Arc<Server>>,
}

impl Registered {
    /// Adds the name. `None` for an endpoint without a service, and where name servers are disabled.
    pub fn new(service: u16, name: &Address) -> Option<Self> {
        if service == 0 || !settings::DGRAM_USE_NAME_SERVER.get() {
            return None;
        }
        let (service, port) = (u32::from(service), settings::DGRAM_NAME_SERVER_PORT.get() as u16);
        let server = Server::get(port).unwrap_or_else(|error| {
            tracing::warn!(target: "ofi::verbs::ep_ctrl", %error, port, "no name server: peers must be given addresses");
            None
        });
        match &server {
            Some(server) => server.add(service, name),
            None => tell(port, &NameRequest::Add(service, name.clone())),
        }
        Some(Self { service, name: name.clone(), port, server })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        match &self.server {
            Some(server) => server.remove(self.service, &self.name),
            None => tell(self.port, &NameRequest::Remove(self.service, self.name.clone())),
        }
    }
}

/// Sends a request to the server of another process of this host.
fn tell(port: u16, request: &NameRequest) {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let sent = TcpStream::connect_timeout(&to, NAME_SERVER_TIMEOUT).and_then(|mut stream| {
        stream.set_write_timeout(Some(NAME_SERVER_TIMEOUT))?;
        stream.write_all(&request.encode())
    });
    if let Err(error) = sent {
        tracing::warn!(target: "ofi::verbs::ep_ctrl", %error, port, "this host's name server does not answer");
    }
}

/// The endpoint with a service at the host that has this address.
///
/// # Errors
/// The system's error, or [`ErrorKind::NotFound`] if no endpoint has the service.
pub fn find(host: IpAddr, service: u32) -> io::Result<Address> {
    let to = SocketAddr::new(host, settings::DGRAM_NAME_SERVER_PORT.get() as u16);
    let mut stream = TcpStream::connect_timeout(&to, NAME_SERVER_TIMEOUT)?;
    stream.set_write_timeout(Some(NAME_SERVER_TIMEOUT))?;
    stream.write_all(&NameRequest::Query(service).encode())?;
    let (mut answer, until) = (Vec::new(), Instant::now() + NAME_SERVER_TIMEOUT);
    while answer.len() < MAX_MESSAGE_LEN {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut buffer = [0; MAX_MESSAGE_LEN];
        match stream.read(&mut buffer[..MAX_MESSAGE_LEN - answer.len()]) {
            Ok(0) => break,
            Ok(len) => answer.extend(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    wire::parse_answer(&answer).ok_or_else(|| ErrorKind::NotFound.into())
}
