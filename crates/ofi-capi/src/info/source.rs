//! Wildcard source addresses. C programs expect a source address in every info, and open several endpoints with the
//! same info. So an info without one gets a wildcard, which endpoints ignore.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use ofi_api::{AddrFormat, Address, Info};

/// The end of a wildcard name.
const ANY: char = ':';

/// Adds a wildcard source address to an info without one.
pub(crate) fn name_source(info: &mut Info) {
    if info.src_addr.is_some() {
        return;
    }
    let any = match info.addr_format {
        AddrFormat::Str => {
            let provider = &info.fabric_attr.prov_name;
            Address::from_text(&format!("fi_{provider}://{}{ANY}", std::process::id()))
        }
        AddrFormat::SockaddrIn => Address::from(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
        AddrFormat::SockaddrIn6 => Address::from(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
        _ => return,
    };
    info.src_addr = Some(any);
}

/// Removes a wildcard source address.
pub(crate) fn forget_any(info: &mut Info) {
    let leaves = |address: &Address| match address.text() {
        Some(text) => text.ends_with(ANY),
        None => {
            address.to_socket_addr().is_some_and(|socket| socket.port() == 0 && socket.ip().is_unspecified())
        }
    };
    info.src_addr = info.src_addr.take().filter(|address| !leaves(address));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_there_is_taken_away_and_nothing_else() {
        for addr_format in [AddrFormat::Str, AddrFormat::SockaddrIn, AddrFormat::SockaddrIn6] {
            let mut info = Info { addr_format, ..Info::default() };
            info.fabric_attr.prov_name = "shm".into();
            name_source(&mut info);
            assert_eq!(info.src_addr.as_ref().map(Address::format), Some(addr_format));
            forget_any(&mut info);
            assert_eq!(info.src_addr, None);
        }
        let mine = Address::from_text("fi_shm://mine");
        let mut info = Info { src_addr: Some(mine.clone()), ..Info::default() };
        name_source(&mut info);
        forget_any(&mut info);
        assert_eq!(info.src_addr, Some(mine));
    }
}
