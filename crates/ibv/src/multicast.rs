//! Multicast groups: memberships, which rdma_cm requests from the network.

use std::net::{IpAddr, SocketAddr};
use std::ptr::{from_mut, null_mut};
use std::time::{Duration, Instant};

use crate::abi::*;
use crate::cm::{CmId, EventChannel};
use crate::device::{Context, Gid};
use crate::error::{Error, Result};
use crate::name::to_storage;

/// A membership of a group, as long as this exists. Queue pairs that are attached to the group receive what is sent to
/// it ([`crate::UdQueuePair::attach`]); a sender needs the membership on InfiniBand.
pub struct Multicast {
    id: CmId,
    address: libc::sockaddr_storage,
    gid: Gid,
    lid: u16,
}

const CALL: &str = "rdma_join_multicast";

impl Multicast {
    /// Joins the group of an IP multicast address, on the device with the address `own`. Waits for the network.
    ///
    /// # Errors
    /// The errors of rdma_join_multicast(3); `EXDEV` if `own` is another device's; `ETIMEDOUT` after `limit`.
    pub fn join(context: Context, own: IpAddr, group: IpAddr, limit: Duration) -> Result<Self> {
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
        let mut made = Self { id, address, gid: Gid([0; 16]), lid: 0 };
        let end = Instant::now() + limit;
        while !made.is_granted(&channel)? {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::of(CALL, libc::ETIMEDOUT));
            }
            let mut fd = libc::pollfd { fd: channel.fd(), events: libc::POLLIN, revents: 0 };
            let left = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
            // SAFETY: one structure.
            unsafe { libc::poll(&mut fd, 1, left) };
        }
        Ok(made)
    }

    /// Whether the network has answered; takes the group's address from the answer.
    fn is_granted(&mut self, channel: &EventChannel) -> Result<bool> {
        let mut event: *mut rdma_cm_event = null_mut();
        // SAFETY: the channel exists, and does not block.
        if unsafe { (channel.cm.rdma_get_cm_event)(channel.channel.as_ptr(), &mut event) } != 0 {
            let error = Error::last("rdma_get_cm_event");
            return if matches!(error.errno, libc::EAGAIN | libc::EINTR) { Ok(false) } else { Err(error) };
        }
        // SAFETY: the event was not acknowledged yet.
        let seen = unsafe { &*event };
        let answer = match seen.event {
            RDMA_CM_EVENT_MULTICAST_JOIN => {
                let param: *const rdma_ud_param = (&raw const seen.conn).cast();
                // SAFETY: events of groups use the union's member for datagrams, which has the room that `conn` and
                // `rest` have together.
                let grant = unsafe { (*param).ah_attr };
                let dgid = grant.grh.dgid.map(u64::to_ne_bytes);
                self.gid = Gid(std::array::from_fn(|at| dgid[at / 8][at % 8]));
                self.lid = grant.dlid;
                Ok(true)
            }
            RDMA_CM_EVENT_MULTICAST_ERROR => match seen.status {
                0 => Err(Error::of(CALL, libc::EIO)),
                status => Err(Error::of(CALL, status.abs())),
            },
            _ => Ok(false),
        };
        // SAFETY: the event was taken above, and is no longer used.
        unsafe { (channel.cm.rdma_ack_cm_event)(event) };
        answer
    }

    /// The GID that datagrams to the group are sent to.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The LID that they are sent to (InfiniBand).
    pub fn lid(&self) -> u16 {
        self.lid
    }
}

impl Drop for Multicast {
    fn drop(&mut self) {
        let leave = self.id.channel().cm.rdma_leave_multicast;
        // SAFETY: the identifier has joined this group; every event of it that was taken has been acknowledged, so this
        // does not wait.
        unsafe { leave(self.id.id.as_ptr(), from_mut(&mut self.address).cast()) };
    }
}
