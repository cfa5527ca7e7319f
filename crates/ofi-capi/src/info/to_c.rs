//! Conversion to C: builds an info with C's newest structures, allocated with malloc. An older program sees their
//! beginning.

use ofi_api::{Address, BusAttr, DomainAttr, EpAttr, FabricAttr, Info, Nic, Result, RxAttr, TxAttr};

use super::copy::{NIC_OPS, release};
use super::{FidHandle, opened};
use crate::abi::{
    Abi, class, fi_bus_attr, fi_device_attr, fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info,
    fi_link_attr, fi_pci_attr, fi_rx_attr, fi_tx_attr, fid, fid_nic,
};
use crate::memory::{copy_of, string, zeroed};

/// Minimum memory of an address, in bytes.
const ROOM: usize = 128;

/// Converts all infos to a list of C infos.
///
/// # Errors
/// `FI_ENOMEM`; earlier allocations are freed.
pub(crate) fn to_c(infos: &[Info]) -> Result<*mut fi_info> {
    let mut list = std::ptr::null_mut();
    for info in infos.iter().rev() {
        let made = zeroed::<fi_info>().and_then(|out| {
            // SAFETY: `zeroed` returned memory for an info, and zeroes are a valid info.
            let c = unsafe { &mut *out };
            c.next = list;
            list = out;
            fill(c, info)
        });
        if let Err(error) = made {
            // SAFETY: the list is this function's own.
            unsafe { release(list, Abi::NEWEST) };
            return Err(error);
        }
    }
    Ok(list)
}

/// Moves `value` into memory from malloc, and points `out` to it.
fn put<T>(out: &mut *mut T, value: T) -> Result<()> {
    *out = zeroed()?;
    // SAFETY: just allocated for a `T`.
    unsafe { out.write(value) };
    Ok(())
}

fn fill(c: &mut fi_info, info: &Info) -> Result<()> {
    (c.caps, c.mode) = (info.caps.bits(), info.mode.bits());
    c.addr_format = info.addr_format.as_c();
    c.handle = FidHandle::pointer(info.handle.as_ref());
    (c.src_addr, c.src_addrlen) = address(info.src_addr.as_ref())?;
    (c.dest_addr, c.dest_addrlen) = address(info.dest_addr.as_ref())?;
    put(&mut c.tx_attr, tx_attr(&info.tx_attr))?;
    put(&mut c.rx_attr, rx_attr(&info.rx_attr))?;
    // Link each attribute into the info before filling it, so that a failure frees everything.
    c.ep_attr = zeroed()?;
    // SAFETY: just allocated, and zeroes are a valid value.
    ep_attr(unsafe { &mut *c.ep_attr }, &info.ep_attr)?;
    c.domain_attr = zeroed()?;
    // SAFETY: as above.
    domain_attr(unsafe { &mut *c.domain_attr }, &info.domain_attr)?;
    c.fabric_attr = zeroed()?;
    // SAFETY: as above.
    fabric_attr(unsafe { &mut *c.fabric_attr }, &info.fabric_attr)?;
    if let Some(device) = &info.nic {
        c.nic = zeroed()?;
        // SAFETY: as above.
        nic(unsafe { &mut *c.nic }, device)?;
    }
    Ok(())
}

fn address(address: Option<&Address>) -> Result<(*mut std::ffi::c_void, usize)> {
    let Some(address) = address else { return Ok((std::ptr::null_mut(), 0)) };
    // Some programs overwrite the address with a longer name of the same provider.
    let mut padded = address.bytes().to_vec();
    padded.resize(padded.len().max(ROOM), 0);
    Ok((copy_of(&padded)?, address.bytes().len()))
}

pub(crate) fn tx_attr(attr: &TxAttr) -> fi_tx_attr {
    fi_tx_attr {
        caps: attr.caps.bits(),
        mode: attr.mode.bits(),
        op_flags: attr.op_flags.bits(),
        msg_order: attr.msg_order.bits(),
        comp_order: attr.comp_order,
        inject_size: attr.inject_size,
        size: attr.size,
        iov_limit: attr.iov_limit,
        rma_iov_limit: attr.rma_iov_limit,
        tclass: attr.tclass.as_c(),
    }
}

pub(crate) fn rx_attr(attr: &RxAttr) -> fi_rx_attr {
    fi_rx_attr {
        caps: attr.caps.bits(),
        mode: attr.mode.bits(),
        op_flags: attr.op_flags.bits(),
        msg_order: attr.msg_order.bits(),
        comp_order: attr.comp_order,
        total_buffered_recv: attr.total_buffered_recv,
        size: attr.size,
        iov_limit: attr.iov_limit,
    }
}

fn ep_attr(c: &mut fi_ep_attr, attr: &EpAttr) -> Result<()> {
    c.r#type = attr.ep_type.as_c();
    c.protocol = attr.protocol.as_c();
    c.protocol_version = attr.protocol_version;
    c.max_msg_size = attr.max_msg_size;
    c.msg_prefix_size = attr.msg_prefix_size;
    c.max_order_raw_size = attr.max_order_raw_size;
    c.max_order_war_size = attr.max_order_war_size;
    c.max_order_waw_size = attr.max_order_waw_size;
    c.mem_tag_format = attr.mem_tag_format;
    (c.tx_ctx_cnt, c.rx_ctx_cnt) = (attr.tx_ctx_cnt, attr.rx_ctx_cnt);
    c.auth_key_size = attr.auth_key_size;
    c.auth_key = copy_of(&attr.auth_key)?.cast();
    Ok(())
}

fn domain_attr(c: &mut fi_domain_attr, attr: &DomainAttr) -> Result<()> {
    c.domain = opened::pointer(attr.domain.as_ref());
    c.name = string(&attr.name)?;
    c.threading = attr.threading.as_c();
    (c.control_progress, c.progress) = (attr.control_progress.as_c(), attr.progress.as_c());
    c.resource_mgmt = attr.resource_mgmt.as_c();
    c.av_type = attr.av_type.as_c();
    c.mr_mode = attr.mr_mode.bits().cast_signed();
    (c.mr_key_size, c.cq_data_size) = (attr.mr_key_size, attr.cq_data_size);
    (c.cq_cnt, c.ep_cnt) = (attr.cq_cnt, attr.ep_cnt);
    (c.tx_ctx_cnt, c.rx_ctx_cnt) = (attr.tx_ctx_cnt, attr.rx_ctx_cnt);
    (c.max_ep_tx_ctx, c.max_ep_rx_ctx) = (attr.max_ep_tx_ctx, attr.max_ep_rx_ctx);
    (c.max_ep_stx_ctx, c.max_ep_srx_ctx) = (attr.max_ep_stx_ctx, attr.max_ep_srx_ctx);
    (c.cntr_cnt, c.mr_iov_limit) = (attr.cntr_cnt, attr.mr_iov_limit);
    (c.caps, c.mode) = (attr.caps.bits(), attr.mode.bits());
    c.auth_key_size = attr.auth_key_size;
    c.auth_key = copy_of(&attr.auth_key)?.cast();
    (c.max_err_data, c.mr_cnt) = (attr.max_err_data, attr.mr_cnt);
    c.tclass = attr.tclass.as_c();
    (c.max_ep_auth_key, c.max_group_id) = (attr.max_ep_auth_key, attr.max_group_id);
    (c.max_cntr_value, c.max_err_cntr_value) = (attr.max_cntr_value, attr.max_err_cntr_value);
    c.max_xpu_ctx_cnt = attr.max_xpu_ctx_cnt;
    Ok(())
}

fn fabric_attr(c: &mut fi_fabric_attr, attr: &FabricAttr) -> Result<()> {
    c.fabric = opened::pointer(attr.fabric.as_ref());
    c.name = string(&attr.name)?;
    c.prov_name = string(&attr.prov_name)?;
    c.prov_version = attr.prov_version.as_c();
    c.api_version = attr.api_version.as_c();
    Ok(())
}

fn nic(c: &mut fid_nic, nic: &Nic) -> Result<()> {
    c.fid = fid { fclass: class::NIC, context: std::ptr::null_mut(), ops: NIC_OPS.table() };
    let device = zeroed::<fi_device_attr>()?;
    c.device_attr = device;
    let attr = &nic.device_attr;
    // SAFETY: just allocated, and zeroes are a valid value.
    let out = unsafe { &mut *device };
    out.name = string(&attr.name)?;
    out.device_id = string(&attr.device_id)?;
    out.device_version = string(&attr.device_version)?;
    out.vendor_id = string(&attr.vendor_id)?;
    out.driver = string(&attr.driver)?;
    out.firmware = string(&attr.firmware)?;
    let none = fi_pci_attr { domain_id: 0, bus_id: 0, device_id: 0, function_id: 0 };
    let bus = match nic.bus_attr {
        BusAttr::Pci(pci) => fi_pci_attr {
            domain_id: pci.domain_id,
            bus_id: pci.bus_id,
            device_id: pci.device_id,
            function_id: pci.function_id,
        },
        _ => none,
    };
    put(&mut c.bus_attr, fi_bus_attr { bus_type: nic.bus_attr.bus_type().as_c(), attr: bus })?;
    c.link_attr = zeroed::<fi_link_attr>()?;
    // SAFETY: just allocated, and zeroes are a valid value.
    let link = unsafe { &mut *c.link_attr };
    link.address = string(&nic.link_attr.address)?;
    (link.mtu, link.speed) = (nic.link_attr.mtu, nic.link_attr.speed);
    link.state = nic.link_attr.state.as_c();
    link.network_type = string(&nic.link_attr.network_type)?;
    Ok(())
}
