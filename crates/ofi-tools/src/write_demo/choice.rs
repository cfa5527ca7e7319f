//! Chooses the provider if the command line names none.

use ofi::AddrFormat;

use super::nics;
use super::options::Options;

/// The chosen provider, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its name.
    pub provider: String,
    /// The reason.
    pub why: String,
}

/// The provider of the command line; otherwise that of the writer's address; otherwise `efa` on a host with an EFA
/// device, the only provider of the C++ demo; otherwise `udp`.
pub fn choose(options: &Options) -> Choice {
    if let Some(provider) = &options.asked {
        return Choice { provider: provider.clone(), why: "as requested".to_string() };
    }
    let format =
        options.address.as_deref().and_then(|text| nics::parse(text).ok()?.first().map(|one| one.format()));
    if let Some(provider) = format.and_then(provider_of) {
        return Choice {
            provider: provider.to_string(),
            why: "the writer's address has its format".to_string(),
        };
    }
    by_devices(nics::names("efa"))
}

/// The provider for an address of this format. Of the providers with socket addresses it is the demo's default, `udp`.
fn provider_of(format: AddrFormat) -> Option<&'static str> {
    match format {
        AddrFormat::Efa => Some("efa"),
        AddrFormat::Str => Some("shm"),
        AddrFormat::IbUd => Some("verbs"),
        AddrFormat::SockaddrIn | AddrFormat::SockaddrIn6 => Some("udp"),
        _ => None,
    }
}

/// The choice by the EFA devices of this host.
fn by_devices(found: crate::failure::Result<Vec<String>>) -> Choice {
    match found {
        Ok(devices) => {
            Choice { provider: "efa".to_string(), why: format!("EFA device {} is here", devices.join(", ")) }
        }
        Err(why) => {
            // getinfo lists what each provider lacks.
            let text = why.to_string();
            let of_efa = text.lines().map(str::trim).find(|line| line.starts_with("efa: "));
            let why = of_efa.or_else(|| text.lines().next()).unwrap_or_default();
            Choice { provider: "udp".to_string(), why: format!("no EFA device can be used here: {why}") }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::failure::Failure;

    fn chosen(arguments: &[&str]) -> String {
        let options = Options::try_parse_from([&["fi_write_demo"], arguments].concat()).unwrap();
        choose(&options).provider
    }

    #[test]
    fn the_address_says_which_provider_it_needs() {
        let efa = "0a".repeat(32);
        for (address, wanted) in [
            (&*efa, "efa"),
            ("fi_shm://123", "shm"),
            ("fi_sockaddr_in://10.0.0.1:41205,fi_sockaddr_in://10.0.0.1:41206", "udp"),
            ("fi_sockaddr_in6://[::1]:41205", "udp"),
        ] {
            assert_eq!(chosen(&[address]), wanted, "{address}");
            assert_eq!(chosen(&["-p", "verbs", address]), "verbs");
        }
    }

    #[test]
    fn a_device_counts_before_sockets() {
        let choice = by_devices(Ok(vec!["rdmap0-rdm".to_string(), "rdmap1-rdm".to_string()]));
        assert_eq!((&*choice.provider, &*choice.why), ("efa", "EFA device rdmap0-rdm, rdmap1-rdm is here"));
        let text = "nothing matches\n  shm: this\n  efa: that\n  udp: these";
        let choice = by_devices(Err(Failure::Usage(text.to_string())));
        assert_eq!(choice.why, "no EFA device can be used here: efa: that");
        let choice = by_devices(Err(Failure::Usage("nothing".to_string())));
        assert_eq!((&*choice.provider, &*choice.why), ("udp", "no EFA device can be used here: nothing"));
    }
}
