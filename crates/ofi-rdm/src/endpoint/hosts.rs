//! How many strangers each host has sent: one host alone is not to fill an endpoint.

use core::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;

use crate::hash::{self, Key};

/// See the module. Hosts go by a keyed hash, since strangers choose their addresses.
#[derive(Debug, Default)]
pub struct Hosts(HashMap<u64, usize>);

/// A host: all of an IPv4 address; the network of an IPv6 one, in which a host has as many as it likes.
fn host(key: Key, address: SocketAddr) -> u64 {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => hash::sip(key, &ip.octets()),
        IpAddr::V6(ip) => hash::sip(key, &ip.octets()[..8]),
    }
}

impl Hosts {
    /// One more of its host. `false`, and it is not counted, if there are `most` already.
    pub fn enter(&mut self, key: Key, address: SocketAddr, most: usize) -> bool {
        let count = self.0.entry(host(key, address)).or_default();
        if *count >= most {
            return false;
        }
        *count += 1;
        true
    }

    /// One less.
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
