//! Fabrics: `fi_fabric`, and the objects that are opened in them.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use ofi_api::{Errno, Error, FabricAttr, Handle, Info, Result, Version};

use crate::abi::{
    Abi, class, fi_fabric_attr, fi_info, fi_ops, fi_ops_fabric, fid, fid_cntr, fid_cq, fid_eq, fid_fabric,
    fid_wait,
};
use crate::ffi_guard::{self, invalid};
use crate::info::opened::Open;
use crate::object::{self, Fid, Graveyard, Users};
use crate::state::FabricBody;
use crate::{domain, eq, info, nosys, pep, sets};

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_fabric {
    type Body = FabricBody;
    const CLASS: usize = class::FABRIC;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.ops) = (object::closed(), nosys::FABRIC.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, ..fi_ops::NOSYS };
static OPS: fi_ops_fabric = fi_ops_fabric {
    domain: domain::open,
    domain2: domain::open_with_flags,
    eq_open: eq::open,
    passive_ep: pep::open,
    wait_open: sets::open_wait,
    trywait,
    ..fi_ops_fabric::NOSYS
};

/// `fi_fabric`.
///
/// # Safety
/// The C caller's promise.
pub(crate) unsafe fn open(
    attr: *const fi_fabric_attr,
    abi: Abi,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> Result<()> {
    if out.is_null() {
        return Err(ffi_guard::null("the pointer for the fabric"));
    }
    // SAFETY: the caller's promise.
    let read = unsafe { info::read(attr, abi.fabric_attr()) };
    let attr = read.ok_or_else(|| ffi_guard::null("fi_fabric_attr"))?;
    // SAFETY: the caller's promise.
    let mut fabric_attr = unsafe { info::fabric_attr(&attr) };
    if abi == Abi(0) {
        // Programs before 1.5 do not state their version.
        fabric_attr.api_version = Version::new(1, 0);
    }
    // SAFETY: as above.
    unsafe { open_of(fabric_attr, None, out, context) }
}

/// Opens the fabric that the attributes describe. `provider` is this library's name for the provider, if the program
/// uses another name.
///
/// # Safety
/// The C caller's promise.
pub(crate) unsafe fn open_of(
    mut fabric_attr: FabricAttr,
    provider: Option<String>,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> Result<()> {
    if out.is_null() {
        return Err(ffi_guard::null("the pointer for the fabric"));
    }
    let api = match fabric_attr.api_version {
        // The attributes do not come from getinfo. Assume the first version that states itself: newer fields may be
        // missing.
        version if version == Version::default() => Version::new(1, 5),
        version => version.min(Version::API),
    };
    let given = fabric_attr.prov_name.clone();
    if let Some(provider) = provider {
        fabric_attr.prov_name = provider;
    }
    let names = (given, fabric_attr.prov_name.clone());
    ofi::log_from_env();
    let fabric = ofi::open_fabric(&Info { fabric_attr, ..Info::default() })?;
    tracing::info!(
        target: "ofi::core::fabric",
        "ofi {}, libfabric {}, opens a fabric of provider {}",
        env!("CARGO_PKG_VERSION"),
        Version::API,
        names.1,
    );
    let fid = fid_fabric {
        fid: object::header::<fid_fabric>(context, &FID_OPS),
        ops: OPS.table(),
        api_version: api.as_c(),
    };
    let told = Handle::of_fabric(&fabric);
    let body = FabricBody { fabric, api, names, users: Users::default(), told: Mutex::default() };
    let handle = object::open(fid, body);
    // SAFETY: just opened.
    let body = unsafe { object::body(handle)? };
    *body.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(Open::new(told, handle));
    // SAFETY: not null, and the caller's.
    unsafe { out.write(handle) };
    Ok(())
}

/// `fi_fabric2`: takes a whole info, and flags, none of which is defined yet.
///
/// # Safety
/// The C caller's promise.
pub(crate) unsafe fn open_info(
    info: *const fi_info,
    out: *mut *mut fid_fabric,
    flags: u64,
    context: *mut c_void,
) -> Result<()> {
    if flags != 0 {
        return Err(Error::wanted(
            Errno::EBADFLAGS,
            "the flags of fi_fabric2",
            "none",
            format!("{flags:#x}"),
            "leave them out",
        ));
    }
    // SAFETY: the caller's promise.
    let attr = unsafe { info.as_ref() }.map(|info| info.fabric_attr);
    // SAFETY: as above.
    unsafe { open(attr.unwrap_or(std::ptr::null_mut()), Abi::NEWEST, out, context) }
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::of_fid::<fid_fabric>(handle)? }.users.none("a fabric")?;
        // SAFETY: as above.
        unsafe { object::close::<fid_fabric>(handle) }.map(drop)
    })
}

/// `fi_trywait`: whether the program may block on the wait objects of all these objects.
unsafe extern "C" fn trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::body(fabric)? };
        let count = usize::try_from(count).map_err(|_| invalid("count", "0 or more", count.to_string()))?;
        if count > 0 && fids.is_null() {
            return Err(ffi_guard::null("the objects to wait for"));
        }
        for at in 0..count {
            // SAFETY: the C caller's promise: `count` objects.
            let out = unsafe { fids.add(at) };
            // SAFETY: as above.
            let handle = unsafe { out.read() };
            // SAFETY: as above.
            let Some(fid) = (unsafe { handle.as_ref() }) else {
                return Err(ffi_guard::null("an object to wait for"));
            };
            match fid.fclass {
                // SAFETY: the class says so.
                class::CQ => unsafe { object::of_fid::<fid_cq>(handle)? }.cq.trywait()?,
                // SAFETY: the class says so.
                class::CNTR => unsafe { object::of_fid::<fid_cntr>(handle)? }.counter.trywait()?,
                // SAFETY: the class says so.
                class::WAIT => unsafe { object::of_fid::<fid_wait>(handle)? }.set.trywait()?,
                // SAFETY: the class says so.
                class::EQ => unsafe { object::of_fid::<fid_eq>(handle)? }.eq.trywait()?,
                other => {
                    let found = format!("one of class {other}");
                    return Err(invalid("an object to wait for", "a queue or a counter", found));
                }
            }
        }
        Ok(())
    })
}
