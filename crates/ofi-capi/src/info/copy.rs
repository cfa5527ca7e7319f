//! `fi_dupinfo` and `fi_freeinfo`: they copy and free C's own structures, parts of which the program may have replaced.

use std::ffi::{c_char, c_int, c_void};

use ofi_api::Result;

use super::from_c::{check_length, read};
use crate::abi::{
    Abi, class, command, fi_bus_attr, fi_device_attr, fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info,
    fi_link_attr, fi_ops, fi_rx_attr, fi_tx_attr, fid, fid_nic,
};
use crate::ffi_guard;
use crate::memory::{self, copy_of, free, whole_string, zeroed};

/// An empty info with all its attributes: `fi_allocinfo`.
///
/// # Errors
/// `FI_ENOMEM`; earlier allocations are freed.
pub(crate) fn allocate() -> Result<*mut fi_info> {
    let info = zeroed::<fi_info>()?;
    // SAFETY: just allocated, and zeroes are a valid info.
    let c = unsafe { &mut *info };
    let mut fill = || {
        c.tx_attr = zeroed::<fi_tx_attr>()?;
        c.rx_attr = zeroed::<fi_rx_attr>()?;
        c.ep_attr = zeroed::<fi_ep_attr>()?;
        c.domain_attr = zeroed::<fi_domain_attr>()?;
        c.fabric_attr = zeroed::<fi_fabric_attr>()?;
        Ok(())
    };
    let filled = fill();
    // SAFETY: the info is this function's own.
    unsafe { or_release(filled, info) }
}

/// # Safety
/// `info` is the caller's own, of the newest version.
unsafe fn or_release(filled: Result<()>, info: *mut fi_info) -> Result<*mut fi_info> {
    match filled {
        Ok(()) => Ok(info),
        Err(error) => {
            // SAFETY: the caller's promise.
            unsafe { release(info, Abi::NEWEST) };
            Err(error)
        }
    }
}

/// Copies one info of version `abi`, without the rest of its list.
///
/// # Errors
/// `FI_ENOMEM`; `FI_EINVAL` for impossible lengths.
///
/// # Safety
/// The C caller's promise: a valid `fi_info` of that version.
pub(crate) unsafe fn duplicate(from: *const fi_info, abi: Abi) -> Result<*mut fi_info> {
    // SAFETY: the caller's promise.
    let Some(mut copy) = (unsafe { read(from, abi.info()) }) else { return allocate() };
    let info = zeroed::<fi_info>()?;
    // Copying may fail halfway, and must not free parts of the original then: each pointer is null until its target
    // is copied.
    let original = copy;
    copy.next = std::ptr::null_mut();
    (copy.src_addr, copy.dest_addr) = (std::ptr::null_mut(), std::ptr::null_mut());
    (copy.tx_attr, copy.rx_attr) = (std::ptr::null_mut(), std::ptr::null_mut());
    (copy.ep_attr, copy.domain_attr) = (std::ptr::null_mut(), std::ptr::null_mut());
    (copy.fabric_attr, copy.nic) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: just allocated for an info.
    unsafe { info.write(copy) };
    // SAFETY: as above.
    let out = unsafe { &mut *info };
    // SAFETY: the caller's promise, for everything that the info points to.
    let filled = unsafe { duplicate_parts(out, &original, abi) };
    // SAFETY: the info is this function's own.
    unsafe { or_release(filled, info) }
}

/// # Safety
/// As [`duplicate`].
unsafe fn duplicate_parts(out: &mut fi_info, from: &fi_info, abi: Abi) -> Result<()> {
    // SAFETY: the caller's promise, here and below: lengths and pointers belong together.
    out.src_addr = copy_of(unsafe { bytes("src_addrlen", from.src_addr, from.src_addrlen)? })?;
    // SAFETY: as above.
    out.dest_addr = copy_of(unsafe { bytes("dest_addrlen", from.dest_addr, from.dest_addrlen)? })?;
    // SAFETY: as above.
    unsafe { attribute(&mut out.tx_attr, from.tx_attr, abi.tx_attr(), |_| {})? };
    // SAFETY: as above.
    unsafe { attribute(&mut out.rx_attr, from.rx_attr, abi.rx_attr(), |_| {})? };
    // SAFETY: as above.
    let ep = unsafe {
        attribute(&mut out.ep_attr, from.ep_attr, abi.ep_attr(), |attr| attr.auth_key = std::ptr::null_mut())?
    };
    if let Some((from, to)) = ep {
        // SAFETY: as above.
        to.auth_key = copy_of(unsafe { key(from.auth_key, from.auth_key_size)? })?.cast();
    }
    // SAFETY: as above.
    let domain = unsafe {
        attribute(&mut out.domain_attr, from.domain_attr, abi.domain_attr(), |attr| {
            (attr.auth_key, attr.name) = (std::ptr::null_mut(), std::ptr::null_mut());
        })?
    };
    if let Some((from, to)) = domain {
        // SAFETY: as above.
        to.auth_key = copy_of(unsafe { key(from.auth_key, from.auth_key_size)? })?.cast();
        // SAFETY: as above.
        to.name = unsafe { text(from.name)? };
    }
    // SAFETY: as above.
    let fabric = unsafe {
        attribute(&mut out.fabric_attr, from.fabric_attr, abi.fabric_attr(), |attr| {
            (attr.name, attr.prov_name) = (std::ptr::null_mut(), std::ptr::null_mut());
        })?
    };
    if let Some((from, to)) = fabric {
        // SAFETY: as above.
        to.name = unsafe { text(from.name)? };
        // SAFETY: as above.
        to.prov_name = unsafe { text(from.prov_name)? };
    }
    if !from.nic.is_null() {
        // SAFETY: as above.
        out.nic = unsafe { duplicate_nic(from.nic)? };
    }
    Ok(())
}

/// Copies an attribute structure. Returns the original and the copy, so that their targets can be copied too. `clear`
/// removes the original's pointers from the copy.
///
/// # Safety
/// The C caller's promise: null or `size` readable bytes.
unsafe fn attribute<T: Copy>(
    out: &mut *mut T,
    from: *const T,
    size: usize,
    clear: fn(&mut T),
) -> Result<Option<(T, &mut T)>> {
    // SAFETY: the caller's promise.
    let Some(original) = (unsafe { read(from, size) }) else { return Ok(None) };
    let mut copy = original;
    clear(&mut copy);
    *out = zeroed()?;
    // SAFETY: just allocated for a `T`.
    unsafe { out.write(copy) };
    // SAFETY: as above; it belongs to the copy, which is borrowed.
    Ok(Some((original, unsafe { &mut **out })))
}

/// # Safety
/// The C caller's promise: the key has `size` bytes.
unsafe fn key<'a>(pointer: *const u8, size: usize) -> Result<&'a [u8]> {
    // SAFETY: the caller's promise. The largest number means that the keys are elsewhere.
    if size == usize::MAX { Ok(&[]) } else { unsafe { bytes("auth_key_size", pointer.cast(), size) } }
}

/// The bytes at a pointer; none for null.
///
/// # Errors
/// `FI_EINVAL` for a length above that of any address or key.
///
/// # Safety
/// The C caller's promise: null, or `len` readable bytes.
unsafe fn bytes<'a>(subject: &str, pointer: *const c_void, len: usize) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Ok(&[]);
    }
    check_length(subject, len)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { memory::bytes(pointer, len) })
}

/// # Safety
/// The C caller's promise: null or a string.
unsafe fn text(pointer: *const c_char) -> Result<*mut c_char> {
    // SAFETY: the caller's promise.
    match unsafe { memory::text(pointer) } {
        None => Ok(std::ptr::null_mut()),
        Some(text) => whole_string(&text),
    }
}

/// Frees a list of infos.
///
/// # Safety
/// The C caller's promise: null, or unused infos of this version, all parts of which were allocated with malloc.
pub(crate) unsafe fn release(mut info: *mut fi_info, abi: Abi) {
    // SAFETY: the caller's promise, here and below.
    while let Some(c) = unsafe { read(info, abi.info()) } {
        // SAFETY: as above.
        if let Some(attr) = unsafe { read(c.ep_attr, abi.ep_attr()) } {
            // SAFETY: as above.
            unsafe { free(attr.auth_key) };
        }
        // SAFETY: as above.
        if let Some(attr) = unsafe { read(c.domain_attr, abi.domain_attr()) } {
            // SAFETY: as above.
            unsafe { free(attr.auth_key) };
            // SAFETY: as above.
            unsafe { free(attr.name) };
        }
        // SAFETY: as above.
        if let Some(attr) = unsafe { read(c.fabric_attr, abi.fabric_attr()) } {
            // SAFETY: as above.
            unsafe { free(attr.name) };
            // SAFETY: as above.
            unsafe { free(attr.prov_name) };
        }
        // SAFETY: as above.
        if let Some(nic) = unsafe { c.nic.as_ref() }
            // SAFETY: as above.
            && let Some(ops) = unsafe { nic.fid.ops.as_ref() }
        {
            // SAFETY: a device is closed by its own operation, because it may belong to another library.
            unsafe { (ops.close)(c.nic.cast()) };
        }
        let parts: [*mut c_void; 7] = [
            c.src_addr,
            c.dest_addr,
            c.tx_attr.cast(),
            c.rx_attr.cast(),
            c.ep_attr.cast(),
            c.domain_attr.cast(),
            c.fabric_attr.cast(),
        ];
        for part in parts {
            // SAFETY: as above.
            unsafe { free(part) };
        }
        // SAFETY: as above.
        unsafe { free(info) };
        info = c.next;
    }
}

/// The operations of a device: close and duplicate.
pub(crate) static NIC_OPS: fi_ops = fi_ops { close: nic_close, control: nic_control, ..fi_ops::NOSYS };

unsafe extern "C" fn nic_close(handle: *mut fid) -> c_int {
    // SAFETY: the C caller's promise: null or an object of C.
    let Some(fid { fclass: class::NIC, .. }) = (unsafe { handle.as_ref() }) else { return -libc::EINVAL };
    let nic = handle.cast::<fid_nic>();
    // SAFETY: the class says so.
    let c = unsafe { nic.read() };
    // SAFETY: null or a device's attributes, allocated with malloc, here and below.
    if let Some(attr) = unsafe { c.device_attr.as_ref() } {
        for text in
            [attr.name, attr.device_id, attr.device_version, attr.vendor_id, attr.driver, attr.firmware]
        {
            // SAFETY: as above.
            unsafe { free(text) };
        }
    }
    // SAFETY: as above.
    if let Some(attr) = unsafe { c.link_attr.as_ref() } {
        // SAFETY: as above.
        unsafe { free(attr.address) };
        // SAFETY: as above.
        unsafe { free(attr.network_type) };
    }
    let parts: [*mut c_void; 4] = [c.device_attr.cast(), c.bus_attr.cast(), c.link_attr.cast(), nic.cast()];
    for part in parts {
        // SAFETY: as above.
        unsafe { free(part) };
    }
    0
}

unsafe extern "C" fn nic_control(handle: *mut fid, number: c_int, arg: *mut c_void) -> c_int {
    if number != command::DUP {
        return -libc::ENOSYS;
    }
    ffi_guard::done(|| {
        if handle.is_null() || arg.is_null() {
            return Err(ffi_guard::null("the device to duplicate"));
        }
        // SAFETY: the C caller's promise: a device, and a pointer for its copy.
        let copy = unsafe { duplicate_own(handle.cast())? };
        // SAFETY: as above.
        unsafe { arg.cast::<*mut fid_nic>().write(copy) };
        Ok(())
    })
}

/// Copies a device by its own operation.
///
/// # Safety
/// The C caller's promise: a device.
unsafe fn duplicate_nic(from: *mut fid_nic) -> Result<*mut fid_nic> {
    let mut copy: *mut fid_nic = std::ptr::null_mut();
    // SAFETY: the caller's promise.
    let ops = unsafe { (*from).fid.ops };
    // SAFETY: as above.
    let Some(ops) = (unsafe { ops.as_ref() }) else { return Ok(std::ptr::null_mut()) };
    // SAFETY: as above.
    let answer = unsafe { (ops.control)(from.cast(), command::DUP, (&raw mut copy).cast()) };
    Ok(if answer == 0 { copy } else { std::ptr::null_mut() })
}

/// # Safety
/// `from` is a device of this library.
unsafe fn duplicate_own(from: *const fid_nic) -> Result<*mut fid_nic> {
    // SAFETY: the caller's promise.
    let original = unsafe { from.read() };
    let nic = zeroed::<fid_nic>()?;
    // SAFETY: just allocated, and zeroes are a valid value.
    let out = unsafe { &mut *nic };
    out.fid = fid { fclass: class::NIC, context: std::ptr::null_mut(), ops: NIC_OPS.table() };
    // SAFETY: the caller's promise: the attributes are null or a device's.
    let filled = unsafe { duplicate_device(out, &original) };
    if let Err(error) = filled {
        // SAFETY: it is this function's own.
        unsafe { nic_close(nic.cast()) };
        return Err(error);
    }
    Ok(nic)
}

/// # Safety
/// As [`duplicate_own`].
unsafe fn duplicate_device(out: &mut fid_nic, from: &fid_nic) -> Result<()> {
    let null = std::ptr::null_mut();
    let nothing = fi_device_attr {
        name: null,
        device_id: null,
        device_version: null,
        vendor_id: null,
        driver: null,
        firmware: null,
    };
    // SAFETY: the caller's promise, here and below.
    let device =
        unsafe { attribute(&mut out.device_attr, from.device_attr, size_of::<fi_device_attr>(), |_| {})? };
    if let Some((from, to)) = device {
        *to = nothing;
        // SAFETY: as above.
        to.name = unsafe { text(from.name)? };
        // SAFETY: as above.
        to.device_id = unsafe { text(from.device_id)? };
        // SAFETY: as above.
        to.device_version = unsafe { text(from.device_version)? };
        // SAFETY: as above.
        to.vendor_id = unsafe { text(from.vendor_id)? };
        // SAFETY: as above.
        to.driver = unsafe { text(from.driver)? };
        // SAFETY: as above.
        to.firmware = unsafe { text(from.firmware)? };
    }
    // SAFETY: as above.
    unsafe { attribute(&mut out.bus_attr, from.bus_attr, size_of::<fi_bus_attr>(), |_| {})? };
    // SAFETY: as above.
    let link = unsafe {
        attribute(&mut out.link_attr, from.link_attr, size_of::<fi_link_attr>(), |attr| {
            (attr.address, attr.network_type) = (std::ptr::null_mut(), std::ptr::null_mut());
        })?
    };
    if let Some((from, to)) = link {
        // SAFETY: as above.
        to.address = unsafe { text(from.address)? };
        // SAFETY: as above.
        to.network_type = unsafe { text(from.network_type)? };
    }
    Ok(())
}
