//! Attributes of queues, vectors, counters and registrations, and the error entry, line by line as C prints them.
//! Fields that only the newest versions have are omitted, because a structure does not state its version.

use std::ffi::c_void;
use std::mem::offset_of;

use ofi_api::{AvType, CntrEvents, CqFormat, HmemIface, MrAccess, OpFlags, WaitCond, WaitObj};

use super::value;
use crate::abi::{fi_av_attr, fi_cntr_attr, fi_cq_attr, fi_cq_err_entry, fi_mr_attr, flag};
use crate::info::read;
use crate::memory;

/// The text of a structure; empty for null.
///
/// # Safety
/// The C caller's promise: data of that type.
pub(super) unsafe fn text(data: *const c_void, kind: u32) -> String {
    // SAFETY: the caller's promise, in each branch.
    let lines = unsafe {
        match kind {
            29 => read(data.cast(), size_of::<fi_av_attr>()).map(|attr| av(&attr)),
            30 => read(data.cast(), size_of::<fi_cq_attr>()).map(|attr| cq(&attr)),
            31 => read(data.cast(), offset_of!(fi_mr_attr, hmem_data)).map(|attr| mr(&attr)),
            32 => read(data.cast(), size_of::<fi_cntr_attr>()).map(|attr| cntr(&attr)),
            _ => read(data.cast(), offset_of!(fi_cq_err_entry, src_addr)).map(|entry| error(&entry)),
        }
    };
    lines.unwrap_or_default()
}

/// A pointer as C prints it.
fn pointer<T>(pointer: *const T) -> String {
    if pointer.is_null() { "(nil)".into() } else { format!("{pointer:p}") }
}

/// # Safety
/// The C caller's promise: the name is null or a string.
unsafe fn av(attr: &fi_av_attr) -> String {
    let known = [(flag::EVENT, "FI_EVENT"), (flag::READ, "FI_READ"), (flag::SYMMETRIC, "FI_SYMMETRIC")];
    let mut flags: Vec<String> =
        known.iter().filter(|(bit, _)| attr.flags & bit != 0).map(|(_, name)| (*name).into()).collect();
    let other = known.iter().fold(attr.flags, |rest, (bit, _)| rest & !bit);
    if other != 0 {
        flags.push(format!("{other:#x}"));
    }
    // SAFETY: the caller's promise.
    let name = unsafe { memory::text(attr.name) };
    format!(
        "fi_av_attr:\n    type: {}\n    rx_ctx_bits: {}\n    count: {}\n    ep_per_node: {}\n    name: {}\n    flags: [ {} ]\n",
        value(AvType::from_c(attr.r#type)),
        attr.rx_ctx_bits,
        attr.count,
        attr.ep_per_node,
        name.as_deref().unwrap_or("(null)"),
        flags.join(", "),
    )
}

fn cq(attr: &fi_cq_attr) -> String {
    format!(
        "fi_cq_attr:\n    size: {}\n    flags: [ {} ]\n    format: {}\n    wait_obj: {}\n    signaling_vector: {}\n    wait_cond: {}\n",
        attr.size,
        OpFlags::from_bits_retain(attr.flags),
        value(CqFormat::from_c(attr.format)),
        value(WaitObj::from_c(attr.wait_obj)),
        attr.signaling_vector,
        value(WaitCond::from_c(attr.wait_cond)),
    )
}

fn mr(attr: &fi_mr_attr) -> String {
    format!(
        "fi_mr_attr:\n    mr_iov: {}\n    iov_count: {}\n    access: [ {} ]\n    offset: {:#x}\n    requested_key: {:#x}\n    context: {}\n    auth_key_size: {}\n    iface: {}\n",
        pointer(attr.mr_iov),
        attr.iov_count,
        MrAccess::from_bits_retain(attr.access),
        attr.offset,
        attr.requested_key,
        pointer(attr.context),
        attr.auth_key_size,
        value(HmemIface::from_c(attr.iface)),
    )
}

fn cntr(attr: &fi_cntr_attr) -> String {
    format!(
        "fi_cntr_attr:\n    events: {}\n    wait_obj: {}\n    flags: {:#x}\n",
        value(CntrEvents::from_c(attr.events)),
        value(WaitObj::from_c(attr.wait_obj)),
        attr.flags,
    )
}

fn error(entry: &fi_cq_err_entry) -> String {
    format!(
        "fi_cq_err_entry:\n    op_context: {}\n    flags: {:#x}\n    len: {}\n    buf: {}\n    data: {}\n    tag: {:#x}\n    olen: {}\n    err: {}\n    prov_errno: {}\n    err_data: {}\n    err_data_size: {}\n",
        pointer(entry.op_context),
        entry.flags,
        entry.len,
        pointer(entry.buf),
        entry.data,
        entry.tag,
        entry.olen,
        entry.err,
        entry.prov_errno,
        pointer(entry.err_data),
        entry.err_data_size,
    )
}
