//! What a check found.

use serde::Serialize;

/// What became of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing to change.
    Good,
    /// Something to change: [`Check::change`] says what.
    Lacking,
    /// It does not apply to this host, or cannot be seen from here.
    Unknown,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// A stable name.
    pub name: &'static str,
    /// What became of it.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What depends on it.
    pub effect: &'static str,
    /// What to do; empty if there is nothing to do.
    pub change: String,
}

impl Check {
    /// All is well.
    pub fn good(name: &'static str, effect: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Good, found: found.into(), effect, change: String::new() }
    }

    /// Something is to be changed.
    pub fn lacking(
        name: &'static str,
        effect: &'static str,
        found: impl Into<String>,
        change: impl Into<String>,
    ) -> Self {
        Self { name, state: State::Lacking, found: found.into(), effect, change: change.into() }
    }

    /// It does not apply, or cannot be seen.
    pub fn unknown(name: &'static str, effect: &'static str, found: impl Into<String>) -> Self {
        Self { state: State::Unknown, ..Self::good(name, effect, found) }
    }
}
