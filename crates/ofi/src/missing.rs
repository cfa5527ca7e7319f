//! Providers that were left out of the build: the refusals that `fi_info --explain` prints if one is requested.

use ofi_api::Refusal;

use crate::layers;

/// Every provider that is a cargo feature, and whether it is built in.
const FEATURES: [(&str, bool); 5] = [
    ("shm", cfg!(feature = "shm")),
    ("udp", cfg!(feature = "udp")),
    ("tcp", cfg!(feature = "tcp")),
    ("verbs", cfg!(feature = "verbs")),
    ("efa", cfg!(feature = "efa")),
];

/// The names of the providers that are not built in.
pub fn left_out() -> impl Iterator<Item = &'static str> {
    FEATURES.iter().filter(|(_, built)| !built).map(|(name, _)| *name)
}

/// Refusals for providers that are named in the hints (`wanted`) or in the setting `FI_PROVIDER`, but not built in.
pub fn refusals(wanted: &str, setting: &str) -> Vec<Refusal> {
    // A list of excluded providers names none.
    let setting = if setting.trim().starts_with('^') { "" } else { setting };
    let named =
        |text: &str, name: &str| text.split([';', ',']).any(|layer| layer.trim().eq_ignore_ascii_case(name));
    let refusal = |name: &str, field| Refusal {
        provider: name.into(),
        field,
        wanted: name.into(),
        offered: format!(
            "nothing: this program was built without the cargo feature `{name}`; build it with --features {name} \
             (docs/{})",
            match name {
                "verbs" => "rdma.md",
                "efa" => "efa.md",
                "tcp" => "tcp.md",
                _ => "providers.md",
            }
        ),
    };
    left_out()
        .filter_map(|name| {
            if named(wanted, name) {
                return Some(refusal(name, "fabric_attr.prov_name"));
            }
            named(setting, name).then(|| refusal(name, "FI_PROVIDER"))
        })
        .collect()
}

/// Refusals for names in the hints (`wanted`) or in the setting `FI_PROVIDER` that no provider has, such as those of
/// C libfabric's other providers. `is_known` tells whether a name is a provider or an alias.
pub fn strangers(wanted: &str, setting: &str, is_known: impl Fn(&str) -> bool) -> Vec<Refusal> {
    let setting = if setting.trim().starts_with('^') { "" } else { setting };
    // Layers of C's library precede or follow a provider's name: `tcp;ofi_rxm`, `ofi_rxm;tcp`. `layers` refuses unknown
    // ones.
    let is_of_layers = |name: &str| layers::is_layer(name) || name.starts_with("ofi_");
    let is_strange = |name: &&str| !name.is_empty() && !is_of_layers(name) && !is_known(name);
    let refusal = |name: &str, field| Refusal {
        provider: name.into(),
        field,
        wanted: name.into(),
        offered: format!(
            "nothing: no provider here has that name; to give it to one, set FI_PROVIDER_ALIAS={name}=udp \
             (docs/c-programs.md)"
        ),
    };
    let of = |text: &str, field| -> Vec<Refusal> {
        let names = text.split([';', ',']).map(str::trim).filter(is_strange);
        names.map(|name| refusal(name, field)).collect()
    };
    let mut all = of(wanted, "fabric_attr.prov_name");
    all.extend(of(setting, "FI_PROVIDER"));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_no_provider_are_refused_with_the_setting_that_gives_them_to_one() {
        let known = |name: &str| ["udp", "shm"].contains(&name);
        let refused = |wanted: &str, setting: &str| {
            strangers(wanted, setting, known)
                .into_iter()
                .map(|refusal| (refusal.provider, refusal.field))
                .collect::<Vec<_>>()
        };
        assert!(refused("udp", "shm, udp").is_empty() && refused("", "^sockets").is_empty());
        assert!(refused("udp;ofi_rxd", "ofi_rxm;udp").is_empty() && refused("shm;off_coll", "").is_empty());
        assert_eq!(refused("sockets;ofi_rxm", ""), [("sockets".into(), "fabric_attr.prov_name")]);
        assert_eq!(refused("", "udp,sockets"), [("sockets".into(), "FI_PROVIDER")]);
        let offered = &strangers("sockets", "", known)[0].offered;
        assert!(offered.contains("set FI_PROVIDER_ALIAS=sockets=udp"), "{offered}");
    }

    #[test]
    fn only_what_is_named_and_not_built_in_is_refused() {
        assert!(refusals("", "").is_empty() && refusals("psm3;ofi_rxm", "sockets").is_empty());
        for (name, built) in FEATURES {
            for (wanted, setting, field) in [
                (name.to_uppercase(), String::new(), "fabric_attr.prov_name"),
                (format!("{name};ofi_rxd"), String::new(), "fabric_attr.prov_name"),
                (String::new(), format!("sockets, {name}"), "FI_PROVIDER"),
            ] {
                let found = refusals(&wanted, &setting);
                assert_eq!(found.len(), usize::from(!built), "{wanted} {setting}");
                for refusal in found {
                    assert_eq!((refusal.provider.as_str(), refusal.field), (name, field));
                    assert!(refusal.offered.contains(&format!("--features {name}")), "{}", refusal.offered);
                }
            }
            assert!(refusals("", &format!("^{name}")).is_empty());
        }
    }
}
