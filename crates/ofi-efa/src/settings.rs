//! The provider's settings. Those that C libfabric's provider also has use its names.

use ofi_core::config::{AnySetting, Setting};

/// The devices to use.
pub static IFACE: Setting<&'static str> = Setting::new(
    "efa",
    "iface",
    "all",
    "Use only devices with these names, separated by commas: rdmap0s6,rdmap1s6 (`rdma link` lists the names; all or empty: all)",
);

/// Whether `list`, the value of [`IFACE`], names a device. Case matters, and a name is whole, as in C libfabric.
pub fn uses(list: &str, name: &str) -> bool {
    let mut names = list.split(',').map(str::trim).filter(|name| !name.is_empty()).peekable();
    names.peek().is_none_or(|&first| first == "all") || names.any(|named| named == name)
}

/// Number of receives of an endpoint.
pub static RX_SIZE: Setting<usize> = Setting::new(
    "efa",
    "rx_size",
    1024,
    "Receive buffers of one packet (8 to 9 KiB) that all peers share. On fabric efa also the `rx_attr.size` that is granted",
)
.range(1, 1 << 15);

/// Number of sends of an endpoint.
pub static TX_SIZE: Setting<usize> = Setting::new(
    "efa",
    "tx_size",
    256,
    "Packets in flight to all peers together. A peer with half as many in flight as are free gets FI_EAGAIN until some have arrived. On fabric efa, if it is set, also the granted `tx_attr.size`",
)
.range(16, 1 << 15);

/// Maximum length of a message that is sent without the receiver's credit.
pub static MAX_MEDIUM: Setting<usize> = Setting::new(
    "efa",
    "inter_max_medium_message_size",
    65_536,
    "Longest message, in bytes, that an endpoint sends without waiting for the receiver's credit",
)
.range(0, 4 << 20);

/// Number of bytes that are cleared at once.
pub static MIN_CREDITS: Setting<usize> = Setting::new(
    "efa",
    "tx_min_credits",
    32,
    "Data packets of a long message or access that a receiver grants at a time",
)
.range(1, 4096);

/// Number of messages held before their turn at which the peer is asked to pause.
pub static RECVWIN_SIZE: Setting<usize> = Setting::new(
    "efa",
    "recvwin_size",
    16_384,
    "Messages of one peer, arrived out of order, at which an endpoint asks the peer to pause, if the peer is of this library; it stores more, up to 256 MiB",
)
.range(64, 1 << 20);

/// How long closing an endpoint may wait.
pub static LINGER_MS: Setting<usize> = Setting::new(
    "efa",
    "linger_ms",
    1000,
    "Milliseconds that a closing endpoint waits at most for its sent messages to arrive",
)
.range(0, 60_000);

/// Minimum length of a message that its receiver reads.
pub static MIN_READ_MESSAGE: Setting<usize> = Setting::new(
    "efa",
    "inter_min_read_message_size",
    1 << 20,
    "Shortest message, in bytes, that the receiver's device reads from the sender's memory (if both devices can read)",
)
.range(0, usize::MAX >> 1);

/// Number of runt bytes of a message that its receiver reads.
pub static RUNT_SIZE: Setting<usize> = Setting::new(
    "efa",
    "runt_size",
    0,
    "Bytes in flight to each peer that an endpoint sends ahead in packets when the receiver's device reads the message (0: none, as in C)",
)
.range(0, 16 << 20);

/// Whether the device reads and writes peers' memory.
pub static USE_DEVICE_RDMA: Setting<bool> = Setting::new(
    "efa",
    "use_device_rdma",
    true,
    "Let devices read and write peers' memory; otherwise the owner's process executes each access",
);

/// Whether writes with data consume no receives of the device.
pub static USE_UNSOLICITED_WRITE_RECV: Setting<bool> =
    Setting::new("efa", "use_unsolicited_write_recv", true, "Let writes with data consume no receives");

/// Whether peers of this host are reached over shared memory.
pub static ENABLE_SHM_TRANSFER: Setting<bool> = Setting::new(
    "efa",
    "enable_shm_transfer",
    true,
    "Reach endpoints of this library with the same host, user and network namespace over shared memory (provider shm's settings apply)",
);

/// Whether registered memory is protected from forks.
pub static FORK_SAFE: Setting<bool> = Setting::new(
    "efa",
    "fork_safe",
    false,
    "Keep registered pages out of forked children before Linux 5.12, as RDMAV_FORK_SAFE does",
);

/// Whether registrations of local memory are cached.
pub static MR_CACHE_ENABLE: Setting<bool> = Setting::new(
    "efa",
    "mr_cache_enable",
    true,
    "Keep device registrations of local memory after their operation; otherwise each long message costs one",
);

/// Maximum number of registrations of local memory that a domain caches.
pub static MR_CACHE_MAX_COUNT: Setting<usize> = Setting::new(
    "efa",
    "mr_max_cached_count",
    1024,
    "Device registrations that a domain keeps of memory that the application registered",
)
.range(0, 1 << 20);

/// Maximum total bytes of those registrations.
pub static MR_CACHE_MAX_SIZE: Setting<usize> =
    Setting::new("efa", "mr_max_cached_size", 16 << 30, "Total bytes of the cached registrations")
        .range(0, isize::MAX as usize);

/// The settings that an endpoint needs for each operation. They are copied when the endpoint is opened, because reading
/// a setting takes time.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    pub max_medium: usize,
    pub min_credits: usize,
    pub recvwin_size: usize,
    pub min_read_message: usize,
    pub runt_size: usize,
}

impl Chosen {
    /// The current values.
    pub fn now() -> Self {
        Self {
            max_medium: MAX_MEDIUM.get(),
            min_credits: MIN_CREDITS.get(),
            recvwin_size: RECVWIN_SIZE.get(),
            min_read_message: MIN_READ_MESSAGE.get(),
            runt_size: RUNT_SIZE.get(),
        }
    }
}

/// All settings of this provider.
pub static SETTINGS: &[&dyn AnySetting] = &[
    &IFACE,
    &RX_SIZE,
    &TX_SIZE,
    &MAX_MEDIUM,
    &MIN_CREDITS,
    &RECVWIN_SIZE,
    &LINGER_MS,
    &MIN_READ_MESSAGE,
    &RUNT_SIZE,
    &USE_DEVICE_RDMA,
    &USE_UNSOLICITED_WRITE_RECV,
    &ENABLE_SHM_TRANSFER,
    &FORK_SAFE,
    &MR_CACHE_ENABLE,
    &MR_CACHE_MAX_COUNT,
    &MR_CACHE_MAX_SIZE,
];

#[cfg(test)]
mod tests {
    use super::uses;

    #[test]
    fn a_list_of_devices_has_whole_names() {
        for (list, name, wanted) in [
            ("all", "rdmap0s6", true),
            ("", "rdmap0s6", true),
            ("rdmap0s6", "rdmap0s6", true),
            ("rdmap1s6, rdmap0s6", "rdmap0s6", true),
            ("rdmap0s", "rdmap0s6", false),
            ("RDMAP0S6", "rdmap0s6", false),
            ("rdmap1s6,", "rdmap0s6", false),
        ] {
            assert_eq!(uses(list, name), wanted, "{list:?} {name}");
        }
    }
}
