//! The provider's settings.

use ofi_core::config::{AnySetting, Setting};

/// Which device to use.
pub static DEVICE_NAME: Setting<&'static str> = Setting::new(
    "verbs",
    "device_name",
    "",
    "Use only devices whose names begin so, such as mlx5_0 (`rdma link` lists them); all if empty",
);

/// Receives of an endpoint.
pub static RX_SLOTS: Setting<usize> = Setting::new(
    "verbs",
    "rx_slots",
    512,
    "Receives of 8.5 KiB that an endpoint keeps posted for all its peers; each peer gets credits for some",
)
.range(64, 1 << 15);

/// Credits of a peer.
pub static PEER_CREDITS: Setting<usize> =
    Setting::new("verbs", "peer_credits", 32, "Records that one peer may have under way to an endpoint")
        .range(8, 1024);

/// How long meeting a peer may take.
pub static CONNECT_TIMEOUT_MS: Setting<usize> = Setting::new(
    "verbs",
    "connect_timeout_ms",
    5000,
    "Milliseconds after which a peer that does not answer a connection request is given up",
)
.range(100, 600_000);

/// How long closing an endpoint may wait for injected messages to arrive.
pub static LINGER_MS: Setting<usize> = Setting::new(
    "verbs",
    "linger_ms",
    1000,
    "Milliseconds that closing an endpoint waits at most until messages that were reported as sent have arrived",
)
.range(0, 60_000);

/// Registrations of local memory that a domain keeps.
pub static MR_CACHE_MAX_COUNT: Setting<usize> = Setting::new(
    "verbs",
    "mr_cache_max_count",
    1024,
    "Device registrations of local memory that a domain keeps for their next use: of memory that the application has registered, or the library allocated",
)
.range(0, 1 << 20);

/// Their bytes.
pub static MR_CACHE_MAX_SIZE: Setting<usize> =
    Setting::new("verbs", "mr_cache_max_size", 16 << 30, "Bytes of those registrations together")
        .range(0, isize::MAX as usize);

/// Everything here.
pub static SETTINGS: &[&dyn AnySetting] = &[
    &DEVICE_NAME,
    &RX_SLOTS,
    &PEER_CREDITS,
    &CONNECT_TIMEOUT_MS,
    &LINGER_MS,
    &MR_CACHE_MAX_COUNT,
    &MR_CACHE_MAX_SIZE,
];
