//! Starts the log, and logs the version and the settings.

use tracing::{info, warn};

use super::{Filter, Level, Logger, SUBSYSTEMS, location, sink};
use crate::config::{self, NameFilter};

/// The result of [`start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// The log is on.
    Logging,
    /// `FI_LOG_LEVEL` is `off`, or the caller's default is; nothing was installed.
    Off,
    /// The log was already on, or the program has its own subscriber, which keeps receiving the events.
    Taken,
}

/// [`start`] at the default level, warn.
pub fn init_from_env() -> Started {
    start(Some(Level::Warn))
}

/// Turns the log on if the program has no subscriber of its own, at the level of `FI_LOG_LEVEL` or, if that is not set,
/// at `otherwise` (`None`: off). For libraries whose host program has its own level. Later calls have no effect. First
/// it logs the lines of [`announce`].
pub fn start(otherwise: Option<Level>) -> Started {
    config::register(config::SETTINGS);
    let Some(filter) = Filter::from_env(otherwise) else { return Started::Off };
    if sink::is_installed() {
        return Started::Taken; // and its file is not created twice
    }
    let (logger, trouble) = logger(filter);
    if !sink::install(Some(logger)) {
        return Started::Taken;
    }
    announce(trouble);
    Started::Logging
}

/// The logger of [`start`], for a library that installs its own subscriber and passes our events on. The second value
/// is the argument of [`announce`], which the library must call afterwards.
pub fn logger(filter: Filter) -> (Logger, Option<String>) {
    let (writer, trouble) = location::open(&config::LOG_LOCATION.get(), config::LOG_LOCATION_MODE.get());
    (Logger::new(filter, writer), trouble)
}

/// Logs the first lines: settings that cannot be used, as warnings, and the settings that are set. `trouble`: see
/// [`logger`].
pub fn announce(trouble: Option<String>) {
    if let Some(trouble) = trouble {
        warn!(target: "ofi::core::core", unfiltered = true, "{trouble}");
    }
    for unknown in unknown_subsystems(&config::LOG_SUBSYS.get()) {
        warn!(
            target: "ofi::core::core",
            unfiltered = true,
            "FI_LOG_SUBSYS names no subsystem {unknown}: the names are {}",
            SUBSYSTEMS.join(", ")
        );
    }
    for listed in config::list() {
        let default = if listed.default.is_empty() { "empty" } else { &listed.default };
        if let Some(problem) = listed.problem {
            let effect = match listed.is_strict {
                true => "objects that need it are refused until it is corrected or unset".to_owned(),
                false => format!("the default ({default}) is used instead"),
            };
            warn!(target: "ofi::core::core", prov = listed.provider, unfiltered = true, "{problem}; {effect}");
        } else if listed.is_set {
            info!(
                target: "ofi::core::core",
                prov = listed.provider,
                "{}={} is read from the environment, in place of the default ({})",
                listed.env,
                listed.current,
                default
            );
        }
    }
    strangers();
}

/// Logs variables that begin like the settings of a provider but are not settings. At info, because C's providers have
/// settings that this library lacks.
fn strangers() {
    let listed = config::list();
    let prefix = |provider: &str| format!("FI_{}_", provider.to_ascii_uppercase());
    let mut prefixes: Vec<String> = listed
        .iter()
        .filter(|setting| setting.provider != config::CORE)
        .map(|setting| prefix(setting.provider))
        .collect();
    prefixes.dedup();
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        if let Some(prefix) = prefixes.iter().find(|prefix| name.starts_with(*prefix))
            && listed.iter().all(|setting| setting.env != name)
        {
            info!(
                target: "ofi::core::core",
                "{name} is set, and is no setting of this library: fi_info -g {prefix} lists those that are"
            );
        }
    }
}

fn unknown_subsystems(setting: &str) -> Vec<String> {
    let filter = NameFilter::parse(setting);
    let unknown = filter.names().filter(|name| !SUBSYSTEMS.contains(name));
    unknown.map(str::to_owned).collect()
}
