//! The origin of an event, provider and subsystem, from its target.

/// Provider and subsystem of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin<'a> {
    pub provider: &'a str,
    pub subsystem: &'a str,
}

/// Crates with their own names in the log. Others of this stack, which all begin with `ofi_`, are the core.
const NAMED: [(&str, &str); 10] = [
    ("ofi_shm", "shm"),
    ("ofi_udp", "udp"),
    ("ofi_tcp", "tcp"),
    ("ofi_rdm", "rdm"),
    ("ofi_verbs", "verbs"),
    ("ibv", "verbs"),
    ("ofi_efa", "efa"),
    ("efa_sys", "efa"),
    ("mxl", "mxl"),
    ("multirail", "multirail"),
];

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
        let named = NAMED.into_iter().find(|(name, _)| *name == first).map(|(_, provider)| provider);
        let provider = named.or(first.starts_with("ofi_").then_some("core"))?;
        Some(Self { provider, subsystem: "core" })
    }
}
