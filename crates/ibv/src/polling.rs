//! The common part of extended completion queues of all devices, whose entries are read by function calls
//! (`ibv_start_poll`).

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use crate::abi::*;
use crate::abi_ex::*;
use crate::completion::{Opcode, Status, WorkCompletion};
use crate::error::{Error, Result};

/// The functions that start a poll, move to the next entry, and end the poll.
type Steps = (
    unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int,
    unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int,
    unsafe extern "C" fn(*mut ibv_cq_ex),
);

/// An extended completion queue, whose entries are read by function calls.
pub(crate) struct Polling {
    pub cq: NonNull<ibv_cq_ex>,
    steps: Steps,
    /// Whether each poll reads only one entry. soft-RoCE's driver needs that: it loses an entry if a poll ends after
    /// not finding a next one.
    single: bool,
}

/// Calls a function of an entry. The function exists if the queue was created with the field that it reads.
macro_rules! read {
    ($table:expr, $name:ident $(, $arg:expr)?) => {{
        // SAFETY: the queue exists.
        let read = unsafe { (*$table).$name };
        // SAFETY: the poll is at an entry.
        read.map(|read| unsafe { read($table $(, $arg)?) }).unwrap_or_default()
    }};
}
pub(crate) use read;

impl Polling {
    /// Maximum number of completion entries that one poll reads.
    const MAX_ENTRIES_PER_POLL: usize = 16;

    /// `None` if the driver lacks a function.
    ///
    /// # Safety
    /// The queue exists as long as this value is used.
    pub unsafe fn of(cq: NonNull<ibv_cq_ex>, single: bool) -> Option<Self> {
        // SAFETY: the queue exists; these functions do not change.
        let made = unsafe { cq.as_ref() };
        Some(Self { cq, steps: (made.start_poll?, made.next_poll?, made.end_poll?), single })
    }

    /// Reads up to 16 entries by `entry`, and passes each to `take`. Returns their number.
    ///
    /// # Errors
    /// An error if the device can no longer be polled.
    #[inline]
    pub fn poll<E>(&self, entry: impl Fn() -> E, mut take: impl FnMut(&E)) -> Result<usize> {
        // Entries are collected first and passed on afterwards: during the poll the driver holds a spin lock, which
        // `take` may need itself to poll or to drop a queue pair.
        let mut entries: [MaybeUninit<E>; Self::MAX_ENTRIES_PER_POLL] =
            [const { MaybeUninit::uninit() }; Self::MAX_ENTRIES_PER_POLL];
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
            entries[count].write(entry());
            count += 1;
            if count == entries.len() || self.single {
                break;
            }
            // SAFETY: as above.
            errno = unsafe { next(cq) };
        }
        // SAFETY: ends the poll that was started above.
        unsafe { end(cq) };
        for entry in &entries[..count] {
            // SAFETY: the first `count` were written.
            take(unsafe { entry.assume_init_ref() });
        }
        Ok(count)
    }

    /// The current entry of a poll, of a queue of any device.
    ///
    /// # Safety
    /// The call is between the start and the end of a poll, at an entry.
    pub unsafe fn entry(&self) -> WorkCompletion {
        let cq = self.cq.as_ptr();
        // SAFETY: the queue exists, and the poll holds its lock.
        let id = unsafe { (*cq).wr_id };
        // SAFETY: as above.
        let status = Status::from_raw(unsafe { (*cq).status });
        let qp = read!(cq, read_qp_num);
        let mut entry = WorkCompletion {
            id,
            status,
            opcode: Opcode::Request,
            len: 0,
            qp,
            data: None,
            source_qp: 0,
            lid: 0,
            has_route: false,
        };
        if status != Status::SUCCESS {
            return entry; // the rest is undefined
        }
        entry.opcode = Opcode::of(read!(cq, read_opcode));
        entry.len = read!(cq, read_byte_len) as usize;
        if entry.opcode == Opcode::Request {
            return entry;
        }
        let flags = read!(cq, read_wc_flags);
        if flags & IBV_WC_WITH_IMM != 0 {
            entry.data = Some(u32::from_be(read!(cq, read_imm_data)));
        }
        entry.has_route = flags & IBV_WC_GRH != 0;
        entry.source_qp = read!(cq, read_src_qp);
        entry.lid = read!(cq, read_slid) as u16;
        entry
    }
}
