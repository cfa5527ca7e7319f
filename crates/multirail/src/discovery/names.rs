//! Rails by their names.

use ofi::{Errno, Error, Hints, Result};

/// The hints for a rail given as `PROVIDER` or `PROVIDER/DOMAIN`.
///
/// # Errors
/// `FI_EINVAL` if one of the two is empty.
pub fn rail_hints(text: &str) -> Result<Hints> {
    let (provider, domain) = text.split_once('/').map_or((text, None), |(name, at)| (name, Some(at)));
    if provider.trim().is_empty() || domain.is_some_and(|domain| domain.trim().is_empty()) {
        return Err(Error::wanted(
            Errno::EINVAL,
            "a rail",
            "PROVIDER or PROVIDER/DOMAIN, as in udp or udp/eth0",
            format!("{text:?}"),
            "see what fi_info lists",
        ));
    }
    let hints = Hints::new().provider(provider.trim());
    Ok(domain.map_or(hints.clone(), |domain| hints.domain(domain.trim())))
}
