//! Memory registration.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{
    AV_AUTH_KEY, BindFlags, Caps, Dmabuf, Errno, Error, HmemIface, MemoryRegion, MrAccess, MrAttr, Piece,
    Result,
};

use crate::abi::{
    class, command, fi_mr_attr, fi_mr_dmabuf, fi_mr_map_raw, fi_mr_modify, fi_mr_raw_attr, fi_ops, fi_ops_mr,
    fid, fid_cntr, fid_domain, fid_ep, fid_mr, flag,
};
use crate::av_keys;
use crate::control;
use crate::directory;
use crate::ffi_guard::{self, invalid, null};
use crate::info;
use crate::object::{self, Fid, Graveyard, Hold};
use crate::posting::{context, vector};

/// The state of a registration.
pub(crate) struct MrBody {
    region: Arc<dyn MemoryRegion>,
    /// Keeps the domain and the counters open.
    holds: Mutex<Vec<Hold>>,
    entry: Mutex<Option<directory::Entry>>,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_mr {
    type Body = MrBody;
    const CLASS: usize = class::MR;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.mem_desc, self.key) = (object::closed(), std::ptr::null_mut(), ofi_api::KEY_NOTAVAIL);
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, bind, control, ..fi_ops::NOSYS };
pub(crate) static OPS: fi_ops_mr = fi_ops_mr { size: size_of::<fi_ops_mr>(), reg, regv, regattr };

/// Bytes of a raw key, which is the key itself.
const RAW_KEY: usize = size_of::<u64>();

/// Registers memory.
///
/// # Safety
/// The C caller's promise; the memory stays mapped until the registration is closed (fi_mr(3)).
unsafe fn register(
    domain: *mut fid,
    pieces: &[Piece],
    attr: &fi_mr_attr,
    flags: u64,
    out: *mut *mut fid_mr,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let domain = unsafe { object::of_fid::<fid_domain>(domain)? };
    if out.is_null() {
        return Err(null("the pointer for the registration"));
    }
    crate::ffi_guard::only_flags("a registration", flags, flag::OF_REGISTRATION)?;
    let unknown = MrAccess::from_bits_retain(attr.access).difference(MrAccess::all());
    if !unknown.is_empty() {
        return Err(invalid("access", "FI_SEND, FI_RECV, FI_READ and the like", unknown.to_string()));
    }
    if attr.offset != 0 {
        return Err(invalid("offset", "0: it is reserved", attr.offset.to_string()));
    }
    let iface = HmemIface::try_from(attr.iface)?;
    let is_dmabuf = flags & flag::MR_DMABUF != 0;
    // Layers such as ;ofi_rxm may follow the provider's name.
    let by_device = domain.info.fabric_attr.prov_name.split(';').any(|name| BY_DEVICE.contains(&name));
    if is_dmabuf && !by_device {
        return Err(Error::wanted(
            Errno::ENOSYS,
            "the memory to register",
            "memory by its address; with provider efa or verbs also a dma-buf (FI_MR_DMABUF)",
            format!("{iface}, flags {flags:#x}, provider {}", domain.info.fabric_attr.prov_name),
            "register it by its address, or copy through memory of the host",
        ));
    }
    // SAFETY: the caller's promise.
    let described = if is_dmabuf { Some(unsafe { dmabuf(attr)? }) } else { None };
    let access = MrAccess::from_bits_retain(attr.access);
    let mut wanted = match &described {
        Some((dmabuf, piece)) => MrAttr::of_dmabuf(*dmabuf, piece, access),
        // SAFETY: the caller's promise.
        None => unsafe { MrAttr::new(pieces, access) },
    };
    (wanted.offset, wanted.requested_key) = (attr.offset, attr.requested_key);
    (wanted.iface, wanted.device) = (iface, attr.device);
    wanted.disabled = flags & flag::RMA_EVENT != 0;
    let (of_vector, peer);
    let directed = domain.info.caps.contains(Caps::DIRECTED_RECV);
    wanted.auth_key = match domain.info.domain_attr.auth_key_size {
        AV_AUTH_KEY => {
            // SAFETY: the caller's promise, as with all structures of C.
            (of_vector, peer) = unsafe { av_keys::of_registration(attr, flags, directed)? };
            wanted.peer = peer.as_ref();
            &of_vector
        }
        // SAFETY: as above.
        _ => unsafe { vector::<u8>("auth_key", attr.auth_key, attr.auth_key_size)? },
    };
    wanted.context = context(attr.context);
    let make = || {
        let region = domain.domain.register(&wanted)?;
        let fid = fid_mr {
            fid: object::header::<fid_mr>(attr.context, &FID_OPS),
            mem_desc: std::ptr::with_exposed_provenance_mut(region.desc().0),
            key: region.key(),
        };
        let number = region.fid();
        let holds = Mutex::new(vec![domain.users.hold()]);
        let handle = object::open(fid, MrBody { region, holds, entry: Mutex::default() });
        // The event must not be read before the handle is stored (fi_mr(3)).
        // SAFETY: not null, and the caller's.
        unsafe { out.write(handle) };
        Ok((number, handle))
    };
    let (entry, handle) = directory::enter_new(make)?;
    // SAFETY: just opened.
    let body = unsafe { object::body(handle)? };
    *body.entry.lock().unwrap_or_else(PoisonError::into_inner) = Some(entry);
    Ok(())
}

/// The providers whose devices register a dma-buf.
const BY_DEVICE: [&str; 2] = ["efa", "verbs"];

/// The dma-buf that the attributes name instead of `mr_iov`, with the address range by which accesses refer to it.
///
/// # Safety
/// The C caller's promise: `attr.dmabuf` points to `iov_count` structures, and their descriptors are open.
unsafe fn dmabuf<'a>(attr: &fi_mr_attr) -> Result<(Dmabuf<'a>, [Piece; 1])> {
    // SAFETY: the caller's promise; the pointer is the union's.
    let described = unsafe { vector::<fi_mr_dmabuf>("dmabuf", attr.mr_iov.cast(), attr.iov_count)? };
    let [fi_mr_dmabuf { fd, offset, len, base_addr }] = *described else {
        return Err(invalid("iov_count", "1 dma-buf", described.len().to_string()));
    };
    if fd < 0 {
        return Err(invalid("dmabuf.fd", "an open descriptor", fd.to_string()));
    }
    let start = usize::try_from(offset).ok().and_then(|offset| base_addr.addr().checked_add(offset));
    let start = start.ok_or_else(|| {
        invalid("dmabuf", "memory inside the address space", format!("{offset} bytes after {base_addr:p}"))
    })?;
    // SAFETY: the caller's promise.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok((Dmabuf { fd, offset }, [Piece::new(base_addr.with_addr(start).cast(), len)]))
}

/// The attributes of calls without a structure.
fn plain(access: u64, offset: u64, requested_key: u64, context: *mut c_void) -> fi_mr_attr {
    fi_mr_attr {
        mr_iov: std::ptr::null(),
        iov_count: 0,
        access,
        offset,
        requested_key,
        context,
        auth_key_size: 0,
        auth_key: std::ptr::null_mut(),
        iface: 0,
        device: 0,
        hmem_data: std::ptr::null_mut(),
        page_size: 0,
        base_mr: std::ptr::null(),
        sub_mr_cnt: 0,
    }
}

unsafe extern "C" fn reg(
    domain: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        let piece = [Piece::new(buf.cast_mut().cast(), len)];
        // SAFETY: the C caller's promise.
        unsafe { register(domain, &piece, &plain(access, offset, requested_key, context), flags, out) }
    })
}

unsafe extern "C" fn regv(
    domain: *mut fid,
    iov: *const libc::iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise; `Piece` is laid out like `iovec`.
        let pieces = unsafe { vector::<Piece>("the memory to register", iov.cast(), count)? };
        // SAFETY: as above.
        unsafe { register(domain, pieces, &plain(access, offset, requested_key, context), flags, out) }
    })
}

unsafe extern "C" fn regattr(
    domain: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    out: *mut *mut fid_mr,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let body = unsafe { object::of_fid::<fid_domain>(domain)? };
        // SAFETY: as above: as much of it as the program has.
        let attr = unsafe { info::read(attr, attr_size(body.info.fabric_attr.api_version)) };
        let attr = attr.ok_or_else(|| null("struct fi_mr_attr"))?;
        // With FI_MR_DMABUF the field has another meaning: see `dmabuf`.
        let count = if flags & flag::MR_DMABUF == 0 { attr.iov_count } else { 0 };
        // SAFETY: as above; `Piece` is laid out like `iovec`.
        let pieces = unsafe { vector::<Piece>("mr_iov", attr.mr_iov.cast(), count)? };
        // SAFETY: as above.
        unsafe { register(domain, pieces, &attr, flags, out) }
    })
}

/// Size of `fi_mr_attr` in a program of this version: keys were added in 1.5, devices in 1.10, the rest in 1.20
/// (fi_mr(3)).
fn attr_size(version: ofi_api::Version) -> usize {
    use ofi_api::Version;
    use std::mem::offset_of;
    match version {
        version if version >= Version::new(1, 20) => size_of::<fi_mr_attr>(),
        version if version >= Version::new(1, 10) => offset_of!(fi_mr_attr, hmem_data),
        version if version >= Version::new(1, 5) => offset_of!(fi_mr_attr, iface),
        _ => offset_of!(fi_mr_attr, auth_key_size),
    }
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let mr = unsafe { object::of_fid::<fid_mr>(handle)? };
        // Close the region before the handle: while the memory is in use, the handle must remain, so that the program
        // can close it again.
        match mr.region.close() {
            Err(error) if error.errno() == Errno::EBUSY => Err(error),
            closed => {
                // SAFETY: as above.
                drop(unsafe { object::close::<fid_mr>(handle)? });
                closed
            }
        }
    })
}

unsafe extern "C" fn bind(handle: *mut fid, other: *mut fid, flags: u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let mr = unsafe { object::of_fid::<fid_mr>(handle)? };
        // SAFETY: as above.
        match unsafe { other.as_ref() }.map(|fid| fid.fclass) {
            Some(class::EP) => {
                // SAFETY: the class says so.
                mr.region.bind_endpoint(&unsafe { object::of_fid::<fid_ep>(other)? }.endpoint)
            }
            Some(class::CNTR) => {
                // SAFETY: the class says so.
                let cntr = unsafe { object::of_fid::<fid_cntr>(other)? };
                mr.region.bind_counter(&cntr.counter, BindFlags::from_bits_retain(flags))?;
                mr.holds.lock().unwrap_or_else(PoisonError::into_inner).push(cntr.users.hold());
                Ok(())
            }
            Some(_) => Err(Error::new(Errno::ENOSYS)),
            None => Err(null("the object to bind")),
        }
    })
}

unsafe extern "C" fn control(handle: *mut fid, number: c_int, arg: *mut c_void) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let mr = unsafe { object::of_fid::<fid_mr>(handle)? };
        match number {
            // SAFETY: the C caller's promise: each command has its argument.
            command::GET_RAW_MR => unsafe { raw_attr(mr, arg.cast()) },
            command::ENABLE => {
                mr.region.enable()?;
                // SAFETY: nothing else uses a region while it is being enabled.
                unsafe { (*handle.cast::<fid_mr>()).key = mr.region.key() };
                Ok(())
            }
            // SAFETY: the C caller's promise.
            command::REFRESH => unsafe { refresh(mr, arg.cast()) },
            // SAFETY: as above.
            _ => Err(unsafe { control::unsupported(number, arg) }),
        }
    })
}

/// `fi_mr_refresh`: reads only the pieces of `fi_mr_modify`.
unsafe fn refresh(mr: &MrBody, arg: *const fi_mr_modify) -> Result<()> {
    // The part that all versions have.
    let known = std::mem::offset_of!(fi_mr_modify, attr) + std::mem::offset_of!(fi_mr_attr, access);
    // SAFETY: the C caller's promise.
    let modify = unsafe { info::read(arg, known) }.ok_or_else(|| null("struct fi_mr_modify"))?;
    crate::ffi_guard::no_flags("fi_mr_refresh", modify.flags)?;
    // SAFETY: as above; `Piece` is laid out like `iovec`.
    mr.region.refresh(unsafe { vector::<Piece>("iov", modify.attr.mr_iov.cast(), modify.attr.iov_count)? })
}

/// `fi_mr_raw_attr`: the key in a form that can be sent to peers.
unsafe fn raw_attr(mr: &MrBody, arg: *const fi_mr_raw_attr) -> Result<()> {
    // SAFETY: the C caller's promise, here and below.
    let Some(attr) = (unsafe { arg.as_ref() }) else { return Err(null("struct fi_mr_raw_attr")) };
    domain_flags(attr.flags)?;
    // SAFETY: as above.
    if let Some(base) = unsafe { attr.base_addr.as_mut() } {
        *base = mr.region.base();
    }
    let key = mr.region.key().to_ne_bytes();
    // SAFETY: as above.
    unsafe { crate::memory::put_sized(&key, attr.raw_key.cast(), attr.key_size) }
}

/// `fi_mr_map_raw`: converts a peer's raw key to a key for operations.
///
/// # Safety
/// The C caller's promise.
pub(crate) unsafe fn map_raw(arg: *const fi_mr_map_raw) -> Result<()> {
    // SAFETY: the caller's promise, here and below.
    let Some(map) = (unsafe { arg.as_ref() }) else { return Err(null("struct fi_mr_map_raw")) };
    domain_flags(map.flags)?;
    if map.raw_key.is_null() || map.key.is_null() || map.key_size != RAW_KEY {
        let found = format!("{} bytes", map.key_size);
        return Err(invalid("a raw key", &format!("{RAW_KEY} bytes, and a pointer for the key"), found));
    }
    // SAFETY: as above.
    let key = unsafe { map.raw_key.cast::<u64>().read_unaligned() };
    // SAFETY: as above.
    unsafe { map.key.write(key) };
    Ok(())
}

fn domain_flags(flags: u64) -> Result<()> {
    crate::ffi_guard::no_flags("a raw key", flags)
}
