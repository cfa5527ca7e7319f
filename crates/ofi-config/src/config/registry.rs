//! The list of all settings of the loaded crates.

use std::ffi::{OsStr, OsString};
use std::sync::{PoisonError, RwLock};

use super::{AnySetting, ValueKind};

/// Each with its variable.
static REGISTERED: RwLock<Vec<(String, &'static dyn AnySetting)>> = RwLock::new(Vec::new());

/// One line of `fi_info -e`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Provider it belongs to; `core` for the stack's own.
    pub provider: &'static str,
    /// Name within the provider.
    pub name: &'static str,
    /// Environment variable.
    pub env: String,
    /// Type of the value.
    pub kind: ValueKind,
    /// One sentence on what it does.
    pub help: &'static str,
    /// The default, as text.
    pub default: String,
    /// The current value as text: the environment's, or the default.
    pub current: String,
    /// Whether it comes from the environment.
    pub is_set: bool,
    /// Whether objects that need the setting fail to open with an invalid value. Otherwise the default is used.
    pub is_strict: bool,
    /// Why the environment's value is unusable, if it is.
    pub problem: Option<Problem>,
}

/// A variable whose value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Environment variable.
    pub env: String,
    /// Its value.
    pub found: String,
    /// Why the value cannot be used, as the end of a sentence about it.
    pub reason: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={} cannot be used: {}", self.env, self.found, self.reason)
    }
}

/// Adds settings to the list. A variable that is already there is not added again, so a crate may register whenever it
/// is opened.
pub fn register(settings: &[&'static dyn AnySetting]) {
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    for &setting in settings {
        let env = setting.env();
        let default = setting.default_text();
        debug_assert!(
            setting.inspect(Some(OsStr::new(&default))).is_ok(),
            "{env}: default out of its limits"
        );
        if registered.iter().all(|(known, _)| *known != env) {
            registered.push((env, setting));
        }
    }
}

/// The current state of every registered setting, in order of registration.
pub fn list() -> Vec<Listed> {
    list_with(|env| std::env::var_os(env))
}

/// Every registered variable whose value cannot be used.
pub fn problems() -> Vec<Problem> {
    list().into_iter().filter_map(|listed| listed.problem).collect()
}

pub(super) fn list_with(lookup: impl Fn(&str) -> Option<OsString>) -> Vec<Listed> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner).clone();
    registered.into_iter().map(|(env, setting)| describe(env, setting, &lookup)).collect()
}

fn describe(
    env: String,
    setting: &'static dyn AnySetting,
    lookup: &impl Fn(&str) -> Option<OsString>,
) -> Listed {
    let raw = lookup(&env);
    let default = setting.default_text();
    let (current, is_set, problem) = match setting.inspect(raw.as_deref()) {
        Ok(Some(value)) => (value, true, None),
        Ok(None) => (default.clone(), false, None),
        Err(reason) => {
            let found = raw.unwrap_or_default().to_string_lossy().into_owned();
            (default.clone(), false, Some(Problem { env: env.clone(), found, reason }))
        }
    };
    Listed {
        provider: setting.provider(),
        name: setting.name(),
        env,
        kind: setting.kind(),
        help: setting.help(),
        default,
        current,
        is_set,
        is_strict: setting.is_strict(),
        problem,
    }
}
