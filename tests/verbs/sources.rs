//! An info without a source address: its endpoints are at an address of the info's device, in the info's format.

use std::net::IpAddr;
use std::sync::Arc;

use ofi_testkit::connect::{Listener, connect};
use ofi_testkit::prelude::*;
use ofi_testkit::rc::Plan;

use super::device;

const FORMATS: [AddrFormat; 2] = [AddrFormat::SockaddrIn, AddrFormat::SockaddrIn6];

/// An info of one of two devices, and the address that getinfo names in it.
fn unnamed(domain: &str, ep: EpType, format: AddrFormat) -> (Info, IpAddr) {
    static ADDED: std::sync::Once = std::sync::Once::new();
    ADDED.call_once(|| {
        let _ = ["sources0", "sources1"].map(|name| device(name, Plan::default()));
    });
    let hints = Hints::new().provider("verbs").domain(domain).ep_type(ep).addr_format(format);
    let mut info = Opening::new(hints.mode(Mode::RX_CQ_DATA)).first_info().expect("an info of the device");
    let source = info.src_addr.take().and_then(|source| source.to_socket_addr()).expect("a source address");
    (info, source.ip())
}

fn ip(name: &Address) -> IpAddr {
    name.to_socket_addr().expect("an IP address").ip()
}

fn opening(info: &Info) -> Opening {
    Opening::new(Hints::new()).info(info.clone()).without_shared_memory()
}

#[test]
fn an_endpoint_has_an_address_of_its_device_in_its_format() {
    for domain in ["sources0", "sources1"] {
        for format in FORMATS {
            let (info, wanted) = unnamed(domain, EpType::Rdm, format);
            let (a, b) = (opening(&info).open(), opening(&info).open());
            assert_eq!([ip(&a.name()), ip(&b.name())], [wanted; 2], "{domain} {format}");
            Pair::of(a, b).warm_up();
        }
    }
}

#[test]
fn a_connected_and_a_passive_endpoint_have_one_too() {
    for domain in ["sources0", "sources1"] {
        for format in FORMATS {
            let (info, wanted) = unnamed(domain, EpType::Msg, format);
            let listener = Listener::open(&info).expect("a passive endpoint");
            assert_eq!(ip(&listener.pep.name().expect("its name")), wanted, "{domain} {format}");
            let a = opening(&info).open_disabled().expect("an endpoint");
            let b = connect(&a, opening(&info)).expect("a connection");
            assert_eq!([ip(&a.name()), ip(&b.name())], [wanted; 2], "{domain} {format}");
        }
    }
}

#[test]
fn a_datagram_endpoint_is_on_the_device_of_its_info() {
    for domain in ["sources0", "sources1"] {
        let hints = Hints::new().provider("verbs").domain(domain).ep_type(EpType::Dgram);
        let _ = unnamed(domain, EpType::Rdm, FORMATS[0]); // adds the devices
        let mut info = Opening::new(hints).first_info().expect("an info of the device");
        let gid = |name: &Address| name.bytes()[..16].to_vec();
        let wanted = gid(&info.src_addr.take().expect("a source address"));
        let end = Opening::new(Hints::new()).info(info).open();
        assert_eq!(gid(&end.name()), wanted, "{domain}");
    }
}

#[test]
fn endpoints_of_both_formats_share_a_domain() {
    for formats in [FORMATS, [FORMATS[1], FORMATS[0]]] {
        for ep in [EpType::Rdm, EpType::Msg] {
            let [(first, one), (second, other)] = formats.map(|format| unnamed("sources1", ep, format));
            let first = opening(&first).open_disabled().expect("an endpoint");
            let second =
                opening(&second).beside(&first).open_disabled().expect("an endpoint of the other format");
            for (end, wanted) in [(first, one), (second, other)] {
                if ep == EpType::Msg {
                    let listener =
                        Listener::of(Arc::clone(&end.fabric), &end.info).expect("a passive endpoint");
                    end.ep.connect(&listener.pep.name().expect("its name"), &[]).expect("connecting");
                } else {
                    end.ep.enable().expect("enabling it");
                }
                assert_eq!(ip(&end.name()), wanted, "{ep}");
            }
        }
    }
}

#[test]
fn a_device_that_does_not_exist_is_refused_by_its_name() {
    let (mut info, _) = unnamed("sources0", EpType::Rdm, AddrFormat::SockaddrIn);
    info.domain_attr.name = "sources2".into();
    let fabric = ofi::open_fabric(&info).expect("a fabric");
    let error = fabric.open_domain(&info).expect_err("refused");
    assert_eq!(error.errno(), Errno::ENODEV);
    assert!(error.to_string().contains("sources0"), "{error}");
}
