//! Queue pairs for scalable reliable datagrams (SRD), which EFA devices have: reliable, to any peer, in no order.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use crate::abi::*;
use crate::abi_ex::*;
use crate::ah::AddressHandle;
use crate::cq_ex::EfaCompletionQueue;
use crate::error::{Error, Result};
use crate::library::{efa, verbs};
use crate::pd::ProtectionDomain;
use crate::qp::{Remote, Segment};

/// How a queue pair is to be. [`crate::EfaInfo`] has the limits.
#[derive(Clone)]
pub struct SrdAttr {
    /// Whose memory it uses.
    pub pd: Arc<ProtectionDomain>,
    /// Where ends of its requests are reported.
    pub send_cq: Arc<EfaCompletionQueue>,
    /// Where what comes is reported.
    pub receive_cq: Arc<EfaCompletionQueue>,
    /// Requests that it holds.
    pub sends: u32,
    /// Receives that it holds.
    pub receives: u32,
    /// Pieces of memory of one send.
    pub send_pieces: u32,
    /// Pieces of memory of one receive.
    pub receive_pieces: u32,
    /// Bytes that a send may carry in the request itself.
    pub inline: u32,
    /// Whether peers' writes with immediate data do without a receive. Both ends say so, or neither.
    pub unsolicited: bool,
    /// The class of service; 8 asks for low latency, 0 for none.
    pub service_level: u8,
}

/// A queue pair for scalable reliable datagrams.
pub struct SrdQueuePair {
    qp: NonNull<ibv_qp_ex>,
    builders: Builders,
    attr: SrdAttr,
}

/// The functions by which requests are made; they do not change. A device that reads or writes no peer's memory lacks
/// some.
struct Builders {
    start: unsafe extern "C" fn(*mut ibv_qp_ex),
    complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
    abort: unsafe extern "C" fn(*mut ibv_qp_ex),
    send: unsafe extern "C" fn(*mut ibv_qp_ex),
    send_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    peer: unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32),
    inline: unsafe extern "C" fn(*mut ibv_qp_ex, *const c_void, usize),
    segment: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    segments: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge),
}

impl Builders {
    /// `None` if one is missing that every such queue pair has.
    fn of(ex: &ibv_qp_ex) -> Option<Self> {
        Some(Self {
            start: ex.wr_start?,
            complete: ex.wr_complete?,
            abort: ex.wr_abort?,
            send: ex.wr_send?,
            send_imm: ex.wr_send_imm?,
            write: ex.wr_rdma_write,
            write_imm: ex.wr_rdma_write_imm,
            read: ex.wr_rdma_read,
            peer: ex.wr_set_ud_addr?,
            inline: ex.wr_set_inline_data?,
            segment: ex.wr_set_sge?,
            segments: ex.wr_set_sge_list?,
        })
    }
}

// SAFETY: functions of libibverbs may be called from any thread; a batch of requests holds the queue's lock.
unsafe impl Send for SrdQueuePair {}
// SAFETY: as above.
unsafe impl Sync for SrdQueuePair {}

/// The destination of a request.
#[derive(Clone, Copy)]
pub struct SrdPeer<'a> {
    /// The way there.
    pub ah: &'a AddressHandle,
    /// The peer's queue pair.
    pub qp: u32,
    /// The peer's key for it.
    pub qkey: u32,
}

/// What a send carries.
#[derive(Clone, Copy)]
pub enum Payload<'a> {
    /// Bytes that are copied into the request.
    Inline(&'a [u8]),
    /// Registered memory.
    Segments(&'a [Segment]),
}

impl SrdQueuePair {
    /// Makes one, which neither sends nor receives before [`SrdQueuePair::activate`].
    ///
    /// # Errors
    /// `EINVAL` for objects of two devices, or more inline bytes than the device takes; else those of
    /// efadv_create_qp_ex(3): `unsolicited` and a service level need a libefa of rdma-core 53 or newer.
    pub fn new(attr: SrdAttr) -> Result<Arc<Self>> {
        let context = attr.pd.context();
        let info = context.efa()?;
        let call = "efadv_create_qp_ex";
        if attr.send_cq.context() != context || attr.receive_cq.context() != context {
            return Err(Error::with(call, libc::EINVAL, "a completion queue belongs to another device"));
        }
        if attr.inline > u32::from(info.max_inline) {
            let advice = format!("the device takes {} bytes inline, not {}", info.max_inline, attr.inline);
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
        // SAFETY: an open context, objects of it, and structures as the interface has them.
        let qp = unsafe { (efa()?.efadv_create_qp_ex)(context.as_ptr(), &mut init, &mut more, len) };
        let qp = NonNull::new(qp).ok_or_else(|| Error::last(call))?;
        // SAFETY: a queue pair, which was made with operations of its own.
        let ex = unsafe { (verbs()?.ibv_qp_to_qp_ex)(qp.as_ptr()) };
        // SAFETY: the answer is null or the same queue pair.
        let builders = unsafe { ex.as_ref() }.and_then(Builders::of);
        let (Some(ex), Some(builders)) = (NonNull::new(ex), builders) else {
            // SAFETY: made above.
            unsafe { (verbs()?.ibv_destroy_qp)(qp.as_ptr()) };
            return Err(Error::of("ibv_qp_to_qp_ex", libc::ENOSYS));
        };
        Ok(Arc::new(Self { qp: ex, builders, attr }))
    }

    fn as_qp(&self) -> *mut ibv_qp {
        self.qp.as_ptr().cast()
    }

    /// Its number on its device.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is there, and this is set when it is made.
        unsafe { (*self.as_qp()).qp_num }
    }

    /// How it was asked to be.
    pub fn attr(&self) -> &SrdAttr {
        &self.attr
    }

    /// Has it send, and receive from peers that know `qkey`. A peer without a receive is asked again `rnr_retry` times,
    /// 7 being without end; `None` leaves that to the device.
    ///
    /// # Errors
    /// Those of ibv_modify_qp(3).
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

    /// Ends it: what is under way and what is posted ends as flushed, and nothing more is taken.
    ///
    /// # Errors
    /// Those of ibv_modify_qp(3).
    pub fn stop(&self) -> Result<()> {
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
        self.modify(&mut attr, IBV_QP_STATE)
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: c_int) -> Result<()> {
        // SAFETY: a queue pair that is there, and a structure as the interface has it.
        match unsafe { (verbs()?.ibv_modify_qp)(self.as_qp(), attr, mask) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_modify_qp", errno)),
        }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; `EINVAL` for no piece or more than the queue pair was made for.
    ///
    /// # Safety
    /// The memory is registered for local access, and nobody else's until the receive ends or the queue pair is gone.
    pub unsafe fn receive(&self, id: u64, to: &[Segment]) -> Result<()> {
        let call = "ibv_post_recv";
        let Some(post) = self.attr.pd.context().ops().post_recv else {
            return Err(Error::of(call, libc::ENOSYS));
        };
        let mut pieces = [ibv_sge::default(); PIECES];
        let most = PIECES.min(self.attr.receive_pieces as usize);
        if to.is_empty() || to.len() > most {
            return Err(Error::with(call, libc::EINVAL, format!("a receive has 1 to {most} pieces")));
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

    /// Receives that [`SrdQueuePair::receive_all`] takes.
    pub const RECEIVES: usize = 16;

    /// Posts receives of one piece each, under their numbers, and tells the device of all of them at once.
    ///
    /// # Errors
    /// As [`SrdQueuePair::receive`], and `EINVAL` for more than [`SrdQueuePair::RECEIVES`]. Those before the one that
    /// is wrong are posted.
    ///
    /// # Safety
    /// As [`SrdQueuePair::receive`], of each.
    pub unsafe fn receive_all(&self, receives: &[(u64, Segment)]) -> Result<()> {
        let call = "ibv_post_recv";
        let Some(post) = self.attr.pd.context().ops().post_recv else {
            return Err(Error::of(call, libc::ENOSYS));
        };
        if receives.is_empty() || receives.len() > Self::RECEIVES {
            let advice = format!("1 to {} receives are posted at once", Self::RECEIVES);
            return Err(Error::with(call, libc::EINVAL, advice));
        }
        let mut pieces = [ibv_sge::default(); Self::RECEIVES];
        let none = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 1 };
        let mut requests = [none; Self::RECEIVES];
        for (piece, &(_, segment)) in pieces.iter_mut().zip(receives) {
            *piece = segment.into_sge();
        }
        // Taken once: a pointer that the driver follows would not be valid behind another borrow of the same array.
        let (first_piece, first) = (pieces.as_mut_ptr(), requests.as_mut_ptr());
        let mut next = null_mut();
        for (at, &(id, _)) in receives.iter().enumerate().rev() {
            let sg_list = first_piece.wrapping_add(at);
            let request = first.wrapping_add(at);
            // SAFETY: one of the array's, as there are no more receives than that.
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

    /// Begins a batch of requests, of which the device learns at [`SrdRequests::submit`]. Others who send wait
    /// meanwhile, spinning.
    pub fn requests(&self) -> SrdRequests<'_> {
        // SAFETY: a queue pair of this driver, which locks; `submit` or the drop of the batch unlocks.
        unsafe { (self.builders.start)(self.qp.as_ptr()) };
        SrdRequests { qp: self, _here: PhantomData }
    }
}

impl Drop for SrdQueuePair {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: made above; no batch is open, as it would borrow this.
            unsafe { (verbs.ibv_destroy_qp)(self.as_qp()) };
        }
    }
}

/// A batch of requests. Dropped without [`SrdRequests::submit`], none of them is made.
pub struct SrdRequests<'a> {
    qp: &'a SrdQueuePair,
    /// The lock is released by the thread that took it.
    _here: PhantomData<*mut ()>,
}

impl SrdRequests<'_> {
    /// Adds a send.
    ///
    /// # Errors
    /// `EINVAL` for too many pieces. Other errors come from [`SrdRequests::submit`].
    ///
    /// # Safety
    /// Memory that is not inline is registered, and lent until the request ends or the queue pair is gone.
    pub unsafe fn send(
        &mut self,
        id: u64,
        to: SrdPeer<'_>,
        what: Payload<'_>,
        data: Option<u32>,
    ) -> Result<()> {
        let ex = self.begin(id, what)?;
        let builders = &self.qp.builders;
        match data {
            // SAFETY: a batch is open.
            Some(data) => unsafe { (builders.send_imm)(ex, data.to_be()) },
            // SAFETY: as above.
            None => unsafe { (builders.send)(ex) },
        }
        // SAFETY: a request was begun; the memory is the caller's promise.
        unsafe { self.finish(to, what) };
        Ok(())
    }

    /// Adds a write to the peer's memory, with immediate data or without.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device or its library cannot ([`crate::EfaInfo::write`]); else as [`SrdRequests::send`].
    ///
    /// # Safety
    /// As [`SrdRequests::send`].
    pub unsafe fn write(
        &mut self,
        id: u64,
        to: SrdPeer<'_>,
        from: &[Segment],
        at: Remote,
        data: Option<u32>,
    ) -> Result<()> {
        let (Some(write), Some(write_imm)) = (self.qp.builders.write, self.qp.builders.write_imm) else {
            let advice = "the device, or libefa before rdma-core 50, does not write peers' memory";
            return Err(Error::with("ibv_wr_rdma_write", libc::EOPNOTSUPP, advice));
        };
        let ex = self.begin(id, Payload::Segments(from))?;
        match data {
            // SAFETY: a batch is open.
            Some(data) => unsafe { write_imm(ex, at.rkey, at.addr, data.to_be()) },
            // SAFETY: as above.
            None => unsafe { write(ex, at.rkey, at.addr) },
        }
        // SAFETY: a request was begun; the memory is the caller's promise.
        unsafe { self.finish(to, Payload::Segments(from)) };
        Ok(())
    }

    /// Adds a read of the peer's memory.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device cannot ([`crate::EfaInfo::read`]); else as [`SrdRequests::send`].
    ///
    /// # Safety
    /// As [`SrdRequests::send`]; the memory is written.
    pub unsafe fn read(&mut self, id: u64, of: SrdPeer<'_>, to: &[Segment], from: Remote) -> Result<()> {
        let Some(read) = self.qp.builders.read else {
            let advice = "the device does not read peers' memory";
            return Err(Error::with("ibv_wr_rdma_read", libc::EOPNOTSUPP, advice));
        };
        let ex = self.begin(id, Payload::Segments(to))?;
        // SAFETY: a batch is open.
        unsafe { read(ex, from.rkey, from.addr) };
        // SAFETY: a request was begun; the memory is the caller's promise.
        unsafe { self.finish(of, Payload::Segments(to)) };
        Ok(())
    }

    /// Tells the device of all of them.
    ///
    /// # Errors
    /// What was wrong with one of them, and none is made then: `ENOMEM` if the queue is full, `EINVAL` for too many
    /// pieces or bytes.
    pub fn submit(self) -> Result<()> {
        let (ex, complete) = (self.qp.qp.as_ptr(), self.qp.builders.complete);
        std::mem::forget(self); // `complete` unlocks, whatever it answers
        // SAFETY: a batch is open, and ends here.
        match unsafe { complete(ex) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_wr_complete", errno)),
        }
    }

    /// Says which number the next request has. What would be wrong with it is said before the driver has begun it.
    fn begin(&mut self, id: u64, what: Payload<'_>) -> Result<*mut ibv_qp_ex> {
        if matches!(what, Payload::Segments(segments) if segments.len() > PIECES) {
            let advice = format!("a request has {PIECES} pieces at most");
            return Err(Error::with("ibv_wr_set_sge_list", libc::EINVAL, advice));
        }
        let ex = self.qp.qp.as_ptr();
        // SAFETY: the queue pair is there, and locked by this batch.
        unsafe { (*ex).wr_id = id };
        // SAFETY: as above.
        unsafe { (*ex).wr_flags = 0 };
        Ok(ex)
    }

    /// Says where the request goes, and what it carries.
    ///
    /// # Safety
    /// A request was begun, and its memory is lent.
    unsafe fn finish(&mut self, to: SrdPeer<'_>, what: Payload<'_>) {
        let (ex, builders) = (self.qp.qp.as_ptr(), &self.qp.builders);
        // SAFETY: a request was begun; the address handle is there.
        unsafe { (builders.peer)(ex, to.ah.as_ptr(), to.qp, to.qkey) };
        match what {
            // SAFETY: the bytes are copied at once.
            Payload::Inline(bytes) => unsafe { (builders.inline)(ex, bytes.as_ptr().cast(), bytes.len()) },
            Payload::Segments(&[segment]) => {
                let ibv_sge { addr, length, lkey } = segment.into_sge();
                // SAFETY: the driver copies it.
                unsafe { (builders.segment)(ex, lkey, addr, length) };
            }
            Payload::Segments(segments) => {
                let mut pieces = [ibv_sge::default(); PIECES];
                for (piece, segment) in pieces.iter_mut().zip(segments) {
                    *piece = segment.into_sge();
                }
                // SAFETY: so many pieces; the driver copies them, and refuses more than the queue pair was made for.
                unsafe { (builders.segments)(ex, segments.len(), pieces.as_ptr()) };
            }
        }
    }
}

impl Drop for SrdRequests<'_> {
    fn drop(&mut self) {
        // SAFETY: a batch is open, and ends here.
        unsafe { (self.qp.builders.abort)(self.qp.qp.as_ptr()) };
    }
}

/// Pieces of memory of a request. Devices take fewer: 2 for a send, 4 for a receive.
const PIECES: usize = 8;
