//! Counts strangers by host, so that a single host cannot fill an endpoint.

use core::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;

use crate::hash::{self, Key};

/// The number of strangers on each host. Hosts are identified by a keyed hash, because strangers choose their
/// addresses.
#[derive(Debug, Default)]
pub struct Hosts(HashMap<u64, usize>);

/// The host of an address: a whole IPv4 address, or the network of an IPv6 address, in which a host can have any number
/// of addresses.
fn host(key: Key, address: SocketAddr) -> u64 {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => hash::sip(key, &ip.octets()),
        IpAddr::V6(ip) => hash::sip(key, &ip.octets()[..8]),
    }
}

impl Hosts {
    /// Adds a stranger of this host. Returns `false` and does not count it if the host already has `most`.
    pub fn enter(&mut self, key: Key, address: SocketAddr, most: usize) -> bool {
        let count = self.0.entry(host(key, address)).or_default();
        if *count >= most {
            return false;
        }
        *count += 1;
        true
    }

    /// Removes a stranger of this host.
    pub fn leave(&mut self, key: Key, address: SocketAddr) {
        let host = host(key, address);
        if let Some(count) = self.0.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&host);
            }
        }
    }
}
