//! The backend's options: the program passes them to `create_backend`; `NIXL_OFI_<NAME>` in the environment replaces
//! missing ones.

use std::collections::HashMap;
use std::time::Duration;

use multirail::{Config, RailList};
use ofi::{Errno, Error, Result};

/// Name, default and description. An empty default leaves the choice to the engine.
pub(crate) const ALL: [(&str, &str, &str); 5] = [
    (
        "rails",
        "auto",
        "auto, or rails separated by commas: PROVIDER, PROVIDER/DEVICE, patterns (efa/*), !PATTERN",
    ),
    ("shared_memory", "1", "1 or 0: whether rails may reach peers of this host through shared memory"),
    ("striping_threshold", "131072", "shortest descriptor, in bytes, that is cut over the rails"),
    ("timeout_s", "600", "seconds after which a transfer fails; 1 to 1000000"),
    ("connect_timeout_s", "60", "seconds after which opening a session fails; 1 to 1000000"),
];

/// The chosen options.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rails: RailList,
    pub(crate) shared_memory: bool,
    pub(crate) config: Config,
    pub(crate) timeout: Duration,
}

impl Options {
    /// Reads the options: `given` takes precedence over `environment`, and that over the defaults. Unknown names belong
    /// to NIXL.
    ///
    /// # Errors
    /// `FI_EINVAL` for an invalid value.
    pub(crate) fn parse(
        given: &HashMap<String, String>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let value = |name: &str| {
            let default = ALL.iter().find(|(known, ..)| *known == name).map_or("", |(_, default, _)| default);
            let set = || environment(&format!("NIXL_OFI_{}", name.to_uppercase()));
            // NIXL passes the defaults of the list as if the program had chosen them.
            let chosen = given.get(name).filter(|value| *value != default).cloned();
            let (value, from) = match (chosen, set()) {
                (Some(value), _) => (value, "the program"),
                (None, Some(value)) => (value, "the environment"),
                (None, None) => (default.to_string(), "the default"),
            };
            tracing::debug!(target: "ofi::nixl::core", name, value, from, "an option of the backend");
            value
        };
        let number = |name: &'static str, least: u64, most: u64| {
            let text = value(name);
            let number = text.trim().parse().ok().filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| wrong(name, format!("{least} to {most}"), &text))
        };
        let text = value("rails");
        let wanted = "auto, providers and patterns separated by commas, as in efa/* or udp,udp";
        Ok(Self {
            rails: text.parse().map_err(|_| wrong("rails", wanted.into(), &text))?,
            shared_memory: number("shared_memory", 0, 1)? == 1,
            config: Config {
                striping_threshold: number("striping_threshold", 1, u64::MAX)?,
                connect_timeout: Duration::from_secs(number("connect_timeout_s", 1, 1_000_000)?),
                // NIXL's transfers end although their receivers ask for no notifications.
                acknowledge_taken: false,
                ..Config::default()
            },
            timeout: Duration::from_secs(number("timeout_s", 1, 1_000_000)?),
        })
    }
}

fn wrong(name: &'static str, wanted: String, found: &str) -> Error {
    Error::wanted(
        Errno::EINVAL,
        format!("option {name} of OFI (or NIXL_OFI_{})", name.to_uppercase()),
        wanted,
        format!("{found:?}"),
        "see docs/multirail.md",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[(&str, &str)], set: &[(&str, &str)]) -> Result<Options> {
        let given = given.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Options::parse(&given, |name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn defaults_are_values_and_the_environment_stands_behind_what_is_given() {
        let options = parse(&[], &[]).unwrap();
        assert_eq!((options.rails.to_string(), options.shared_memory), ("auto".to_string(), true));
        assert_eq!(options.config.striping_threshold, 128 << 10);
        let all: Vec<_> = ALL.iter().map(|&(name, default, _)| (name, default)).collect();
        let options = parse(&all, &[("NIXL_OFI_RAILS", "udp, shm")]).unwrap();
        assert_eq!(options.rails.to_string(), "udp,shm", "the defaults that NIXL hands back choose nothing");
        let options = parse(&[("rails", "efa/*,!rdmap0*")], &[("NIXL_OFI_RAILS", "udp")]).unwrap();
        assert_eq!(options.rails.to_string(), "efa/*,!rdmap0*");
    }

    #[test]
    fn values_that_are_none_are_named() {
        let wrong = [
            ("rails", ""),
            ("rails", "udp,,udp"),
            ("rails", "udp/"),
            ("shared_memory", "yes"),
            ("striping_threshold", "0"),
            ("timeout_s", "-1"),
            ("connect_timeout_s", "1e3"),
        ];
        for (name, value) in wrong {
            let error = parse(&[(name, value)], &[]).unwrap_err();
            assert_eq!(error.errno(), Errno::EINVAL);
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
