//! Lists of names in settings: `a,b` means only these, `^a,b` all but these, nothing means all.

/// A list, as in `FI_PROVIDER`, `FI_LOG_PROV` and `FI_LOG_SUBSYS`. Case does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameFilter {
    negated: bool,
    names: Vec<String>,
}

impl NameFilter {
    /// Reads a list. Blanks around names and empty names are ignored.
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        let (negated, list) = match text.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, text),
        };
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self { negated, names: names.map(str::to_ascii_lowercase).collect() }
    }

    /// Whether `name` passes.
    pub fn allows(&self, name: &str) -> bool {
        self.names.is_empty()
            || self.names.iter().any(|known| known.eq_ignore_ascii_case(name)) != self.negated
    }

    /// Whether everything passes.
    pub fn allows_all(&self) -> bool {
        self.names.is_empty()
    }

    /// The list without the names that are not in `known`.
    pub fn only(mut self, known: &[&str]) -> Self {
        self.names.retain(|name| known.contains(&name.as_str()));
        self
    }

    /// The names of the list, in lower case.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}
