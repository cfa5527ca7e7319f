//! Protection of registered memory from fork(2).
//!
//! A fork write-protects private pages, and the next write moves one of the two processes to a copy. Without protection
//! that may be the parent, whose device keeps the page that the child has now. Linux 5.12 copies pinned pages for the
//! child instead. On older kernels, `ibv_fork_init` has libibverbs keep registered pages out of children
//! (`MADV_DONTFORK`), from its call on.

use std::ffi::{CStr, c_int, c_uint};

use crate::error::{Error, Result};
use crate::library::{optional, verbs};

/// Whether a fork leaves registered memory intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSafety {
    /// The kernel takes care of it.
    Unneeded,
    /// libibverbs keeps registered pages out of children.
    Enabled,
    /// A fork may leave the device with pages that the program does not have any more.
    Disabled,
}

/// Whether a fork leaves registered memory intact. libibverbs enables its protection by itself if the environment has
/// `RDMAV_FORK_SAFE` or `IBV_FORK_SAFE` when its first device is listed; before that, it says that there is none.
///
/// # Errors
/// There is no libibverbs.
pub fn fork_safety() -> Result<ForkSafety> {
    verbs()?;
    let Ok(function) = optional(LIBRARY, "ibv_is_fork_initialized\0") else {
        return Ok(untold()); // rdma-core before 35 does not tell
    };
    // SAFETY: the library's interface declares this function with this type.
    let is_initialized =
        unsafe { std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> c_uint>(function) };
    // SAFETY: it takes nothing.
    Ok(match unsafe { is_initialized() } {
        0 => untold(),
        1 => ForkSafety::Enabled,
        _ => ForkSafety::Unneeded,
    })
}

/// What the environment will make of it.
fn untold() -> ForkSafety {
    let is_asked = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"].iter().any(|name| std::env::var_os(name).is_some());
    if is_asked { ForkSafety::Enabled } else { ForkSafety::Disabled }
}

/// Has libibverbs keep registered pages out of children, unless the kernel copies them for these.
///
/// # Errors
/// The errors of ibv_fork_init(3): `EINVAL` if memory is already registered.
pub fn make_fork_safe() -> Result<ForkSafety> {
    if let safe @ (ForkSafety::Unneeded | ForkSafety::Enabled) = fork_safety()? {
        return Ok(safe);
    }
    let function = optional(LIBRARY, "ibv_fork_init\0")?;
    // SAFETY: the library's interface declares this function with this type.
    let init = unsafe { std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn() -> c_int>(function) };
    // SAFETY: it takes nothing, and changes only what registrations do from now on.
    match unsafe { init() } {
        0 => Ok(ForkSafety::Enabled),
        errno => Err(Error::of("ibv_fork_init", errno)),
    }
}

const LIBRARY: &CStr = c"libibverbs.so.1";
