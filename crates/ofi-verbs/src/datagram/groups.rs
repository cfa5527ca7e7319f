//! Multicast groups of a datagram endpoint. The application names a group by an IP multicast address. The device's name
//! for it is a GID, to which datagrams are sent as to a peer, under a queue pair number that all groups share. So
//! joining returns an address like a peer's, and the endpoint sends to a group as to a peer.
//!
//! The key of the group is not used: members have the key of all datagram endpoints, which the receiving device
//! compares.

use std::net::IpAddr;

use ibv::Gid;
use ofi_api::{AddrFormat, Address, Errno, Error, Result};

use super::{Datagrams, Name};
use crate::meeting::limit;
use crate::rc::ud::MULTICAST;
use crate::{address, failed};

/// Most groups of an endpoint.
const MOST: usize = 64;

/// A group that was joined.
pub struct Joined {
    ip: IpAddr,
    name: Name,
    receives: bool,
}

/// The IP address of a group: given as such, or as an address that joining has returned.
fn ip(group: &Address) -> Result<Option<IpAddr>> {
    if group.format() == AddrFormat::IbUd {
        let name = Name::parse(group)?;
        return Ok((name.qp == MULTICAST).then(|| Gid(name.gid).ip()));
    }
    Ok(Some(address::canonical(address::socket(group)?).ip()))
}

impl Datagrams {
    /// See [`ofi_core::transport::Lanes::join_group`]. Waits for the network as long as a connection may.
    pub fn join_group(&mut self, group: &Address, receives: bool) -> Result<Address> {
        if let Some(errno) = self.gone {
            return Err(Error::new(errno));
        }
        let own = Gid(self.name.gid).ip();
        let ip = ip(group)?.filter(|ip| ip.is_multicast() && ip.is_ipv4() == own.is_ipv4());
        let Some(ip) = ip else {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the address given to fi_join",
                "an IP multicast group of the endpoint's family",
                format!("{group}, at an endpoint of {own}"),
                "give a FI_SOCKADDR_IN of 224.0.0.0/4 or a FI_SOCKADDR_IN6 of ff00::/8",
            ));
        };
        if self.groups.iter().any(|other| (other.ip, other.receives) == (ip, receives)) {
            return Err(Error::with(Errno::EALREADY, format!("the endpoint has already joined {ip}")));
        }
        if self.groups.len() >= MOST {
            return Err(Error::with(Errno::ENOSPC, format!("an endpoint can join at most {MOST} groups")));
        }
        let (gid, lid) = self.queues.join(ip, receives, limit()).map_err(|error| failed(&error))?;
        let name = Name { gid, qp: MULTICAST, lid };
        self.groups.push(Joined { ip, name, receives });
        Ok(name.encode())
    }

    /// See [`ofi_core::transport::Lanes::leave_group`].
    pub fn leave_group(&mut self, group: &Address, receives: bool) {
        let Ok(name) = Name::parse(group) else { return };
        let at = self.groups.iter().position(|other| (other.name, other.receives) == (name, receives));
        if let Some(at) = at {
            self.groups.swap_remove(at);
            self.queues.leave(name.gid, receives);
        }
    }
}
