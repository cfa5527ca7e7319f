//! Memberships in multicast groups, which rdma_cm requests from the network.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::ptr::{from_mut, null_mut};

use crate::abi::*;
use crate::cm::{CmId, EventChannel};
use crate::device::{Context, Gid};
use crate::error::{Error, Result};
use crate::name::to_storage;

/// A membership in a group, or a pending request for one; dropping it leaves the group. Queue pairs that are attached
/// to the group receive its datagrams ([`crate::UdQueuePair::attach`]). On InfiniBand a sender needs the membership
/// too.
pub struct Multicast {
    id: CmId,
    address: libc::sockaddr_storage,
    grant: Option<GroupAddress>,
}

/// The address of a group, as granted by the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupAddress {
    /// The GID that datagrams to the group are sent to.
    pub gid: Gid,
    /// The LID that they are sent to (InfiniBand).
    pub lid: u16,
}

const CALL: &str = "rdma_join_multicast";

impl Multicast {
    /// Starts joining the group of an IP multicast address, on the device with the local address `own`. Does not wait:
    /// [`Multicast::grant`] returns the network's answer.
    ///
    /// # Errors
    /// The errors of rdma_join_multicast(3); `EXDEV` if `own` belongs to another device.
    pub fn join(context: Context, own: IpAddr, group: IpAddr) -> Result<Self> {
        if !group.is_multicast() {
            return Err(Error::with(CALL, libc::EINVAL, "give an address of 224.0.0.0/4 or ff00::/8"));
        }
        let channel = EventChannel::new()?;
        let id = CmId::with(&channel, RDMA_PS_UDP)?;
        id.bind(SocketAddr::new(own, 0))?;
        if id.context() != Some(context) {
            return Err(Error::with(CALL, libc::EXDEV, "this address belongs to another device"));
        }
        let mut address = to_storage(SocketAddr::new(group, 0));
        // SAFETY: the identifier exists, and the address has the form of its family.
        let failed = unsafe {
            (channel.cm.rdma_join_multicast)(id.id.as_ptr(), from_mut(&mut address).cast(), null_mut())
        };
        if failed != 0 {
            return Err(Error::last(CALL));
        }
        // From here on a drop leaves the group.
        Ok(Self { id, address, grant: None })
    }

    /// The descriptor that is readable while an answer from the network is queued.
    pub fn fd(&self) -> RawFd {
        self.id.channel().fd()
    }

    /// The group's address, from the network's answer. `None` until the answer has arrived.
    ///
    /// # Errors
    /// The error with which the network or the kernel refuses the membership; `ENODEV` if the device was removed.
    pub fn grant(&mut self) -> Result<Option<GroupAddress>> {
        if self.grant.is_none() {
            self.grant = self.answer()?;
        }
        Ok(self.grant)
    }

    /// Processes an event.
    fn answer(&self) -> Result<Option<GroupAddress>> {
        let channel = self.id.channel();
        let mut event: *mut rdma_cm_event = null_mut();
        // SAFETY: the channel exists, and does not block.
        if unsafe { (channel.cm.rdma_get_cm_event)(channel.channel.as_ptr(), &mut event) } != 0 {
            let error = Error::last("rdma_get_cm_event");
            return if matches!(error.errno, libc::EAGAIN | libc::EINTR) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the event was not acknowledged yet.
        let seen = unsafe { &*event };
        let answer = match seen.event {
            RDMA_CM_EVENT_MULTICAST_JOIN => {
                let param: *const rdma_ud_param = (&raw const seen.conn).cast();
                // SAFETY: events of groups use the union's member for datagrams, which has the room that `conn` and
                // `rest` have together.
                let way = unsafe { (*param).ah_attr };
                let dgid = way.grh.dgid.map(u64::to_ne_bytes);
                let gid = Gid(std::array::from_fn(|at| dgid[at / 8][at % 8]));
                Ok(Some(GroupAddress { gid, lid: way.dlid }))
            }
            RDMA_CM_EVENT_MULTICAST_ERROR => match seen.status {
                0 => Err(Error::of(CALL, libc::EIO)),
                status => Err(Error::of(CALL, status.abs())),
            },
            RDMA_CM_EVENT_DEVICE_REMOVAL => Err(Error::of(CALL, libc::ENODEV)),
            _ => Ok(None),
        };
        // SAFETY: the event was taken above, and is no longer used.
        unsafe { (channel.cm.rdma_ack_cm_event)(event) };
        answer
    }
}

impl Drop for Multicast {
    fn drop(&mut self) {
        let leave = self.id.channel().cm.rdma_leave_multicast;
        // SAFETY: the identifier has requested this membership, possibly without an answer yet. Every event of it that
        // was read has been acknowledged, so this does not wait.
        unsafe { leave(self.id.id.as_ptr(), from_mut(&mut self.address).cast()) };
    }
}
