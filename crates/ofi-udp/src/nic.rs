//! The device of an interface, from sysfs (`/sys/class/net/NAME`): its driver, PCI address and speed.

use std::path::{Path, PathBuf};

use ofi_api::{BusAttr, LinkState, Nic, PciAttr};

use crate::settings;

/// The device of interface `name`; `None` for an interface without a device, such as loopback. Its PCI address is
/// included only if the setting requests it: C's providers over sockets report none, and MPICH aborts on a PCI address
/// if its hwloc was built without PCI, as in the wheels.
pub fn of(name: &str) -> Option<Nic> {
    Some(shown(read(&Path::new("/sys/class/net").join(name))?, settings::PCI_ADDRESS.get()))
}

fn shown(nic: Nic, pci_address: bool) -> Nic {
    if pci_address { nic } else { Nic { bus_attr: BusAttr::Unknown, ..nic } }
}

fn read(at: &Path) -> Option<Nic> {
    let text = |file: &str| std::fs::read_to_string(at.join(file)).ok().map(|text| text.trim().to_owned());
    // ARPHRD_ETHER and ARPHRD_INFINIBAND (linux/if_arp.h).
    let kind = match text("type")?.as_str() {
        "1" => "Ethernet",
        "32" => "InfiniBand",
        _ => return None,
    };
    let base = |path: PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    let mut nic = Nic::default();
    nic.device_attr.name = at.file_name()?.to_string_lossy().into_owned();
    let device = at.join("device");
    let driver = std::fs::canonicalize(device.join("driver")).ok().and_then(base);
    nic.device_attr.driver = driver.unwrap_or_default();
    (nic.device_attr.vendor_id, nic.device_attr.device_id) =
        (text("device/vendor").unwrap_or_default(), text("device/device").unwrap_or_default());
    nic.bus_attr = place(&device).map_or(BusAttr::Unknown, BusAttr::Pci);
    nic.numa_node = text("device/numa_node").and_then(|node| node.parse().ok());
    let link = &mut nic.link_attr;
    (link.address, link.network_type) = (text("address").unwrap_or_default(), kind.to_owned());
    link.mtu = text("mtu").and_then(|mtu| mtu.parse().ok()).unwrap_or(0);
    // In millions of bits per second; -1 or an error if the device does not know.
    let speed = text("speed").and_then(|speed| speed.parse::<usize>().ok());
    link.speed = speed.and_then(|speed| speed.checked_mul(1_000_000)).unwrap_or(0);
    link.state = match text("operstate").as_deref() {
        Some("up") => LinkState::Up,
        Some("down" | "lowerlayerdown" | "notpresent") => LinkState::Down,
        _ => LinkState::Unknown,
    };
    Some(nic)
}

/// The PCI address of a device, or of its parent (virtio has a device of its own below the PCI device). Further up are
/// bridges, and the controllers of USB, which serve many.
fn place(device: &Path) -> Option<PciAttr> {
    let path = std::fs::canonicalize(device).ok()?;
    path.ancestors().take(2).find_map(|part| part.file_name()?.to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_what_is_not_there_have_no_device() {
        assert_eq!(of("lo"), None);
        assert_eq!(of("no-such-interface"), None);
    }

    /// Regression test: the NICs of a USB controller had its PCI address, and were taken for one.
    #[test]
    fn only_the_device_and_its_parent_have_its_pci_address() {
        let top = std::env::temp_dir().join(format!("ofi-place-{}", std::process::id()));
        let address = |below: &str| {
            let device = top.join("0000:00:14.0").join(below);
            std::fs::create_dir_all(&device).unwrap();
            place(&device)
        };
        let own = Some("0000:00:14.0".parse().unwrap());
        assert_eq!([address(""), address("virtio2"), address("usb1/1-1/1-1:1.0")], [own, own, None]);
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn a_device_is_what_its_files_say() {
        let top = std::env::temp_dir().join(format!("ofi-nic-{}", std::process::id()));
        let (net, pci) = (top.join("net/eth7"), top.join("devices/0000:3b:00.1"));
        std::fs::create_dir_all(&net).unwrap();
        std::fs::create_dir_all(pci.join("drivers/mlx5_core")).unwrap();
        std::os::unix::fs::symlink(&pci, net.join("device")).unwrap();
        std::os::unix::fs::symlink(pci.join("drivers/mlx5_core"), pci.join("driver")).unwrap();
        for (file, text) in [
            ("type", "1\n"),
            ("address", "02:fc:00:00:00:01\n"),
            ("mtu", "9000\n"),
            ("speed", "100000\n"),
            ("operstate", "up\n"),
            ("device/numa_node", "1\n"),
        ] {
            std::fs::write(net.join(file), text).unwrap();
        }
        let nic = read(&net).unwrap();
        std::fs::write(net.join("speed"), "-1\n").unwrap();
        let slow = read(&net).unwrap();
        std::fs::remove_dir_all(&top).unwrap();
        assert_eq!((&*nic.device_attr.name, &*nic.device_attr.driver), ("eth7", "mlx5_core"));
        assert_eq!(nic.bus_attr, BusAttr::Pci("0000:3b:00.1".parse().unwrap()));
        assert_eq!((nic.link_attr.speed, nic.link_attr.mtu, nic.numa_node), (100_000_000_000, 9000, Some(1)));
        assert_eq!((nic.link_attr.state, &*nic.link_attr.network_type), (LinkState::Up, "Ethernet"));
        assert_eq!(slow.link_attr.speed, 0);
        assert_eq!(shown(nic.clone(), true), nic);
        let by_default = shown(nic.clone(), false);
        assert_eq!(by_default.bus_attr, BusAttr::Unknown);
        assert_eq!((by_default.link_attr, by_default.device_attr), (nic.link_attr, nic.device_attr));
    }
}
