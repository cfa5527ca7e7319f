//! Deferred work (`FI_QUEUE_WORK`, fi_trigger(3)). Triggered operations are in `triggered.rs`.

use std::sync::Arc;

use ofi_api::{AtomicKind, AtomicOp, Counter, DeferredOp, Errno, Error, Result, Threshold, Work, WorkId};

use crate::abi::{
    fi_deferred_work, fi_op_atomic, fi_op_cntr, fi_op_compare_atomic, fi_op_fetch_atomic, fi_op_msg,
    fi_op_rma, fi_op_tagged, fid_ep,
};
use crate::atomic::{Iov, with_message};
use crate::ffi_guard::{invalid, null};
use crate::object;
use crate::state::DomainBody;
use crate::triggered::counter;

/// `FI_QUEUE_WORK`. The work's number is stored in its context, which the library uses until the work has ended.
///
/// # Safety
/// The C caller's promise: the structures do not change until the work has ended.
pub(crate) unsafe fn queue(domain: &DomainBody, work: *mut fi_deferred_work) -> Result<()> {
    // SAFETY: the same promise, here and below.
    let Some(work) = (unsafe { work.as_mut() }) else { return Err(null("struct fi_deferred_work")) };
    // SAFETY: as above.
    let counter = unsafe { counter(work.triggering_cntr)? };
    let queue = Queue { domain, when: Threshold { counter, value: work.threshold } };
    // SAFETY: as above.
    let id = unsafe { queue.work(work)? };
    work.context.internal[0] = std::ptr::without_provenance_mut(id.0 as usize);
    Ok(())
}

/// The domain in which work is queued, and the condition for starting it.
struct Queue<'a> {
    domain: &'a DomainBody,
    when: Threshold<'a>,
}

impl Queue<'_> {
    fn add(&self, work: &Work<'_>) -> Result<WorkId> {
        self.domain.domain.queue_work(&self.when, work)
    }

    /// # Safety
    /// The C caller's promise: `op` has the type that `op_type` names.
    unsafe fn work(&self, work: &fi_deferred_work) -> Result<WorkId> {
        let completion = match work.completion_cntr.is_null() {
            true => None,
            // SAFETY: the same promise, here and below.
            false => Some(unsafe { counter(work.completion_cntr)? }),
        };
        if work.op.is_null() {
            return Err(null("the operation of deferred work"));
        }
        let post = |ep: *mut fid_ep, op: DeferredOp<'_>| {
            // SAFETY: as above.
            let endpoint = &unsafe { object::body(ep)? }.endpoint;
            self.add(&Work::Post { endpoint, op, completion })
        };
        // The order of the arms is that of `enum fi_op_type`.
        match work.op_type {
            kind @ (0 | 1) => {
                // SAFETY: as above.
                let fi_op_msg { ep, msg, flags } = unsafe { work.op.cast::<fi_op_msg>().read() };
                if kind == 0 {
                    // SAFETY: as above.
                    return post(ep, DeferredOp::Receive(unsafe { msg.receive_op(flags)? }));
                }
                // SAFETY: as above.
                post(ep, DeferredOp::Send(unsafe { msg.send_op(flags)? }))
            }
            kind @ (2 | 3) => {
                // SAFETY: as above.
                let fi_op_tagged { ep, msg, flags } = unsafe { work.op.cast::<fi_op_tagged>().read() };
                let untagged = msg.untagged();
                if kind == 2 {
                    // SAFETY: as above.
                    let op = unsafe { untagged.receive_op(flags)? };
                    return post(ep, DeferredOp::ReceiveTagged(op, msg.matching()));
                }
                // SAFETY: as above.
                post(ep, DeferredOp::SendTagged(unsafe { untagged.send_op(flags)? }, msg.tag))
            }
            kind @ (4 | 5) => {
                // SAFETY: as above.
                let fi_op_rma { ep, msg, flags } = unsafe { work.op.cast::<fi_op_rma>().read() };
                // SAFETY: as above.
                let op = unsafe { msg.op(flags)? };
                post(ep, if kind == 4 { DeferredOp::Read(op) } else { DeferredOp::Write(op) })
            }
            // SAFETY: as above.
            kind @ 6..=8 => unsafe { self.atomic(kind, work, completion) },
            kind @ (9 | 10) => {
                // SAFETY: as above.
                let fi_op_cntr { cntr, value } = unsafe { work.op.cast::<fi_op_cntr>().read() };
                // SAFETY: as above.
                let cntr = unsafe { counter(cntr)? };
                self.add(&if kind == 9 {
                    Work::SetCounter(cntr, value)
                } else {
                    Work::AddCounter(cntr, value)
                })
            }
            other => Err(Error::with(
                Errno::ENOSYS,
                format!("deferred work of type {other} is not supported; see fi_trigger(3)"),
            )),
        }
    }

    /// An atomic operation. The larger structures begin with the fields of the smaller ones.
    ///
    /// # Safety
    /// As [`Queue::work`].
    unsafe fn atomic(
        &self,
        kind: u32,
        work: &fi_deferred_work,
        completion: Option<&Arc<dyn Counter>>,
    ) -> Result<WorkId> {
        // SAFETY: the same promise, here and below.
        let op = unsafe { &*work.op.cast::<fi_op_atomic>() };
        let (kind, sides, flags) = match kind {
            6 => (AtomicKind::Base, [Iov::NONE; 2], op.flags),
            7 => {
                // SAFETY: as above.
                let op = unsafe { &*work.op.cast::<fi_op_fetch_atomic>() };
                let fetch = Iov(op.fetch.msg_iov, op.fetch.desc, op.fetch.iov_count);
                (AtomicKind::Fetch, [Iov::NONE, fetch], op.flags)
            }
            _ => {
                // SAFETY: as above.
                let op = unsafe { &*work.op.cast::<fi_op_compare_atomic>() };
                let compare = Iov(op.compare.msg_iov, op.compare.desc, op.compare.iov_count);
                let fetch = Iov(op.fetch.msg_iov, op.fetch.desc, op.fetch.iov_count);
                (AtomicKind::Compare, [compare, fetch], op.flags)
            }
        };
        // SAFETY: as above.
        let ep = unsafe { object::body(op.ep)? };
        let mut queued = Err(invalid("deferred work", "an operation", "none"));
        let queue = |op: AtomicOp<'_>| {
            queued = self.add(&Work::Post { endpoint: &ep.endpoint, op: DeferredOp::Atomic(op), completion });
            Ok(())
        };
        // SAFETY: as above.
        unsafe { with_message(ep, &raw const op.msg, kind, sides, flags, queue)? };
        queued
    }
}

/// `FI_CANCEL_WORK`.
///
/// # Safety
/// The C caller's promise: work that was queued here.
pub(crate) unsafe fn cancel(domain: &DomainBody, work: *const fi_deferred_work) -> Result<()> {
    // SAFETY: the same promise.
    let Some(work) = (unsafe { work.as_ref() }) else { return Err(null("struct fi_deferred_work")) };
    domain.domain.cancel_work(WorkId(work.context.internal[0].addr() as u64))
}

/// `FI_FLUSH_WORK`: all work of the domain or, if `work` is not null, all work that waits for its counter.
///
/// # Safety
/// The C caller's promise: null or work.
pub(crate) unsafe fn flush(domain: &DomainBody, work: *const fi_deferred_work) -> Result<()> {
    // SAFETY: the same promise, here and below.
    let cntr = unsafe { work.as_ref() }.map(|work| work.triggering_cntr).filter(|cntr| !cntr.is_null());
    // SAFETY: as above.
    let counter = cntr.map(|cntr| unsafe { counter(cntr) }).transpose()?;
    domain.domain.flush_work(counter).map(drop)
}
