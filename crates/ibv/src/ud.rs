//! Queue pairs for unreliable datagrams.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use crate::abi::*;
use crate::abi_ex::*;
use crate::ah::AddressHandle;
use crate::batch::{Batch, Built, Payload};
use crate::cq::CompletionQueue;
use crate::error::{Error, Result};
use crate::library::verbs;
use crate::multicast::GroupAddress;
use crate::pd::ProtectionDomain;
use crate::qp::extended;
use crate::work::{Post, Segment, Work};

/// Length in bytes of the global route header, which a device writes before the payload of each datagram.
pub const GRH: usize = 40;

/// The attributes of a queue pair for datagrams.
#[derive(Clone)]
pub struct UdAttr {
    /// The domain of its memory.
    pub pd: Arc<ProtectionDomain>,
    /// The completion queue of its sends and receives.
    pub cq: Arc<CompletionQueue>,
    /// Number of sends.
    pub sends: u32,
    /// Number of receives.
    pub receives: u32,
    /// The device's port, counted from 1.
    pub port: u8,
    /// The Q-Key. The queue pair receives only from peers that know it.
    pub qkey: u32,
}

impl UdAttr {
    fn to_init(&self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: self.cq.as_ptr(),
            recv_cq: self.cq.as_ptr(),
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: self.sends,
                max_recv_wr: self.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_UD,
            sq_sig_all: 0,
        }
    }
}

/// The destination of a datagram.
#[derive(Clone, Copy)]
pub struct UdPeer<'a> {
    /// The route to its port.
    pub handle: &'a AddressHandle,
    /// Its queue pair at that port.
    pub qp: u32,
    /// The Q-Key of that queue pair.
    pub qkey: u32,
}

/// A queue pair for datagrams.
pub struct UdQueuePair {
    qp: NonNull<ibv_qp>,
    /// Set for a queue pair with builders.
    built: Option<Built>,
    attr: UdAttr,
    groups: Vec<GroupAddress>,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for UdQueuePair {}
// SAFETY: as above.
unsafe impl Sync for UdQueuePair {}

impl UdQueuePair {
    /// Creates a queue pair that sends and receives.
    ///
    /// # Errors
    /// The errors of ibv_create_qp(3) and ibv_modify_qp(3).
    pub fn new(attr: UdAttr) -> Result<Self> {
        let mut init = attr.to_init();
        // SAFETY: the domain and the queue exist, and outlive the queue pair.
        let qp = unsafe { (verbs()?.ibv_create_qp)(attr.pd.as_ptr(), &mut init) };
        let qp = NonNull::new(qp).ok_or_else(|| Error::last("ibv_create_qp"))?;
        Self { qp, built: None, attr, groups: Vec::new() }.activated()
    }

    /// As [`UdQueuePair::new`], with builders ([`UdQueuePair::requests`]) and `inline` inline bytes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no builders; else the errors of ibv_create_qp_ex(3) and ibv_modify_qp(3).
    pub fn built(attr: UdAttr, inline: u32) -> Result<Self> {
        const OPERATIONS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
        let mut init = extended(&attr.to_init(), attr.pd.as_ptr(), OPERATIONS);
        init.cap.max_inline_data = inline;
        // SAFETY: the domain and the queue exist, belong to the device, and outlive the queue pair.
        let qp = unsafe { attr.pd.context().create_qp_ex(&mut init) }?;
        let qp = NonNull::new(qp).ok_or_else(|| Error::last("ibv_create_qp_ex"))?;
        let mut made = Self { qp, built: None, attr, groups: Vec::new() };
        // SAFETY: created with builders, and destroyed when this value is dropped.
        made.built = Some(unsafe { Built::of(qp, true) }?);
        made.activated()
    }

    /// Starts a batch of datagrams, which [`UdRequests::submit`] posts to the device. Other senders spin until then.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the queue pair was made without builders.
    pub fn requests(&self) -> Result<UdRequests<'_>> {
        let advice = "this queue pair has no builders: create it with them (UdQueuePair::built)";
        let built = self.built.as_ref();
        built
            .map(|built| UdRequests(built.batch()))
            .ok_or_else(|| Error::with("ibv_wr_start", libc::EOPNOTSUPP, advice))
    }

    /// Enables it to send and receive.
    fn activated(self) -> Result<Self> {
        let (port_num, qkey) = (self.attr.port, self.attr.qkey);
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num, qkey, ..Default::default() };
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)?;
        attr.qp_state = IBV_QPS_RTR;
        self.modify(&mut attr, IBV_QP_STATE)?;
        attr.qp_state = IBV_QPS_RTS;
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN)?;
        Ok(self)
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: c_int) -> Result<()> {
        // SAFETY: the queue pair exists, and the structure is that of the interface.
        match unsafe { (verbs()?.ibv_modify_qp)(self.qp.as_ptr(), attr, mask) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_modify_qp", errno)),
        }
    }

    /// Its number on its device.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair exists, and the field is set when it is created.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    /// Starts to receive datagrams sent to a group. The membership must exist as long ([`Multicast`]).
    ///
    /// # Errors
    /// The errors of ibv_attach_mcast(3).
    ///
    /// [`Multicast`]: crate::Multicast
    pub fn attach(&mut self, group: GroupAddress) -> Result<()> {
        // SAFETY: the queue pair exists, and the GID is read during the call.
        match unsafe { (verbs()?.ibv_attach_mcast)(self.qp.as_ptr(), &group.gid.0, group.lid) } {
            0 => self.groups.push(group),
            errno => return Err(Error::of("ibv_attach_mcast", errno)),
        }
        Ok(())
    }

    /// Stops receiving datagrams to a group.
    pub fn detach(&mut self, group: GroupAddress) {
        if let Some(at) = self.groups.iter().position(|other| *other == group) {
            self.groups.swap_remove(at);
            self.detached(group);
        }
    }

    fn detached(&self, group: GroupAddress) {
        if let Ok(verbs) = verbs() {
            // SAFETY: the queue pair exists, and was attached to the group.
            unsafe { (verbs.ibv_detach_mcast)(self.qp.as_ptr(), &group.gid.0, group.lid) };
        }
    }

    /// Posts a datagram, with `data` as immediate data if there is any.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full.
    ///
    /// # Safety
    /// The memory is registered, and lent until the request completes or the queue pair is gone; the handle exists as
    /// long.
    pub unsafe fn send(&self, id: u64, from: Segment, to: UdPeer<'_>, data: Option<u32>) -> Result<()> {
        let Some(post) = self.attr.pd.context().ops().post_send else {
            return Err(Error::of("ibv_post_send", libc::ENOSYS));
        };
        let mut sge = from.into_sge();
        let target = ibv_wr_ud { ah: to.handle.as_ptr(), remote_qpn: to.qp, remote_qkey: to.qkey };
        let mut request = ibv_send_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
            opcode: if data.is_some() { IBV_WR_SEND_WITH_IMM } else { IBV_WR_SEND },
            send_flags: IBV_SEND_SIGNALED,
            imm_data: data.unwrap_or(0).to_be(),
            wr: ibv_wr_target { ud: target },
            xrc: 0,
            bind_mw: ibv_wr_bind::NONE,
        };
        let mut bad = null_mut();
        // SAFETY: a queue pair of this driver, and a request that the driver copies; the caller promises the memory.
        match unsafe { post(self.qp.as_ptr(), &mut request, &mut bad) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_post_send", errno)),
        }
    }

    /// Posts a receive of [`GRH`] bytes and a payload.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full.
    ///
    /// # Safety
    /// The memory is registered for local access, and no other code uses it until the receive ends or the queue pair is
    /// gone.
    pub unsafe fn receive(&self, id: u64, to: Segment) -> Result<()> {
        let Some(post) = self.attr.pd.context().ops().post_recv else {
            return Err(Error::of("ibv_post_recv", libc::ENOSYS));
        };
        let mut sge = to.into_sge();
        let mut request = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: a queue pair of this driver, and a request that the driver copies.
        match unsafe { post(self.qp.as_ptr(), &mut request, &mut bad) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_post_recv", errno)),
        }
    }
}

impl Drop for UdQueuePair {
    fn drop(&mut self) {
        // An attached queue pair cannot be destroyed.
        for group in std::mem::take(&mut self.groups) {
            self.detached(group);
        }
        if let Ok(verbs) = verbs() {
            // SAFETY: made above; its queue and its domain still exist.
            unsafe { (verbs.ibv_destroy_qp)(self.qp.as_ptr()) };
        }
    }
}

/// A batch of datagrams. If it is dropped without [`UdRequests::submit`], none of them is posted.
pub struct UdRequests<'a>(Batch<'a>);

impl UdRequests<'_> {
    /// Adds a datagram, with `data` as immediate data if there is any.
    ///
    /// # Errors
    /// `EINVAL` for more than 8 pieces. Other errors come from [`UdRequests::submit`].
    ///
    /// # Safety
    /// As [`UdQueuePair::send`]; the handle exists until the request ends.
    #[inline]
    pub unsafe fn send(
        &mut self,
        id: u64,
        what: Payload<'_>,
        to: UdPeer<'_>,
        data: Option<u32>,
    ) -> Result<()> {
        let to = Some((to.handle, to.qp, to.qkey));
        // SAFETY: the caller's promise.
        unsafe { self.0.add(id, to, what, Work::Send(data), what.post(Post::default())) }
    }

    /// Posts the whole batch to the device.
    ///
    /// # Errors
    /// The first error of any datagram, in which case none is posted: `ENOMEM` if the queue is full, `EINVAL` for too
    /// many bytes.
    #[inline]
    pub fn submit(self) -> Result<()> {
        self.0.submit()
    }
}
