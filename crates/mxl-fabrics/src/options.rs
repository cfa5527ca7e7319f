//! How an end of a flow is opened.

/// How a [`Target`](crate::Target) or an [`Initiator`](crate::Initiator) is opened, beyond where.
///
/// ```
/// let mut options = mxl_fabrics::Options::default();
/// options.max_message = Some(8192);
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Payloads go in messages, which are copied at the target, even where the provider has remote writes. An end whose provider has none
    /// does so by itself, and so does the other end then.
    pub messages_only: bool,
    /// Bytes of the longest write or message, 512 at least; longer transfers are cut. The provider's own limit unless given.
    pub max_message: Option<usize>,
    /// Initiators only: spreads each transfer over its time instead of sending it at once. Off unless given.
    pub pacing: Option<Pacing>,
}

/// How an initiator spreads its writes.
///
/// A grain that is handed over is begun after `phase` of its period, and its writes are spread over `spread` of a period: it is away after `phase` + `spread`
/// periods, so the source's ring has to hold it for two. Slices and batches of samples have the share of time that is theirs. Transfers that are late already
/// are not held up. Whoever uses this polls, or waits, several times in each period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pacing {
    /// Share of a period: above 0, at most 1.
    pub spread: f64,
    /// 0 to below 1. Left open, initiators of one process get phases that are far apart; programs that share a link beside each other choose theirs.
    pub phase: Option<f64>,
}

impl Default for Pacing {
    /// Half of the period, at a phase that the process chooses.
    fn default() -> Self {
        Self { spread: 0.5, phase: None }
    }
}
