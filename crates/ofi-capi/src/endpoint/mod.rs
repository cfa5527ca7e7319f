//! Endpoints: opening, binding, options, aliases. For data transfers see `msg.rs`, `tagged.rs` and `rma.rs`.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{BindFlags, Context, Counter, Endpoint, EpOption, Errno, Error, Info, OpFlags, Result};

use crate::abi::{
    class, command, fi_alias, fi_info, fi_ops, fi_ops_ep, fid, fid_av, fid_cntr, fid_cq, fid_domain, fid_ep,
    fid_eq, fid_stx,
};
use crate::ffi_guard::{self, invalid};
use crate::object::{self, Fid, Graveyard, Hold, Users};
use crate::state::{Defaults, EpBody};
use crate::{atomic, cm, collective, control, directory, info, msg, nosys, pep, profile, rma, state, tagged};

pub(crate) mod contexts;

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_ep {
    type Body = EpBody;
    const CLASS: usize = class::EP;
    const ALIKE: &'static [usize] = &[class::SEP, class::TX_CTX, class::RX_CTX, class::SRX_CTX];

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        *self = Self {
            fid: object::closed(),
            ops: nosys::EP.table(),
            cm: nosys::CM.table(),
            msg: nosys::MSG.table(),
            rma: nosys::RMA.table(),
            tagged: nosys::TAGGED.table(),
            atomic: nosys::ATOMIC.table(),
            collective: nosys::COLLECTIVE.table(),
        };
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, bind, control, ops_open: profile::open_ops, ..fi_ops::NOSYS };
static OPS: fi_ops_ep = fi_ops_ep {
    cancel,
    getopt,
    setopt,
    tx_ctx: contexts::transmit_context,
    rx_ctx: contexts::receive_context,
    ..fi_ops_ep::NOSYS
};

/// `FI_OPT_ENDPOINT`, the only level.
const LEVEL: c_int = 0;

/// Creates a handle of `class`, which is one of the classes of `struct fid_ep`.
pub(crate) fn make(context: *mut c_void, class: usize, body: EpBody) -> *mut fid_ep {
    let fid = fid_ep {
        fid: fid { fclass: class, ..object::header::<fid_ep>(context, &FID_OPS) },
        ops: OPS.table(),
        cm: cm::OPS.table(),
        msg: msg::OPS.table(),
        rma: rma::OPS.table(),
        tagged: tagged::OPS.table(),
        atomic: atomic::OPS.table(),
        collective: collective::OPS.table(),
    };
    object::open(fid, body)
}

/// Creates the handle of an endpoint that was opened with `info`.
pub(crate) fn wrap(
    endpoint: Arc<dyn Endpoint>,
    info: &Info,
    domain: Hold,
    context: *mut c_void,
) -> *mut fid_ep {
    let number = endpoint.fid();
    let op_flags = (info.tx_attr.op_flags, info.rx_attr.op_flags);
    let mut body = EpBody::new(endpoint, info.addr_format, op_flags, domain);
    body.dest_addr.clone_from(&info.dest_addr);
    let handle = make(context, class::EP, body);
    let entry = directory::enter(number, handle);
    // SAFETY: just opened.
    if let Ok(body) = unsafe { object::body(handle) } {
        *body.entry.lock().unwrap_or_else(PoisonError::into_inner) = Some(entry);
    }
    handle
}

/// `fi_endpoint`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { open_endpoint(domain, info, out, context) })
}

/// `fi_endpoint2`.
pub(crate) unsafe extern "C" fn open_with_flags(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        ffi_guard::no_flags("fi_endpoint2", flags)?;
        // SAFETY: the C caller's promise.
        unsafe { open_endpoint(domain, info, out, context) }
    })
}

unsafe fn open_endpoint(
    domain: *mut fid_domain,
    info: *const fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: the C caller's promise, here and below.
    let domain = unsafe { state::domain(domain)? };
    if out.is_null() {
        return Err(ffi_guard::null("the pointer for the endpoint"));
    }
    // SAFETY: as above.
    let mut rust = unsafe { info::from_c(info, domain.abi)? };
    // SAFETY: as above; `from_c` has found it readable.
    let handle = unsafe { (*info).handle };
    // SAFETY: as above.
    let (request, address) = unsafe { pep::taken_over(handle)? };
    rust.handle = request;
    if address.is_some() {
        rust.src_addr = address;
    }
    let info = rust;
    let endpoint = domain.domain.open_endpoint(&info)?;
    let handle = wrap(endpoint, &info, domain.users.hold(), context);
    // SAFETY: not null, and the caller's.
    unsafe { out.write(handle) };
    Ok(())
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::of_fid::<fid_ep>(handle)? }
            .users
            .none("an endpoint that has aliases or contexts, or is bound")?;
        // SAFETY: as above.
        unsafe { object::close::<fid_ep>(handle) }.map(drop)
    })
}

unsafe extern "C" fn bind(handle: *mut fid, other: *mut fid, flags: u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::of_fid::<fid_ep>(handle)? };
        // SAFETY: as above.
        let Some(fid) = (unsafe { other.as_ref() }) else {
            return Err(ffi_guard::null("the object to bind"));
        };
        let hold = match fid.fclass {
            class::CQ => {
                // SAFETY: the class says so.
                let cq = unsafe { object::of_fid::<fid_cq>(other)? };
                ep.endpoint.bind_cq(&cq.cq, BindFlags::from_bits_retain(flags))?;
                cq.users.hold()
            }
            class::AV => {
                // SAFETY: the class says so.
                let av = unsafe { object::of_fid::<fid_av>(other)? };
                ep.endpoint.bind_av(&av.av)?;
                av.users.hold()
            }
            class::CNTR => {
                // SAFETY: the class says so.
                let cntr = unsafe { object::of_fid::<fid_cntr>(other)? };
                bind_counter(&ep.endpoint, &cntr.counter, BindFlags::from_bits_retain(flags))?;
                cntr.users.hold()
            }
            class::EQ => {
                // SAFETY: the class says so.
                let eq = unsafe { object::of_fid::<fid_eq>(other)? };
                ep.endpoint.bind_eq(&eq.eq)?;
                eq.users.hold()
            }
            class::STX_CTX => {
                // SAFETY: the class says so.
                let stx = unsafe { object::of_fid::<fid_stx>(other)? };
                ep.endpoint.bind_shared_transmit(&stx.context)?;
                stx.users.hold()
            }
            class::SRX_CTX => {
                // SAFETY: the class says so.
                let srx = unsafe { object::of_fid::<fid_ep>(other)? };
                ep.endpoint.bind_shared_receive(&srx.endpoint)?;
                srx.users.hold()
            }
            _ => return Err(Error::new(Errno::ENOSYS)),
        };
        ep.holds.lock().unwrap_or_else(PoisonError::into_inner).push(hold);
        Ok(())
    })
}

/// Binds a counter. Only endpoints with `FI_RMA_EVENT` count peers' accesses (fi_endpoint(3)). Other endpoints ignore
/// those flags if there are supported ones too, as libfabric's own providers do, because programs bind one counter to
/// all events of a side.
fn bind_counter(endpoint: &Arc<dyn Endpoint>, counter: &Arc<dyn Counter>, flags: BindFlags) -> Result<()> {
    let rest = flags - (BindFlags::REMOTE_READ | BindFlags::REMOTE_WRITE);
    match endpoint.bind_counter(counter, flags) {
        Err(error) if error.errno() == Errno::EOPNOTSUPP && rest != flags && !rest.is_empty() => {
            endpoint.bind_counter(counter, rest)
        }
        other => other,
    }
}

unsafe extern "C" fn control(handle: *mut fid, number: c_int, arg: *mut c_void) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { object::of_fid::<fid_ep>(handle)? };
        match number {
            command::ENABLE => ep.endpoint.enable(),
            // SAFETY: the C caller's promise: each command has its argument.
            command::ALIAS => unsafe { alias(handle, ep, arg.cast()) },
            // SAFETY: as above.
            command::GETOPSFLAG => unsafe { get_op_flags(ep, arg.cast()) },
            // SAFETY: as above.
            command::SETOPSFLAG => unsafe { set_op_flags(handle, arg.cast()) },
            // SAFETY: as above.
            _ => Err(unsafe { control::unsupported(number, arg) }),
        }
    })
}

/// The side that the flags select, `FI_TRANSMIT` or `FI_RECV` but not both, and the remaining flags.
fn side(flags: OpFlags) -> Result<(bool, OpFlags)> {
    let sides = OpFlags::TRANSMIT | OpFlags::RECV;
    ffi_guard::only_flags("operations", flags.bits(), OpFlags::all().bits())?;
    match flags & sides {
        OpFlags::TRANSMIT => Ok((true, flags - sides)),
        OpFlags::RECV => Ok((false, flags - sides)),
        _ => Err(invalid("the flags", "FI_TRANSMIT or FI_RECV, one of them", flags.to_string())),
    }
}

unsafe fn get_op_flags(ep: &EpBody, arg: *mut u64) -> Result<()> {
    // SAFETY: the C caller's promise.
    let Some(flags) = (unsafe { arg.as_mut() }) else { return Err(ffi_guard::null("the flags")) };
    let (transmit, _) = side(OpFlags::from_bits_retain(*flags))?;
    *flags = if transmit { ep.op_flags.0 } else { ep.op_flags.1 }.bits();
    Ok(())
}

/// The application serialises control calls with all others (fi_endpoint(3)), so the state may change here.
unsafe fn set_op_flags(handle: *mut fid, arg: *const u64) -> Result<()> {
    // SAFETY: the C caller's promise.
    let Some(flags) = (unsafe { arg.as_ref() }) else { return Err(ffi_guard::null("the flags")) };
    let (transmit, flags) = side(OpFlags::from_bits_retain(*flags))?;
    // SAFETY: the C caller's promise: no other call on this endpoint runs now.
    let ep = unsafe { object::body_mut::<fid_ep>(handle)? };
    if transmit {
        (ep.tx, ep.op_flags.0) = (Defaults::of(flags), flags);
    } else {
        (ep.rx, ep.op_flags.1) = (Defaults::of(flags), flags);
    }
    Ok(())
}

unsafe fn alias(handle: *mut fid, ep: &EpBody, arg: *const fi_alias) -> Result<()> {
    // SAFETY: the C caller's promise, here and below.
    let Some(alias) = (unsafe { arg.as_ref() }) else { return Err(ffi_guard::null("struct fi_alias")) };
    if alias.fid.is_null() {
        return Err(ffi_guard::null("the pointer for the alias"));
    }
    let (transmit, flags) = side(OpFlags::from_bits_retain(alias.flags))?;
    // SAFETY: as above.
    let context = unsafe { (*handle).context };
    let other = Defaults::of(flags);
    // SAFETY: as above.
    let class = unsafe { (*handle).fclass };
    let copy = make(
        context,
        class,
        EpBody {
            endpoint: Arc::clone(&ep.endpoint),
            tx: if transmit { other } else { ep.tx },
            rx: if transmit { ep.rx } else { other },
            addr_format: ep.addr_format,
            abi: ep.abi,
            dest_addr: ep.dest_addr.clone(),
            groups: Arc::clone(&ep.groups),
            profiles: ep.profiles.of_alias(),
            entry: Mutex::default(),
            op_flags: if transmit { (flags, ep.op_flags.1) } else { (ep.op_flags.0, flags) },
            users: Users::default(),
            holds: Mutex::new(vec![ep.users.hold()]),
        },
    );
    // SAFETY: as above.
    unsafe { alias.fid.write(copy.cast()) };
    Ok(())
}

unsafe extern "C" fn cancel(handle: *mut fid, context: *mut c_void) -> isize {
    ffi_guard::transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { object::of_fid::<fid_ep>(handle)? };
        match ep.endpoint.cancel(Context(context.expose_provenance())) {
            // C's providers always return 0, and programs rely on that.
            Err(error) if error.errno() == Errno::ENOENT => Ok(()),
            other => other,
        }
    })
}

/// The option with C's number, at the only supported level.
fn option(level: c_int, name: c_int) -> Result<EpOption> {
    let found = EpOption::from_c(name);
    found.filter(|_| level == LEVEL).ok_or_else(|| {
        Error::wanted(
            Errno::ENOPROTOOPT,
            "an endpoint's option",
            "one that fi_endpoint(3) has and the provider too",
            format!("level {level}, option {name}"),
            "leave it out",
        )
    })
}

unsafe extern "C" fn getopt(
    handle: *mut fid,
    level: c_int,
    name: c_int,
    out: *mut c_void,
    len: *mut usize,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::of_fid::<fid_ep>(handle)? };
        let option = option(level, name)?;
        let value = ep.endpoint.option(option)?;
        // The value is little-endian, so its first bytes are the option in C's type, which is no longer.
        // SAFETY: as above.
        unsafe { crate::memory::put_sized(&value.to_le_bytes()[..option.size()], out, len) }
    })
}

unsafe extern "C" fn setopt(
    handle: *mut fid,
    level: c_int,
    name: c_int,
    out: *const c_void,
    len: usize,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::of_fid::<fid_ep>(handle)? };
        let option = option(level, name)?;
        if out.is_null() || len != option.size() {
            // An option that cannot be set is refused before its value is checked.
            return match ep.endpoint.option(option).and_then(|value| ep.endpoint.set_option(option, value)) {
                Err(error) if error.errno() == Errno::ENOPROTOOPT => Err(error),
                _ => Err(wrong_length(option, out.is_null(), len)),
            };
        }
        let mut value = [0; size_of::<usize>()];
        // SAFETY: the caller's bytes; the option has that many, and no more than a `size_t`.
        unsafe { std::ptr::copy_nonoverlapping(out.cast(), value.as_mut_ptr(), len) };
        let value = usize::from_le_bytes(value);
        ep.endpoint.set_option(option, if option.is_bool() { (value != 0).into() } else { value })
    })
}

/// The error for an option value that is missing or has the wrong length.
#[cold]
fn wrong_length(option: EpOption, is_null: bool, len: usize) -> Error {
    let wanted = match option {
        EpOption::HmemP2p => "an int",
        option if option.is_bool() => "a bool",
        _ => "a size_t",
    };
    let found = if is_null { "a null pointer".into() } else { format!("{len} bytes") };
    invalid(&format!("the value of endpoint option {option:?}"), wanted, found)
}
