//! Which handle of C stands for which object of the library, where events name objects by number.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use ofi_api::Fid;

use crate::abi::fid;

static HANDLES: LazyLock<Mutex<HashMap<u64, usize>>> = LazyLock::new(Mutex::default);

/// The entry of one object; it ends when this is dropped.
pub(crate) struct Entry(u64);

/// Enters the handle of an object.
pub(crate) fn enter<T>(number: Fid, handle: *mut T) -> Entry {
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    handles.insert(number.0, handle.expose_provenance());
    Entry(number.0)
}

/// The handle of an object; null if it has none (any more).
pub(crate) fn pointer(number: Fid) -> *mut fid {
    let handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    handles.get(&number.0).map_or(std::ptr::null_mut(), |&at| std::ptr::with_exposed_provenance_mut(at))
}

impl Drop for Entry {
    fn drop(&mut self) {
        HANDLES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}
