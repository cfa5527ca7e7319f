//! The addresses of this host that RDMA devices serve: a function of the system's tables, without a system call.
//!
//! rdma_cm decides. An identifier that is bound to an address gets the device, the port and the GID that connections
//! from there use: of a VLAN, a bond, a second address, an interface in a network namespace, or an IPoIB interface,
//! whose address has nothing to do with its GID. The port's GID table, which is not limited to the namespace, only
//! gives the index of that GID, which datagrams need.

use std::net::IpAddr;

use ibv::{Gid, GidEntry};

use crate::settings;

/// An address of an interface of this network namespace.
#[derive(Clone, Debug)]
pub struct HostAddress {
    /// The interface.
    pub interface: String,
    /// Its number.
    pub index: u32,
    /// The address.
    pub ip: IpAddr,
    /// Whether the interface is up.
    pub is_up: bool,
    /// The port and the GID to which rdma_cm binds an identifier there, by its place in the list of ports; `None` if no
    /// RDMA device serves the address.
    pub bound: Option<(usize, Gid)>,
}

/// A port of a device, and its GID table.
#[derive(Clone, Debug)]
pub struct PortTable {
    /// The device.
    pub device: String,
    /// The port's number there.
    pub number: u8,
    /// Whether it is up.
    pub is_active: bool,
    /// Whether it is Ethernet (RoCE) rather than InfiniBand.
    pub is_ethernet: bool,
    /// The entries of its table that are in use.
    pub gids: Vec<GidEntry>,
}

/// An address that a port serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The address.
    pub ip: IpAddr,
    /// The port's place in the list of ports.
    pub port: usize,
    /// The GID of the address.
    pub gid: Gid,
    /// Its index in the port's table. Without one there are no datagrams from the address.
    pub gid_index: Option<u8>,
}

/// The addresses that devices serve, and the reasons why the others are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// In the order of the host's addresses.
    pub served: Vec<Served>,
    /// Addresses whose port is down.
    pub down: Vec<String>,
    /// Addresses that the settings leave out.
    pub unwanted: usize,
}

/// The addresses that ports serve. `devices` and `interfaces` are the values of `FI_VERBS_DEVICE_NAME` and
/// `FI_VERBS_IFACE`.
pub fn list(addresses: &[HostAddress], ports: &[PortTable], devices: &str, interfaces: &str) -> Listing {
    let mut listing = Listing::default();
    let is_whole = |name: &str| addresses.iter().any(|address| address.interface == name);
    for address in addresses {
        let Some((port, bound)) = address.bound.filter(|_| !is_of_link(address.ip)) else { continue };
        let Some(table) = ports.get(port) else { continue };
        if !settings::takes(devices, &table.device)
            || !settings::takes_of(interfaces, &address.interface, is_whole)
        {
            listing.unwanted += 1;
            continue;
        }
        if !table.is_active {
            let PortTable { device, number, .. } = table;
            listing.down.push(format!("{} of {device}, whose port {number} is down", address.ip));
            continue;
        }
        if !address.is_up {
            listing.down.push(format!("{}, whose interface {} is down", address.ip, address.interface));
            continue;
        }
        let (gid, gid_index) = gid_of(table, address, bound);
        let served = Served { ip: address.ip, port, gid, gid_index };
        if !listing.served.iter().any(|other| (other.ip, other.port) == (served.ip, port)) {
            listing.served.push(served);
        }
    }
    listing
}

/// A link-local address is ambiguous without its interface.
fn is_of_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The GID of an address, and its index. On Ethernet a GID is an address, and several entries may have it: one for each
/// version of RoCE, and those of interfaces in other network namespaces with the same address. On InfiniBand it is the
/// port's, as rdma_cm says; a kernel that does not say it means the first.
fn gid_of(table: &PortTable, address: &HostAddress, bound: Gid) -> (Gid, Option<u8>) {
    let gid = match (table.is_ethernet, bound) {
        (true, _) => Gid::of(address.ip),
        (false, bound) if bound.0 == [0; 16] => table.gids.first().map_or(bound, |entry| entry.gid),
        (false, bound) => bound,
    };
    let entries = table.gids.iter().filter(|entry| entry.gid == gid);
    let best = entries.max_by_key(|entry| (entry.interface == address.index, entry.version));
    (gid, best.and_then(|entry| u8::try_from(entry.index).ok()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use ibv::GidVersion;

    use super::*;

    const ETH0: u32 = 2;

    fn gid(text: &str) -> Gid {
        text.parse::<IpAddr>().map(Gid::of).unwrap()
    }

    fn entry(index: u32, text: &str, version: GidVersion, interface: u32) -> GidEntry {
        GidEntry { index, gid: gid(text), version, interface }
    }

    /// Both versions of RoCE for each address of an interface, as the kernel lists them.
    fn roce(device: &str, addresses: &[(&str, u32)]) -> PortTable {
        let gids = addresses.iter().enumerate().flat_map(|(at, &(text, interface))| {
            let index = 2 * at as u32;
            [(0, GidVersion::RoceV1), (1, GidVersion::RoceV2)]
                .map(|(more, version)| entry(index + more, text, version, interface))
        });
        let (device, gids) = (device.to_string(), gids.collect());
        PortTable { device, number: 1, is_active: true, is_ethernet: true, gids }
    }

    fn infiniband(prefix: &str) -> PortTable {
        let gids = vec![entry(0, &format!("{prefix}:506b:4b03:0012:3456"), GidVersion::Ib, 0)];
        PortTable { device: "mlx5_0".into(), number: 1, is_active: true, is_ethernet: false, gids }
    }

    fn at(interface: &str, index: u32, ip: &str, bound: Option<(usize, Gid)>) -> HostAddress {
        let ip = ip.parse().unwrap();
        HostAddress { interface: interface.into(), index, ip, is_up: true, bound }
    }

    /// An address of Ethernet: its GID is the address.
    fn on(interface: &str, index: u32, ip: &str, port: usize) -> HostAddress {
        at(interface, index, ip, Some((port, gid(ip))))
    }

    fn listed(listing: &Listing) -> Vec<(String, usize, Option<u8>)> {
        listing.served.iter().map(|one| (one.ip.to_string(), one.port, one.gid_index)).collect()
    }

    fn expect(listing: &Listing, expected: &[(&str, usize, Option<u8>)]) {
        let expected: Vec<_> =
            expected.iter().map(|&(ip, port, index)| (ip.to_string(), port, index)).collect();
        assert_eq!(listed(listing), expected);
    }

    #[test]
    fn infiniband_is_listed_by_the_address_of_ipoib_and_the_gid_of_the_port() {
        // The default prefix looks like an IPv6 address of link scope, and another one like a global address.
        for prefix in ["fe80:0:0:0", "fec0:0:0:7"] {
            let port = infiniband(prefix);
            let of_port = port.gids[0].gid;
            let addresses = [
                at("lo", 1, "127.0.0.1", None),
                at("ib0", 3, "10.1.0.5", Some((0, of_port))),
                at("ib0", 3, "fd01::5", Some((0, of_port))),
                at("ib0", 3, "fe80::5", Some((0, of_port))),
                at("ib0.8001", 4, "10.2.0.5", Some((0, of_port))),
            ];
            let listing = list(&addresses, &[port], "", "");
            expect(&listing, &[("10.1.0.5", 0, Some(0)), ("fd01::5", 0, Some(0)), ("10.2.0.5", 0, Some(0))]);
            assert!(listing.served.iter().all(|one| one.gid == of_port));
        }
        // A kernel that does not tell the GID.
        let (port, unknown) = (infiniband("fe80:0:0:0"), Gid([0; 16]));
        let of_port = port.gids[0].gid;
        let listing = list(&[at("ib0", 3, "10.1.0.5", Some((0, unknown)))], &[port], "", "");
        assert_eq!((listing.served[0].gid, listing.served[0].gid_index), (of_port, Some(0)));
    }

    #[test]
    fn roce_is_listed_by_every_address_of_its_interface_and_of_its_vlans() {
        let table =
            [("fe80::1", ETH0), ("10.0.0.1", ETH0), ("10.0.1.1", ETH0), ("fd00::1", ETH0), ("10.7.0.1", 9)];
        let addresses = [
            on("eth0", ETH0, "10.0.0.1", 0),
            on("eth0", ETH0, "10.0.1.1", 0),
            on("eth0", ETH0, "fd00::1", 0),
            on("eth0", ETH0, "fe80::1", 0),
            on("eth0.7", 9, "10.7.0.1", 0),
            at("eth1", 5, "192.168.0.1", None),
        ];
        let all: [(&str, usize, Option<u8>); 4] = [
            ("10.0.0.1", 0, Some(3)),
            ("10.0.1.1", 0, Some(5)),
            ("fd00::1", 0, Some(7)),
            ("10.7.0.1", 0, Some(9)),
        ];
        let ports = [roce("mlx5_0", &table)];
        expect(&list(&addresses, &ports, "", ""), &all);
        expect(&list(&addresses, &ports, "mlx5", "eth0."), &all[3..]);
        // The whole name of an interface, or the start of two.
        expect(&list(&addresses, &ports, "", "eth0"), &all[..3]);
        expect(&list(&addresses, &ports, "", "eth"), &all);
        let none = list(&addresses, &ports, "mlx4", "");
        assert_eq!((none.served.len(), none.unwanted), (0, 4));
    }

    /// The bond's addresses are those of one device of both ports (LAG), or of the device of the active port.
    #[test]
    fn a_bond_is_listed_once_by_the_device_that_connections_use() {
        let lag = roce("mlx5_bond_0", &[("10.0.0.1", 8)]);
        expect(&list(&[on("bond0", 8, "10.0.0.1", 0)], &[lag], "", ""), &[("10.0.0.1", 0, Some(1))]);
        let both = ["mlx5_0", "mlx5_1"].map(|device| roce(device, &[("10.0.0.1", 8)]));
        expect(&list(&[on("bond0", 8, "10.0.0.1", 1)], &both, "", ""), &[("10.0.0.1", 1, Some(1))]);
    }

    /// The table has the entries of all network namespaces: also of the host, and of another pod with the same address.
    #[test]
    fn a_pod_is_listed_by_its_own_addresses() {
        let table = [("10.0.0.1", ETH0), ("10.244.1.7", 40), ("10.244.1.7", 52), ("10.244.1.9", 41)];
        let addresses = [
            at("lo", 1, "127.0.0.1", None),
            on("net1", 52, "10.244.1.7", 0),
            at("eth0", 3, "10.9.0.2", None),
        ];
        expect(&list(&addresses, &[roce("mlx5_0", &table)], "", ""), &[("10.244.1.7", 0, Some(5))]);
    }

    /// A virtual machine of Azure: the addresses are at the synthetic interface, the device at its virtual function.
    #[test]
    fn an_address_is_listed_if_rdma_cm_binds_to_it_even_without_an_entry_in_the_table() {
        let mut port = roce("mana_0", &[]);
        let addresses = [on("eth0", ETH0, "10.0.0.4", 0)];
        expect(&list(&addresses, std::slice::from_ref(&port), "", ""), &[("10.0.0.4", 0, None)]);
        port.is_active = false;
        let listing = list(&addresses, &[port], "", "");
        assert_eq!(listing.down, ["10.0.0.4 of mana_0, whose port 1 is down"]);
        assert!(listing.served.is_empty());
    }

    #[test]
    fn an_interface_that_is_down_is_left_out_and_an_unknown_port_harmless() {
        let ports = [roce("mlx5_0", &[("10.0.0.1", ETH0)])];
        let down = HostAddress { is_up: false, ..on("eth0", ETH0, "10.0.0.1", 0) };
        let listing = list(&[down, on("eth0", ETH0, "10.0.0.1", 7)], &ports, "", "");
        assert_eq!(listing.down, ["10.0.0.1, whose interface eth0 is down"]);
        assert!(listing.served.is_empty());
        assert!(is_of_link(Ipv6Addr::new(0xFE80, 0, 0, 0, 0, 0, 0, 1).into()));
    }
}
