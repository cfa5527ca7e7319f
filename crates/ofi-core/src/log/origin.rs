//! Who speaks: provider and subsystem of an event, from its target.

/// Provider and subsystem of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin<'a> {
    pub provider: &'a str,
    pub subsystem: &'a str,
}

/// Crates of this stack whose names do not begin with `ofi` or `transport_`, and what they are called in the
/// log.
const OTHER_CRATES: [(&str, &str); 5] =
    [("ofi_rdm", "rdm"), ("ibv", "verbs"), ("efa_sys", "efa"), ("mxl", "mxl"), ("multirail", "multirail")];

impl<'a> Origin<'a> {
    /// Reads `ofi::<provider>::<subsystem>`, or takes the crate from a module path. `None` for crates that
    /// are not part of this stack.
    pub fn of(target: &'a str) -> Option<Self> {
        let mut parts = target.split("::");
        let first = parts.next()?;
        if first == "ofi" {
            let provider = parts.next().unwrap_or("core");
            return Some(Self { provider, subsystem: parts.next().unwrap_or("core") });
        }
        let provider = match first.strip_prefix("transport_") {
            Some(transport) => transport,
            None if first.starts_with("ofi_") => "core",
            None => OTHER_CRATES.into_iter().find(|(name, _)| *name == first)?.1,
        };
        Some(Self { provider, subsystem: "core" })
    }
}
