//! Multicast groups of a datagram endpoint. The application names a group by an IP multicast address. The destination
//! address contains it too, with a queue pair number that all groups share. The network's answer to the join gives the
//! device's address of the group, a GID and a LID, and may take a while. Until then sends to the group fail with
//! `FI_EAGAIN`.
//!
//! The group's Q-Key is not used: the receiving device compares the Q-Key of all datagram endpoints, which members
//! have.

use std::net::IpAddr;
use std::time::Instant;

use ibv::Gid;
use ofi_api::{AddrFormat, Address, Errno, Error, Result};
use ofi_core::transport::{Posted, Upcalls};

use super::Datagrams;
use crate::address::Name;
use crate::errors::failed;
use crate::rc::ud::{GroupAddress, MULTICAST, Membership};
use crate::settings::resolve_timeout;
use crate::{Verbs, address};

/// Maximum number of groups that an endpoint may join.
const MAX_GROUPS: usize = 64;

/// A group that the endpoint has joined, or is joining.
struct DatagramGroup {
    ip: IpAddr,
    receives: bool,
    membership: Box<dyn Membership>,
    stage: Stage,
}

enum Stage {
    /// The deadline of the network's answer.
    Joining(Instant),
    Joined(GroupAddress),
}

impl DatagramGroup {
    /// The address to send to.
    fn name(&self) -> Name {
        Name { gid: Gid::of(self.ip).0, qp: MULTICAST, lid: 0 }
    }

    fn address(&self) -> Option<GroupAddress> {
        match self.stage {
            Stage::Joining(_) => None,
            Stage::Joined(address) => Some(address),
        }
    }
}

/// The groups of an endpoint.
#[derive(Default)]
pub struct Groups {
    all: Vec<DatagramGroup>,
    /// Number of joins that the network has not answered.
    joining: usize,
}

impl Groups {
    /// Number of groups that are joined.
    pub fn joined(&self) -> usize {
        self.all.len() - self.joining
    }

    /// Number of joins that the network has not answered.
    pub fn joining(&self) -> usize {
        self.joining
    }

    /// The GID, if there is one, and the LID for datagrams to `name`. For a group, the network has granted them.
    ///
    /// # Errors
    /// `FI_EAGAIN` while the group is being joined; `FI_EADDRNOTAVAIL` if it is not.
    pub fn resolve(&self, name: Name) -> Result<(Option<[u8; 16]>, u16)> {
        if name.qp != MULTICAST {
            return Ok(((name.gid[8..] != [0; 8]).then_some(name.gid), name.lid));
        }
        let ip = Gid(name.gid).ip();
        if let Some(GroupAddress { gid: Gid(gid), lid }) = self.address_of(ip) {
            return Ok((Some(gid), lid));
        }
        if self.all.iter().any(|group| group.ip == ip) {
            let advice = format!("{ip} is being joined: wait for FI_JOIN_COMPLETE");
            return Err(Error::with(Errno::EAGAIN, advice));
        }
        Err(Error::wanted(
            Errno::EADDRNOTAVAIL,
            "a send to a multicast group",
            "a group that the endpoint has joined",
            ip.to_string(),
            "call fi_join and wait for FI_JOIN_COMPLETE",
        ))
    }

    fn address_of(&self, ip: IpAddr) -> Option<GroupAddress> {
        self.all.iter().filter(|group| group.ip == ip).find_map(DatagramGroup::address)
    }

    /// The earliest deadline of a join.
    fn deadline(&self) -> Option<Instant> {
        let each = self.all.iter().filter_map(|group| match group.stage {
            Stage::Joining(deadline) => Some(deadline),
            Stage::Joined(_) => None,
        });
        each.min()
    }
}

/// The IP address of a group, from an IP address or from an address that joining has returned.
fn ip(group: &Address) -> Result<Option<IpAddr>> {
    if group.format() == AddrFormat::IbUd {
        let name = Name::parse(group)?;
        return Ok((name.qp == MULTICAST).then(|| Gid(name.gid).ip()));
    }
    Ok(Some(address::canonical(address::socket(group)?).ip()))
}

impl Datagrams {
    /// See [`ofi_core::transport::TransportEndpoint::join_group`]. The network may take as long to answer as a
    /// connection may.
    pub fn join_group(&mut self, group: &Address, receives: bool) -> Result<(Address, Posted)> {
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
        if self.groups.all.iter().any(|other| (other.ip, other.receives) == (ip, receives)) {
            let advice = format!("the endpoint has already joined {ip}, or is joining it");
            return Err(Error::with(Errno::EALREADY, advice));
        }
        if self.groups.all.len() >= MAX_GROUPS {
            return Err(Error::with(
                Errno::ENOSPC,
                format!("an endpoint can join at most {MAX_GROUPS} groups"),
            ));
        }
        let membership = self.queues.join(ip).map_err(|error| failed(&error))?;
        self.waiter.watch(membership.fd())?;
        let group = DatagramGroup {
            ip,
            receives,
            membership,
            stage: Stage::Joining(Instant::now() + resolve_timeout()),
        };
        let name = group.name();
        self.groups.all.push(group);
        self.groups.joining += 1;
        self.wake_for_joins();
        Ok((name.encode(), Posted::Pending))
    }

    /// Processes the network's answers to joins, and fails overdue joins.
    #[cold]
    pub(super) fn move_joins<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        let (now, before) = (Instant::now(), self.groups.joining);
        let mut at = 0;
        while at < self.groups.all.len() {
            let Some(result) = self.try_join(at, now) else {
                at += 1;
                continue;
            };
            let group = &mut self.groups.all[at];
            let (ip, name, receives) = (group.ip, group.name().encode(), group.receives);
            self.waiter.forget(group.membership.fd());
            self.groups.joining -= 1;
            match &result {
                Ok(address) => {
                    let GroupAddress { gid, lid } = *address;
                    tracing::debug!(target: "ofi::verbs::ep_ctrl", %ip, gid = %gid.ip(), lid, "joined a group");
                    group.stage = Stage::Joined(*address);
                    at += 1;
                }
                Err(error) => {
                    tracing::warn!(target: "ofi::verbs::ep_ctrl", %ip, %error, "a group was not joined");
                    self.groups.all.remove(at);
                }
            }
            host.joined_group(&name, receives, result.map(drop).map_err(|error| error.errno()));
        }
        if self.groups.joining != before {
            self.wake_for_joins();
        }
    }

    /// Completes a join if the network has answered: from then on, datagrams to the group are received.
    fn try_join(&mut self, at: usize, now: Instant) -> Option<Result<GroupAddress>> {
        let group = &mut self.groups.all[at];
        let Stage::Joining(deadline) = group.stage else { return None };
        if let Some(errno) = self.gone {
            return Some(Err(Error::new(errno)));
        }
        match group.membership.grant() {
            Ok(Some(address)) => {
                let attached = if group.receives { self.queues.attach(address) } else { Ok(()) };
                Some(attached.map(|()| address).map_err(|error| failed(&error)))
            }
            Err(error) => Some(Err(failed(&error))),
            Ok(None) if now < deadline => None,
            Ok(None) => Some(Err(Error::with(
                Errno::ETIMEDOUT,
                "the network has not granted the group in time (FI_VERBS_RESOLVE_TIMEOUT_MS): check that the subnet \
                 manager runs (InfiniBand), and that the interface is up",
            ))),
        }
    }

    /// Sets the timer that wakes sleeping threads when a join is overdue.
    fn wake_for_joins(&self) {
        let deadline = self.groups.deadline();
        self.waiter.wake_after(deadline.map(|at| at.saturating_duration_since(Instant::now())));
    }

    /// See [`ofi_core::transport::TransportEndpoint::leave_group`].
    pub fn leave_group(&mut self, group: &Address, receives: bool) {
        let Ok(Some(ip)) = ip(group) else { return };
        let at = self.groups.all.iter().position(|other| (other.ip, other.receives) == (ip, receives));
        let Some(at) = at else { return };
        let group = self.groups.all.swap_remove(at);
        match group.address() {
            Some(address) if receives => self.queues.detach(address),
            Some(_) => {}
            None => {
                self.waiter.forget(group.membership.fd());
                self.groups.joining -= 1;
                self.wake_for_joins();
            }
        }
        if self.groups.address_of(ip).is_none() {
            self.peers.drop_routes(|name| name.qp == MULTICAST && Gid(name.gid).ip() == ip);
        }
    }
}
