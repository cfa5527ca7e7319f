//! A program's own log: its functions select messages and receive them (`fi_import_log` in C).
//!
//! [`Front`] is the subscriber that the library installs. It forwards to the program's [`Sink`] while there is one,
//! otherwise to the [`Logger`] of the environment, if any. `tracing` permits only one subscriber for the life of the
//! process, so it stays when the program removes its sink.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, span};

use super::line::{self, Entry};
use super::origin::Origin;
use super::{Level, Logger, init_from_env};

/// A program's own log. Its functions are called by the thread that logs, possibly while an object is locked: they must
/// not call into the library. Messages that the library logs in that thread meanwhile do not go to the sink.
pub trait Sink: Send + Sync {
    /// Whether such a message is wanted. `None` leaves the decision to the environment.
    fn enabled(&self, provider: &str, subsystem: &str, level: Level) -> Option<bool>;

    /// Takes a message. If it returns `false`, the message goes to the environment's log.
    fn log(&self, entry: &Entry) -> bool;
}

static SINK: RwLock<Option<Arc<dyn Sink>>> = RwLock::new(None);
/// Whether this process's subscriber is ours.
static INSTALLED: Mutex<bool> = Mutex::new(false);

thread_local! {
    /// This thread runs a function of the sink.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Makes `sink` receive the log from now on, replacing an earlier sink. Returns `false` if the program has its own
/// subscriber, which then still receives all events.
pub fn take_over(sink: Arc<dyn Sink>) -> bool {
    init_from_env();
    if !install(None) {
        return false;
    }
    set(Some(sink));
    true
}

/// Removes the sink: the log goes to the environment's destination again. Another thread may still be inside a function
/// of the sink when this returns.
pub fn give_back() {
    set(None);
}

fn set(sink: Option<Arc<dyn Sink>>) {
    let before = std::mem::replace(&mut *SINK.write().unwrap_or_else(PoisonError::into_inner), sink);
    drop(before);
    // Call sites cache whether there is a listener.
    tracing_core::callsite::rebuild_interest_cache();
}

fn current() -> Option<Arc<dyn Sink>> {
    SINK.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Installs our subscriber in the process, if there is none. Returns whether ours is installed.
pub(super) fn install(logger: Option<Logger>) -> bool {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        *installed = tracing::subscriber::set_global_default(Front(logger)).is_ok();
    }
    *installed
}

/// Whether ours is the subscriber of the process.
pub(super) fn is_installed() -> bool {
    *INSTALLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls into the sink, unless this thread is already inside it.
fn guarded<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    if BUSY.replace(true) {
        return otherwise;
    }
    let answer = call();
    BUSY.set(false);
    answer
}

/// Runs a function of the program outside of [`Sink`]: messages that the library logs in this thread meanwhile do not
/// go to the sink either.
pub fn unheard(call: impl FnOnce()) {
    let before = BUSY.replace(true);
    call();
    BUSY.set(before);
}

/// The subscriber that forwards each message to the program's sink, or else to the environment's logger.
pub(super) struct Front(Option<Logger>);

impl Front {
    /// Whether a message is wanted by the sink, or by the environment if the sink leaves it to that.
    fn wanted(&self, sink: &dyn Sink, provider: &str, subsystem: &str, level: Level) -> bool {
        let wanted = guarded(Some(false), || sink.enabled(provider, subsystem, level));
        wanted.unwrap_or_else(|| {
            self.0.as_ref().is_some_and(|logger| logger.filter.allows(provider, subsystem, level))
        })
    }
}

impl Subscriber for Front {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if current().is_some() {
            let ours = !metadata.is_span() && Origin::of(metadata.target()).is_some();
            return if ours { Interest::sometimes() } else { Interest::never() };
        }
        self.0.as_ref().map_or_else(Interest::never, |logger| logger.register_callsite(metadata))
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let Some(sink) = current() else {
            return self.0.as_ref().is_some_and(|logger| logger.enabled(metadata));
        };
        let Some(origin) = Origin::of(metadata.target()) else { return false };
        !metadata.is_span()
            && (line::is_decided_late(metadata)
                || self.wanted(
                    sink.as_ref(),
                    origin.provider,
                    origin.subsystem,
                    Level::from(*metadata.level()),
                ))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        if current().is_some() {
            return Some(LevelFilter::TRACE);
        }
        self.0.as_ref().map_or(Some(LevelFilter::OFF), Logger::max_level_hint)
    }

    fn event(&self, event: &Event<'_>) {
        let Some(sink) = current() else {
            if let Some(logger) = &self.0 {
                logger.event(event);
            }
            return;
        };
        let Some(entry) = line::read(event) else { return };
        // The sink has not yet been asked about an event that names its origin in a field.
        let asked = !line::is_origin_in_fields(event.metadata().fields());
        if !asked && !self.wanted(sink.as_ref(), &entry.provider, &entry.subsystem, entry.level) {
            return;
        }
        let taken = guarded(true, || sink.log(&entry));
        if let (false, Some(logger)) = (taken, &self.0) {
            logger.print(&entry);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1) // never used: spans are rejected
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
