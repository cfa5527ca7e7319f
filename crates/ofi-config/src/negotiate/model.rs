//! The negotiation against a naive model: a table with one predicate for each field, which says whether
//! offer and hints agree on it, written from the man pages with plain numbers and loops.
//!
//! Cases are the offer and the hints of `tests.rs` with a few fields changed, so that a failing case
//! shrinks to the changes that matter.

use super::tests::able;
use super::*;
use ofi_api::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// One negotiation, as the model sees it.
struct Case {
    offer: Info,
    hints: Info,
    api: Version,
}

impl Case {
    fn before(&self, major: u16, minor: u16) -> bool {
        self.api < Version::new(major, minor)
    }
}

type Agreed = fn(&Case) -> bool;

/// Field by field: do the two sides agree?
const TABLE: &[(&str, Agreed)] = &[
    ("caps", |case| bits(case.hints.caps.bits()).all(|bit| has_cap(&case.offer, bit))),
    ("mode", |case| {
        let old_name = wants_whole_mode(case) && registration_needs(case, 2);
        let needed = case.offer.mode.bits() | if old_name { 1 << 55 } else { 0 };
        needed & !case.hints.mode.bits() == 0
    }),
    ("addr_format", |case| {
        let (offered, wanted) = (case.offer.addr_format.as_c(), case.hints.addr_format.as_c());
        let family = |format| match format {
            1 => vec![1, 2, 3, 4, 17],
            17 => vec![2, 3, 17],
            other => vec![other],
        };
        offered == 0 || wanted == 0 || family(wanted).contains(&offered) || family(offered).contains(&wanted)
    }),
    ("tx_attr.caps", |case| {
        let asked = case.hints.tx_attr.caps.bits() & !only(RX_BITS, TX_BITS);
        bits(asked).all(|bit| TX_BITS.contains(&bit) && granted_cap(case, bit) && side_has(case, true, bit))
    }),
    ("rx_attr.caps", |case| {
        let asked = case.hints.rx_attr.caps.bits() & !only(TX_BITS, RX_BITS);
        bits(asked).all(|bit| RX_BITS.contains(&bit) && granted_cap(case, bit) && side_has(case, false, bit))
    }),
    ("tx_attr.mode", |case| modes_fit(case, case.offer.tx_attr.mode, case.hints.tx_attr.mode)),
    ("rx_attr.mode", |case| modes_fit(case, case.offer.rx_attr.mode, case.hints.rx_attr.mode)),
    ("tx_attr.op_flags", |case| {
        case.hints.tx_attr.op_flags.bits() & !case.offer.tx_attr.op_flags.bits() == 0
    }),
    ("rx_attr.op_flags", |case| {
        case.hints.rx_attr.op_flags.bits() & !case.offer.rx_attr.op_flags.bits() == 0
    }),
    ("tx_attr.msg_order", |case| {
        case.hints.tx_attr.msg_order.bits() & !case.offer.tx_attr.msg_order.bits() == 0
    }),
    ("rx_attr.msg_order", |case| {
        case.hints.rx_attr.msg_order.bits() & !case.offer.rx_attr.msg_order.bits() == 0
    }),
    ("tx_attr.comp_order", |case| match case.hints.tx_attr.comp_order {
        0 => true,
        order => case.before(2, 0) && order & !case.offer.tx_attr.comp_order == 0,
    }),
    ("rx_attr.comp_order", |case| match case.hints.rx_attr.comp_order {
        0 => true,
        order => case.before(2, 0) && order & !case.offer.rx_attr.comp_order == 0,
    }),
    ("rx_attr.total_buffered_recv", |case| match case.hints.rx_attr.total_buffered_recv {
        0 => true,
        size => case.before(2, 0) && size <= case.offer.rx_attr.total_buffered_recv,
    }),
    ("tx_attr.inject_size", |case| case.hints.tx_attr.inject_size <= case.offer.tx_attr.inject_size),
    ("tx_attr.size", |case| case.hints.tx_attr.size <= case.offer.tx_attr.size),
    ("tx_attr.iov_limit", |case| case.hints.tx_attr.iov_limit <= case.offer.tx_attr.iov_limit),
    ("tx_attr.rma_iov_limit", |case| case.hints.tx_attr.rma_iov_limit <= case.offer.tx_attr.rma_iov_limit),
    ("rx_attr.size", |case| case.hints.rx_attr.size <= case.offer.rx_attr.size),
    ("rx_attr.iov_limit", |case| case.hints.rx_attr.iov_limit <= case.offer.rx_attr.iov_limit),
    ("ep_attr.type", |case| {
        let (offered, wanted) = (case.offer.ep_attr.ep_type.as_c(), case.hints.ep_attr.ep_type.as_c());
        offered == 0 || wanted == 0 || offered == wanted
    }),
    ("ep_attr.protocol", |case| {
        [0, case.offer.ep_attr.protocol.as_c()].contains(&case.hints.ep_attr.protocol.as_c())
    }),
    ("ep_attr.protocol_version", |case| {
        case.hints.ep_attr.protocol_version <= case.offer.ep_attr.protocol_version
    }),
    ("ep_attr.max_msg_size", |case| case.hints.ep_attr.max_msg_size <= case.offer.ep_attr.max_msg_size),
    ("ep_attr.max_order_raw_size", |case| {
        !accesses(case) || case.hints.ep_attr.max_order_raw_size <= case.offer.ep_attr.max_order_raw_size
    }),
    ("ep_attr.max_order_war_size", |case| {
        !accesses(case) || case.hints.ep_attr.max_order_war_size <= case.offer.ep_attr.max_order_war_size
    }),
    ("ep_attr.max_order_waw_size", |case| {
        !accesses(case) || case.hints.ep_attr.max_order_waw_size <= case.offer.ep_attr.max_order_waw_size
    }),
    ("ep_attr.mem_tag_format", |case| {
        // How many bits each side means, and how freely they may be used: 0 bits, 1 MPI, 2 CCL.
        let read = |format: u64| match format {
            0 => (64, 0),
            1 => (40, 1),
            2 => (8, 2),
            pattern => ((0..64).filter(|bit| pattern >> bit & 1 == 1).max().unwrap() + 1, 0),
        };
        let (offered, free) = read(case.offer.ep_attr.mem_tag_format);
        let (wanted, restricted) = read(case.hints.ep_attr.mem_tag_format);
        let unused = case.hints.ep_attr.mem_tag_format == 0 || !granted_cap(case, 3);
        unused || (wanted <= offered && free <= restricted)
    }),
    ("ep_attr.tx_ctx_cnt", |case| {
        let domain = &case.offer.domain_attr;
        let usual = case.offer.ep_attr.tx_ctx_cnt;
        contexts_fit(case.hints.ep_attr.tx_ctx_cnt, usual, domain.max_ep_tx_ctx, domain.max_ep_stx_ctx)
    }),
    ("ep_attr.rx_ctx_cnt", |case| {
        let domain = &case.offer.domain_attr;
        let usual = case.offer.ep_attr.rx_ctx_cnt;
        contexts_fit(case.hints.ep_attr.rx_ctx_cnt, usual, domain.max_ep_rx_ctx, domain.max_ep_srx_ctx)
    }),
    ("ep_attr.auth_key_size", |case| {
        let (size, key) = (case.hints.ep_attr.auth_key_size, &case.hints.ep_attr.auth_key);
        let in_av = !case.before(1, 20) && case.hints.domain_attr.auth_key_size == usize::MAX;
        let fits = size <= case.offer.ep_attr.auth_key_size && (key.is_empty() || key.len() == size);
        case.before(1, 5) || if in_av { size == 0 && key.is_empty() } else { fits }
    }),
    ("domain_attr.name", |case| name_fits(&case.hints.domain_attr.name, &case.offer.domain_attr.name)),
    ("domain_attr.threading", |case| {
        // SAFE, COMPLETION, DOMAIN: each asks more of the application than the one before.
        let order = [1, 4, 3, 0];
        let wanted = match case.hints.domain_attr.threading.as_c() {
            2 | 5 if case.before(2, 0) => 1,
            other => other,
        };
        let place = |value| order.iter().position(|&other| other == value);
        // What is no longer there asks as much as COMPLETION.
        let offered = place(case.offer.domain_attr.threading.as_c()).unwrap_or(1);
        place(wanted).is_some_and(|wanted| offered <= wanted)
    }),
    ("domain_attr.progress", |case| {
        let (offered, wanted) =
            (case.offer.domain_attr.progress.as_c(), case.hints.domain_attr.progress.as_c());
        wanted == 0 || (offered != 0 && offered <= wanted)
    }),
    ("domain_attr.resource_mgmt", |case| {
        let offered = case.offer.domain_attr.resource_mgmt.as_c();
        let wanted = case.hints.domain_attr.resource_mgmt.as_c();
        wanted == 0 || (offered != 0 && offered >= wanted)
    }),
    ("domain_attr.av_type", |case| {
        (case.offer.domain_attr.av_type.as_c(), case.hints.domain_attr.av_type.as_c()) != (1, 2)
    }),
    ("domain_attr.mr_mode", |case| {
        let offered = case.offer.domain_attr.mr_mode.bits();
        let wanted = case.hints.domain_attr.mr_mode.bits();
        match wanted {
            0 if case.before(1, 5) => offered & 3 != 0,
            1 | 2 => offered & wanted != 0,
            mixed if case.before(1, 5) || mixed & 3 != 0 => false,
            _ => (2..32).all(|bit| wanted >> bit & 1 == 1 || !registration_needs(case, bit)),
        }
    }),
    ("domain_attr.mr_key_size", |case| {
        case.hints.domain_attr.mr_key_size <= case.offer.domain_attr.mr_key_size
    }),
    ("domain_attr.cq_data_size", |case| {
        case.hints.domain_attr.cq_data_size <= case.offer.domain_attr.cq_data_size
    }),
    ("domain_attr.max_ep_tx_ctx", |case| {
        case.hints.domain_attr.max_ep_tx_ctx <= case.offer.domain_attr.max_ep_tx_ctx
    }),
    ("domain_attr.max_ep_rx_ctx", |case| {
        case.hints.domain_attr.max_ep_rx_ctx <= case.offer.domain_attr.max_ep_rx_ctx
    }),
    ("domain_attr.max_ep_stx_ctx", |case| {
        case.hints.domain_attr.max_ep_stx_ctx <= case.offer.domain_attr.max_ep_stx_ctx
    }),
    ("domain_attr.max_ep_srx_ctx", |case| {
        case.hints.domain_attr.max_ep_srx_ctx <= case.offer.domain_attr.max_ep_srx_ctx
    }),
    ("domain_attr.cntr_cnt", |case| {
        case.before(1, 5) || case.hints.domain_attr.cntr_cnt <= case.offer.domain_attr.cntr_cnt
    }),
    ("domain_attr.mr_iov_limit", |case| {
        case.before(1, 5) || case.hints.domain_attr.mr_iov_limit <= case.offer.domain_attr.mr_iov_limit
    }),
    ("domain_attr.max_err_data", |case| {
        case.before(1, 5) || case.hints.domain_attr.max_err_data <= case.offer.domain_attr.max_err_data
    }),
    ("domain_attr.mr_cnt", |case| {
        case.before(1, 5) || case.hints.domain_attr.mr_cnt <= case.offer.domain_attr.mr_cnt
    }),
    ("domain_attr.caps", |case| {
        let all = case.offer.domain_attr.caps.bits();
        let all = if all == 0 { case.offer.caps.bits() } else { all };
        let known = [41, 43, 44, 51, 52, 53, 59];
        let asked = case.hints.domain_attr.caps.bits();
        case.before(1, 5) || bits(asked).all(|bit| all >> bit & 1 == 1 && known.contains(&bit))
    }),
    ("domain_attr.mode", |case| {
        case.before(1, 5) || modes_fit(case, case.offer.domain_attr.mode, case.hints.domain_attr.mode)
    }),
    ("domain_attr.auth_key_size", |case| {
        let (size, key) = (case.hints.domain_attr.auth_key_size, &case.hints.domain_attr.auth_key);
        let in_av = !case.before(1, 20) && size == usize::MAX;
        let limit = case.offer.domain_attr.auth_key_size;
        let fits = size <= limit && size != usize::MAX && (key.is_empty() || key.len() == size);
        let has_av = case.offer.ep_attr.ep_type != EpType::Msg;
        case.before(1, 5) || if in_av { has_av && limit > 0 && key.is_empty() } else { fits }
    }),
    ("domain_attr.max_ep_auth_key", |case| {
        case.before(1, 20) || case.hints.domain_attr.max_ep_auth_key <= case.offer.domain_attr.max_ep_auth_key
    }),
    ("domain_attr.max_group_id", |case| {
        case.before(2, 0) || case.hints.domain_attr.max_group_id <= case.offer.domain_attr.max_group_id
    }),
    ("domain_attr.max_cntr_value", |case| {
        let offered = case.offer.domain_attr.max_cntr_value;
        case.before(2, 5) || offered == 0 || case.hints.domain_attr.max_cntr_value <= offered
    }),
    ("domain_attr.max_err_cntr_value", |case| {
        let offered = case.offer.domain_attr.max_err_cntr_value;
        case.before(2, 5) || offered == 0 || case.hints.domain_attr.max_err_cntr_value <= offered
    }),
    ("fabric_attr.name", |case| name_fits(&case.hints.fabric_attr.name, &case.offer.fabric_attr.name)),
    ("fabric_attr.prov_name", |case| {
        let stack: Vec<&str> = case.offer.fabric_attr.prov_name.split(';').collect();
        let wanted = &case.hints.fabric_attr.prov_name;
        wanted.is_empty()
            || wanted.split(';').all(|name| match name.strip_prefix('^') {
                Some(name) => !stack.contains(&name),
                None => stack.contains(&name),
            })
    }),
    ("fabric_attr.prov_version", |case| {
        case.hints.fabric_attr.prov_version.as_c() <= case.offer.fabric_attr.prov_version.as_c()
    }),
    ("fabric_attr.api_version", |case| case.offer.fabric_attr.api_version.as_c() <= case.api.as_c()),
];

// Bits of the capabilities, by number, as the man pages list them.
const TX_BITS: &[u32] = &[1, 2, 3, 4, 5, 6, 8, 9, 11, 20, 21, 44, 47, 49, 58];
const RX_BITS: &[u32] = &[1, 2, 3, 4, 6, 10, 12, 13, 16, 20, 44, 45, 46, 47, 48, 49, 50, 56, 57, 59];
const SECONDARY_BITS: &[u32] = &[16, 21, 46, 49, 51, 52, 53];
const COSTLY_BITS: &[u32] = &[20, 50, 56, 57];

fn bits(set: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |bit| set >> bit & 1 == 1)
}

fn only(these: &[u32], not_those: &[u32]) -> u64 {
    these.iter().filter(|bit| !not_those.contains(bit)).map(|bit| 1 << bit).sum()
}

/// True if the offer has the capability, spelled out or implied.
fn has_cap(offer: &Info, bit: u32) -> bool {
    let caps = offer.caps.bits();
    caps >> bit & 1 == 1 || implied(caps, bit)
}

/// True if `caps` says nothing about directions and `bit` is one of those that it then implies.
fn implied(caps: u64, bit: u32) -> bool {
    let any = |set: &[u32]| set.iter().any(|bit| caps >> bit & 1 == 1);
    let (messages, remote) = ([10, 11], [8, 9, 12, 13]);
    (messages.contains(&bit) && any(&[1, 3]) && !any(&messages))
        || (remote.contains(&bit) && any(&[2, 4]) && !any(&remote))
}

/// True if the endpoint is to have the capability.
fn granted_cap(case: &Case, bit: u32) -> bool {
    let asked = case.hints.caps.bits();
    if !has_cap(&case.offer, bit) {
        return false;
    }
    if asked == 0 {
        return !taken_for_want_of_registration(case, bit);
    }
    let offered_asked = bits(asked).filter(|&bit| has_cap(&case.offer, bit)).map(|bit| 1 << bit).sum();
    asked >> bit & 1 == 1
        || implied(offered_asked, bit)
        || SECONDARY_BITS.contains(&bit)
        || (bit == 57 && asked >> 50 & 1 == 1)
}

/// Without capabilities in the hints: true if this one needs a registration that the hints do not allow.
fn taken_for_want_of_registration(case: &Case, bit: u32) -> bool {
    let needed = |bit: u32| case.offer.domain_attr.mr_mode.bits() >> bit & 1 == 1;
    let allowed = |bit: u32| case.hints.domain_attr.mr_mode.bits() >> bit & 1 == 1;
    let lacks = |bit: u32| needed(bit) && !allowed(bit);
    let target = has_cap(&case.offer, 12) || has_cap(&case.offer, 13);
    let remote = target && (has_cap(&case.offer, 2) || has_cap(&case.offer, 4));
    let counted = has_cap(&case.offer, 56);
    let starts = has_cap(&case.offer, 8) || has_cap(&case.offer, 9);
    let no_target = remote && (lacks(3) || lacks(4) || lacks(6) || (lacks(8) && counted));
    !wants_whole_mode(case)
        && match bit {
            12 | 13 | 56 => no_target,
            2 | 4 => no_target && !starts,
            47 => lacks(10),
            6 => lacks(11),
            44 => lacks(12),
            _ => false,
        }
}

/// True if this bit of the offer's `mr_mode` matters for the endpoint.
fn registration_needs(case: &Case, bit: u32) -> bool {
    let offered = |bit: u32| case.offer.domain_attr.mr_mode.bits() >> bit & 1 == 1;
    let cap = |bit: u32| granted_cap(case, bit);
    let target = (cap(2) || cap(4)) && (cap(12) || cap(13));
    let device = (offered(10) && cap(47)) || (offered(12) && cap(44));
    let at_all = target || offered(2) || device || (offered(11) && cap(6));
    offered(bit)
        && at_all
        && match bit {
            0 | 1 => false,
            3 | 4 | 6 => target,
            8 => target && cap(56),
            10 => cap(47),
            11 => cap(6),
            12 => cap(44),
            _ => true,
        }
}

fn wants_whole_mode(case: &Case) -> bool {
    case.before(1, 5) || case.hints.domain_attr.mr_mode.bits() & 3 != 0
}

fn accesses(case: &Case) -> bool {
    granted_cap(case, 2) || granted_cap(case, 4)
}

/// True if the provider has the capability on this side.
fn side_has(case: &Case, tx: bool, bit: u32) -> bool {
    let caps = if tx { case.offer.tx_attr.caps } else { case.offer.rx_attr.caps }.bits();
    caps == 0 || caps >> bit & 1 == 1 || implied(caps, bit)
}

fn modes_fit(case: &Case, needed: Mode, accepted: Mode) -> bool {
    let accepted = if accepted.is_empty() { case.hints.mode } else { accepted };
    bits(needed.bits()).all(|bit| accepted.bits() >> bit & 1 == 1)
}

fn contexts_fit(wanted: usize, usual: usize, limit: usize, sharers: usize) -> bool {
    match wanted {
        0 => usual != usize::MAX,
        usize::MAX => sharers > 0,
        count => count == 1 || count == usual || count <= limit || (usual != usize::MAX && count < usual),
    }
}

fn name_fits(wanted: &str, offered: &str) -> bool {
    wanted.is_empty() || wanted == offered
}

/// Sets the field with this number to something made of `value`. Returns false if there is no such field.
fn set(info: &mut Info, field: usize, value: u64) -> bool {
    let small = (value % 4) as usize;
    let count = if value.is_multiple_of(5) { usize::MAX } else { (value % 6) as usize };
    let order = MsgOrder::from_bits_retain(value & 0x9_0000_01ff);
    let mode = Mode::from_bits_retain(value & 0x0d90_0000_0000_0000);
    let version = [Version::default(), Version::new(1, 4), Version::new(2, 0)][(value % 3) as usize];
    let pick = |modulus: u64| (value % modulus) as u32;
    match field {
        0..3 => info.caps = caps(value),
        3 => info.mode = mode,
        4 => info.addr_format = AddrFormat::from_c(pick(18)).unwrap(),
        5 => info.tx_attr.caps = caps(value),
        6 => info.tx_attr.mode = mode,
        7 => info.tx_attr.op_flags = OpFlags::from_bits_retain(value & 0x0300_0000),
        8 => info.tx_attr.msg_order = order,
        9 => info.tx_attr.comp_order = value % 4,
        10 => info.tx_attr.inject_size = small,
        11 => info.tx_attr.size = small,
        12 => info.tx_attr.iov_limit = small,
        13 => info.tx_attr.rma_iov_limit = small,
        14 => info.rx_attr.caps = caps(value),
        15 => info.rx_attr.mode = mode,
        16 => info.rx_attr.op_flags = OpFlags::from_bits_retain(value & 0x0101_0000),
        17 => info.rx_attr.msg_order = order,
        18 => info.rx_attr.comp_order = value % 4,
        19 => info.rx_attr.total_buffered_recv = small,
        20 => info.rx_attr.size = small,
        21 => info.rx_attr.iov_limit = small,
        22 => info.ep_attr.ep_type = EpType::from_c(pick(4)).unwrap(),
        23 => info.ep_attr.protocol = Protocol::from_c(14 + pick(4)),
        24 => info.ep_attr.protocol_version = pick(4),
        25 => info.ep_attr.max_msg_size = small,
        26 => info.ep_attr.max_order_raw_size = small,
        27 => info.ep_attr.max_order_war_size = small,
        28 => info.ep_attr.max_order_waw_size = small,
        29 => {
            info.ep_attr.mem_tag_format = [0, 1, 2, value, value >> 24, value >> 57 | 4][(value % 6) as usize]
        }
        30 => info.ep_attr.tx_ctx_cnt = count,
        31 => info.ep_attr.rx_ctx_cnt = count,
        32 => info.ep_attr.auth_key_size = small,
        33 => info.ep_attr.auth_key = vec![7; small],
        34 => info.domain_attr.name = ["", "shm0", "shm1"][(value % 3) as usize].into(),
        35 => info.domain_attr.threading = Threading::from_c(pick(6)).unwrap(),
        36 => info.domain_attr.progress = Progress::from_c(pick(4)).unwrap(),
        37 => info.domain_attr.resource_mgmt = ResourceMgmt::from_c(pick(3)).unwrap(),
        38 => info.domain_attr.av_type = AvType::from_c(pick(3)).unwrap(),
        39 => info.domain_attr.mr_mode = MrMode::from_bits_retain(value as u32 & 0x1ffc),
        40 => info.domain_attr.mr_mode |= MrMode::from_bits_retain(value as u32 & 0x3),
        41 => info.domain_attr.mr_mode = MrMode::from_bits_retain(value as u32 & 0x3),
        42 => info.domain_attr.mr_key_size = small,
        43 => info.domain_attr.cq_data_size = small,
        44 => info.domain_attr.max_ep_tx_ctx = small,
        45 => info.domain_attr.max_ep_stx_ctx = small,
        46 => info.domain_attr.max_ep_srx_ctx = small,
        47 => info.domain_attr.cntr_cnt = small,
        48 => info.domain_attr.mr_iov_limit = small,
        49 => info.domain_attr.caps = Caps::from_bits_retain(value & (0x2002 | 0b11101 << 49)),
        50 => info.domain_attr.mode = mode,
        51 => info.domain_attr.auth_key_size = count,
        52 => info.domain_attr.auth_key = vec![7; small],
        53 => info.domain_attr.max_ep_auth_key = small,
        54 => info.domain_attr.max_group_id = small as u32,
        55 => info.domain_attr.max_cntr_value = small as u64,
        56 => info.fabric_attr.name = ["", "host", "net"][(value % 3) as usize].into(),
        57 => {
            let names = ["", "shm", "udp", "udp;ofi_rxd", "^shm", "udp;^ofi_rxd", "^udp"];
            info.fabric_attr.prov_name = names[(value % 7) as usize].into();
        }
        58 => info.fabric_attr.prov_version = version,
        59 => info.fabric_attr.api_version = version,
        60 => info.domain_attr.mr_mode = MrMode::from_bits_retain(0x1ffc),
        61 => info.mode = Mode::from_bits_retain(u64::MAX),
        62 => info.domain_attr.max_ep_rx_ctx = small,
        63 => info.domain_attr.max_err_data = small,
        64 => info.domain_attr.mr_cnt = small,
        65 => info.domain_attr.max_err_cntr_value = small as u64,
        _ => return false,
    }
    true
}

const FIELDS: usize = 66;

/// Capabilities of which messages, remote access and their directions are likely, and the rest rare.
fn caps(value: u64) -> Caps {
    let rare = if value & 3 == 0 { Caps::all().bits() } else { 0 };
    let half = value.rotate_left(17) | value.rotate_left(31);
    Caps::from_bits_retain(value & (0x3f1e | rare) | half & (0x0300_8000_0001_0000 & rare))
}

prop_compose! {
    fn case()(
        offer_changes in prop::collection::vec((0..FIELDS, any::<u64>()), 0..10),
        hint_changes in prop::collection::vec((0..FIELDS, any::<u64>()), 0..7),
        api in prop::sample::select(vec![(1, 4), (1, 5), (1, 20), (2, 0), (2, 6), (2, 6), (2, 6)]),
    ) -> Case {
        let mut offer = able();
        offer.domain_attr.max_ep_stx_ctx = 2;
        let mut hints = Info::default();
        for (info, changes) in [(&mut offer, offer_changes), (&mut hints, hint_changes)] {
            for (field, value) in changes {
                assert!(set(info, field, value));
            }
        }
        // An offer names no exclusions.
        offer.fabric_attr.prov_name = offer.fabric_attr.prov_name.replace('^', "");
        Case { offer, hints, api: Version::new(api.0, api.1) }
    }
}

impl std::fmt::Debug for Case {
    /// Only what was changed.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "api {}", self.api)?;
        for (side, info, usual) in [("offer", &self.offer, able()), ("hints", &self.hints, Info::default())] {
            let (changed, usual) = (format!("{info:#?}"), format!("{usual:#?}"));
            let lines = changed.lines().zip(usual.lines());
            lines.filter(|(a, b)| a != b).try_for_each(|(line, _)| write!(f, "\n{side} {}", line.trim()))?;
        }
        Ok(())
    }
}

fn run(case: &Case) -> Result<Info, Vec<Refusal>> {
    negotiate(&case.offer, Some(&Hints::from(case.hints.clone())), case.api)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_refused_fields_are_those_on_which_the_sides_do_not_agree(case in case()) {
        let expected: BTreeSet<&str> =
            TABLE.iter().filter(|(_, agreed)| !agreed(&case)).map(|(field, _)| *field).collect();
        let refusals = run(&case).err().unwrap_or_default();
        let refused: BTreeSet<&str> = refusals.iter().map(|refusal| refusal.field).collect();
        prop_assert_eq!(refused.len(), refusals.len(), "a field is refused twice");
        prop_assert_eq!(refused, expected);
    }

    #[test]
    fn the_granted_capabilities_are_those_of_the_model(case in case()) {
        if let Ok(info) = run(&case) {
            let expected: BTreeSet<u32> = (0..64).filter(|&bit| granted_cap(&case, bit)).collect();
            let asked_costly = case.hints.caps.bits() & only(COSTLY_BITS, &[]);
            prop_assert_eq!(bits(info.caps.bits()).collect::<BTreeSet<_>>(), expected);
            prop_assert_eq!(asked_costly & !info.caps.bits(), 0);
            prop_assert!(info.caps.contains(info.tx_attr.caps | info.rx_attr.caps));
        }
    }

    #[test]
    fn what_is_granted_is_what_was_asked_or_what_was_offered(case in case()) {
        if let Ok(info) = run(&case) {
            let sizes = |info: &Info| [
                info.tx_attr.inject_size, info.tx_attr.size, info.tx_attr.iov_limit, info.tx_attr.rma_iov_limit,
                info.rx_attr.size, info.rx_attr.iov_limit,
                info.domain_attr.cq_data_size, info.domain_attr.max_ep_tx_ctx,
            ];
            for ((granted, asked), offered) in
                sizes(&info).into_iter().zip(sizes(&case.hints)).zip(sizes(&case.offer))
            {
                prop_assert_eq!(granted, if asked == 0 { offered } else { asked });
            }
            prop_assert_eq!(info.ep_attr.max_msg_size, case.offer.ep_attr.max_msg_size);
            prop_assert!(case.hints.mode.contains(info.mode));
            prop_assert_eq!(info.tx_attr.op_flags, case.hints.tx_attr.op_flags);
            prop_assert!(info.tx_attr.msg_order.contains(case.hints.tx_attr.msg_order));
            if !wants_whole_mode(&case) {
                prop_assert!(case.hints.domain_attr.mr_mode.contains(info.domain_attr.mr_mode));
            }
            prop_assert_eq!(info.domain_attr.progress, info.domain_attr.control_progress);
            prop_assert_eq!(info.fabric_attr.api_version, case.api);
        }
    }

    /// A program may keep an info and ask with it again, in this run or the next. (A side without any
    /// capability cannot be asked for, since none means all.)
    #[test]
    fn asking_for_what_was_granted_is_granted_unchanged(case in case()) {
        let granted = run(&case);
        let whole = |info: &Info| !info.tx_attr.caps.is_empty() && !info.rx_attr.caps.is_empty();
        if let Some(info) = granted.ok().filter(whole) {
            let again = negotiate(&case.offer, Some(&Hints::from(info.clone())), case.api);
            prop_assert_eq!(again, Ok(info));
        }
    }

    #[test]
    fn without_hints_an_offer_is_refused_only_for_what_the_program_must_know_of(case in case()) {
        let fields: Vec<&str> = match negotiate(&case.offer, None, case.api) {
            Ok(_) => Vec::new(),
            Err(refusals) => refusals.iter().map(|refusal| refusal.field).collect(),
        };
        for field in fields {
            prop_assert!(
                matches!(field, "ep_attr.tx_ctx_cnt" | "ep_attr.rx_ctx_cnt" | "fabric_attr.api_version")
                    || (field == "domain_attr.mr_mode" && case.before(1, 5)),
                "{}", field
            );
        }
    }
}
