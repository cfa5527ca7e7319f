//! Structures that hold data.

use std::ffi::{c_char, c_int, c_void};

use super::layout::c_structs;
use super::ops::*;

type Ptr = *mut c_void;
/// Provider, level, subsystem and flags.
pub(crate) type LogEnabled = unsafe extern "C" fn(*const c_void, c_int, c_int, u64) -> c_int;
/// The same arguments, and the time from which the message may be logged again.
pub(crate) type LogReady = unsafe extern "C" fn(*const c_void, c_int, c_int, u64, *mut u64) -> c_int;
/// Provider, level, subsystem, function, line and text.
pub(crate) type Log = unsafe extern "C" fn(*const c_void, c_int, c_int, *const c_char, c_int, *const c_char);

c_structs! {
    /// The beginning of every object.
    struct fid { fclass: usize, context: Ptr, ops: *mut fi_ops, }
    struct fid_fabric { fid: fid, ops: *mut fi_ops_fabric, api_version: u32, }
    struct fid_domain { fid: fid, ops: *mut fi_ops_domain, mr: *mut fi_ops_mr, }
    struct fid_ep {
        fid: fid,
        ops: *mut fi_ops_ep,
        cm: *mut fi_ops_cm,
        msg: *mut fi_ops_msg,
        rma: *mut fi_ops_rma,
        tagged: *mut fi_ops_tagged,
        atomic: *mut fi_ops_atomic,
        collective: *mut fi_ops_collective,
    }
    struct fid_pep {
        fid: fid,
        ops: *mut fi_ops_ep,
        cm: *mut fi_ops_cm,
    }
    struct fid_stx {
        fid: fid,
        ops: *mut fi_ops_ep,
    }
    struct fid_wait {
        fid: fid,
        ops: *mut fi_ops_wait,
    }
    struct fid_poll {
        fid: fid,
        ops: *mut fi_ops_poll,
    }
    struct fid_cq { fid: fid, ops: *mut fi_ops_cq, }
    struct fid_cntr {
        fid: fid,
        ops: *mut fi_ops_cntr,
    }
    struct fid_eq { fid: fid, ops: *mut fi_ops_eq, }
    struct fid_av { fid: fid, ops: *mut fi_ops_av, }
    struct fid_mr { fid: fid, mem_desc: Ptr, key: u64, }
    struct fid_av_set { fid: fid, ops: *mut fi_ops_av_set, }
    struct fid_mc { fid: fid, fi_addr: u64, }
    /// A named value.
    struct fi_fid_var { name: c_int, val: Ptr, }
    struct fid_logging { fid: fid, ops: *mut fi_ops_log, }
    /// A program's own log functions, each of which may be null (`rdma/providers/fi_log.h`).
    struct fi_ops_log {
        size: usize,
        enabled: Option<LogEnabled>,
        ready: Option<LogReady>,
        log: Option<Log>,
    }
    struct fid_profile { fid: fid, ops: *mut fi_profile_ops, }
    struct fid_nic {
        fid: fid,
        device_attr: *mut fi_device_attr,
        bus_attr: *mut fi_bus_attr,
        link_attr: *mut fi_link_attr,
        prov_attr: Ptr,
    }

    /// A variable of a profile, or an event. `datatype` is an `enum fi_datatype` or an `enum fi_type`, depending on
    /// `datatype_sel`.
    struct fi_profile_desc {
        id: u32,
        datatype_sel: u32,
        datatype: u32,
        flags: u64,
        size: usize,
        name: *const c_char,
        desc: *const c_char,
    }

    struct fi_info {
        next: *mut fi_info,
        caps: u64,
        mode: u64,
        addr_format: u32,
        src_addrlen: usize,
        dest_addrlen: usize,
        src_addr: Ptr,
        dest_addr: Ptr,
        handle: *mut fid,
        tx_attr: *mut fi_tx_attr,
        rx_attr: *mut fi_rx_attr,
        ep_attr: *mut fi_ep_attr,
        domain_attr: *mut fi_domain_attr,
        fabric_attr: *mut fi_fabric_attr,
        nic: *mut fid_nic,
    }
    struct fi_tx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        inject_size: usize,
        size: usize,
        iov_limit: usize,
        rma_iov_limit: usize,
        tclass: u32,
    }
    struct fi_rx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        total_buffered_recv: usize,
        size: usize,
        iov_limit: usize,
    }
    struct fi_ep_attr {
        r#type: u32,
        protocol: u32,
        protocol_version: u32,
        max_msg_size: usize,
        msg_prefix_size: usize,
        max_order_raw_size: usize,
        max_order_war_size: usize,
        max_order_waw_size: usize,
        mem_tag_format: u64,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        auth_key_size: usize,
        auth_key: *mut u8,
        xpu_ctx: Ptr,
    }
    struct fi_domain_attr {
        domain: *mut fid_domain,
        name: *mut c_char,
        threading: u32,
        control_progress: u32,
        progress: u32,
        resource_mgmt: u32,
        av_type: u32,
        mr_mode: c_int,
        mr_key_size: usize,
        cq_data_size: usize,
        cq_cnt: usize,
        ep_cnt: usize,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        max_ep_tx_ctx: usize,
        max_ep_rx_ctx: usize,
        max_ep_stx_ctx: usize,
        max_ep_srx_ctx: usize,
        cntr_cnt: usize,
        mr_iov_limit: usize,
        caps: u64,
        mode: u64,
        auth_key: *mut u8,
        auth_key_size: usize,
        max_err_data: usize,
        mr_cnt: usize,
        tclass: u32,
        max_ep_auth_key: usize,
        max_group_id: u32,
        max_cntr_value: u64,
        max_err_cntr_value: u64,
        max_xpu_ctx_cnt: usize,
    }
    struct fi_fabric_attr {
        fabric: *mut fid_fabric,
        name: *mut c_char,
        prov_name: *mut c_char,
        prov_version: u32,
        api_version: u32,
    }
    struct fi_device_attr {
        name: *mut c_char,
        device_id: *mut c_char,
        device_version: *mut c_char,
        vendor_id: *mut c_char,
        driver: *mut c_char,
        firmware: *mut c_char,
    }
    struct fi_pci_attr { domain_id: u16, bus_id: u8, device_id: u8, function_id: u8, }
    struct fi_bus_attr { bus_type: u32, attr: fi_pci_attr, }
    struct fi_link_attr {
        address: *mut c_char,
        mtu: usize,
        speed: usize,
        state: u32,
        network_type: *mut c_char,
    }

    struct fi_av_attr {
        r#type: u32,
        rx_ctx_bits: c_int,
        count: usize,
        ep_per_node: usize,
        name: *const c_char,
        map_addr: Ptr,
        flags: u64,
    }
    struct fi_av_set_attr {
        count: usize,
        start_addr: u64,
        end_addr: u64,
        stride: u64,
        comm_key_size: usize,
        comm_key: *mut u8,
        flags: u64,
    }
    struct fi_collective_addr { set: *const fid_av_set, coll_addr: u64, }
    struct fi_collective_attr {
        op: u32,
        datatype: u32,
        datatype_attr: ofi_api::AtomicAttr,
        max_members: usize,
        mode: u64,
    }
    struct fi_cq_attr {
        size: usize,
        flags: u64,
        format: u32,
        wait_obj: u32,
        signaling_vector: c_int,
        wait_cond: u32,
        wait_set: *mut fid_wait,
    }
    struct fi_wait_attr {
        wait_obj: u32,
        flags: u64,
    }
    struct fi_poll_attr {
        flags: u64,
    }
    struct fi_wait_pollfd {
        change_index: u64,
        nfds: usize,
        fd: *mut libc::pollfd,
    }
    struct fi_cntr_attr {
        events: u32,
        wait_obj: u32,
        wait_set: *mut fid_wait,
        flags: u64,
    }
    struct fi_eq_attr { size: usize, flags: u64, wait_obj: u32, signaling_vector: c_int, wait_set: *mut fid_wait, }
    struct fi_mr_attr {
        mr_iov: *const libc::iovec,
        iov_count: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        context: Ptr,
        auth_key_size: usize,
        auth_key: *mut u8,
        iface: u32,
        device: u64,
        hmem_data: Ptr,
        page_size: usize,
        base_mr: *const fid_mr,
        sub_mr_cnt: usize,
    }
    struct fi_mr_dmabuf { fd: c_int, offset: u64, len: usize, base_addr: Ptr, }
    struct fi_mr_auth_key { av: *mut fid_av, src_addr: u64, }
    struct fi_mr_modify {
        flags: u64,
        attr: fi_mr_attr,
    }
    struct fi_mr_raw_attr { flags: u64, base_addr: *mut u64, raw_key: *mut u8, key_size: *mut usize, }
    struct fi_mr_map_raw { flags: u64, base_addr: u64, raw_key: *mut u8, key_size: usize, key: *mut u64, }
    struct fi_cq_err_entry {
        op_context: Ptr,
        flags: u64,
        len: usize,
        buf: Ptr,
        data: u64,
        tag: u64,
        olen: usize,
        err: c_int,
        prov_errno: c_int,
        err_data: Ptr,
        err_data_size: usize,
        src_addr: u64,
    }
    struct fi_eq_entry {
        fid: *mut fid,
        context: Ptr,
        data: u64,
    }
    struct fi_eq_err_entry {
        fid: *mut fid,
        context: Ptr,
        data: u64,
        err: c_int,
        prov_errno: c_int,
        err_data: Ptr,
        err_data_size: usize,
    }
    struct fi_alias { fid: *mut *mut fid, flags: u64, }
    struct fi_param { name: *const c_char, r#type: u32, help_string: *const c_char, value: *const c_char, }

    struct fi_msg {
        msg_iov: *const libc::iovec,
        desc: *mut Ptr,
        iov_count: usize,
        addr: u64,
        context: Ptr,
        data: u64,
    }
    struct fi_msg_tagged {
        msg_iov: *const libc::iovec,
        desc: *mut Ptr,
        iov_count: usize,
        addr: u64,
        tag: u64,
        ignore: u64,
        context: Ptr,
        data: u64,
    }
    struct fi_rma_iov { addr: u64, len: usize, key: u64, }
    struct fi_ioc {
        addr: Ptr,
        count: usize,
    }
    struct fi_rma_ioc {
        addr: u64,
        count: usize,
        key: u64,
    }
    struct fi_msg_atomic {
        msg_iov: *const fi_ioc,
        desc: *mut Ptr,
        iov_count: usize,
        addr: u64,
        rma_iov: *const fi_rma_ioc,
        rma_iov_count: usize,
        datatype: u32,
        op: u32,
        context: Ptr,
        data: u64,
    }
    struct fi_msg_collective {
        msg_iov: *const fi_ioc,
        desc: *mut Ptr,
        iov_count: usize,
        coll_addr: u64,
        root_addr: u64,
        coll: u32,
        datatype: u32,
        op: u32,
        context: Ptr,
    }
    struct fi_msg_fetch {
        msg_iov: *const fi_ioc,
        desc: *mut Ptr,
        iov_count: usize,
    }
    struct fi_msg_compare {
        msg_iov: *const fi_ioc,
        desc: *mut Ptr,
        iov_count: usize,
    }
    struct fi_context2 { internal: [Ptr; 8], }
    struct fi_triggered_context { event_type: u32, trigger: [Ptr; 3], }
    struct fi_op_msg { ep: *mut fid_ep, msg: fi_msg, flags: u64, }
    struct fi_op_tagged { ep: *mut fid_ep, msg: fi_msg_tagged, flags: u64, }
    struct fi_op_rma { ep: *mut fid_ep, msg: fi_msg_rma, flags: u64, }
    struct fi_op_atomic { ep: *mut fid_ep, msg: fi_msg_atomic, flags: u64, }
    struct fi_op_fetch_atomic { ep: *mut fid_ep, msg: fi_msg_atomic, fetch: fi_msg_fetch, flags: u64, }
    struct fi_op_compare_atomic {
        ep: *mut fid_ep,
        msg: fi_msg_atomic,
        fetch: fi_msg_fetch,
        compare: fi_msg_compare,
        flags: u64,
    }
    struct fi_op_cntr { cntr: *mut fid_cntr, value: u64, }
    struct fi_deferred_work {
        context: fi_context2,
        threshold: u64,
        triggering_cntr: *mut fid_cntr,
        completion_cntr: *mut fid_cntr,
        op_type: u32,
        op: Ptr,
    }
    struct fi_msg_rma {
        msg_iov: *const libc::iovec,
        desc: *mut Ptr,
        iov_count: usize,
        addr: u64,
        rma_iov: *const fi_rma_iov,
        rma_iov_count: usize,
        context: Ptr,
        data: u64,
    }
}

/// `FI_CLASS_*`.
pub(crate) mod class {
    pub(crate) const FABRIC: usize = 1;
    pub(crate) const DOMAIN: usize = 2;
    pub(crate) const EP: usize = 3;
    pub(crate) const SEP: usize = 4;
    pub(crate) const RX_CTX: usize = 5;
    pub(crate) const SRX_CTX: usize = 6;
    pub(crate) const TX_CTX: usize = 7;
    pub(crate) const STX_CTX: usize = 8;
    pub(crate) const PEP: usize = 9;
    pub(crate) const AV: usize = 11;
    pub(crate) const MR: usize = 12;
    pub(crate) const EQ: usize = 13;
    pub(crate) const CQ: usize = 14;
    pub(crate) const CNTR: usize = 15;
    pub(crate) const WAIT: usize = 16;
    pub(crate) const POLL: usize = 17;
    pub(crate) const CONNREQ: usize = 18;
    pub(crate) const MC: usize = 19;
    pub(crate) const NIC: usize = 20;
    pub(crate) const AV_SET: usize = 21;
    pub(crate) const LOG: usize = 26;
    pub(crate) const PROFILE: usize = 30;
}

/// Commands of `fi_control`.
pub(crate) mod command {
    use std::ffi::c_int;

    pub(crate) const GETOPSFLAG: c_int = 2;
    pub(crate) const SETOPSFLAG: c_int = 3;
    pub(crate) const ALIAS: c_int = 4;
    pub(crate) const GETWAIT: c_int = 5;
    pub(crate) const ENABLE: c_int = 6;
    pub(crate) const BACKLOG: c_int = 7;
    pub(crate) const GET_RAW_MR: c_int = 8;
    pub(crate) const MAP_RAW_MR: c_int = 9;
    pub(crate) const UNMAP_KEY: c_int = 10;
    pub(crate) const QUEUE_WORK: c_int = 11;
    pub(crate) const CANCEL_WORK: c_int = 12;
    pub(crate) const FLUSH_WORK: c_int = 13;
    pub(crate) const REFRESH: c_int = 14;
    pub(crate) const DUP: c_int = 15;
    pub(crate) const GETWAITOBJ: c_int = 16;
    pub(crate) const GET_VAL: c_int = 17;
    pub(crate) const SET_VAL: c_int = 18;
    pub(crate) const EXPORT_FID: c_int = 19;
}

/// Flags that no type of `ofi-api` contains.
pub(crate) mod flag {
    /// `fi_av_insert` reports an error for each address.
    pub(crate) const SYNC_ERR: u64 = 1 << 58;
    /// Completed calls are reported to an event queue.
    pub(crate) const EVENT: u64 = 1 << 24;
    /// For a queue: direct interrupts to the vector in its attributes. There are no interrupts here.
    pub(crate) const AFFINITY: u64 = 1 << 29;
    /// Read-only.
    pub(crate) const READ: u64 = 1 << 8;
    /// Completions identify peers by numbers that the application chose.
    pub(crate) const AV_USER_ID: u64 = 1 << 41;
    /// All processes insert the same addresses.
    pub(crate) const SYMMETRIC: u64 = 1 << 59;
    /// All addresses of the vector.
    pub(crate) const UNIVERSE: u64 = 1 << 57;
    /// The set will be used for these collectives: `FI_BARRIER_SET` to `FI_GATHER_SET`.
    pub(crate) const COLLECTIVE_SETS: u64 = 0x1ff << 40;
    /// Joins a group of collectives.
    pub(crate) const COLLECTIVE: u64 = 1 << 6;
    /// More calls follow.
    pub(crate) const MORE: u64 = 1 << 18;
    /// Search without taking the message.
    pub(crate) const PEEK: u64 = 1 << 19;
    /// The queue may be written.
    pub(crate) const WRITE: u64 = 1 << 9;
    /// The registration will be bound to a counter before it is enabled.
    pub(crate) const RMA_EVENT: u64 = 1 << 56;
    /// The address is the index of an authorization key, or has a key.
    pub(crate) const AUTH_KEY: u64 = 1 << 57;
    /// A dma-buf identifies the memory.
    pub(crate) const MR_DMABUF: u64 = 1 << 40;
    /// All flags of a registration (fi_mr(3)). The remaining ones say that the memory is persistent, used once, or on a
    /// device.
    pub(crate) const OF_REGISTRATION: u64 =
        MR_DMABUF | AUTH_KEY | RMA_EVENT | 1 << 41 | 1 << 45 | 1 << 46 | 1 << 49;
}
