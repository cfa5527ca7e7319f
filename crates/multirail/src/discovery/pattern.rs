//! Patterns for devices: `efa/*`, `verbs/mlx5_*`, `eth?`.

use super::devices::Device;

/// A pattern for devices. `*` stands for any characters, `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    provider: Option<String>,
    name: String,
}

impl Pattern {
    /// `PROVIDER/NAME`, or `NAME` of any provider. `None` if a part is empty.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (provider, name) = match text.split_once('/') {
            Some((provider, name)) => (Some(provider.trim().to_string()), name.trim()),
            None => (None, text.trim()),
        };
        let is_whole = !name.is_empty() && provider.as_ref().is_none_or(|provider| !provider.is_empty());
        is_whole.then(|| Self { provider, name: name.to_string() })
    }

    /// Whether a text is to be taken as a pattern, not as the name of one rail.
    pub(super) fn has_wildcards(text: &str) -> bool {
        text.contains(['*', '?'])
    }

    pub(super) fn has_provider(&self) -> bool {
        self.provider.is_some()
    }

    pub(super) fn matches(&self, device: &Device) -> bool {
        self.is_of(device, device.names())
    }

    /// Whether a pattern that is an exception names the device, or another of the same NIC.
    pub(super) fn excludes(&self, device: &Device) -> bool {
        self.is_of(device, device.names_of_nic())
    }

    fn is_of<'a>(&self, device: &Device, mut names: impl Iterator<Item = &'a str>) -> bool {
        let provider = &device.info.fabric_attr.prov_name;
        match &self.provider {
            Some(wanted) => fits(wanted, provider) && names.any(|name| fits(&self.name, name)),
            None => fits(&self.name, provider) || names.any(|name| fits(&self.name, name)),
        }
    }

    /// Whether a pattern that matches a device does so by its provider, not by the NIC's own name alone.
    pub(super) fn names_provider_of(&self, device: &Device) -> bool {
        self.provider.is_some() || fits(&self.name, &device.info.fabric_attr.prov_name)
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.provider {
            Some(provider) => write!(f, "{provider}/{}", self.name),
            None => write!(f, "{}", self.name),
        }
    }
}

/// Whether a text fits a pattern. It takes time in proportion to the product of their lengths.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut pos) = (0, 0);
    // The last `*`, and the text from which the rest of the pattern was last tried.
    let mut star: Option<(usize, usize)> = None;
    while pos < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, pos));
                at += 1;
            }
            Some(&wanted) if wanted == b'?' || wanted == text[pos] => {
                at += 1;
                pos += 1;
            }
            _ => {
                let Some((back, tried)) = star else { return false };
                star = Some((back, tried + 1));
                (at, pos) = (back + 1, tried + 1);
            }
        }
    }
    pattern[at..].iter().all(|&rest| rest == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_stand_for_characters() {
        for (pattern, text, wanted) in [
            ("*", "", true),
            ("*", "mlx5_0", true),
            ("mlx5_*", "mlx5_10", true),
            ("mlx5_?", "mlx5_10", false),
            ("mlx5_?", "mlx5_1", true),
            ("*-rdm", "rdmap0s6-rdm", true),
            ("*s6*", "rdmap0s6-rdm", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("eth0", "eth01", false),
            ("eth01", "eth0", false),
            ("", "", true),
            ("?", "", false),
        ] {
            assert_eq!(fits(pattern, text), wanted, "{pattern} {text}");
        }
        assert!(!fits(&"*a".repeat(50), &"b".repeat(10_000)), "and in no more than quadratic time");
    }

    #[test]
    fn both_parts_need_a_character() {
        assert!(["", " ", "/", "efa/", "/x", " / "].into_iter().all(|text| Pattern::parse(text).is_none()));
        assert_eq!(Pattern::parse(" efa / * ").unwrap().to_string(), "efa/*");
    }
}
