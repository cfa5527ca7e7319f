//! Completion queues, and channels that tell of entries in them.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use crate::abi::*;
use crate::abi_ex::{IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM};
use crate::device::Context;
use crate::error::{Error, Result};
use crate::library::{Verbs, verbs};

/// Becomes readable when an armed queue gets an entry.
pub struct CompletionChannel {
    channel: NonNull<ibv_comp_channel>,
    context: Context,
    fd: RawFd,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Makes one, whose descriptor does not block.
    ///
    /// # Errors
    /// Those of ibv_create_comp_channel(3).
    pub fn new(context: Context) -> Result<Arc<Self>> {
        // SAFETY: an open context.
        let channel = unsafe { (verbs()?.ibv_create_comp_channel)(context.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| Error::last("ibv_create_comp_channel"))?;
        // SAFETY: a channel, whose first fields are as the interface has them.
        let fd = unsafe { (*channel.as_ptr()).fd };
        let made = Self { channel, context, fd };
        set_nonblocking(fd)?;
        Ok(Arc::new(made))
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    pub(crate) fn context(&self) -> Context {
        self.context
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.channel.as_ptr()
    }

    /// Takes what made it readable, so that it no longer is.
    pub(crate) fn quiet(&self) {
        let Ok(verbs) = verbs() else { return };
        let (mut cq, mut context): (*mut ibv_cq, *mut c_void) = (null_mut(), null_mut());
        // SAFETY: the channel is there, and does not block.
        while unsafe { (verbs.ibv_get_cq_event)(self.as_ptr(), &mut cq, &mut context) } == 0 {
            // SAFETY: one event of this queue was taken.
            unsafe { (verbs.ibv_ack_cq_events)(cq, 1) };
        }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: made above; queues on it are gone, as they would hold this.
            unsafe { (verbs.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        }
    }
}

/// Has a descriptor answer at once.
pub(crate) fn set_nonblocking(fd: RawFd) -> Result<()> {
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(Error::last("fcntl"));
    }
    Ok(())
}

/// What a work request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A receive.
    Receive,
    /// A receive that a peer's write with immediate data has used up: nothing was put into its memory.
    WriteArrived,
    /// A send, a read, or a write.
    Request,
}

/// How a work request ended (`enum ibv_wc_status`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(u32);

impl Status {
    /// It did what it should.
    pub const SUCCESS: Self = Self(0);
    /// A message is longer than the receive that it came for.
    pub const TOO_LONG: Self = Self(1);
    /// Its queue pair was in error, so it was not tried.
    pub const FLUSHED: Self = Self(5);
    /// The peer does not allow this access.
    pub const REMOTE_ACCESS: Self = Self(10);
    /// The peer does not answer.
    pub const RETRY_EXCEEDED: Self = Self(12);
    /// The peer has no receive.
    pub const NO_RECEIVE: Self = Self(13);

    /// `IBV_WC_TM_RNDV_INCOMPLETE`.
    const LAST: u32 = 23;

    /// One that a simulation makes up.
    pub const fn from_raw(status: u32) -> Self {
        Self(status)
    }

    /// The number.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Whether rdma-core has such a status.
    pub const fn is_known(self) -> bool {
        self.0 <= Self::LAST
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ok(verbs) = verbs() else { return write!(f, "status {}", self.0) };
        // SAFETY: answers a constant string for any number.
        let text = unsafe { (verbs.ibv_wc_status_str)(self.0) };
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(text) };
        write!(f, "{} ({})", text.to_string_lossy(), self.0)
    }
}

/// The end of a work request.
#[derive(Clone, Copy, Debug)]
pub struct WorkCompletion {
    /// Its number.
    pub id: u64,
    /// How it ended.
    pub status: Status,
    /// What it was. Not known of one that failed.
    pub opcode: Opcode,
    /// Bytes received.
    pub len: usize,
    /// The queue pair.
    pub qp: u32,
    /// Immediate data that came along.
    pub data: Option<u32>,
    /// Of a datagram, the queue pair that sent it.
    pub source_qp: u32,
    /// Of a datagram, its sender's LID (InfiniBand).
    pub lid: u16,
    /// Of a datagram, whether a route header was written before its payload.
    pub has_route: bool,
}

/// Where ends of work requests are reported.
pub struct CompletionQueue {
    cq: NonNull<ibv_cq>,
    context: Context,
    channel: Arc<CompletionChannel>,
    verbs: &'static Verbs,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Makes one of at least `size` entries.
    ///
    /// # Errors
    /// Those of ibv_create_cq(3).
    pub fn new(channel: &Arc<CompletionChannel>, size: usize) -> Result<Arc<Self>> {
        let verbs = verbs()?;
        let size = c_int::try_from(size).unwrap_or(c_int::MAX);
        let context = channel.context;
        // SAFETY: an open context and a channel of it.
        let cq =
            unsafe { (verbs.ibv_create_cq)(context.as_ptr(), size, null_mut(), channel.channel.as_ptr(), 0) };
        let cq = NonNull::new(cq).ok_or_else(|| Error::last("ibv_create_cq"))?;
        Ok(Arc::new(Self { cq, context, channel: Arc::clone(channel), verbs }))
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// Takes entries, up to 32, and hands each to `take`. How many there were.
    ///
    /// # Errors
    /// When the device cannot be asked any more.
    pub fn poll(&self, mut take: impl FnMut(WorkCompletion)) -> Result<usize> {
        let mut entries = [ibv_wc::default(); 32];
        let Some(poll) = self.context.ops().poll_cq else {
            return Err(Error::of("ibv_poll_cq", libc::ENOSYS));
        };
        // SAFETY: a queue of this driver, and room for so many entries.
        let count = unsafe { poll(self.cq.as_ptr(), entries.len() as c_int, entries.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else { return Err(Error::of("ibv_poll_cq", libc::EIO)) };
        for entry in &entries[..count] {
            let opcode = match entry.opcode {
                IBV_WC_RECV_RDMA_WITH_IMM => Opcode::WriteArrived,
                opcode if opcode & IBV_WC_RECV != 0 => Opcode::Receive,
                _ => Opcode::Request,
            };
            take(WorkCompletion {
                id: entry.wr_id,
                status: Status(entry.status),
                opcode,
                len: entry.byte_len as usize,
                qp: entry.qp_num,
                data: (entry.wc_flags & IBV_WC_WITH_IMM != 0).then(|| u32::from_be(entry.imm_data)),
                source_qp: entry.src_qp,
                lid: entry.slid,
                has_route: entry.wc_flags & IBV_WC_GRH != 0,
            });
        }
        Ok(count)
    }

    /// Has the next entry make the channel readable. What came before does not, so the queue is to be polled once more.
    ///
    /// # Errors
    /// When the device cannot be asked any more.
    pub fn arm(&self) -> Result<()> {
        let Some(arm) = self.context.ops().req_notify_cq else {
            return Err(Error::of("ibv_req_notify_cq", libc::ENOSYS));
        };
        // SAFETY: a queue of this driver.
        match unsafe { arm(self.cq.as_ptr(), 0) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_req_notify_cq", errno)),
        }
    }

    /// Takes what made the channel readable, so that it no longer is.
    pub fn quiet(&self) {
        self.channel.quiet();
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.quiet(); // destroying waits for every event to be taken
        // SAFETY: made above; queue pairs on it are gone, as they would hold this.
        unsafe { (self.verbs.ibv_destroy_cq)(self.cq.as_ptr()) };
    }
}
