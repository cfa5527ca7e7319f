//! Authorization keys of address vectors, and registrations that use them (fi_av(3), fi_mr(3)).

use std::ffi::{c_int, c_void};

use ofi_api::{Address, Errno, Error, FiAddr, Result};

use crate::abi::{fi_mr_attr, fi_mr_auth_key, fid_av, flag};
use crate::ffi_guard::{self, null};
use crate::posting::vector;
use crate::{memory, object};

/// `fi_av_insert_auth_key`.
pub(crate) unsafe extern "C" fn insert(
    av: *mut fid_av,
    key: *const c_void,
    size: usize,
    out: *mut u64,
    flags: u64,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let av = unsafe { object::body(av)? };
        ffi_guard::no_flags("fi_av_insert_auth_key", flags)?;
        if out.is_null() {
            return Err(null("the pointer for the key's number"));
        }
        // SAFETY: as above.
        let number =
            av.av.insert_auth_key(unsafe { vector::<u8>("the authorization key", key.cast(), size)? })?;
        // SAFETY: not null, and the caller's.
        unsafe { out.write(number.0) };
        Ok(())
    })
}

/// `fi_av_lookup_auth_key`.
pub(crate) unsafe extern "C" fn lookup(
    av: *mut fid_av,
    number: u64,
    key: *mut c_void,
    size: *mut usize,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let found = unsafe { object::body(av)? }.av.auth_key(FiAddr(number))?;
        // SAFETY: as above.
        match unsafe { memory::put_sized(&found, key, size) } {
            // A truncated key is not an error of this call: the length shows it.
            Err(error) if error.errno() == Errno::ETOOSMALL => Ok(()),
            other => other,
        }
    })
}

/// The authorization key of an insertion. With `FI_AUTH_KEY`, `fi_addrs` holds its index.
///
/// # Errors
/// `FI_EINVAL` without a key, or if addresses have different keys.
///
/// # Safety
/// The C caller's promise: `fi_addrs` is null or has `count` numbers, which are initialised if they name a key.
pub(crate) unsafe fn of_insertion(flags: u64, fi_addrs: *const u64, count: usize) -> Result<Option<FiAddr>> {
    if flags & flag::AUTH_KEY == 0 || count == 0 {
        return Ok(None);
    }
    if fi_addrs.is_null() {
        return Err(null("the number of the authorization key of an insertion with FI_AUTH_KEY"));
    }
    // SAFETY: the caller's promise.
    let numbers = unsafe { std::slice::from_raw_parts(fi_addrs, count) };
    if numbers.iter().any(|&number| number != numbers[0]) {
        return Err(Error::with(
            Errno::EINVAL,
            "an address vector has one authorization key; use one vector for each key",
        ));
    }
    Ok(Some(FiAddr(numbers[0])))
}

/// For a registration in a domain whose address vectors hold the keys: the key of the vector that `auth_key` names, and
/// the only peer with access if the registration is restricted to one. The restriction requires a domain that was
/// opened with `FI_DIRECTED_RECV` (`directed`).
///
/// # Errors
/// `FI_EINVAL` for a restriction without that capability, and for an invalid structure.
///
/// # Safety
/// The C caller's promise about the structure.
pub(crate) unsafe fn of_registration(
    attr: &fi_mr_attr,
    flags: u64,
    directed: bool,
) -> Result<(Vec<u8>, Option<Address>)> {
    let wrong = |found: String| {
        Error::wanted(
            Errno::EINVAL,
            "fi_mr_attr.auth_key in a domain opened with FI_AV_AUTH_KEY",
            "a struct fi_mr_auth_key and its size",
            found,
            "see fi_mr(3), \"auth_key\"",
        )
    };
    if attr.auth_key.is_null() || attr.auth_key_size != size_of::<fi_mr_auth_key>() {
        return Err(wrong(format!("{} bytes", attr.auth_key_size)));
    }
    // SAFETY: the caller's promise; it may lie anywhere.
    let named = unsafe { attr.auth_key.cast::<fi_mr_auth_key>().read_unaligned() };
    // SAFETY: as above.
    let av = unsafe { object::body(named.av)? };
    let number = FiAddr(named.src_addr);
    if number == FiAddr::UNSPEC {
        let key = av.av.first_auth_key()?.ok_or_else(|| wrong("an address vector without a key".into()))?;
        return Ok((key, None));
    }
    if flags & flag::AUTH_KEY != 0 {
        return Ok((av.av.auth_key(number)?, None));
    }
    if !directed {
        return Err(Error::wanted(
            Errno::EINVAL,
            "fi_mr_auth_key.src_addr",
            "FI_ADDR_UNSPEC, or a domain that was opened with FI_DIRECTED_RECV",
            format!("address {}", named.src_addr),
            "ask getinfo for FI_DIRECTED_RECV",
        ));
    }
    Ok((av.av.auth_key(number)?, Some(av.av.lookup(number)?)))
}
