//! Maps the numbers by which the library's events identify objects to C's handles.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use ofi_api::{Fid, Result};

use crate::abi::fid;

static HANDLES: LazyLock<Mutex<HashMap<u64, usize>>> = LazyLock::new(Mutex::default);

/// The entry of one object, which is removed on drop.
pub(crate) struct Entry(u64);

/// Enters the handle of an object.
pub(crate) fn enter<T>(number: Fid, handle: *mut T) -> Entry {
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    handles.insert(number.0, handle.expose_provenance());
    Entry(number.0)
}

/// Creates an object and enters its handle. Lookups wait meanwhile, because an event may name the object before `make`
/// has returned.
///
/// # Errors
/// Those of `make`.
pub(crate) fn enter_new<T>(make: impl FnOnce() -> Result<(Fid, *mut T)>) -> Result<(Entry, *mut T)> {
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    let (number, handle) = make()?;
    handles.insert(number.0, handle.expose_provenance());
    Ok((Entry(number.0), handle))
}

/// The handle of an object; null if it has none or has been closed.
pub(crate) fn pointer(number: Fid) -> *mut fid {
    let handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    handles.get(&number.0).map_or(std::ptr::null_mut(), |&at| std::ptr::with_exposed_provenance_mut(at))
}

impl Drop for Entry {
    fn drop(&mut self) {
        HANDLES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}
