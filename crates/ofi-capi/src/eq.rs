//! Event queues. The library's events are structures; C's are bytes whose length depends on the kind of event.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ofi_api::{
    EqAttr, Errno, Error, Event, EventKind, EventQueue, Fid as FidNumber, Result, Version, WaitObj,
};

use crate::abi::{
    class, fi_eq_attr, fi_eq_entry, fi_eq_err_entry, fi_ops, fi_ops_eq, fid, fid_eq, fid_fabric, flag,
};
use crate::cq::put_error_data;
use crate::ffi_guard::{self, invalid, milliseconds, no_flags, null, only_flags};
use crate::object::{self, Fid, Graveyard, Hold, Users};
use crate::{directory, info, memory, names, nosys, pep, sets, state};

/// The state of an event queue.
pub(crate) struct EqBody {
    pub eq: Arc<dyn EventQueue>,
    wait_obj: WaitObj,
    /// Serialises readers, which inspect an event before they take it. `err_data` of the last error points into this
    /// buffer.
    reader: Mutex<Vec<u8>>,
    /// In the program's version, it supplies no buffer for an error's data, whatever its entry contains (fi_eq(3)).
    lends_error_data: bool,
    pub users: Users,
    _fabric: Hold,
}

/// Maximum length of an event that a program writes, in bytes.
const MAX_EVENT_LEN: usize = 64 * 1024;

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_eq {
    type Body = EqBody;
    const CLASS: usize = class::EQ;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

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
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let fabric = unsafe { state::fabric(fabric)? };
        if out.is_null() {
            return Err(null("the pointer for the event queue"));
        }
        // SAFETY: as above.
        let attr = match unsafe { info::read(attr, size_of::<fi_eq_attr>()) } {
            None => EqAttr::default(),
            Some(attr) => {
                only_flags("fi_eq_open", attr.flags, flag::WRITE | flag::AFFINITY)?;
                EqAttr {
                    size: attr.size,
                    write: attr.flags & flag::WRITE != 0,
                    wait_obj: WaitObj::try_from(attr.wait_obj)?,
                    // SAFETY: as above.
                    wait_set: unsafe { sets::of_attr(attr.wait_obj, attr.wait_set)? },
                }
            }
        };
        let eq = fabric.fabric.open_eq(&attr)?;
        let fid = fid_eq { fid: object::header::<fid_eq>(context, &FID_OPS), ops: OPS.table() };
        let body = EqBody {
            eq,
            wait_obj: attr.wait_obj,
            reader: Mutex::default(),
            lends_error_data: fabric.api < Version::new(1, 5),
            users: Users::default(),
            _fabric: fabric.users.hold(),
        };
        // SAFETY: not null, and the caller's.
        unsafe { out.write(object::open(fid, body)) };
        Ok(())
    })
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::of_fid::<fid_eq>(handle)? }.users.none("an event queue")?;
        // SAFETY: as above.
        unsafe { object::close::<fid_eq>(handle) }.map(drop)
    })
}

unsafe extern "C" fn control(handle: *mut fid, number: c_int, arg: *mut c_void) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let eq = unsafe { object::of_fid::<fid_eq>(handle)? };
        // SAFETY: the C caller's promise: each command has its argument.
        unsafe { sets::wait_object(number, arg, eq.wait_obj, eq.eq.wait_fd(), eq.eq.mutex_cond()) }
    })
}

/// The bytes of a structure.
fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: a structure of pointers and words without padding, which is only read.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// C's number and bytes of an event. The program owns the info in the event once the bytes are returned.
fn encoded(event: &Event) -> Result<(u32, Vec<u8>)> {
    if event.fid == FidNumber::NONE {
        // The program's own event: the bytes as it wrote them, and its number.
        return Ok((event.data as u32, event.conn_data.clone()));
    }
    let fid = directory::pointer(event.fid);
    let mut bytes = match event.kind {
        EventKind::ConnReq | EventKind::Connected | EventKind::Shutdown => {
            let info = match &event.info {
                Some(info) => {
                    let c = info::to_c(std::slice::from_ref(info.as_ref()))?;
                    // SAFETY: just made, and not shared yet.
                    unsafe { (*c).handle = pep::request(info.handle.as_ref()) };
                    c
                }
                None => std::ptr::null_mut(),
            };
            [bytes_of(&fid), bytes_of(&info)].concat()
        }
        _ => {
            let entry = fi_eq_entry { fid, context: event.context.as_ptr(), data: event.data };
            bytes_of(&entry).to_vec()
        }
    };
    bytes.extend_from_slice(&event.conn_data);
    Ok((event.kind.as_c(), bytes))
}

/// The length of C's form of an event.
fn encoded_len(event: &Event) -> usize {
    let head = match event.kind {
        _ if event.fid == FidNumber::NONE => 0,
        EventKind::ConnReq | EventKind::Connected | EventKind::Shutdown => 2 * size_of::<usize>(),
        _ => size_of::<fi_eq_entry>(),
    };
    head + event.conn_data.len()
}

/// Takes the oldest event, or with `FI_PEEK` copies it.
///
/// # Safety
/// The C caller's promise: `len` writable bytes.
unsafe fn take(eq: &EqBody, number: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> Result<usize> {
    if number.is_null() || buf.is_null() {
        return Err(null("the event, or the buffer for it"));
    }
    only_flags("the reading of an event", flags, flag::PEEK)?;
    let _one_at_a_time = eq.reader.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = eq.eq.peek()?;
    if len < encoded_len(&seen) {
        return Err(Error::new(Errno::ETOOSMALL));
    }
    let mut event = if flags & flag::PEEK == 0 { eq.eq.read()? } else { seen };
    if flags & flag::PEEK != 0 {
        event.info = None; // belongs to the reader that takes the event
    }
    let (kind, bytes) = encoded(&event)?;
    let found = bytes.len().min(len);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), found) };
    // SAFETY: not null, and the caller's.
    unsafe { number.write(kind) };
    Ok(found)
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    number: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    ffi_guard::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let eq = unsafe { object::body(eq)? };
        // SAFETY: as above.
        unsafe { take(eq, number, buf, len, flags) }
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
    ffi_guard::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let eq = unsafe { object::body(eq)? };
        only_flags("the reading of an event", flags, flag::PEEK)?;
        let deadline = milliseconds(timeout).and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            eq.eq.peek_wait(left)?;
            // SAFETY: as above.
            match unsafe { take(eq, number, buf, len, flags) } {
                // Another thread took the event.
                Err(error) if error.is_again() => {}
                other => return other,
            }
        }
    })
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    number: u32,
    buf: *const c_void,
    len: usize,
    flags: u64,
) -> isize {
    ffi_guard::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let eq = unsafe { object::body(eq)? };
        no_flags("fi_eq_write", flags)?;
        if len > MAX_EVENT_LEN || buf.is_null() && len > 0 {
            return Err(invalid(
                "an event",
                &format!("at most {MAX_EVENT_LEN} bytes"),
                format!("{len} bytes"),
            ));
        }
        let mut event = Event::new(EventKind::from_c(number).unwrap_or_default(), FidNumber::NONE);
        event.data = u64::from(number);
        // SAFETY: as above.
        event.conn_data = unsafe { memory::bytes(buf, len) }.to_vec();
        eq.eq.write(event)?;
        Ok(len)
    })
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, out: *mut fi_eq_err_entry, flags: u64) -> isize {
    ffi_guard::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let eq = unsafe { object::body(eq)? };
        // SAFETY: as above.
        let Some(entry) = (unsafe { out.as_mut() }) else { return Err(null("struct fi_eq_err_entry")) };
        no_flags("fi_eq_readerr", flags)?;
        let mut kept = eq.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let error = eq.eq.read_error()?;
        entry.fid = directory::pointer(error.fid);
        // If the call had no context (fi_connect), use the object's, as C's providers do. SAFETY: the directory names
        // open objects, and the program does not close one while it reads the object's events.
        let own = unsafe { entry.fid.as_ref() }.map_or(std::ptr::null_mut(), |fid| fid.context);
        let context: *mut c_void = error.context.as_ptr();
        (entry.context, entry.data) = (if context.is_null() { own } else { context }, error.data);
        (entry.err, entry.prov_errno) = (error.err.get(), error.prov_errno);
        if eq.lends_error_data {
            entry.err_data_size = 0;
        }
        // SAFETY: as above.
        unsafe { put_error_data(&mut kept, error.err_data, &mut entry.err_data, &mut entry.err_data_size) };
        Ok(size_of::<fi_eq_err_entry>())
    })
}

unsafe extern "C" fn strerror(
    eq: *mut fid_eq,
    prov_errno: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    ffi_guard::value(c"".as_ptr(), || {
        // SAFETY: the C caller's promise, here and below.
        let text = match unsafe { object::body(eq) } {
            Ok(eq) => eq.eq.error_text(prov_errno),
            Err(error) => error.to_string(),
        };
        // SAFETY: as above.
        unsafe { memory::put_text(&text, buf, len) };
        names::interned(&text)
    })
}
