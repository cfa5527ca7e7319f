//! Options for opening an end of a flow.

use std::fmt;

use mxl::BatchHints;

/// Options for opening a [`Target`](crate::Target) or an [`Initiator`](crate::Initiator), besides its address.
///
/// ```
/// let mut options = mxl_fabrics::Options::default();
/// options.max_message = Some(8192);
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Send payloads in messages, which the target copies, even if the provider has remote writes. An end whose
    /// provider has none does so automatically, and then the other end does too.
    pub messages_only: bool,
    /// The longest write or message in bytes, at least 512; longer transfers are split. By default the provider's own
    /// limit. Writes to targets of the C++ SDK must be longer than a grain's header of 8192 bytes.
    pub max_message: Option<usize>,
    /// Initiators only: spreads each transfer over its period instead of sending it at once. Off by default.
    pub pacing: Option<Pacing>,
    /// The authorization key that both ends share, for providers that have keys (`udp`, `tcp` and `shm`): nobody
    /// without it can connect or write, and `udp` and `tcp` encrypt what they send. Flows with keys of their own are
    /// kept apart. Ends of the C++ SDK have no keys.
    pub key: Option<Key>,
    /// Targets only: the sizes of commits that the flow is created with. An initiator of the C++ SDK sends batches of
    /// samples up to the target's `max_sync_batch_size_hint`, and none that are longer: give both flows the same hints.
    pub batches: BatchHints,
}

/// An authorization key. Its bytes are not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(Vec<u8>);

impl Key {
    /// A key of these bytes: 1 to 64 for `udp`, `tcp` and `shm`.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// How an initiator spreads its writes.
///
/// A submitted grain starts after `phase` of its period, and its writes are spread over `spread` of a period. It is
/// complete after `phase` + `spread` periods, so the source's ring has to hold it for two. Slices and batches of
/// samples are spread in proportion. Transfers that are already late are not delayed further. A program that uses this
/// must poll or wait several times in each period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pacing {
    /// Share of a period: above 0, at most 1.
    pub spread: f64,
    /// 0 to below 1. By default, initiators of one process get phases that are far apart; processes that share a link
    /// should set their own.
    pub phase: Option<f64>,
}

impl Default for Pacing {
    /// Half of the period, at a phase that the process chooses.
    fn default() -> Self {
        Self { spread: 0.5, phase: None }
    }
}
