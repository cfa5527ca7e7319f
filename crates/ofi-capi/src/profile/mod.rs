//! Profiles (fi_profile(3)): the statistics of an endpoint or a domain, as variables that a C program lists and reads,
//! and events of endpoints that it can register callbacks for.
//!
//! `fi_open_ops` with the name `fi_profile_ops` returns the address of the profile's field `ops`, not the table. C's
//! `fi_profile_open` derives the profile from that address.

mod events;
mod variables;

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{Domain, Endpoint, Errno, Error, Result};

use self::events::{Callbacks, Told};
use self::variables::Variable;
use crate::abi::{
    class, fi_ops, fi_profile_callback, fi_profile_desc, fi_profile_ops, fid, fid_domain, fid_ep, fid_profile,
};
use crate::ffi_guard::{self, invalid};
use crate::object::{self, Fid, Graveyard};
use crate::{memory, nosys};

/// The name of the table for `fi_open_ops`.
const NAME: &str = "fi_profile_ops";

/// The object of a profile.
enum Subject {
    /// An endpoint, and whether it receives messages and therefore has events.
    Endpoint(Arc<dyn Endpoint>, bool),
    Domain(Arc<dyn Domain>),
}

/// The object of a profile, until that object closes.
type SubjectSlot = Arc<Mutex<Option<Subject>>>;

/// The state that the profiles of a handle share. Closing the handle waits here for any profile that is reading, after
/// which no profile uses the object.
#[derive(Default)]
pub(crate) struct Profiles {
    out: SubjectSlot,
    told: Arc<Told>,
}

impl Profiles {
    fn of(&self, subject: Subject) -> SubjectSlot {
        *self.out.lock().unwrap_or_else(PoisonError::into_inner) = Some(subject);
        Arc::clone(&self.out)
    }

    /// The state for another handle of the same endpoint.
    pub(crate) fn of_alias(&self) -> Self {
        Self { out: Arc::default(), told: Arc::clone(&self.told) }
    }
}

impl Drop for Profiles {
    fn drop(&mut self) {
        *self.out.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The state of a profile.
pub(crate) struct ProfileBody {
    /// A profile does not keep its object open: C's providers close endpoints before their profiles, and some programs
    /// never close profiles.
    out: SubjectSlot,
    told: Arc<Told>,
    callbacks: Arc<Callbacks>,
    /// The values to read between `fi_profile_start_reads` and `fi_profile_end_reads`.
    snapshot: Mutex<Option<Vec<Variable>>>,
}

impl ProfileBody {
    /// Starts or ends reading values of one point in time.
    fn freeze(&self, frozen: bool) -> Result<()> {
        let values = if frozen { Some(self.variables()?) } else { None };
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = values;
        Ok(())
    }

    /// Passes the profile's object to `look`.
    ///
    /// # Errors
    /// `FI_EINVAL` after the object was closed.
    fn subject<R>(&self, look: impl FnOnce(&Subject) -> R) -> Result<R> {
        let subject = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let subject = subject.as_ref();
        subject
            .map(look)
            .ok_or_else(|| invalid("a profile", "one of an open object", "one of a closed object"))
    }

    /// The current variables.
    fn variables(&self) -> Result<Vec<Variable>> {
        self.subject(|subject| {
            Variable::all(match subject {
                Subject::Endpoint(endpoint, _) => endpoint.statistics(),
                Subject::Domain(domain) => domain.statistics(),
            })
        })
    }

    /// The available events.
    fn events(&self) -> Result<Vec<fi_profile_desc>> {
        self.subject(|subject| match subject {
            Subject::Endpoint(_, true) => events::descriptions(),
            Subject::Endpoint(_, false) | Subject::Domain(_) => Vec::new(),
        })
    }

    fn register(
        &self,
        profile: *mut fid_profile,
        event: u32,
        callback: fi_profile_callback,
        context: *mut c_void,
    ) -> Result<()> {
        if !self.subject(|subject| matches!(subject, Subject::Endpoint(_, true)))? {
            return Err(events::unlisted(event));
        }
        // Before locking the object: a callback holds the registrations' lock while it reads variables.
        self.callbacks.register(profile, event, callback, context)?;
        self.subject(|subject| match subject {
            Subject::Endpoint(endpoint, _) => self.told.add(&self.callbacks, endpoint.as_ref()),
            Subject::Domain(_) => Ok(()),
        })?
    }

    /// Removes the callbacks. When this returns, none is running.
    fn end(&self) {
        self.callbacks.end();
        let left = self.subject(|subject| match subject {
            Subject::Endpoint(endpoint, _) => self.told.remove(&self.callbacks, endpoint.as_ref()),
            Subject::Domain(_) => Ok(()),
        });
        drop(left); // a closed endpoint reports no events
    }

    fn read(&self, id: u32) -> Result<u64> {
        let snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        let now;
        let all = match snapshot.as_deref() {
            Some(frozen) => frozen,
            None => {
                now = self.variables()?;
                &now
            }
        };
        let found = all.iter().find(|variable| variable.id == id);
        let found = found.ok_or_else(|| {
            invalid("a variable's id", "one that fi_profile_query_vars lists", format!("{id:#x}"))
        })?;
        Ok(found.value)
    }
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_profile {
    type Body = ProfileBody;
    const CLASS: usize = class::PROFILE;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.ops) = (object::closed(), nosys::PROFILE.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, ..fi_ops::NOSYS };
static OPS: fi_profile_ops = fi_profile_ops {
    size: size_of::<fi_profile_ops>(),
    reset,
    query_vars,
    query_events,
    read_var,
    reg_callback,
    start_reads,
    end_reads,
};

/// `fi_open_ops` on an endpoint.
pub(crate) unsafe extern "C" fn open_ops(
    handle: *mut fid,
    name: *const c_char,
    flags: u64,
    out: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::of_fid::<fid_ep>(handle)? };
        // SAFETY: as above; it is an object.
        let receives = !matches!(unsafe { (*handle).fclass }, class::TX_CTX | class::SEP);
        let subject = || Subject::Endpoint(Arc::clone(&ep.endpoint), receives);
        // SAFETY: as above.
        unsafe { open(&ep.profiles, subject, (name, flags), out, context) }
    })
}

/// `fi_open_ops` on a domain.
pub(crate) unsafe extern "C" fn open_domain_ops(
    handle: *mut fid,
    name: *const c_char,
    flags: u64,
    out: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { object::of_fid::<fid_domain>(handle)? };
        let subject = || Subject::Domain(Arc::clone(&domain.domain));
        // SAFETY: as above.
        unsafe { open(&domain.profiles, subject, (name, flags), out, context) }
    })
}

/// Opens a profile.
///
/// # Errors
/// `FI_ENOSYS` for other operations; `FI_EINVAL` for null, `FI_EBADFLAGS`; `FI_EBUSY` in a callback.
///
/// # Safety
/// The C caller's promise: a text, and a valid pointer.
unsafe fn open(
    profiles: &Profiles,
    subject: impl FnOnce() -> Subject,
    (name, flags): (*const c_char, u64),
    out: *mut *mut c_void,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let name = unsafe { memory::text(name) }.ok_or_else(|| ffi_guard::null("the name of the operations"))?;
    if name != NAME {
        return Err(Error::with(Errno::ENOSYS, format!("fi_open_ops knows {NAME:?}, not {name:?}")));
    }
    if out.is_null() {
        return Err(ffi_guard::null("the pointer for the operations"));
    }
    ffi_guard::no_flags("fi_profile_open", flags)?;
    let body = ProfileBody {
        out: profiles.of(subject()),
        told: Arc::clone(&profiles.told),
        callbacks: Arc::default(),
        snapshot: Mutex::default(),
    };
    let fid = fid_profile { fid: object::header::<fid_profile>(context, &FID_OPS), ops: OPS.table() };
    let profile = object::open(fid, body);
    // SAFETY: just opened.
    let field = unsafe { &raw mut (*profile).ops };
    // SAFETY: not null, and the caller's.
    unsafe { out.write(field.cast()) };
    Ok(())
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        events::not_in_callback("fi_profile_close")?;
        // SAFETY: the C caller's promise, here and below.
        unsafe { object::of_fid::<fid_profile>(handle)? }.end();
        // SAFETY: as above.
        unsafe { object::close::<fid_profile>(handle) }.map(drop)
    })
}

/// `fi_profile_reset`: restores the state of the profile as after opening. The counters belong to the endpoint and are
/// not reset.
unsafe extern "C" fn reset(profile: *mut fid_profile, _flags: u64) {
    // SAFETY: the C caller's promise.
    unsafe { freeze(profile, false) };
}

/// `fi_profile_start_reads`.
unsafe extern "C" fn start_reads(profile: *mut fid_profile, _flags: u64) {
    // SAFETY: the C caller's promise.
    unsafe { freeze(profile, true) };
}

/// `fi_profile_end_reads`.
unsafe extern "C" fn end_reads(profile: *mut fid_profile, _flags: u64) {
    // SAFETY: the C caller's promise.
    unsafe { freeze(profile, false) };
}

/// # Safety
/// The C caller's promise.
unsafe fn freeze(profile: *mut fid_profile, frozen: bool) {
    // The calls return nothing: an invalid profile is only logged.
    ffi_guard::done(|| {
        // SAFETY: the same promise.
        unsafe { object::body(profile)? }.freeze(frozen)
    });
}

/// `fi_profile_query_vars`.
unsafe extern "C" fn query_vars(
    profile: *mut fid_profile,
    list: *mut fi_profile_desc,
    count: *mut usize,
) -> isize {
    ffi_guard::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let body = unsafe { object::body(profile)? };
        events::not_in_callback("fi_profile_query_vars")?;
        let all: Vec<fi_profile_desc> = body.variables()?.iter().map(Variable::description).collect();
        // SAFETY: as above.
        unsafe { put(&all, list, count) }
    })
}

/// `fi_profile_query_events`.
unsafe extern "C" fn query_events(
    profile: *mut fid_profile,
    list: *mut fi_profile_desc,
    count: *mut usize,
) -> isize {
    ffi_guard::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let body = unsafe { object::body(profile)? };
        events::not_in_callback("fi_profile_query_events")?;
        // SAFETY: as above.
        unsafe { put(&body.events()?, list, count) }
    })
}

/// Stores as many descriptions as there is room for, sets the total number, and returns the number stored.
///
/// # Safety
/// The C caller's promise: `count` is null or may be read and written; `list` is null or has room for `count`
/// descriptions.
unsafe fn put(all: &[fi_profile_desc], list: *mut fi_profile_desc, count: *mut usize) -> Result<usize> {
    if count.is_null() {
        return Err(ffi_guard::null("the number of descriptions"));
    }
    // SAFETY: not null, and the caller's.
    let room = unsafe { count.replace(all.len()) };
    if list.is_null() {
        return Ok(0);
    }
    let stored = room.min(all.len());
    // SAFETY: the caller promises room for them, and our list does not overlap the caller's.
    unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), list, stored) };
    Ok(stored)
}

/// The function behind `fi_profile_read_u64`: returns the size of the value.
unsafe extern "C" fn read_var(
    profile: *mut fid_profile,
    id: u32,
    out: *mut c_void,
    size: *mut usize,
) -> isize {
    ffi_guard::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let value = unsafe { object::body(profile)? }.read(id)?;
        if out.is_null() {
            return Err(ffi_guard::null("the pointer for the value"));
        }
        // SAFETY: as above.
        unsafe { memory::put_sized(&value.to_ne_bytes(), out, size)? };
        Ok(size_of::<u64>())
    })
}

/// `fi_profile_register_callback`. Null removes the callback.
unsafe extern "C" fn reg_callback(
    profile: *mut fid_profile,
    event: u32,
    callback: fi_profile_callback,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let body = unsafe { object::body(profile)? };
        events::not_in_callback("fi_profile_register_callback")?;
        body.register(profile, event, callback, context)
    })
}
