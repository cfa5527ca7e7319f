//! Negotiation: computes the grant from a provider's offer and the application's hints, or a list of every hint that
//! cannot be met. Pure functions: no state of the host, no I/O.
//!
//! The rules are those of fi_getinfo(3), fi_endpoint(3), fi_domain(3) and fi_fabric(3): a nonzero hint must be met, and
//! zero means any. But an empty `mode` means "no mode", an empty `mr_mode` means "scalable", and primary capabilities
//! are granted only if requested. Where the man pages leave a choice, or C libfabric departs from them, the
//! documentation of the rule says what is done here and why.
//!
//! An *offer* is an [`Info`] that a provider fills in with all it can do:
//! - `caps`, and those of the attributes: all that is possible. Empty `tx_attr.caps`, `rx_attr.caps` and
//!   `domain_attr.caps` stand for the part of `caps` that concerns them.
//! - `mode`, `mr_mode`: what the provider needs of the application. In `mr_mode`, the deprecated `BASIC` and `SCALABLE`
//!   say that the provider can also run that way for programs that request it.
//! - sizes and counts: the largest possible. `msg_order`, `op_flags`: all that is possible.
//! - `threading`, `progress`, `resource_mgmt`: the most that the provider does for the application.
//! - `fabric_attr.api_version`: the oldest interface that it serves, or zero.
//! - addresses and `nic`: copied as they are; resolving node and service is the provider's work.
//!
//! A provider whose default is less than it can do (manual progress, automatic on request) offers variants, the default
//! first: see [`negotiate_any`].

mod caps;
mod endpoint;
mod limits;
mod memory;
mod models;
mod names;
mod side;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use ofi_api::{DomainAttr, Hints, Info, Mode, MrMode, Refusal, Version};
use std::borrow::Borrow;
use std::fmt::Display;

pub use caps::with_directions;
pub use names::provider_matches;

/// The grant of `offer` for `hints` to a program written for `api`, or one refusal for each field that cannot be met.
/// `None` for the hints requests everything, with the provider's own choices.
///
/// # Errors
/// The refusals, in the order of the fields; never empty.
pub fn negotiate(offer: &Info, hints: Option<&Hints>, api: Version) -> Result<Info, Vec<Refusal>> {
    attempt(offer, hints, api, Texts::Written).map_err(|talk| talk.refusals)
}

/// What prevents a grant.
struct Rejected {
    /// The number of hints that cannot be met.
    count: usize,
    /// One for each of them, if texts are written.
    refusals: Vec<Refusal>,
}

/// Whether refusals get their texts. Of 32 variants, only one has its refusals reported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Texts {
    Written,
    LeftOut,
}

fn attempt(offer: &Info, hints: Option<&Hints>, api: Version, texts: Texts) -> Result<Info, Rejected> {
    let everything;
    let hints = match hints {
        Some(hints) => &hints.info,
        None => {
            everything = everything_of(offer, api);
            &everything
        }
    };
    let mut talk =
        Negotiation { offer, hints, api, texts, refused: Rejected { count: 0, refusals: Vec::new() } };
    let caps = caps::info_caps(&mut talk);
    let (mr_mode, local_mr) = memory::mr_mode(&mut talk, caps);
    let granted = Info {
        caps,
        mode: caps::info_mode(&mut talk, local_mr),
        addr_format: models::addr_format(&mut talk),
        src_addr: offer.src_addr.clone(),
        dest_addr: offer.dest_addr.clone(),
        handle: hints.handle.clone(),
        tx_attr: side::tx_attr(&mut talk, caps),
        rx_attr: side::rx_attr(&mut talk, caps),
        ep_attr: endpoint::ep_attr(&mut talk, caps),
        domain_attr: limits::domain_attr(&mut talk, caps, mr_mode),
        fabric_attr: names::fabric_attr(&mut talk),
        nic: offer.nic.clone(),
    };
    if talk.refused.count == 0 { Ok(granted) } else { Err(talk.refused) }
}

/// The grant of the first of `variants` that meets `hints`. Variants are the modes in which one provider can run on one
/// device, the default first. Hints without capabilities ask for all of them, so a variant that drops some, because the
/// registration mode does not allow them, is granted only if no other variant keeps all.
///
/// # Errors
/// The refusals of the variant that came closest, which is the one with the fewest. Empty only if there is
/// no variant.
pub fn negotiate_any<V: Borrow<Info>>(
    variants: impl IntoIterator<Item = V>,
    hints: Option<&Hints>,
    api: Version,
) -> Result<Info, Vec<Refusal>> {
    let mut closest: Option<(usize, V)> = None;
    let mut lesser: Option<Info> = None;
    for variant in variants {
        let offer = variant.borrow();
        match attempt(offer, hints, api, Texts::LeftOut) {
            Ok(info) if info.caps.contains(caps::unasked(offer, hints)) => return Ok(info),
            Ok(info) => lesser = lesser.or(Some(info)),
            Err(refused) if closest.as_ref().is_none_or(|(least, _)| refused.count < *least) => {
                closest = Some((refused.count, variant));
            }
            Err(_) => {}
        }
    }
    match (lesser, closest) {
        (Some(info), _) => Ok(info),
        (None, Some((_, closest))) => negotiate(closest.borrow(), hints, api),
        (None, None) => Err(Vec::new()),
    }
}

/// Hints that express no restriction: any mode, and whatever registration the offer needs.
fn everything_of(offer: &Info, api: Version) -> Info {
    let mr_mode = match api < BITS_OF_MR_MODE {
        true => MrMode::empty(),
        false => offer.domain_attr.mr_mode.difference(MrMode::DEPRECATED),
    };
    let mode = Mode::from_bits_retain(u64::MAX);
    Info { mode, domain_attr: DomainAttr { mr_mode, ..DomainAttr::default() }, ..Info::default() }
}

/// The first interface in which `mr_mode` is a set of bits.
const BITS_OF_MR_MODE: Version = Version::new(1, 5);

/// A negotiation in progress: the two sides, and the refusals so far.
struct Negotiation<'a> {
    offer: &'a Info,
    hints: &'a Info,
    api: Version,
    texts: Texts,
    refused: Rejected,
}

impl Negotiation<'_> {
    /// Notes that the hint `field` cannot be met.
    fn refuse(&mut self, field: &'static str, wanted: impl Display, offered: impl Display) {
        self.refused.count += 1;
        if self.texts == Texts::LeftOut {
            return;
        }
        let provider = self.offer.fabric_attr.prov_name.clone();
        self.refused.refusals.push(Refusal {
            provider,
            field,
            wanted: wanted.to_string(),
            offered: offered.to_string(),
        });
    }

    /// A size or a count: zero requests the offered value, a larger one than offered is refused, and any other is
    /// granted as requested, so that a provider may save resources.
    fn at_most<T: Copy + Ord + Default + Display>(&mut self, field: &'static str, wanted: T, limit: T) -> T {
        if wanted > limit {
            self.refuse(field, wanted, format_args!("at most {limit}"));
        }
        if wanted == T::default() { limit } else { wanted }
    }

    /// As [`Negotiation::at_most`], for a field that was added in version `since`: the hints of an older program are
    /// ignored.
    fn at_most_since<T: Copy + Ord + Default + Display>(
        &mut self,
        since: Version,
        field: &'static str,
        wanted: T,
        limit: T,
    ) -> T {
        self.at_most(field, if self.api < since { T::default() } else { wanted }, limit)
    }
}
