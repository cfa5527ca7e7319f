//! Tests every flag against the value that the C compiler gives it (libfabric 2.6.0, x86-64 Linux), written as a
//! number so that a wrong shift shows. `FI_XPU` and `FI_MR_XPU_DESC` are newer: their values come from the header on
//! libfabric's main branch.

use crate::*;

#[test]
fn caps_have_the_values_of_c() {
    #[rustfmt::skip]
    let table = [
        ("FI_MSG", 0x2, Caps::MSG),
        ("FI_RMA", 0x4, Caps::RMA),
        ("FI_TAGGED", 0x8, Caps::TAGGED),
        ("FI_ATOMIC", 0x10, Caps::ATOMIC),
        ("FI_MULTICAST", 0x20, Caps::MULTICAST),
        ("FI_COLLECTIVE", 0x40, Caps::COLLECTIVE),
        ("FI_READ", 0x100, Caps::READ),
        ("FI_WRITE", 0x200, Caps::WRITE),
        ("FI_RECV", 0x400, Caps::RECV),
        ("FI_SEND", 0x800, Caps::SEND),
        ("FI_REMOTE_READ", 0x1000, Caps::REMOTE_READ),
        ("FI_REMOTE_WRITE", 0x2000, Caps::REMOTE_WRITE),
        ("FI_MULTI_RECV", 0x10000, Caps::MULTI_RECV),
        ("FI_TRIGGER", 0x100000, Caps::TRIGGER),
        ("FI_FENCE", 0x200000, Caps::FENCE),
        ("FI_TAGGED_MULTI_RECV", 0x400000000000, Caps::TAGGED_MULTI_RECV),
        ("FI_TAGGED_DIRECTED_RECV", 0x200000000000, Caps::TAGGED_DIRECTED_RECV),
        ("FI_EXACT_DIRECTED_RECV", 0x1000000000000, Caps::EXACT_DIRECTED_RECV),
        ("FI_RMA_PMEM", 0x2000000000000, Caps::RMA_PMEM),
        ("FI_SOURCE_ERR", 0x4000000000000, Caps::SOURCE_ERR),
        ("FI_LOCAL_COMM", 0x8000000000000, Caps::LOCAL_COMM),
        ("FI_REMOTE_COMM", 0x10000000000000, Caps::REMOTE_COMM),
        ("FI_SHARED_AV", 0x20000000000000, Caps::SHARED_AV),
        ("FI_RMA_EVENT", 0x100000000000000, Caps::RMA_EVENT),
        ("FI_SOURCE", 0x200000000000000, Caps::SOURCE),
        ("FI_NAMED_RX_CTX", 0x400000000000000, Caps::NAMED_RX_CTX),
        ("FI_DIRECTED_RECV", 0x800000000000000, Caps::DIRECTED_RECV),
        ("FI_AV_USER_ID", 0x20000000000, Caps::AV_USER_ID),
        ("FI_PEER", 0x80000000000, Caps::PEER),
        ("FI_HMEM", 0x800000000000, Caps::HMEM),
    ];
    for (name, value, flag) in table {
        assert_eq!(flag.bits(), value, "{name}");
        assert_eq!(flag.to_string(), name);
    }
}

#[test]
fn op_flags_have_the_values_of_c() {
    #[rustfmt::skip]
    let table = [
        ("FI_MULTICAST", 0x20, OpFlags::MULTICAST),
        ("FI_RECV", 0x400, OpFlags::RECV),
        ("FI_TRANSMIT", 0x800, OpFlags::TRANSMIT),
        ("FI_MULTI_RECV", 0x10000, OpFlags::MULTI_RECV),
        ("FI_REMOTE_CQ_DATA", 0x20000, OpFlags::REMOTE_CQ_DATA),
        ("FI_MORE", 0x40000, OpFlags::MORE),
        ("FI_PEEK", 0x80000, OpFlags::PEEK),
        ("FI_TRIGGER", 0x100000, OpFlags::TRIGGER),
        ("FI_FENCE", 0x200000, OpFlags::FENCE),
        ("FI_COMPLETION", 0x1000000, OpFlags::COMPLETION),
        ("FI_INJECT", 0x2000000, OpFlags::INJECT),
        ("FI_INJECT_COMPLETE", 0x4000000, OpFlags::INJECT_COMPLETE),
        ("FI_TRANSMIT_COMPLETE", 0x8000000, OpFlags::TRANSMIT_COMPLETE),
        ("FI_DELIVERY_COMPLETE", 0x10000000, OpFlags::DELIVERY_COMPLETE),
        ("FI_MATCH_COMPLETE", 0x80000000, OpFlags::MATCH_COMPLETE),
        ("FI_COMMIT_COMPLETE", 0x40000000, OpFlags::COMMIT_COMPLETE),
        ("FI_AFFINITY", 0x20000000, OpFlags::AFFINITY),
        ("FI_CLAIM", 0x800000000000000, OpFlags::CLAIM),
        ("FI_DISCARD", 0x400000000000000, OpFlags::DISCARD),
        ("FI_AUTH_KEY", 0x200000000000000, OpFlags::AUTH_KEY),
        ("FI_PEER_TRANSFER", 0x1000000000, OpFlags::PEER_TRANSFER),
    ];
    for (name, value, flag) in table {
        assert_eq!(flag.bits(), value, "{name}");
        assert_eq!(flag.to_string(), name);
    }
}

#[test]
fn completion_flags_have_the_values_of_c() {
    #[rustfmt::skip]
    let table = [
        ("FI_SEND", 0x800, CompletionFlags::SEND),
        ("FI_RECV", 0x400, CompletionFlags::RECV),
        ("FI_RMA", 0x4, CompletionFlags::RMA),
        ("FI_ATOMIC", 0x10, CompletionFlags::ATOMIC),
        ("FI_MSG", 0x2, CompletionFlags::MSG),
        ("FI_TAGGED", 0x8, CompletionFlags::TAGGED),
        ("FI_MULTICAST", 0x20, CompletionFlags::MULTICAST),
        ("FI_COLLECTIVE", 0x40, CompletionFlags::COLLECTIVE),
        ("FI_READ", 0x100, CompletionFlags::READ),
        ("FI_WRITE", 0x200, CompletionFlags::WRITE),
        ("FI_REMOTE_READ", 0x1000, CompletionFlags::REMOTE_READ),
        ("FI_REMOTE_WRITE", 0x2000, CompletionFlags::REMOTE_WRITE),
        ("FI_REMOTE_CQ_DATA", 0x20000, CompletionFlags::REMOTE_CQ_DATA),
        ("FI_MULTI_RECV", 0x10000, CompletionFlags::MULTI_RECV),
        ("FI_MORE", 0x40000, CompletionFlags::MORE),
        ("FI_CLAIM", 0x800000000000000, CompletionFlags::CLAIM),
    ];
    for (name, value, flag) in table {
        assert_eq!(flag.bits(), value, "{name}");
        assert_eq!(flag.to_string(), name);
    }
}

#[test]
fn bind_flags_have_the_values_of_c() {
    #[rustfmt::skip]
    let table = [
        ("FI_TRANSMIT", 0x800, BindFlags::TRANSMIT),
        ("FI_RECV", 0x400, BindFlags::RECV),
        ("FI_SELECTIVE_COMPLETION", 0x800000000000000, BindFlags::SELECTIVE_COMPLETION),
        ("FI_READ", 0x100, BindFlags::READ),
        ("FI_WRITE", 0x200, BindFlags::WRITE),
        ("FI_REMOTE_READ", 0x1000, BindFlags::REMOTE_READ),
        ("FI_REMOTE_WRITE", 0x2000, BindFlags::REMOTE_WRITE),
    ];
    for (name, value, flag) in table {
        assert_eq!(flag.bits(), value, "{name}");
        assert_eq!(flag.to_string(), name);
    }
}

#[test]
fn mode_have_the_values_of_c() {
    #[rustfmt::skip]
    let table = [
        ("FI_CONTEXT", 0x800000000000000, Mode::CONTEXT),
        ("FI_MSG_PREFIX", 0x400000000000000, Mode::MSG_PREFIX),
        ("FI_ASYNC_IOV", 0x200000000000000, Mode::ASYNC_IOV),
        ("FI_RX_CQ_DATA", 0x100000000000000, Mode::RX_CQ_DATA),
        ("FI_LOCAL_MR", 0x80000000000000, Mode::LOCAL_MR),
        ("FI_CONTEXT2", 0x10000000000000, Mode::CONTEXT2),
        ("FI_PEER_TRANSFER", 0x1000000000, Mode::PEER_TRANSFER),
    ];
    for (name, value, flag) in table {
        assert_eq!(flag.bits(), value, "{name}");
        assert_eq!(flag.to_string(), name);
    }
}

#[test]
fn mr_mode_have_the_values_of_c() {
    #[rustfmt::skip]
    let table = [
        ("FI_MR_BASIC", 0x1, MrMode::BASIC),
        ("FI_MR_SCALABLE", 0x2, MrMode::SCALABLE),
        ("FI_MR_LOCAL", 0x4, MrMode::LOCAL),
        ("FI_MR_RAW", 0x8, MrMode::RAW),
        ("FI_MR_VIRT_ADDR", 0x10, MrMode::VIRT_ADDR),
        ("FI_MR_ALLOCATED", 0x20, MrMode::ALLOCATED),
        ("FI_MR_PROV_KEY", 0x40, MrMode::PROV_KEY),
        ("FI_MR_MMU_NOTIFY", 0x80, MrMode::MMU_NOTIFY),
        ("FI_MR_RMA_EVENT", 0x100, MrMode::RMA_EVENT),
        ("FI_MR_ENDPOINT", 0x200, MrMode::ENDPOINT),
        ("FI_MR_HMEM", 0x400, MrMode::HMEM),
        ("FI_MR_COLLECTIVE", 0x800, MrMode::COLLECTIVE),
    ];
    for (name, value, flag) in table {
        assert_eq!(flag.bits(), value, "{name}");
        assert_eq!(flag.to_string(), name);
    }
}

#[test]
fn msg_order_have_the_values_of_c() {
    #[rustfmt::skip]
    let table = [
        ("FI_ORDER_RAR", 0x1, MsgOrder::RAR),
        ("FI_ORDER_RAW", 0x2, MsgOrder::RAW),
        ("FI_ORDER_RAS", 0x4, MsgOrder::RAS),
        ("FI_ORDER_WAR", 0x8, MsgOrder::WAR),
        ("FI_ORDER_WAW", 0x10, MsgOrder::WAW),
        ("FI_ORDER_WAS", 0x20, MsgOrder::WAS),
        ("FI_ORDER_SAR", 0x40, MsgOrder::SAR),
        ("FI_ORDER_SAW", 0x80, MsgOrder::SAW),
        ("FI_ORDER_SAS", 0x100, MsgOrder::SAS),
        ("FI_ORDER_RMA_RAR", 0x100000000, MsgOrder::RMA_RAR),
        ("FI_ORDER_RMA_RAW", 0x200000000, MsgOrder::RMA_RAW),
        ("FI_ORDER_RMA_WAR", 0x400000000, MsgOrder::RMA_WAR),
        ("FI_ORDER_RMA_WAW", 0x800000000, MsgOrder::RMA_WAW),
        ("FI_ORDER_ATOMIC_RAR", 0x1000000000, MsgOrder::ATOMIC_RAR),
        ("FI_ORDER_ATOMIC_RAW", 0x2000000000, MsgOrder::ATOMIC_RAW),
        ("FI_ORDER_ATOMIC_WAR", 0x4000000000, MsgOrder::ATOMIC_WAR),
        ("FI_ORDER_ATOMIC_WAW", 0x8000000000, MsgOrder::ATOMIC_WAW),
    ];
    for (name, value, flag) in table {
        assert_eq!(flag.bits(), value, "{name}");
        assert_eq!(flag.to_string(), name);
    }
}

#[test]
fn mr_access_have_the_values_of_c() {
    #[rustfmt::skip]
    let table = [
        ("FI_RECV", 0x400, MrAccess::RECV),
        ("FI_SEND", 0x800, MrAccess::SEND),
        ("FI_READ", 0x100, MrAccess::READ),
        ("FI_WRITE", 0x200, MrAccess::WRITE),
        ("FI_REMOTE_READ", 0x1000, MrAccess::REMOTE_READ),
        ("FI_REMOTE_WRITE", 0x2000, MrAccess::REMOTE_WRITE),
        ("FI_COLLECTIVE", 0x40, MrAccess::COLLECTIVE),
    ];
    for (name, value, flag) in table {
        assert_eq!(flag.bits(), value, "{name}");
        assert_eq!(flag.to_string(), name);
    }
}

#[test]
fn getinfo_flags_have_the_values_of_c() {
    #[rustfmt::skip]
    let table = [
        ("FI_SOURCE", 0x200000000000000, GetinfoFlags::SOURCE),
        ("FI_NUMERICHOST", 0x80000000000000, GetinfoFlags::NUMERICHOST),
        ("FI_PROV_ATTR_ONLY", 0x40000000000000, GetinfoFlags::PROV_ATTR_ONLY),
        ("FI_RESCAN", 0x800000000, GetinfoFlags::RESCAN),
    ];
    for (name, value, flag) in table {
        assert_eq!(flag.bits(), value, "{name}");
        assert_eq!(flag.to_string(), name);
    }
}

#[test]
fn values_that_are_newer_than_2_6() {
    assert_eq!(Caps::XPU.bits(), 0x1000_0000_0000);
    assert_eq!(MrMode::XPU_DESC.bits(), 0x1000);
}

#[test]
fn names_for_the_same_bit() {
    assert_eq!(OpFlags::EVENT.bits(), 0x0100_0000);
    assert_eq!(BindFlags::SEND.bits(), 0x800);
    assert_eq!(MsgOrder::STRICT.bits(), 0x1ff);
}

#[test]
fn values_that_mean_none_or_any() {
    assert_eq!(FiAddr::UNSPEC.0, 0xffff_ffff_ffff_ffff);
    assert_eq!(FiAddr::NOTAVAIL.0, 0xffff_ffff_ffff_ffff);
    assert_eq!(KEY_NOTAVAIL, 0xffff_ffff_ffff_ffff);
    assert_eq!((SHARED_CONTEXT, AV_AUTH_KEY), (usize::MAX, usize::MAX));
    assert_eq!((TAG_BITS, TAG_MPI, TAG_CCL, TAG_MAX_FORMAT), (0, 1, 2, 65536));
    assert_eq!(Version::API.as_c(), 0x2_0006);
}

#[test]
fn no_capability_is_in_two_groups() {
    assert!(!Caps::PRIMARY.intersects(Caps::SECONDARY));
    assert!(!Caps::MODIFIERS.intersects(Caps::PRIMARY | Caps::SECONDARY));
    assert_eq!(Caps::PRIMARY | Caps::SECONDARY | Caps::MODIFIERS, Caps::all());
}

#[test]
fn errors_have_the_values_of_c() {
    #[rustfmt::skip]
    let table = [
        ("FI_EPERM", 1),
        ("FI_ENOENT", 2),
        ("FI_EINTR", 4),
        ("FI_EIO", 5),
        ("FI_E2BIG", 7),
        ("FI_EBADF", 9),
        ("FI_EAGAIN", 11),
        ("FI_ENOMEM", 12),
        ("FI_EACCES", 13),
        ("FI_EFAULT", 14),
        ("FI_EBUSY", 16),
        ("FI_ENODEV", 19),
        ("FI_EINVAL", 22),
        ("FI_EMFILE", 24),
        ("FI_ENOSPC", 28),
        ("FI_ENOSYS", 38),
        ("FI_ENOMSG", 42),
        ("FI_ENODATA", 61),
        ("FI_EPROTO", 71),
        ("FI_EOVERFLOW", 75),
        ("FI_EMSGSIZE", 90),
        ("FI_ENOPROTOOPT", 92),
        ("FI_EOPNOTSUPP", 95),
        ("FI_EADDRINUSE", 98),
        ("FI_EADDRNOTAVAIL", 99),
        ("FI_ENETDOWN", 100),
        ("FI_ENETUNREACH", 101),
        ("FI_ECONNABORTED", 103),
        ("FI_ECONNRESET", 104),
        ("FI_ENOBUFS", 105),
        ("FI_EISCONN", 106),
        ("FI_ENOTCONN", 107),
        ("FI_ESHUTDOWN", 108),
        ("FI_ETIMEDOUT", 110),
        ("FI_ECONNREFUSED", 111),
        ("FI_EHOSTDOWN", 112),
        ("FI_EHOSTUNREACH", 113),
        ("FI_EALREADY", 114),
        ("FI_EINPROGRESS", 115),
        ("FI_EREMOTEIO", 121),
        ("FI_ECANCELED", 125),
        ("FI_EKEYREJECTED", 129),
        ("FI_EOTHER", 256),
        ("FI_ETOOSMALL", 257),
        ("FI_EOPBADSTATE", 258),
        ("FI_EAVAIL", 259),
        ("FI_EBADFLAGS", 260),
        ("FI_ENOEQ", 261),
        ("FI_EDOMAIN", 262),
        ("FI_ENOCQ", 263),
        ("FI_ECRC", 264),
        ("FI_ETRUNC", 265),
        ("FI_ENOKEY", 266),
        ("FI_ENOAV", 267),
        ("FI_EOVERRUN", 268),
        ("FI_ENORX", 269),
        ("FI_ENOMR", 270),
        ("FI_EFIREWALLADDR", 271),
    ];
    assert_eq!(table.len(), Errno::ALL.len());
    for ((name, value), errno) in table.into_iter().zip(Errno::ALL) {
        assert_eq!((errno.name(), errno.get()), (name, value));
    }
}

/// The enumerations count up from their first value without a gap, so a wrong value shows in the last one.
#[test]
fn enumerations_end_where_c_s_do() {
    let last = [
        ("FI_EP_RDM", 3, EpType::from_c(3).map(EpType::c_name)),
        ("FI_AV_TABLE", 2, AvType::from_c(2).map(AvType::c_name)),
        ("FI_THREAD_ENDPOINT", 5, Threading::from_c(5).map(Threading::c_name)),
        ("FI_PROGRESS_CONTROL_UNIFIED", 3, Progress::from_c(3).map(Progress::c_name)),
        ("FI_RM_ENABLED", 2, ResourceMgmt::from_c(2).map(ResourceMgmt::c_name)),
        ("FI_CQ_FORMAT_TAGGED", 4, CqFormat::from_c(4).map(CqFormat::c_name)),
        ("FI_WAIT_POLLFD", 6, WaitObj::from_c(6).map(WaitObj::c_name)),
        ("FI_CQ_COND_THRESHOLD", 1, WaitCond::from_c(1).map(WaitCond::c_name)),
        ("FI_CNTR_EVENTS_BYTES", 1, CntrEvents::from_c(1).map(CntrEvents::c_name)),
        ("FI_SOCKADDR_IP", 17, AddrFormat::from_c(17).map(AddrFormat::c_name)),
        ("FI_PROTO_LNX", 31, Protocol::from_c(31).c_name()),
        ("FI_HMEM_SYNAPSEAI", 5, HmemIface::from_c(5).map(HmemIface::c_name)),
        ("FI_BUS_PCI", 1, BusType::from_c(1).map(BusType::c_name)),
        ("FI_LINK_UP", 2, LinkState::from_c(2).map(LinkState::c_name)),
    ];
    for (name, value, found) in last {
        assert_eq!(found, Some(name), "{value}");
    }
}
