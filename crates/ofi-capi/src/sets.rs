//! Wait objects, wait sets and poll sets (fi_poll(3)).

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{Context, Errno, Error, MutexCond, PollMember, PollSet, Result, WaitAttr, WaitObj, WaitSet};

use crate::abi::{
    class, command, fi_ops, fi_ops_poll, fi_ops_wait, fi_poll_attr, fi_wait_attr, fi_wait_pollfd, fid,
    fid_cntr, fid_cq, fid_domain, fid_fabric, fid_poll, fid_wait,
};
use crate::ffi_guard::{self, invalid, milliseconds, null};
use crate::object::{self, Fid, Graveyard, Hold, Users};
use crate::{info, nosys, state};

/// `FI_GETWAIT` and `FI_GETWAITOBJ`, for all objects with a wait object.
///
/// # Safety
/// The C caller's promise: each command has its argument.
pub(crate) unsafe fn wait_object(
    number: c_int,
    arg: *mut c_void,
    wait_obj: WaitObj,
    fd: Option<RawFd>,
    mutex_cond: Option<MutexCond>,
) -> Result<()> {
    if !matches!(number, command::GETWAIT | command::GETWAITOBJ) {
        // SAFETY: the caller's promise.
        return Err(unsafe { crate::control::unsupported(number, arg) });
    }
    if arg.is_null() {
        return Err(null("the pointer for the wait object"));
    }
    if number == command::GETWAITOBJ {
        // SAFETY: not null, and an enum of the caller's.
        unsafe { arg.cast::<u32>().write_unaligned(wait_obj.as_c()) };
        return Ok(());
    }
    match (wait_obj, fd, mutex_cond) {
        (WaitObj::Fd, Some(fd), _) => {
            // SAFETY: not null, and an int of the caller's.
            unsafe { arg.cast::<c_int>().write_unaligned(fd) };
            Ok(())
        }
        // SAFETY: the caller's promise.
        (WaitObj::Pollfd, Some(fd), _) => unsafe { put_pollfd(arg.cast(), fd) },
        (WaitObj::MutexCond, _, Some(pair)) => {
            // SAFETY: not null, and of the caller's; `MutexCond` is laid out like C's.
            unsafe { arg.cast::<MutexCond>().write_unaligned(pair) };
            Ok(())
        }
        _ => Err(Error::wanted(
            Errno::ENODATA,
            "the wait object",
            "one of FI_WAIT_FD, FI_WAIT_POLLFD or FI_WAIT_MUTEX_COND",
            wait_obj.to_string(),
            "open it with one of those",
        )),
    }
}

/// Writes the array for `poll`, which has one descriptor, if the caller's `nfds` has room.
///
/// # Safety
/// The C caller's promise.
unsafe fn put_pollfd(out: *mut fi_wait_pollfd, fd: RawFd) -> Result<()> {
    // SAFETY: the same promise, here and below.
    let out = unsafe { &mut *out };
    let room = std::mem::replace(&mut out.nfds, 1);
    out.change_index = 1;
    if room == 0 || out.fd.is_null() {
        return Err(Error::new(Errno::ETOOSMALL));
    }
    // SAFETY: as above: room for one.
    unsafe { out.fd.write(libc::pollfd { fd, events: libc::POLLIN, revents: 0 }) };
    Ok(())
}

/// The state of a wait set.
pub(crate) struct WaitBody {
    pub set: Arc<dyn WaitSet>,
    wait_obj: WaitObj,
    _fabric: Hold,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_wait {
    type Body = WaitBody;
    const CLASS: usize = class::WAIT;

    fn ops() -> &'static fi_ops {
        &WAIT_FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.ops) = (object::closed(), nosys::WAIT.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static WAIT_FID_OPS: fi_ops = fi_ops { close: close_wait, control: control_wait, ..fi_ops::NOSYS };
static WAIT_OPS: fi_ops_wait = fi_ops_wait { size: size_of::<fi_ops_wait>(), wait };

/// The wait set that an object is opened with.
///
/// # Errors
/// `FI_EINVAL` for `FI_WAIT_SET` without a set.
///
/// # Safety
/// The C caller's promise: with `FI_WAIT_SET`, a wait set.
pub(crate) unsafe fn of_attr(wait_obj: u32, set: *mut fid_wait) -> Result<Option<Arc<dyn WaitSet>>> {
    if wait_obj != WaitObj::Set.as_c() {
        return Ok(None);
    }
    // SAFETY: the same promise.
    Ok(Some(Arc::clone(&unsafe { object::body(set)? }.set)))
}

/// `fi_wait_open`.
pub(crate) unsafe extern "C" fn open_wait(
    fabric: *mut fid_fabric,
    attr: *mut fi_wait_attr,
    out: *mut *mut fid_wait,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let fabric = unsafe { state::fabric(fabric)? };
        if out.is_null() {
            return Err(null("the pointer for the wait set"));
        }
        // SAFETY: as above.
        let attr = unsafe { info::read(attr, size_of::<fi_wait_attr>()) };
        let attr = attr.ok_or_else(|| null("struct fi_wait_attr"))?;
        ffi_guard::no_flags("fi_wait_open", attr.flags)?;
        let wait_obj = WaitObj::try_from(attr.wait_obj)?;
        let set = fabric.fabric.open_wait_set(&WaitAttr { wait_obj })?;
        let fid = fid_wait {
            fid: object::header::<fid_wait>(std::ptr::null_mut(), &WAIT_FID_OPS),
            ops: WAIT_OPS.table(),
        };
        let body = WaitBody { set, wait_obj, _fabric: fabric.users.hold() };
        // SAFETY: not null, and the caller's.
        unsafe { out.write(object::open(fid, body)) };
        Ok(())
    })
}

unsafe extern "C" fn close_wait(handle: *mut fid) -> c_int {
    // Members keep the library's wait set alive.
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { object::close::<fid_wait>(handle) }.map(drop))
}

unsafe extern "C" fn control_wait(handle: *mut fid, number: c_int, arg: *mut c_void) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let wait = unsafe { object::of_fid::<fid_wait>(handle)? };
        // SAFETY: the C caller's promise: each command has its argument.
        unsafe { wait_object(number, arg, wait.wait_obj, wait.set.wait_fd(), wait.set.mutex_cond()) }
    })
}

unsafe extern "C" fn wait(handle: *mut fid_wait, timeout: c_int) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { object::body(handle)? }.set.wait(milliseconds(timeout)))
}

/// The state of a poll set.
pub(crate) struct PollBody {
    set: Arc<dyn PollSet>,
    /// Keeps the domain and the members open. Members are identified by their handle.
    holds: Mutex<Vec<(usize, Hold)>>,
    _domain: Hold,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_poll {
    type Body = PollBody;
    const CLASS: usize = class::POLL;

    fn ops() -> &'static fi_ops {
        &POLL_FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.ops) = (object::closed(), nosys::POLL.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static POLL_FID_OPS: fi_ops = fi_ops { close: close_poll, ..fi_ops::NOSYS };
static POLL_OPS: fi_ops_poll = fi_ops_poll { size: size_of::<fi_ops_poll>(), poll, poll_add, poll_del };

/// `fi_poll_open`.
pub(crate) unsafe extern "C" fn open_poll(
    domain: *mut fid_domain,
    attr: *mut fi_poll_attr,
    out: *mut *mut fid_poll,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { state::domain(domain)? };
        if out.is_null() {
            return Err(null("the pointer for the poll set"));
        }
        // SAFETY: as above.
        let attr = unsafe { info::read(attr, size_of::<fi_poll_attr>()) };
        ffi_guard::no_flags("fi_poll_open", attr.map_or(0, |attr| attr.flags))?;
        let fid = fid_poll {
            fid: object::header::<fid_poll>(std::ptr::null_mut(), &POLL_FID_OPS),
            ops: POLL_OPS.table(),
        };
        let body = PollBody {
            set: domain.domain.open_poll_set()?,
            holds: Mutex::default(),
            _domain: domain.users.hold(),
        };
        // SAFETY: not null, and the caller's.
        unsafe { out.write(object::open(fid, body)) };
        Ok(())
    })
}

unsafe extern "C" fn close_poll(handle: *mut fid) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { object::close::<fid_poll>(handle) }.map(drop))
}

/// A queue or counter as a member, with its context.
///
/// # Safety
/// The C caller's promise.
unsafe fn member<'a>(handle: *mut fid) -> Result<(PollMember, Context, &'a Users)> {
    // SAFETY: the same promise, here and below.
    let Some(fid) = (unsafe { handle.as_ref() }) else { return Err(null("the member")) };
    let context = Context(fid.context.expose_provenance());
    match fid.fclass {
        class::CQ => {
            // SAFETY: the class says so.
            let cq = unsafe { object::of_fid::<fid_cq>(handle)? };
            Ok((PollMember::Queue(Arc::clone(&cq.cq)), context, &cq.users))
        }
        class::CNTR => {
            // SAFETY: the class says so.
            let cntr = unsafe { object::of_fid::<fid_cntr>(handle)? };
            Ok((PollMember::Counter(Arc::clone(&cntr.counter)), context, &cntr.users))
        }
        other => Err(invalid("the member", "a completion queue or a counter", format!("class {other}"))),
    }
}

unsafe extern "C" fn poll(handle: *mut fid_poll, contexts: *mut *mut c_void, count: c_int) -> c_int {
    ffi_guard::int(|| {
        // SAFETY: the C caller's promise, here and below.
        let poll = unsafe { object::body(handle)? };
        let room = usize::try_from(count).map_err(|_| invalid("count", "0 or more", count.to_string()))?;
        if contexts.is_null() && room > 0 {
            return Err(null("the contexts"));
        }
        let contexts: &mut [Context] = if room == 0 {
            &mut []
        } else {
            // SAFETY: as above; `Context` is laid out like a pointer.
            unsafe { std::slice::from_raw_parts_mut(contexts.cast(), room) }
        };
        Ok(c_int::try_from(poll.set.poll(contexts)).unwrap_or(c_int::MAX))
    })
}

unsafe extern "C" fn poll_add(handle: *mut fid_poll, other: *mut fid, flags: u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let poll = unsafe { object::body(handle)? };
        ffi_guard::no_flags("fi_poll_add", flags)?;
        // SAFETY: as above.
        let (member, context, users) = unsafe { member(other)? };
        poll.set.add(member, context)?;
        let hold = (other.addr(), users.hold());
        poll.holds.lock().unwrap_or_else(PoisonError::into_inner).push(hold);
        Ok(())
    })
}

unsafe extern "C" fn poll_del(handle: *mut fid_poll, other: *mut fid, flags: u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let poll = unsafe { object::body(handle)? };
        ffi_guard::no_flags("fi_poll_del", flags)?;
        // SAFETY: as above.
        let (member, ..) = unsafe { member(other)? };
        poll.set.remove(&member)?;
        poll.holds.lock().unwrap_or_else(PoisonError::into_inner).retain(|(at, _)| *at != other.addr());
        Ok(())
    })
}
