//! The part of the interface for datagram-like queue pairs, extended completion queues and EFA: `verbs.h` of rdma-core
//! 44, and `efadv.h` of rdma-core 64. Structures of `efadv.h` grow at their end, and calls pass their length, so an
//! older libefa accepts longer structures if the fields that it does not know are zero.

#![allow(missing_docs, reason = "names and meaning are those of the man pages")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::abi::*;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_qp_attr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}

#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

/// Starts with the fields of an `ibv_cq`.
#[repr(C)]
pub struct ibv_cq_ex {
    pub cq: ibv_cq,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
    pub comp_mask: u32,
    pub status: c_uint,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    pub read_opcode: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint>,
    pub read_vendor_err: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_qp_num: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_uint>,
    pub read_slid: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>,
    pub rest: [*mut c_void; 7],
}

/// The end of `verbs_context`, up to the [`ibv_context`] that is its last field. The structure grows at its start.
#[repr(C)]
pub struct verbs_context_end {
    pub create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub between: [*mut c_void; 7],
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub rest: [*mut c_void; 4],
    pub placeholder: u64,
    pub sz: usize,
}

impl verbs_context_end {
    /// The length of a `verbs_context` that has `create_cq_ex`, and of one that has `create_qp_ex`.
    pub const FROM_CQ: usize = size_of::<Self>() + size_of::<ibv_context>();
    pub const FROM_QP: usize = Self::FROM_CQ - std::mem::offset_of!(Self, create_qp_ex);
}

#[repr(C)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

type Build = Option<unsafe extern "C" fn(*mut ibv_qp_ex)>;

/// `qp` is longer than [`ibv_qp`], which declares only the used part.
#[repr(C)]
pub struct ibv_qp_ex {
    pub qp: ibv_qp,
    pub qp_rest: [u64; 13],
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    pub wr_windows: [*mut c_void; 2],
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub wr_send: Build,
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_send_others: [*mut c_void; 2],
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
    pub wr_set_xrc_srqn: *mut c_void,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *const c_void, usize)>,
    pub wr_set_inline_data_list: *mut c_void,
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
    pub wr_start: Build,
    pub wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    pub wr_abort: Build,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_device_attr {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    pub inline_buf_size_ex: u16,
    pub device_caps: u32,
    pub max_rdma_size: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_ah_attr {
    pub comp_mask: u64,
    pub ahn: u16,
    pub reserved: [u8; 6],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_qp_init_attr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    pub flags: u16,
    pub sl: u8,
    pub reserved: u8,
    pub wr_flags: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_cq_init_attr {
    pub comp_mask: u64,
    pub wc_flags: u64,
}

/// The last field exists only in queues that were created with it.
#[repr(C)]
pub struct efadv_cq {
    pub comp_mask: u64,
    pub wc_read_sgid: Option<unsafe extern "C" fn(*mut efadv_cq, *mut [u8; 16]) -> c_int>,
    pub wc_is_unsolicited: Option<unsafe extern "C" fn(*mut efadv_cq) -> bool>,
}

pub const IBV_QPT_DRIVER: c_uint = 255;
pub const IBV_QPS_INIT: c_uint = 1;
pub const IBV_QPS_RTR: c_uint = 2;
pub const IBV_QPS_RTS: c_uint = 3;
pub const IBV_QPS_ERR: c_uint = 6;
pub const IBV_QP_STATE: c_int = 1;
pub const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub const IBV_QP_PORT: c_int = 1 << 5;
pub const IBV_QP_QKEY: c_int = 1 << 6;
pub const IBV_QP_TIMEOUT: c_int = 1 << 9;
pub const IBV_QP_RETRY_CNT: c_int = 1 << 10;
pub const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub const IBV_QP_INIT_ATTR_PD: u32 = 1;
pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;
pub const IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1;
pub const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
pub const IBV_QP_EX_WITH_SEND: u64 = 1 << 2;
pub const IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
pub const IBV_QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
pub const IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
pub const IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
/// Length, immediate data, both queue pairs, and the number of the address handle (`slid`).
pub const IBV_WC_EX_USED: u64 = 0b1_1111;
pub const IBV_WC_WITH_IMM: c_uint = 2;
pub const IBV_WC_RDMA_WRITE: c_uint = 1;
pub const IBV_WC_RDMA_READ: c_uint = 2;
pub const IBV_WC_RECV_RDMA_WITH_IMM: c_uint = 129;
pub const EFADV_QP_DRIVER_TYPE_SRD: u32 = 0;
pub const EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV: u16 = 1;
pub const EFADV_WC_EX_WITH_SGID: u64 = 1;
pub const EFADV_WC_EX_WITH_IS_UNSOLICITED: u64 = 2;
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_READ: u32 = 1;
pub const EFADV_DEVICE_ATTR_CAPS_RNR_RETRY: u32 = 1 << 1;
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID: u32 = 1 << 2;
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE: u32 = 1 << 3;
pub const EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV: u32 = 1 << 4;

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<c_char>() == 1 && size_of::<ibv_ah_attr>() == 32);
    assert!(offset_of!(ibv_ah_attr, is_global) == 29 && offset_of!(ibv_ah_attr, port_num) == 30);
    assert!(size_of::<ibv_qp_attr>() == 144 && offset_of!(ibv_qp_attr, ah_attr) == 56);
    assert!(offset_of!(ibv_qp_attr, pkey_index) == 120 && offset_of!(ibv_qp_attr, port_num) == 129);
    assert!(offset_of!(ibv_qp_attr, min_rnr_timer) == 128 && offset_of!(ibv_qp_attr, timeout) == 130);
    assert!(offset_of!(ibv_qp_attr, retry_cnt) == 131);
    assert!(offset_of!(ibv_qp_attr, rnr_retry) == 132 && size_of::<ibv_cq_init_attr_ex>() == 56);
    assert!(offset_of!(ibv_cq_init_attr_ex, wc_flags) == 32);
    assert!(size_of::<ibv_cq_ex>() == 288 && offset_of!(ibv_cq_ex, status) == 132);
    assert!(offset_of!(ibv_cq_ex, start_poll) == 144 && offset_of!(ibv_cq_ex, read_slid) == 224);
    assert!(size_of::<ibv_qp_init_attr_ex>() == 136 && offset_of!(ibv_qp_init_attr_ex, comp_mask) == 60);
    assert!(offset_of!(ibv_qp_init_attr_ex, rx_hash_conf) == 96);
    assert!(offset_of!(ibv_qp_init_attr_ex, send_ops_flags) == 128);
    assert!(offset_of!(ibv_qp_ex, comp_mask) == 160 && offset_of!(ibv_qp_ex, wr_rdma_read) == 216);
    assert!(offset_of!(ibv_qp_ex, wr_send) == 240 && offset_of!(ibv_qp_ex, wr_set_ud_addr) == 272);
    assert!(offset_of!(ibv_qp_ex, wr_start) == 320 && offset_of!(ibv_qp_ex, wr_abort) == 336);
    assert!(offset_of!(ibv_qp_ex, wr_atomic_fetch_add) == 192);
    assert!(verbs_context_end::FROM_CQ == 448 && verbs_context_end::FROM_QP == 384);
    assert!(size_of::<efadv_device_attr>() == 32 && size_of::<efadv_qp_init_attr>() == 24);
};
