//! Connected endpoints and datagrams between hosts with several addresses.

use std::net::{IpAddr, SocketAddr};

use ofi_testkit::connect::{Listener, event_of};
use ofi_testkit::network::Far;
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::udp::socket;
use ofi_tests::{Naming, opening, parse};

const LEN: usize = 1_000;
const ANY: FiAddr = FiAddr::UNSPEC;

/// Options for an endpoint of `kind` at all addresses of the family of `ip`.
fn at_all(kind: EpType, ip: IpAddr) -> Opening {
    let all: IpAddr = if ip.is_ipv6() { [0u16; 8].into() } else { [0, 0, 0, 0].into() };
    let caps = if kind == EpType::Dgram { Caps::MSG | Caps::SOURCE } else { Caps::MSG };
    opening(Naming::Udp).hints(|hints| {
        let source = Address::from(SocketAddr::new(all, 0));
        hints.ep_type(kind).caps(caps).mr_mode(MrMode::PROV_KEY).src_addr(source)
    })
}

fn ip(arguments: &[String]) -> IpAddr {
    arguments[0].parse().expect("an address")
}

/// Receives a message of `LEN` bytes and sends it back to `to`.
fn send_back(side: &TestEndpoint, to: FiAddr, buffer: &Memory) {
    let received = wait::drive(&[side], "a message", || side.next_of(1)).done();
    assert_eq!(received.len, LEN);
    wait::drive(&[side], "room", || side.out(to, buffer.slice(..LEN)).context(2).send().ok());
    wait::drive(&[side], "the echo", || side.next_of(2)).done();
}

/// Accepts connections at all addresses, and returns one message on each.
pub fn listener(line: &mut Line, arguments: &[String]) {
    let opening = || at_all(EpType::Msg, ip(arguments));
    let listener = Listener::open(&opening().first_info().expect("an info")).expect("a listener");
    line.say(listener.pep.name().expect("its address"));
    while line.hear() == "connect" {
        let request = listener.request(&[]);
        let side = opening().info(*request.info.expect("checked")).open_disabled().expect("a side");
        let buffer = Memory::new(LEN);
        side.ep.accept(&[]).expect("an acceptance");
        side.receive(&buffer).context(1).post().expect("a receive");
        event_of(&side, EventKind::Connected, &[]);
        send_back(&side, ANY, &buffer);
        event_of(&side, EventKind::Shutdown, &[]);
    }
}

/// Receives datagrams at all addresses, and returns one to each address that it hears of.
pub fn reflector(line: &mut Line, arguments: &[String]) {
    let side = at_all(EpType::Dgram, ip(arguments)).open();
    line.say(side.name());
    let buffer = Memory::new(LEN);
    loop {
        let heard = line.hear();
        if heard == "over" {
            return;
        }
        let to = side.insert_address(&parse(&heard));
        side.receive(&buffer).context(1).post().expect("a receive");
        line.say("ready");
        send_back(&side, to, &buffer);
    }
}

/// Connects to a far endpoint at each of `addresses`, and exchanges a message over each connection.
pub fn connect_to_each(far: &Far, addresses: &[IpAddr]) {
    let mut child = Child::start_under(&far.under(), "listener", &[&addresses[0].to_string()], &[]);
    let port = socket(&parse(&child.line.hear())).port();
    for &address in addresses {
        child.line.say("connect");
        let side = at_all(EpType::Msg, address).open_disabled().expect("a side");
        let (from, into) = (Memory::patterned(LEN, 5), Memory::new(LEN));
        side.ep.connect(&SocketAddr::new(address, port).into(), &[]).expect("a call");
        side.receive(&into).context(1).post().expect("a receive");
        event_of(&side, EventKind::Connected, &[]);
        wait::drive(&[&side], "room", || side.out(ANY, &from).context(2).send().ok());
        wait::drive(&[&side], "the echo", || side.next_of(1)).done();
        into.check(LEN, 5);
    }
    child.line.say("over");
    child.finish();
}

/// Exchanges datagrams with a far endpoint at each of `addresses`. `own` is this end's address on the same link.
pub fn send_to_each(far: &Far, addresses: &[(IpAddr, IpAddr)]) {
    let any = addresses[0].0;
    let mut child = Child::start_under(&far.under(), "reflector", &[&any.to_string()], &[]);
    let port = socket(&parse(&child.line.hear())).port();
    for &(address, own) in addresses {
        let side = at_all(EpType::Dgram, address).open();
        let name = Address::from(SocketAddr::new(own, socket(&side.name()).port()));
        let to = side.insert_address(&SocketAddr::new(address, port).into());
        let (from, into) = (Memory::patterned(LEN, 6), Memory::new(LEN));
        side.receive(&into).context(1).post().expect("a receive");
        child.line.say(name);
        child.line.expect("ready");
        wait::drive(&[&side], "room", || side.out(to, &from).context(2).send().ok());
        let echo = wait::drive(&[&side], "the echo", || side.next_of(1));
        assert!(matches!(echo, Event::Done(_, source) if source == to), "{address} answered: {echo:?}");
        into.check(LEN, 6);
    }
    child.line.say("over");
    child.finish();
}
