//! Listening sockets. One without a fixed port takes a port from `FI_TCP_PORT_LOW_RANGE` to `FI_TCP_PORT_HIGH_RANGE`,
//! so that a firewall can allow them.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};

use ofi_api::{Errno, Error, Result};
use ofi_core::ip::ports::first_free;

use crate::{address, settings, sys};

/// The port range of the settings; `None` for any port. As in C libfabric, a reversed range is ignored.
fn range(low: usize, high: usize) -> Option<RangeInclusive<u16>> {
    let (low, high) = (u16::try_from(low).ok()?, u16::try_from(high).ok()?);
    (high != 0 && low <= high).then_some(low.max(1)..=high)
}

/// A listening socket at `address`, and its address; for port 0, with a free port of the range.
///
/// # Errors
/// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`; `FI_EADDRNOTAVAIL` if the range has no free port.
pub fn listen(address: SocketAddr) -> Result<(OwnedFd, SocketAddr)> {
    let range = range(settings::PORT_LOW.get(), settings::PORT_HIGH.get());
    let socket = match range.filter(|_| address.port() == 0) {
        Some(range) => listen_in(address, range),
        None => sys::listen(address),
    };
    named(socket, address)
}

/// A socket bound to `address`, from which to connect. As in C libfabric, the range does not apply to it.
///
/// # Errors
/// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`.
pub fn bind(address: SocketAddr) -> Result<(OwnedFd, SocketAddr)> {
    named(sys::bound(address), address)
}

fn named(socket: Result<OwnedFd>, address: SocketAddr) -> Result<(OwnedFd, SocketAddr)> {
    let socket = socket.map_err(|error| {
        let wanted = "an address and port of this host that are free";
        let advice = "leave the port 0, or choose another address with FI_SOURCE or fi_setname";
        Error::wanted(
            error.errno(),
            "the address of an endpoint",
            wanted,
            format!("{address}: {error}"),
            advice,
        )
    })?;
    let bound = sys::name(socket.as_fd()).map_or(address, address::canonical);
    Ok((socket, bound))
}

fn listen_in(mut address: SocketAddr, range: RangeInclusive<u16>) -> Result<OwnedFd> {
    let none = format!("no port from {} to {} is free", range.start(), range.end());
    let socket = first_free(
        range,
        |error: &Error| error.errno() == Errno::EADDRINUSE,
        |port| {
            address.set_port(port);
            sys::listen(address)
        },
    );
    let text = || format!("FI_TCP_PORT_LOW_RANGE, FI_TCP_PORT_HIGH_RANGE: {none}");
    socket.unwrap_or_else(|| Err(Error::with(Errno::EADDRNOTAVAIL, text())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression test: the kernel remembers a connection for a minute after its end.
    #[test]
    fn a_port_is_free_again_after_its_connection() {
        let peer = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (socket, at) = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let _ = rustix::net::connect(&socket, &peer.local_addr().unwrap()); // in progress
        let (mut accepted, from) = peer.accept().unwrap();
        assert_eq!(from, at);
        drop(socket); // ends first, so that its end of the connection is the one that lingers
        std::io::copy(&mut accepted, &mut std::io::sink()).unwrap();
        drop(accepted);
        bind(at).unwrap();
    }

    #[test]
    fn ranges_are_as_in_c() {
        assert_eq!(range(7000, 7010), Some(7000..=7010));
        assert_eq!(range(0, 7010), Some(1..=7010));
        assert_eq!(range(7, 7), Some(7..=7));
        for (low, high) in [(0, 0), (7, 0), (9, 8), (0, 65_536)] {
            assert_eq!(range(low, high), None, "{low} {high}");
        }
    }

    #[test]
    fn each_port_of_a_range_is_given_once_and_then_none_is_left() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let bind = |port| std::net::TcpListener::bind((any.ip(), port));
        let low = (20_000..60_000u16).step_by(7).find(|&low| (low..low + 3).all(|port| bind(port).is_ok()));
        let low = low.expect("three free ports");
        let sockets: Vec<OwnedFd> = (0..3).map(|_| listen_in(any, low..=low + 2).unwrap()).collect();
        let name = |socket: &OwnedFd| sys::name(socket.as_fd()).unwrap().port();
        let mut ports: Vec<u16> = sockets.iter().map(name).collect();
        ports.sort_unstable();
        assert_eq!(ports, [low, low + 1, low + 2]);
        assert_eq!(listen_in(any, low..=low + 2).unwrap_err().errno(), Errno::EADDRNOTAVAIL);
    }
}
