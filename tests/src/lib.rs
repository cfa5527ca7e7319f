//! Shared by tests of several processes: opening and describing their endpoints.

pub mod certificates;
pub mod costs;
pub mod denied;
pub mod heard;
pub mod mesh;
pub mod two;
pub mod udp;

use ofi_testkit::prelude::*;

/// The addresses of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// `fi_shm://…`
    Names,
    /// `127.0.0.1:port`
    Ports,
    /// `fi_shm://…`, on either of two instances of shared memory ([`two::Turns`]).
    Crossed,
    /// UDP sockets on loopback, not shared memory.
    Udp,
    /// Provider `udp` with its defaults: it uses shared memory within a host.
    Nearby,
    /// Provider `tcp` on loopback, not shared memory.
    Tcp,
    /// The same with an authorization key: TLS.
    TcpSealed,
    /// Provider `tcp` with its defaults: it uses shared memory within a host.
    NearbyTcp,
}

impl Naming {
    /// The argument for a child.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Names => "names",
            Self::Ports => "ports",
            Self::Crossed => "crossed",
            Self::Udp => "udp",
            Self::Nearby => "nearby",
            Self::Tcp => "tcp",
            Self::TcpSealed => "tcp-sealed",
            Self::NearbyTcp => "nearby-tcp",
        }
    }

    /// Whether endpoints with a choice do not use shared memory.
    pub const fn is_far(self) -> bool {
        matches!(self, Self::Udp | Self::Tcp | Self::TcpSealed)
    }

    /// Parses the argument of a child.
    pub fn from_argument(text: &str) -> Self {
        let all = [
            Self::Ports,
            Self::Crossed,
            Self::Udp,
            Self::Nearby,
            Self::Tcp,
            Self::TcpSealed,
            Self::NearbyTcp,
        ];
        all.into_iter().find(|naming| naming.as_str() == text).unwrap_or(Self::Names)
    }
}

/// Lets provider `tcp` offer what only ends of this library have, in this process and its children.
pub fn tcp_atomics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: `std::env` takes a lock, and the C library's resolver, which takes none, is not called yet: a test
        // begins with its hints, in a process of its own under nextest.
        unsafe { std::env::set_var("FI_TCP_ATOMICS", "1") };
    });
}

/// Lets endpoints of `tcp` stripe long payloads over three connections, by the setting, because hints have no word for
/// it.
pub fn tcp_bulk() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: as in `tcp_atomics`.
        unsafe { std::env::set_var("FI_TCP_BULK_CONNECTIONS", "3") };
    });
}

/// Hints with everything that these tests use.
pub fn hints(naming: Naming) -> Hints {
    let (provider, format) = match naming {
        Naming::Names => ("shm", AddrFormat::Str),
        Naming::Ports => ("shm", AddrFormat::SockaddrIn),
        Naming::Crossed => {
            two::register();
            ("crossed", AddrFormat::Str)
        }
        Naming::Udp | Naming::Nearby => ("udp", AddrFormat::SockaddrIn),
        Naming::Tcp | Naming::TcpSealed | Naming::NearbyTcp => {
            tcp_atomics();
            ("tcp", AddrFormat::SockaddrIn)
        }
    };
    let loopback = Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    let caps = Caps::MSG
        | Caps::TAGGED
        | Caps::RMA
        | Caps::SOURCE
        | Caps::TAGGED_DIRECTED_RECV
        | Caps::DIRECTED_RECV;
    let hints = Hints::new()
        .provider(provider)
        .caps(caps)
        .ep_type(EpType::Rdm)
        .mr_mode(MrMode::VIRT_ADDR | MrMode::PROV_KEY)
        .addr_format(format)
        .progress(Progress::Manual);
    let hints = if naming == Naming::TcpSealed { hints.auth_key(*b"the tests' key") } else { hints };
    if matches!(provider, "udp" | "tcp") { hints.src_addr(loopback) } else { hints }
}

/// Options for an endpoint.
pub fn opening(naming: Naming) -> Opening {
    let opening = Opening::new(hints(naming));
    if naming.is_far() { opening.without_shared_memory() } else { opening }
}

/// Opens an endpoint of this process.
pub fn open(naming: Naming) -> TestEndpoint {
    opening(naming).open()
}

/// Parses an address from a line of text.
///
/// # Panics
/// If the text is not an address.
#[track_caller]
pub fn parse(text: &str) -> Address {
    text.parse().expect("an address")
}

/// A remote range as text for a line.
pub fn region_text(region: &std::sync::Arc<dyn MemoryRegion>) -> String {
    format!("{} {} {}", region.base(), region.len(), region.key())
}

/// Parses a remote range from a line of text.
///
/// # Panics
/// If the text is not a range.
#[track_caller]
pub fn parse_region(text: &str) -> RemotePiece {
    let mut words = text.split(' ').map(|word| word.parse::<u64>().expect("a number"));
    let mut next = || words.next().expect("three numbers");
    RemotePiece { addr: next(), len: next() as usize, key: next() }
}

/// Sets the descriptor limit of this process; 0 stands for the hard limit.
///
/// # Panics
/// If the system refuses.
pub fn limit_descriptors(limit: u64) {
    let mut current = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut current) };
    current = match limit {
        0 => libc::rlimit { rlim_cur: current.rlim_max, ..current },
        limit => libc::rlimit { rlim_cur: limit, rlim_max: limit },
    };
    // SAFETY: reads the structure.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const current) };
    assert_eq!(set, 0, "setrlimit to {limit}");
}

/// Resident memory of this process, in KiB.
pub fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
