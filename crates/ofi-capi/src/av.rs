//! Address vectors.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{
    AddrFormat, Address, AddressVector, Addresses, AvAttr, Errno, FiAddr, Inserted, Insertion, Result,
};

use crate::abi::{class, fi_av_attr, fi_ops, fi_ops_av, fid, fid_av, fid_domain, fid_eq, flag};
use crate::av_list::AddressList;
use crate::directory::{self, Entry};
use crate::ffi_guard::{self, invalid, null};
use crate::memory;
use crate::object::{self, Fid, Graveyard, Hold, Users};
use crate::posting::vector;
use crate::{av_attr, av_keys, av_set, nosys, state};

/// The state of an address vector.
pub(crate) struct AvBody {
    pub av: Arc<dyn AddressVector>,
    format: AddrFormat,
    /// Whether insertions are reported to an event queue (`FI_EVENT`).
    reports: bool,
    pub users: Users,
    /// The domain, and the event queue once it is bound.
    holds: Mutex<Vec<Hold>>,
    /// The directory entry by which events find this object.
    entry: Mutex<Option<Entry>>,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_av {
    type Body = AvBody;
    const CLASS: usize = class::AV;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.ops) = (object::closed(), nosys::AV.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, bind, ..fi_ops::NOSYS };
static OPS: fi_ops_av = fi_ops_av {
    insert,
    insertsvc,
    insertsym,
    remove,
    lookup,
    straddr,
    set_user_id,
    insert_auth_key: av_keys::insert,
    lookup_auth_key: av_keys::lookup,
    av_set: av_set::open,
    ..fi_ops_av::NOSYS
};

/// `fi_av_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    out: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { state::domain(domain)? };
        if out.is_null() {
            return Err(null("the pointer for the address vector"));
        }
        // SAFETY: as above.
        let mut attr = unsafe { attr.as_mut() };
        let wanted = match attr {
            // SAFETY: as above.
            Some(ref mut attr) => unsafe { av_attr::read(attr)? },
            None => AvAttr::default(),
        };
        let av = domain.domain.open_av(&wanted)?;
        if let (Some(attr), Some(numbers)) = (attr, av.map_addr())
            && attr.map_addr.is_null()
        {
            attr.map_addr = numbers.as_ptr().cast();
        }
        let number = av.fid();
        let fid = fid_av { fid: object::header::<fid_av>(context, &FID_OPS), ops: OPS.table() };
        let body = AvBody {
            av,
            format: domain.info.addr_format,
            reports: wanted.events,
            users: Users::default(),
            holds: Mutex::new(vec![domain.users.hold()]),
            entry: Mutex::default(),
        };
        let handle = object::open(fid, body);
        // SAFETY: just opened.
        let body = unsafe { object::body(handle)? };
        *body.entry.lock().unwrap_or_else(PoisonError::into_inner) = Some(directory::enter(number, handle));
        // SAFETY: not null, and the caller's.
        unsafe { out.write(handle) };
        Ok(())
    })
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::of_fid::<fid_av>(handle)? }.users.none("an address vector")?;
        // SAFETY: as above.
        unsafe { object::close::<fid_av>(handle) }.map(drop)
    })
}

unsafe extern "C" fn bind(handle: *mut fid, other: *mut fid, flags: u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let av = unsafe { object::of_fid::<fid_av>(handle)? };
        ffi_guard::no_flags("fi_av_bind", flags)?;
        // SAFETY: as above.
        let eq = unsafe { object::of_fid::<fid_eq>(other)? };
        av.av.bind_eq(&eq.eq)?;
        av.holds.lock().unwrap_or_else(PoisonError::into_inner).push(eq.users.hold());
        Ok(())
    })
}

unsafe extern "C" fn set_user_id(av: *mut fid_av, number: u64, id: u64, flags: u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let av = unsafe { object::body(av)? };
        ffi_guard::no_flags("fi_av_set_user_id", flags)?;
        av.av.set_user_id(FiAddr(number), FiAddr(id))
    })
}

/// Writes the result for each address. Returns the number of inserted addresses.
///
/// # Safety
/// The C caller's promise: `fi_addrs` is null or has room for all results, and with `FI_SYNC_ERR` so has the context.
unsafe fn answer(inserted: &[Inserted], fi_addrs: *mut u64, flags: u64, context: *mut c_void) -> c_int {
    let mut good = 0;
    for (at, one) in inserted.iter().enumerate() {
        let (address, number) = match one {
            Ok(address) => (*address, 0),
            Err(error) => (FiAddr::NOTAVAIL, error.fi_errno()),
        };
        good += c_int::from(number == 0);
        if !fi_addrs.is_null() {
            // SAFETY: the caller's promise.
            let out = unsafe { fi_addrs.add(at) };
            // SAFETY: as above.
            unsafe { out.write(address.0) };
        }
        if flags & flag::SYNC_ERR != 0 && !context.is_null() {
            // SAFETY: the caller's promise.
            let out = unsafe { context.cast::<c_int>().add(at) };
            // SAFETY: as above.
            unsafe { out.write(number) };
        }
    }
    good
}

/// Inserts addresses in one call of the library, and returns the result in C's form.
///
/// # Safety
/// The C caller's promise, as for [`answer`]; with `FI_AV_USER_ID`, each of the `count` entries holds an id.
unsafe fn insert_whole(
    av: &AvBody,
    addresses: Addresses<'_>,
    (count, fi_addrs): (usize, *mut u64),
    flags: u64,
    context: *mut c_void,
) -> Result<c_int> {
    // SAFETY: the caller's promise.
    let ids = unsafe { av_attr::user_ids(flags, fi_addrs, count)? };
    // SAFETY: the caller's promise.
    let key = unsafe { av_keys::of_insertion(flags, fi_addrs, count)? };
    let inserted = av.av.insert_with(addresses, &av_attr::insertion(ids.as_ref(), key, context))?;
    if av.reports {
        // The events carry the context and report the number of insertions. SAFETY: the caller's promise.
        unsafe { answer(&inserted, fi_addrs, 0, std::ptr::null_mut()) };
        return Ok(0);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { answer(&inserted, fi_addrs, flags, context) })
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    fi_addrs: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    ffi_guard::int(|| {
        // SAFETY: the C caller's promise, here and below.
        let av = unsafe { object::body(av)? };
        // SAFETY: as above.
        unsafe { av_attr::user_ids(flags, fi_addrs, 0)? };
        if count == 0 && !av.reports {
            return Ok(0);
        }
        if addr.is_null() && count > 0 {
            return Err(null("the addresses"));
        }
        if count > c_int::MAX as usize {
            return Err(invalid("count", "an int", count.to_string()));
        }
        let mut list = AddressList { format: av.format, at: addr.cast() };
        if av.reports || flags & flag::AV_USER_ID != 0 {
            // SAFETY: the caller gave `count` addresses.
            let all: Vec<Address> = (0..count).map(|_| unsafe { list.next() }).collect::<Result<_>>()?;
            // SAFETY: the caller has room for `count` answers.
            return unsafe { insert_whole(av, Addresses::Given(&all), (count, fi_addrs), flags, context) };
        }
        // Insert in batches, so that a wrong count cannot allocate memory for all of it at once.
        // SAFETY: the caller's promise.
        let auth_key = unsafe { av_keys::of_insertion(flags, fi_addrs, count)? };
        let how = Insertion { auth_key, ..Insertion::default() };
        let (mut done, mut good) = (0, 0);
        while done < count {
            let part: Vec<Address> = (done..count.min(done + 1024))
                // SAFETY: the caller gave `count` addresses.
                .map(|_| unsafe { list.next() })
                .collect::<Result<_>>()?;
            let inserted = av.av.insert_with(Addresses::Given(&part), &how)?;
            let fi_addrs = if fi_addrs.is_null() { fi_addrs } else { fi_addrs.wrapping_add(done) };
            let errors = context.cast::<c_int>();
            let errors = if errors.is_null() { errors } else { errors.wrapping_add(done) };
            // SAFETY: the caller has room for `count` answers.
            good += unsafe { answer(&inserted, fi_addrs, flags, errors.cast()) };
            done += part.len();
        }
        Ok(good)
    })
}

unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addrs: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    ffi_guard::int(|| {
        // SAFETY: the C caller's promise, here and below.
        let av = unsafe { object::body(av)? };
        // SAFETY: as above.
        let node = unsafe { memory::text(node) }.ok_or_else(|| null("the node"))?;
        // SAFETY: as above.
        let service = unsafe { memory::text(service) }.unwrap_or_default();
        let addresses = Addresses::Service { node: &node, service: &service };
        // SAFETY: as above.
        unsafe { insert_whole(av, addresses, (1, fi_addrs), flags, context) }
    })
}

unsafe extern "C" fn insertsym(
    av: *mut fid_av,
    node: *const c_char,
    node_count: usize,
    service: *const c_char,
    service_count: usize,
    fi_addrs: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    ffi_guard::int(|| {
        // SAFETY: the C caller's promise, here and below.
        let av = unsafe { object::body(av)? };
        // SAFETY: as above.
        let node = unsafe { memory::text(node) }.ok_or_else(|| null("the node"))?;
        // SAFETY: as above.
        let service = unsafe { memory::text(service) }.ok_or_else(|| null("the service"))?;
        let addresses = Addresses::Range { node: &node, node_count, service: &service, service_count };
        let count = node_count.saturating_mul(service_count);
        // SAFETY: as above.
        unsafe { insert_whole(av, addresses, (count, fi_addrs), flags, context) }
    })
}

unsafe extern "C" fn remove(av: *mut fid_av, addresses: *mut u64, count: usize, flags: u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let av = unsafe { object::body(av)? };
        ffi_guard::no_flags("fi_av_remove", flags & !flag::AUTH_KEY)?;
        if flags & flag::AUTH_KEY != 0 {
            // SAFETY: as above.
            let keys = unsafe { vector::<FiAddr>("the keys", addresses.cast_const().cast(), count)? };
            return keys.iter().try_for_each(|&key| av.av.remove_auth_key(key));
        }
        let mut done = 0;
        let mut outcome = Ok(());
        while done < count {
            let part = (count - done).min(1024);
            // SAFETY: as above; `FiAddr` is laid out like `fi_addr_t`.
            let list = unsafe {
                vector::<FiAddr>("the addresses", addresses.wrapping_add(done).cast_const().cast(), part)?
            };
            outcome = av.av.remove(list).and(outcome);
            done += part;
        }
        outcome
    })
}

unsafe extern "C" fn lookup(av: *mut fid_av, number: u64, addr: *mut c_void, len: *mut usize) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let av = unsafe { object::body(av)? };
        let address = av.av.lookup(FiAddr(number))?;
        // SAFETY: as above.
        match unsafe { memory::put_sized(address.bytes(), addr, len) } {
            // A truncated address is not an error of this call: the length shows it (fi_av(3)).
            Err(error) if error.errno() == Errno::ETOOSMALL => Ok(()),
            other => other,
        }
    })
}

unsafe extern "C" fn straddr(
    av: *mut fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    ffi_guard::value(std::ptr::null(), || {
        // SAFETY: the C caller's promise, here and below.
        let Ok(av) = (unsafe { object::body(av) }) else { return std::ptr::null() };
        // SAFETY: as above.
        let Some(len) = (unsafe { len.as_mut() }) else { return std::ptr::null() };
        if addr.is_null() {
            return std::ptr::null();
        }
        let mut list = AddressList { format: av.format, at: addr.cast() };
        // SAFETY: as above: one address of the vector's format.
        let Ok(address) = (unsafe { list.next() }) else { return std::ptr::null() };
        let text = address.to_string();
        // SAFETY: as above.
        unsafe { memory::put_text(&text, buf, *len) };
        *len = text.len() + 1;
        buf
    })
}
