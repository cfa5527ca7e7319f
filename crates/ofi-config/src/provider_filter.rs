//! The providers that getinfo calls: the `FI_PROVIDER` setting, and the version of the interface.

use ofi_api::{Errno, Error, Result, Version};

/// `FI_PROVIDER`: a list of names separated by commas; a `^` in front turns the whole list into the
/// providers to leave out (fi_fabric(3), "prov_name").
///
/// A name may be a stack such as `udp;ofi_rxd`. Names compare without case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderFilter {
    names: Vec<String>,
    negated: bool,
}

impl ProviderFilter {
    /// Reads the setting. Nothing, and a list without names, lets every provider in.
    pub fn parse(setting: &str) -> Self {
        let (negated, list) = match setting.trim().strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, setting),
        };
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
        Self { names: names.collect(), negated }
    }

    /// True if the provider `name` is to be asked. A stack in the setting lets its lowest layer in, and
    /// does not shut it out.
    pub fn may_ask(&self, name: &str) -> bool {
        if self.names.is_empty() {
            return true;
        }
        let named = self.names.iter().any(|entry| entry.eq_ignore_ascii_case(name));
        let below = self.names.iter().any(|entry| is_lowest_layer(name, entry));
        if self.negated { !named } else { named || below }
    }

    /// True if an info of the stack `prov_name` may be returned: the setting names the stack, or the
    /// layers at its bottom.
    pub fn may_return(&self, prov_name: &str) -> bool {
        if self.names.is_empty() {
            return true;
        }
        let named =
            |entry: &String| entry.eq_ignore_ascii_case(prov_name) || is_lowest_layer(entry, prov_name);
        self.names.iter().any(named) != self.negated
    }

    /// The names in the setting that `known` does not have: most likely typing errors, to be warned of.
    pub fn unknown<'a>(&'a self, known: &'a [&str]) -> impl Iterator<Item = &'a str> {
        let is_known = |layer: &str| known.iter().any(|name| name.eq_ignore_ascii_case(layer));
        self.names.iter().flat_map(|entry| entry.split(';')).filter(move |layer| !is_known(layer))
    }
}

/// True if `stack` is `bottom` with more layers on it.
fn is_lowest_layer(bottom: &str, stack: &str) -> bool {
    let prefix = stack.as_bytes().get(..bottom.len());
    prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(bottom.as_bytes()))
        && stack.as_bytes().get(bottom.len()) == Some(&b';')
}

/// Checks that this library has the interface that the program was written for.
///
/// # Errors
/// `FI_ENOSYS` if the program wants a newer one than [`Version::API`].
pub fn check_version(requested: Version) -> Result<()> {
    if requested <= Version::API {
        return Ok(());
    }
    Err(Error::wanted(
        Errno::ENOSYS,
        "getinfo version",
        format!("at most {}", Version::API),
        requested.to_string(),
        "ask for an older interface, or update this library",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_setting_lets_everyone_in() {
        for setting in ["", " ", ",", "^"] {
            let filter = ProviderFilter::parse(setting);
            assert!(filter.may_ask("shm") && filter.may_return("udp;ofi_rxd"), "{setting:?}");
        }
    }

    #[test]
    fn a_list_lets_in_whom_it_names() {
        let filter = ProviderFilter::parse("shm, UDP");
        assert!(filter.may_ask("shm") && filter.may_ask("udp"));
        assert!(!filter.may_ask("verbs"));
        assert!(filter.may_return("udp;ofi_rxd") && !filter.may_return("verbs"));
    }

    #[test]
    fn a_caret_negates_the_whole_list() {
        let filter = ProviderFilter::parse("^shm,udp");
        assert!(!filter.may_ask("shm") && !filter.may_ask("udp"));
        assert!(filter.may_ask("verbs") && filter.may_return("verbs"));
        assert!(!filter.may_return("udp;ofi_rxd"));
    }

    #[test]
    fn a_stack_asks_its_lowest_layer_and_returns_only_itself() {
        let filter = ProviderFilter::parse("udp;ofi_rxd");
        assert!(filter.may_ask("udp"));
        assert!(!filter.may_return("udp") && filter.may_return("udp;ofi_rxd"));
        let without = ProviderFilter::parse("^udp;ofi_rxd");
        assert!(without.may_ask("udp"));
        assert!(without.may_return("udp") && !without.may_return("udp;ofi_rxd"));
    }

    #[test]
    fn a_name_is_no_prefix_of_another() {
        assert!(!ProviderFilter::parse("efa").may_return("efa-direct"));
        assert!(!ProviderFilter::parse("ud").may_ask("udp"));
    }

    #[test]
    fn unknown_names_are_told() {
        let filter = ProviderFilter::parse("shn,udp;ofi_rxd");
        assert_eq!(filter.unknown(&["shm", "udp"]).collect::<Vec<_>>(), ["shn", "ofi_rxd"]);
    }

    #[test]
    fn a_newer_interface_than_ours_is_not_implemented() {
        assert!(check_version(Version::new(1, 5)).is_ok());
        assert!(check_version(Version::API).is_ok());
        assert_eq!(check_version(Version::new(2, 7)).unwrap_err(), Errno::ENOSYS);
        assert_eq!(check_version(Version::new(3, 0)).unwrap_err(), Errno::ENOSYS);
    }
}
