//! Domains, and the objects that are opened in them.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use ofi_api::{BindFlags, Errno, Error, Handle, Result};

use crate::abi::{
    class, command, fi_info, fi_mr_map_raw, fi_ops, fi_ops_domain, fid, fid_domain, fid_eq, fid_fabric,
};
use crate::ffi_guard;
use crate::info::opened::Open;
use crate::object::{self, Fid, Graveyard};
use crate::state::DomainBody;
use crate::{
    atomic, av, cntr, collective, control, cq, endpoint, info, mr, nosys, profile, sets, state, trigger,
};

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_domain {
    type Body = DomainBody;
    const CLASS: usize = class::DOMAIN;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.ops, self.mr) = (object::closed(), nosys::DOMAIN.table(), nosys::REGISTER.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, bind, control, ops_open: profile::open_domain_ops, ..fi_ops::NOSYS };
static OPS: fi_ops_domain = fi_ops_domain {
    av_open: av::open,
    cq_open: cq::open,
    cntr_open: cntr::open,
    poll_open: sets::open_poll,
    query_atomic: atomic::query,
    query_collective: collective::query,
    endpoint: endpoint::open,
    endpoint2: endpoint::open_with_flags,
    scalable_ep: endpoint::contexts::open_scalable,
    stx_ctx: endpoint::contexts::open_shared_transmit,
    srx_ctx: endpoint::contexts::open_shared_receive,
    ..fi_ops_domain::NOSYS
};

/// `fi_domain`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { open_domain(fabric, info, out, context) })
}

/// `fi_domain2`. Its only flag so far is `FI_PEER`, which is not supported here.
pub(crate) unsafe extern "C" fn open_with_flags(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        ffi_guard::no_flags("fi_domain2", flags)?;
        // SAFETY: the C caller's promise.
        unsafe { open_domain(fabric, info, out, context) }
    })
}

unsafe fn open_domain(
    fabric: *mut fid_fabric,
    info: *const fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: the C caller's promise, here and below.
    let fabric = unsafe { state::fabric(fabric)? };
    if out.is_null() {
        return Err(ffi_guard::null("the pointer for the domain"));
    }
    // SAFETY: as above.
    let mut info = unsafe { info::from_c(info, fabric.abi())? };
    fabric.translate(&mut info);
    // The fabric's version determines the program's structures: this info may be too short to contain a version.
    info.fabric_attr.api_version = fabric.api;
    // The program's threading promise is ignored: some widely used programs break it.
    let domain = fabric.fabric.open_domain(&info)?;
    let fid = fid_domain {
        fid: object::header::<fid_domain>(context, &FID_OPS),
        ops: OPS.table(),
        mr: mr::OPS.table(),
    };
    let told = Handle::of_domain(&domain);
    let body = DomainBody::new(domain, info, fabric.abi(), fabric.users.hold());
    let handle = object::open(fid, body);
    // SAFETY: just opened.
    let body = unsafe { object::body(handle)? };
    *body.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(Open::new(told, handle));
    // SAFETY: not null, and the caller's.
    unsafe { out.write(handle) };
    Ok(())
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::of_fid::<fid_domain>(handle)? }.users.none("a domain")?;
        // SAFETY: as above.
        unsafe { object::close::<fid_domain>(handle) }.map(drop)
    })
}

/// `fi_domain_bind`.
unsafe extern "C" fn bind(handle: *mut fid, other: *mut fid, flags: u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { object::of_fid::<fid_domain>(handle)? };
        // SAFETY: as above.
        match unsafe { other.as_ref() }.map(|fid| fid.fclass) {
            Some(class::EQ) => {
                // SAFETY: the class says so.
                let eq = unsafe { object::of_fid::<fid_eq>(other)? };
                domain.domain.bind_eq(&eq.eq, BindFlags::from_bits_retain(flags))?;
                *domain.eq.lock().unwrap_or_else(PoisonError::into_inner) = Some(eq.users.hold());
                Ok(())
            }
            Some(_) => Err(Error::new(Errno::ENOSYS)),
            None => Err(ffi_guard::null("the object to bind")),
        }
    })
}

unsafe extern "C" fn control(handle: *mut fid, number: c_int, arg: *mut c_void) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let domain = unsafe { object::of_fid::<fid_domain>(handle)? };
        match number {
            // SAFETY: the C caller's promise: each command has its argument.
            command::MAP_RAW_MR => unsafe { mr::map_raw(arg.cast::<fi_mr_map_raw>()) },
            // A raw key is the key itself, so there is nothing to undo.
            command::UNMAP_KEY => Ok(()),
            // SAFETY: as above.
            command::QUEUE_WORK => unsafe { trigger::queue(domain, arg.cast()) },
            // SAFETY: as above.
            command::CANCEL_WORK => unsafe { trigger::cancel(domain, arg.cast()) },
            // SAFETY: as above.
            command::FLUSH_WORK => unsafe { trigger::flush(domain, arg.cast()) },
            // SAFETY: as above.
            _ => Err(unsafe { control::unsupported(number, arg) }),
        }
    })
}
