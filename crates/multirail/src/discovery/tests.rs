//! Devices as getinfo lists them on some hosts, and a directory in the place of `/sys`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use ofi::AddrFormat;
use ofi::raw::{BusAttr, LinkState, Nic, PciAttr};

use super::*;

/// A directory that is laid out as `/sys`. It is removed on drop.
struct Sys(PathBuf);

impl Sys {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("multirail-found-{}-{nth}", std::process::id()));
        fs::create_dir_all(root.join("class/net")).unwrap();
        Self(root)
    }

    /// An interface of this type, on the device (the PCI function, or a path below `devices`), made of others.
    fn interface(&self, name: &str, kind: &str, pci: Option<&str>, lower: &[&str]) {
        let at = self.0.join("class/net").join(name);
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join("type"), format!("{kind}\n")).unwrap();
        if let Some(pci) = pci {
            let device = self.0.join("devices").join(pci);
            fs::create_dir_all(&device).unwrap();
            symlink(device, at.join("device")).unwrap();
        }
        for lower in lower {
            fs::create_dir_all(at.join(format!("lower_{lower}"))).unwrap();
        }
    }

    fn devices(&self, infos: &[Info]) -> Vec<Device> {
        devices::all(infos, &self.0)
    }
}

impl Drop for Sys {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn info(provider: &str, domain: &str) -> Info {
    let mut info = Info::default();
    (info.fabric_attr.prov_name, info.domain_attr.name) = (provider.into(), domain.into());
    info
}

/// An info with a NIC of this name, on this bus.
fn nic(provider: &str, domain: &str, name: &str, bus: u8) -> Info {
    let mut nic = Nic::default();
    nic.device_attr.name = name.into();
    nic.bus_attr = BusAttr::Pci(PciAttr { domain_id: 0, bus_id: bus, device_id: 0, function_id: 0 });
    Info { nic: Some(nic), ..info(provider, domain) }
}

/// What a list finds: a rail that must open is `=PROVIDER/DOMAIN`, and choices are separated by `|`.
fn found(list: &str, devices: &[Device]) -> String {
    let list: RailList = list.parse().unwrap();
    let text = |infos: &Vec<Info>| {
        let names: Vec<String> = infos
            .iter()
            .map(|info| format!("{}/{}", info.fabric_attr.prov_name, info.domain_attr.name))
            .collect();
        names.join(" ")
    };
    let found = list.choose(devices).unwrap();
    let text = |found: &Found| match found {
        Found::Named(hints) => {
            format!("={}/{}", hints.info.fabric_attr.prov_name, hints.info.domain_attr.name)
        }
        Found::Devices(infos) => text(infos),
        Found::BestOf(choices) => choices.iter().map(text).collect::<Vec<_>>().join(" | "),
    };
    found.iter().map(text).collect::<Vec<_>>().join(" + ")
}

fn refused(list: &str, devices: &[Device]) -> String {
    let list: RailList = list.parse().unwrap();
    let error = list.choose(devices).unwrap_err();
    assert_eq!(error.errno(), Errno::ENODATA);
    error.to_string()
}

/// A host of AWS: three EFAs, each in two fabrics, and two interfaces with two addresses each.
fn cloud() -> (Sys, Vec<Device>) {
    let sys = Sys::new();
    sys.interface("enp71s0", "1", Some("0000:47:00.0"), &[]);
    sys.interface("enp72s0", "1", Some("0000:48:00.0"), &[]);
    sys.interface("docker0", "1", None, &[]);
    sys.interface("lo", "772", None, &[]);
    let mut infos = vec![info("shm", "shm"), info("udp", "udp")];
    for _ in 0..2 {
        infos.extend(["enp72s0", "enp71s0", "docker0", "lo"].map(|name| info("udp", name)));
        infos.extend(
            [0x50, 0x4F, 0x51]
                .map(|bus| nic("efa", &format!("rdmap{bus}s0-rdm"), &format!("rdmap{bus}s0"), bus)),
        );
    }
    let devices = sys.devices(&infos);
    (sys, devices)
}

/// A host with two ports of a ConnectX, whose interfaces are a bond with a VLAN on it, and one more interface.
fn connectx() -> (Sys, Vec<Device>) {
    let sys = Sys::new();
    sys.interface("enp3s0", "1", Some("0000:03:00.0"), &[]);
    sys.interface("enp4s0", "1", Some("0000:04:00.0"), &[]);
    sys.interface("bond0", "1", None, &["enp3s0", "enp4s0"]);
    sys.interface("bond0.7", "1", None, &["bond0"]);
    sys.interface("eno1", "1", Some("0000:01:00.0"), &[]);
    sys.interface("lo", "772", None, &[]);
    let verbs = [nic("verbs", "mlx5_1", "mlx5_1", 4), nic("verbs", "mlx5_0", "mlx5_0", 3)];
    let udp = ["udp", "bond0", "bond0.7", "eno1", "lo"].map(|name| info("udp", name));
    let tcp = ["bond0", "bond0.7", "eno1", "lo"].map(|name| info("tcp", name));
    let infos = [&verbs[..], &udp, &tcp, &[info("tcp", "tcp"), info("shm", "shm")]].concat();
    let devices = sys.devices(&infos);
    (sys, devices)
}

#[test]
fn auto_takes_each_nic_of_the_best_provider_once_in_the_order_of_its_place() {
    let (_sys, devices) = cloud();
    assert_eq!(
        found("auto", &devices),
        "efa/rdmap79s0-rdm efa/rdmap80s0-rdm efa/rdmap81s0-rdm | udp/udp | shm/shm",
        "the kernel chooses the routes of sockets"
    );
    let (_sys, devices) = connectx();
    assert_eq!(found("auto", &devices), "verbs/mlx5_0 verbs/mlx5_1 | udp/udp | tcp/tcp | shm/shm");
    assert_eq!(found("udp/*", &devices), "udp/eno1 udp/bond0", "a VLAN on a bond is no NIC of its own");
}

#[test]
fn without_hardware_virtual_interfaces_serve_and_loopback_without_these() {
    let sys = Sys::new();
    sys.interface("lo", "772", None, &[]);
    let only = [info("udp", "lo"), info("shm", "shm")];
    assert_eq!(found("auto", &sys.devices(&only)), "udp/lo | shm/shm");
    sys.interface("eth0", "1", None, &[]); // the end of a pair in a container
    let both = [&only[..], &[info("udp", "eth0")]].concat();
    assert_eq!(found("auto", &sys.devices(&both)), "udp/eth0 | shm/shm", "without a rail of all addresses");
    assert_eq!(found("udp/lo*", &sys.devices(&both)), "udp/lo", "a pattern that matches nothing better");
    assert_eq!(found("udp/*", &sys.devices(&both)), "udp/eth0");
    assert_eq!(found("auto", &sys.devices(&[info("shm", "shm")])), "shm/shm");
    let mut down = nic("verbs", "mlx5_0", "mlx5_0", 3);
    if let Some(nic) = &mut down.nic {
        nic.link_attr.state = LinkState::Down;
    }
    let up = nic("verbs", "mlx5_1", "mlx5_1", 4);
    assert_eq!(found("verbs/*", &sys.devices(&[down.clone(), up])), "verbs/mlx5_1");
    assert_eq!(found("verbs/*", &sys.devices(&[down])), "verbs/mlx5_0", "it may come up");
}

#[test]
fn patterns_name_domains_devices_and_interfaces() {
    let (_sys, devices) = cloud();
    assert_eq!(found("efa/rdmap8?s0", &devices), "efa/rdmap80s0-rdm efa/rdmap81s0-rdm", "without the suffix");
    assert_eq!(found("efa/*,!rdmap80s0", &devices), "efa/rdmap79s0-rdm efa/rdmap81s0-rdm");
    assert_eq!(found("!efa", &devices), "udp/udp | shm/shm", "an exception alone is of auto");
    assert_eq!(found("auto, !enp71s0, !efa/*", &devices), "udp/enp72s0 | shm/shm");
    assert_eq!(found("!efa,!docker0", &devices), "udp/enp71s0 udp/enp72s0 | shm/shm");
    assert_eq!(found("!efa,!eth7", &devices), found("!efa", &devices), "what is not here needs no exception");
    assert_eq!(found("udp,udp/enp71s0", &devices), "=udp/ + =udp/enp71s0", "names are taken as they are");
    let (_sys, devices) = connectx();
    assert_eq!(found("*/mlx5_*", &devices), "verbs/mlx5_0 verbs/mlx5_1");
    assert_eq!(found("mlx5_1,udp", &devices), "=mlx5_1/ + =udp/");
    assert_eq!(
        found("auto,!mlx5_0", &devices),
        "verbs/mlx5_1 | udp/eno1 | tcp/eno1 | shm/shm",
        "nor by its bond"
    );
}

/// Regression test: the rail of all addresses is of IPv4, and nobody reached it on a host with IPv6 alone.
#[test]
fn the_rail_of_all_addresses_is_of_a_family_that_a_nic_has() {
    let of = |format, domain| Info { addr_format: format, ..info("udp", domain) };
    let sys = Sys::new();
    sys.interface("eth0", "1", Some("0000:01:00.0"), &[]);
    sys.interface("eth1", "1", Some("0000:02:00.0"), &[]);
    sys.interface("lo", "772", None, &[]);
    let (v4, v6) = (AddrFormat::SockaddrIn, AddrFormat::SockaddrIn6);
    let only = [of(v4, "udp"), of(v6, "eth0"), of(v4, "lo")];
    assert_eq!(found("auto", &sys.devices(&only)), "udp/eth0");
    let both = [&only[..], &[of(v4, "eth1")]].concat();
    assert_eq!(found("auto", &sys.devices(&both)), "udp/udp");
    assert_eq!(found("auto", &sys.devices(&[of(v4, "udp")])), "udp/udp", "nothing else is known");
}

/// Regression test: a VLAN's name, which getinfo lists after its bond's, was no exception.
#[test]
fn exceptions_may_name_an_interface_on_top_of_a_nic() {
    let (_sys, devices) = connectx();
    assert_eq!(found("udp/*,!bond0.7", &devices), "udp/eno1");
    assert_eq!(found("udp/*,!udp/bond0.?", &devices), "udp/eno1");
    assert_eq!(found("udp/*,!tcp/bond0.7", &devices), "udp/eno1 udp/bond0");
    assert_eq!(found("auto,!bond0.7", &devices), found("auto,!bond0", &devices));
    assert_eq!(found("udp/bond0.7,udp/*", &devices), "=udp/bond0.7 + udp/eno1", "nor is the NIC used twice");
    assert!(refused("udp/bond0.*", &devices).contains("udp/bond0.*"), "a rail would be on another interface");
}

/// Regression test: with all interfaces left out there was the rail of all addresses, which uses them.
#[test]
fn no_rail_uses_interfaces_that_are_left_out() {
    let sys = Sys::new();
    sys.interface("eth0", "1", Some("0000:01:00.0"), &[]);
    sys.interface("lo", "772", None, &[]);
    let devices = sys.devices(&["udp", "eth0", "lo"].map(|name| info("udp", name)));
    assert!(refused("!eth0,!lo", &devices).contains("auto"));
    assert!(refused("udp/*,!eth0,!lo", &devices).contains("udp/*"));
    assert_eq!(found("!eth0", &devices), "udp/lo");
    assert_eq!(found("!udp/udp", &devices), "udp/eth0");
    assert_eq!(found("udp,!eth0,!lo", &devices), "=udp/", "names are taken as they are");
}

#[test]
fn exceptions_of_a_provider_leave_its_nics_to_the_others() {
    let (_sys, devices) = connectx();
    for list in ["auto,!udp", "auto,!udp/*", "auto,!ud?"] {
        assert_eq!(found(list, &devices), "verbs/mlx5_0 verbs/mlx5_1 | tcp/tcp | shm/shm", "{list}");
    }
    assert_eq!(found("verbs/*,!udp/*", &devices), "verbs/mlx5_0 verbs/mlx5_1");
    assert_eq!(found("*,!tcp,!udp/bond*", &devices), "verbs/mlx5_0 verbs/mlx5_1 udp/eno1");
    assert_eq!(found("*,!verbs/mlx5_0", &devices), "verbs/mlx5_1 udp/eno1");
    assert_eq!(found("udp/*,!verbs", &devices), "udp/eno1 udp/bond0");
    assert_eq!(found("*,!bond0", &devices), "udp/eno1", "a NIC's own name is for all its providers");
}

#[test]
fn nics_of_one_controller_and_ports_of_one_function_are_several() {
    let sys = Sys::new();
    sys.interface("usb0", "1", Some("0000:00:14.0/usb1/1-1/1-1:1.0"), &[]);
    sys.interface("usb1", "1", Some("0000:00:14.0/usb1/1-2/1-2:1.0"), &[]);
    sys.interface("ens3", "1", Some("0000:00:03.0/virtio2"), &[]);
    for port in [0, 1] {
        let name = format!("mlx{port}");
        sys.interface(&name, "1", Some("0000:05:00.0"), &[]);
        fs::write(sys.0.join("class/net").join(name).join("dev_port"), format!("{port}\n")).unwrap();
    }
    let mut infos = ["usb1", "usb0", "mlx1", "mlx0", "ens3"].map(|name| info("udp", name)).to_vec();
    infos.push(nic("verbs", "mlx4_0", "mlx4_0", 5));
    let devices = sys.devices(&infos);
    assert_eq!(found("udp/*", &devices), "udp/ens3 udp/mlx0 udp/mlx1 udp/usb1 udp/usb0");
    assert_eq!(
        found("verbs/mlx4_0,udp/*", &devices),
        "=verbs/mlx4_0 + udp/ens3 udp/usb1 udp/usb0",
        "the RDMA device is of both ports"
    );
}

#[test]
fn no_nic_is_used_twice() {
    let (_sys, devices) = connectx();
    assert_eq!(
        found("verbs/*,udp/*", &devices),
        "verbs/mlx5_0 verbs/mlx5_1 + udp/eno1",
        "the bond is of both ports"
    );
    assert_eq!(found("verbs/mlx5_*,*", &devices), "verbs/mlx5_0 verbs/mlx5_1 + udp/eno1");
    assert_eq!(found("verbs/mlx5_0,verbs/*", &devices), "=verbs/mlx5_0 + verbs/mlx5_1");
    assert_eq!(
        found("auto,udp/*", &devices),
        "verbs/mlx5_0 verbs/mlx5_1 | udp/udp | tcp/tcp | shm/shm + udp/eno1"
    );
    assert_eq!(found("verbs,verbs/mlx5_1*", &devices), "=verbs/", "a NIC that is taken is not missing");
    assert_eq!(found("verbs,verbs/*", &devices), "=verbs/ + verbs/mlx5_0", "the first of getinfo is mlx5_1");
}

#[test]
fn what_names_nothing_is_an_error_that_says_what_is_here() {
    let (_sys, devices) = connectx();
    for (list, term) in [
        ("efa/*", "efa/*"),
        ("verbs/mlx4_*", "verbs/mlx4_*"),
        ("verbs/*,!verbs/*", "verbs/*"),
        ("!*", "auto"),
    ] {
        let text = refused(list, &devices);
        assert!(text.contains(&format!("{term:?}")) && text.contains("verbs/mlx5_0"), "{text}");
    }
    assert!(refused("auto", &[]).contains("no device on this host"));
}

#[test]
fn lists_are_parsed_and_printed_alike_and_what_is_none_is_refused() {
    for list in ["auto", "udp,udp", "efa/*,!rdmap0*", "shm,verbs/mlx5_?", "*"] {
        assert_eq!(list.parse::<RailList>().unwrap().to_string(), list);
    }
    assert_eq!("!eth0".parse::<RailList>().unwrap().to_string(), "auto,!eth0");
    assert_eq!(" udp , ! eth0".parse::<RailList>().unwrap().to_string(), "udp,!eth0");
    assert_eq!(RailList::default().to_string(), "auto");
    for wrong in ["", ",", "udp,", "udp/", "/x", "!", "!/", "efa/*,,auto"] {
        let error = wrong.parse::<RailList>().unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL, "{wrong}");
    }
}

/// What becomes a rail on these devices later, after those that the list found first.
fn later(list: &str, first: &[Device], opened: &[Info], devices: &[Device]) -> String {
    let list: RailList = list.parse().unwrap();
    let (_, start) = list.begin(first).unwrap();
    let names = list.later_of(devices, &start, opened).into_iter();
    let names = names.map(|info| format!("{}/{}", info.fabric_attr.prov_name, info.domain_attr.name));
    names.collect::<Vec<_>>().join(" ")
}

/// Regression test: when the NIC went down, a bridge of containers, loopback, or the port itself became a rail.
#[test]
fn what_is_left_when_a_nic_goes_down_is_no_rail() {
    let down = |mut info: Info| {
        let mut nic = info.nic.take().unwrap_or_default();
        nic.link_attr.state = LinkState::Down;
        Info { nic: Some(nic), ..info }
    };
    let sys = Sys::new();
    sys.interface("eth0", "1", Some("0000:01:00.0"), &[]);
    sys.interface("eth1", "1", Some("0000:02:00.0"), &[]);
    sys.interface("docker0", "1", None, &[]);
    sys.interface("lo", "772", None, &[]);
    let [eth0, eth1, docker, lo] = ["eth0", "eth1", "docker0", "lo"].map(|name| info("udp", name));
    let first = sys.devices(&[eth0.clone(), docker.clone(), lo.clone()]);
    let left = sys.devices(&[down(eth0.clone()), docker.clone(), lo.clone()]);
    let lone = sys.devices(&[down(eth0.clone()), lo.clone()]);
    for list in ["udp/*", "auto", "udp/eth0,udp/*"] {
        for devices in [&left, &lone, &sys.devices(&[down(eth1.clone())])] {
            assert_eq!(later(list, &first, std::slice::from_ref(&eth0), devices), "", "{list}");
        }
        let more = sys.devices(&[eth0.clone(), eth1.clone(), docker.clone()]);
        assert_eq!(later(list, &first, std::slice::from_ref(&eth0), &more), "udp/eth1", "{list}");
    }
    // A container has virtual interfaces alone, and then a NIC.
    let inside = sys.devices(&[docker.clone(), lo.clone()]);
    assert_eq!(later("udp/*", &inside, std::slice::from_ref(&docker), &first), "udp/eth0");
    assert_eq!(later("udp/*", &inside, std::slice::from_ref(&docker), &lone), "");
    // A port that is down and does not open comes up. It is no rail of a provider without rails before.
    let [port, other] = [(0, 3), (1, 4)].map(|(nth, bus)| {
        let name = format!("mlx5_{nth}");
        nic("verbs", &name, &name, bus)
    });
    let both = sys.devices(&[down(port.clone()), eth0.clone()]);
    let up = sys.devices(&[port.clone(), eth0.clone()]);
    assert_eq!(later("auto", &both, std::slice::from_ref(&eth0), &up), "verbs/mlx5_0");
    assert_eq!(later("auto", &first, std::slice::from_ref(&eth0), &both), "");
    let ports = sys.devices(&[down(port.clone()), down(other.clone())]);
    assert_eq!(later("verbs/*", &sys.devices(&[port.clone(), down(other)]), &[port], &ports), "");
}

/// Regression test: the provider of another term's rail decided what `auto` looks for.
#[test]
fn auto_looks_for_devices_of_the_provider_to_which_it_has_come() {
    let sys = Sys::new();
    ["eth0", "eth1"].iter().zip(1..).for_each(|(name, bus)| {
        sys.interface(name, "1", Some(&format!("0000:{bus:02}:00.0")), &[]);
    });
    let port = nic("verbs", "mlx5_0", "mlx5_0", 3);
    let [eth0, eth1] = ["eth0", "eth1"].map(|name| info("udp", name));
    let first = sys.devices(&[port.clone(), eth0.clone()]);
    let more = sys.devices(&[port.clone(), eth0.clone(), eth1.clone()]);
    assert_eq!(later("verbs/mlx5_0,auto", &first, &[port.clone(), eth0.clone()], &more), "udp/eth1");
    let second = nic("verbs", "mlx5_1", "mlx5_1", 4);
    let better = sys.devices(&[port.clone(), second, eth0.clone(), eth1]);
    assert_eq!(
        later("auto", &first, std::slice::from_ref(&port), &better),
        "verbs/mlx5_1",
        "no worse provider"
    );
    assert_eq!(later("verbs/mlx5_0,auto", &first, &[port, eth0], &better), "verbs/mlx5_1 udp/eth1");
}
