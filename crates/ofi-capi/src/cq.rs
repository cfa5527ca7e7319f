//! Completion queues.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{CompletionQueue, CqAttr, CqBuffer, CqFormat, FiAddr, Result, WaitCond, WaitObj};

use crate::abi::{class, fi_cq_attr, fi_cq_err_entry, fi_ops, fi_ops_cq, fid, fid_cq, fid_domain, flag};
use crate::ffi_guard::{self, null};
use crate::object::{self, Fid, Graveyard, Hold, Users};
use crate::sets::wait_object;
use crate::{info, memory, names, nosys, sets, state};

/// The state of a completion queue.
pub(crate) struct CqBody {
    pub cq: Arc<dyn CompletionQueue>,
    format: CqFormat,
    wait_obj: WaitObj,
    /// The buffer that the last error's `err_data` points to, if the program supplied none.
    err_data: Mutex<Vec<u8>>,
    /// If the peer of the last error is known: the error's number, and the text of `fi_cq_strerror` that names the
    /// peer. Valid until the next error is read.
    failed: Mutex<Option<(c_int, String)>>,
    /// Size of the program's `fi_cq_err_entry`.
    err_entry: usize,
    pub users: Users,
    _domain: Hold,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_cq {
    type Body = CqBody;
    const CLASS: usize = class::CQ;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.ops) = (object::closed(), nosys::CQ.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, control, ..fi_ops::NOSYS };
static OPS: fi_ops_cq =
    fi_ops_cq { read, readfrom, readerr, sread, sreadfrom, signal, strerror, ..fi_ops_cq::NOSYS };

/// `fi_cq_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { state::domain(domain)? };
        if out.is_null() {
            return Err(null("the pointer for the queue"));
        }
        // SAFETY: as above.
        let attr = match unsafe { info::read(attr, size_of::<fi_cq_attr>()) } {
            None => CqAttr::default(),
            Some(attr) => {
                ffi_guard::only_flags("fi_cq_open", attr.flags, flag::AFFINITY)?;
                // The number of entries to wait for is only a hint.
                WaitCond::try_from(attr.wait_cond)?;
                CqAttr {
                    size: attr.size,
                    format: CqFormat::try_from(attr.format)?,
                    wait_obj: WaitObj::try_from(attr.wait_obj)?,
                    // SAFETY: as above.
                    wait_set: unsafe { sets::of_attr(attr.wait_obj, attr.wait_set)? },
                }
            }
        };
        let cq = domain.domain.open_cq(&attr)?;
        let handle =
            wrap(cq, attr.wait_obj, domain.info.fabric_attr.api_version, domain.users.hold(), context);
        // SAFETY: not null, and the caller's.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// Creates the handle of a queue for a program of this version.
pub(crate) fn wrap(
    cq: Arc<dyn CompletionQueue>,
    wait_obj: WaitObj,
    api: ofi_api::Version,
    _domain: Hold,
    context: *mut c_void,
) -> *mut fid_cq {
    let fid = fid_cq { fid: object::header::<fid_cq>(context, &FID_OPS), ops: OPS.table() };
    let (err_entry, users) = (error_entry_size(api), Users::default());
    let (err_data, failed) = Default::default();
    let body = CqBody { format: cq.format(), cq, wait_obj, err_data, failed, err_entry, users, _domain };
    object::open(fid, body)
}

/// Size of `fi_cq_err_entry` in a program of this version: `err_data_size` was added in 1.5, `src_addr` in 1.20
/// (fi_cq(3)).
fn error_entry_size(version: ofi_api::Version) -> usize {
    use ofi_api::Version;
    match version {
        version if version >= Version::new(1, 20) => size_of::<fi_cq_err_entry>(),
        version if version >= Version::new(1, 5) => std::mem::offset_of!(fi_cq_err_entry, src_addr),
        _ => std::mem::offset_of!(fi_cq_err_entry, err_data_size),
    }
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::of_fid::<fid_cq>(handle)? }.users.none("a completion queue")?;
        // SAFETY: as above.
        unsafe { object::close::<fid_cq>(handle) }.map(drop)
    })
}

unsafe extern "C" fn control(handle: *mut fid, number: c_int, arg: *mut c_void) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let cq = unsafe { object::of_fid::<fid_cq>(handle)? };
        // SAFETY: the C caller's promise: each command has its argument.
        unsafe { wait_object(number, arg, cq.wait_obj, cq.cq.wait_fd(), cq.cq.mutex_cond()) }
    })
}

/// Reads into the caller's array, and waits up to `timeout`.
///
/// # Safety
/// The C caller's promise.
unsafe fn read_into(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut u64,
    timeout: c_int,
) -> Result<usize> {
    // SAFETY: the caller's promise, here and below.
    let cq = unsafe { object::body(cq)? };
    if buf.is_null() && count > 0 {
        return Err(null("the entries"));
    }
    // SAFETY: as above: `count` entries of the queue's format, and as many sources or none.
    let mut buffer = unsafe { CqBuffer::from_raw(buf.cast(), sources.cast::<FiAddr>(), count, cq.format) };
    cq.cq.read_wait(&mut buffer, ffi_guard::milliseconds(timeout))
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { read_now(cq, buf, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(cq: *mut fid_cq, buf: *mut c_void, count: usize, sources: *mut u64) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { read_now(cq, buf, count, sources) }
}

/// Reads the available entries into the caller's array.
///
/// # Safety
/// The C caller's promise.
#[inline(always)]
unsafe fn read_now(cq: *mut fid_cq, buf: *mut c_void, count: usize, sources: *mut u64) -> isize {
    // SAFETY: the caller's promise, here and below.
    let Some(cq) = (unsafe { object::alive(cq) }) else { return unsafe { object::stale(cq) } };
    if buf.is_null() && count > 0 {
        return ffi_guard::size(|| Err(null("the entries")));
    }
    ffi_guard::size(|| {
        // SAFETY: as above: `count` entries of the queue's format, and as many sources or none.
        let mut buffer =
            unsafe { CqBuffer::from_raw(buf.cast(), sources.cast::<FiAddr>(), count, cq.format) };
        cq.cq.read(&mut buffer)
    })
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the C caller's promise.
    ffi_guard::size(|| unsafe { read_into(cq, buf, count, std::ptr::null_mut(), timeout) })
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut u64,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the C caller's promise.
    ffi_guard::size(|| unsafe { read_into(cq, buf, count, sources, timeout) })
}

/// Ignores the flags, as C does: fi_cq(3) defines none, and libfabric's own programs pass `FI_SEND`.
unsafe extern "C" fn readerr(cq: *mut fid_cq, out: *mut fi_cq_err_entry, _flags: u64) -> isize {
    ffi_guard::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let cq = unsafe { object::body(cq)? };
        // SAFETY: as above: as much of it as the program has.
        let Some(mut entry) = (unsafe { info::read(out, cq.err_entry) }) else {
            return Err(null("struct fi_cq_err_entry"));
        };
        let error = cq.cq.read_error()?;
        entry.op_context = error.op_context.as_ptr();
        (entry.flags, entry.len) = (error.flags.bits(), error.len);
        entry.buf = std::ptr::with_exposed_provenance_mut(error.buf);
        (entry.data, entry.tag, entry.olen) = (error.data, error.tag, error.olen);
        (entry.err, entry.prov_errno) = (error.err.get(), error.prov_errno);
        entry.src_addr = error.src_addr.0;
        *cq.failed.lock().unwrap_or_else(PoisonError::into_inner) = error.peer.as_ref().map(|peer| {
            let text = format!("{}: peer {peer}", cq.cq.error_text(error.prov_errno));
            (error.prov_errno, text)
        });
        let mut kept = cq.err_data.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as above.
        unsafe { put_error_data(&mut kept, error.err_data, &mut entry.err_data, &mut entry.err_data_size) };
        // SAFETY: as above.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const entry).cast::<u8>(), out.cast::<u8>(), cq.err_entry);
        }
        Ok(1)
    })
}

/// Returns an error's data in the program's buffer, if there is one, otherwise in memory that stays unchanged until the
/// next error is read.
///
/// # Safety
/// The C caller's promise: a size above zero is the size of the program's buffer.
pub(crate) unsafe fn put_error_data(
    kept: &mut Vec<u8>,
    data: Vec<u8>,
    out: &mut *mut c_void,
    size: &mut usize,
) {
    if *size > 0 && !out.is_null() {
        let len = data.len().min(*size);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), out.cast(), len) };
        *size = len;
    } else {
        *kept = data;
        *out = if kept.is_empty() { std::ptr::null_mut() } else { kept.as_mut_ptr().cast() };
        *size = kept.len();
    }
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { object::body(cq)? }.cq.signal())
}

unsafe extern "C" fn strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    ffi_guard::value(c"".as_ptr(), || {
        // SAFETY: the C caller's promise, here and below.
        let text = match unsafe { object::body(cq) } {
            Ok(cq) => {
                let failed = cq.failed.lock().unwrap_or_else(PoisonError::into_inner);
                // Only a text in the caller's buffer names the peer, because any other text is never freed.
                if let Some((number, text)) = &*failed
                    && *number == prov_errno
                    && !buf.is_null()
                    && len > 0
                {
                    // SAFETY: as above.
                    unsafe { memory::put_text(text, buf, len) };
                    return buf.cast_const();
                }
                cq.cq.error_text(prov_errno)
            }
            Err(error) => error.to_string(),
        };
        // SAFETY: as above.
        unsafe { memory::put_text(&text, buf, len) };
        names::interned(&text)
    })
}
