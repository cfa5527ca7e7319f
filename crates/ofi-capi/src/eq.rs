//! Event queues: what a program writes into one, it reads again. Nothing else writes events yet.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ofi_api::{Errno, Error, Result, WaitObj};

use crate::abi::{class, fi_eq_attr, fi_eq_err_entry, fi_ops, fi_ops_eq, fid, fid_eq, fid_fabric, flag};
use crate::border::{self, invalid, null};
use crate::cq::{milliseconds, wait_object};
use crate::object::{self, Fid, Graveyard, Hold, Users};
use crate::{fabric, info, memory, names, nosys};

/// An event: its number and what the program gets of it.
struct Event {
    number: u32,
    data: Vec<u8>,
}

/// What is behind an event queue.
pub(crate) struct EqBody {
    events: Mutex<VecDeque<Event>>,
    arrived: Condvar,
    size: usize,
    writable: bool,
    wait_obj: WaitObj,
    /// Readable while there are events, with `FI_WAIT_FD`.
    fd: Option<OwnedFd>,
    pub users: Users,
    _fabric: Hold,
}

/// Events that a queue holds unless the program says how many.
const SIZE: usize = 256;
/// Longest event that a program may write.
const LONGEST: usize = 64 * 1024;

impl EqBody {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the program may block on the wait object.
    pub(crate) fn trywait(&self) -> Result<()> {
        if self.lock().is_empty() { Ok(()) } else { Err(Error::AGAIN) }
    }

    /// The descriptor follows the queue: readable if and only if there is something in it.
    fn follow(&self, events: &VecDeque<Event>, was_empty: bool) {
        let Some(fd) = &self.fd else { return };
        let mut word = 1_u64;
        match (was_empty, events.is_empty()) {
            (true, false) => {
                // SAFETY: eight bytes are read from `word`.
                unsafe { libc::write(fd.as_raw_fd(), (&raw const word).cast(), 8) };
            }
            (false, true) => {
                // SAFETY: eight bytes are written to `word`.
                unsafe { libc::read(fd.as_raw_fd(), (&raw mut word).cast(), 8) };
            }
            _ => {}
        }
    }
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_eq {
    type Body = EqBody;
    const CLASS: usize = class::EQ;

    fn close(&mut self) {
        (self.fid, self.ops) = (object::closed(), nosys::EQ.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, control, ..fi_ops::NOSYS };
static OPS: fi_ops_eq = fi_ops_eq { size: size_of::<fi_ops_eq>(), read, readerr, write, sread, strerror };

/// `fi_eq_open`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    place: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    border::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let fabric = unsafe { fabric::of(fabric)? };
        if place.is_null() {
            return Err(null("the place of the event queue"));
        }
        // SAFETY: as above.
        let attr = unsafe { info::read(attr, size_of::<fi_eq_attr>()) };
        let (size, flags, wait_obj) = attr.map_or((0, 0, 0), |attr| (attr.size, attr.flags, attr.wait_obj));
        let wait_obj = WaitObj::try_from(wait_obj)?;
        let fd = match wait_obj {
            WaitObj::None | WaitObj::Unspec | WaitObj::Yield => None,
            WaitObj::Fd => {
                // SAFETY: no memory is involved.
                let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
                if fd < 0 {
                    return Err(std::io::Error::last_os_error().into());
                }
                // SAFETY: just opened, and nobody else's.
                Some(unsafe { OwnedFd::from_raw_fd(fd) })
            }
            other => return Err(Error::with(Errno::ENOSYS, format!("an event queue with {other}"))),
        };
        let fid = fid_eq { fid: object::header::<fid_eq>(context, &FID_OPS), ops: OPS.table() };
        let body = EqBody {
            events: Mutex::default(),
            arrived: Condvar::new(),
            size: if size == 0 { SIZE } else { size },
            writable: flags & flag::WRITE != 0,
            wait_obj,
            fd,
            users: Users::default(),
            _fabric: fabric.users.hold(),
        };
        // SAFETY: not null, and the caller's.
        unsafe { place.write(object::open(fid, body)) };
        Ok(())
    })
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    border::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::of_fid::<fid_eq>(handle)? }.users.none("an event queue")?;
        // SAFETY: as above.
        unsafe { object::close::<fid_eq>(handle) }.map(drop)
    })
}

unsafe extern "C" fn control(handle: *mut fid, number: c_int, arg: *mut c_void) -> c_int {
    border::done(|| {
        // SAFETY: the C caller's promise.
        let eq = unsafe { object::of_fid::<fid_eq>(handle)? };
        // SAFETY: the C caller's promise: each command has its argument.
        unsafe { wait_object(number, arg, eq.wait_obj, || eq.fd.as_ref().map(AsRawFd::as_raw_fd)) }
    })
}

/// Takes the oldest event, or with `FI_PEEK` looks at it.
///
/// # Safety
/// The C caller's promise.
unsafe fn take(
    eq: &EqBody,
    events: &mut VecDeque<Event>,
    number: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> Result<usize> {
    let Some(event) = events.front() else { return Err(Error::AGAIN) };
    if number.is_null() || buf.is_null() {
        return Err(null("the event, or the buffer for it"));
    }
    if len < event.data.len() {
        return Err(Error::new(Errno::ETOOSMALL));
    }
    let found = event.data.len();
    // SAFETY: the caller's promise: `len` bytes, which are enough.
    unsafe { std::ptr::copy_nonoverlapping(event.data.as_ptr(), buf.cast(), found) };
    // SAFETY: not null, and the caller's.
    unsafe { number.write(event.number) };
    if flags & flag::PEEK == 0 {
        events.pop_front();
        eq.follow(events, false);
    }
    Ok(found)
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    number: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    border::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let eq = unsafe { object::body(eq)? };
        // SAFETY: as above.
        unsafe { take(eq, &mut eq.lock(), number, buf, len, flags) }
    })
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    number: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    border::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let eq = unsafe { object::body(eq)? };
        if eq.wait_obj == WaitObj::None {
            return Err(invalid("fi_eq_sread", "a queue with a wait object", "FI_WAIT_NONE"));
        }
        let deadline = milliseconds(timeout).and_then(|timeout| Instant::now().checked_add(timeout));
        let mut events = eq.lock();
        while events.is_empty() {
            events = match deadline {
                None => eq.arrived.wait(events).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Error::AGAIN);
                    }
                    eq.arrived.wait_timeout(events, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        // SAFETY: as above.
        unsafe { take(eq, &mut events, number, buf, len, flags) }
    })
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    number: u32,
    buf: *const c_void,
    len: usize,
    flags: u64,
) -> isize {
    border::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let eq = unsafe { object::body(eq)? };
        crate::domain::no_flags("fi_eq_write", flags)?;
        if !eq.writable {
            return Err(invalid("fi_eq_write", "a queue that was opened with FI_WRITE", "one without"));
        }
        if len > LONGEST || buf.is_null() && len > 0 {
            return Err(invalid("an event", &format!("at most {LONGEST} bytes"), format!("{len} bytes")));
        }
        let mut events = eq.lock();
        if events.len() >= eq.size {
            return Err(Error::AGAIN);
        }
        let was_empty = events.is_empty();
        // SAFETY: as above.
        events.push_back(Event { number, data: unsafe { memory::bytes(buf, len) }.to_vec() });
        eq.follow(&events, was_empty);
        eq.arrived.notify_one();
        Ok(len)
    })
}

/// There are no errors yet: only connections and asynchronous calls make them.
unsafe extern "C" fn readerr(eq: *mut fid_eq, place: *mut fi_eq_err_entry, _flags: u64) -> isize {
    border::size(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::body(eq)? };
        if place.is_null() { Err(null("struct fi_eq_err_entry")) } else { Err(Error::AGAIN) }
    })
}

unsafe extern "C" fn strerror(
    _eq: *mut fid_eq,
    prov_errno: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    border::value(c"".as_ptr(), || {
        let text = Errno::from_raw(prov_errno).text();
        // SAFETY: the C caller's promise.
        unsafe { memory::put_text(text, buf, len) };
        names::interned(text)
    })
}
