//! Triggered operations (`FI_TRIGGER`): fi_trigger(3).

use std::sync::Arc;

use ofi_api::{Context, Counter, DeferredOp, Errno, Error, Result, Threshold};

use crate::abi::{fi_triggered_context, fid_cntr};
use crate::ffi_guard::null;
use crate::object;
use crate::state::EpBody;

/// `FI_TRIGGER_THRESHOLD`, the only event.
const THRESHOLD: u32 = 0;

/// A counter of C.
///
/// # Safety
/// The C caller's promise.
pub(crate) unsafe fn counter<'a>(cntr: *mut fid_cntr) -> Result<&'a Arc<dyn Counter>> {
    // SAFETY: the same promise.
    Ok(&unsafe { object::body(cntr)? }.counter)
}

/// Posts an operation with `FI_TRIGGER`. Its context is a `struct fi_triggered_context` with the condition.
///
/// # Errors
/// Those of [`ofi_api::Endpoint::trigger`]; `FI_ENOSYS` for an event other than a threshold.
#[cold]
#[inline(never)]
pub(crate) fn later<'a, Op: Copy>(
    ep: &EpBody,
    context: Context,
    op: &Op,
    deferred: impl FnOnce(Op) -> DeferredOp<'a>,
) -> Result<()> {
    let given = context.as_ptr::<fi_triggered_context>();
    // SAFETY: the C caller's promise: with the flag, the context is such a structure.
    let Some(when) = (unsafe { given.as_ref() }) else { return Err(null("struct fi_triggered_context")) };
    if when.event_type != THRESHOLD {
        let text =
            format!("the event of a triggered operation: {}, and not FI_TRIGGER_THRESHOLD", when.event_type);
        return Err(Error::with(Errno::ENOSYS, text));
    }
    let [cntr, value, _] = when.trigger;
    // SAFETY: as above.
    let counter = unsafe { counter(cntr.cast())? };
    ep.endpoint.trigger(&Threshold { counter, value: value.addr() as u64 }, &deferred(*op))
}
