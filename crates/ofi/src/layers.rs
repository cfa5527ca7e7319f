//! Names with layers, such as `verbs;ofi_rxm`: C libfabric stacks a utility provider for reliable datagrams on a core
//! provider. Our providers have such endpoints themselves, so a layered name means the core provider. The infos carry
//! the name that the program or the setting used, because programs compare it, or copy it into their next hints.

use ofi_api::{Provider, Refusal};

use crate::alias::Aliases;

/// The utility providers of C libfabric that are not needed here: reliable datagrams over connections and over
/// datagrams, and collectives.
const LAYERS: [&str; 3] = ["ofi_rxm", "ofi_rxd", "off_coll"];

/// Whether a part of a name is such a layer.
pub(crate) fn is_layer(part: &str) -> bool {
    LAYERS.iter().any(|layer| layer.eq_ignore_ascii_case(part))
}

/// The core provider of a layered name. `None`: the name has no layers.
///
/// # Errors
/// A text with the valid names.
pub(crate) fn bottom(name: &str) -> Result<Option<&str>, String> {
    let parts = || name.split(';').map(str::trim).filter(|part| !part.is_empty());
    // `^name` excludes a layer; since no provider here has layers, that excludes nothing.
    if parts().any(|part| part.starts_with('^')) || (parts().count() < 2 && !parts().any(is_layer)) {
        return Ok(None);
    }
    let layers = LAYERS.join(", ");
    let mut providers = parts().filter(|part| !is_layer(part));
    match (providers.next(), providers.next()) {
        (Some(provider), None) => Ok(Some(provider)),
        (None, _) => Err(format!("the layers {layers} above a provider, as in verbs;ofi_rxm, not alone")),
        (Some(provider), Some(unknown)) => {
            Err(format!("{provider} alone or with the layers {layers}, and no layer {unknown}"))
        }
    }
}

/// Registers the layered names in the hints and in `FI_PROVIDER` as aliases of their core providers. Returns refusals
/// for invalid names.
pub(crate) fn resolve(
    wanted: &str,
    setting: &str,
    all: &[std::sync::Arc<dyn Provider>],
    aliases: &mut Aliases,
) -> Vec<Refusal> {
    // A list of excluded names requests none.
    let list = if setting.trim().starts_with('^') { "" } else { setting };
    let set = list.split(',').map(|name| ("FI_PROVIDER", name.trim()));
    let mut refusals = Vec::new();
    for (field, name) in std::iter::once(("fabric_attr.prov_name", wanted.trim())).chain(set) {
        let is_known = |name: &str| all.iter().any(|provider| provider.name().eq_ignore_ascii_case(name));
        let below = match bottom(name) {
            Ok(Some(below)) if !is_known(name) && aliases.provider_of(name).is_none() => below,
            Ok(_) => continue,
            Err(offered) => {
                tracing::warn!(target: "ofi::core::core", field, name, "names no provider: wanted {offered}");
                refusals.push(Refusal { provider: name.into(), field, wanted: name.into(), offered });
                continue;
            }
        };
        let own = if is_known(below) { Some(below) } else { aliases.provider_of(below) }.map(str::to_owned);
        if let Some(own) = own {
            tracing::info!(
                target: "ofi::core::core",
                field,
                "{name} is served by provider {own} alone, which needs no layer for reliable datagrams",
            );
            aliases.add(name, &own);
        }
    }
    refusals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_known_layers_means_the_provider_below_them() {
        for (name, provider) in [
            ("verbs;ofi_rxm", "verbs"),
            ("TCP;OFI_RXM", "TCP"),
            ("ofi_rxd;udp", "udp"),
            ("shm;ofi_rxm;off_coll", "shm"),
        ] {
            assert_eq!(bottom(name), Ok(Some(provider)), "{name}");
        }
        for plain in ["", "udp", "efa-direct", "udp;", "^ofi_rxd", "udp;^ofi_rxd"] {
            assert_eq!(bottom(plain), Ok(None), "{plain}");
        }
    }

    #[test]
    fn layers_that_mean_nothing_are_refused_in_words() {
        assert_eq!(
            bottom("ofi_rxm").unwrap_err(),
            "the layers ofi_rxm, ofi_rxd, off_coll above a provider, as in verbs;ofi_rxm, not alone"
        );
        assert_eq!(
            bottom("verbs;ofi_mrail").unwrap_err(),
            "verbs alone or with the layers ofi_rxm, ofi_rxd, off_coll, and no layer ofi_mrail"
        );
    }
}
