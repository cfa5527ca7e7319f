//! EFA devices: which there are, and what they can do beyond verbs.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::abi_ex::*;
use crate::ah::AddressHandle;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::library::{efa, verbs};
use crate::missing;

/// What an EFA device can (`efadv_query_device(3)`).
#[derive(Clone, Copy, Debug)]
pub struct EfaInfo {
    /// Requests that a send queue holds at most.
    pub max_send: u32,
    /// Requests that a receive queue holds at most.
    pub max_receive: u32,
    /// Pieces of memory of one send.
    pub send_pieces: u16,
    /// Pieces of memory of one receive.
    pub receive_pieces: u16,
    /// Bytes that a send may carry in the request itself: those of a request of 64 bytes, of which a queue holds the
    /// most.
    pub max_inline: u16,
    /// Bytes of one remote read or write; 0 if there are none.
    pub max_rdma: u32,
    /// Whether peers' memory can be read.
    pub read: bool,
    /// Whether peers' memory can be written.
    pub write: bool,
    /// Whether the number of times that a peer without a receive is asked again can be set.
    pub rnr_retry: bool,
    /// Whether completion queues tell the GID of a sender without an address handle.
    pub source_gid: bool,
    /// Whether a write with immediate data may do without a receive at the peer.
    pub unsolicited: bool,
}

/// The EFA devices of this host. Each is opened once in a process, and stays open.
///
/// # Errors
/// What is missing: a library, a kernel module, a device; what opening failed with if it did for all.
pub fn efa_contexts() -> Result<&'static [Context]> {
    static CONTEXTS: OnceLock<Result<Vec<Context>>> = OnceLock::new();
    CONTEXTS.get_or_init(open_all).as_ref().map(Vec::as_slice).map_err(Clone::clone)
}

/// Why there is none: other devices may be there.
fn no_device() -> Error {
    let missing = missing::device("ibv_get_device_list");
    let advice = format!(
        "this host has no EFA device: the instance needs an interface of type `efa`, and its kernel the module `efa` \
         (modprobe efa); {}",
        missing.advice
    );
    Error::with(missing.call, missing.errno, advice)
}

fn open_all() -> Result<Vec<Context>> {
    efa()?;
    let verbs = verbs()?;
    let mut count: c_int = 0;
    // SAFETY: writes the number of devices.
    let list = unsafe { (verbs.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        let error = Error::last("ibv_get_device_list");
        // What libibverbs answers of a kernel without RDMA devices.
        return Err(if error.errno == libc::ENOSYS { no_device() } else { error });
    }
    let (mut found, mut failed) = (Vec::new(), None);
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let device = unsafe { list.wrapping_add(index).read() };
        // SAFETY: a device of the list, which is given back below.
        let Some(context) = NonNull::new(unsafe { (verbs.ibv_open_device)(device) }) else {
            failed = Some(Error::last("ibv_open_device"));
            continue;
        };
        let context = Context::from_ptr(context.as_ptr()).filter(|context| context.efa().is_ok());
        found.extend(context);
    }
    // SAFETY: open devices stay when their list goes.
    unsafe { (verbs.ibv_free_device_list)(list) };
    match (found.is_empty(), failed) {
        (true, failed) => Err(failed.unwrap_or_else(no_device)),
        (false, _) => Ok(found),
    }
}

impl Context {
    /// What it can as an EFA device.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it is another device; else those of efadv_query_device(3).
    pub fn efa(self) -> Result<EfaInfo> {
        let mut attr = efadv_device_attr::default();
        let len = size_of::<efadv_device_attr>() as u32;
        // SAFETY: an open context; the function writes at most `len` bytes.
        let errno = unsafe { (efa()?.efadv_query_device)(self.as_ptr(), &mut attr, len) };
        if errno != 0 {
            return Err(Error::of("efadv_query_device", errno));
        }
        let can = |cap: u32| attr.device_caps & cap != 0;
        Ok(EfaInfo {
            max_send: attr.max_sq_wr,
            max_receive: attr.max_rq_wr,
            send_pieces: attr.max_sq_sge,
            receive_pieces: attr.max_rq_sge,
            max_inline: attr.inline_buf_size,
            max_rdma: attr.max_rdma_size,
            read: can(EFADV_DEVICE_ATTR_CAPS_RDMA_READ),
            write: can(EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE),
            rnr_retry: can(EFADV_DEVICE_ATTR_CAPS_RNR_RETRY),
            source_gid: can(EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID),
            unsolicited: can(EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV),
        })
    }
}

impl AddressHandle {
    /// Its number on an EFA device, by which completions name the sender.
    ///
    /// # Errors
    /// Those of efadv_query_ah(3).
    pub fn efa_number(&self) -> Result<u16> {
        let mut attr = efadv_ah_attr::default();
        let len = size_of::<efadv_ah_attr>() as u32;
        // SAFETY: an address handle that is there; the function writes at most `len` bytes.
        match unsafe { (efa()?.efadv_query_ah)(self.as_ptr(), &mut attr, len) } {
            0 => Ok(attr.ahn),
            errno => Err(Error::of("efadv_query_ah", errno)),
        }
    }
}
