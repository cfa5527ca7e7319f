//! Multicast groups that an endpoint has joined. Each has a socket of its own, bound to the group: a socket bound to an
//! address of the host receives only what is sent to that address.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use ofi_api::{Errno, Error, Result};

use crate::sys;

/// Maximum number of groups that an endpoint may join.
const MAX_GROUPS: usize = 64;

/// The joined multicast groups of an endpoint, with a socket each.
#[derive(Default)]
pub struct Groups(Vec<(SocketAddr, UdpSocket)>);

impl Groups {
    /// Joins `group` on the interface of `own`. Returns the socket to listen to.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is not a group of the endpoint's family; `FI_EALREADY`; `FI_ENOSPC`; the system's errors.
    pub fn join(&mut self, group: SocketAddr, own: SocketAddr) -> Result<&UdpSocket> {
        if !group.ip().is_multicast() || group.is_ipv4() != own.is_ipv4() {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the address given to fi_join",
                "a multicast group of the endpoint's family",
                format!("{group}, at an endpoint of {own}"),
                "give an address of 224.0.0.0/4 or ff00::/8",
            ));
        }
        if self.0.iter().any(|(other, _)| *other == group) {
            return Err(Error::with(Errno::EALREADY, format!("the endpoint has already joined {group}")));
        }
        if self.0.len() >= MAX_GROUPS {
            return Err(Error::with(
                Errno::ENOSPC,
                format!("an endpoint can join at most {MAX_GROUPS} groups"),
            ));
        }
        let fd = sys::unbound(group.is_ipv6())?;
        sys::share_address(fd.as_raw_fd())?;
        sys::bind(fd.as_raw_fd(), group)?;
        let socket = UdpSocket::from(fd);
        let joined = match (group, own.ip()) {
            (SocketAddr::V4(group), IpAddr::V4(own)) => socket.join_multicast_v4(group.ip(), &own),
            (SocketAddr::V6(group), _) => {
                let named = group.scope_id();
                socket.join_multicast_v6(group.ip(), if named == 0 { interface(own) } else { named })
            }
            _ => return Err(Error::new(Errno::EINVAL)),
        };
        joined.map_err(|_| ofi_core::sys::os_error("joining a multicast group"))?;
        self.0.push((group, socket));
        self.0.last().map(|(_, socket)| socket).ok_or_else(|| Error::new(Errno::ENOSPC))
    }

    /// Leaves a group.
    pub fn leave(&mut self, group: SocketAddr) {
        self.0.retain(|(other, _)| *other != group);
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The socket of one.
    pub fn socket(&self, index: usize) -> &UdpSocket {
        &self.0[index].1
    }

    /// Datagrams that found no room.
    pub fn dropped(&self) -> u64 {
        self.0.iter().map(|(_, socket)| sys::dropped(socket)).sum()
    }
}

/// The number of the interface with the address `own`; 0, the system's choice, if it is unknown.
pub fn interface(own: SocketAddr) -> u32 {
    let SocketAddr::V6(own) = own else { return 0 };
    if own.scope_id() != 0 {
        return own.scope_id();
    }
    let table = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let digits: String = own.ip().octets().iter().map(|byte| format!("{byte:02x}")).collect();
    let line = table.lines().find(|line| line.starts_with(&digits));
    line.and_then(|line| u32::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()).unwrap_or(0)
}
