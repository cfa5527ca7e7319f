//! Counters.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi_api::{CntrAttr, CntrEvents, Counter, Errno, Error, Result, WaitObj};

use crate::abi::{class, fi_cntr_attr, fi_ops, fi_ops_cntr, fid, fid_cntr, fid_domain};
use crate::ffi_guard::{self, milliseconds, null};
use crate::object::{self, Fid, Graveyard, Hold, Users};
use crate::sets::wait_object;
use crate::{info, nosys, sets, state};

/// The state of a counter.
pub(crate) struct CntrBody {
    pub counter: Arc<dyn Counter>,
    wait_obj: WaitObj,
    pub users: Users,
    _domain: Hold,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_cntr {
    type Body = CntrBody;
    const CLASS: usize = class::CNTR;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.ops) = (object::closed(), nosys::CNTR.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, control, ..fi_ops::NOSYS };
static OPS: fi_ops_cntr = fi_ops_cntr { read, readerr, add, set, wait, adderr, seterr, ..fi_ops_cntr::NOSYS };

/// `fi_cntr_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    out: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { state::domain(domain)? };
        if out.is_null() {
            return Err(null("the pointer for the counter"));
        }
        // SAFETY: as above.
        let attr = match unsafe { info::read(attr, size_of::<fi_cntr_attr>()) } {
            None => CntrAttr::default(),
            Some(attr) => {
                ffi_guard::no_flags("fi_cntr_open", attr.flags)?;
                CntrAttr {
                    events: CntrEvents::try_from(attr.events)?,
                    wait_obj: WaitObj::try_from(attr.wait_obj)?,
                    // SAFETY: as above.
                    wait_set: unsafe { sets::of_attr(attr.wait_obj, attr.wait_set)? },
                }
            }
        };
        let counter = domain.domain.open_counter(&attr)?;
        let handle = wrap(counter, attr.wait_obj, domain.users.hold(), context);
        // SAFETY: not null, and the caller's.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// Creates the handle of a counter.
pub(crate) fn wrap(
    counter: Arc<dyn Counter>,
    wait_obj: WaitObj,
    _domain: Hold,
    context: *mut c_void,
) -> *mut fid_cntr {
    let fid = fid_cntr { fid: object::header::<fid_cntr>(context, &FID_OPS), ops: OPS.table() };
    object::open(fid, CntrBody { counter, wait_obj, users: Users::default(), _domain })
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::of_fid::<fid_cntr>(handle)? }.users.none("a counter")?;
        // SAFETY: as above.
        unsafe { object::close::<fid_cntr>(handle) }.map(drop)
    })
}

unsafe extern "C" fn control(handle: *mut fid, number: c_int, arg: *mut c_void) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let cntr = unsafe { object::of_fid::<fid_cntr>(handle)? };
        // SAFETY: the C caller's promise: each command has its argument.
        unsafe { wait_object(number, arg, cntr.wait_obj, cntr.counter.wait_fd(), cntr.counter.mutex_cond()) }
    })
}

/// Runs `body` on a counter.
///
/// # Safety
/// The C caller's promise.
unsafe fn with<R>(cntr: *mut fid_cntr, body: impl FnOnce(&dyn Counter) -> Result<R>) -> Result<R> {
    // SAFETY: the same promise.
    body(unsafe { object::body(cntr)? }.counter.as_ref())
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the C caller's promise.
    let Some(cntr) = (unsafe { object::alive(cntr) }) else { return 0 };
    ffi_guard::value(0, || cntr.counter.read())
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the C caller's promise.
    ffi_guard::value(0, || unsafe { with(cntr, |counter| Ok(counter.read_error())) }.unwrap_or(0))
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { with(cntr, |counter| counter.add(value)) })
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { with(cntr, |counter| counter.add_error(value)) })
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { with(cntr, |counter| counter.set(value)) })
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { with(cntr, |counter| counter.set_error(value)) })
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let cntr = unsafe { object::body(cntr)? };
        let timeout = milliseconds(timeout);
        match cntr.wait_obj {
            WaitObj::None => spin(cntr.counter.as_ref(), threshold, timeout),
            _ => cntr.counter.wait(threshold, timeout),
        }
    })
}

/// Waits on a counter without a wait object. fi_cntr(3) forbids that, but libfabric's own programs do it.
///
/// # Errors
/// `FI_EAVAIL` when the counter counts a failure, `FI_ETIMEDOUT` after the timeout.
fn spin(counter: &dyn Counter, threshold: u64, timeout: Option<Duration>) -> Result<()> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let failures = counter.read_error();
    loop {
        let value = counter.read();
        // Check failures first: the value may have been reached before the call.
        if counter.read_error() != failures {
            return Err(Error::AVAIL);
        }
        if value >= threshold {
            return Ok(());
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Error::new(Errno::ETIMEDOUT));
        }
        std::thread::yield_now();
    }
}
