//! The fabric, its provider and the domain, by name and version. Names compare without case, as in C.

use super::Negotiation;
use ofi_api::FabricAttr;

/// The fabric and its provider.
pub(super) fn fabric_attr(talk: &mut Negotiation<'_>) -> FabricAttr {
    let (offer, hints) = (&talk.offer.fabric_attr, &talk.hints.fabric_attr);
    if !provider_matches(&hints.prov_name, &offer.prov_name) {
        talk.refuse("fabric_attr.prov_name", &hints.prov_name, &offer.prov_name);
    }
    if !same_name(&hints.name, &offer.name) {
        talk.refuse("fabric_attr.name", &hints.name, &offer.name);
    }
    if hints.prov_version > offer.prov_version {
        let offered = format_args!("at most {}", offer.prov_version);
        talk.refuse("fabric_attr.prov_version", hints.prov_version, offered);
    }
    if talk.api < offer.api_version {
        talk.refuse("fabric_attr.api_version", talk.api, format_args!("at least {}", offer.api_version));
    }
    FabricAttr {
        fabric: hints.fabric.clone().or_else(|| offer.fabric.clone()),
        name: offer.name.clone(),
        prov_name: offer.prov_name.clone(),
        prov_version: offer.prov_version,
        api_version: talk.api,
    }
}

/// The domain's name.
pub(super) fn domain_name(talk: &mut Negotiation<'_>) -> String {
    let (offered, wanted) = (&talk.offer.domain_attr.name, &talk.hints.domain_attr.name);
    if !same_name(wanted, offered) {
        talk.refuse("domain_attr.name", wanted, offered);
    }
    offered.clone()
}

/// Whether `wanted` names a stack of providers such as `udp;ofi_rxd`: each name in `wanted` is a layer of the stack,
/// and no name with a `^` is. Order does not matter, as in C for two layers; a stack may have more layers than were
/// named.
pub fn provider_matches(wanted: &str, stack: &str) -> bool {
    let has = |name: &str| stack.split(';').any(|layer| layer.eq_ignore_ascii_case(name));
    wanted.split(';').filter(|name| !name.is_empty()).all(|name| match name.strip_prefix('^') {
        Some(excluded) => !has(excluded),
        None => has(name),
    })
}

fn same_name(wanted: &str, offered: &str) -> bool {
    wanted.is_empty() || wanted.eq_ignore_ascii_case(offered)
}
