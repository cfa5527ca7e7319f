//! A build without encryption: without the cargo feature `encryption`, or for a processor that graviola is not written
//! for. Keys and certificates are refused, so that no program sends in the clear instead.

use std::convert::Infallible;
use std::os::fd::BorrowedFd;

use ofi_api::{Errno, Error, Info, Result};

use crate::mismatch::Mismatch;
use crate::settings;

/// There are no keys.
pub const MAX_KEY_LEN: usize = 0;

const WHY: &str = "this build has no encryption (cargo feature `encryption` of ofi)";

/// Why this process cannot encrypt.
pub fn lacking() -> Option<&'static str> {
    Some(WHY)
}

/// Refuses settings of certificates.
///
/// # Errors
/// `FI_EOPNOTSUPP` if there are any.
pub fn check_settings() -> Result<()> {
    match settings::tls_files()? {
        Some(_) => Err(Error::with(Errno::EOPNOTSUPP, WHY)),
        None => Ok(()),
    }
}

/// There is none.
pub struct Session(Infallible);

/// There is none.
pub struct Security(Infallible);

impl Security {
    /// Refuses a key.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP`.
    pub fn of(info: &Info) -> Result<Option<Box<Self>>> {
        if !info.ep_attr.auth_key.is_empty() {
            return Err(Error::with(Errno::EOPNOTSUPP, WHY));
        }
        check_settings().map(|()| None)
    }

    pub fn connect(&self, _socket: BorrowedFd<'_>) -> Result<Box<Session>, Errno> {
        match self.0 {}
    }

    pub fn accept(&self, _socket: BorrowedFd<'_>) -> Result<Box<Session>, Errno> {
        match self.0 {}
    }

    pub unsafe fn send_pieces(
        &mut self,
        _session: &mut Session,
        _socket: BorrowedFd<'_>,
        _pieces: &[libc::iovec],
    ) -> Result<usize, Errno> {
        match self.0 {}
    }
}

impl Session {
    pub fn send_message(&mut self, _socket: BorrowedFd<'_>, _message: &[u8]) -> Result<(), Errno> {
        match self.0 {}
    }

    pub fn receive_into(
        &mut self,
        _socket: BorrowedFd<'_>,
        _into: &mut impl for<'a> Extend<&'a u8>,
    ) -> Result<usize, Errno> {
        match self.0 {}
    }

    pub fn open(
        &mut self,
        _bytes: &mut [u8],
        _taker: impl FnMut(&[u8]) -> Result<(), Errno>,
    ) -> (usize, Result<(), Errno>) {
        match self.0 {}
    }

    pub fn keep(&mut self, _part: &[u8]) {
        match self.0 {}
    }

    pub fn part(&mut self) -> &mut Vec<u8> {
        match self.0 {}
    }

    pub fn push(&mut self, _socket: BorrowedFd<'_>) -> Result<(), Errno> {
        match self.0 {}
    }

    pub fn sent(&self) -> u64 {
        match self.0 {}
    }

    pub fn is_unanswered(&self) -> bool {
        match self.0 {}
    }

    pub fn has_sealed(&self) -> bool {
        match self.0 {}
    }

    pub fn mismatch(&self) -> Option<&Mismatch> {
        match self.0 {}
    }
}
