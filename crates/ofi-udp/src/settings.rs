//! The provider's settings.

use std::ops::RangeInclusive;

use ofi_core::config::{AnySetting, Problem, Setting};

/// How long a peer may be silent while something is unacknowledged, before all operations to it fail.
pub static PEER_TIMEOUT_MS: Setting<usize> = Setting::new(
    "udp",
    "peer_timeout_ms",
    5000,
    "Milliseconds after which operations to a peer fail if neither it nor its process answers",
)
.range(100, 3_600_000);

/// The requested size of a socket's buffers. The kernel may grant less (net.core.rmem_max); the granted size is
/// announced to senders.
pub static SOCKET_BUFFER: Setting<usize> = Setting::new(
    "udp",
    "socket_buffer",
    8 << 20,
    "Size to request for an endpoint's socket buffers, in each direction; the kernel may grant less",
)
.range(1 << 16, 1 << 30);

/// How long a receive busy-polls the network card's queue.
pub static BUSY_POLL_US: Setting<usize> = Setting::new(
    "udp",
    "busy_poll_us",
    0,
    "Microseconds for which a receive polls the network card's queue (SO_BUSY_POLL); 0: the value of net.core.busy_read",
)
.range(0, 10_000);

/// Whether packets carry a checksum in addition to UDP's.
pub static CHECKSUM: Setting<bool> = Setting::new(
    "udp",
    "checksum",
    false,
    "Protect every packet with a CRC-32C besides the 16 bits of UDP; either end of a session may ask for it",
)
.strict();

/// Whether packets are encrypted.
pub static ENCRYPTION: Setting<&'static str> = Setting::new(
    "udp",
    "encryption",
    "auto",
    "Encrypt and authenticate packets: required, off, or auto: where there is an authorization key, or the peer requires it",
)
.one_of(&["auto", "off", "required"])
.strict();

/// Whether address translation (NAT) on the path is expected.
pub static TRANSLATED: Setting<bool> = Setting::new(
    "udp",
    "address_translation",
    false,
    "Let endpoints with an authorization key be reached through address translation (NAT): they do not check the address that a peer used",
);

/// Whether congestion control is used.
pub static CONGESTION: Setting<bool> = Setting::new(
    "udp",
    "congestion_control",
    true,
    "Share links with others as TCP does; without it only the receiver's credit bounds a sender",
);

/// Whether ECN is used.
pub static ECN: Setting<bool> = Setting::new(
    "udp",
    "ecn",
    true,
    "Let routers mark packets when queues grow, instead of dropping them (ECN, RFC 3168), and slow down by three tenths when they do",
);

/// Whether packets are paced over a long round trip.
pub static PACING: Setting<bool> = Setting::new(
    "udp",
    "pacing",
    true,
    "Spread packets over a round trip if it always takes at least a millisecond; otherwise packets leave as soon as they may",
);

/// The maximum length of a message of `FI_EP_DGRAM`.
pub static DATAGRAM_SIZE: Setting<usize> = Setting::new(
    "udp",
    "datagram_size",
    1472,
    "Longest datagram of FI_EP_DGRAM in bytes; datagrams too long for the path are lost. 1472 fits Ethernet under IPv4",
)
.range(512, 65_507);

/// Ports of sockets without a fixed port.
pub static PORT_RANGE: Setting<&'static str> = Setting::new(
    "udp",
    "port_range",
    "",
    "Port range, as LOW-HIGH, for sockets without a given port, including liveness ports; any if empty",
)
.form(is_range)
.strict();

/// Ports as `LOW-HIGH`, or one port. `None` for an invalid text.
pub fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
    (0 < low && low <= high).then_some(low..=high)
}

fn is_range(text: &str) -> Result<(), String> {
    let wanted = "it must be LOW-HIGH, two ports from 1 to 65535, or one port";
    range(text).map(|_| ()).ok_or_else(|| wanted.into())
}

/// The default address or interface of endpoints.
pub static INTERFACE: Setting<&'static str> = Setting::new(
    "udp",
    "iface",
    "",
    "Interface or address for endpoints without a given address; all of the host if empty",
);

/// How long closing an endpoint may wait for the acknowledgement of injected messages.
pub static LINGER_MS: Setting<usize> = Setting::new(
    "udp",
    "linger_ms",
    100,
    "Milliseconds that a closing endpoint waits at most for its sent messages to arrive",
)
.range(0, 60_000);

/// Whether to use segmentation offload: many datagrams pass to and from the kernel as one message.
pub static SEGMENTS: Setting<bool> = Setting::new(
    "udp",
    "segments",
    true,
    "Let the kernel or the device split and join batches of equally long datagrams, where possible (UDP_SEGMENT, UDP_GRO)",
);

/// Whether peers of this host are reached over shared memory.
pub static SHARED_MEMORY: Setting<bool> = Setting::new(
    "udp",
    "shared_memory",
    true,
    "Reach peers of the same host, user and network namespace over shared memory (provider shm's settings apply)",
);

/// Whether infos contain the PCI address of an interface's device.
pub static PCI_ADDRESS: Setting<bool> = Setting::new(
    "udp",
    "pci_address",
    false,
    "Put the PCI address of an interface's device into fi_info.nic; MPICH aborts if its hwloc was built without PCI",
);

/// How datagrams are received from the kernel.
pub static DRIVER: Setting<&'static str> = Setting::new(
    "udp",
    "driver",
    "auto",
    "How datagrams are received: calls (recvmmsg), ring (io_uring, or calls where the kernel forbids it), auto (docs/tuning.md)",
)
.one_of(&["auto", "calls", "ring"]);

/// Checks that the settings that protect packets are readable. Their defaults protect less: with a misspelled value,
/// packets would go in the clear or unchecked, and nobody would notice.
///
/// # Errors
/// The unreadable setting, and the reason.
pub fn protections() -> Result<(), Problem> {
    ENCRYPTION.checked()?;
    CHECKSUM.checked()?;
    Ok(())
}

/// The requested driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// System calls.
    Calls,
    /// io_uring, or system calls where the kernel does not allow it.
    Ring,
}

/// The driver that [`DRIVER`] names.
pub fn driver() -> Choice {
    if DRIVER.get() == "ring" { Choice::Ring } else { Choice::Calls }
}

/// All settings of this provider.
pub static SETTINGS: &[&dyn AnySetting] = &[
    &SHARED_MEMORY,
    &PEER_TIMEOUT_MS,
    &SOCKET_BUFFER,
    &BUSY_POLL_US,
    &CHECKSUM,
    &ENCRYPTION,
    &TRANSLATED,
    &CONGESTION,
    &ECN,
    &PACING,
    &DATAGRAM_SIZE,
    &PORT_RANGE,
    &INTERFACE,
    &LINGER_MS,
    &SEGMENTS,
    &DRIVER,
    &PCI_ADDRESS,
];
