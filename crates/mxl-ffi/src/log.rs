//! The library's log on standard error, at the level of `MXL_LOG_LEVEL`: `off`, `critical`, `err` or `error`, `warn` or
//! `warning` (the default), `info`, `debug`, `trace`. The C++ SDK accepts the same words.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Starts logging, once. An existing subscriber of the program is kept.
pub fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let level = level(&std::env::var("MXL_LOG_LEVEL").unwrap_or_default());
        let _ = tracing::subscriber::set_global_default(Log { level });
    });
}

fn level(word: &str) -> LevelFilter {
    match word {
        "off" => LevelFilter::OFF,
        "critical" | "err" | "error" => LevelFilter::ERROR,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => LevelFilter::WARN,
    }
}

struct Log {
    level: LevelFilter,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("[mxl] [{}]", event.metadata().level().as_str().to_lowercase()));
        event.record(&mut line);
        line.0.push('\n');
        // In one piece, so that lines of several threads stay apart. A closed standard error is ignored.
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
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a `String` cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::level;
    use tracing::level_filters::LevelFilter;

    #[test]
    fn levels_are_the_sdks_words() {
        let words = ["off", "critical", "err", "warn", "info", "debug", "trace", "", "loud"];
        let wanted = [
            LevelFilter::OFF,
            LevelFilter::ERROR,
            LevelFilter::ERROR,
            LevelFilter::WARN,
            LevelFilter::INFO,
            LevelFilter::DEBUG,
            LevelFilter::TRACE,
            LevelFilter::WARN,
            LevelFilter::WARN,
        ];
        assert_eq!(words.map(level), wanted);
    }
}
