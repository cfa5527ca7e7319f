//! Devices and their ports.

use std::ffi::{CStr, c_char, c_int};
use std::mem::zeroed;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::abi::*;
use crate::error::{Error, Result};
use crate::library::{cm, verbs};
use crate::missing;

/// An open device. librdmacm opens each device once per process, and keeps it open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Context(NonNull<ibv_context>);

// SAFETY: functions of libibverbs may be called from any thread (ibv_open_device(3) and others), and the context stays
// open.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Context").field(&self.name()).finish()
    }
}

/// The attributes and limits of a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The version of its firmware.
    pub firmware: String,
    /// The vendor's id.
    pub vendor: u32,
    /// The vendor's number of the product.
    pub part: u32,
    /// The product's version.
    pub version: u32,
    /// Ports, numbered from 1.
    pub ports: u8,
    /// The maximum number of queue pairs, of all programs together.
    pub max_queue_pairs: usize,
    /// Maximum number of work requests in a queue.
    pub max_queue: usize,
    /// Maximum number of entries of a completion queue.
    pub max_completions: usize,
    /// Maximum number of work requests in a shared receive queue.
    pub max_shared: usize,
    /// Maximum number of memory pieces in one work request.
    pub max_pieces: usize,
    /// Whether the device executes remote atomics. They are atomic at least with respect to its other atomics.
    pub atomics: bool,
    /// Maximum number of multicast groups.
    pub max_groups: usize,
    /// The maximum number of remote reads that a queue pair may have outstanding; also the number that it may serve.
    pub max_reads: u8,
}

/// The attributes of a port and its link.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// Whether it is up.
    pub active: bool,
    /// Maximum payload bytes of one packet.
    pub mtu: usize,
    /// Maximum length of a message in bytes.
    pub max_message: usize,
    /// Its speed in bits per second.
    pub speed: u64,
    /// Whether it is Ethernet (RoCE) rather than InfiniBand.
    pub ethernet: bool,
    /// Number of entries of its GID table.
    pub gids: usize,
    /// Its local identifier (InfiniBand).
    pub lid: u16,
}

/// A port's global identifier: an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an IP address: an IPv4 address is mapped.
    pub fn of(ip: IpAddr) -> Self {
        Self(match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        })
    }

    /// The IP address of the GID. On RoCE every address of the interface has a GID.
    pub fn ip(self) -> IpAddr {
        let ip = Ipv6Addr::from(self.0);
        ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index in the table.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// The packets of connections from there.
    pub version: GidVersion,
    /// The index of its network interface, within that interface's network namespace; 0 if there is none.
    pub interface: u32,
}

/// The packet format that belongs to a GID. Later variants are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GidVersion {
    /// Those of InfiniBand.
    Ib,
    /// RoCE version 1: InfiniBand's in Ethernet frames.
    RoceV1,
    /// RoCE version 2: UDP datagrams.
    RoceV2,
}

/// The devices of this host.
///
/// # Errors
/// An error that says what is missing: a library, a kernel module, or a device.
pub fn contexts() -> Result<&'static [Context]> {
    static CONTEXTS: OnceLock<Vec<Context>> = OnceLock::new();
    if let Some(found) = CONTEXTS.get() {
        return Ok(found);
    }
    let (cm, _) = (cm()?, verbs()?);
    let mut count: c_int = 0;
    // SAFETY: the function writes the number of devices.
    let list = unsafe { (cm.rdma_get_devices)(&mut count) };
    if list.is_null() {
        let error = Error::last("rdma_get_devices");
        // librdmacm does not report why there are no devices.
        return Err(if error.errno == libc::ENODEV { missing::device("rdma_get_devices") } else { error });
    }
    // Never freed: the contexts stay open only as long as the list exists.
    let all = (0..usize::try_from(count).unwrap_or(0)).filter_map(|index| {
        // SAFETY: the list has `count` entries.
        NonNull::new(unsafe { list.wrapping_add(index).read() }).map(Context)
    });
    let all: Vec<Context> = all.collect();
    if all.is_empty() {
        return Err(missing::device("rdma_get_devices"));
    }
    Ok(CONTEXTS.get_or_init(|| all))
}

impl Context {
    pub(crate) fn as_ptr(self) -> *mut ibv_context {
        self.0.as_ptr()
    }

    /// A context that librdmacm has opened.
    pub(crate) fn from_ptr(context: *mut ibv_context) -> Option<Self> {
        NonNull::new(context).map(Self)
    }

    /// The descriptor of its asynchronous events.
    pub(crate) fn async_fd(self) -> RawFd {
        // SAFETY: the context stays open, and this field does not change.
        unsafe { (*self.0.as_ptr()).async_fd }
    }

    /// The driver's own functions.
    pub(crate) fn ops(self) -> &'static ibv_context_ops {
        // SAFETY: the context stays open, and its table does not change.
        unsafe { &(*self.0.as_ptr()).ops }
    }

    fn device(self) -> &'static ibv_device {
        // SAFETY: an open context, whose device does not change.
        let device = unsafe { (*self.0.as_ptr()).device };
        // SAFETY: the device exists as long as the context.
        unsafe { &*device }
    }

    /// Whether it is an open context of this device.
    pub(crate) fn is_of(self, device: *const ibv_device) -> bool {
        std::ptr::eq(self.device(), device)
    }

    /// Whether the device speaks iWARP, in which reads and immediate data differ from InfiniBand and RoCE.
    pub fn is_iwarp(self) -> bool {
        self.device().transport_type == IBV_TRANSPORT_IWARP
    }

    /// Its name, such as `mlx5_0`.
    pub fn name(self) -> String {
        text(&self.device().name)
    }

    /// Its path in sysfs.
    pub fn path(self) -> String {
        text(&self.device().ibdev_path)
    }

    /// Queries its attributes and limits.
    ///
    /// # Errors
    /// The errors of ibv_query_device(3).
    pub fn query(self) -> Result<DeviceInfo> {
        // SAFETY: all zeros are valid numbers.
        let mut attr: ibv_device_attr = unsafe { zeroed() };
        // SAFETY: an open context; the structure is that of the interface.
        let errno = unsafe { (verbs()?.ibv_query_device)(self.as_ptr(), &mut attr) };
        if errno != 0 {
            return Err(Error::of("ibv_query_device", errno));
        }
        let count = |value: c_int| usize::try_from(value).unwrap_or(0);
        Ok(DeviceInfo {
            firmware: text(&attr.fw_ver),
            vendor: attr.vendor_id,
            part: attr.vendor_part_id,
            version: attr.hw_ver,
            ports: attr.phys_port_cnt,
            max_queue_pairs: count(attr.max_qp),
            max_queue: count(attr.max_qp_wr),
            max_completions: count(attr.max_cqe),
            max_shared: count(attr.max_srq_wr),
            max_pieces: count(attr.max_sge.min(attr.max_sge_rd.max(1))),
            atomics: attr.atomic_cap != IBV_ATOMIC_NONE,
            max_groups: count(attr.counts[5]),
            max_reads: attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom).clamp(0, 255) as u8,
        })
    }

    /// Queries the attributes of a port.
    ///
    /// # Errors
    /// The errors of ibv_query_port(3).
    pub fn port(self, port: u8) -> Result<PortInfo> {
        // SAFETY: all zeros are valid numbers.
        let mut attr: ibv_port_attr = unsafe { zeroed() };
        // SAFETY: an open context; the function writes at most the length of the structure.
        let errno = unsafe { (verbs()?.ibv_query_port)(self.as_ptr(), port, &mut attr) };
        if errno != 0 {
            return Err(Error::of("ibv_query_port", errno));
        }
        Ok(PortInfo {
            active: attr.state == IBV_PORT_ACTIVE,
            // IBV_MTU_256 is 1, IBV_MTU_4096 is 5.
            mtu: 128 << attr.active_mtu.clamp(1, 5),
            max_message: attr.max_msg_sz as usize,
            speed: lanes(attr.active_width) * rate(attr.active_speed),
            ethernet: attr.link_layer == IBV_LINK_LAYER_ETHERNET,
            gids: usize::try_from(attr.gid_tbl_len).unwrap_or(0),
            lid: attr.lid,
        })
    }

    /// The GIDs of a port without duplicates: on RoCE the table has one entry for each RoCE version.
    ///
    /// # Errors
    /// The errors of ibv_query_port(3) and ibv_query_gid_table(3).
    pub fn gids(self, port: u8) -> Result<Vec<Gid>> {
        let mut gids: Vec<Gid> = Vec::new();
        for entry in self.gid_table(port)? {
            if !gids.contains(&Gid(entry.gid)) {
                gids.push(Gid(entry.gid));
            }
        }
        Ok(gids)
    }

    /// The entries of a port's GID table that are in use, of all network namespaces.
    ///
    /// # Errors
    /// As [`Context::gids`].
    pub fn gid_entries(self, port: u8) -> Result<Vec<GidEntry>> {
        let entry = |raw: &ibv_gid_entry| GidEntry {
            index: raw.gid_index,
            gid: Gid(raw.gid),
            version: match raw.gid_type {
                0 => GidVersion::Ib,
                1 => GidVersion::RoceV1,
                _ => GidVersion::RoceV2,
            },
            interface: raw.ndev_ifindex,
        };
        Ok(self.gid_table(port)?.iter().map(entry).collect())
    }

    /// The index of a GID in a port's table. If it has several entries, that of the newest RoCE version.
    ///
    /// # Errors
    /// As [`Context::gids`]; `ENOENT` if the port lacks the GID.
    pub fn gid_index(self, port: u8, gid: Gid) -> Result<u8> {
        let table = self.gid_table(port)?;
        let places = table.iter().filter(|entry| entry.gid == gid.0);
        let place =
            places.max_by_key(|entry| entry.gid_type).and_then(|entry| entry.gid_index.try_into().ok());
        place.ok_or_else(|| {
            Error::with("ibv_query_gid_table", libc::ENOENT, "the port has no such GID any more")
        })
    }

    /// The GID at an index of a port's table, if the entry is in use.
    ///
    /// # Errors
    /// The errors of ibv_query_gid_table(3).
    pub fn gid_at(self, port: u8, index: u8) -> Result<Option<Gid>> {
        let table = self.gid_table(port)?;
        Ok(table.iter().find(|entry| entry.gid_index == u32::from(index)).map(|entry| Gid(entry.gid)))
    }

    /// The entries of a port's table that are in use.
    fn gid_table(self, port: u8) -> Result<Vec<ibv_gid_entry>> {
        // One call for the whole table, which may have a thousand entries: querying them one by one opens a file for
        // each.
        let most = self.port(port)?.gids.min(1 << 16) * usize::from(self.query()?.ports);
        // SAFETY: all zeros are valid numbers.
        let mut table: Vec<ibv_gid_entry> = vec![unsafe { zeroed() }; most];
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: an open context; the function writes at most `most` entries of that size.
        let count =
            unsafe { (verbs()?._ibv_query_gid_table)(self.as_ptr(), table.as_mut_ptr(), most, 0, size) };
        let Ok(count) = usize::try_from(count) else {
            return Err(Error::of("ibv_query_gid_table", c_int::try_from(-count).unwrap_or(libc::EIO)));
        };
        table.truncate(count);
        table.retain(|entry| entry.port_num == u32::from(port) && entry.gid != [0; 16]);
        Ok(table)
    }
}

/// Number of lanes of a link width (`ibv_port_attr.active_width`).
fn lanes(width: u8) -> u64 {
    match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

/// Bits per second of one lane (`ibv_port_attr.active_speed`).
fn rate(speed: u8) -> u64 {
    const GIGA: u64 = 1_000_000_000;
    match speed {
        1 => 5 * GIGA / 2,
        2 => 5 * GIGA,
        4 | 8 => 10 * GIGA,
        16 => 14 * GIGA,
        32 => 25 * GIGA,
        64 => 50 * GIGA,
        128 => 100 * GIGA,
        _ => 0,
    }
}

/// A string in a field of fixed size.
fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|&byte| byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}
