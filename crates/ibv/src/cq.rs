//! Completion queues, and channels that notify of their entries.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use crate::abi::*;
use crate::abi_ex::{IBV_WC_EX_USED, IBV_WC_WITH_IMM, ibv_cq_init_attr_ex};
use crate::completion::{Opcode, Status, WorkCompletion};
use crate::device::Context;
use crate::error::{Error, Result};
use crate::library::{Verbs, verbs};
use crate::polling::Polling;

/// A channel that becomes readable when an armed queue gets an entry.
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
    /// Creates a channel, whose descriptor does not block.
    ///
    /// # Errors
    /// The errors of ibv_create_comp_channel(3).
    pub fn new(context: Context) -> Result<Arc<Self>> {
        // SAFETY: an open context.
        let channel = unsafe { (verbs()?.ibv_create_comp_channel)(context.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(|| Error::last("ibv_create_comp_channel"))?;
        // SAFETY: the channel exists; its first fields are those of the interface.
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

    /// Consumes the notifications, so that the channel is no longer readable.
    pub(crate) fn quiet(&self) {
        let Ok(verbs) = verbs() else { return };
        let (mut cq, mut context): (*mut ibv_cq, *mut c_void) = (null_mut(), null_mut());
        // SAFETY: the channel exists, and does not block.
        while unsafe { (verbs.ibv_get_cq_event)(self.as_ptr(), &mut cq, &mut context) } == 0 {
            // SAFETY: one event of this queue was taken.
            unsafe { (verbs.ibv_ack_cq_events)(cq, 1) };
        }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: made above; no queue on the channel exists, because queues hold it.
            unsafe { (verbs.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        }
    }
}

/// Makes a descriptor non-blocking.
pub(crate) fn set_nonblocking(fd: RawFd) -> Result<()> {
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(Error::last("fcntl"));
    }
    Ok(())
}

/// The vendor of soft-RoCE (`RXE_VENDOR_ID`).
const SOFT_ROCE: u32 = 0xFF_FFFF;

/// A completion queue of work requests.
pub struct CompletionQueue {
    cq: NonNull<ibv_cq>,
    /// Set for an extended queue.
    polling: Option<Polling>,
    context: Context,
    channel: Arc<CompletionChannel>,
    verbs: &'static Verbs,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue of at least `size` entries.
    ///
    /// # Errors
    /// The errors of ibv_create_cq(3).
    pub fn new(channel: &Arc<CompletionChannel>, size: usize) -> Result<Arc<Self>> {
        let verbs = verbs()?;
        let size = c_int::try_from(size).unwrap_or(c_int::MAX);
        let context = channel.context;
        // SAFETY: an open context and a channel of it.
        let cq =
            unsafe { (verbs.ibv_create_cq)(context.as_ptr(), size, null_mut(), channel.channel.as_ptr(), 0) };
        let cq = NonNull::new(cq).ok_or_else(|| Error::last("ibv_create_cq"))?;
        Ok(Arc::new(Self { cq, polling: None, context, channel: Arc::clone(channel), verbs }))
    }

    /// Creates an extended queue, whose driver returns only the fields that are read, instead of writing whole entries.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no extended queues; else the errors of ibv_create_cq_ex(3).
    pub fn extended(channel: &Arc<CompletionChannel>, size: usize) -> Result<Arc<Self>> {
        let (verbs, context) = (verbs()?, channel.context);
        let mut attr = ibv_cq_init_attr_ex {
            cqe: u32::try_from(size.max(1)).unwrap_or(u32::MAX),
            cq_context: null_mut(),
            channel: channel.as_ptr(),
            comp_vector: 0,
            wc_flags: IBV_WC_EX_USED,
            comp_mask: 0,
            flags: 0,
            parent_domain: null_mut(),
        };
        let single = context.query()?.vendor == SOFT_ROCE;
        // SAFETY: a channel of this device.
        let cq = NonNull::new(unsafe { context.create_cq_ex(&mut attr) }?);
        let cq = cq.ok_or_else(|| Error::last("ibv_create_cq_ex"))?;
        // SAFETY: made above, and destroyed when this value is dropped.
        let polling = unsafe { Polling::of(cq, single) };
        let made = Self { cq: cq.cast(), polling, context, channel: Arc::clone(channel), verbs };
        match made.polling {
            Some(_) => Ok(Arc::new(made)),
            None => Err(Error::of("ibv_start_poll", libc::ENOSYS)),
        }
    }

    /// Whether it is an extended queue.
    pub const fn is_extended(&self) -> bool {
        self.polling.is_some()
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// Distinguishes the queue from others while it exists ([`crate::AsyncEvent::QueueError`]).
    pub fn number(&self) -> usize {
        self.cq.as_ptr() as usize
    }

    /// Reads up to 32 entries (up to 16 of an extended queue), and passes each to `take`. Returns their number.
    ///
    /// # Errors
    /// An error if the device can no longer be polled.
    pub fn poll(&self, mut take: impl FnMut(WorkCompletion)) -> Result<usize> {
        if let Some(polling) = &self.polling {
            // SAFETY: the poll calls this only while it is at an entry.
            return polling.poll(|| unsafe { polling.entry() }, |entry| take(*entry));
        }
        let mut entries = [ibv_wc::default(); 32];
        let Some(poll) = self.context.ops().poll_cq else {
            return Err(Error::of("ibv_poll_cq", libc::ENOSYS));
        };
        // SAFETY: a queue of this driver, and room for `entries.len()` entries.
        let count = unsafe { poll(self.cq.as_ptr(), entries.len() as c_int, entries.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else { return Err(Error::of("ibv_poll_cq", libc::EIO)) };
        for entry in &entries[..count] {
            take(WorkCompletion {
                id: entry.wr_id,
                status: Status::from_raw(entry.status),
                opcode: Opcode::of(entry.opcode),
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

    /// Gives the queue room for at least `size` entries; those in it stay.
    ///
    /// # Errors
    /// The errors of ibv_resize_cq(3): `EINVAL` for more than the device's maximum, `ENOSYS` or `EOPNOTSUPP` from a
    /// driver that cannot resize.
    pub fn resize(&self, size: usize) -> Result<()> {
        let size = c_int::try_from(size).unwrap_or(c_int::MAX);
        // SAFETY: the queue exists; the driver locks it against polls.
        let answer = unsafe { (self.verbs.ibv_resize_cq)(self.cq.as_ptr(), size) };
        match answer {
            // SAFETY: the queue exists, and nobody else resizes it.
            0 if unsafe { (*self.cq.as_ptr()).cqe } < size => Err(Error::of("ibv_resize_cq", libc::ENOSYS)),
            0 => Ok(()),
            -1 => Err(Error::last("ibv_resize_cq")),
            errno => Err(Error::of("ibv_resize_cq", errno.abs())),
        }
    }

    /// Makes the channel readable at the next entry. Entries that are already queued do not make it readable, so poll
    /// the queue once more after this call.
    ///
    /// # Errors
    /// An error if the device can no longer be armed.
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

    /// Consumes the notifications, so that the channel is no longer readable.
    pub fn quiet(&self) {
        self.channel.quiet();
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.quiet(); // destroying the queue waits until all events are acknowledged
        // SAFETY: made above; no queue pair on it exists, because queue pairs hold it.
        unsafe { (self.verbs.ibv_destroy_cq)(self.cq.as_ptr()) };
    }
}
