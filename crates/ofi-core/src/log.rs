//! Prints `tracing` events the way libfabric prints its log, under libfabric's variables.
//!
//! Code in this stack uses `tracing`'s macros with a target that names provider and subsystem:
//!
//! ```
//! tracing::warn!(target: "ofi::shm::ep_ctrl", peer = 7, "peer is gone");
//! ```
//!
//! A Rust program with a subscriber receives these events there. For all others, [`init_from_env`] installs the
//! subscriber of this module if `FI_LOG_LEVEL` is set. It prints lines in C libfabric's format:
//!
//! ```text
//! libfabric:4711:1767225600::shm:ep_ctrl:endpoint():132<warn> peer is gone peer=7
//! ```
//!
//! that is process, time in seconds, an empty prefix, provider, subsystem, function, line, level, text. Rust
//! does not tell a macro which function it is in, so the last part of the module's path takes that place.
//!
//! Levels: libfabric orders warn, trace, info, debug from quiet to loud, and describes trace as the course of
//! a program, info as detail in high volume and debug as what slows it down. `tracing` orders error and warn,
//! info, debug, trace the same way, and that is how they are matched: see [`Level`].
//!
//! A program may also receive the log by functions of its own: see [`Sink`].
//!
//! Invariants:
//! I1. Without `FI_LOG_LEVEL` and without a sink nothing is installed, and an event costs one relaxed load.
//! I2. One event is one line and one `write`: control characters in texts from outside are escaped.
//! I3. Events of other libraries in the process are not printed, and spans are not followed.

use std::ffi::OsStr;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, span, warn};

use crate::config::{self, NameFilter};

mod level;
mod line;
mod location;
mod origin;
mod sink;

pub use level::Level;
pub use line::Entry;
use origin::Origin;
pub use sink::{Sink, give_back, take_over, unheard};

/// Names that `FI_LOG_SUBSYS` knows, in the order of C's `enum fi_log_subsys`.
pub const SUBSYSTEMS: [&str; 10] =
    ["core", "fabric", "domain", "ep_ctrl", "ep_data", "av", "cq", "eq", "mr", "cntr"];

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

    /// The filter from the environment; `None` if logging is off. An invalid level counts as [`Level::Warn`], because a
    /// log was requested.
    pub fn from_env() -> Option<Self> {
        let level = requested_level(std::env::var_os("FI_LOG_LEVEL").as_deref())?;
        Some(Self {
            level,
            providers: NameFilter::parse(&config::LOG_PROV.get()),
            subsystems: NameFilter::parse(&config::LOG_SUBSYS.get()),
        })
    }

    /// Whether a message of this origin and level is printed.
    pub fn allows(&self, provider: &str, subsystem: &str, level: Level) -> bool {
        level <= self.level && self.providers.allows(provider) && self.subsystems.allows(subsystem)
    }
}

fn requested_level(raw: Option<&OsStr>) -> Option<Level> {
    let text = raw?.to_string_lossy();
    match text.trim() {
        "" => None,
        text => Some(text.parse().unwrap_or(Level::Warn)),
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

/// The result of [`init_from_env`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The log is on.
    Logging,
    /// `FI_LOG_LEVEL` is not set; nothing was installed.
    Off,
    /// The program has a subscriber, which keeps getting the events.
    Taken,
}

/// Turns the log on if the environment requests it and the program has no subscriber of its own. May be called
/// repeatedly: later calls change nothing. It first logs unusable values of registered settings.
pub fn init_from_env() -> Started {
    config::register(config::SETTINGS);
    let Some(filter) = Filter::from_env() else { return Started::Off };
    if sink::is_installed() {
        return Started::Taken; // and its file is not created twice
    }
    let (writer, trouble) = location::open(&config::LOG_LOCATION.get(), config::LOG_LOCATION_MODE.get());
    if !sink::install(Some(Logger::new(filter, writer))) {
        return Started::Taken;
    }
    if let Some(trouble) = trouble {
        warn!(target: "ofi::core::core", "{trouble}");
    }
    for problem in config::problems() {
        warn!(target: "ofi::core::core", "{problem}");
    }
    Started::Logging
}

impl Subscriber for Logger {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    /// Whether the call site can have an event that is printed. One that names its provider or subsystem in
    /// a field is decided event by event.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let Some(origin) = Origin::of(metadata.target()) else { return false };
        let level = Level::from(*metadata.level());
        metadata.is_event()
            && level <= self.filter.level
            && (line::is_origin_in_fields(metadata.fields())
                || self.filter.allows(origin.provider, origin.subsystem, level))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter.level.loudest())
    }

    fn event(&self, event: &Event<'_>) {
        let Some(entry) = line::read(event) else { return };
        if self.filter.allows(&entry.provider, &entry.subsystem, entry.level) {
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
