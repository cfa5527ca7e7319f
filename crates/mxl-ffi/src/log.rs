//! The library's log on standard error, at the level of `MXL_LOG_LEVEL`: `off`, `critical`, `err` or `error`, `warn` or
//! `warning` (the default), `info`, `debug`, `trace`. The C++ SDK accepts the same words.
//!
//! The transports (crate `ofi`) log at the same level, unless the user sets a level for them: [`Transport`].

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The destination of the transports' events.
pub enum Transport {
    /// This log, at its own level.
    AsOurs,
    /// None.
    Off,
    /// A subscriber of the transports.
    By(Box<dyn Subscriber + Send + Sync>),
}

/// Starts logging, once. An existing subscriber of the program is kept.
pub fn init() {
    init_with(|| Transport::AsOurs);
}

/// As [`init`], for a library with transports. Returns whether this call has started the log.
pub fn init_with(transport: impl FnOnce() -> Transport) -> bool {
    static ONCE: Once = Once::new();
    let mut started = false;
    ONCE.call_once(|| {
        let word = std::env::var("MXL_LOG_LEVEL").unwrap_or_default();
        let log = Log { level: level(&word).unwrap_or(DEFAULT), transport: transport() };
        started = tracing::subscriber::set_global_default(log).is_ok();
        if level(&word).is_none() {
            tracing::warn!(
                "MXL_LOG_LEVEL={word} cannot be used: it must be one of {}; warn is used instead",
                WORDS.join(", ")
            );
        }
    });
    started
}

const DEFAULT: LevelFilter = LevelFilter::WARN;
const WORDS: [&str; 9] = ["off", "critical", "err", "error", "warn", "warning", "info", "debug", "trace"];

fn level(word: &str) -> Option<LevelFilter> {
    Some(match word {
        "off" => LevelFilter::OFF,
        "critical" | "err" | "error" => LevelFilter::ERROR,
        "" | "warn" | "warning" => DEFAULT,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return None,
    })
}

struct Log {
    level: LevelFilter,
    transport: Transport,
}

/// Whether an event is a transport's: their targets are `ofi::...`, or their crates.
fn is_of_transport(target: &str) -> bool {
    let first = target.split("::").next().unwrap_or_default();
    first == "ofi" || first.starts_with("ofi_") || first == "ibv"
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        match &self.transport {
            Transport::Off if is_of_transport(metadata.target()) => false,
            Transport::By(other) if is_of_transport(metadata.target()) => other.enabled(metadata),
            _ => *metadata.level() <= self.level,
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        match &self.transport {
            Transport::By(other) => other.max_level_hint().map(|level| level.max(self.level)),
            _ => Some(self.level),
        }
    }

    fn event(&self, event: &Event<'_>) {
        if let Transport::By(other) = &self.transport
            && is_of_transport(event.metadata().target())
        {
            return other.event(event);
        }
        let mut line = LogLine(format!("[mxl] [{}]", event.metadata().level().as_str().to_lowercase()));
        event.record(&mut line);
        // Names and definitions of others are in it.
        let mut line = LogLine(mxl::visible(&line.0).into_owned());
        line.0.push('\n');
        // In one write, so that lines of several threads stay separate. A closed standard error is ignored.
        let _ = std::io::stderr().lock().write_all(line.0.as_bytes());
    }

    // The library has no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A line of the log: the message, and each field with its name.
struct LogLine(String);

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a `String` cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            "unfiltered" => Ok(()), // for the transports' own filters
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::{is_of_transport, level};
    use tracing::level_filters::LevelFilter;

    #[test]
    fn levels_are_the_sdks_words() {
        let words = ["off", "critical", "err", "warn", "info", "debug", "trace", ""];
        let wanted = [
            LevelFilter::OFF,
            LevelFilter::ERROR,
            LevelFilter::ERROR,
            LevelFilter::WARN,
            LevelFilter::INFO,
            LevelFilter::DEBUG,
            LevelFilter::TRACE,
            LevelFilter::WARN,
        ];
        assert_eq!(words.map(level), wanted.map(Some));
        assert_eq!(level("loud"), None);
        assert!(super::WORDS.iter().all(|word| level(word).is_some()));
    }

    #[test]
    fn transports_are_known_by_their_targets() {
        for (target, is) in [
            ("ofi::udp::ep_ctrl", true),
            ("ofi_rdm::connection", true),
            ("ibv::device", true),
            ("mxl_fabrics::target", false),
            ("office", false),
        ] {
            assert_eq!(is_of_transport(target), is, "{target}");
        }
    }
}
