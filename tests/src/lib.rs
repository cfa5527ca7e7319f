//! What the tests of several processes share: how their endpoints are opened and told of.

pub mod mesh;
pub mod udp;

use testkit::prelude::*;

/// How endpoints are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// `fi_shm://…`
    Names,
    /// `127.0.0.1:port`
    Ports,
    /// UDP sockets on loopback, not shared memory.
    Udp,
}

impl Naming {
    /// As an argument of a child.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Names => "names",
            Self::Ports => "ports",
            Self::Udp => "udp",
        }
    }

    /// From an argument of a child.
    pub fn from_argument(text: &str) -> Self {
        match text {
            "ports" => Self::Ports,
            "udp" => Self::Udp,
            _ => Self::Names,
        }
    }
}

/// Shared memory or UDP, with everything that these tests use.
pub fn hints(naming: Naming) -> Hints {
    let format = match naming {
        Naming::Names => AddrFormat::Str,
        Naming::Ports | Naming::Udp => AddrFormat::SockaddrIn,
    };
    let caps = Caps::MSG
        | Caps::TAGGED
        | Caps::RMA
        | Caps::SOURCE
        | Caps::TAGGED_DIRECTED_RECV
        | Caps::DIRECTED_RECV;
    let hints = match naming {
        Naming::Names | Naming::Ports => Hints::new().provider("shm"),
        Naming::Udp => {
            let loopback = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
            Hints::new().provider("udp").ep_type(EpType::Rdm).src_addr(loopback.into())
        }
    };
    hints
        .caps(caps)
        .mr_mode(MrMode::VIRT_ADDR | MrMode::PROV_KEY)
        .addr_format(format)
        .progress(Progress::Manual)
}

/// How an endpoint with these hints is opened. One of `udp` does without shared memory.
pub fn opening(hints: Hints) -> Opening {
    let udp = hints.info.fabric_attr.prov_name == "udp";
    let opening = Opening::new(hints);
    if udp { opening.without_shared_memory() } else { opening }
}

/// An endpoint of this process.
pub fn open(naming: Naming) -> Side {
    opening(hints(naming)).open()
}

/// An address out of a line of text.
///
/// # Panics
/// If it is none.
#[track_caller]
pub fn parse(text: &str) -> Address {
    text.parse().expect("an address")
}

/// A remote range as text, for a line.
pub fn region_text(region: &std::sync::Arc<dyn MemoryRegion>) -> String {
    format!("{} {} {}", region.base(), region.len(), region.key())
}

/// A remote range out of a line of text.
///
/// # Panics
/// If it is none.
#[track_caller]
pub fn parse_region(text: &str) -> RemotePiece {
    let mut words = text.split(' ').map(|word| word.parse::<u64>().expect("a number"));
    let mut next = || words.next().expect("three numbers");
    RemotePiece { addr: next(), len: next() as usize, key: next() }
}

/// Resident memory of this process, in KiB.
pub fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
