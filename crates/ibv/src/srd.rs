//! Queue pairs for scalable reliable datagrams (SRD), of EFA devices: reliable, to any peer, unordered.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use crate::abi::*;
use crate::abi_ex::*;
use crate::ah::AddressHandle;
use crate::batch::{Batch, Built, PIECES, Payload};
use crate::cq_ex::EfaCompletionQueue;
use crate::error::{Error, Result};
use crate::library::{efa, verbs};
use crate::pd::ProtectionDomain;
use crate::work::{Post, Remote, Segment, Work};

/// The attributes of a queue pair. [`crate::EfaInfo`] has the limits.
#[derive(Clone)]
pub struct SrdAttr {
    /// The domain of its memory.
    pub pd: Arc<ProtectionDomain>,
    /// The completion queue of its requests.
    pub send_cq: Arc<EfaCompletionQueue>,
    /// The completion queue of its receives.
    pub receive_cq: Arc<EfaCompletionQueue>,
    /// Number of requests.
    pub sends: u32,
    /// Number of receives.
    pub receives: u32,
    /// Maximum number of memory pieces in one send.
    pub send_pieces: u32,
    /// Maximum number of memory pieces in one receive.
    pub receive_pieces: u32,
    /// The maximum inline bytes of a send. More than [`crate::EfaInfo::max_inline`] makes all requests longer.
    pub inline: u32,
    /// Whether peers' writes with immediate data consume no receive. Both ends must agree.
    pub unsolicited: bool,
    /// The service level: 8 for low latency, 0 for none.
    pub service_level: u8,
}

/// A queue pair for scalable reliable datagrams.
pub struct SrdQueuePair {
    qp: NonNull<ibv_qp>,
    built: Built,
    attr: SrdAttr,
}

// SAFETY: functions of libibverbs may be called from any thread; a batch of requests holds the queue's lock.
unsafe impl Send for SrdQueuePair {}
// SAFETY: as above.
unsafe impl Sync for SrdQueuePair {}

/// The destination of a request.
#[derive(Clone, Copy)]
pub struct SrdPeer<'a> {
    /// The route to the peer's device.
    pub ah: &'a AddressHandle,
    /// The peer's queue pair.
    pub qp: u32,
    /// The Q-Key of that queue pair.
    pub qkey: u32,
}

impl SrdQueuePair {
    /// Creates a queue pair, which neither sends nor receives before [`SrdQueuePair::activate`].
    ///
    /// # Errors
    /// `EINVAL` for objects of two devices, or more inline bytes than the device allows; else those of
    /// efadv_create_qp_ex(3): `unsolicited` and a service level need a libefa of rdma-core 53 or newer.
    pub fn new(attr: SrdAttr) -> Result<Arc<Self>> {
        let context = attr.pd.context();
        let info = context.efa()?;
        let call = "efadv_create_qp_ex";
        if attr.send_cq.context() != context || attr.receive_cq.context() != context {
            return Err(Error::with(call, libc::EINVAL, "a completion queue belongs to another device"));
        }
        if attr.inline > u32::from(info.max_inline_long) {
            let advice =
                format!("the device takes {} bytes inline, not {}", info.max_inline_long, attr.inline);
            return Err(Error::with(call, libc::EINVAL, advice));
        }
        let mut operations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
        operations |= if info.read { IBV_QP_EX_WITH_RDMA_READ } else { 0 };
        let write = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        operations |= if info.write { write } else { 0 };
        let mut init = ibv_qp_init_attr_ex {
            qp_context: null_mut(),
            send_cq: attr.send_cq.as_ptr(),
            recv_cq: attr.receive_cq.as_ptr(),
            srq: null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: attr.sends,
                max_recv_wr: attr.receives,
                max_send_sge: attr.send_pieces,
                max_recv_sge: attr.receive_pieces,
                max_inline_data: attr.inline,
            },
            qp_type: IBV_QPT_DRIVER,
            sq_sig_all: 1,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: attr.pd.as_ptr(),
            xrcd: null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: null_mut(),
            rx_hash_conf: [0; 3],
            source_qpn: 0,
            send_ops_flags: operations,
        };
        let mut more = efadv_qp_init_attr {
            driver_qp_type: EFADV_QP_DRIVER_TYPE_SRD,
            flags: if attr.unsolicited { EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV } else { 0 },
            sl: attr.service_level,
            ..Default::default()
        };
        let len = size_of::<efadv_qp_init_attr>() as u32;
        // SAFETY: an open context, objects of it, and structures of the interface.
        let qp = unsafe { (efa()?.efadv_create_qp_ex)(context.as_ptr(), &mut init, &mut more, len) };
        let qp = NonNull::new(qp).ok_or_else(|| Error::last(call))?;
        // SAFETY: a queue pair, which was created with its own operations, and is destroyed when this value is dropped.
        match unsafe { Built::of(qp, true) } {
            Ok(built) => Ok(Arc::new(Self { qp, built, attr })),
            Err(error) => {
                // SAFETY: made above.
                unsafe { (verbs()?.ibv_destroy_qp)(qp.as_ptr()) };
                Err(error)
            }
        }
    }

    fn as_qp(&self) -> *mut ibv_qp {
        self.qp.as_ptr()
    }

    /// Its number on its device.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair exists, and the field is set when it is created.
        unsafe { (*self.as_qp()).qp_num }
    }

    /// The attributes with which it was created.
    pub fn attr(&self) -> &SrdAttr {
        &self.attr
    }

    /// Enables the queue pair to send, and to receive from peers that know `qkey`. A send to a peer without a posted
    /// receive is retried `rnr_retry` times, where 7 means forever; `None` leaves the number to the device.
    ///
    /// # Errors
    /// The errors of ibv_modify_qp(3).
    pub fn activate(&self, qkey: u32, rnr_retry: Option<u8>) -> Result<()> {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qkey, ..Default::default() };
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)?;
        attr.qp_state = IBV_QPS_RTR;
        self.modify(&mut attr, IBV_QP_STATE)?;
        attr.qp_state = IBV_QPS_RTS;
        attr.rnr_retry = rnr_retry.unwrap_or(0);
        let retry = if rnr_retry.is_some() { IBV_QP_RNR_RETRY } else { 0 };
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN | retry)
    }

    /// Stops the queue pair: all requests and receives complete as flushed, and it accepts no more.
    ///
    /// # Errors
    /// The errors of ibv_modify_qp(3).
    pub fn stop(&self) -> Result<()> {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
        self.modify(&mut attr, IBV_QP_STATE)
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: c_int) -> Result<()> {
        // SAFETY: the queue pair exists, and the structure is that of the interface.
        match unsafe { (verbs()?.ibv_modify_qp)(self.as_qp(), attr, mask) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_modify_qp", errno)),
        }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; `EINVAL` for no piece, or for more pieces than the queue pair was created for.
    ///
    /// # Safety
    /// The memory is registered for local access, and no other code uses it until the receive ends or the queue pair is
    /// gone.
    pub unsafe fn receive(&self, id: u64, to: &[Segment]) -> Result<()> {
        let call = "ibv_post_recv";
        let Some(post) = self.attr.pd.context().ops().post_recv else {
            return Err(Error::of(call, libc::ENOSYS));
        };
        let mut pieces = [ibv_sge::default(); PIECES];
        let most = PIECES.min(self.attr.receive_pieces as usize);
        if to.is_empty() || to.len() > most {
            return Err(Error::with(call, libc::EINVAL, format!("a receive takes 1 to {most} pieces")));
        }
        for (piece, segment) in pieces.iter_mut().zip(to) {
            *piece = segment.into_sge();
        }
        let sg_list = pieces.as_mut_ptr();
        let mut request = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list, num_sge: to.len() as c_int };
        let mut bad = null_mut();
        // SAFETY: a queue pair of this driver, and a request that the driver copies.
        match unsafe { post(self.as_qp(), &mut request, &mut bad) } {
            0 => Ok(()),
            errno => Err(Error::of(call, errno)),
        }
    }

    /// Maximum number of receives of one [`SrdQueuePair::receive_all`].
    pub const RECEIVES: usize = 16;

    /// Posts receives of one piece each, with one doorbell. Each has its own id.
    ///
    /// # Errors
    /// As [`SrdQueuePair::receive`], and `EINVAL` for more than [`SrdQueuePair::RECEIVES`]. Receives before the one
    /// that fails are posted.
    ///
    /// # Safety
    /// As [`SrdQueuePair::receive`], for each.
    pub unsafe fn receive_all(&self, receives: &[(u64, Segment)]) -> Result<()> {
        let call = "ibv_post_recv";
        let Some(post) = self.attr.pd.context().ops().post_recv else {
            return Err(Error::of(call, libc::ENOSYS));
        };
        if receives.is_empty() || receives.len() > Self::RECEIVES {
            let advice = format!("1 to {} receives can be posted at once", Self::RECEIVES);
            return Err(Error::with(call, libc::EINVAL, advice));
        }
        let mut pieces = [ibv_sge::default(); Self::RECEIVES];
        let none = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 1 };
        let mut requests = [none; Self::RECEIVES];
        for (piece, &(_, segment)) in pieces.iter_mut().zip(receives) {
            *piece = segment.into_sge();
        }
        // Borrowed once: another borrow of the array would invalidate pointers that the driver follows.
        let (first_piece, first) = (pieces.as_mut_ptr(), requests.as_mut_ptr());
        let mut next = null_mut();
        for (at, &(id, _)) in receives.iter().enumerate().rev() {
            let sg_list = first_piece.wrapping_add(at);
            let request = first.wrapping_add(at);
            // SAFETY: an element of the array, which has as many elements as there are receives, or more.
            unsafe { request.write(ibv_recv_wr { wr_id: id, next, sg_list, num_sge: 1 }) };
            next = request;
        }
        let mut bad = null_mut();
        // SAFETY: a queue pair of this driver, and a chain of requests that the driver copies.
        match unsafe { post(self.as_qp(), next, &mut bad) } {
            0 => Ok(()),
            errno => Err(Error::of(call, errno)),
        }
    }

    /// Starts a batch of requests, which [`SrdRequests::submit`] posts to the device. Other senders spin until then.
    pub fn requests(&self) -> SrdRequests<'_> {
        SrdRequests(self.built.batch())
    }
}

impl Drop for SrdQueuePair {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: made above; no batch is open, because a batch borrows the queue pair.
            unsafe { (verbs.ibv_destroy_qp)(self.as_qp()) };
        }
    }
}

/// A batch of requests. If it is dropped without [`SrdRequests::submit`], none of them is posted.
pub struct SrdRequests<'a>(Batch<'a>);

impl SrdRequests<'_> {
    /// Adds a send.
    ///
    /// # Errors
    /// `EINVAL` for too many pieces. Other errors come from [`SrdRequests::submit`].
    ///
    /// # Safety
    /// Memory that is not inline is registered, and lent until the request ends or the queue pair is gone.
    #[inline]
    pub unsafe fn send(
        &mut self,
        id: u64,
        to: SrdPeer<'_>,
        what: Payload<'_>,
        data: Option<u32>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(id, Some((to.ah, to.qp, to.qkey)), what, Work::Send(data), HOW) }
    }

    /// Adds a write to the peer's memory, with or without immediate data.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device or its library does not support it ([`crate::EfaInfo::write`]; libefa since rdma-core
    /// 50); else as [`SrdRequests::send`].
    ///
    /// # Safety
    /// As [`SrdRequests::send`].
    #[inline]
    pub unsafe fn write(
        &mut self,
        id: u64,
        to: SrdPeer<'_>,
        from: &[Segment],
        at: Remote,
        data: Option<u32>,
    ) -> Result<()> {
        let (peer, what) = (Some((to.ah, to.qp, to.qkey)), Payload::Segments(from));
        // SAFETY: the caller's promise.
        unsafe { self.0.add(id, peer, what, Work::Write(at, data), HOW) }
    }

    /// Adds a read of the peer's memory.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not support it ([`crate::EfaInfo::read`]); else as [`SrdRequests::send`].
    ///
    /// # Safety
    /// As [`SrdRequests::send`]; the read writes to the memory.
    #[inline]
    pub unsafe fn read(&mut self, id: u64, of: SrdPeer<'_>, to: &[Segment], from: Remote) -> Result<()> {
        let (peer, what) = (Some((of.ah, of.qp, of.qkey)), Payload::Segments(to));
        // SAFETY: the caller's promise.
        unsafe { self.0.add(id, peer, what, Work::Read(from), HOW) }
    }

    /// Posts the whole batch to the device.
    ///
    /// # Errors
    /// The first error of any request, in which case none is posted: `ENOMEM` if the queue is full, `EINVAL` for too
    /// many pieces or bytes.
    #[inline]
    pub fn submit(self) -> Result<()> {
        self.0.submit()
    }
}

/// The queue pair is created with all requests signaled, so `quiet` has no effect.
const HOW: Post = Post { fence: false, inline: false, quiet: true };
