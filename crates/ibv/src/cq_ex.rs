//! Extended completion queues of EFA devices. Their entries identify the sender.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use crate::abi::*;
use crate::abi_ex::*;
use crate::completion::Status;
use crate::cq::CompletionChannel;
use crate::device::{Context, Gid};
use crate::error::{Error, Result};
use crate::library::{efa, verbs};
use crate::polling::{Polling, read};

/// The kind of a completed request of an EFA queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EfaOpcode {
    /// A send.
    Send,
    /// A remote write. libefa before rdma-core 50 reports it as a send.
    Write,
    /// A remote read. libefa before rdma-core 50 reports it as a send.
    Read,
    /// A message of a peer has arrived.
    Receive,
    /// A peer has written memory, with immediate data.
    WriteArrived,
}

/// The completion of a request.
#[derive(Clone, Copy, Debug)]
pub struct EfaCompletion {
    /// The id of the request; meaningless if `unsolicited`.
    pub id: u64,
    /// The status as a verbs number.
    pub status: Status,
    /// The status as the device's number (`enum efa_io_comp_status`); 0 is success.
    pub vendor: u32,
    /// The kind of the request.
    pub opcode: EfaOpcode,
    /// The queue pair of this end.
    pub qp: u32,
    /// Number of bytes received. 0 at the initiator.
    pub len: u32,
    /// The sender's queue pair. 0 at the initiator.
    pub source_qp: u32,
    /// The number of an address handle for the sender ([`crate::AddressHandle::efa_number`]); `None` if this end has no
    /// handle for it.
    pub source_ah: Option<u16>,
    /// The sender's GID, if this end has no address handle for it.
    pub source_gid: Option<Gid>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Whether this write consumed no receive.
    pub unsolicited: bool,
}

/// A completion queue of EFA queue pairs.
pub struct EfaCompletionQueue {
    polling: Polling,
    efa: *mut efadv_cq,
    context: Context,
    channel: Option<Arc<CompletionChannel>>,
    source_gid: bool,
    unsolicited: bool,
}

// SAFETY: functions of libibverbs may be called from any thread; a poll holds the queue's lock from start to end.
unsafe impl Send for EfaCompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for EfaCompletionQueue {}

impl EfaCompletionQueue {
    /// Creates a queue of at least `size` entries. Its notifications go to `channel`; without a channel it has none.
    ///
    /// # Errors
    /// `EINVAL` if the channel belongs to another device; else the errors of efadv_create_cq(3).
    pub fn new(context: Context, size: u32, channel: Option<&Arc<CompletionChannel>>) -> Result<Arc<Self>> {
        let info = context.efa()?;
        if channel.is_some_and(|channel| channel.context() != context) {
            let advice = "the completion channel belongs to another device";
            return Err(Error::with("efadv_create_cq", libc::EINVAL, advice));
        }
        let mut attr = ibv_cq_init_attr_ex {
            cqe: size.max(1),
            cq_context: null_mut(),
            channel: channel.map_or(null_mut(), |channel| channel.as_ptr()),
            comp_vector: 0,
            wc_flags: IBV_WC_EX_USED,
            comp_mask: 0,
            flags: 0,
            parent_domain: null_mut(),
        };
        let wc_flags =
            [(info.source_gid, EFADV_WC_EX_WITH_SGID), (info.unsolicited, EFADV_WC_EX_WITH_IS_UNSOLICITED)];
        let wc_flags = wc_flags.iter().filter(|(can, _)| *can).map(|(_, flag)| flag).sum();
        let mut more = efadv_cq_init_attr { comp_mask: 0, wc_flags };
        let len = size_of::<efadv_cq_init_attr>() as u32;
        // SAFETY: an open context, and structures of the interface.
        let cq = unsafe { (efa()?.efadv_create_cq)(context.as_ptr(), &mut attr, &mut more, len) };
        let cq = NonNull::new(cq).ok_or_else(|| Error::last("efadv_create_cq"))?;
        // SAFETY: a queue that libefa made; the result points into it.
        let efa = unsafe { (efa()?.efadv_cq_from_ibv_cq_ex)(cq.as_ptr()) };
        // SAFETY: a queue that libefa made, and that is destroyed when this value is dropped.
        let Some(polling) = (unsafe { Polling::of(cq, false) }) else {
            // SAFETY: made above.
            unsafe { (verbs()?.ibv_destroy_cq)(cq.as_ptr().cast()) };
            return Err(Error::of("ibv_start_poll", libc::ENOSYS));
        };
        let (source_gid, unsolicited) = (info.source_gid, info.unsolicited);
        Ok(Arc::new(Self { polling, efa, context, channel: channel.cloned(), source_gid, unsolicited }))
    }

    /// Its device.
    pub fn context(&self) -> Context {
        self.context
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.polling.cq.as_ptr().cast()
    }

    /// Reads up to 16 entries, and passes each to `take`. Returns their number.
    ///
    /// # Errors
    /// An error if the device can no longer be polled.
    pub fn poll(&self, take: impl FnMut(&EfaCompletion)) -> Result<usize> {
        // SAFETY: the poll calls this only while it is at an entry.
        self.polling.poll(|| unsafe { self.entry() }, take)
    }

    /// The current entry of a poll.
    ///
    /// # Safety
    /// The call is between the start and the end of a poll, at an entry.
    unsafe fn entry(&self) -> EfaCompletion {
        let cq = self.polling.cq.as_ptr();
        // SAFETY: the queue exists, and the poll holds its lock.
        let id = unsafe { (*cq).wr_id };
        // SAFETY: as above.
        let status = unsafe { (*cq).status };
        let opcode = match read!(cq, read_opcode) {
            IBV_WC_RDMA_WRITE => EfaOpcode::Write,
            IBV_WC_RDMA_READ => EfaOpcode::Read,
            IBV_WC_RECV => EfaOpcode::Receive,
            IBV_WC_RECV_RDMA_WITH_IMM => EfaOpcode::WriteArrived,
            _ => EfaOpcode::Send,
        };
        let mut entry = EfaCompletion {
            id,
            status: Status::from_raw(status),
            vendor: read!(cq, read_vendor_err),
            opcode,
            qp: read!(cq, read_qp_num),
            len: 0,
            source_qp: 0,
            source_ah: None,
            source_gid: None,
            immediate: None,
            unsolicited: false,
        };
        if !matches!(opcode, EfaOpcode::Receive | EfaOpcode::WriteArrived) {
            return entry;
        }
        entry.len = read!(cq, read_byte_len);
        entry.source_qp = read!(cq, read_src_qp);
        if read!(cq, read_wc_flags) & IBV_WC_WITH_IMM != 0 {
            entry.immediate = Some(u32::from_be(read!(cq, read_imm_data)));
        }
        match read!(cq, read_slid) as u16 {
            UNKNOWN if self.source_gid => {
                let mut gid = [0; 16];
                // SAFETY: this field exists, because the queue was created with source GIDs.
                let read = unsafe { (*self.efa).wc_read_sgid };
                // SAFETY: the poll is at an entry; the function writes 16 bytes.
                let found = read.is_some_and(|read| unsafe { read(self.efa, &mut gid) } == 0);
                entry.source_gid = found.then_some(Gid(gid));
            }
            UNKNOWN => {}
            number => entry.source_ah = Some(number),
        }
        if self.unsolicited && opcode == EfaOpcode::WriteArrived {
            entry.unsolicited = read!(self.efa, wc_is_unsolicited);
        }
        entry
    }

    /// Makes the channel readable at the next entry. Entries that are already queued do not make it readable, so poll
    /// the queue once more after this call.
    ///
    /// # Errors
    /// `EINVAL` if the queue has no channel; an error if the device can no longer be armed.
    pub fn arm(&self) -> Result<()> {
        if self.channel.is_none() {
            let advice = "this completion queue was made without a channel";
            return Err(Error::with("ibv_req_notify_cq", libc::EINVAL, advice));
        }
        let Some(arm) = self.context.ops().req_notify_cq else {
            return Err(Error::of("ibv_req_notify_cq", libc::ENOSYS));
        };
        // SAFETY: a queue of this driver.
        match unsafe { arm(self.as_ptr(), 0) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_req_notify_cq", errno)),
        }
    }

    /// Consumes the notifications, so that the channel is no longer readable.
    pub fn quiet(&self) {
        if let Some(channel) = &self.channel {
            channel.quiet();
        }
    }
}

impl Drop for EfaCompletionQueue {
    fn drop(&mut self) {
        self.quiet(); // destroying the queue waits until all events are acknowledged
        if let Ok(verbs) = verbs() {
            // SAFETY: made above; no queue pair on it exists, because queue pairs hold it.
            let _: c_int = unsafe { (verbs.ibv_destroy_cq)(self.as_ptr()) };
        }
    }
}

/// The number that means no address handle.
const UNKNOWN: u16 = 0xffff;
