//! Every address that getinfo lists serves endpoints of every type, whatever network it is of: listening, enabling, a
//! message. In the guest of `cargo xtask vm` set `FI_VERBS_IFACE=roce`: the wire's routes lead from each of its ends to
//! the other one alone. `addresses.sh` adds a VLAN and a further address before.

use std::net::SocketAddr;

use ofi_testkit::connect::{Listener, connect};
use ofi_testkit::prelude::*;

use super::VerbsPair;

fn infos(ep: EpType) -> Vec<Info> {
    let kit: &dyn Kit = &VerbsPair;
    let hints = Hints::new().provider("verbs").ep_type(ep).mode(Mode::RX_CQ_DATA);
    kit.getinfo(&hints).expect("infos").into_iter().filter(|info| info.ep_attr.ep_type == ep).collect()
}

fn opening(info: &Info) -> Opening {
    Opening::new(Hints::new()).info(info.clone()).without_shared_memory()
}

fn source(info: &Info) -> SocketAddr {
    info.src_addr.as_ref().and_then(Address::to_socket_addr).expect("a source address")
}

#[test]
fn every_listed_address_serves() {
    for info in infos(EpType::Rdm) {
        let ip = source(&info).ip();
        println!("rdm {} {ip}", info.domain_attr.name);
        let pair = Pair::of(opening(&info).open(), opening(&info).open());
        pair.warm_up();
        let names = [&pair.a, &pair.b].map(|side| side.name().to_socket_addr().expect("an address").ip());
        assert_eq!(names, [ip; 2]);
    }
    for info in infos(EpType::Msg) {
        let ip = source(&info).ip();
        println!("msg {} {ip}", info.domain_attr.name);
        let listener = Listener::open(&info).expect("a passive endpoint");
        assert_eq!(listener.pep.name().expect("its name").to_socket_addr().map(|name| name.ip()), Some(ip));
        let a = opening(&info).open_disabled().expect("an endpoint");
        let b = connect(&a, opening(&info)).expect("a connection");
        let (from, into) = (Memory::patterned(64, 1), Memory::new(64));
        b.receive(&into).context(1).post().unwrap();
        a.out(FiAddr::UNSPEC, &from).context(2).send().unwrap();
        wait::drive(&[&a, &b], "the message", || b.next_of(1)).done();
        into.check(64, 1);
    }
    for info in infos(EpType::Dgram) {
        println!("dgram {} {}", info.domain_attr.name, info.src_addr.as_ref().expect("a source address"));
        Pair::of(opening(&info).open(), opening(&info).open()).warm_up();
    }
}
