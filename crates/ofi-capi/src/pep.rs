//! Passive endpoints, and the connection requests that arrive at them.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{Address, Errno, Error, Handle, PassiveEndpoint, Result};

use crate::abi::{class, command, fi_info, fi_ops, fi_ops_cm, fi_ops_ep, fid, fid_eq, fid_fabric, fid_pep};
use crate::ffi_guard::{self, invalid, null};
use crate::object::{self, Fid, Graveyard, Hold};
use crate::{cm, control, directory, info, memory, nosys, state};

/// The state of a passive endpoint.
pub(crate) struct PepBody {
    pub pep: Arc<dyn PassiveEndpoint>,
    addr_format: ofi_api::AddrFormat,
    /// Keeps the fabric and the queue open.
    holds: Mutex<Vec<Hold>>,
    _entry: Mutex<Option<directory::Entry>>,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_pep {
    type Body = PepBody;
    const CLASS: usize = class::PEP;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.ops, self.cm) = (object::closed(), nosys::EP.table(), nosys::CM.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, bind, control, ..fi_ops::NOSYS };
static OPS: fi_ops_ep = fi_ops_ep { getopt, ..fi_ops_ep::NOSYS };
static CM: fi_ops_cm = fi_ops_cm { setname, getname, listen, reject, ..fi_ops_cm::NOSYS };

/// `fi_passive_ep`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let fabric = unsafe { state::fabric(fabric)? };
        if out.is_null() {
            return Err(null("the pointer for the passive endpoint"));
        }
        // SAFETY: as above.
        let mut info = unsafe { info::from_c(info, fabric.abi())? };
        fabric.translate(&mut info);
        let pep = fabric.fabric.open_passive(&info)?;
        let fid =
            fid_pep { fid: object::header::<fid_pep>(context, &FID_OPS), ops: OPS.table(), cm: CM.table() };
        let number = pep.fid();
        let body = PepBody {
            pep,
            addr_format: info.addr_format,
            holds: Mutex::new(vec![fabric.users.hold()]),
            _entry: Mutex::default(),
        };
        let handle = object::open(fid, body);
        // SAFETY: just opened.
        let body = unsafe { object::body(handle)? };
        *body._entry.lock().unwrap_or_else(PoisonError::into_inner) = Some(directory::enter(number, handle));
        // SAFETY: not null, and the caller's.
        unsafe { out.write(handle) };
        Ok(())
    })
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { object::close::<fid_pep>(handle) }.map(drop))
}

unsafe extern "C" fn bind(handle: *mut fid, other: *mut fid, flags: u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let pep = unsafe { object::of_fid::<fid_pep>(handle)? };
        crate::ffi_guard::no_flags("fi_pep_bind", flags)?;
        // SAFETY: as above.
        let eq = unsafe { object::of_fid::<fid_eq>(other)? };
        pep.pep.bind_eq(&eq.eq)?;
        pep.holds.lock().unwrap_or_else(PoisonError::into_inner).push(eq.users.hold());
        Ok(())
    })
}

unsafe extern "C" fn control(handle: *mut fid, number: c_int, arg: *mut c_void) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let pep = unsafe { object::of_fid::<fid_pep>(handle)? };
        if number != command::BACKLOG {
            // SAFETY: as above.
            return Err(unsafe { control::unsupported(number, arg) });
        }
        // SAFETY: as above: an int.
        let Some(&backlog) = (unsafe { arg.cast::<c_int>().as_ref() }) else {
            return Err(null("the backlog"));
        };
        let backlog =
            usize::try_from(backlog).map_err(|_| invalid("the backlog", "1 or more", backlog.to_string()))?;
        pep.pep.set_backlog(backlog)
    })
}

unsafe extern "C" fn getopt(
    handle: *mut fid,
    level: c_int,
    name: c_int,
    out: *mut c_void,
    len: *mut usize,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let pep = unsafe { object::of_fid::<fid_pep>(handle)? };
        if level != 0 || name != ofi_api::EpOption::CmDataSize as c_int {
            return Err(Error::new(Errno::ENOPROTOOPT));
        }
        // SAFETY: as above.
        unsafe { memory::put_sized(&pep.pep.cm_data_size().to_ne_bytes(), out, len) }
    })
}

unsafe extern "C" fn setname(handle: *mut fid, addr: *mut c_void, len: usize) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let pep = unsafe { object::of_fid::<fid_pep>(handle)? };
        // SAFETY: as above.
        pep.pep.set_name(&Address::new(pep.addr_format, unsafe { cm::address_bytes(addr, len)? }))
    })
}

unsafe extern "C" fn getname(handle: *mut fid, addr: *mut c_void, len: *mut usize) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let pep = unsafe { object::of_fid::<fid_pep>(handle)? };
        // SAFETY: as above.
        unsafe { memory::put_sized(pep.pep.name()?.bytes(), addr, len) }
    })
}

unsafe extern "C" fn listen(handle: *mut fid_pep) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { object::body(handle)? }.pep.listen())
}

unsafe extern "C" fn reject(
    handle: *mut fid_pep,
    request: *mut fid,
    data: *const c_void,
    len: usize,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let pep = unsafe { object::body(handle)? };
        // SAFETY: as above.
        let found = unsafe { object::of_fid::<fid_connreq>(request)? };
        // SAFETY: as above.
        pep.pep.reject(&found.handle, unsafe { cm::data(data, len)? })?;
        // SAFETY: as above: nothing uses a request once it was answered.
        unsafe { object::close::<fid_connreq>(request) }.map(drop)
    })
}

/// A connection request: in C it is a bare `struct fid`.
#[allow(non_camel_case_types)]
#[repr(C)]
pub(crate) struct fid_connreq {
    fid: fid,
}

/// The state of a request.
pub(crate) struct RequestBody {
    handle: Handle,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_connreq {
    type Body = RequestBody;
    const CLASS: usize = class::CONNREQ;

    fn ops() -> &'static fi_ops {
        &REQUEST_OPS
    }

    fn close(&mut self) {
        self.fid = object::closed();
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static REQUEST_OPS: fi_ops = fi_ops { close: close_request, ..fi_ops::NOSYS };

unsafe extern "C" fn close_request(handle: *mut fid) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { object::close::<fid_connreq>(handle) }.map(drop))
}

/// C's handle for a request; null for `None`.
pub(crate) fn request(handle: Option<&Handle>) -> *mut fid {
    let Some(handle) = handle else { return std::ptr::null_mut() };
    let fid = fid_connreq { fid: object::header::<fid_connreq>(std::ptr::null_mut(), &REQUEST_OPS) };
    object::open(fid, RequestBody { handle: handle.clone() }).cast()
}

/// The object in an info that an endpoint is opened with: the connection request that it accepts, or the passive
/// endpoint whose address it takes over.
///
/// # Safety
/// The C caller's promise: null, or an object of C.
pub(crate) unsafe fn taken_over(handle: *mut fid) -> Result<(Option<Handle>, Option<Address>)> {
    // SAFETY: the same promise, here and below.
    match unsafe { handle.as_ref() }.map(|fid| fid.fclass) {
        None => Ok((None, None)),
        Some(class::CONNREQ) => {
            // SAFETY: the class says so.
            let request = unsafe { object::of_fid::<fid_connreq>(handle)? };
            Ok((Some(request.handle.clone()), None))
        }
        // SAFETY: the class says so.
        Some(class::PEP) => Ok((None, unsafe { object::of_fid::<fid_pep>(handle)? }.pep.name().ok())),
        Some(other) => {
            Err(invalid("fi_info.handle", "a request or a passive endpoint", format!("class {other}")))
        }
    }
}
