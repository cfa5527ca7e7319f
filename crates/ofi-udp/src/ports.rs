//! Ports of sockets without a fixed port: they are taken from `FI_UDP_PORT_RANGE`, so that a firewall can allow them.

use std::io::{Error, ErrorKind, Result};
use std::net::{SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;

use ofi_core::ip::ports::first_free;

use crate::{settings, sys};

/// Opens a socket bound to `address`; with port 0, to a free port of the range.
///
/// # Errors
/// The error of bind(2); `EADDRINUSE` if the range has no free port; `EINVAL` if the setting is not a range.
pub fn bind(address: SocketAddr) -> Result<UdpSocket> {
    if address.port() != 0 {
        return bind_one(address);
    }
    let text = settings::PORT_RANGE
        .checked()
        .map_err(|problem| Error::new(ErrorKind::InvalidInput, problem.to_string()))?;
    match settings::range(&text) {
        Some(range) => bind_in(address, range),
        None => bind_one(address),
    }
}

/// The IPv6 wildcard covers IPv6 only: IPv4 has sockets of its own.
fn bind_one(address: SocketAddr) -> Result<UdpSocket> {
    if address.is_ipv4() || !address.ip().is_unspecified() {
        return UdpSocket::bind(address);
    }
    let system = |error: ofi_api::Error| Error::from_raw_os_error(error.errno().get());
    let socket = UdpSocket::from(sys::unbound(true).map_err(system)?);
    sys::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1);
    sys::bind(socket.as_raw_fd(), address).map_err(system)?;
    Ok(socket)
}

fn bind_in(mut address: SocketAddr, range: RangeInclusive<u16>) -> Result<UdpSocket> {
    let bound = first_free(
        range,
        |error: &Error| error.kind() == ErrorKind::AddrInUse,
        |port| {
            address.set_port(port);
            bind_one(address)
        },
    );
    bound.unwrap_or_else(|| Err(ErrorKind::AddrInUse.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::range;

    #[test]
    fn ranges_are_read_and_nonsense_is_not() {
        assert_eq!(range("7000-7010"), Some(7000..=7010));
        assert_eq!(range(" 7 - 7 "), Some(7..=7));
        assert_eq!(range("65535"), Some(65535..=65535));
        for text in ["", "-", "0-5", "9-8", "1-65536", "a-b", "1-2-3", "1 2"] {
            assert_eq!(range(text), None, "{text}");
        }
    }

    #[test]
    fn each_port_of_a_range_is_given_once_and_then_none_is_left() {
        // Three ports that are free at the moment.
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let free = (20_000..60_000u16)
            .step_by(7)
            .find(|&low| (low..low + 3).all(|port| UdpSocket::bind((any.ip(), port)).is_ok()));
        let low = free.expect("three free ports");
        let sockets: Vec<UdpSocket> = (0..3).map(|_| bind_in(any, low..=low + 2).unwrap()).collect();
        let mut ports: Vec<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        ports.sort_unstable();
        assert_eq!(ports, [low, low + 1, low + 2]);
        assert_eq!(bind_in(any, low..=low + 2).unwrap_err().kind(), ErrorKind::AddrInUse);
    }
}
