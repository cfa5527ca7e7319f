//! UDP on hosts with several addresses: an endpoint opened without an address is reached at each of them,
//! also at one added later, and answers from the address that the peer used. Besides, each interface has its
//! own infos. The test makes its network namespaces itself, without privileges.

pub mod kinds;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ofi_testkit::network::{Far, shell};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::udp::{Echo, open, socket};

const NEAR: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);
/// On the same interface as [`FAR`]: the routes alone would choose that as the source of answers.
const LATER: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 3);
/// On the other interface.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 2);

/// Far addresses of one family, and this end's on the same link.
const LINKS: [[(IpAddr, IpAddr); 2]; 2] = [
    [(IpAddr::V4(FAR), IpAddr::V4(NEAR)), (IpAddr::V4(OTHER), IpAddr::V4(Ipv4Addr::new(10, 97, 0, 1)))],
    [(six(0xfd98, 2), six(0xfd98, 1)), (six(0xfd97, 2), six(0xfd97, 1))],
];

const fn six(net: u16, host: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(net, 0, 0, 0, 0, 0, 0, host))
}

/// Two links between this namespace and another one.
fn join_namespaces() -> Result<Far, String> {
    // Without this mount /sys shows the interfaces of the outer namespace. Checks that need it are reported
    // as NOT RUN.
    let _ = shell("mount -t sysfs sysfs /sys");
    let far = Far::open()?;
    let pid = far.pid();
    shell(&format!(
        "ip link add near0 type veth peer name far0 netns {pid}
         ip link add near1 type veth peer name far1 netns {pid}
         ip address add {NEAR}/24 dev near0
         ip address add 10.97.0.1/24 dev near1
         ip address add fd98::1/64 dev near0 nodad
         ip address add fd97::1/64 dev near1 nodad
         ip link set near0 up
         ip link set near1 up"
    ))?;
    far.shell(&format!(
        "ip link set far0 up; ip link set far1 up
         ip address add {FAR}/24 dev far0; ip address add {OTHER}/24 dev far1
         ip address add fd98::2/64 dev far0 nodad; ip address add fd97::2/64 dev far1 nodad"
    ))?;
    Ok(far)
}

/// A far endpoint opened without an address, and a local one, at `own` among others, that reaches it at `address`.
fn meet(far: &Far, address: IpAddr, own: IpAddr) -> (Echo, TestEndpoint, FiAddr) {
    let links = LINKS[usize::from(address.is_ipv6())];
    let all: IpAddr = if address.is_ipv6() { [0u16; 8].into() } else { [0, 0, 0, 0].into() };
    let all = SocketAddr::new(all, 0);
    let mut echo = Echo::start(&far.under(), all);
    let name = socket(&echo.address);
    assert!(links.iter().any(|(far, _)| *far == name.ip()), "an address that a peer can use: {name}");
    let side = open(all);
    // This end too is reached at any address: the far end uses the one on the same link.
    echo.meet(&SocketAddr::new(own, socket(&side.name()).port()).into());
    let to = side.insert_address(&SocketAddr::new(address, name.port()).into());
    (echo, side, to)
}

/// The infos of reliable datagrams for a peer at `node`, if given, and on `domain`, unless it is empty.
fn listed(node: Option<Ipv4Addr>, domain: &str) -> Vec<Info> {
    let hints = Hints::new().provider("udp").ep_type(EpType::Rdm).caps(Caps::MSG).domain(domain);
    let node = node.map(|node| node.to_string());
    let service = node.as_ref().map(|_| "7");
    ofi::getinfo(Version::API, node.as_deref(), service, GetinfoFlags::empty(), Some(&hints))
        .unwrap_or_default()
}

/// The domain and source address of an info.
fn place(info: &Info) -> (String, Option<SocketAddr>) {
    (info.domain_attr.name.clone(), info.src_addr.as_ref().and_then(Address::to_socket_addr))
}

fn at(domain: &str, ip: impl Into<std::net::IpAddr>) -> (String, Option<SocketAddr>) {
    (domain.into(), Some(SocketAddr::new(ip.into(), 0)))
}

/// `fi_getinfo` first lists the whole host, then each interface with its own address.
fn interfaces_are_listed(line: &mut Line) {
    // The kernel reports a link as running some time after both of its ends are up.
    wait::until("the links", || ["near0", "near1"].iter().all(|link| !listed(None, link).is_empty()));
    let own: Vec<_> =
        listed(None, "").iter().map(place).filter(|(_, ip)| ip.is_none_or(|ip| ip.is_ipv4())).collect();
    let near = at("near0", NEAR);
    let other = at("near1", [10, 97, 0, 1]);
    let wanted = [("udp".into(), None), near.clone(), other.clone(), at("lo", [127, 0, 0, 1])];
    assert_eq!(own, wanted, "the whole host first, loopback last");
    let infos = listed(None, "near0");
    assert_eq!(place(&infos[0]), near);
    assert_eq!(infos[0].fabric_attr.name, "10.98.0.0/24");
    assert_eq!(infos[0].nic.is_some(), std::path::Path::new("/sys/class/net/near0").exists());
    if let Some(nic) = &infos[0].nic {
        // A veth reports 10 Gb/s, and is not on a bus.
        assert_eq!((&*nic.device_attr.name, nic.link_attr.speed), ("near0", 10_000_000_000));
        assert_eq!((&nic.bus_attr, nic.link_attr.mtu), (&ofi::raw::BusAttr::Unknown, 1500));
    } else {
        line.say(
            "NOT RUN: the device of an interface: /sys shows another namespace, and mounting a new one failed",
        );
    }
    let loopback = &listed(None, "lo")[0];
    assert!(loopback.nic.is_none() && !loopback.caps.contains(Caps::REMOTE_COMM));
    assert!(listed(None, "near2").is_empty());
    // For a peer: the interface on its route, or the one that the hints name.
    assert_eq!(place(&listed(Some(OTHER), "")[0]), at("udp", [10, 97, 0, 1]));
    let named = &listed(Some(OTHER), "near1")[0];
    assert_eq!(place(named), other);
    assert_eq!(named.dest_addr.as_ref().map(socket), Some(SocketAddr::from((OTHER, 7))));
    // An info is accepted as hints, and the endpoint is opened on the interface it names.
    let again = Hints::from(named.clone());
    let again = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&again)).expect("itself");
    assert_eq!((again.len(), place(&again[0])), (1, other));
    let side = Opening::new(Hints::new()).info(again[0].clone()).open();
    assert_eq!(socket(&side.name()).ip(), Ipv4Addr::new(10, 97, 0, 1));
    // An address is added and removed.
    let extra = at("near0", [10, 98, 0, 9]);
    shell("ip address add 10.98.0.9/24 dev near0").expect("a link of this test");
    assert!(listed(None, "near0").iter().any(|info| place(info) == extra));
    shell("ip address del 10.98.0.9/24 dev near0").expect("a link of this test");
    assert!(!listed(None, "near0").iter().any(|info| place(info) == extra));
    shell("ip link set near1 down").expect("a link of this test");
    assert!(listed(None, "near1").is_empty(), "an interface that is down");
    // A link that goes down loses its addresses of IPv6, and no others.
    shell("ip link set near1 up; ip address add fd97::1/64 dev near1 nodad || true")
        .expect("a link of this test");
    wait::until("the link", || !listed(None, "near1").is_empty());
}

/// Runs in the near namespace. Prints what could not run, and then `over`.
pub fn near_end(line: &mut Line, _: &[String]) {
    let far = match join_namespaces() {
        Ok(far) => far,
        Err(why) => {
            line.say(format!("NOT RUN: all: {}", why.replace('\n', "; ")));
            return line.say("over");
        }
    };
    interfaces_are_listed(line);
    let has_six = shell("ip -6 address show dev near0 | grep -q fd98::1").is_ok();
    if !has_six {
        line.say("NOT RUN: addresses of IPv6: a link takes none here");
    }
    for links in &LINKS[..if has_six { 2 } else { 1 }] {
        for &(address, own) in links {
            let (echo, side, to) = meet(&far, address, own);
            echo.converse(&side, to, 1);
            echo.end(&side, to);
        }
        kinds::connect_to_each(&far, &links.map(|(address, _)| address));
        kinds::send_to_each(&far, links);
    }
    // An address is added after the endpoint opened, removed, and added again within the bound.
    let (echo, side, to) = meet(&far, LATER.into(), NEAR.into());
    let change = |what: &str| {
        far.shell(&format!("ip address {what} {LATER}/24 dev far0")).expect("a link of this test");
    };
    change("add");
    echo.converse(&side, to, 1);
    change("del");
    let (message, back) = (Memory::patterned(64, 9), Memory::new(64));
    side.receive(&back).context(50).tag(50).post().expect("a receive");
    side.out(to, &message).context(51).tag(50).send().expect("a send to a removed address");
    wait::drive_through(Duration::from_secs(1), &[&side]);
    change("add");
    wait::drive(&[&side], "the message", || side.next_of(50)).done();
    wait::drive(&[&side], "the completion", || side.next_of(51)).done();
    back.check(64, 9);
    echo.converse(&side, to, 1);
    line.say("over");
}

#[test]
fn an_endpoint_without_an_address_is_reached_at_all_of_them() {
    if let Err(why) = shell("unshare -Urnm true") {
        println!("NOT RUN: an_endpoint_without_an_address_is_reached_at_all_of_them: {why}");
        return;
    }
    let mut child = Child::start_under(&["unshare", "-Urnm"], "addresses_near_end", &[], &[]);
    loop {
        match child.line.hear().as_str() {
            "over" => break,
            said => println!("{said}"),
        }
    }
    child.finish();
}
