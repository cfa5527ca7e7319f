//! The core's own settings for endpoints.

use std::time::Duration;

use crate::config::{AnySetting, CORE, Setting};

/// Free bytes below which a multi-receive buffer is released, unless `FI_OPT_MIN_MULTI_RECV` sets another number. As in
/// the providers of C libfabric that have a default.
pub const MIN_MULTI_RECV: usize = 16_384;

static UNEXPECTED_BYTES: Setting<usize> = Setting::new(
    CORE,
    "unexpected_bytes",
    64 << 20,
    "Bytes of messages without a posted receive that one endpoint stores; further payloads stay at their senders",
);

static UNEXPECTED_MESSAGES: Setting<usize> = Setting::new(
    CORE,
    "unexpected_messages",
    1_000_000,
    "Messages without a posted receive that one endpoint keeps, shared fairly over its senders",
)
.range(1, 1 << 30);

static CONNECT_TIMEOUT: Setting<Duration> = Setting::new(
    CORE,
    "connect_timeout",
    Duration::from_secs(30),
    "Time after which a connection attempt fails if it is not accepted, or not confirmed by its requester",
);

static BACKLOG: Setting<usize> = Setting::new(
    CORE,
    "backlog",
    1024,
    "Connection requests that a passive endpoint hands out before they are answered, unless fi_control(FI_BACKLOG) sets another number",
)
.range(1, 1 << 30);

static GIVE_WAY: Setting<bool> = Setting::new(
    CORE,
    "give_way",
    true,
    "Yield to other threads while polls find nothing, if the polling thread was recently preempted on its core",
);

static EXPORT_STATISTICS: Setting<bool> = Setting::new(
    CORE,
    "export_statistics",
    false,
    "Let programs of the same user read the statistics of this process's endpoints (ofi top, ofi stats)",
);

/// Registered by the code that lists settings.
pub static SETTINGS: &[&dyn AnySetting] =
    &[&UNEXPECTED_BYTES, &UNEXPECTED_MESSAGES, &CONNECT_TIMEOUT, &BACKLOG, &GIVE_WAY, &EXPORT_STATISTICS];

/// The byte budget of an endpoint's matcher.
pub fn unexpected_bytes() -> usize {
    UNEXPECTED_BYTES.get()
}

/// The envelope budget of an endpoint's matcher.
pub fn unexpected_messages() -> usize {
    UNEXPECTED_MESSAGES.get()
}

/// The time limit of an attempt to connect.
pub fn connect_timeout() -> Duration {
    CONNECT_TIMEOUT.get()
}

/// The backlog of a passive endpoint, to begin with.
pub fn backlog() -> usize {
    BACKLOG.get()
}

/// Whether threads that poll without success yield to others.
pub fn give_way() -> bool {
    GIVE_WAY.get()
}

/// Whether other programs of the same user may read statistics.
pub fn exports_statistics() -> bool {
    EXPORT_STATISTICS.get()
}
