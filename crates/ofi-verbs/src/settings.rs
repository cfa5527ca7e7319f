//! The provider's settings.

use std::time::Duration;

use ofi_api::{Errno, Error, Result};
use ofi_core::config::{AnySetting, Problem, Setting};

/// The devices to use.
pub static DEVICE_NAME: Setting<&'static str> = Setting::new(
    "verbs",
    "device_name",
    "",
    "Use only devices whose names begin with one of these, separated by commas: mlx5_0,mlx5_1 (`rdma link` lists the names; empty: all)",
);

/// The interfaces to use.
pub static IFACE: Setting<&'static str> = Setting::new(
    "verbs",
    "iface",
    "",
    "Use only these network interfaces, separated by commas: ens1f0,ens1f1 (the start of a name means all that begin so, unless it is the whole name of one; empty: all)",
);

/// The GID that datagrams come from.
pub static GID_IDX: Setting<&'static str> = Setting::new(
    "verbs",
    "gid_idx",
    "",
    "Index in the port's GID table that FI_EP_DGRAM sends from, 0 to 255 (/sys/class/infiniband/DEVICE/ports/1/gids; empty: the RoCE v2 entry of the endpoint's address)",
)
.form(|text| place(text).map(|_| ()))
.strict();

/// Whether endpoints with a service are registered at a name server.
pub static DGRAM_USE_NAME_SERVER: Setting<bool> = Setting::new(
    "verbs",
    "dgram_use_name_server",
    true,
    "Enter FI_EP_DGRAM endpoints that were opened for a service at this host's name server, which the first process with such an endpoint runs, so that getinfo finds them by node and service",
);

/// The port of name servers.
pub static DGRAM_NAME_SERVER_PORT: Setting<usize> = Setting::new(
    "verbs",
    "dgram_name_server_port",
    5678,
    "TCP port of the name servers of FI_EP_DGRAM endpoints, on all addresses of the host",
)
.range(1, 65_535);

/// The index of [`GID_IDX`], if it is set.
///
/// # Errors
/// The setting is not an index.
pub fn gid_index() -> Result<Option<u8>, Problem> {
    Ok(place(&GID_IDX.checked()?).unwrap_or_default())
}

fn place(text: &str) -> Result<Option<u8>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let wanted = "it must be an index in /sys/class/infiniband/DEVICE/ports/1/gids, 0 to 255, or empty";
    text.parse().map(Some).map_err(|_| wanted.to_owned())
}

/// Maximum number of operations that can be set for a connected endpoint.
const MAX_SIZE: usize = 1 << 20;
/// Maximum number of pieces that can be set: a request has room for no more.
const MAX_PIECES: usize = 8;

/// Requests of a connected endpoint.
pub static TX_SIZE: Setting<usize> = Setting::new(
    "verbs",
    "tx_size",
    384,
    "Operations that a connected endpoint may have outstanding (tx_attr.size of FI_EP_MSG), up to the device's limit; hints that request more get that limit",
)
.range(1, MAX_SIZE)
.strict();

/// Receives of a connected endpoint.
pub static RX_SIZE: Setting<usize> = Setting::new(
    "verbs",
    "rx_size",
    384,
    "Receives that a connected endpoint posts to its device (rx_attr.size of FI_EP_MSG), up to the device's limit; hints that request more get that limit",
)
.range(1, MAX_SIZE)
.strict();

/// Pieces of a send, write or read of a connected endpoint.
pub static TX_IOV_LIMIT: Setting<usize> = Setting::new(
    "verbs",
    "tx_iov_limit",
    4,
    "Pieces of memory in one operation of a connected endpoint (tx_attr.iov_limit of FI_EP_MSG), up to the device's limit; hints that request more get that limit",
)
.range(1, MAX_PIECES)
.strict();

/// Pieces of a receive of a connected endpoint.
pub static RX_IOV_LIMIT: Setting<usize> = Setting::new(
    "verbs",
    "rx_iov_limit",
    4,
    "Pieces of memory in one receive of a connected endpoint (rx_attr.iov_limit of FI_EP_MSG), up to the device's limit; hints that request more get that limit",
)
.range(1, MAX_PIECES)
.strict();

/// Inline bytes of requests of connected endpoints.
pub static INLINE_SIZE: Setting<usize> = Setting::new(
    "verbs",
    "inline_size",
    256,
    "Inline bytes of a request of a connected endpoint, up to the device's limit (FI_EP_MSG; 0: the device's limit, up to 1024). Longer messages may be injected, too: they are copied",
)
.range(0, MAX_INLINE)
.strict();

/// Maximum inline size that can be set: longer messages cannot be injected.
pub const MAX_INLINE: usize = 1024;

/// How long a peer waits if it finds no receive.
pub static MIN_RNR_TIMER: Setting<usize> = Setting::new(
    "verbs",
    "min_rnr_timer",
    12,
    "Pause before a peer retries a message without a posted receive, as a code of ibv_modify_qp(3): 1 is 10 microseconds, 12 is 640, 0 is 655 milliseconds (FI_EP_MSG, FI_EP_RDM)",
)
.range(0, 31)
.strict();

/// How often a peer retries a message that finds no receive at this end; rdma_cm sends the number to the peer.
pub static RNR_RETRY_COUNT: Setting<usize> = Setting::new(
    "verbs",
    "rnr_retry_count",
    7,
    "Retries of a peer's message that finds no posted receive before the connection fails; 7: without limit (FI_EP_MSG, FI_EP_RDM)",
)
.range(0, 7)
.strict();

/// How often an unacknowledged packet is resent before the connection fails: after some 15 s on RoCE, at the interval
/// that rdma_cm sets. C's provider uses the maximum, 7, which soft-RoCE takes as unlimited: an operation over a broken
/// link would never end. Connected endpoints use 7 on other devices.
pub const RETRIES: u8 = 6;

/// How often an unacknowledged packet is resent, if it is set ([`crate::timers`]).
pub static RETRY_COUNT: Setting<usize> = Setting::new(
    "verbs",
    "retry_count",
    RETRIES as usize,
    "Resends of an unacknowledged packet, by both ends of a connection that this end requests, before it fails (FI_EP_MSG, FI_EP_RDM); soft-RoCE takes 7 for without limit. Unset: 6, and 7 for connected endpoints of other devices",
)
.range(0, 7)
.strict();

/// How long an acknowledgement is awaited.
pub static ACK_TIMEOUT: Setting<usize> = Setting::new(
    "verbs",
    "ack_timeout",
    0,
    "Wait for an acknowledgement before a packet is resent, as a code of ibv_modify_qp(3): n is 4.096 microseconds times 2 to the power of n, 14 is 67 milliseconds (FI_EP_MSG, FI_EP_RDM; Linux 5.2 or newer); 0: the kernel's choice, 19 (2.1 seconds) on RoCE",
)
.range(0, 31)
.strict();

/// The error for a setting that cannot be used.
pub fn unusable(Problem { env, found, reason }: Problem) -> Error {
    Error::wanted(Errno::EINVAL, env, reason, found, "unset the variable, or see docs/settings.md")
}

/// Whether `list`, the value of [`DEVICE_NAME`], matches `name`: by a prefix of the name, ignoring case, as in C
/// libfabric. Prefixes are separated by commas; blanks around them and empty ones are ignored, and an empty list
/// matches all.
pub fn takes(list: &str, name: &str) -> bool {
    takes_of(list, name, |_| false)
}

/// As [`takes`], for the value of [`IFACE`]: a prefix that is the whole name of an interface (`is_whole`) matches that
/// one alone, and not its VLANs, as in C libfabric.
pub fn takes_of(list: &str, name: &str, is_whole: impl Fn(&str) -> bool) -> bool {
    let mut prefixes = list.split(',').map(str::trim).filter(|prefix| !prefix.is_empty()).peekable();
    let matches = |prefix: &str| {
        let head = if is_whole(prefix) { Some(name) } else { name.get(..prefix.len()) };
        head.is_some_and(|head| head.eq_ignore_ascii_case(prefix))
    };
    prefixes.peek().is_none() || prefixes.any(matches)
}

/// Number of receives of an endpoint.
pub static RX_SLOTS: Setting<usize> = Setting::new(
    "verbs",
    "rx_slots",
    512,
    "Receive slots of 8.5 KiB that an endpoint posts at first; more follow its peers' credits",
)
.range(64, 1 << 15);

/// Credits of a peer.
pub static PEER_CREDITS: Setting<usize> =
    Setting::new("verbs", "peer_credits", 32, "Records that one peer may have in flight to an endpoint")
        .range(8, 1024);

/// Number of connections above which an endpoint closes idle ones.
pub static MAX_CONNECTIONS: Setting<usize> = Setting::new(
    "verbs",
    "max_connections",
    1024,
    "Connections that an endpoint keeps open (FI_EP_RDM); beyond these it closes idle ones, least recently used first, and connects again at the next use",
)
.range(0, 1 << 20);

/// Timeout of the network's own answers.
pub static RESOLVE_TIMEOUT_MS: Setting<usize> = Setting::new(
    "verbs",
    "resolve_timeout_ms",
    5000,
    "Milliseconds after which the search for a peer's address or route, or the join of a multicast group, fails",
)
.range(100, 600_000);

/// The value of [`RESOLVE_TIMEOUT_MS`].
pub fn resolve_timeout() -> Duration {
    Duration::from_millis(RESOLVE_TIMEOUT_MS.get() as u64)
}

/// Time for a peer's program to answer a request to connect. It answers when it polls, which may be a minute after its
/// start if it loads data first.
pub static CONNECT_TIMEOUT_MS: Setting<usize> = Setting::new(
    "verbs",
    "connect_timeout_ms",
    120_000,
    "Milliseconds for which an endpoint waits for a peer's program to answer a request to connect, and repeats requests that could not be served, before the operations to it fail (FI_EP_RDM)",
)
.range(100, 3_600_000);

/// The value of [`CONNECT_TIMEOUT_MS`].
pub fn connect_timeout() -> Duration {
    Duration::from_millis(CONNECT_TIMEOUT_MS.get() as u64)
}

/// Interval of probes of a silent peer.
pub static KEEPALIVE_MS: Setting<usize> = Setting::new(
    "verbs",
    "keepalive_ms",
    1000,
    "Milliseconds between probes of a peer's device while the peer owes an answer (FI_EP_RDM)",
)
.range(10, 600_000);

/// How long closing an endpoint may wait for the arrival of injected messages.
pub static LINGER_MS: Setting<usize> = Setting::new(
    "verbs",
    "linger_ms",
    1000,
    "Milliseconds that a closing endpoint waits at most for its sent messages to arrive",
)
.range(0, 60_000);

/// Whether peers of this host are reached over shared memory.
pub static SHARED_MEMORY: Setting<bool> = Setting::new(
    "verbs",
    "shared_memory",
    true,
    "Reach peers of the same host, user and network namespace over shared memory (FI_EP_RDM; provider shm's settings apply)",
);

/// Maximum number of registrations of local memory that a domain caches.
pub static MR_CACHE_MAX_COUNT: Setting<usize> = Setting::new(
    "verbs",
    "mr_cache_max_count",
    1024,
    "Device registrations that a domain keeps of memory that the application registered or the library allocated",
)
.range(0, 1 << 20);

/// Maximum total bytes of those registrations.
pub static MR_CACHE_MAX_SIZE: Setting<usize> =
    Setting::new("verbs", "mr_cache_max_size", 16 << 30, "Total bytes of the cached registrations")
        .range(0, isize::MAX as usize);

/// All settings of this provider.
pub static SETTINGS: &[&dyn AnySetting] = &[
    &DEVICE_NAME,
    &IFACE,
    &GID_IDX,
    &DGRAM_USE_NAME_SERVER,
    &DGRAM_NAME_SERVER_PORT,
    &TX_SIZE,
    &RX_SIZE,
    &TX_IOV_LIMIT,
    &RX_IOV_LIMIT,
    &INLINE_SIZE,
    &MIN_RNR_TIMER,
    &RNR_RETRY_COUNT,
    &RETRY_COUNT,
    &ACK_TIMEOUT,
    &RX_SLOTS,
    &PEER_CREDITS,
    &MAX_CONNECTIONS,
    &RESOLVE_TIMEOUT_MS,
    &CONNECT_TIMEOUT_MS,
    &KEEPALIVE_MS,
    &LINGER_MS,
    &SHARED_MEMORY,
    &MR_CACHE_MAX_COUNT,
    &MR_CACHE_MAX_SIZE,
];

#[cfg(test)]
mod tests {
    use super::{place, takes};

    #[test]
    fn a_place_in_the_gid_table_is_a_number_or_left_out() {
        assert_eq!(
            [place("").unwrap(), place(" 3 ").unwrap(), place("255").unwrap()],
            [None, Some(3), Some(255)]
        );
        for wrong in ["-1", "256", "mlx5_0"] {
            assert!(place(wrong).unwrap_err().contains("0 to 255"), "{wrong}");
        }
    }

    #[test]
    fn devices_are_taken_by_any_prefix_of_the_list() {
        for (list, name, taken) in [
            ("", "rxe0", true),
            (" , ", "rxe0", true),
            ("rxe", "rxe0", true),
            ("rxe0", "rxe1", false),
            ("rxe00", "rxe0", false),
            ("mlx5_0,rxe", "rxe0", true),
            (" mlx5_0 , rxe1,", "rxe1", true),
            ("mlx5_0,", "rxe0", false),
            ("RXE0", "rxe0", true),
            ("rx", "r\u{e9}", false),
        ] {
            assert_eq!(takes(list, name), taken, "{list:?} {name}");
        }
    }
}
