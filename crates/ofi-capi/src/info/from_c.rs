//! Conversion from C: reads what a program filled in, up to the size of its version's structures.

use std::ffi::c_void;

use ofi_api::{
    AddrFormat, Address, AvType, Caps, DomainAttr, EpAttr, EpType, Errno, Error, FabricAttr, Info, Mode,
    MrMode, MsgOrder, OpFlags, Progress, Protocol, ResourceMgmt, Result, RxAttr, Threading, TrafficClass,
    TxAttr, Version,
};

use super::{FidHandle, forget_any, opened};
use crate::abi::{Abi, fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr};
use crate::memory;

/// Maximum length of an address, and of an authorization key, in bytes.
const MAX_FIELD_LEN: usize = 4096;

/// The first `size` bytes of a structure of C, with the rest zero; `None` for null.
///
/// # Safety
/// The C caller's promise: null, or `size` readable bytes. Zeroes are a valid `T`.
pub(crate) unsafe fn read<T: Copy>(pointer: *const T, size: usize) -> Option<T> {
    if pointer.is_null() {
        return None;
    }
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let kept = size.min(size_of::<T>());
    // SAFETY: `kept` bytes can be read by the promise and fit into `value`.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), value.as_mut_ptr().cast(), kept) };
    // SAFETY: every byte is set, and the caller promises that any bytes are a valid `T`.
    Some(unsafe { value.assume_init() })
}

/// Reads a C info and everything that it points to. Drops a wildcard source address, which the library does not use.
///
/// # Errors
/// `FI_EINVAL` for a number that C's header does not define, and for impossible lengths.
///
/// # Safety
/// The C caller's promise: a valid `fi_info` of version `abi`.
pub(crate) unsafe fn from_c(info: *const fi_info, abi: Abi) -> Result<Info> {
    // SAFETY: the same promise.
    let mut rust = unsafe { as_it_is(info, abi)? };
    forget_any(&mut rust);
    Ok(rust)
}

/// As [`from_c`], but keeps the source address of the structure.
///
/// # Errors
/// As [`from_c`].
///
/// # Safety
/// As [`from_c`].
pub(crate) unsafe fn as_it_is(info: *const fi_info, abi: Abi) -> Result<Info> {
    // SAFETY: the caller's promise.
    let Some(c) = (unsafe { read(info, abi.info()) }) else { return Err(crate::ffi_guard::null("fi_info")) };
    let mut rust = Info {
        caps: Caps::from_bits_retain(c.caps),
        mode: Mode::from_bits_retain(c.mode),
        addr_format: AddrFormat::try_from(c.addr_format)?,
        handle: FidHandle::of(c.handle),
        ..Info::default()
    };
    // SAFETY: the caller's promise: address and length belong together.
    rust.src_addr = unsafe { address(rust.addr_format, c.src_addr, c.src_addrlen)? };
    // SAFETY: as above.
    rust.dest_addr = unsafe { address(rust.addr_format, c.dest_addr, c.dest_addrlen)? };
    // SAFETY: the caller's promise, also for everything that the info points to.
    if let Some(c) = unsafe { read(c.tx_attr, abi.tx_attr()) } {
        rust.tx_attr = tx_attr(&c);
    }
    // SAFETY: as above.
    if let Some(c) = unsafe { read(c.rx_attr, abi.rx_attr()) } {
        rust.rx_attr = rx_attr(&c);
    }
    // SAFETY: as above.
    if let Some(c) = unsafe { read(c.ep_attr, abi.ep_attr()) } {
        // SAFETY: as above.
        rust.ep_attr = unsafe { ep_attr(&c)? };
    }
    // SAFETY: as above.
    if let Some(c) = unsafe { read(c.domain_attr, abi.domain_attr()) } {
        // SAFETY: as above.
        rust.domain_attr = unsafe { domain_attr(&c)? };
    }
    // SAFETY: as above.
    if let Some(c) = unsafe { read(c.fabric_attr, abi.fabric_attr()) } {
        // SAFETY: as above.
        rust.fabric_attr = unsafe { fabric_attr(&c) };
    }
    Ok(rust)
}

/// Reads the transmit attributes.
pub(crate) fn tx_attr(c: &fi_tx_attr) -> TxAttr {
    TxAttr {
        caps: Caps::from_bits_retain(c.caps),
        mode: Mode::from_bits_retain(c.mode),
        op_flags: OpFlags::from_bits_retain(c.op_flags),
        msg_order: MsgOrder::from_bits_retain(c.msg_order),
        comp_order: c.comp_order,
        inject_size: c.inject_size,
        size: c.size,
        iov_limit: c.iov_limit,
        rma_iov_limit: c.rma_iov_limit,
        tclass: TrafficClass::from_c(c.tclass),
    }
}

/// Reads the receive attributes.
pub(crate) fn rx_attr(c: &fi_rx_attr) -> RxAttr {
    RxAttr {
        caps: Caps::from_bits_retain(c.caps),
        mode: Mode::from_bits_retain(c.mode),
        op_flags: OpFlags::from_bits_retain(c.op_flags),
        msg_order: MsgOrder::from_bits_retain(c.msg_order),
        comp_order: c.comp_order,
        total_buffered_recv: c.total_buffered_recv,
        size: c.size,
        iov_limit: c.iov_limit,
    }
}

/// Reads the endpoint attributes.
///
/// # Errors
/// As [`from_c`].
///
/// # Safety
/// The C caller's promise: the key has as many bytes as its size states.
pub(crate) unsafe fn ep_attr(c: &fi_ep_attr) -> Result<EpAttr> {
    Ok(EpAttr {
        ep_type: EpType::try_from(c.r#type)?,
        protocol: Protocol::from_c(c.protocol),
        protocol_version: c.protocol_version,
        max_msg_size: c.max_msg_size,
        msg_prefix_size: c.msg_prefix_size,
        max_order_raw_size: c.max_order_raw_size,
        max_order_war_size: c.max_order_war_size,
        max_order_waw_size: c.max_order_waw_size,
        mem_tag_format: c.mem_tag_format,
        tx_ctx_cnt: c.tx_ctx_cnt,
        rx_ctx_cnt: c.rx_ctx_cnt,
        auth_key_size: c.auth_key_size,
        // SAFETY: the caller's promise.
        auth_key: unsafe { key(c.auth_key, c.auth_key_size)? },
    })
}

/// Reads the domain attributes.
///
/// # Errors
/// As [`from_c`].
///
/// # Safety
/// The C caller's promise: strings end, and the key has as many bytes as its size states.
pub(crate) unsafe fn domain_attr(c: &fi_domain_attr) -> Result<DomainAttr> {
    Ok(DomainAttr {
        domain: opened::object(c.domain),
        // SAFETY: the caller's promise.
        name: unsafe { memory::text(c.name) }.unwrap_or_default(),
        threading: Threading::try_from(c.threading)?,
        control_progress: Progress::try_from(c.control_progress)?,
        progress: Progress::try_from(c.progress)?,
        resource_mgmt: ResourceMgmt::try_from(c.resource_mgmt)?,
        av_type: AvType::try_from(c.av_type)?,
        mr_mode: MrMode::from_bits_retain(c.mr_mode.cast_unsigned()),
        mr_key_size: c.mr_key_size,
        cq_data_size: c.cq_data_size,
        cq_cnt: c.cq_cnt,
        ep_cnt: c.ep_cnt,
        tx_ctx_cnt: c.tx_ctx_cnt,
        rx_ctx_cnt: c.rx_ctx_cnt,
        max_ep_tx_ctx: c.max_ep_tx_ctx,
        max_ep_rx_ctx: c.max_ep_rx_ctx,
        max_ep_stx_ctx: c.max_ep_stx_ctx,
        max_ep_srx_ctx: c.max_ep_srx_ctx,
        cntr_cnt: c.cntr_cnt,
        mr_iov_limit: c.mr_iov_limit,
        caps: Caps::from_bits_retain(c.caps),
        mode: Mode::from_bits_retain(c.mode),
        // SAFETY: the caller's promise.
        auth_key: unsafe { key(c.auth_key, c.auth_key_size)? },
        auth_key_size: c.auth_key_size,
        max_err_data: c.max_err_data,
        mr_cnt: c.mr_cnt,
        tclass: TrafficClass::from_c(c.tclass),
        max_ep_auth_key: c.max_ep_auth_key,
        max_group_id: c.max_group_id,
        max_cntr_value: c.max_cntr_value,
        max_err_cntr_value: c.max_err_cntr_value,
        max_xpu_ctx_cnt: c.max_xpu_ctx_cnt,
    })
}

/// Reads the fabric attributes.
///
/// # Safety
/// The C caller's promise: strings end.
pub(crate) unsafe fn fabric_attr(c: &fi_fabric_attr) -> FabricAttr {
    FabricAttr {
        fabric: opened::object(c.fabric),
        // SAFETY: the caller's promise.
        name: unsafe { memory::text(c.name) }.unwrap_or_default(),
        // SAFETY: the caller's promise.
        prov_name: unsafe { memory::text(c.prov_name) }.unwrap_or_default(),
        prov_version: Version::from_c(c.prov_version),
        api_version: Version::from_c(c.api_version),
    }
}

/// # Safety
/// As [`ep_attr`].
unsafe fn key(pointer: *const u8, size: usize) -> Result<Vec<u8>> {
    // `FI_AV_AUTH_KEY`, the largest number, means that keys are in address vectors.
    if pointer.is_null() || size == usize::MAX {
        return Ok(Vec::new());
    }
    check_length("auth_key_size", size)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { memory::bytes(pointer.cast(), size) }.to_vec())
}

/// Reads an address of C. If the format is unspecified, the bytes determine it, and a string needs no length.
///
/// # Safety
/// The C caller's promise: null, or `len` readable bytes; without a length, a string.
unsafe fn address(format: AddrFormat, pointer: *const c_void, len: usize) -> Result<Option<Address>> {
    if pointer.is_null() {
        return Ok(None);
    }
    check_length("the length of an address", len)?;
    if len == 0 {
        if format != AddrFormat::Str {
            return Ok(None);
        }
        // SAFETY: the caller's promise for strings.
        return Ok(unsafe { memory::text(pointer.cast()) }.map(|text| Address::from_text(&text)));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { memory::bytes(pointer, len) };
    let format = if format == AddrFormat::Unspec { format_of(bytes) } else { format };
    Ok(Some(match format {
        AddrFormat::Str => Address::from_text(&String::from_utf8_lossy(bytes)),
        format => Address::new(format, bytes),
    }))
}

/// Guesses the format of bytes.
fn format_of(bytes: &[u8]) -> AddrFormat {
    if bytes.starts_with(b"fi_") {
        return AddrFormat::Str;
    }
    let any = Address::new(AddrFormat::Sockaddr, bytes);
    match any.to_socket_addr() {
        Some(std::net::SocketAddr::V4(_)) => AddrFormat::SockaddrIn,
        Some(std::net::SocketAddr::V6(_)) => AddrFormat::SockaddrIn6,
        None => AddrFormat::Unspec,
    }
}

/// Checks the length of an address or a key.
///
/// # Errors
/// `FI_EINVAL` for an impossible length.
pub(super) fn check_length(subject: &str, len: usize) -> Result<()> {
    if len <= MAX_FIELD_LEN {
        return Ok(());
    }
    Err(Error::wanted(
        Errno::EINVAL,
        subject,
        format!("at most {MAX_FIELD_LEN} bytes"),
        len.to_string(),
        "check that the structure is of the version that was asked for",
    ))
}
