//! EFA devices: enumeration, and attributes beyond verbs.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use crate::abi_ex::*;
use crate::ah::AddressHandle;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::library::{efa, verbs};
use crate::missing;

/// The limits of an EFA device (`efadv_query_device(3)`).
#[derive(Clone, Copy, Debug)]
pub struct EfaInfo {
    /// Maximum number of requests in a send queue.
    pub max_send: u32,
    /// Maximum number of requests in a receive queue.
    pub max_receive: u32,
    /// Maximum number of memory pieces in one send.
    pub send_pieces: u16,
    /// Maximum number of memory pieces in one receive.
    pub receive_pieces: u16,
    /// Maximum inline bytes of a send in a request of 64 bytes, the smaller of two sizes.
    pub max_inline: u16,
    /// Maximum inline bytes of a send in a request of 128 bytes. If a queue pair is created for more than `max_inline`,
    /// all its requests have that size, and its queue holds half as many. Equals `max_inline` if the device has no such
    /// requests, or libefa is older than rdma-core 63.
    pub max_inline_long: u16,
    /// The maximum bytes of one remote read or write; 0 if the device has no RDMA.
    pub max_rdma: u32,
    /// Whether the device can read peers' memory.
    pub read: bool,
    /// Whether the device can write peers' memory.
    pub write: bool,
    /// Whether one can set how often a send is retried if the peer has no receive posted.
    pub rnr_retry: bool,
    /// Whether completion queues report the GID of a sender without an address handle.
    pub source_gid: bool,
    /// Whether a write with immediate data can arrive without consuming a receive of the peer.
    pub unsolicited: bool,
}

/// The devices that were opened, with whether they are EFA devices. A device that was removed and came back is another.
static OPENED: Mutex<Vec<(Context, bool)>> = Mutex::new(Vec::new());

/// The EFA devices that this host has now. Each is opened once, and stays open.
///
/// # Errors
/// An error that says what is missing: a library, a kernel module, or a device. If no device could be opened, the error
/// of opening.
pub fn efa_contexts() -> Result<Vec<Context>> {
    open_all(&mut OPENED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The error if there is no EFA device. Other devices may exist.
fn no_device() -> Error {
    let missing = missing::device("ibv_get_device_list");
    let advice = format!(
        "this host has no EFA device: the instance needs an interface of type `efa`, and its kernel the module `efa` \
         (modprobe efa); {}",
        missing.advice
    );
    Error::with(missing.call, missing.errno, advice)
}

fn open_all(opened: &mut Vec<(Context, bool)>) -> Result<Vec<Context>> {
    efa()?;
    let verbs = verbs()?;
    let mut count: c_int = 0;
    // SAFETY: the function writes the number of devices.
    let list = unsafe { (verbs.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        let error = Error::last("ibv_get_device_list");
        // libibverbs reports this error if the kernel has no RDMA devices.
        return Err(if error.errno == libc::ENOSYS { no_device() } else { error });
    }
    let (mut found, mut failed) = (Vec::new(), None);
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let device = unsafe { list.wrapping_add(index).read() };
        // An open device keeps its address.
        let known = opened.iter().find(|(context, _)| context.is_of(device)).copied();
        let Some((context, is_efa)) = known.or_else(|| {
            // SAFETY: a device of the list, which is freed below.
            let context = Context::from_ptr(unsafe { (verbs.ibv_open_device)(device) })?;
            let new = (context, context.efa().is_ok());
            opened.push(new);
            Some(new)
        }) else {
            failed = Some(Error::last("ibv_open_device"));
            continue;
        };
        found.extend(Some(context).filter(|_| is_efa));
    }
    // SAFETY: open devices outlive their list.
    unsafe { (verbs.ibv_free_device_list)(list) };
    match (found.is_empty(), failed) {
        (true, failed) => Err(failed.unwrap_or_else(no_device)),
        (false, _) => Ok(found),
    }
}

impl Context {
    /// Queries its limits as an EFA device.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it is not an EFA device; else the errors of efadv_query_device(3).
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
            // Older libraries leave the field zero.
            max_inline_long: attr.inline_buf_size_ex.max(attr.inline_buf_size),
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
    /// The handle's number on an EFA device, by which completions identify the sender.
    ///
    /// # Errors
    /// The errors of efadv_query_ah(3).
    pub fn efa_number(&self) -> Result<u16> {
        let mut attr = efadv_ah_attr::default();
        let len = size_of::<efadv_ah_attr>() as u32;
        // SAFETY: the address handle exists; the function writes at most `len` bytes.
        match unsafe { (efa()?.efadv_query_ah)(self.as_ptr(), &mut attr, len) } {
            0 => Ok(attr.ahn),
            errno => Err(Error::of("efadv_query_ah", errno)),
        }
    }
}
