//! The addresses in a getinfo call, and how they restrict an offer.

use std::net::{IpAddr, SocketAddr};

use ofi_api::{AddrFormat, Address, GetinfoFlags, Info, Offers, Refusal, Request};

use super::interface::Interface;
use super::{Addressing, any, route};
use crate::offer;

/// The addresses of one getinfo call.
pub struct AddressRequest {
    /// The format of all addresses in the answer. If the call leaves the family open, each interface has its own.
    pub format: AddrFormat,
    /// The address that node and service denote.
    pub address: Option<Address>,
}

impl Addressing {
    /// The offers for a request: first for all addresses of the host together, then for each interface. `answer` makes
    /// the offers for one of these (`None`: all addresses) in an address format; [`AddressRequest::name_ends`] puts the
    /// addresses into an info.
    pub fn offers(
        &self,
        request: &Request<'_>,
        answer: impl Fn(&AddressRequest, AddrFormat, Option<&Interface>) -> Offers,
    ) -> Offers {
        let asked = match self.asked(request) {
            Ok(asked) => asked,
            Err(refusal) => return Offers { infos: Vec::new(), refusals: vec![refusal] },
        };
        let mut offers = answer(&asked, asked.format, None);
        // Its refusals say all.
        if offer::is_for_another(self.provider, request) {
            return offers;
        }
        for interface in self.interfaces(request, &asked) {
            offers.infos.extend(answer(&asked, format_of(interface.ip), Some(&interface)).infos);
        }
        if !offers.infos.is_empty() {
            offers.refusals.clear();
        }
        offers
    }

    /// The address that node and service denote, and the format of all addresses.
    fn asked(&self, request: &Request<'_>) -> Result<AddressRequest, Refusal> {
        let refusal =
            |field, wanted: String, offered: String| offer::refusal(self.provider, field, wanted, offered);
        let hinted = request.hints.map_or(AddrFormat::Unspec, |hints| hints.info.addr_format);
        let given =
            request.hints.and_then(|hints| hints.info.src_addr.as_ref().or(hints.info.dest_addr.as_ref()));
        let format = match (is_open(hinted), given) {
            (true, given) => given.map(Address::format),
            (false, _) => Some(hinted),
        };
        if let Some(other) =
            format.filter(|format| !matches!(format, AddrFormat::SockaddrIn | AddrFormat::SockaddrIn6))
        {
            let offered = "FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR, FI_SOCKADDR_IP";
            return Err(refusal("addr_format", other.to_string(), offered.to_owned()));
        }
        let nowhere = request.node.is_none_or(str::is_empty) && request.flags.contains(GetinfoFlags::SOURCE);
        let named = request.node.is_some() || request.service.is_some();
        let address = named.then(|| self.resolve(request.node, request.service, format)).transpose();
        let address = address.map_err(|error| {
            refusal("node and service", request.node.unwrap_or("").to_string(), error.to_string())
        })?;
        // A service of this host, whatever address is requested.
        let address = match address.as_ref().and_then(Address::to_socket_addr) {
            Some(mut all) if nowhere => {
                all.set_ip(any(all.is_ipv6()));
                Some(Address::from(all))
            }
            _ => address,
        };
        let format = format.or(address.as_ref().map(Address::format)).unwrap_or(AddrFormat::SockaddrIn);
        offer::check_formats(self.provider, request, format)?;
        Ok(AddressRequest { format, address })
    }

    /// The interfaces that get an offer of their own: all if neither end is given, otherwise those that match. A given
    /// end determines their address family; a source with an address determines the interface.
    fn interfaces(&self, request: &Request<'_>, asked: &AddressRequest) -> Vec<Interface> {
        let mut ends = Info::default();
        offer::name_ends(&mut ends, request, asked.address.as_ref());
        let placed = ends.src_addr.is_some() || ends.dest_addr.is_some();
        let hints = request.hints.map(|hints| &hints.info);
        let chosen =
            hints.is_some_and(|info| !(info.domain_attr.name.is_empty() && info.fabric_attr.name.is_empty()));
        if placed && !chosen {
            return Vec::new();
        }
        let any = !placed && is_open(hints.map_or(AddrFormat::Unspec, |info| info.addr_format));
        let source = ends.src_addr.and_then(|address| address.to_socket_addr()).map(|source| source.ip());
        let source = source.filter(|ip| !ip.is_unspecified());
        let mut all = self.usable();
        all.retain(|interface| any || format_of(interface.ip) == asked.format);
        all.retain(|interface| source.is_none_or(|ip| ip == interface.ip));
        all
    }
}

impl AddressRequest {
    /// Gives an info its addresses, and the names of `interface` if it is for one.
    pub fn name_ends(&self, info: &mut Info, request: &Request<'_>, interface: Option<&Interface>) {
        offer::name_ends(info, request, self.address.as_ref());
        if let Some(interface) = interface {
            info.domain_attr.name.clone_from(&interface.name);
            info.fabric_attr.name.clone_from(&interface.network);
            let given = info.src_addr.as_ref().and_then(Address::to_socket_addr);
            let port = given.map_or(0, |given| given.port());
            info.src_addr = Some(Address::from(SocketAddr::new(interface.ip, port)));
        } else if info.src_addr.is_none() {
            // The interface on the route to the peer.
            let to = info.dest_addr.as_ref().and_then(Address::to_socket_addr);
            info.src_addr = to.and_then(route).map(|ip| Address::from(SocketAddr::new(ip, 0)));
        }
    }
}

/// Whether a format leaves the address family open.
fn is_open(format: AddrFormat) -> bool {
    matches!(format, AddrFormat::Unspec | AddrFormat::Sockaddr | AddrFormat::SockaddrIp)
}

fn format_of(ip: IpAddr) -> AddrFormat {
    if ip.is_ipv6() { AddrFormat::SockaddrIn6 } else { AddrFormat::SockaddrIn }
}

#[cfg(test)]
mod tests {
    use ofi_api::{Hints, Version};

    use super::*;
    use crate::config::Setting;

    static INTERFACE: Setting<&'static str> = Setting::new("none", "iface", "", "No interface");

    #[test]
    fn a_request_for_another_provider_is_refused_without_looking_at_interfaces() {
        let addressing = Addressing::new("none", &INTERFACE);
        let asked = |provider: &str| {
            let hints = Hints::new().provider(provider);
            let flags = GetinfoFlags::empty();
            let request =
                Request { version: Version::API, node: None, service: None, flags, hints: Some(&hints) };
            let calls = std::cell::Cell::new(0);
            let offers = addressing.offers(&request, |_, _, _| {
                calls.set(calls.get() + 1);
                Offers { infos: Vec::new(), refusals: vec![offer::refusal("none", "provider", "", "")] }
            });
            assert_eq!(offers.refusals.len(), 1);
            calls.get()
        };
        assert_eq!(asked("another"), 1);
        // All addresses together, and loopback at least.
        assert!(asked("none") > 1);
    }
}
