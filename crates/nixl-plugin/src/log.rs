//! The log inside NIXL. No program there installs a subscriber, and NIXL's own log is private to its libraries, so the
//! plug-in installs ours, at the level of NIXL's. `FI_LOG_LEVEL` overrides it.

use std::sync::OnceLock;

use multirail::Transfer;
use ofi::{LogLevel, LogStarted};

/// NIXL's variable, and the level without it.
const VARIABLE: &str = "NIXL_LOG_LEVEL";
const DEFAULT: &str = "WARN";
/// NIXL's levels: our level for each, and whether failed calls are printed where nothing is logged. libfabric's levels
/// begin with warnings, so at `ERROR` only failed calls are printed.
const LEVELS: [(&str, Option<LogLevel>, bool); 6] = [
    ("TRACE", Some(LogLevel::Debug), true),
    ("DEBUG", Some(LogLevel::Debug), true),
    ("INFO", Some(LogLevel::Info), true),
    ("WARN", Some(LogLevel::Warn), true),
    ("ERROR", None, true),
    ("FATAL", None, false),
];

/// The destination of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heard {
    /// A subscriber.
    logged: bool,
    /// No subscriber; failed calls are printed.
    told: bool,
}

/// The row of a level, in any case, as for NIXL itself; `None` for a text that is no level.
fn row(text: &str) -> Option<(Option<LogLevel>, bool)> {
    let row = LEVELS.into_iter().find(|(name, ..)| name.eq_ignore_ascii_case(text));
    row.map(|(_, level, told)| (level, told))
}

/// Starts the log, once in a process.
pub(crate) fn start() {
    let _ = heard();
}

fn heard() -> Heard {
    static HEARD: OnceLock<Heard> = OnceLock::new();
    *HEARD.get_or_init(|| {
        let set = std::env::var_os(VARIABLE).map(|text| text.to_string_lossy().into_owned());
        let known = set.as_deref().map_or_else(|| row(DEFAULT), row);
        let (level, told) = known.or_else(|| row(DEFAULT)).unwrap_or((None, true));
        let logged = ofi::log_from_env_or(level) != LogStarted::Off;
        if let (None, Some(text)) = (known, set) {
            let names = LEVELS.map(|(name, ..)| name).join(", ");
            tracing::warn!(
                target: "ofi::nixl::core",
                "{VARIABLE}={text} is no level: the levels are {names}; {DEFAULT} is used instead"
            );
        }
        Heard { logged, told: told && std::env::var_os("FI_LOG_LEVEL").is_none_or(|level| level.is_empty()) }
    })
}

/// Logs a failed call.
pub(crate) fn say(what: &str, why: &str) {
    let heard = heard();
    tracing::error!(target: "ofi::nixl::core", "{what}: {why}");
    if !heard.logged && heard.told {
        eprintln!("OFI: {what}: {why}");
    }
}

/// What a transfer waited for until its time limit, as the end of a sentence.
pub(crate) fn awaited(transfer: &Transfer) -> String {
    transfer.awaited().map_or_else(String::new, |awaited| format!(": {awaited}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_nixl_in_any_case() {
        for (text, level, told) in LEVELS {
            assert_eq!(row(&text.to_lowercase()), Some((level, told)));
        }
        assert_eq!(row("LOUD"), None);
        assert!(row(DEFAULT).is_some());
    }
}
