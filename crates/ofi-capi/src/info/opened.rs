//! Maps C's handles in infos to open fabrics and domains.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ofi_api::Handle;

use super::FidHandle;

fn all() -> MutexGuard<'static, Vec<(Handle, usize)>> {
    static ALL: Mutex<Vec<(Handle, usize)>> = Mutex::new(Vec::new());
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that an object is open under a handle of C, until dropped.
pub(crate) struct Open(usize);

impl Open {
    pub(crate) fn new<T>(object: Handle, handle: *mut T) -> Self {
        let address = handle.expose_provenance();
        all().push((object, address));
        Self(address)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        all().retain(|&(_, address)| address != self.0);
    }
}

/// The object for C's pointer in an info: `None` for null, and the pointer itself if it belongs to no open object.
pub(super) fn object<T>(pointer: *mut T) -> Option<Handle> {
    let found =
        all().iter().find(|(_, address)| *address == pointer.addr()).map(|(object, _)| object.clone());
    found.or_else(|| FidHandle::of(pointer))
}

/// C's pointer for an object in an info.
pub(super) fn pointer<T>(object: Option<&Handle>) -> *mut T {
    let found = all().iter().find(|(open, _)| Some(open) == object).map(|&(_, address)| address);
    found.map_or_else(|| FidHandle::pointer(object), std::ptr::with_exposed_provenance_mut)
}
