//! Reliable connected queue pairs. librdmacm creates them and changes their states.

use std::ptr::null_mut;
use std::sync::Arc;

use crate::abi::*;
use crate::abi_ex::*;
use crate::batch::{Batch, Built, Payload};
use crate::cq::CompletionQueue;
use crate::error::{Error, Result};
use crate::library::verbs;
use crate::pd::ProtectionDomain;
use crate::srq::SharedReceiveQueue;
use crate::work::{MAX_PIECES, Post, Remote, Segment, Work, gather};

/// The source of a queue pair's receives.
#[derive(Clone)]
pub enum Receives {
    /// A queue that several queue pairs share.
    Shared(Arc<SharedReceiveQueue>),
    /// A queue of its own, of this size ([`QueuePair::receive`]).
    Own(u32),
}

/// The timeouts and numbers of retries of a connected queue pair ([`QueuePair::timers`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timers {
    /// How long it waits for an acknowledgement: 4.096 µs × 2^`ack_timeout`; 0 means without limit.
    pub ack_timeout: u8,
    /// How often it resends an unacknowledged packet, at most 7.
    pub retries: u8,
    /// How often it retries a send that finds no receive; 7 means forever.
    pub rnr_retries: u8,
    /// How long a peer waits before it retries a send that found no receive, as a code ([`QueuePair::set_rnr_timer`]).
    pub rnr_timer: u8,
}

/// The attributes of a queue pair.
#[derive(Clone)]
pub struct QueuePairAttr {
    /// The domain of its memory.
    pub pd: Arc<ProtectionDomain>,
    /// The completion queue of its requests and receives.
    pub cq: Arc<CompletionQueue>,
    /// The source of its receives.
    pub receives: Receives,
    /// Number of requests.
    pub size: u32,
    /// Maximum number of pieces of one request.
    pub pieces: u32,
    /// The maximum number of pieces of one receive, if it has its own receive queue.
    pub receive_pieces: u32,
    /// The inline bytes of a request. If the device refuses, the number is halved until it accepts.
    pub inline: u32,
}

impl QueuePairAttr {
    pub(crate) fn to_init(&self) -> ibv_qp_init_attr {
        let (srq, max_recv_wr) = match &self.receives {
            Receives::Shared(srq) => (srq.as_ptr(), 0),
            Receives::Own(count) => (null_mut(), *count),
        };
        ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: self.cq.as_ptr(),
            recv_cq: self.cq.as_ptr(),
            srq,
            cap: ibv_qp_cap {
                max_send_wr: self.size,
                max_recv_wr,
                max_send_sge: self.pieces,
                max_recv_sge: if srq.is_null() { self.receive_pieces } else { 1 },
                max_inline_data: self.inline,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        }
    }

    /// As `to_init`, with the operations for which the queue pair gets builders.
    pub(crate) fn to_init_ex(&self) -> ibv_qp_init_attr_ex {
        const OPERATIONS: u64 = IBV_QP_EX_WITH_SEND
            | IBV_QP_EX_WITH_SEND_WITH_IMM
            | IBV_QP_EX_WITH_RDMA_WRITE
            | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | IBV_QP_EX_WITH_RDMA_READ
            | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        extended(&self.to_init(), self.pd.as_ptr(), OPERATIONS)
    }
}

/// Attributes of a queue pair with builders for these operations.
pub(crate) fn extended(init: &ibv_qp_init_attr, pd: *mut ibv_pd, operations: u64) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd,
        xrcd: null_mut(),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: null_mut(),
        rx_hash_conf: [0; 3],
        source_qpn: 0,
        send_ops_flags: operations,
    }
}

/// The remote memory of sends, which have none.
const NOWHERE: Remote = Remote { addr: 0, rkey: 0 };

/// The fields of a request other than its memory.
pub(crate) enum Extra {
    /// Immediate data, if there is any.
    Data(Option<u32>),
    /// A memory window and its part.
    Bind(ibv_wr_bind),
    /// A memory window's key, which becomes invalid.
    Invalid(u32),
}

impl Remote {
    const fn target(self) -> ibv_wr_target {
        ibv_wr_target { rdma: ibv_wr_rdma { remote_addr: self.addr, rkey: self.rkey } }
    }

    const fn number(self, compare_add: u64, swap: u64) -> ibv_wr_target {
        ibv_wr_target { atomic: ibv_wr_atomic { remote_addr: self.addr, compare_add, swap, rkey: self.rkey } }
    }
}

/// A queue pair, which belongs to the identifier on which it was created ([`crate::CmId::create_qp`]).
pub struct QueuePair {
    pub(crate) qp: *mut ibv_qp,
    /// Set for a queue pair with builders ([`crate::CmId::create_built_qp`]).
    pub(crate) built: Option<Built>,
    pub(crate) attr: QueuePairAttr,
    /// Maximum inline bytes of a request.
    pub(crate) inline: u32,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Its number on its device.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair exists, and the field is set when it is created.
        unsafe { (*self.qp).qp_num }
    }

    /// The maximum inline bytes of a request ([`Post::inline`]): as many as requested, or as the device allows.
    pub fn inline_size(&self) -> usize {
        self.inline as usize
    }

    /// Posts a send.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full.
    ///
    /// # Safety
    /// The memory is registered, and lent until the request ends or the queue pair is gone; inline data is readable
    /// during the call.
    pub unsafe fn send(&self, id: u64, from: &[Segment], how: Post) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.post(id, IBV_WR_SEND, from, NOWHERE.target(), (how, Extra::Data(None))) }
    }

    /// Posts an operation.
    ///
    /// # Errors
    /// As [`QueuePair::send`].
    ///
    /// # Safety
    /// As [`QueuePair::send`]; an operation that reads writes to the memory.
    pub unsafe fn work(&self, id: u64, local: &[Segment], work: Work, how: Post) -> Result<()> {
        let (opcode, target, data) = match work {
            Work::Send(None) => (IBV_WR_SEND, NOWHERE.target(), None),
            Work::Send(data) => (IBV_WR_SEND_WITH_IMM, NOWHERE.target(), data),
            Work::Write(to, None) => (IBV_WR_RDMA_WRITE, to.target(), None),
            Work::Write(to, data) => (IBV_WR_RDMA_WRITE_WITH_IMM, to.target(), data),
            Work::Read(from) => (IBV_WR_RDMA_READ, from.target(), None),
            Work::FetchAdd(at, add) => (IBV_WR_ATOMIC_FETCH_AND_ADD, at.number(add, 0), None),
            Work::CompareSwap { at, expected, new } => {
                (IBV_WR_ATOMIC_CMP_AND_SWP, at.number(expected, new), None)
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.post(id, opcode, local, target, (how, Extra::Data(data))) }
    }

    /// Starts a batch of requests, which [`Requests::submit`] posts to the device. Other senders spin until then.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the queue pair was made without builders.
    pub fn requests(&self) -> Result<Requests<'_>> {
        let advice = "this queue pair has no builders: create it with them (CmId::create_built_qp)";
        let built = self.built.as_ref();
        built
            .map(|built| Requests(built.batch()))
            .ok_or_else(|| Error::with("ibv_wr_start", libc::EOPNOTSUPP, advice))
    }

    /// Posts a read of the peer's memory.
    ///
    /// # Errors
    /// As [`QueuePair::send`].
    ///
    /// # Safety
    /// As [`QueuePair::send`]; the read writes to the memory.
    pub unsafe fn read(&self, id: u64, to: &[Segment], from: Remote) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.post(id, IBV_WR_RDMA_READ, to, from.target(), (Post::default(), Extra::Data(None))) }
    }

    /// Posts a write to the peer's memory.
    ///
    /// # Errors
    /// As [`QueuePair::send`].
    ///
    /// # Safety
    /// As [`QueuePair::send`].
    pub unsafe fn write(&self, id: u64, from: &[Segment], to: Remote, how: Post) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.post(id, IBV_WR_RDMA_WRITE, from, to.target(), (how, Extra::Data(None))) }
    }

    /// Posts a receive, if the queue pair has its own receive queue. A receive that fails completes after all receives
    /// that were posted before it.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; `EINVAL` if the queue pair uses a shared queue, or for too many pieces.
    ///
    /// # Safety
    /// The memory is registered for local access, and no other code uses it until the receive ends or the queue pair is
    /// gone.
    pub unsafe fn receive(&self, id: u64, to: &[Segment]) -> Result<()> {
        let Some(post) = self.attr.pd.context().ops().post_recv else {
            return Err(Error::of("ibv_post_recv", libc::ENOSYS));
        };
        let mut pieces = [ibv_sge::default(); MAX_PIECES];
        let num_sge = gather("ibv_post_recv", &mut pieces, to)?;
        let mut request = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: pieces.as_mut_ptr(), num_sge };
        let mut bad = null_mut();
        // SAFETY: a queue pair of this driver, and a request that the driver copies; the caller promises the memory.
        match unsafe { post(self.qp, &mut request, &mut bad) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_post_recv", errno)),
        }
    }

    /// Sets how long a peer waits before it resends a message that found no receive at this end (RNR timer). `code` is
    /// that of ibv_modify_qp(3): 12 for 640 µs; 0, the initial value of connections, for 655 ms.
    ///
    /// # Errors
    /// The errors of ibv_modify_qp(3).
    pub fn set_rnr_timer(&self, code: u8) -> Result<()> {
        let mut attr = ibv_qp_attr { min_rnr_timer: code, ..Default::default() };
        // SAFETY: the queue pair exists, and the structure is that of the interface.
        match unsafe { (verbs()?.ibv_modify_qp)(self.qp, &mut attr, IBV_QP_MIN_RNR_TIMER) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_modify_qp", errno)),
        }
    }

    /// Queries its timeouts and numbers of retries from the driver.
    ///
    /// # Errors
    /// The errors of ibv_query_qp(3).
    pub fn timers(&self) -> Result<Timers> {
        let (mut attr, mut init) = (ibv_qp_attr::default(), self.attr.to_init());
        let mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER;
        // SAFETY: the queue pair exists, and the structures are those of the interface.
        match unsafe { (verbs()?.ibv_query_qp)(self.qp, &mut attr, mask, &mut init) } {
            0 => Ok(Timers {
                ack_timeout: attr.timeout,
                retries: attr.retry_cnt,
                rnr_retries: attr.rnr_retry,
                rnr_timer: attr.min_rnr_timer,
            }),
            errno => Err(Error::of("ibv_query_qp", errno)),
        }
    }

    /// Posts a request on a memory window, which uses no local memory.
    pub(crate) fn post_bare(&self, id: u64, opcode: u32, how: Post, extra: Extra) -> Result<()> {
        // SAFETY: the request has no pieces of memory.
        unsafe { self.post(id, opcode, &[], NOWHERE.target(), (how, extra)) }
    }

    unsafe fn post(
        &self,
        id: u64,
        opcode: u32,
        local: &[Segment],
        target: ibv_wr_target,
        (how, extra): (Post, Extra),
    ) -> Result<()> {
        let Some(post) = self.attr.pd.context().ops().post_send else {
            return Err(Error::of("ibv_post_send", libc::ENOSYS));
        };
        let (imm_data, bind_mw) = match extra {
            Extra::Data(data) => (data.unwrap_or(0).to_be(), ibv_wr_bind::NONE),
            Extra::Bind(bind) => (0, bind),
            Extra::Invalid(rkey) => (rkey, ibv_wr_bind::NONE),
        };
        let mut pieces = [ibv_sge::default(); MAX_PIECES];
        let num_sge = gather("ibv_post_send", &mut pieces, local)?;
        let mut request = ibv_send_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: pieces.as_mut_ptr(),
            num_sge,
            opcode,
            send_flags: how.flags(),
            imm_data,
            wr: target,
            xrc: 0,
            bind_mw,
        };
        let mut bad = null_mut();
        // SAFETY: a queue pair of this driver, and a request that the driver copies; the caller promises the memory.
        match unsafe { post(self.qp, &mut request, &mut bad) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_post_send", errno)),
        }
    }
}

/// A batch of requests of a connection. If it is dropped without [`Requests::submit`], none of them is posted.
pub struct Requests<'a>(Batch<'a>);

impl Requests<'_> {
    /// Adds an operation. `what`, not [`Post::inline`], decides whether its data is inline.
    ///
    /// # Errors
    /// `EINVAL` for more than 8 pieces; `EOPNOTSUPP` for an operation that the device does not have. Other errors come
    /// from [`Requests::submit`].
    ///
    /// # Safety
    /// As [`QueuePair::work`].
    #[inline]
    pub unsafe fn work(&mut self, id: u64, what: Payload<'_>, work: Work, how: Post) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(id, None, what, work, what.post(how)) }
    }

    /// Posts the whole batch to the device.
    ///
    /// # Errors
    /// The first error of any request, in which case none is posted: `ENOMEM` if the queue is full, `EINVAL` for too
    /// many bytes.
    #[inline]
    pub fn submit(self) -> Result<()> {
        self.0.submit()
    }
}
