//! Finds the devices that an agent's rails use.
//!
//! A [`RailList`] names them: `auto`, single rails, patterns, and exceptions. One NIC becomes one rail, whatever the
//! number of addresses, ports of a bond, or providers by which it could be used. Sockets are the exception: `auto` has
//! one rail of all addresses there. Rails are paired by their order, and endpoints that are bound to interfaces of
//! different networks do not reach each other, while the kernel finds a route.

mod devices;
mod names;
mod pattern;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use ofi::{Errno, Error, Hints, Info, Result};

pub use self::names::rail_hints;
use crate::rail;
use devices::{Device, Reach};
use pattern::Pattern;

/// The rails of an agent, by name: terms separated by commas.
///
/// | term | rails |
/// |---|---|
/// | `auto` | a rail on each NIC of the first of these providers that has one which opens: `efa`, `verbs`, any provider that is registered besides, `udp`, `tcp`, `shm`; of `udp` and `tcp` one rail of all addresses, whose routes the kernel chooses |
/// | `PROVIDER` | one rail: the provider's first device |
/// | `PROVIDER/DEVICE` | one rail on this device, or domain; the same twice makes two rails |
/// | `PROVIDER/PATTERN`, `PATTERN` | a rail on each matching NIC: `*` stands for any characters, `?` for one |
/// | `!PATTERN` | no rail on these devices, for `auto` and for patterns; alone it is `auto` without them. `!eth0` holds for all providers of the NIC, `!udp` and `!udp/eth0` for this provider; what is not here is no error |
///
/// Names are those of domains (`rdmap0s6-rdm`), devices (`rdmap0s6`, `mlx5_0`) or interfaces (`eth0`). Interfaces that
/// have hardware come before virtual ones, and these before loopback and those whose link is down: a provider's
/// devices of the best kind are used, unless a pattern matches the others alone. An exception that names an interface
/// on top of a NIC (a VLAN's) leaves out the NIC. If an exception names an interface of `udp` or `tcp`, `auto` has a
/// rail on each of the others there, and so it has where the rail of all addresses would be of another family than
/// those of the NICs (a host with IPv6 alone). Within a host, `efa`, `verbs`, `udp` and `tcp` use shared memory
/// ([`Builder::shared_memory`](crate::Builder::shared_memory)), so peers there need no rail of their own. A device of
/// `auto` or of a pattern that does not open is logged and left out. A NIC that a term uses is not used by later
/// patterns. A NIC may be used twice by `auto` followed by patterns, which do not know to which provider `auto` falls
/// back, and by the rail of all addresses of `udp` or `tcp` beside rails on interfaces (`udp,udp/*`).
///
/// ```
/// use multirail::{Agent, RailList};
/// let agent = Agent::builder("decode-0").rails("udp/*".parse()?).open()?;
/// assert!("efa/*,!rdmap1*".parse::<RailList>().is_ok());
/// assert!("efa/".parse::<RailList>().is_err());
/// # Ok::<(), ofi::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailList(Vec<Term>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Auto,
    One(String),
    Every(Pattern),
    Not(Pattern),
}

/// Rails to open.
#[derive(Debug)]
pub(crate) enum Found {
    /// One rail. If it does not open, nor does the agent.
    Named(Box<Hints>),
    /// Rails of which those that open are used.
    Devices(Vec<Info>),
    /// Likewise, the first of these lists of which a rail opens.
    BestOf(Vec<Vec<Info>>),
}

/// What the terms of a list named when its rails were opened, by which devices that appear later are judged.
#[derive(Debug, Default)]
pub(crate) struct Start(Vec<TermStart>);

/// What one term named.
#[derive(Debug)]
struct TermStart {
    /// Its index in the list.
    term: usize,
    /// The kind of the devices that it named, by provider.
    reaches: Vec<(String, Reach)>,
    /// The choices of `auto`: the provider and the domains of each.
    choices: Vec<(String, Vec<String>)>,
}

impl TermStart {
    /// What a term named, if it is `auto` or a pattern.
    fn of(list: &RailList, term: usize, devices: &[Device], found: &[(usize, Found)]) -> Option<Self> {
        if !matches!(list.0[term], Term::Auto | Term::Every(_)) {
            return None;
        }
        // By itself: with the NICs that earlier terms have taken.
        let mut reaches: Vec<(String, Reach)> = Vec::new();
        for info in list.choose_for(&list.0[term], devices).unwrap_or_default().into_iter().flat_map(infos_of)
        {
            let Some(device) = device_of(devices, &info) else { continue };
            match reaches.iter_mut().find(|(of, _)| *of == *provider(device)) {
                Some((_, worst)) => *worst = device.reach.max(*worst),
                None => reaches.push((provider(device).to_string(), device.reach)),
            }
        }
        let choice = |infos: &Vec<Info>| {
            let names = infos.iter().map(|info| info.domain_attr.name.clone()).collect();
            Some((infos.first()?.fabric_attr.prov_name.clone(), names))
        };
        let choices = found.iter().filter(|(of, _)| *of == term).flat_map(|(_, found)| match found {
            Found::BestOf(choices) => choices.iter().filter_map(choice).collect(),
            Found::Named(_) | Found::Devices(_) => Vec::new(),
        });
        Some(Self { term, reaches, choices: choices.collect() })
    }

    /// The rank of the provider to which `auto` has come: the first of its choices that has one of these rails.
    fn rank(&self, open: &[Info]) -> u8 {
        let is_open = |(provider, domains): &&(String, Vec<String>)| {
            open.iter().any(|info| {
                info.fabric_attr.prov_name == *provider && domains.contains(&info.domain_attr.name)
            })
        };
        self.choices.iter().find(is_open).map_or(u8::MAX, |(provider, _)| devices::rank(provider))
    }

    /// Whether a device is as good as those that the term named at first. When a NIC goes down, the best device that
    /// is left may be a bridge of containers, loopback, or the NIC itself.
    fn is_good(&self, device: &Device) -> bool {
        let known = self.reaches.iter().find(|(of, _)| *of == *provider(device));
        match known {
            Some(&(_, worst)) => device.reach <= worst,
            None => device.reach != Reach::Down,
        }
    }
}

impl Default for RailList {
    /// `auto`.
    fn default() -> Self {
        Self(vec![Term::Auto])
    }
}

impl FromStr for RailList {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |term: &str| {
            Error::wanted(
                Errno::EINVAL,
                "rails",
                "auto, PROVIDER, PROVIDER/DEVICE, patterns such as efa/* or verbs/mlx5_*, and exceptions such as \
                 !eth0, separated by commas",
                format!("{term:?} in {text:?}"),
                "see what fi_info lists",
            )
        };
        let term = |word: &str| {
            let word = word.trim();
            Ok(match word.strip_prefix('!') {
                Some(not) => Term::Not(Pattern::parse(not).ok_or_else(|| wrong(word))?),
                None if word == "auto" => Term::Auto,
                None if Pattern::has_wildcards(word) => {
                    Term::Every(Pattern::parse(word).ok_or_else(|| wrong(word))?)
                }
                None => {
                    let _ = rail_hints(word).map_err(|_| wrong(word))?;
                    Term::One(word.to_string())
                }
            })
        };
        let mut terms = text.split(',').map(term).collect::<Result<Vec<Term>>>()?;
        if terms.iter().all(|term| matches!(term, Term::Not(_))) {
            terms.insert(0, Term::Auto);
        }
        Ok(Self(terms))
    }
}

impl fmt::Display for RailList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, term) in self.0.iter().enumerate() {
            let comma = if nth > 0 { "," } else { "" };
            match term {
                Term::Auto => write!(f, "{comma}auto")?,
                Term::One(name) => write!(f, "{comma}{name}")?,
                Term::Every(pattern) => write!(f, "{comma}{pattern}")?,
                Term::Not(pattern) => write!(f, "{comma}!{pattern}")?,
            }
        }
        Ok(())
    }
}

impl RailList {
    /// The infos of this host's devices that the list names, in the order in which rails are opened. Of `auto` they are
    /// those of the first provider that has any.
    ///
    /// # Errors
    /// `FI_ENODATA` if a term names no device here; the errors of getinfo.
    pub fn infos(&self) -> Result<Vec<Info>> {
        let mut infos = Vec::new();
        for found in self.find()?.0 {
            match found {
                Found::Named(hints) => infos.extend(rail::infos(&hints)?.into_iter().next()),
                Found::Devices(devices) => infos.extend(devices),
                Found::BestOf(choices) => infos.extend(choices.into_iter().next().unwrap_or_default()),
            }
        }
        Ok(infos)
    }

    /// Whether devices that appear later may become rails.
    pub(crate) fn may_grow(&self) -> bool {
        self.0.iter().any(|term| matches!(term, Term::Auto | Term::Every(_)))
    }

    /// The devices of this host that `auto` and patterns name and that have no rail yet, beside these. Of `auto` they
    /// are those of the first provider that has a rail, and of better ones. A device that reaches less far than those
    /// of the start is not one of them.
    pub(crate) fn later(&self, start: &Start, open: &[Info]) -> Result<Vec<Info>> {
        Ok(self.later_of(&devices_of_host()?, start, open))
    }

    fn later_of(&self, devices: &[Device], start: &Start, open: &[Info]) -> Vec<Info> {
        let mut taken: Vec<&Device> = open.iter().filter_map(|info| device_of(devices, info)).collect();
        let mut later = Vec::new();
        for began in &start.0 {
            let Some(term) = self.0.get(began.term) else { continue };
            let last = if matches!(term, Term::Auto) { began.rank(open) } else { u8::MAX };
            // What a term has named may not be there now.
            let found = self.choose_for(term, devices).unwrap_or_default();
            for info in found.into_iter().flat_map(infos_of) {
                let Some(device) = device_of(devices, &info) else { continue };
                let is_wanted = rank(device) <= last && began.is_good(device);
                if is_wanted && !taken.iter().any(|other| other.is_same(device)) {
                    taken.push(device);
                    later.push(info);
                }
            }
        }
        later
    }

    /// The rails to open for one term, with the exceptions.
    fn choose_for(&self, term: &Term, devices: &[Device]) -> Result<Vec<Found>> {
        let exceptions = self.0.iter().filter(|term| matches!(term, Term::Not(_)));
        Self(std::iter::once(term).chain(exceptions).cloned().collect()).choose(devices)
    }

    /// The rails to open on this host, and what [`RailList::later`] compares with.
    pub(crate) fn find(&self) -> Result<(Vec<Found>, Start)> {
        let is_named = self.0.iter().all(|term| matches!(term, Term::One(_)));
        // A list of names asks no provider for its devices.
        let devices = if is_named { Vec::new() } else { devices_of_host()? };
        self.begin(&devices)
    }

    fn begin(&self, devices: &[Device]) -> Result<(Vec<Found>, Start)> {
        let found = self.choose_by_term(devices)?;
        let terms = (0..self.0.len()).filter_map(|term| TermStart::of(self, term, devices, &found));
        let start = Start(terms.collect());
        Ok((found.into_iter().map(|(_, found)| found).collect(), start))
    }

    /// The rails to open, out of these devices.
    fn choose(&self, devices: &[Device]) -> Result<Vec<Found>> {
        Ok(self.choose_by_term(devices)?.into_iter().map(|(_, found)| found).collect())
    }

    /// Likewise, each with the index of its term.
    fn choose_by_term(&self, devices: &[Device]) -> Result<Vec<(usize, Found)>> {
        let mut left: Vec<&Device> = devices.iter().collect();
        for term in &self.0 {
            let Term::Not(pattern) = term else { continue };
            let out: Vec<&Device> = devices.iter().filter(|device| pattern.excludes(device)).collect();
            if out.is_empty() {
                // One list serves many hosts.
                tracing::info!(target: "multirail", %pattern, "an exception names no device of this host");
            }
            // A NIC that is left out by its own name is left out for all providers.
            let is_out = |device: &Device, gone: &Device| {
                gone.is_same(device)
                    && (!pattern.names_provider_of(gone) || provider(gone) == provider(device))
            };
            left.retain(|device| !out.iter().any(|gone| is_out(device, gone)));
        }
        // The rail of all addresses would use the interfaces that are left out.
        let is_left = |device: &Device| left.iter().any(|left| std::ptr::eq(*left, device));
        let out: Vec<&Device> = devices.iter().filter(|device| !is_left(device)).collect();
        let is_out = |of: &str| out.iter().any(|device| provider(device) == of);
        left.retain(|device| !has_all_addresses(device) || !is_out(provider(device)));
        let mut taken: Vec<&Device> = Vec::new();
        let mut found = Vec::new();
        for (nth, term) in self.0.iter().enumerate() {
            match term {
                Term::Not(_) => {}
                Term::One(name) => {
                    let hints = rail_hints(name)?;
                    let (of, domain) = (&hints.info.fabric_attr.prov_name, &hints.info.domain_attr.name);
                    taken.extend(left.iter().filter(|device| {
                        let is_it = if domain.is_empty() {
                            device.is_first
                        } else {
                            device.names_of_nic().any(|it| it == domain)
                        };
                        is_it && *provider(device) == **of
                    }));
                    found.push((nth, Found::Named(Box::new(hints))));
                }
                Term::Every(pattern) => {
                    let mut matching: Vec<&Device> =
                        left.iter().copied().filter(|device| pattern.matches(device)).collect();
                    if matching.is_empty() {
                        return Err(nothing(&pattern.to_string(), devices));
                    }
                    let is_nic = |device: &&Device| device.reach != Reach::Any;
                    if !pattern.has_provider() && matching.iter().any(is_nic) {
                        matching.retain(is_nic);
                    }
                    let chosen = free(best(&matching), &taken);
                    if !chosen.is_empty() {
                        found.push((nth, Found::Devices(infos(&chosen))));
                    }
                    taken.extend(chosen);
                }
                Term::Auto => {
                    let mut ranks: Vec<u8> = left.iter().map(|device| rank(device)).collect();
                    ranks.dedup();
                    let of = |of: u8| left.iter().copied().filter(move |device| rank(device) == of);
                    let choices = ranks.into_iter().map(|rank| of_auto(&of(rank).collect::<Vec<_>>()));
                    let mut choices: Vec<Vec<&Device>> =
                        choices.map(|devices| free(devices, &taken)).collect();
                    choices.retain(|devices| !devices.is_empty());
                    let Some(first) = choices.first() else { return Err(nothing("auto", devices)) };
                    taken.extend(first);
                    let choices = choices.iter().map(|devices| infos(devices)).collect();
                    found.push((nth, Found::BestOf(choices)));
                }
            }
        }
        Ok(found)
    }
}

/// The infos of devices that may become rails.
fn infos_of(found: Found) -> Vec<Info> {
    match found {
        Found::Named(_) => Vec::new(),
        Found::Devices(infos) => infos,
        Found::BestOf(choices) => choices.into_iter().flatten().collect(),
    }
}

/// The device of an info.
fn device_of<'a>(devices: &'a [Device], info: &Info) -> Option<&'a Device> {
    devices.iter().find(|device| {
        *provider(device) == *info.fabric_attr.prov_name
            && device.names_of_nic().any(|name| *name == *info.domain_attr.name)
    })
}

fn rank(device: &Device) -> u8 {
    devices::rank(provider(device))
}

fn provider(device: &Device) -> &str {
    &device.info.fabric_attr.prov_name
}

/// Whether a device of sockets stands for all of the host's addresses, not for those of an interface.
fn has_all_addresses(device: &Device) -> bool {
    matches!(provider(device), "udp" | "tcp") && device.reach == Reach::Any
}

/// The devices of `auto` among those that are left of one rank: the best, or the rail of all addresses of sockets. That
/// one has addresses of one family, which must be that of one of the best.
fn of_auto<'a>(left: &[&'a Device]) -> Vec<&'a Device> {
    let best = best(left);
    let is_of_family =
        |device: &Device| best.iter().any(|nic| nic.info.addr_format == device.info.addr_format);
    let all = left.iter().copied().find(|device| has_all_addresses(device) && is_of_family(device));
    all.map_or(best, |device| vec![device])
}

/// The devices of the best kind, for each provider.
fn best<'a>(devices: &[&'a Device]) -> Vec<&'a Device> {
    let least = |of: &Device| -> Option<Reach> {
        devices.iter().filter(|device| provider(device) == provider(of)).map(|device| device.reach).min()
    };
    devices.iter().copied().filter(|device| Some(device.reach) == least(device)).collect()
}

/// The devices whose NICs are not taken, one for each NIC.
fn free<'a>(devices: Vec<&'a Device>, taken: &[&Device]) -> Vec<&'a Device> {
    let mut free: Vec<&Device> = Vec::new();
    for device in devices {
        if !taken.iter().chain(&free).any(|other| other.is_same(device)) {
            free.push(device);
        }
    }
    free
}

fn infos(devices: &[&Device]) -> Vec<Info> {
    devices.iter().map(|device| device.info.clone()).collect()
}

fn devices_of_host() -> Result<Vec<Device>> {
    let infos = match rail::infos(&Hints::new()) {
        Err(error) if error == Errno::ENODATA => Vec::new(),
        infos => infos?,
    };
    Ok(devices::all(&infos, Path::new("/sys")))
}

fn nothing(term: &str, devices: &[Device]) -> Error {
    let name =
        |device: &Device| format!("{}/{}", device.info.fabric_attr.prov_name, device.info.domain_attr.name);
    let names: Vec<String> = devices.iter().map(name).collect();
    let here = if names.is_empty() { "no device".to_string() } else { names.join(", ") };
    Error::wanted(
        Errno::ENODATA,
        "rails",
        format!("a device for {term:?}"),
        format!("{here} on this host"),
        "correct the list of rails, or see with fi_info --explain why a provider finds no device",
    )
}

#[cfg(test)]
mod tests;
