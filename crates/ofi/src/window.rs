//! Memory that peers may access.
//!
//! While peers have access, no reference to the memory exists: this program accesses it by copies and single words,
//! through raw pointers, as if it belonged to a device. A read that races with a peer's write may return partly old and
//! partly new bytes. Programs have to synchronise, with messages, remote CQ data or a flag word.
//!
//! Such a race is outside Rust's memory model, which does not cover writers outside the program: copies of less than 32
//! KiB are plain loads and stores. If the peer is another node of this process, its transport copies on a thread of
//! this process, and safe code that does not synchronise causes a data race in the sense of the model. `local` below
//! serialises the calls of one window; it cannot exclude a transport. Atomic copies would not help, because the other
//! side is a kernel, a device or a `memcpy` of any size. The mitigations: no reference to the bytes exists, all
//! accesses go through raw pointers, every bit pattern is a valid value of the types that are read, and this crate
//! never uses bytes that it has read as an address or a length. In practice the consequence is torn bytes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use ofi_api::{Errno, Error, MrAccess, Result};
use ofi_core::copy;

use crate::buffer::BufferMut;
use crate::memory::Memory;
use crate::opened::OpenedDomain;
use crate::region::Region;
use crate::remote::RemoteWindow;
use crate::request::PostError;

/// Memory that peers read, write, or both; [`Window::remote`] describes it to them. Created by
/// [`Domain::window`](crate::Domain::window) and [`Domain::alloc_window`](crate::Domain::alloc_window).
///
/// Its bytes are not accessible as `&[u8]` before [`Window::withdraw`]:
///
/// ```compile_fail,E0277
/// let domain = ofi::Domain::open(&ofi::Hints::new().provider("shm"))?;
/// let window = domain.window(vec![0; 8], ofi::MrAccess::REMOTE_WRITE)?;
/// let byte = window[0];
/// # Ok::<(), ofi::Error>(())
/// ```
///
/// ```
/// let domain = ofi::Domain::open(&ofi::Hints::new().provider("shm"))?;
/// let window = domain.window(vec![0; 8], ofi::MrAccess::REMOTE_WRITE)?;
/// window.write_from(6, &[1, 2])?;
/// let bytes: Vec<u8> = window.withdraw()?;
/// assert_eq!(bytes[6], 1);
/// # Ok::<(), ofi::Error>(())
/// ```
///
/// Dropping it withdraws all rights. If a peer does not stop within a second, the memory is leaked.
pub struct Window<B: BufferMut = Memory> {
    region: Region<B>,
    writable: bool,
    /// Serialises accesses of this process. Peers do not take it.
    local: RwLock<()>,
}

// SAFETY: the raw pointers lead to memory that the region owns; all accesses of this process go through `local`.
unsafe impl<B: BufferMut> Sync for Window<B> {}

impl<B: BufferMut> Window<B> {
    pub(crate) fn new(opened: &OpenedDomain, buffer: B, access: MrAccess) -> Result<Self, PostError<B>> {
        let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
        if access.is_empty() || !rights.contains(access) {
            let found = format!("{access}");
            let wanted = "FI_REMOTE_READ, FI_REMOTE_WRITE or both";
            let error = Error::wanted(
                Errno::EINVAL,
                "the access rights of a window",
                wanted,
                found,
                "register buffers of local operations with Domain::register",
            );
            return Err(PostError { error, buffer });
        }
        let region = Region::new(opened, buffer, access)?;
        Ok(Self { region, writable: access.contains(MrAccess::REMOTE_WRITE), local: RwLock::new(()) })
    }

    /// The description that peers need to access it.
    pub fn remote(&self) -> RemoteWindow {
        let mr = &self.region.mr;
        RemoteWindow { key: mr.key(), base: mr.base(), len: mr.len() as u64 }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.region.memory().1
    }

    /// Whether the length is zero: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of the first byte, for foreign functions and for code that knows which accesses may race.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.memory().0
    }

    /// The address of `len` bytes at `offset`.
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        let (addr, all) = self.region.memory();
        if offset.checked_add(len).is_some_and(|end| end <= all) {
            return Ok(addr.wrapping_add(offset));
        }
        Err(Error::wanted(
            Errno::EINVAL,
            "a range of a window",
            format!("one inside its {all} bytes"),
            format!("{len} bytes at {offset}"),
            "give one that lies inside",
        ))
    }

    /// Copies bytes out of the window, starting at `offset`.
    ///
    /// # Errors
    /// `FI_EINVAL` beyond the end.
    pub fn read_into(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        let from = self.at(offset, to.len())?;
        let _reading = self.local.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: in bounds. Nothing else in this program writes meanwhile (`local`). `to` cannot be part of the
        // window, because no references into it exist, and `copy` tolerates memory that peers change.
        unsafe { copy::bytes(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies bytes into the window, starting at `offset`.
    ///
    /// # Errors
    /// `FI_EINVAL` beyond the end.
    pub fn write_from(&self, offset: usize, from: &[u8]) -> Result<()> {
        let to = self.at(offset, from.len())?;
        let _writing = self.local.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as above, and a `BufferMut` is writable.
        unsafe { copy::bytes(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64> {
        let at = self.at(offset, 8)?.cast::<u64>();
        if !at.is_aligned() {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the place of a word in a window",
                "an address that is a multiple of 8",
                format!("{at:?}"),
                "choose another offset; memory of Domain::alloc begins at a page",
            ));
        }
        // SAFETY: in bounds and aligned, lives as long as `self`, and is accessed atomically or under `local`.
        Ok(unsafe { AtomicU64::from_ptr(at) })
    }

    /// Reads the word at `offset` in one access. If the transport places bytes in order, everything that a peer wrote
    /// before the word is then visible.
    ///
    /// # Errors
    /// `FI_EINVAL` beyond the end, and at an address that is not a multiple of 8.
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        let word = self.word(offset)?;
        let _reading = self.local.read().unwrap_or_else(PoisonError::into_inner);
        Ok(word.load(Ordering::Acquire))
    }

    /// Writes the word at `offset` in one access, after all earlier writes.
    ///
    /// # Errors
    /// `FI_EINVAL` beyond the end, and at an address that is not a multiple of 8.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        let word = self.word(offset)?;
        let _writing = self.local.write().unwrap_or_else(PoisonError::into_inner);
        word.store(value, Ordering::Release);
        Ok(())
    }

    /// Withdraws all rights and returns the memory. Memory of the library that peers could write is returned as a copy,
    /// because a peer that violates the protocol may keep its mapping.
    ///
    /// # Errors
    /// `FI_EBUSY` if a peer did not stop within a second; the memory is leaked then. `FI_ENOMEM` for the copy.
    pub fn withdraw(self) -> Result<B> {
        let raw = self.region.end()?;
        if self.writable {
            // SAFETY: made by `into_raw` in `Region::new`, and the registration is closed.
            unsafe { B::from_raw_written(raw) }
        } else {
            // SAFETY: as above; peers could only read.
            Ok(unsafe { B::from_raw(raw) })
        }
    }
}

impl<B: BufferMut> fmt::Debug for Window<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({} bytes)", self.len())
    }
}
