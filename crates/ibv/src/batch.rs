//! Batches of requests, built by the functions of a queue pair (`ibv_wr_*`): one call for each part of a request.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::abi::*;
use crate::abi_ex::*;
use crate::ah::AddressHandle;
use crate::error::{Error, Result};
use crate::library::verbs;
use crate::work::{Post, Segment, Work};

/// Maximum number of memory pieces in a request.
pub const PIECES: usize = 8;

/// The data of a request.
#[derive(Clone, Copy)]
pub enum Payload<'a> {
    /// Bytes that are copied into the request.
    Inline(&'a [u8]),
    /// Registered memory.
    Segments(&'a [Segment]),
}

/// The destination of a datagram: the route to its port, the queue pair, and that queue pair's Q-Key.
pub(crate) type To<'a> = (&'a AddressHandle, u32, u32);

/// The functions that build requests, which never change. The optional ones depend on the device and on the type of the
/// queue pair.
pub(crate) struct Builders {
    start: unsafe extern "C" fn(*mut ibv_qp_ex),
    complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
    abort: unsafe extern "C" fn(*mut ibv_qp_ex),
    send: unsafe extern "C" fn(*mut ibv_qp_ex),
    send_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    compare_swap: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    peer: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
    inline: unsafe extern "C" fn(*mut ibv_qp_ex, *const c_void, usize),
    segment: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    segments: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge),
}

impl Builders {
    /// `None` if a function is missing that every queue pair with builders has.
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
            fetch_add: ex.wr_atomic_fetch_add,
            compare_swap: ex.wr_atomic_cmp_swp,
            peer: ex.wr_set_ud_addr,
            inline: ex.wr_set_inline_data?,
            segment: ex.wr_set_sge?,
            segments: ex.wr_set_sge_list?,
        })
    }
}

/// A queue pair whose requests are built.
pub(crate) struct Built {
    qp: NonNull<ibv_qp_ex>,
    builders: Builders,
}

impl Built {
    /// The builders of a queue pair, which must have been created with them.
    ///
    /// # Errors
    /// `ENOSYS` if the driver lacks a builder that every queue pair needs or, with `datagrams`, the one for
    /// destinations.
    ///
    /// # Safety
    /// The queue pair exists as long as this value is used.
    pub unsafe fn of(qp: NonNull<ibv_qp>, datagrams: bool) -> Result<Self> {
        // SAFETY: a queue pair of this driver.
        let ex = unsafe { (verbs()?.ibv_qp_to_qp_ex)(qp.as_ptr()) };
        // SAFETY: the result is null or the same queue pair.
        let builders = unsafe { ex.as_ref() }.and_then(Builders::of);
        let builders = builders.filter(|builders| !datagrams || builders.peer.is_some());
        match (NonNull::new(ex), builders) {
            (Some(qp), Some(builders)) => Ok(Self { qp, builders }),
            _ => Err(Error::of("ibv_qp_to_qp_ex", libc::ENOSYS)),
        }
    }

    /// Starts a batch of requests, which [`Batch::submit`] posts to the device. Other senders spin until then.
    pub fn batch(&self) -> Batch<'_> {
        // SAFETY: a queue pair of this driver. This call locks it; `submit` or the drop of the batch unlocks it.
        unsafe { (self.builders.start)(self.qp.as_ptr()) };
        Batch { built: self, _here: PhantomData }
    }
}

/// A batch of requests. If it is dropped without [`Batch::submit`], none of them is posted.
pub(crate) struct Batch<'a> {
    built: &'a Built,
    /// The thread that took the lock must release it.
    _here: PhantomData<*mut ()>,
}

impl Payload<'_> {
    /// The options for a request with this data.
    pub(crate) const fn post(&self, how: Post) -> Post {
        Post { inline: matches!(self, Self::Inline(_)), ..how }
    }
}

/// The error for an operation that the queue pair has no builder for.
fn lacks(call: &'static str, what: &str) -> Error {
    Error::with(call, libc::EOPNOTSUPP, format!("the device, or its driver in rdma-core, does not {what}"))
}

impl Batch<'_> {
    /// Adds a request; `to` is only for datagram queue pairs. [`Post::inline`] sets only the flag, which soft-RoCE's
    /// driver needs for inline data.
    ///
    /// # Errors
    /// `EINVAL` for too many pieces; `EOPNOTSUPP` for an operation that the queue pair lacks. Other errors come from
    /// [`Batch::submit`].
    ///
    /// # Safety
    /// Memory that is not inline is registered, and lent until the request completes or the queue pair is gone. Reads
    /// and fetching atomics write to it.
    #[inline]
    pub unsafe fn add(
        &mut self,
        id: u64,
        to: Option<To<'_>>,
        what: Payload<'_>,
        work: Work,
        how: Post,
    ) -> Result<()> {
        let builders = &self.built.builders;
        if let Payload::Segments(segments) = what
            && segments.len() > PIECES
        {
            let advice = format!("a request takes at most {PIECES} pieces");
            return Err(Error::with("ibv_wr_set_sge_list", libc::EINVAL, advice));
        }
        let ex = self.built.qp.as_ptr();
        // SAFETY: the queue pair exists, and this batch has locked it.
        unsafe { (*ex).wr_id = id };
        // SAFETY: as above.
        unsafe { (*ex).wr_flags = how.flags() };
        // Errors must be returned before the driver begins the request.
        match work {
            // SAFETY: a batch is open.
            Work::Send(None) => unsafe { (builders.send)(ex) },
            // SAFETY: as above.
            Work::Send(Some(data)) => unsafe { (builders.send_imm)(ex, data.to_be()) },
            Work::Write(at, None) => {
                let write =
                    builders.write.ok_or_else(|| lacks("ibv_wr_rdma_write", "write peers' memory"))?;
                // SAFETY: as above.
                unsafe { write(ex, at.rkey, at.addr) };
            }
            Work::Write(at, Some(data)) => {
                let write = builders.write_imm;
                let write = write.ok_or_else(|| lacks("ibv_wr_rdma_write_imm", "write peers' memory"))?;
                // SAFETY: as above.
                unsafe { write(ex, at.rkey, at.addr, data.to_be()) };
            }
            Work::Read(at) => {
                let read = builders.read.ok_or_else(|| lacks("ibv_wr_rdma_read", "read peers' memory"))?;
                // SAFETY: as above.
                unsafe { read(ex, at.rkey, at.addr) };
            }
            Work::FetchAdd(at, add) => {
                let change = builders.fetch_add;
                let change =
                    change.ok_or_else(|| lacks("ibv_wr_atomic_fetch_add", "change peers' memory"))?;
                // SAFETY: as above.
                unsafe { change(ex, at.rkey, at.addr, add) };
            }
            Work::CompareSwap { at, expected, new } => {
                let change = builders.compare_swap;
                let change = change.ok_or_else(|| lacks("ibv_wr_atomic_cmp_swp", "change peers' memory"))?;
                // SAFETY: as above.
                unsafe { change(ex, at.rkey, at.addr, expected, new) };
            }
        }
        if let (Some((handle, qp, qkey)), Some(peer)) = (to, builders.peer) {
            // SAFETY: a request was begun, and the address handle exists.
            unsafe { peer(ex, handle.as_ptr(), qp, qkey) };
        }
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
                // SAFETY: `segments.len()` pieces; the driver copies them, and refuses more than the queue pair was
                // created for.
                unsafe { (builders.segments)(ex, segments.len(), pieces.as_ptr()) };
            }
        }
        Ok(())
    }

    /// Posts the whole batch to the device.
    ///
    /// # Errors
    /// The first error of any request, in which case none is posted: `ENOMEM` if the queue is full, `EINVAL` for too
    /// many pieces or bytes.
    #[inline]
    pub fn submit(self) -> Result<()> {
        let (ex, complete) = (self.built.qp.as_ptr(), self.built.builders.complete);
        std::mem::forget(self); // `complete` unlocks, even on failure
        // SAFETY: a batch is open, and ends here.
        match unsafe { complete(ex) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_wr_complete", errno)),
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // SAFETY: a batch is open, and ends here.
        unsafe { (self.built.builders.abort)(self.built.qp.as_ptr()) };
    }
}
