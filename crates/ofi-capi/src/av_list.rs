//! Raw addresses as C passes them to address vectors.

use std::ffi::{c_char, c_int, c_void};

use ofi_api::{AddrFormat, Address, Errno, Error, Result};

use crate::ffi_guard::invalid;
use crate::memory;

/// Consecutive addresses of C.
pub(crate) struct AddressList {
    pub format: AddrFormat,
    pub at: *const u8,
}

impl AddressList {
    /// The next address.
    ///
    /// # Safety
    /// The C caller's promise: there is one more, in this format.
    pub(crate) unsafe fn next(&mut self) -> Result<Address> {
        let len = match self.format {
            // SAFETY: the caller's promise.
            AddrFormat::Str => return unsafe { self.next_text() },
            // SAFETY: the caller's promise.
            AddrFormat::Sockaddr | AddrFormat::SockaddrIp => match unsafe { self.family() } {
                libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
                _ => size_of::<libc::sockaddr_in>(),
            },
            AddrFormat::SockaddrIn => size_of::<libc::sockaddr_in>(),
            AddrFormat::SockaddrIn6 => size_of::<libc::sockaddr_in6>(),
            AddrFormat::Efa | AddrFormat::IbUd => 32,
            other => {
                return Err(Error::with(
                    Errno::ENOSYS,
                    format!(
                        "an array of addresses of {other}, whose length varies, cannot be inserted; use another format"
                    ),
                ));
            }
        };
        // SAFETY: the caller's promise: an address of this format has as many bytes.
        let bytes = unsafe { memory::bytes(self.at.cast(), len) };
        self.at = self.at.wrapping_add(len);
        Ok(Address::new(self.format, bytes))
    }

    unsafe fn family(&self) -> c_int {
        // SAFETY: the caller's promise: a socket address begins with its family.
        c_int::from(unsafe { self.at.cast::<libc::sa_family_t>().read_unaligned() })
    }

    /// Accepts strings in both forms that programs use: consecutive strings, as C's shm takes them, or an array of
    /// pointers, as in the man page. A valid string has a scheme, hence at least eight printable bytes, which no
    /// pointer has. A shorter string is invalid, and may be taken for a pointer.
    unsafe fn next_text(&mut self) -> Result<Address> {
        // SAFETY: the caller's promise: the bytes belong to a pointer or to a string; nothing after their end is read.
        let byte = |at| unsafe { self.at.wrapping_add(at).read() };
        if (0..8).all(|at| byte(at).is_ascii_graphic()) {
            // SAFETY: as above.
            let text = unsafe { memory::text(self.at.cast()) }.unwrap_or_default();
            self.at = self.at.wrapping_add(text.len() + 1);
            return Ok(Address::from_text(&text));
        }
        let pointer = self.at.cast::<*const c_char>();
        if !pointer.is_aligned() {
            return Err(no_text());
        }
        // SAFETY: as above, or a string that ends in these bytes. They are aligned, so they lie in one page, and the
        // bytes after the string can be read too.
        let text = unsafe { pointer.read_volatile() };
        if !memory::is_mapped(text.addr()) {
            return Err(no_text());
        }
        self.at = self.at.wrapping_add(size_of::<usize>());
        // SAFETY: as above; it points to memory, unless it is a short string that was taken for a pointer.
        let text = unsafe { memory::text(text) };
        Ok(Address::from_text(&text.unwrap_or_default()))
    }
}

#[cold]
fn no_text() -> Error {
    let wanted = "strings with a scheme, or an array of pointers to such";
    invalid("addresses of FI_ADDR_STR", wanted, "neither")
}

/// Parses one address of C in this format.
///
/// # Errors
/// `FI_ENOSYS` for formats of unknown length, `FI_EINVAL` for strings that are not addresses.
///
/// # Safety
/// The C caller's promise: an address of this format.
pub(crate) unsafe fn one_address(format: AddrFormat, addr: *const c_void) -> Result<Address> {
    // SAFETY: the same promise.
    unsafe { AddressList { format, at: addr.cast() }.next() }
}
