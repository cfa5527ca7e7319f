//! Profiles of endpoints (fi_profile(3)): an endpoint's statistics as variables that a C program lists and reads.
//!
//! `fi_open_ops` with the name `fi_profile_ops` answers the address of the profile's field `ops`, not the table: from that
//! C's `fi_profile_open` finds the profile.
//!
//! There are no events: nothing here calls a program back while a message is matched. Registering for one answers
//! `-FI_EINVAL`, as for every event that is not listed.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use ofi_api::{Endpoint, Errno, Error, Result, Statistic};

use crate::abi::{class, fi_ops, fi_profile_desc, fi_profile_ops, fid, fid_ep, fid_profile};
use crate::border::{self, invalid};
use crate::object::{self, Fid, Graveyard};
use crate::{domain, memory, names, nosys};

/// The name by which `fi_open_ops` knows the table.
const NAME: &str = "fi_profile_ops";
/// The one of libfabric's own variables that is known here, `FI_VAR_UNEXP_MSG_CNT`, by C's name, and the statistic that
/// has its value. What waits unexpected now has no listing (`FI_VAR_UNEXP_MSG_QUEUE`); connections and memory are not
/// counted by endpoint.
const UNEXPECTED: (u32, &str, &str) = (0, "pvar_unexp_msg_cnt", "rx_unexpected_now");
/// Where the numbers of our own variables begin: above libfabric's own, with bits for a provider as C's have.
const OWN: u32 = 0x0f1 << 16;
/// `fi_primitive_type`, and in it `FI_UINT64`.
const PRIMITIVE: (u32, u32) = (0, 7);

/// What an endpoint's profiles have of it. The endpoint waits here for one that is reading when it closes: when that returns, nobody
/// uses what was lent to it.
#[derive(Default)]
pub(crate) struct Profiles(Arc<Mutex<Option<Arc<dyn Endpoint>>>>);

impl Profiles {
    fn of(&self, endpoint: &Arc<dyn Endpoint>) -> Arc<Mutex<Option<Arc<dyn Endpoint>>>> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(endpoint));
        Arc::clone(&self.0)
    }
}

impl Drop for Profiles {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// What is behind a profile.
pub(crate) struct ProfileBody {
    /// C's providers close endpoints under their profiles, and programs leave profiles open. So this does not keep it.
    endpoint: Arc<Mutex<Option<Arc<dyn Endpoint>>>>,
    /// The values that are read between `fi_profile_start_reads` and `fi_profile_end_reads`.
    snapshot: Mutex<Option<Vec<Variable>>>,
}

impl ProfileBody {
    /// Reads from now on are of this moment, or again of theirs.
    fn freeze(&self, frozen: bool) -> Result<()> {
        let values = if frozen { Some(self.variables()?) } else { None };
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = values;
        Ok(())
    }

    /// The variables of this moment.
    fn variables(&self) -> Result<Vec<Variable>> {
        let endpoint = self.endpoint.lock().unwrap_or_else(PoisonError::into_inner);
        match endpoint.as_deref() {
            Some(endpoint) => Ok(variables(endpoint)),
            None => Err(invalid("a profile", "one of an open endpoint", "one of a closed endpoint")),
        }
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

/// A variable, and its value at some moment.
struct Variable {
    id: u32,
    name: &'static str,
    help: &'static str,
    value: u64,
}

/// All variables of an endpoint: libfabric's own, then its statistics. Transports under one endpoint may count the same
/// thing: then it is what they counted together.
fn variables(endpoint: &dyn Endpoint) -> Vec<Variable> {
    let mut all: Vec<Variable> = Vec::new();
    for Statistic { name, value, help } in endpoint.statistics() {
        let id = number(name);
        match all.iter_mut().find(|variable| variable.id == id) {
            Some(same) => same.value = same.value.wrapping_add(value),
            None => all.push(Variable { id, name, help, value }),
        }
    }
    let (id, name, statistic) = UNEXPECTED;
    if let Some(found) = all.iter().find(|variable| variable.name == statistic) {
        let help = "messages that wait for their receive";
        let common = Variable { id, name, help, value: found.value };
        all.insert(0, common);
    }
    all
}

/// The number of one of our own variables. One name has one number for as long as the process lives, for all endpoints.
fn number(name: &'static str) -> u32 {
    static NAMES: LazyLock<Mutex<Vec<&'static str>>> = LazyLock::new(Mutex::default);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let at = names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    OWN | at as u32
}

/// `fi_open_ops` on an endpoint.
pub(crate) unsafe extern "C" fn open_ops(
    handle: *mut fid,
    name: *const c_char,
    flags: u64,
    place: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    border::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::of_fid::<fid_ep>(handle)? };
        // SAFETY: as above.
        let name = unsafe { memory::text(name) }.ok_or_else(|| border::null("the name of the operations"))?;
        if name != NAME {
            return Err(Error::with(Errno::ENOSYS, format!("fi_open_ops of {name:?}: there is {NAME:?}")));
        }
        if place.is_null() {
            return Err(border::null("the place of the operations"));
        }
        domain::no_flags("fi_profile_open", flags)?;
        let body = ProfileBody { endpoint: ep.profiles.of(&ep.endpoint), snapshot: Mutex::default() };
        let fid = fid_profile { fid: object::header::<fid_profile>(context, &FID_OPS), ops: OPS.table() };
        let profile = object::open(fid, body);
        // SAFETY: just opened.
        let field = unsafe { &raw mut (*profile).ops };
        // SAFETY: not null, and the caller's.
        unsafe { place.write(field.cast()) };
        Ok(())
    })
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    border::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::close::<fid_profile>(handle) }.map(drop)
    })
}

/// `fi_profile_reset`: the profile is as it was when it was opened. The counters are the endpoint's and go on.
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
    // The calls answer nothing: a profile that is not one is for the log.
    border::done(|| {
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
    border::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let body = unsafe { object::body(profile)? };
        let all: Vec<fi_profile_desc> = body.variables()?.iter().map(description).collect();
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
    border::size(|| {
        // SAFETY: the C caller's promise, here and below.
        unsafe { object::body(profile)? };
        // SAFETY: as above.
        unsafe { put(&[], list, count) }
    })
}

fn description(variable: &Variable) -> fi_profile_desc {
    fi_profile_desc {
        id: variable.id,
        datatype_sel: PRIMITIVE.0,
        datatype: PRIMITIVE.1,
        flags: 0,
        size: size_of::<u64>(),
        name: names::interned(variable.name),
        desc: names::interned(variable.help),
    }
}

/// Stores as many as there is room for, tells how many there are, and answers how many were stored.
///
/// # Safety
/// The C caller's promise: `count` is null or may be read and written; `list` is null or has room for as many as it says.
unsafe fn put(all: &[fi_profile_desc], list: *mut fi_profile_desc, count: *mut usize) -> Result<usize> {
    if count.is_null() {
        return Err(border::null("the number of descriptions"));
    }
    // SAFETY: not null, and the caller's.
    let room = unsafe { count.replace(all.len()) };
    if list.is_null() {
        return Ok(0);
    }
    let stored = room.min(all.len());
    // SAFETY: the caller promises room for as many, and our list is not the caller's.
    unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), list, stored) };
    Ok(stored)
}

/// What `fi_profile_read_u64` calls: answers the size of the value.
unsafe extern "C" fn read_var(
    profile: *mut fid_profile,
    id: u32,
    place: *mut c_void,
    size: *mut usize,
) -> isize {
    border::size(|| {
        // SAFETY: the C caller's promise, here and below.
        let value = unsafe { object::body(profile)? }.read(id)?;
        if place.is_null() {
            return Err(border::null("the place of the value"));
        }
        // SAFETY: as above.
        unsafe { memory::put_sized(&value.to_ne_bytes(), place, size)? };
        Ok(size_of::<u64>())
    })
}

/// `fi_profile_register_callback`.
unsafe extern "C" fn reg_callback(
    profile: *mut fid_profile,
    event: u32,
    _callback: *mut c_void,
    _context: *mut c_void,
) -> c_int {
    border::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::body(profile)? };
        Err(invalid(
            "an event's id",
            "one that fi_profile_query_events lists: there is none",
            format!("{event:#x}"),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_and_shares_it_with_no_other() {
        let first = number("a name of this test");
        let other = number("another name of this test");
        assert_ne!(first, other);
        assert_eq!(number("a name of this test"), first);
        assert!(first >= OWN && other >= OWN && first != UNEXPECTED.0);
    }
}
