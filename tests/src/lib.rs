//! What the tests of several processes share: how their endpoints are opened and told of.

pub mod mesh;

use testkit::prelude::*;

/// How endpoints are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// `fi_shm://…`
    Names,
    /// `127.0.0.1:port`
    Ports,
}

impl Naming {
    /// As an argument of a child.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Names => "names",
            Self::Ports => "ports",
        }
    }

    /// From an argument of a child.
    pub fn from_argument(text: &str) -> Self {
        if text == "ports" { Self::Ports } else { Self::Names }
    }
}

/// Shared memory, with everything that these tests use.
pub fn hints(naming: Naming) -> Hints {
    let format = match naming {
        Naming::Names => AddrFormat::Str,
        Naming::Ports => AddrFormat::SockaddrIn,
    };
    let caps = Caps::MSG
        | Caps::TAGGED
        | Caps::RMA
        | Caps::SOURCE
        | Caps::TAGGED_DIRECTED_RECV
        | Caps::DIRECTED_RECV;
    Hints::new()
        .provider("shm")
        .caps(caps)
        .mr_mode(MrMode::VIRT_ADDR | MrMode::PROV_KEY)
        .addr_format(format)
        .progress(Progress::Manual)
}

/// An endpoint of this process.
pub fn open(naming: Naming) -> Side {
    Opening::new(hints(naming)).open()
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
