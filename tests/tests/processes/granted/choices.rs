//! Random requests. A case is a few changes of empty hints, so that a failing case shrinks to the fields that matter.

use ofi_testkit::prelude::*;
use proptest::prelude::*;

use super::Under;

/// A request to getinfo.
#[derive(Clone, Debug)]
pub struct Case {
    /// Changes of the hints by field and value. `None`: null hints.
    pub changes: Option<Vec<(usize, u64)>>,
    /// The version of the program: an index of [`VERSIONS`].
    pub api: usize,
    /// Node, service and flags: an index of [`Under::ends`].
    pub ends: usize,
    /// Whether endpoints may also use shared memory.
    pub near: bool,
}

/// All released versions of the interface.
const VERSIONS: [(u16, u16); 30] = {
    let mut all = [(1, 0); 30];
    let mut at = 0;
    while at < 30 {
        all[at] = if at < 23 { (1, at as u16) } else { (2, at as u16 - 23) };
        at += 1;
    }
    all
};

prop_compose! {
    pub fn case()(
        changes in prop::option::weighted(0.98, prop::collection::vec((0..FIELDS, any::<u64>()), 0..7)),
        api in 0..VERSIONS.len(),
        ends in prop_oneof![3 => Just(0_usize), 1 => 0..64_usize],
        near in any::<bool>(),
    ) -> Case {
        Case { changes, api, ends, near }
    }
}

impl Case {
    pub fn version(&self) -> Version {
        let (major, minor) = VERSIONS[self.api];
        Version::new(major, minor)
    }

    /// The hints, for one provider.
    pub fn hints(&self, under: &Under) -> Option<Hints> {
        let mut hints = Hints::new().provider(under.provider);
        for &(field, value) in self.changes.as_ref()? {
            assert!(set(&mut hints.info, under, field, value), "field {field}");
        }
        Some(hints)
    }
}

/// A size: none, small, usual, or more than any device has.
fn size(value: u64) -> usize {
    [0, 1, 2, 8, 64, 256, 1024, 1472, 4096, 8192, 1 << 16, 1 << 20, usize::MAX][(value % 13) as usize]
}

/// Sets the field with this number to a value derived from `value`. False if there is no such field.
fn set(info: &mut Info, under: &Under, field: usize, value: u64) -> bool {
    let pick = |modulus: u64| (value % modulus) as u32;
    let few = (value % 6) as usize;
    let contexts = [0, 1, 2, 5, 300, SHARED_CONTEXT][few];
    let order = MsgOrder::from_bits_retain(value & 0x9_0000_01ff & value.rotate_left(13));
    let mode = Mode::from_bits_retain(value & 0x0d90_0000_0000_0000);
    match field {
        0..6 => info.caps = caps(value),
        6 => info.mode = mode,
        7 => info.mode = Mode::from_bits_retain(u64::MAX) - Mode::MSG_PREFIX,
        8 => info.addr_format = AddrFormat::from_c(pick(18)).expect("a format of the header"),
        9 => info.tx_attr.caps = caps(value),
        10 => info.rx_attr.caps = caps(value),
        11 => info.tx_attr.mode = mode,
        12 => info.rx_attr.mode = mode,
        13 => info.tx_attr.op_flags = OpFlags::from_bits_retain(value & 0x9f00_0000 & value.rotate_left(9)),
        14 => info.rx_attr.op_flags = OpFlags::from_bits_retain(value & 0x0101_0000 & value.rotate_left(9)),
        15 => info.tx_attr.msg_order = order,
        16 => info.rx_attr.msg_order = order,
        17 => info.tx_attr.comp_order = value % 3,
        18 => info.rx_attr.comp_order = value % 3,
        19 => info.tx_attr.inject_size = size(value),
        20 => info.tx_attr.size = size(value),
        21 => info.tx_attr.iov_limit = few,
        22 => info.tx_attr.rma_iov_limit = few,
        23 => info.rx_attr.size = size(value),
        24 => info.rx_attr.iov_limit = few,
        25 => info.rx_attr.total_buffered_recv = size(value),
        26..29 => info.ep_attr.ep_type = EpType::from_c(pick(4)).expect("a type of the header"),
        29 => info.ep_attr.protocol_version = pick(5),
        30 => info.ep_attr.max_msg_size = size(value),
        31 => info.ep_attr.max_order_raw_size = size(value),
        32 => info.ep_attr.max_order_waw_size = size(value),
        33 => info.ep_attr.mem_tag_format = [0, 1, 2, value, value >> 24][few % 5],
        34 => info.ep_attr.tx_ctx_cnt = contexts,
        35 => info.ep_attr.rx_ctx_cnt = contexts,
        36 => {
            let len = [0, 1, 16, 40][few % 4];
            (info.ep_attr.auth_key_size, info.ep_attr.auth_key) = (len, vec![7; len]);
        }
        37 => info.domain_attr.threading = Threading::from_c(pick(6)).expect("a model of the header"),
        38 => info.domain_attr.progress = Progress::from_c(pick(4)).expect("one of the header"),
        39 => info.domain_attr.resource_mgmt = ResourceMgmt::from_c(pick(3)).expect("one of the header"),
        40 => info.domain_attr.av_type = AvType::from_c(pick(3)).expect("a type of the header"),
        41..44 => info.domain_attr.mr_mode = MrMode::from_bits_retain(value as u32 & 0x1ffc),
        44 => info.domain_attr.mr_mode = MrMode::from_bits_retain(value as u32 & 0x3),
        45 => info.domain_attr.mr_mode = MrMode::from_bits_retain(0x1ffc),
        46 => info.domain_attr.mr_key_size = few,
        47 => info.domain_attr.cq_data_size = few,
        48 => info.domain_attr.max_ep_tx_ctx = size(value),
        49 => info.domain_attr.max_ep_rx_ctx = size(value),
        50 => info.domain_attr.cntr_cnt = size(value),
        51 => info.domain_attr.mr_iov_limit = few,
        52 => info.domain_attr.caps = Caps::from_bits_retain(value & (0x2002 | 0b11101 << 49)),
        53 => info.domain_attr.mode = mode,
        54 => info.domain_attr.max_err_data = size(value),
        55 => info.domain_attr.mr_cnt = size(value),
        56 => info.domain_attr.max_cntr_value = value >> pick(64),
        57 => info.tx_attr.tclass = TrafficClass::from_c(class(value)),
        58 => info.domain_attr.tclass = TrafficClass::from_c(class(value)),
        59 => info.fabric_attr.prov_version = Version::new(few as u16 / 3, few as u16),
        60 => info.src_addr = (under.source)(),
        61 => {
            let len = [0, 1, 16, 40, AV_AUTH_KEY][few % 5];
            let key = if len == AV_AUTH_KEY { Vec::new() } else { vec![7; len] };
            (info.domain_attr.auth_key_size, info.domain_attr.auth_key) = (len, key);
        }
        62 => info.domain_attr.max_ep_stx_ctx = few,
        63 => info.domain_attr.max_ep_srx_ctx = few,
        64 => info.ep_attr.max_order_war_size = size(value),
        65 => info.ep_attr.msg_prefix_size = few * 8,
        66 => info.domain_attr.control_progress = Progress::from_c(pick(4)).expect("one of the header"),
        67 => (info.domain_attr.cq_cnt, info.domain_attr.ep_cnt) = (size(value), few),
        68 => (info.domain_attr.tx_ctx_cnt, info.domain_attr.rx_ctx_cnt) = (size(value), few),
        69 => info.domain_attr.max_ep_auth_key = few / 2,
        70 => info.domain_attr.max_group_id = pick(3) / 2,
        71 => info.domain_attr.max_err_cntr_value = value >> pick(64),
        72 => info.fabric_attr.prov_name = String::new(),
        73 => {
            let of_domain = |known: &(String, String, Protocol)| known.1.clone();
            info.domain_attr.name = named(under, value, of_domain).unwrap_or_else(|| "nowhere".into());
        }
        74 => {
            let of_fabric = |known: &(String, String, Protocol)| known.0.clone();
            info.fabric_attr.name = named(under, value, of_fabric).unwrap_or_else(|| "nowhere".into());
        }
        75 => info.ep_attr.protocol = named(under, value, |known| known.2).unwrap_or(Protocol::PSMX2),
        76 => info.fabric_attr.api_version = Version::new(few as u16 / 3, few as u16),
        77 => info.dest_addr = (under.source)(),
        78 => info.caps = caps(value) | Caps::from_bits_retain(1 << (value >> 58)),
        _ => return false,
    }
    true
}

const FIELDS: usize = 79;

/// A value that an info of the provider has, or `None`.
fn named<T>(under: &Under, value: u64, part: impl Fn(&(String, String, Protocol)) -> T) -> Option<T> {
    let known = under.known();
    known.get((value % (known.len() as u64 + 1)) as usize).map(part)
}

/// Traffic class labels, code points, and invalid numbers.
fn class(value: u64) -> u32 {
    let low = (value >> 8) as u32;
    [0, 0x100 + low % 80, 0x200 + low % 8, low % 0x1000][(value % 4) as usize]
}

/// Capabilities: mostly of messages, remote access and their directions.
fn caps(value: u64) -> Caps {
    let rare = if value & 3 == 0 { Caps::all().bits() } else { 0 };
    let half = value.rotate_left(17) & value.rotate_left(31);
    Caps::from_bits_retain(value & 0x3f1e | half & rare)
}
