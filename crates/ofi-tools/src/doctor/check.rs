//! The result of a check.

use serde::Serialize;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// Nothing to change.
    Good,
    /// Something to change, described by [`Check::change`].
    Lacking,
    /// The check does not apply to this host, or the result is not visible here.
    Unknown,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// A stable name.
    pub name: &'static str,
    /// The outcome.
    pub state: CheckState,
    /// The observation.
    pub found: String,
    /// The consequence.
    pub effect: &'static str,
    /// The recommended change; empty if there is none.
    pub change: String,
}

impl Check {
    /// A good result.
    pub fn good(name: &'static str, effect: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: CheckState::Good, found: found.into(), effect, change: String::new() }
    }

    /// A result that calls for a change.
    pub fn lacking(
        name: &'static str,
        effect: &'static str,
        found: impl Into<String>,
        change: impl Into<String>,
    ) -> Self {
        Self { name, state: CheckState::Lacking, found: found.into(), effect, change: change.into() }
    }

    /// A check that does not apply or whose result is not visible.
    pub fn unknown(name: &'static str, effect: &'static str, found: impl Into<String>) -> Self {
        Self { state: CheckState::Unknown, ..Self::good(name, effect, found) }
    }
}
