//! The device attributes of an info.

use ofi::raw::{AddrFormat, EpType, GetinfoFlags, Hints, LinkState, Version};

/// The first device of the machine, at its address on the interface that stays up.
#[test]
fn an_info_describes_the_device_and_its_port() {
    for (ep, format) in [
        (EpType::Rdm, AddrFormat::SockaddrIn),
        (EpType::Msg, AddrFormat::SockaddrIn),
        (EpType::Dgram, AddrFormat::IbUd),
    ] {
        let hints = Hints::new().provider("verbs").ep_type(ep).addr_format(format).domain("rxe0");
        let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints)).unwrap();
        let nic = infos[0].nic.as_ref().expect("a description of the device");
        assert_eq!(nic.device_attr.name, "rxe0", "{ep}");
        assert!(!nic.device_attr.vendor_id.is_empty() && !nic.device_attr.device_id.is_empty(), "{nic:?}");
        let link = &nic.link_attr;
        assert_eq!((link.state, link.network_type.as_str()), (LinkState::Up, "Ethernet"), "{ep}");
        assert_eq!(link.address, "10.77.0.1", "the address of its GID, {ep}");
        assert!(link.speed > 0 && link.mtu >= 256, "{nic:?}");
        assert_eq!(nic.numa_node, None, "it lies on no bus");
    }
}
