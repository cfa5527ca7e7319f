//! The objects behind handles.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use mxl::{Domain, Uuid};

/// Identifies the kind of an object, so that a handle of one kind is not mistaken for another.
pub trait Kind {
    /// A number that is unlikely to be in memory by chance.
    const MAGIC: u64;
}

/// The flow of a reader or a writer. The other library reads it through the handle: this layout does not change.
#[derive(Debug)]
#[repr(C)]
pub struct Place {
    /// [`VERSION`]; other versions are not supported.
    version: u64,
    /// The domain's directory, which the object owns; null for an object without a flow.
    domain: *mut c_char,
    flow: [u8; 16],
}

const VERSION: u64 = 1;

// SAFETY: the object alone owns the text, which never changes.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    /// The place of a flow in a domain.
    pub fn new(domain: &Domain, flow: Uuid) -> Self {
        // A path contains no zero byte.
        let domain =
            CString::new(domain.path().as_os_str().as_bytes()).map_or(ptr::null_mut(), CString::into_raw);
        Self { version: VERSION, domain, flow: flow.into_bytes() }
    }

    /// The place of an object without a flow.
    const fn nowhere() -> Self {
        Self { version: VERSION, domain: ptr::null_mut(), flow: [0; 16] }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.domain.is_null() {
            // SAFETY: from `CString::into_raw`, and owned by this object alone.
            drop(unsafe { CString::from_raw(self.domain) });
        }
    }
}

/// The beginning of each object, in both libraries.
#[derive(Debug)]
#[repr(C)]
struct Head {
    magic: AtomicU64,
    place: Place,
}

/// An object for which C programs have a handle.
#[derive(Debug)]
#[repr(C)]
pub struct Object<T> {
    head: Head,
    value: T,
}

/// The first word of the object behind a handle; 0 for null and for a pointer that cannot be one of our objects.
fn magic<T>(handle: *const T) -> u64 {
    let head = handle.cast::<Head>();
    if head.is_null() || !head.is_aligned() {
        return 0;
    }
    // SAFETY: the C caller's promise: it is a handle of one of our libraries that was not released. All objects begin
    // with this word, whatever their kind.
    unsafe { &(*head).magic }.load(Ordering::Relaxed)
}

/// The domain's directory and the flow of a reader or a writer whose kind has this magic word, created by either
/// library. `None` for a handle of another kind.
pub fn place_of<T>(handle: *const T, wanted: u64) -> Option<(PathBuf, Uuid)> {
    if magic(handle) != wanted {
        return None;
    }
    // SAFETY: an object of ours, as its magic word says, so it has a head.
    let place = unsafe { &(*handle.cast::<Head>()).place };
    if place.version != VERSION || place.domain.is_null() {
        return None;
    }
    // SAFETY: a text from `CString::into_raw`, which lives as long as the object.
    let domain = unsafe { CStr::from_ptr(place.domain) };
    Some((OsStr::from_bytes(domain.to_bytes()).into(), Uuid::from_bytes(place.flow)))
}

/// Whether the handle's kind has this magic word.
pub fn is<T>(handle: *const T, wanted: u64) -> bool {
    magic(handle) == wanted
}

/// The magic words of `libmxl.so.1` that `libmxl-fabrics.so.1` needs.
pub mod magics {
    /// `mxlInstance`.
    pub const INSTANCE: u64 = 0x6d78_6c5f_696e_7374;
    /// `mxlFlowReader`.
    pub const READER: u64 = 0x6d78_6c5f_7265_6164;
    /// `mxlFlowWriter`.
    pub const WRITER: u64 = 0x6d78_6c5f_7772_6974;
}

impl<T: Kind> Object<T> {
    /// Creates an object without a flow.
    pub fn new(value: T) -> Self {
        Self::at(value, Place::nowhere())
    }

    /// Creates an object of a flow.
    pub fn at(value: T, place: Place) -> Self {
        Self { head: Head { magic: AtomicU64::new(T::MAGIC), place }, value }
    }

    /// The value behind a handle, or `None` if the handle is null or of another kind.
    pub fn get<'a>(handle: *const Self) -> Option<&'a T> {
        if !is(handle, T::MAGIC) || !handle.is_aligned() {
            return None;
        }
        // SAFETY: the C caller's promise: a handle that was not released; and of this kind, as its first word says.
        Some(unsafe { &(*handle).value })
    }
}

impl<T> std::ops::Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // A later use of the handle is then more likely to be detected.
        self.head.magic.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Cat;
    struct Dog;

    impl Kind for Cat {
        const MAGIC: u64 = 0x1234_5678;
    }

    impl Kind for Dog {
        const MAGIC: u64 = 0x8765_4321;
    }

    #[test]
    fn a_handle_of_another_kind_is_refused() {
        let cat = Object::new(Cat);
        assert!(Object::<Cat>::get(&raw const cat).is_some());
        assert!(Object::<Dog>::get((&raw const cat).cast()).is_none());
        assert!(Object::<Cat>::get(std::ptr::null()).is_none());
        assert!(place_of(&raw const cat, Cat::MAGIC).is_none(), "it has no flow");
    }

    #[test]
    fn a_handle_says_of_which_flow_it_is() {
        let flow = Uuid::from_u128(7);
        let cat = Object::at(Cat, Place::new(&Domain::open("/tmp").unwrap(), flow));
        assert_eq!(place_of(&raw const cat, Cat::MAGIC), Some(("/tmp".into(), flow)));
        assert_eq!(place_of(&raw const cat, Dog::MAGIC), None);
    }
}
