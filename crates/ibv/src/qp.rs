//! Reliable connected queue pairs, made and moved through their states by librdmacm.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use crate::abi::*;
use crate::cq::CompletionQueue;
use crate::error::{Error, Result};
use crate::pd::ProtectionDomain;
use crate::srq::SharedReceiveQueue;

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first byte.
    pub addr: *mut u8,
    /// Its length; a work request moves 2 GiB at most.
    pub len: u32,
    /// The key of its registration.
    pub lkey: u32,
}

impl Segment {
    pub(crate) fn into_sge(self) -> ibv_sge {
        ibv_sge { addr: self.addr as u64, length: self.len, lkey: self.lkey }
    }
}

/// A peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its first byte.
    pub addr: u64,
    /// The key that the peer told.
    pub rkey: u32,
}

/// How a queue pair is to be.
#[derive(Clone)]
pub struct QueuePairAttr {
    /// Whose memory it uses.
    pub pd: Arc<ProtectionDomain>,
    /// Where ends are reported.
    pub cq: Arc<CompletionQueue>,
    /// Where its receives come from.
    pub srq: Arc<SharedReceiveQueue>,
    /// Requests that it holds.
    pub size: u32,
    /// Pieces of one request.
    pub pieces: u32,
}

impl QueuePairAttr {
    pub(crate) fn to_init(&self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: self.cq.as_ptr(),
            recv_cq: self.cq.as_ptr(),
            srq: self.srq.as_ptr(),
            cap: ibv_qp_cap {
                max_send_wr: self.size,
                max_recv_wr: 0,
                max_send_sge: self.pieces,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        }
    }
}

/// A queue pair, which belongs to the identifier that it was made on ([`crate::CmId::create_qp`]).
pub struct QueuePair {
    pub(crate) qp: *mut ibv_qp,
    pub(crate) attr: QueuePairAttr,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Its number on its device.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is there, and this is set when it is made.
        unsafe { (*self.qp).qp_num }
    }

    /// Posts a send. With `fence` it begins when all reads before it have ended.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full.
    ///
    /// # Safety
    /// The memory is registered, and lent until the request ends or the queue pair is gone.
    pub unsafe fn send(&self, id: u64, from: &[Segment], fence: bool) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.post(id, IBV_WR_SEND, from, Remote { addr: 0, rkey: 0 }, fence) }
    }

    /// Posts a read of the peer's memory.
    ///
    /// # Errors
    /// As [`QueuePair::send`].
    ///
    /// # Safety
    /// As [`QueuePair::send`]; the memory is written.
    pub unsafe fn read(&self, id: u64, to: &[Segment], from: Remote) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.post(id, IBV_WR_RDMA_READ, to, from, false) }
    }

    /// Posts a write to the peer's memory. `fence` as in [`QueuePair::send`].
    ///
    /// # Errors
    /// As [`QueuePair::send`].
    ///
    /// # Safety
    /// As [`QueuePair::send`].
    pub unsafe fn write(&self, id: u64, from: &[Segment], to: Remote, fence: bool) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.post(id, IBV_WR_RDMA_WRITE, from, to, fence) }
    }

    /// Posts a request, whose end is reported.
    unsafe fn post(
        &self,
        id: u64,
        opcode: u32,
        local: &[Segment],
        remote: Remote,
        fence: bool,
    ) -> Result<()> {
        let Some(post) = self.attr.pd.context().ops().post_send else {
            return Err(Error::of("ibv_post_send", libc::ENOSYS));
        };
        let mut pieces = [ibv_sge::default(); 16];
        let Some(room) = pieces.get_mut(..local.len()) else {
            return Err(Error::with("ibv_post_send", libc::EINVAL, "a request has 16 pieces at most"));
        };
        for (piece, segment) in room.iter_mut().zip(local) {
            *piece = segment.into_sge();
        }
        let mut request = ibv_send_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: pieces.as_mut_ptr(),
            num_sge: local.len() as c_int,
            opcode,
            send_flags: if fence { IBV_SEND_SIGNALED | IBV_SEND_FENCE } else { IBV_SEND_SIGNALED },
            imm_data: 0,
            remote_addr: remote.addr,
            rkey: remote.rkey,
            qkey: 0,
            rest: [0; 9],
        };
        let mut bad = null_mut();
        // SAFETY: a queue pair of this driver, and a request that the driver copies; the memory is the caller's promise.
        match unsafe { post(self.qp, &mut request, &mut bad) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_post_send", errno)),
        }
    }
}
