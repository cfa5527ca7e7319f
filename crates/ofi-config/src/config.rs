//! The settings that come from the environment: every `FI_*` variable that this stack reads.
//!
//! A setting is a static: it knows its variable, type, default, limits and help, so the code that uses it and the list
//! that `fi_info -e` prints cannot disagree. A crate declares its settings, puts them in one array and passes that to
//! [`register`]; nothing registers itself.
//!
//! ```
//! use ofi_config::config::{AnySetting, Setting, register};
//!
//! /// Slots in each ring between two processes.
//! pub static RING_SIZE: Setting<usize> =
//!     Setting::new("shm", "ring_size", 1024, "Slots in each ring between two processes").range(16, 1 << 20);
//!
//! pub static SETTINGS: &[&dyn AnySetting] = &[&RING_SIZE];
//!
//! register(SETTINGS);
//! assert_eq!(RING_SIZE.env(), "FI_SHM_RING_SIZE");
//! assert_eq!(RING_SIZE.get(), 1024);
//! ```
//!
//! Invariants:
//! I1. The variable of a setting is `FI_<NAME>` for provider `core` and `FI_<PROVIDER>_<NAME>` otherwise.
//! I2. [`Setting::get`] returns a value within the setting's limits, whatever the environment contains: an unusable
//!     value is logged, and the default is used. If the default protects less than the intended value might,
//!     [`Setting::checked`] returns an error instead.
//! I3. Nothing is cached: the registry lists the settings, and the environment is read on each call.

use std::ffi::OsStr;

use tracing::warn;

mod core_settings;
mod filter;
mod registry;
mod value;

pub use core_settings::{
    HMEM_DISABLE_P2P, LOG_LEVEL, LOG_LOCATION, LOG_LOCATION_MODE, LOG_PROV, LOG_SUBSYS, MR_CACHE_MAX_COUNT,
    MR_CACHE_MAX_SIZE, MR_CACHE_MONITOR, PROVIDER, PROVIDER_ALIAS, PROVIDER_PATH, SETTINGS, UNIVERSE_SIZE,
};
pub use filter::NameFilter;
pub use registry::{Listed, Problem, list, problems, register};
pub use value::{Value, ValueKind};

/// Name of the provider whose variables have no provider in their name.
pub const CORE: &str = "core";

/// One `FI_*` setting. `T` is `bool`, `i64`, `usize` (takes `K`, `M`, `G`), `&'static str` or `Duration`.
#[derive(Debug)]
pub struct Setting<T: Value> {
    provider: &'static str,
    name: &'static str,
    default: T,
    limits: Option<(T, T)>,
    choices: &'static [&'static str],
    form: Option<Form>,
    is_strict: bool,
    help: &'static str,
}

/// Checks a text. The error says why it cannot be used and which form is wanted, as the end of a sentence about it.
type Form = fn(&str) -> Result<(), String>;

impl<T: Value> Setting<T> {
    /// A setting of `provider` ([`CORE`] for the stack's own), called `name` in lower case, with one
    /// sentence of help.
    pub const fn new(provider: &'static str, name: &'static str, default: T, help: &'static str) -> Self {
        Self { provider, name, default, limits: None, choices: &[], form: None, is_strict: false, help }
    }

    /// Refuses values outside `low..=high`. The default must lie inside.
    pub const fn range(self, low: T, high: T) -> Self {
        Self { limits: Some((low, high)), ..self }
    }

    /// Marks a setting whose users call [`Setting::checked`]: an unusable value makes them fail.
    pub const fn strict(self) -> Self {
        Self { is_strict: true, ..self }
    }

    /// The value to use now: the environment's, or the default if the variable is not set or unusable. Reads the
    /// environment and allocates, so call it when an object is opened.
    pub fn get(&self) -> T::Read {
        self.explicit().unwrap_or_else(|| self.default.read())
    }

    /// The environment's value, or `None` if the variable is not set or unusable. For settings whose default depends on
    /// other things.
    pub fn explicit(&self) -> Option<T::Read> {
        let env = self.env();
        let raw = std::env::var_os(&env);
        self.read(raw.as_deref()).unwrap_or_else(|reason| {
            let found = raw.as_deref().unwrap_or_default().to_string_lossy();
            warn!(
                target: "ofi::core::core",
                prov = self.provider,
                "{env}={found} cannot be used: {reason}; the default ({}) is used instead",
                self.default.show(),
            );
            None
        })
    }

    /// As [`Setting::get`], but an unusable value is an error: for settings whose default protects less than the
    /// intended value might.
    ///
    /// # Errors
    /// The variable's value, and why it is unusable.
    pub fn checked(&self) -> Result<T::Read, Problem> {
        self.checked_as(std::env::var_os(self.env()).as_deref())
    }

    fn checked_as(&self, raw: Option<&OsStr>) -> Result<T::Read, Problem> {
        let problem = |reason| {
            let found = raw.unwrap_or_default().to_string_lossy().into_owned();
            Problem { env: self.env(), found, reason }
        };
        Ok(self.read(raw).map_err(problem)?.unwrap_or_else(|| self.default.read()))
    }

    /// Parses `raw`: `None` for an unset variable, an error with the reason if it is unusable.
    fn read(&self, raw: Option<&OsStr>) -> Result<Option<T::Read>, String> {
        let Some(raw) = raw else { return Ok(None) };
        let text = raw.to_str().ok_or("it is not valid UTF-8")?;
        let word = text.trim();
        if word.is_empty() && (T::KIND != ValueKind::Text || !self.choices.is_empty()) {
            return Ok(None); // a shell user clears a variable by `FI_X= command`
        }
        let value = match self.choice(word)? {
            Some(choice) => T::parse(choice),
            None => T::parse(text),
        };
        let limits = self.limits.map(|(low, high)| format!("between {} and {}", low.show(), high.show()));
        let value = value.map_err(|reason| match &limits {
            Some(limits) => format!("{reason}, {limits}"),
            None => reason,
        })?;
        if let Some(((low, high), limits)) = self.limits.zip(limits)
            && (value < low.read() || value > high.read())
        {
            return Err(format!("it must lie {limits}"));
        }
        if let Some(check) = self.form.filter(|_| !word.is_empty()) {
            check(word)?;
        }
        Ok(Some(value))
    }

    /// The choice that `word` names, in its canonical spelling, so that comparisons need not ignore case.
    fn choice(&self, word: &str) -> Result<Option<&'static str>, String> {
        let named = self.choices.iter().find(|choice| choice.eq_ignore_ascii_case(word)).copied();
        match named {
            None if !self.choices.is_empty() => Err(format!("it must be one of {}", self.choices.join(", "))),
            named => Ok(named),
        }
    }
}

impl Setting<&'static str> {
    /// Accepts only these words, in any case; the value is spelled as here.
    pub const fn one_of(self, choices: &'static [&'static str]) -> Self {
        Self { choices, ..self }
    }

    /// Accepts only texts of this form. An empty text is not checked.
    pub const fn form(self, check: Form) -> Self {
        Self { form: Some(check), ..self }
    }
}

/// A setting of any type, as the registry and `fi_info -e` see it.
pub trait AnySetting: Sync {
    /// Provider it belongs to; [`CORE`] for the stack's own.
    fn provider(&self) -> &'static str;
    /// Name within the provider, in lower case.
    fn name(&self) -> &'static str;
    /// One sentence on what it does.
    fn help(&self) -> &'static str;
    /// Type of the value.
    fn kind(&self) -> ValueKind;
    /// Whether an unusable value makes its users fail rather than use the default.
    fn is_strict(&self) -> bool;
    /// The default as text that the setting would accept.
    fn default_text(&self) -> String;
    /// What `raw` means, as text; `None` for an unset variable.
    ///
    /// # Errors
    /// Why `raw` cannot be used, as the end of a sentence about it.
    fn inspect(&self, raw: Option<&OsStr>) -> Result<Option<String>, String>;

    /// Name of the environment variable.
    fn env(&self) -> String {
        let mut env = match self.provider() {
            "" | CORE => ["FI_", self.name()].concat(),
            provider => ["FI_", provider, "_", self.name()].concat(),
        };
        env.make_ascii_uppercase();
        if env.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric()) {
            return env;
        }
        env.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
    }
}

impl<T: Value> AnySetting for Setting<T> {
    fn provider(&self) -> &'static str {
        self.provider
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn help(&self) -> &'static str {
        self.help
    }

    fn kind(&self) -> ValueKind {
        T::KIND
    }

    fn is_strict(&self) -> bool {
        self.is_strict
    }

    fn default_text(&self) -> String {
        self.default.show()
    }

    fn inspect(&self, raw: Option<&OsStr>) -> Result<Option<String>, String> {
        Ok(self.read(raw)?.map(|value| T::show_read(&value)))
    }
}

#[cfg(test)]
mod tests;
