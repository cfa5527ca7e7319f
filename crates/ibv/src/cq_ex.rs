//! Completion queues of EFA devices, whose entries tell who sent.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use crate::abi::*;
use crate::abi_ex::*;
use crate::cq::{CompletionChannel, Status};
use crate::device::{Context, Gid};
use crate::error::{Error, Result};
use crate::library::{efa, verbs};

/// What a request of an EFA queue pair did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EfaOpcode {
    /// A send.
    Send,
    /// A remote write. libefa before rdma-core 50 says send.
    Write,
    /// A remote read. libefa before rdma-core 50 says send.
    Read,
    /// A peer's send came.
    Receive,
    /// A peer wrote, and sent immediate data with it.
    WriteArrived,
}

/// The end of a request.
#[derive(Clone, Copy, Debug)]
pub struct EfaCompletion {
    /// Its number; nobody's if `unsolicited`.
    pub id: u64,
    /// How it ended, as verbs have it.
    pub status: Status,
    /// How it ended, as the device has it (`enum efa_io_comp_status`); 0 is success.
    pub vendor: u32,
    /// What it did.
    pub opcode: EfaOpcode,
    /// The queue pair of this end.
    pub qp: u32,
    /// Bytes received. 0 at the end that asked.
    pub len: u32,
    /// The sender's queue pair. 0 at the end that asked.
    pub source_qp: u32,
    /// The number of an address handle for the sender ([`crate::AddressHandle::efa_number`]); `None` if this end has
    /// none.
    pub source_ah: Option<u16>,
    /// The sender's GID, if this end has no address handle for it.
    pub source_gid: Option<Gid>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Whether this write took no receive.
    pub unsolicited: bool,
}

/// Begins a poll, goes on to the next entry, and ends the poll.
type Steps = (
    unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int,
    unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int,
    unsafe extern "C" fn(*mut ibv_cq_ex),
);

/// Where ends of an EFA queue pair's requests are reported.
pub struct EfaCompletionQueue {
    cq: NonNull<ibv_cq_ex>,
    efa: *mut efadv_cq,
    steps: Steps,
    context: Context,
    channel: Option<Arc<CompletionChannel>>,
    source_gid: bool,
    unsolicited: bool,
}

// SAFETY: functions of libibverbs may be called from any thread; a poll holds the queue's lock from its start to its
// end.
unsafe impl Send for EfaCompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for EfaCompletionQueue {}

impl EfaCompletionQueue {
    /// Makes one of at least `size` entries, whose events go to `channel`. A queue without a channel has none.
    ///
    /// # Errors
    /// `EINVAL` if the channel is another device's; else those of efadv_create_cq(3).
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
        // SAFETY: an open context and structures as the interface has them.
        let cq = unsafe { (efa()?.efadv_create_cq)(context.as_ptr(), &mut attr, &mut more, len) };
        let cq = NonNull::new(cq).ok_or_else(|| Error::last("efadv_create_cq"))?;
        // SAFETY: a queue that libefa made; the answer is a part of it.
        let efa = unsafe { (efa()?.efadv_cq_from_ibv_cq_ex)(cq.as_ptr()) };
        // SAFETY: nobody else has the queue yet.
        let made = unsafe { cq.as_ref() };
        let (Some(start), Some(next), Some(end)) = (made.start_poll, made.next_poll, made.end_poll) else {
            // SAFETY: made above.
            unsafe { (verbs()?.ibv_destroy_cq)(cq.as_ptr().cast()) };
            return Err(Error::of("ibv_start_poll", libc::ENOSYS));
        };
        let (source_gid, unsolicited) = (info.source_gid, info.unsolicited);
        let steps = (start, next, end);
        Ok(Arc::new(Self { cq, efa, steps, context, channel: channel.cloned(), source_gid, unsolicited }))
    }

    /// Its device.
    pub fn context(&self) -> Context {
        self.context
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr().cast()
    }

    /// Takes entries, up to 16, and hands each to `take`. How many there were.
    ///
    /// # Errors
    /// When the device cannot be asked any more.
    pub fn poll(&self, mut take: impl FnMut(&EfaCompletion)) -> Result<usize> {
        // Taken first and told afterwards: libefa holds a spin lock meanwhile, which `take` may need to poll or to drop
        // a queue pair.
        let mut entries: [MaybeUninit<EfaCompletion>; 16] = [const { MaybeUninit::uninit() }; 16];
        let mut count = 0;
        let cq = self.cq.as_ptr();
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        let (start, next, end) = self.steps;
        // SAFETY: a queue of this driver.
        let mut errno = unsafe { start(cq, &mut attr) };
        if errno == libc::ENOENT {
            return Ok(0);
        }
        if errno != 0 {
            return Err(Error::of("ibv_start_poll", errno));
        }
        while errno == 0 {
            // SAFETY: between the start and the end of a poll, at an entry.
            entries[count].write(unsafe { self.entry() });
            count += 1;
            if count == entries.len() {
                break;
            }
            // SAFETY: as above.
            errno = unsafe { next(cq) };
        }
        // SAFETY: ends what began above.
        unsafe { end(cq) };
        for entry in &entries[..count] {
            // SAFETY: the first `count` were written.
            take(unsafe { entry.assume_init_ref() });
        }
        Ok(count)
    }

    /// The entry at which a poll is.
    ///
    /// # Safety
    /// Between the start and the end of a poll, at an entry.
    unsafe fn entry(&self) -> EfaCompletion {
        /// Calls a function of the queue. `new` asked for each one that is used here.
        macro_rules! read {
            ($table:expr, $name:ident $(, $arg:expr)?) => {{
                // SAFETY: a queue that is there.
                let read = unsafe { (*$table).$name };
                // SAFETY: the poll is at an entry.
                read.map(|read| unsafe { read($table $(, $arg)?) }).unwrap_or_default()
            }};
        }
        let cq = self.cq.as_ptr();
        // SAFETY: a queue that is there, and locked by the poll.
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
                // SAFETY: this field is there in a queue that was asked for source GIDs.
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

    /// Has the next entry make the channel readable. What came before does not, so the queue is to be polled once more.
    ///
    /// # Errors
    /// `EINVAL` if the queue has no channel; else when the device cannot be asked any more.
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

    /// Takes what made the channel readable, so that it no longer is.
    pub fn quiet(&self) {
        if let Some(channel) = &self.channel {
            channel.quiet();
        }
    }
}

impl Drop for EfaCompletionQueue {
    fn drop(&mut self) {
        self.quiet(); // destroying waits for every event to be taken
        if let Ok(verbs) = verbs() {
            // SAFETY: made above; queue pairs on it are gone, as they would hold this.
            let _: c_int = unsafe { (verbs.ibv_destroy_cq)(self.as_ptr()) };
        }
    }
}

/// The number that stands for no address handle.
const UNKNOWN: u16 = 0xffff;
