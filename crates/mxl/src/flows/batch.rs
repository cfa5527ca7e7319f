//! Hints on the sizes of commits.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Error;

/// A writer's commit sizes, which the flow stores for readers. `None`: whole grains, or 10 ms of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchHints {
    /// Maximum commit, in slices or samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_commit_batch_size_hint: Option<u32>,
    /// Slices or samples after which readers are woken; a multiple of the commit size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_sync_batch_size_hint: Option<u32>,
}

impl BatchHints {
    /// Both hints.
    pub fn new(commit: u32, sync: u32) -> Self {
        Self { max_commit_batch_size_hint: Some(commit), max_sync_batch_size_hint: Some(sync) }
    }

    /// Parses the C++ SDK's JSON. Empty text sets nothing.
    ///
    /// # Errors
    /// [`Error::Definition`] for anything that the C++ SDK refuses.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let root = super::definition::json_object(text)?;
        let hint = |name: &str| match root.get(name) {
            None => Ok(None),
            Some(Value::Number(number)) => match number.as_f64() {
                Some(value) if value >= 1.0 && value <= f64::from(u32::MAX) => Ok(Some(value as u32)),
                _ => Err(Error::Definition(format!("{name} is {number}, but must be at least 1"))),
            },
            Some(other) => Err(Error::Definition(format!("{name} is {other}, not a number"))),
        };
        let hints = Self {
            max_commit_batch_size_hint: hint("maxCommitBatchSizeHint")?,
            max_sync_batch_size_hint: hint("maxSyncBatchSizeHint")?,
        };
        hints.check()?;
        Ok(hints)
    }

    pub(crate) fn check(self) -> Result<(), Error> {
        let commit = self.max_commit_batch_size_hint.unwrap_or(1);
        let sync = self.max_sync_batch_size_hint.unwrap_or(commit.max(1));
        if commit == 0 || sync == 0 || !sync.is_multiple_of(commit) {
            let what = format!("sync batches of {sync} are not a multiple of commits of {commit}");
            return Err(Error::Definition(what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::BatchHints;

    #[test]
    fn hints_are_refused_as_the_sdk_refuses_them() {
        for bad in [
            r#"{"maxCommitBatchSizeHint": 0}"#,
            r#"{"maxCommitBatchSizeHint": -1}"#,
            r#"{"maxCommitBatchSizeHint": "5"}"#,
            r#"{"maxCommitBatchSizeHint": 5, "maxSyncBatchSizeHint": 7}"#,
            r#"{"maxSyncBatchSizeHint": 0}"#,
            r"[1]",
            r"{",
        ] {
            assert!(BatchHints::parse(bad).is_err(), "{bad}");
        }
        let hints = r#"{"maxCommitBatchSizeHint": 5, "maxSyncBatchSizeHint": 10, "other": true}"#;
        assert_eq!(BatchHints::parse(hints).unwrap(), BatchHints::new(5, 10));
        assert_eq!(BatchHints::parse("").unwrap(), BatchHints::default());
        let only = BatchHints::parse(r#"{"maxSyncBatchSizeHint": 7}"#).unwrap();
        assert_eq!((only.max_commit_batch_size_hint, only.max_sync_batch_size_hint), (None, Some(7)));
        let text = serde_json::to_string(&BatchHints::new(5, 10)).unwrap();
        assert_eq!(BatchHints::parse(&text).unwrap(), BatchHints::new(5, 10));
    }
}
