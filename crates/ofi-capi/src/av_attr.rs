//! The attributes of C's address vectors, and the arguments of insertions other than addresses.

use ofi_api::{AvAttr, AvType, Context, Errno, Error, FiAddr, Insertion, Result};

use crate::abi::{fi_av_attr, flag};
use crate::ffi_guard::null;
use crate::memory;

/// Parses the attributes of a vector, and fills in those that C expects as output.
///
/// # Errors
/// `FI_ENOSYS` for unsupported attributes.
///
/// # Safety
/// The C caller's promise: the name is null or a string.
pub(crate) unsafe fn read(attr: &mut fi_av_attr) -> Result<AvAttr> {
    let known = flag::SYMMETRIC | flag::EVENT | flag::READ | flag::AV_USER_ID;
    if attr.flags & !known != 0 {
        return Err(Error::wanted(
            Errno::ENOSYS,
            "fi_av_attr",
            "of flags FI_EVENT, FI_READ, FI_AV_USER_ID and FI_SYMMETRIC",
            format!("flags {:#x}", attr.flags),
            "leave them out",
        ));
    }
    let av_type = AvType::try_from(attr.r#type)?;
    if av_type == AvType::Unspec {
        attr.r#type = AvType::Table.as_c();
    }
    Ok(AvAttr {
        av_type,
        count: attr.count,
        rx_ctx_bits: u32::try_from(attr.rx_ctx_bits).unwrap_or(u32::MAX), // refused as too many
        // SAFETY: the caller's promise.
        name: unsafe { memory::text(attr.name) },
        read_only: attr.flags & flag::READ != 0,
        events: attr.flags & flag::EVENT != 0,
        user_ids: attr.flags & flag::AV_USER_ID != 0,
    })
}

/// The user ids of an insertion. With `FI_AV_USER_ID`, they are in `fi_addrs`.
///
/// # Errors
/// `FI_EINVAL` without ids; `FI_EBADFLAGS` for flags that insertions do not have.
///
/// # Safety
/// The C caller's promise: `fi_addrs` is null or has `count` numbers, which are initialised if they are ids.
pub(crate) unsafe fn user_ids(flags: u64, fi_addrs: *const u64, count: usize) -> Result<Option<Vec<FiAddr>>> {
    let known = flag::SYNC_ERR | flag::MORE | flag::AV_USER_ID | flag::AUTH_KEY;
    if flags & !known != 0 {
        return Err(Error::wanted(
            Errno::EBADFLAGS,
            "the flags of an insertion",
            "FI_MORE, FI_SYNC_ERR, FI_AV_USER_ID and FI_AUTH_KEY",
            format!("{flags:#x}"),
            "leave the others out",
        ));
    }
    if flags & flag::AV_USER_ID == 0 || count == 0 {
        return Ok(None);
    }
    if flags & flag::AUTH_KEY != 0 {
        // Both would occupy the same place (fi_av(3)).
        return Err(Error::with(
            Errno::EINVAL,
            "FI_AV_USER_ID and FI_AUTH_KEY exclude each other here; set ids with fi_av_set_user_id",
        ));
    }
    if fi_addrs.is_null() {
        return Err(null("the user ids of an insertion with FI_AV_USER_ID"));
    }
    // SAFETY: the caller's promise.
    let ids = unsafe { std::slice::from_raw_parts(fi_addrs, count) };
    Ok(Some(ids.iter().map(|&id| FiAddr(id)).collect()))
}

/// The options of an insertion.
pub(crate) fn insertion(
    ids: Option<&Vec<FiAddr>>,
    auth_key: Option<FiAddr>,
    context: *mut std::ffi::c_void,
) -> Insertion<'_> {
    Insertion { user_ids: ids.map(Vec::as_slice), context: Context::from_ptr(context), auth_key }
}
