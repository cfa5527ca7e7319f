//! Other names for providers (`FI_PROVIDER_ALIAS`), for programs that require one. With `tcp=udp`, `udp` also answers
//! requests for `tcp`; its infos then carry the name `tcp` and that name's properties ([`crate::profile`]). A provider
//! keeps its own name too: without hints, its infos are listed under both.

use ofi_core::config::PROVIDER_ALIAS;

/// The aliases of this process.
#[derive(Default)]
pub(crate) struct Aliases(Vec<(String, String)>);

impl Aliases {
    /// Those of the setting.
    pub(crate) fn from_env() -> Self {
        Self::parse(&PROVIDER_ALIAS.get())
    }

    /// Parses `alias=provider,...`. Malformed entries are ignored and logged.
    fn parse(setting: &str) -> Self {
        let mut all = Vec::new();
        for entry in setting.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match entry.split_once('=').map(|(alias, name)| (alias.trim(), name.trim())) {
                Some((alias, name)) if !alias.is_empty() && !name.is_empty() => {
                    all.push((alias.to_owned(), name.to_owned()));
                }
                _ => {
                    tracing::warn!(target: "ofi::core::core", entry, "FI_PROVIDER_ALIAS: not of the form alias=provider");
                }
            }
        }
        Self(all)
    }

    /// Whose alias a name is.
    pub(crate) fn provider_of(&self, alias: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| other.eq_ignore_ascii_case(alias));
        found.map(|(_, name)| name.as_str())
    }

    /// Adds one.
    pub(crate) fn add(&mut self, alias: &str, provider: &str) {
        self.0.push((alias.to_owned(), provider.to_owned()));
    }

    /// All aliases, each with its provider.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(alias, name)| (alias.as_str(), name.as_str()))
    }

    /// The aliases of a provider.
    pub(crate) fn of<'a>(&'a self, provider: &'a str) -> impl Iterator<Item = &'a str> {
        let own = move |(_, name): &&(String, String)| name.eq_ignore_ascii_case(provider);
        self.0.iter().filter(own).map(|(alias, _)| alias.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_names_one_provider_and_a_provider_may_have_several() {
        let aliases = Aliases::parse(" tcp=udp , verbs = shm,sockets=udp, nonsense,=x,y=");
        assert_eq!(aliases.provider_of("TCP"), Some("udp"));
        assert_eq!(aliases.provider_of("verbs"), Some("shm"));
        assert_eq!(aliases.provider_of("udp"), None);
        assert_eq!(aliases.of("udp").collect::<Vec<_>>(), ["tcp", "sockets"]);
        assert_eq!(aliases.of("nonsense").count(), 0);
    }
}
