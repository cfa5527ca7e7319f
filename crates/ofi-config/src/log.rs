//! Prints `tracing` events the way libfabric prints its log, under libfabric's variables.
//!
//! Code in this stack uses `tracing`'s macros with a target that names provider and subsystem:
//!
//! ```
//! tracing::warn!(target: "ofi::shm::ep_ctrl", peer = 7, "peer is gone");
//! ```
//!
//! A Rust program with a subscriber receives these events there. For all others, [`init_from_env`] installs the
//! subscriber of this module, at the level of `FI_LOG_LEVEL` or, without it, at warn. It prints lines in C libfabric's
//! format:
//!
//! ```text
//! libfabric:4711:1767225600::shm:ep_ctrl:endpoint():132<warn> peer is gone peer=7
//! ```
//!
//! that is process, time in seconds, an empty prefix, provider, subsystem, function, line, level, text. Rust does not
//! tell a macro which function it is in, so the last part of the module path takes its place.
//!
//! Levels have the same names in libfabric and in `tracing`, except that libfabric's trace is quieter than its info: it
//! has only messages of plug-ins that ask for it. See [`Level`].
//!
//! A program may also receive the log through its own functions: see [`Sink`].
//!
//! Invariants:
//! I1. Nothing is installed unless a program (or the C library for its program) calls [`init_from_env`], [`start`] or
//!     [`take_over`]. An event of a disabled level costs one relaxed load.
//! I2. One event is one line and one `write`: control characters in text from outside are escaped.
//! I3. Events of other libraries in the process are not printed, and spans are ignored.

use std::ffi::OsStr;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, span};

use crate::config::{self, NameFilter};

mod level;
mod line;
mod location;
mod origin;
mod rate;
mod sink;
mod start;
mod told;

pub use level::Level;
pub use line::Entry;
use origin::Origin;
pub use rate::Limit;
pub use sink::{Sink, give_back, take_over, unheard};
pub use start::{Started, announce, init_from_env, logger, start};
pub use told::Told;

/// Names that `FI_LOG_SUBSYS` knows, in the order of C's `enum fi_log_subsys`.
pub const SUBSYSTEMS: [&str; 10] =
    ["core", "fabric", "domain", "ep_ctrl", "ep_data", "av", "cq", "eq", "mr", "cntr"];

/// The word of `FI_LOG_LEVEL` that turns the log off.
pub const OFF: &str = "off";

/// The filter of `FI_LOG_LEVEL`, `FI_LOG_PROV` and `FI_LOG_SUBSYS`.
#[derive(Clone, Debug)]
pub struct Filter {
    /// The loudest level that is printed.
    pub level: Level,
    /// Providers.
    pub providers: NameFilter,
    /// Subsystems.
    pub subsystems: NameFilter,
}

impl Filter {
    /// Lets everything up to `level` through.
    pub fn level(level: Level) -> Self {
        Self { level, providers: NameFilter::default(), subsystems: NameFilter::default() }
    }

    /// The filter from the environment, or at the level `otherwise` if `FI_LOG_LEVEL` is not set. `None` if logging is
    /// off. An invalid level counts as [`Level::Warn`], as in C.
    pub fn from_env(otherwise: Option<Level>) -> Option<Self> {
        let raw = std::env::var_os("FI_LOG_LEVEL");
        Some(Self {
            level: requested_level(raw.as_deref(), otherwise)?,
            providers: NameFilter::parse(&config::LOG_PROV.get()),
            // An unknown name must not silence all others. `announce` warns of it.
            subsystems: NameFilter::parse(&config::LOG_SUBSYS.get()).only(&SUBSYSTEMS),
        })
    }

    /// Whether a message of this origin and level is printed.
    pub fn allows(&self, provider: &str, subsystem: &str, level: Level) -> bool {
        level <= self.level && self.providers.allows(provider) && self.subsystems.allows(subsystem)
    }
}

fn requested_level(raw: Option<&OsStr>, otherwise: Option<Level>) -> Option<Level> {
    let text = raw.unwrap_or_default().to_string_lossy();
    match text.trim() {
        "" => otherwise,
        text if text.eq_ignore_ascii_case(OFF) => None,
        text => Some(text.parse().unwrap_or(Level::Warn)),
    }
}

impl Filter {
    fn allows_entry(&self, entry: &Entry) -> bool {
        (entry.unfiltered && entry.level <= self.level)
            || self.allows(&entry.provider, &entry.subsystem, entry.level)
    }
}

/// A `tracing` subscriber that prints libfabric's lines.
pub struct Logger {
    filter: Filter,
    writer: Mutex<Box<dyn Write + Send>>,
}

impl Logger {
    /// Prints what `filter` lets through to `writer`, one `write_all` for each line. Errors of the writer
    /// are ignored, as there is nowhere to report them.
    pub fn new(filter: Filter, writer: Box<dyn Write + Send>) -> Self {
        Self { filter, writer: Mutex::new(writer) }
    }

    fn print(&self, entry: &Entry) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.write_all(entry.printed().as_bytes());
    }
}

impl Subscriber for Logger {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    /// Whether the call site can emit an event that is printed. If it names its provider or subsystem in a field, each
    /// event is decided separately.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let Some(origin) = Origin::of(metadata.target()) else { return false };
        !metadata.is_span()
            && *metadata.level() <= self.filter.level.loudest()
            && (line::is_decided_late(metadata)
                || self.filter.allows(origin.provider, origin.subsystem, Level::from(*metadata.level())))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter.level.loudest())
    }

    fn event(&self, event: &Event<'_>) {
        let Some(entry) = line::read(event) else { return };
        if self.filter.allows_entry(&entry) {
            self.print(&entry);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1) // never used: `enabled` rejects spans
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[cfg(test)]
mod tests;
