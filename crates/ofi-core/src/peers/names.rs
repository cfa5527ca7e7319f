//! Consecutive names: the node and service names of `fi_av_insertsym`.
//!
//! A numeric IP address is incremented as one number, with carry from byte to byte. In any other name, and in a
//! service, the decimal number at the end is incremented and keeps its leading zeros: after `node09` comes `node10`.
//! All services of a node come before the next node. Nothing is resolved here: the transport resolves the names one at
//! a time, so that it need not hold a lock.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use ofi_api::{Address, Errno, Error, Result};

/// Node and service of one address to resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Host name, numeric address, or an address in `FI_ADDR_STR` form.
    pub node: Option<String>,
    /// Port or its counterpart.
    pub service: Option<String>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.node, &self.service) {
            (Some(node), Some(service)) => write!(f, "{node} {service}"),
            (Some(one), None) | (None, Some(one)) => f.write_str(one),
            (None, None) => f.write_str("(no name)"),
        }
    }
}

/// The names of a range of nodes and services, in the order of insertion.
#[derive(Clone, Debug)]
pub struct Names {
    node: Option<Counter>,
    service: Option<Counter>,
    services: u64,
    at: u64,
    end: u64,
}

/// One node and one service (`fi_av_insertsvc`).
///
/// # Errors
/// `FI_EINVAL` for an address in `FI_ADDR_STR` form with a service beside it.
pub fn single(node: Option<&str>, service: Option<&str>) -> Result<Names> {
    range(node, 1, service, 1)
}

/// `node_count` nodes from `node` on, with `service_count` services from `service` on for each
/// (`fi_av_insertsym`).
///
/// # Errors
/// `FI_EINVAL` for a count above 1 of a name that does not end in a number; for a range that runs out of addresses, or
/// has more than 2^32 - 1 names; and for an address in `FI_ADDR_STR` form with a service or a count.
pub fn range(
    node: Option<&str>,
    node_count: usize,
    service: Option<&str>,
    service_count: usize,
) -> Result<Names> {
    // With an address, service 0 means the same as none.
    let whole = node.filter(|node| node.contains("://"));
    let service = service.filter(|service| !service.is_empty() && (whole.is_none() || *service != "0"));
    if let Some(text) = whole
        && (service.is_some() || node_count > 1 || service_count > 1)
    {
        let wanted = "no service (or 0) and no count beside an address in FI_ADDR_STR form";
        return Err(Error::wanted(
            Errno::EINVAL,
            "node",
            wanted,
            text,
            "give a host name or a numeric address",
        ));
    }
    let total = (node_count as u64).checked_mul(service_count as u64).filter(|&total| total < 1 << 32);
    let end = total.ok_or_else(|| {
        let found = format!("{node_count} nodes of {service_count} services");
        Error::wanted(Errno::EINVAL, "address range", "fewer than 2^32 addresses", found, "insert in parts")
    })?;
    Ok(Names {
        node: node.map(|node| Counter::new("node", node, node_count)).transpose()?,
        service: service.map(|service| Counter::new("service", service, service_count)).transpose()?,
        services: service_count as u64,
        at: 0,
        end,
    })
}

impl Names {
    /// Resolves each name when it is requested. `resolve` returns the address of a node and a service.
    pub fn resolve_with(
        self,
        mut resolve: impl FnMut(Option<&str>, Option<&str>) -> Result<Address>,
    ) -> impl Iterator<Item = Result<Address>> {
        self.map(move |name| resolve(name.node.as_deref(), name.service.as_deref()))
    }
}

impl Iterator for Names {
    type Item = Name;

    fn next(&mut self) -> Option<Name> {
        if self.at == self.end {
            return None;
        }
        let (node, service) = (self.at / self.services, self.at % self.services);
        self.at += 1;
        Some(Name {
            node: self.node.as_ref().map(|counter| counter.name(node)),
            service: self.service.as_ref().map(|counter| counter.name(service)),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end - self.at) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Names {}

/// A name that can be counted up. `Fixed` is for one that need not be.
#[derive(Clone, Debug)]
enum Counter {
    Fixed(String),
    V4(u32),
    /// With what follows the address: the zone of a link-local one.
    V6(u128, String),
    Numbered {
        stem: String,
        first: u64,
        /// Digits to fill with zeros.
        width: usize,
    },
}

impl Counter {
    fn new(what: &str, text: &str, count: usize) -> Result<Self> {
        if count <= 1 {
            return Ok(Counter::Fixed(text.to_owned()));
        }
        let last = count as u64 - 1;
        let (ip, zone) = text.split_at(text.find('%').unwrap_or(text.len()));
        let counter = if let Ok(ip) = text.parse::<Ipv4Addr>() {
            let fits = u64::from(ip.to_bits()) + last <= u32::MAX.into();
            fits.then_some(Counter::V4(ip.to_bits()))
        } else if let Ok(ip) = ip.parse::<Ipv6Addr>() {
            let fits = ip.to_bits().checked_add(last.into()).is_some();
            fits.then(|| Counter::V6(ip.to_bits(), zone.to_owned()))
        } else {
            let (stem, digits) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_digit()).len());
            let first = digits.parse().ok().filter(|first: &u64| first.checked_add(last).is_some());
            let width = if digits.starts_with('0') { digits.len() } else { 0 };
            first.map(|first| Counter::Numbered { stem: stem.to_owned(), first, width })
        };
        counter.ok_or_else(|| {
            let wanted = format!("a name or address that can be counted up {last} times");
            let advice = "end it in a number, or use a count of 1";
            Error::wanted(Errno::EINVAL, what, wanted, format!("{text:?}"), advice)
        })
    }

    /// The name `step` after the first, which `new` has checked to exist.
    fn name(&self, step: u64) -> String {
        match self {
            Counter::Fixed(text) => text.clone(),
            Counter::V4(first) => Ipv4Addr::from_bits(first.wrapping_add(step as u32)).to_string(),
            Counter::V6(first, zone) => {
                format!("{}{zone}", Ipv6Addr::from_bits(first.wrapping_add(step.into())))
            }
            Counter::Numbered { stem, first, width } => {
                format!("{stem}{:0width$}", first.wrapping_add(step))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn all(node: &str, nodes: usize, service: &str, services: usize) -> Vec<String> {
        range(Some(node), nodes, Some(service), services).unwrap().map(|name| name.to_string()).collect()
    }

    fn refused(node: &str, nodes: usize, service: &str, services: usize) {
        let error = range(Some(node), nodes, Some(service), services).unwrap_err();
        assert_eq!(error, Errno::EINVAL, "{node} {nodes} {service} {services}");
    }

    #[test]
    fn services_of_a_node_come_before_the_next_node() {
        let expected = ["10.1.1.1 5000", "10.1.1.1 5001", "10.1.1.2 5000", "10.1.1.2 5001"];
        assert_eq!(all("10.1.1.1", 2, "5000", 2), expected);
        let expected = ["host10 5000", "host10 5001", "host11 5000", "host11 5001"];
        assert_eq!(all("host10", 2, "5000", 2), expected);
    }

    #[test]
    fn addresses_count_across_bytes() {
        assert_eq!(all("10.1.1.255", 2, "1", 1), ["10.1.1.255 1", "10.1.2.0 1"]);
        assert_eq!(all("fe80::ffff%eth0", 2, "1", 1), ["fe80::ffff%eth0 1", "fe80::1:0%eth0 1"]);
    }

    #[test]
    fn numbers_keep_their_leading_zeros() {
        assert_eq!(all("node08", 3, "1", 1), ["node08 1", "node09 1", "node10 1"]);
        assert_eq!(all("r2node9", 2, "1", 1), ["r2node9 1", "r2node10 1"]);
        assert_eq!(all("a", 1, "p099", 2), ["a p099", "a p100"]);
    }

    #[test]
    fn a_single_name_is_taken_as_it_is() {
        let only = |node, service| single(node, service).unwrap().next().unwrap();
        assert_eq!(only(Some("host"), Some("http")).to_string(), "host http");
        assert_eq!(
            only(Some("fi_sockaddr_in://10.0.0.1:5"), None).to_string(),
            "fi_sockaddr_in://10.0.0.1:5"
        );
        assert_eq!(only(Some("fi_shm://x"), Some("0")).to_string(), "fi_shm://x");
        assert_eq!(only(Some("host"), Some("0")).to_string(), "host 0");
        assert_eq!(only(None, Some("7")), Name { node: None, service: Some("7".into()) });
        assert_eq!(range(Some("a"), 0, Some("1"), 5).unwrap().count(), 0);
        assert_eq!(range(Some("a1"), 5, Some("1"), 0).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_count_is_refused() {
        refused("host", 2, "5000", 1);
        refused("host1.example", 2, "5000", 1);
        refused("host1", 2, "http", 2);
        refused("255.255.255.255", 2, "1", 1);
        refused("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 2, "1", 1);
        refused("host18446744073709551615", 2, "1", 1);
        refused("host99999999999999999999", 2, "1", 1);
        refused("host1", usize::MAX, "1", usize::MAX);
        refused("host1", 1 << 16, "1", 1 << 16);
        refused("fi_sockaddr_in://10.0.0.1:5", 1, "5", 1);
        assert!(range(Some("fi_sockaddr_in://10.0.0.1:5"), 2, None, 1).is_err());
    }

    #[test]
    fn names_are_resolved_one_by_one() {
        let resolve = |node: Option<&str>, service: Option<&str>| {
            let text = format!("{}:{}", node.unwrap(), service.unwrap());
            let socket: SocketAddr = text.parse().map_err(|_| Error::with(Errno::EINVAL, text))?;
            Ok(Address::from(socket))
        };
        let resolved = range(Some("10.0.0.9"), 1, Some("65535"), 2).unwrap().resolve_with(resolve);
        let resolved: Vec<_> = resolved.map(|address| address.map(|address| address.to_string())).collect();
        assert_eq!(resolved[0].as_deref(), Ok("fi_sockaddr_in://10.0.0.9:65535"));
        assert_eq!(resolved[1], Err(Error::new(Errno::EINVAL)));
    }
}
