//! libfabric's four levels.

use std::str::FromStr;

use tracing::level_filters::LevelFilter;

/// Level of a message, from quiet to loud, with the numbers of C's `enum fi_log_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Level {
    /// Errors and warnings: `tracing`'s error and warn.
    Warn = 0,
    /// Traces of the program's course, only in messages of plug-ins. `tracing` has no level between warn and info.
    Trace = 1,
    /// Objects that were found, opened, chosen or lost: `tracing`'s info.
    Info = 2,
    /// Each decision of a protocol: `tracing`'s debug and trace.
    Debug = 3,
}

impl Level {
    const ALL: [Level; 4] = [Level::Warn, Level::Trace, Level::Info, Level::Debug];

    /// The level with this C number.
    pub fn from_c(value: u32) -> Option<Level> {
        Self::ALL.get(value as usize).copied()
    }

    /// Name in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Level::Warn => "warn",
            Level::Trace => "trace",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }

    /// The most verbose `tracing` level that maps to this one.
    pub const fn loudest(self) -> LevelFilter {
        match self {
            Level::Warn => LevelFilter::WARN,
            Level::Trace | Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::TRACE,
        }
    }
}

impl From<tracing::Level> for Level {
    fn from(level: tracing::Level) -> Level {
        match level {
            tracing::Level::ERROR | tracing::Level::WARN => Level::Warn,
            tracing::Level::INFO => Level::Info,
            tracing::Level::DEBUG | tracing::Level::TRACE => Level::Debug,
        }
    }
}

impl FromStr for Level {
    type Err = ();

    /// Reads a name, whose case does not matter, or a number from 0 to 3.
    fn from_str(text: &str) -> Result<Level, ()> {
        let named = Self::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(text));
        named.or_else(|| Level::from_c(text.parse().ok()?)).ok_or(())
    }
}
