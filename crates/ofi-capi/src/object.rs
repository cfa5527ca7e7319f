//! Objects as C sees them: C's structure first, then the state.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{Errno, Error, Result};

use crate::abi::{fi_ops, fid};
use crate::ffi_guard::{invalid, null};

/// A structure of C that begins with `struct fid`.
///
/// # Safety
/// It is `repr(C)`, and its first field is a `fid`. A value of zeroes is valid, except for the table pointers that
/// `close` sets.
pub(crate) unsafe trait Fid: Sized + 'static {
    /// The state after the structure.
    type Body: 'static;
    /// `FI_CLASS_*`.
    const CLASS: usize;
    /// Classes of other objects with the same structure and state.
    const ALIKE: &'static [usize] = &[];

    /// The operations of all objects of this kind, and of no others: they identify an object as one of this library.
    fn ops() -> &'static fi_ops;

    /// Points every table at unsupported operations, for a closed handle.
    fn close(&mut self);

    /// Recently closed handles.
    fn graveyard() -> &'static Graveyard;
}

/// The allocation of an object.
#[repr(C)]
pub(crate) struct Object<F: Fid> {
    fid: F,
    body: Option<F::Body>,
}

/// Closed objects, kept for a while so that a call on a stale handle returns an error.
pub(crate) struct Graveyard(Mutex<VecDeque<usize>>);

/// Maximum closed objects of each kind that are kept.
const GRAVES: usize = 256;

impl Graveyard {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    /// Adds a closed object. Returns the oldest one if there are now too many.
    fn bury(&self, object: usize) -> Option<usize> {
        let mut graves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        graves.push_back(object);
        if graves.len() > GRAVES { graves.pop_front() } else { None }
    }
}

/// Creates an object and returns its handle for C.
pub(crate) fn open<F: Fid>(fid: F, body: F::Body) -> *mut F {
    Box::into_raw(Box::new(Object { fid, body: Some(body) })).cast()
}

/// The state behind a handle.
///
/// # Errors
/// `FI_EINVAL` for null, for a handle of another class, and for a closed one.
///
/// # Safety
/// The C caller's promise: `handle` is null or came from [`open`], and is not closed during `'a`.
#[inline]
pub(crate) unsafe fn body<'a, F: Fid>(handle: *const F) -> Result<&'a F::Body> {
    if handle.is_null() {
        return Err(null("the object"));
    }
    // SAFETY: by the caller's promise it points to an object, whose first field is a `fid`.
    let header = unsafe { &*handle.cast::<fid>() };
    if header.fclass != F::CLASS && !F::ALIKE.contains(&header.fclass) {
        return Err(wrong_class::<F>(header.fclass));
    }
    if !std::ptr::eq(header.ops, F::ops()) {
        return Err(invalid("the object", "one of this provider", "another provider's"));
    }
    // SAFETY: as above; class and operations say that the object is an `Object<F>`.
    let object = unsafe { &*handle.cast::<Object<F>>() };
    object.body.as_ref().ok_or_else(|| wrong_class::<F>(0))
}

/// The state behind a handle. On the hot path, so it constructs no error; [`stale`] does.
///
/// # Safety
/// As [`body`], and the handle is of an object of this library: the call came through its table.
#[inline(always)]
pub(crate) unsafe fn alive<'a, F: Fid>(handle: *const F) -> Option<&'a F::Body> {
    if handle.is_null() {
        return None;
    }
    // SAFETY: by the caller's promise it points to an object, whose first field is a `fid`.
    let class = unsafe { (*handle.cast::<fid>()).fclass };
    if class != F::CLASS && !F::ALIKE.contains(&class) {
        return None;
    }
    // SAFETY: as above; the class says that the object is an `Object<F>`.
    let object = unsafe { &*handle.cast::<Object<F>>() };
    // SAFETY: an object keeps its class while it has a body: `close` removes both.
    Some(unsafe { object.body.as_ref().unwrap_unchecked() })
}

/// The error for a call on a handle that [`alive`] rejects.
///
/// # Safety
/// As [`body`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn stale<F: Fid>(handle: *const F) -> isize {
    // SAFETY: the same promise.
    crate::ffi_guard::transfer(|| unsafe { body(handle) }.map(drop))
}

/// The state behind a handle that was passed as a `struct fid *`.
///
/// # Safety
/// As [`body`].
pub(crate) unsafe fn of_fid<'a, F: Fid>(handle: *const fid) -> Result<&'a F::Body> {
    // SAFETY: the same promise.
    unsafe { body(handle.cast::<F>()) }
}

/// The state behind a handle, mutably.
///
/// # Errors
/// As [`body`].
///
/// # Safety
/// As [`body`], and nothing else uses the handle during `'a`.
pub(crate) unsafe fn body_mut<'a, F: Fid>(handle: *mut fid) -> Result<&'a mut F::Body> {
    // SAFETY: the same promise. The reference ends here.
    unsafe { of_fid::<F>(handle)? };
    // SAFETY: it is an object, by the check above, and the caller promises that nothing else uses it.
    let object = unsafe { &mut *handle.cast::<Object<F>>() };
    object.body.as_mut().ok_or_else(|| wrong_class::<F>(0))
}

#[cold]
fn wrong_class<F: Fid>(found: usize) -> Error {
    invalid("the object", &format!("an open one of class {}", F::CLASS), format!("class {found}"))
}

/// Closes a handle: takes its state, and leaves operations that return an error.
///
/// # Errors
/// As [`body`].
///
/// # Safety
/// As [`body`], and nothing else uses the handle now.
pub(crate) unsafe fn close<F: Fid>(handle: *mut fid) -> Result<F::Body> {
    // SAFETY: the same promise. The reference ends here.
    unsafe { of_fid::<F>(handle)? };
    let object = handle.cast::<Object<F>>();
    // SAFETY: it is an object, by the check above, and the caller promises that nothing else uses it.
    let object = unsafe { &mut *object };
    let body = object.body.take().ok_or_else(|| wrong_class::<F>(0))?;
    object.fid.close();
    if let Some(oldest) = F::graveyard().bury(handle.expose_provenance()) {
        let oldest = std::ptr::with_exposed_provenance_mut::<Object<F>>(oldest);
        // SAFETY: the graveyard holds boxes from `open`, each once.
        drop(unsafe { Box::from_raw(oldest) });
    }
    Ok(body)
}

/// The fields of `struct fid`.
pub(crate) fn header<F: Fid>(context: *mut c_void, ops: &'static crate::abi::fi_ops) -> fid {
    fid { fclass: F::CLASS, context, ops: ops.table() }
}

/// A closed `struct fid`.
pub(crate) fn closed() -> fid {
    fid { fclass: 0, context: std::ptr::null_mut(), ops: crate::nosys::FID.table() }
}

/// Counts the other objects that use an object. It cannot be closed until they are gone.
#[derive(Default)]
pub(crate) struct Users(Arc<AtomicUsize>);

/// A use of an object, which ends on drop.
pub(crate) struct Hold(Arc<AtomicUsize>);

impl Users {
    /// Adds a use of the object.
    pub(crate) fn hold(&self) -> Hold {
        self.0.fetch_add(1, Ordering::Relaxed);
        Hold(Arc::clone(&self.0))
    }

    /// Checks that no other object uses this one.
    ///
    /// # Errors
    /// `FI_EBUSY`.
    pub(crate) fn none(&self, what: &str) -> Result<()> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            count => Err(Error::wanted(
                Errno::EBUSY,
                format!("fi_close of {what}"),
                "nothing that is open in it or bound to it",
                format!("{count} such objects"),
                "close them first",
            )),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_with_children_is_not_closed() {
        let users = Users::default();
        let (one, other) = (users.hold(), users.hold());
        for child in [one, other] {
            assert_eq!(users.none("a fabric").unwrap_err().errno(), Errno::EBUSY);
            drop(child);
        }
        users.none("a fabric").unwrap();
    }
}
