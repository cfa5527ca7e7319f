//! Sets of addresses, which are the members of a group: fi_av_set(3).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ofi_api::{AddressVector, AvSet, AvSetAttr, Errno, Error, FiAddr, Result};

use crate::abi::{class, fi_av_set_attr, fi_ops, fi_ops_av_set, fid, fid_av, fid_av_set, flag};
use crate::ffi_guard::{self, null};
use crate::nosys;
use crate::object::{self, Fid, Graveyard, Hold};

/// The state of a set.
pub(crate) struct AvSetBody {
    pub set: Arc<dyn AvSet>,
    /// Keeps the vector open.
    _av: Hold,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_av_set {
    type Body = AvSetBody;
    const CLASS: usize = class::AV_SET;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.ops) = (object::closed(), nosys::AV_SET.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, ..fi_ops::NOSYS };
static OPS: fi_ops_av_set =
    fi_ops_av_set { size: size_of::<fi_ops_av_set>(), set_union, intersect, diff, insert, remove, addr };

/// `fi_av_set`.
pub(crate) unsafe extern "C" fn open(
    av: *mut fid_av,
    attr: *mut fi_av_set_attr,
    out: *mut *mut fid_av_set,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let av = unsafe { object::body(av)? };
        if out.is_null() {
            return Err(null("the pointer for the set"));
        }
        // SAFETY: as above.
        let wanted = match unsafe { attr.as_ref() } {
            None => AvSetAttr::default(),
            Some(attr) => {
                // The intended use of a set, and a key that the application manages, are only hints.
                let other = attr.flags & !(flag::UNIVERSE | flag::COLLECTIVE_SETS);
                if other != 0 {
                    let (found, advice) = (format!("{other:#x}"), "leave the others out");
                    let known = "FI_UNIVERSE, and the flags that name a collective";
                    return Err(Error::wanted(
                        Errno::EBADFLAGS,
                        "fi_av_set_attr.flags",
                        known,
                        found,
                        advice,
                    ));
                }
                AvSetAttr {
                    count: attr.count,
                    range: (FiAddr(attr.start_addr), FiAddr(attr.end_addr)),
                    stride: attr.stride,
                    universe: attr.flags & flag::UNIVERSE != 0,
                }
            }
        };
        let vector: Arc<dyn AddressVector> = Arc::clone(&av.av);
        let set = vector.set(&wanted)?;
        let fid = fid_av_set { fid: object::header::<fid_av_set>(context, &FID_OPS), ops: OPS.table() };
        // SAFETY: not null, and the caller's.
        unsafe { out.write(object::open(fid, AvSetBody { set, _av: av.users.hold() })) };
        Ok(())
    })
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { object::close::<fid_av_set>(handle) }.map(drop))
}

/// The set behind a handle.
///
/// # Safety
/// The C caller's promise.
pub(crate) unsafe fn of<'a>(set: *const fid_av_set) -> Result<&'a dyn AvSet> {
    // SAFETY: the same promise.
    Ok(unsafe { object::body(set)? }.set.as_ref())
}

/// Changes one set by another.
///
/// # Safety
/// The C caller's promise.
unsafe fn change(
    to: *mut fid_av_set,
    by: *const fid_av_set,
    how: impl FnOnce(&dyn AvSet, &dyn AvSet) -> Result<()>,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the same promise, here and below.
        let to = unsafe { of(to)? };
        // SAFETY: as above.
        how(to, unsafe { of(by)? })
    })
}

unsafe extern "C" fn set_union(to: *mut fid_av_set, by: *const fid_av_set) -> c_int {
    // SAFETY: the C caller's promise.
    unsafe { change(to, by, |to, by| to.union(by)) }
}

unsafe extern "C" fn intersect(to: *mut fid_av_set, by: *const fid_av_set) -> c_int {
    // SAFETY: the C caller's promise.
    unsafe { change(to, by, |to, by| to.intersect(by)) }
}

unsafe extern "C" fn diff(to: *mut fid_av_set, by: *const fid_av_set) -> c_int {
    // SAFETY: the C caller's promise.
    unsafe { change(to, by, |to, by| to.diff(by)) }
}

unsafe extern "C" fn insert(set: *mut fid_av_set, address: u64) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { of(set)? }.insert(FiAddr(address)))
}

unsafe extern "C" fn remove(set: *mut fid_av_set, address: u64) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { of(set)? }.remove(FiAddr(address)))
}

unsafe extern "C" fn addr(set: *mut fid_av_set, out: *mut u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let address = unsafe { of(set)? }.addr();
        // SAFETY: as above.
        let Some(out) = (unsafe { out.as_mut() }) else { return Err(null("the pointer for the address")) };
        *out = address.0;
        Ok(())
    })
}
