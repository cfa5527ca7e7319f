//! Which registries a Node uses: those that the program names, and those that announce themselves.

use mxl::Uuid;

use crate::client::{Error, base};
#[cfg(feature = "dns-sd")]
use crate::discovery::{Discovery, Service};

/// In place of an address: the registries that DNS-SD finds.
pub const AUTO: &str = "auto";

/// Registries, in the order in which they are tried.
#[derive(Clone, Debug)]
pub struct Registries(Vec<RegistrySource>);

#[derive(Clone, Debug)]
enum RegistrySource {
    Url(String),
    #[cfg(feature = "dns-sd")]
    Found(Discovery),
}

impl Registries {
    /// These addresses, `http://HOST:PORT`, or `auto` for those that DNS-SD finds.
    ///
    /// # Errors
    /// [`Error::Address`] for an address that is wrong, and without any; [`Error::NoDiscovery`] for `auto` in a program
    /// that was built without feature `dns-sd`.
    pub fn new<'a>(urls: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let place = |url: &str| if url == AUTO { found() } else { base(url).map(RegistrySource::Url) };
        let places = urls.into_iter().map(place).collect::<Result<Vec<_>, _>>()?;
        if places.is_empty() {
            return Err(Error::Address("no registry".into()));
        }
        Ok(Self(places))
    }

    /// Those that a search finds, and no others.
    #[cfg(feature = "dns-sd")]
    pub fn found(discovery: Discovery) -> Self {
        Self(vec![RegistrySource::Found(discovery)])
    }

    /// Number of places to look at: at least one.
    pub(crate) fn places(&self) -> usize {
        self.0.len()
    }

    /// The addresses at a place, as a search finds them now, and what a person should know.
    pub(crate) fn look(
        &self,
        place: usize,
        asker: Uuid,
        is_over: &dyn Fn() -> bool,
    ) -> (Vec<String>, Vec<String>) {
        self.0.get(place).map(|place| place.look(asker, is_over)).unwrap_or_default()
    }
}

impl RegistrySource {
    #[cfg_attr(not(feature = "dns-sd"), expect(unused_variables, reason = "addresses are used as they are"))]
    fn look(&self, asker: Uuid, is_over: &dyn Fn() -> bool) -> (Vec<String>, Vec<String>) {
        match self {
            Self::Url(url) => (vec![url.clone()], Vec::new()),
            #[cfg(feature = "dns-sd")]
            Self::Found(discovery) => {
                let found = discovery.find(Service::Registration, asker, is_over);
                (found.urls, found.notes)
            }
        }
    }
}

#[cfg(feature = "dns-sd")]
fn found() -> Result<RegistrySource, Error> {
    Ok(RegistrySource::Found(Discovery::default()))
}

#[cfg(not(feature = "dns-sd"))]
fn found() -> Result<RegistrySource, Error> {
    Err(Error::NoDiscovery)
}

#[cfg(all(test, feature = "dns-sd"))]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_used_before_others_are_looked_for() {
        let registries = Registries::new(["http://a", AUTO]).unwrap();
        let (urls, notes) = registries.look(0, Uuid::nil(), &|| panic!("a search"));
        assert_eq!((registries.places(), urls, notes), (2, vec!["http://a".to_owned()], Vec::new()));
    }
}
