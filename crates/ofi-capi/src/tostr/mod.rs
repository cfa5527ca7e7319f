//! `fi_tostr` and `fi_tostr_r`: values and structures of C as text.

#![allow(clippy::multiple_unsafe_ops_per_block)] // each kind of data is read under one promise

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt::Display;

use ofi_api::{
    AddrFormat, AvType, Caps, CompletionFlags, CqFormat, EpType, HmemIface, Info, Mode, MrMode, MsgOrder,
    OpFlags, Progress, Protocol, Result, Threading, Version, WaitCond, WaitObj,
};
use ofi_core::log::{Level, SUBSYSTEMS};

use crate::abi::{Abi, fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr, fid};
use crate::ffi_guard;
use crate::info::{self, read};
use crate::memory;

mod structures;

const ATOMIC_TYPES: &[&str] = &[
    "FI_INT8",
    "FI_UINT8",
    "FI_INT16",
    "FI_UINT16",
    "FI_INT32",
    "FI_UINT32",
    "FI_INT64",
    "FI_UINT64",
    "FI_FLOAT",
    "FI_DOUBLE",
    "FI_FLOAT_COMPLEX",
    "FI_DOUBLE_COMPLEX",
    "FI_LONG_DOUBLE",
    "FI_LONG_DOUBLE_COMPLEX",
    "FI_INT128",
    "FI_UINT128",
    "FI_FLOAT16",
    "FI_BFLOAT16",
    "FI_FLOAT8_E4M3",
    "FI_FLOAT8_E5M2",
];
const ATOMIC_OPS: &[&str] = &[
    "FI_MIN",
    "FI_MAX",
    "FI_SUM",
    "FI_PROD",
    "FI_LOR",
    "FI_LAND",
    "FI_BOR",
    "FI_BAND",
    "FI_LXOR",
    "FI_BXOR",
    "FI_ATOMIC_READ",
    "FI_ATOMIC_WRITE",
    "FI_CSWAP",
    "FI_CSWAP_NE",
    "FI_CSWAP_LE",
    "FI_CSWAP_LT",
    "FI_CSWAP_GE",
    "FI_CSWAP_GT",
    "FI_MSWAP",
    "FI_DIFF",
];
const EVENTS: &[&str] = &[
    "FI_NOTIFY",
    "FI_CONNREQ",
    "FI_CONNECTED",
    "FI_SHUTDOWN",
    "FI_MR_COMPLETE",
    "FI_AV_COMPLETE",
    "FI_JOIN_COMPLETE",
];
const OP_TYPES: &[&str] = &[
    "FI_OP_RECV",
    "FI_OP_SEND",
    "FI_OP_TRECV",
    "FI_OP_TSEND",
    "FI_OP_READ",
    "FI_OP_WRITE",
    "FI_OP_ATOMIC",
    "FI_OP_FETCH_ATOMIC",
    "FI_OP_COMPARE_ATOMIC",
    "FI_OP_CNTR_SET",
    "FI_OP_CNTR_ADD",
];
const COLLECTIVES: &[&str] = &[
    "FI_BARRIER",
    "FI_BROADCAST",
    "FI_ALLTOALL",
    "FI_ALLREDUCE",
    "FI_ALLGATHER",
    "FI_REDUCE_SCATTER",
    "FI_REDUCE",
    "FI_SCATTER",
    "FI_GATHER",
];
const CLASSES: &[&str] = &[
    "FI_CLASS_UNSPEC",
    "FI_CLASS_FABRIC",
    "FI_CLASS_DOMAIN",
    "FI_CLASS_EP",
    "FI_CLASS_SEP",
    "FI_CLASS_RX_CTX",
    "FI_CLASS_SRX_CTX",
    "FI_CLASS_TX_CTX",
    "FI_CLASS_STX_CTX",
    "FI_CLASS_PEP",
    "FI_CLASS_INTERFACE",
    "FI_CLASS_AV",
    "FI_CLASS_MR",
    "FI_CLASS_EQ",
    "FI_CLASS_CQ",
    "FI_CLASS_CNTR",
    "FI_CLASS_WAIT",
    "FI_CLASS_POLL",
    "FI_CLASS_CONNREQ",
    "FI_CLASS_MC",
    "FI_CLASS_NIC",
    "FI_CLASS_AV_SET",
    "FI_CLASS_MR_CACHE",
    "FI_CLASS_MEM_MONITOR",
    "FI_CLASS_PEER_CQ",
    "FI_CLASS_PEER_SRX",
    "FI_CLASS_LOG",
    "FI_CLASS_PEER_AV",
    "FI_CLASS_PEER_AV_SET",
    "FI_CLASS_PEER_CNTR",
    "FI_CLASS_PROFILE",
    "FI_CLASS_XPU_CTX",
];

/// The name of this number.
fn named(names: &[&str], number: u32) -> String {
    names.get(number as usize).map_or_else(|| "Unknown".into(), |name| (*name).to_string())
}

fn value<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| "Unknown".into(), |value| value.to_string())
}

/// The text of the data at a pointer, by `enum fi_type`.
///
/// # Safety
/// The C caller's promise: data of that type.
unsafe fn text(data: *const c_void, kind: u32) -> Result<String> {
    // Most types are one number.
    let number = || {
        // SAFETY: the caller's promise: these types are 32 bits.
        unsafe { data.cast::<u32>().read_unaligned() }
    };
    let flags = || {
        // SAFETY: the caller's promise: these types are 64 bits.
        unsafe { data.cast::<u64>().read_unaligned() }
    };
    Ok(match kind {
        0 => {
            let info = data.cast::<fi_info>();
            // SAFETY: the caller's promise, here and below.
            let abi = unsafe { abi_of(info) };
            // SAFETY: as above.
            without_newer(&unsafe { info::as_it_is(info, abi)? }.to_string(), abi)
        }
        1 => value(EpType::from_c(number())),
        2 => Caps::from_bits_retain(flags()).to_string(),
        3 => OpFlags::from_bits_retain(flags()).to_string(),
        4 => value(AddrFormat::from_c(number())),
        // SAFETY: the caller's promise, here and below.
        5..=9 => unsafe { attribute(data, kind)? },
        10 => value(Threading::from_c(number())),
        11 => value(Progress::from_c(number())),
        12 => Protocol::from_c(number()).to_string(),
        13 => MsgOrder::from_bits_retain(flags()).to_string(),
        14 => Mode::from_bits_retain(flags()).to_string(),
        15 => value(AvType::from_c(number())),
        16 => {
            if number() == 256 {
                "FI_VOID".into()
            } else {
                named(ATOMIC_TYPES, number())
            }
        }
        17 => {
            if number() == 256 {
                "FI_NOOP".into()
            } else {
                named(ATOMIC_OPS, number())
            }
        }
        18 => format!("{} (interface {})", env!("CARGO_PKG_VERSION"), Version::API),
        19 => named(EVENTS, number()),
        20 => CompletionFlags::from_bits_retain(flags()).to_string(),
        21 => MrMode::from_bits_retain(number()).to_string(),
        22 => named(OP_TYPES, number()),
        // SAFETY: as above.
        23 => named(CLASSES, unsafe { (*data.cast::<fid>()).fclass } as u32),
        24 => named(COLLECTIVES, number()),
        25 => value(HmemIface::from_c(number())),
        26 => value(CqFormat::from_c(number())),
        27 => Level::from_c(number()).map_or("Unknown", Level::name).into(),
        28 => named(&SUBSYSTEMS, number()),
        // SAFETY: as above.
        29..=33 => unsafe { structures::text(data, kind) },
        34 => value(WaitCond::from_c(number())),
        35 => value(WaitObj::from_c(number())),
        _ => "Unknown type".into(),
    })
}

/// The version assumed for structures that do not state theirs: the fields that all versions since 1.10 have.
const COMMON: Abi = Abi(3);

/// The version of an info's structures: that of the interface it was requested with, if it states that.
///
/// # Safety
/// As [`text`].
unsafe fn abi_of(info: *const fi_info) -> Abi {
    // SAFETY: the caller's promise, here and below: the field precedes those that only some versions have.
    let attr = unsafe { read(info, Abi(0).info()) }.map_or(std::ptr::null_mut(), |info| info.fabric_attr);
    // SAFETY: as above. Before 1.5 the last four bytes of the structure had no meaning.
    match unsafe { read(attr, Abi::NEWEST.fabric_attr()) }.map(|attr| Version::from_c(attr.api_version)) {
        Some(version) if version >= Version::new(1, 0) && version <= Version::API => Abi::of(version),
        _ => COMMON,
    }
}

/// Removes the lines of fields that the program's structures lack.
fn without_newer(text: &str, abi: Abi) -> String {
    const NEWER: [(&str, Abi); 5] = [
        ("max_ep_auth_key:", Abi(7)),
        ("max_group_id:", Abi(8)),
        ("max_cntr_value:", Abi(9)),
        ("max_err_cntr_value:", Abi(9)),
        ("max_xpu_ctx_cnt:", Abi(10)),
    ];
    let is_there =
        |line: &&str| !NEWER.iter().any(|(name, since)| line.trim_start().starts_with(name) && abi < *since);
    text.lines().filter(is_there).map(|line| format!("{line}\n")).collect()
}

/// Prints one of an info's attribute structures, by printing a whole info and keeping that part.
///
/// # Safety
/// As [`text`].
unsafe fn attribute(data: *const c_void, kind: u32) -> Result<String> {
    let abi = COMMON;
    let mut info = Info::default();
    // SAFETY: the caller's promise, here and below.
    let title = unsafe {
        match kind {
            5 => {
                info.tx_attr = read(data.cast::<fi_tx_attr>(), abi.tx_attr())
                    .map(|c| info::tx_attr(&c))
                    .unwrap_or_default();
                "fi_tx_attr"
            }
            6 => {
                info.rx_attr = read(data.cast::<fi_rx_attr>(), abi.rx_attr())
                    .map(|c| info::rx_attr(&c))
                    .unwrap_or_default();
                "fi_rx_attr"
            }
            7 => {
                let attr = read(data.cast::<fi_ep_attr>(), abi.ep_attr());
                let attr = attr.map(|c| fi_ep_attr { auth_key: std::ptr::null_mut(), ..c });
                info.ep_attr = attr.map_or_else(|| Ok(Default::default()), |c| info::ep_attr(&c))?;
                "fi_ep_attr"
            }
            8 => {
                // Programs before 1.5 have no key there.
                let attr = read(data.cast::<fi_domain_attr>(), abi.domain_attr());
                let attr = attr.map(|c| fi_domain_attr { auth_key: std::ptr::null_mut(), ..c });
                info.domain_attr = attr.map_or_else(|| Ok(Default::default()), |c| info::domain_attr(&c))?;
                "fi_domain_attr"
            }
            _ => {
                let attr = read(data.cast::<fi_fabric_attr>(), abi.fabric_attr());
                info.fabric_attr = attr.map(|c| info::fabric_attr(&c)).unwrap_or_default();
                "fi_fabric_attr"
            }
        }
    };
    let whole = info.to_string();
    let mut lines = whole.lines().skip_while(|line| line.trim() != format!("{title}:"));
    let mut kept: String = lines.next().map(|line| format!("{}\n", line.trim_start())).unwrap_or_default();
    for line in lines.take_while(|line| line.starts_with("        ")) {
        kept.push_str(&line[4..]);
        kept.push('\n');
    }
    Ok(without_newer(&kept, abi))
}

/// `fi_tostr_r`: into the caller's buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_tostr_r(
    buf: *mut c_char,
    len: usize,
    data: *const c_void,
    kind: c_int,
) -> *const c_char {
    ffi_guard::value(std::ptr::null(), || {
        if buf.is_null() || len == 0 || data.is_null() {
            return std::ptr::null();
        }
        // SAFETY: the C caller's promise, here and below.
        let text = unsafe { text(data, kind.cast_unsigned()) }.unwrap_or_else(|error| error.to_string());
        // SAFETY: as above.
        unsafe { memory::put_text(&text, buf, len) };
        buf.cast_const()
    })
}

/// `fi_tostr`: prints into memory that the thread's next call overwrites.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_tostr(data: *const c_void, kind: c_int) -> *const c_char {
    thread_local! {
        static LAST: RefCell<CString> = RefCell::default();
    }
    ffi_guard::value(c"".as_ptr(), || {
        if data.is_null() {
            return c"".as_ptr();
        }
        // SAFETY: the C caller's promise.
        let text = unsafe { text(data, kind.cast_unsigned()) }.unwrap_or_else(|error| error.to_string());
        let text = CString::new(text).unwrap_or_default();
        LAST.with(|last| {
            *last.borrow_mut() = text;
            last.borrow().as_ptr()
        })
    })
}
