//! Features of shared memory alone: when the provider offers itself, and its addresses.

use std::time::Duration;

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::{Naming, hints, open, opening};

fn getinfo(
    node: Option<&str>,
    service: Option<&str>,
    flags: GetinfoFlags,
    hints: &Hints,
) -> Result<Vec<Info>> {
    ofi::getinfo(Version::API, node, service, flags, Some(hints))
}

#[test]
fn it_claims_local_communication_only() {
    let info = getinfo(None, None, GetinfoFlags::empty(), &hints(Naming::Names)).unwrap().remove(0);
    assert!(info.caps.contains(Caps::LOCAL_COMM) && !info.caps.contains(Caps::REMOTE_COMM));
    assert_eq!(info.domain_attr.caps & (Caps::LOCAL_COMM | Caps::REMOTE_COMM), Caps::LOCAL_COMM);
    assert_eq!(info.ep_attr.protocol, Protocol::SHM);
    let error =
        getinfo(None, None, GetinfoFlags::empty(), &hints(Naming::Names).caps(Caps::MSG | Caps::REMOTE_COMM));
    assert_eq!(error.unwrap_err().errno(), Errno::ENODATA);
}

/// After a post that found no room, a sleeper is woken once when there is room, and may sleep afterwards.
#[test]
fn a_ring_that_was_full_once_keeps_nobody_awake() {
    let pair = Pair::of(opening(Naming::Names).wait_obj(WaitObj::Fd).open(), open(Naming::Names));
    pair.warm_up();
    let (from, into) = (Memory::patterned(64, 3), Memory::new(64));
    let region = pair.b.register(&into, MrAccess::REMOTE_WRITE).unwrap();
    let there = [remote(&region)];
    // Once the peer has answered that it does not grant direct access to this memory, writes go into the
    // ring.
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&there));
    pair.done(&pair.a);
    let mut posted = 0;
    while pair.a.out(pair.to_b, &from).context(1).write(&there).is_ok() {
        posted += 1;
        assert!(posted < 100_000, "the ring never filled");
    }
    assert!(pair.a.statistic("shm_ring_full") > 0, "credits ran out before the ring: {}", pair.a.report());
    pair.all_done(&pair.a, 1, posted);
    let tries = (0..).take_while(|_| {
        pair.poll();
        pair.a.tx.trywait().is_err()
    });
    assert!(tries.take(10).count() < 10, "the queue never permits sleep");
}

/// Regression test: more peers greet an endpoint that does not poll than it has room for events. Those of the later
/// peers waited until the helper thread had something else to do.
#[test]
fn all_peers_that_greeted_an_endpoint_that_did_not_poll_are_met() {
    const PEERS: usize = 80;
    let hub = open(Naming::Names);
    let peers: Vec<_> = (0..PEERS).map(|_| open(Naming::Names)).collect();
    let from = Memory::patterned(8, 1);
    for (number, peer) in peers.iter().enumerate() {
        let to = peer.insert_address(&hub.name());
        peer.out(to, &from).context(1).tag(number as u64).send().unwrap();
        // When this has ended, the helper has answered for the hub.
        wait::drive(&[peer], "the end of a send", || peer.next_of(1)).done();
    }
    let into = Memory::new(8);
    for number in 0..PEERS {
        hub.receive(&into).context(2).tag(number as u64).post().unwrap();
    }
    for _ in 0..PEERS {
        wait::drive(&[&hub], "a message of each", || hub.next()).done();
    }
}

/// A blocked reader and the progress thread wait for the same events: neither wakes the other needlessly.
#[test]
fn a_blocked_reader_and_the_progress_thread_let_each_other_sleep() {
    let open = || {
        let opening = opening(Naming::Names).wait_obj(WaitObj::Fd);
        opening.hints(|hints| hints.progress(Progress::Auto)).open()
    };
    let pair = Pair::of(open(), open());
    pair.warm_up();
    let switches = || {
        // SAFETY: all zeroes is a valid `rusage`.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: room for the structure.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) }, 0);
        usage.ru_nvcsw
    };
    let before = switches();
    let mut entries = [CqTaggedEntry::EMPTY; 1];
    let read = pair.b.rx.read_wait(&mut CqBuffer::new(&mut entries), Some(Duration::from_secs(1)));
    assert_eq!(read.unwrap_err().errno(), Errno::EAGAIN);
    let switched = switches() - before;
    assert!(switched < 400, "{switched} times in a second");
}

#[test]
fn it_keeps_out_of_the_way_of_network_programs() {
    let plain = Hints::new().caps(Caps::MSG);
    let served = |hints: &Hints, node: Option<&str>, service: Option<&str>| {
        getinfo(node, service, GetinfoFlags::empty(), hints)
            .is_ok_and(|infos| infos.iter().any(|info| info.fabric_attr.prov_name == "shm"))
    };
    assert!(
        !served(&plain, Some("127.0.0.1"), Some("5000")),
        "a program that names a host needs the network"
    );
    assert!(served(&plain.clone().provider("shm"), Some("127.0.0.1"), Some("5000")));
    assert!(served(&plain.clone().caps(Caps::MSG | Caps::LOCAL_COMM), Some("127.0.0.1"), Some("5000")));
    assert!(served(&plain, Some("fi_shm://somebody"), None), "a name of its own");
    assert!(
        !served(&plain.clone().provider("shm"), Some("203.0.113.7"), Some("5000")),
        "an address of another host"
    );
}

#[test]
fn node_and_service_become_the_source_or_the_destination() {
    let hints = hints(Naming::Ports);
    let there = getinfo(Some("127.0.0.1"), Some("5001"), GetinfoFlags::empty(), &hints).unwrap().remove(0);
    assert_eq!(there.dest_addr.unwrap().to_socket_addr().unwrap().port(), 5001);
    assert_eq!(there.src_addr, None);
    let here = getinfo(Some("localhost"), Some("5001"), GetinfoFlags::SOURCE, &hints).unwrap().remove(0);
    assert_eq!(here.src_addr.unwrap().to_socket_addr().unwrap().port(), 5001);
    assert_eq!(here.dest_addr, None);
    let name =
        getinfo(Some("fi_shm://x"), None, GetinfoFlags::empty(), &ofi_tests::hints(Naming::Names)).unwrap();
    assert_eq!(name[0].dest_addr.as_ref().unwrap().text(), Some("fi_shm://x"));
}

#[test]
fn a_server_and_a_client_as_in_the_manual() {
    // The server gives its own address, the client that of the server. The client's peer is the destination
    // of its info.
    let port = open(Naming::Ports).name().to_socket_addr().unwrap().port().to_string();
    let hints = hints(Naming::Ports);
    let server = getinfo(Some("127.0.0.1"), Some(&port), GetinfoFlags::SOURCE, &hints).unwrap().remove(0);
    let mut server_hints = hints.clone();
    server_hints.info.src_addr = server.src_addr;
    let mut opened = None;
    wait::until("the port, which was in use a moment ago", || {
        opened = Opening::new(server_hints.clone()).try_open().ok();
        opened.is_some()
    });
    let server = opened.unwrap();
    let info = getinfo(Some("localhost"), Some(&port), GetinfoFlags::empty(), &hints).unwrap().remove(0);
    let client = Opening::new(hints).open();
    let to = client.insert_address(&info.dest_addr.unwrap());
    server.receive(()).context(2).post().unwrap();
    wait::drive(&[&client, &server], "room", || client.out(to, ()).inject().send().ok());
    wait::drive(&[&client, &server], "the message", || server.next_of(2)).done();
}

#[test]
fn port_zero_is_chosen_and_told() {
    let any = Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    let sides: Vec<TestEndpoint> =
        (0..50).map(|_| Opening::new(hints(Naming::Ports)).name(&any).open()).collect();
    let mut ports: Vec<u16> = sides.iter().map(|side| side.name().to_socket_addr().unwrap().port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 50);
    assert!(!ports.contains(&0));
}

#[test]
fn names_that_are_none_are_refused() {
    let side = open(Naming::Names);
    let long = format!("fi_shm://{}", "x".repeat(200));
    for text in ["fi_shm://", "fi_sm2://x", "x", "", long.as_str()] {
        let error = side.av.insert(&[Address::from_text(text)]).remove(0).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL, "{text:?}: {error}");
        let bare = Opening::new(hints(Naming::Names)).open_disabled().unwrap();
        let error = bare.ep.set_name(&Address::from_text(text)).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL, "{text:?}: {error}");
    }
}

/// The text of a port is a name, so an endpoint with a name reaches one with a port. No name is a port.
#[test]
fn a_port_is_reached_by_its_text_among_names_and_a_name_is_no_port() {
    let (names, ports) = (open(Naming::Names), open(Naming::Ports));
    assert_eq!(ports.av.insert(&[names.name()]).remove(0).unwrap_err().errno(), Errno::EINVAL);
    let to_b = names.av.insert(&[ports.name()]).remove(0).unwrap();
    let pair = Pair { a: names, b: ports, to_b, to_a: FiAddr::NOTAVAIL };
    let (from, into) = (Memory::patterned(64, 3), Memory::new(64));
    pair.b.receive(&into).context(2).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, from.slice(..)).context(1).send());
    assert_eq!(pair.drive("a message", || pair.b.next_of(2)).done().len, 64);
    into.check(64, 3);
}

#[test]
fn ipv6_ports_work_too() {
    let hints = hints(Naming::Ports).addr_format(AddrFormat::SockaddrIn6);
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        println!("skipped: this host has no IPv6");
        return;
    }
    let pair = Pair::of(Opening::new(hints.clone()).open(), Opening::new(hints).open());
    pair.warm_up();
}

/// Node and service (`FI_SOURCE`) of each kind of address, in each format, and the beginning of its text.
fn kinds() -> Vec<(AddrFormat, String, Option<String>, &'static str)> {
    let port = || Some(open(Naming::Ports).name().to_socket_addr().unwrap().port().to_string()); // free by now
    let of = |node: &str| format!("{node}-{}", std::process::id());
    let host = || "127.0.0.1".to_string();
    let mut kinds = vec![
        (AddrFormat::Str, of("a node"), None, "fi_shm://a node-"),
        (AddrFormat::Str, of("node"), Some("a service".into()), "fi_ns://node-"),
        (AddrFormat::Str, host(), port(), "fi_ns://127.0.0.1:"),
        (
            AddrFormat::Str,
            format!("fi_sockaddr_in://127.0.0.1:{}", port().unwrap()),
            None,
            "fi_sockaddr_in://127.",
        ),
        (AddrFormat::Str, of("fi_shm://whole"), None, "fi_shm://whole-"),
        (AddrFormat::Unspec, of("node"), Some("another".into()), "fi_ns://node-"),
        (AddrFormat::Unspec, host(), port(), "fi_sockaddr_in://127.0.0.1:"),
        (AddrFormat::SockaddrIn, host(), port(), "fi_sockaddr_in://127.0.0.1:"),
    ];
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        kinds.push((AddrFormat::SockaddrIn6, "::1".into(), port(), "fi_sockaddr_in6://[::1]:"));
    }
    kinds
}

#[test]
fn an_address_of_every_kind_survives_its_text() {
    for (format, node, service, begins) in kinds() {
        let hints = Hints::new().provider("shm").addr_format(format);
        let info = getinfo(Some(&node), service.as_deref(), GetinfoFlags::SOURCE, &hints).unwrap().remove(0);
        let mut opened = None;
        wait::until("the port, which was in use a moment ago", || {
            opened = Opening::new(Hints::new()).info(info.clone()).try_open().ok();
            opened.is_some()
        });
        let (side, text) = (opened.unwrap(), info.src_addr.as_ref().unwrap().to_string());
        assert!(text.starts_with(begins), "{format} {node} {service:?}: {text}");
        let name = side.name();
        let read: Address = text.parse().unwrap();
        assert_eq!([name.to_string(), read.to_string()], [text.clone(), text.clone()]);
        let peer = Opening::new(Hints::new()).info(Info { src_addr: None, ..info.clone() }).open();
        let number = peer.insert_address(&name);
        assert_eq!(peer.av.insert(&[read]).remove(0), Ok(number), "{text}");
        assert_eq!(peer.av.insert_service(&text, ""), Ok(number), "{text}");
        assert_eq!(peer.av.lookup(number).unwrap().to_string(), text);
        let there = getinfo(Some(&text), None, GetinfoFlags::empty(), &hints).unwrap().remove(0);
        assert_eq!((there.addr_format, there.dest_addr), (info.addr_format, Some(name)), "{text}");
        side.insert(&peer); // or it is a stranger (FI_SOURCE_ERR)
        side.receive(()).context(2).post().unwrap();
        wait::drive(&[&peer, &side], "room", || peer.out(number, ()).inject().send().ok());
        wait::drive(&[&peer, &side], "the message", || side.next_of(2)).done();
    }
}

/// Names have room for another beside them; a port is taken, in whatever format its address is.
#[test]
fn a_second_endpoint_of_an_info_with_a_port_is_refused() {
    for (format, node, service, _) in kinds() {
        let hints = Hints::new().provider("shm").addr_format(format);
        let info = getinfo(Some(&node), service.as_deref(), GetinfoFlags::SOURCE, &hints).unwrap().remove(0);
        let open = || Opening::new(Hints::new()).info(info.clone()).try_open();
        let mut first = None;
        wait::until("the port, which was in use a moment ago", || {
            first = open().ok();
            first.is_some()
        });
        let name = first.as_ref().unwrap().name().to_string();
        match open() {
            Ok(second) => assert!(second.name().to_string().starts_with(&format!("{name}:")), "{name}"),
            Err(error) => {
                assert_eq!(error.errno(), Errno::EADDRINUSE, "{name}: {error}");
                assert!(name.starts_with("fi_sockaddr_in"), "{name}");
            }
        }
    }
}

/// Two endpoints with hardly any room for unexpected messages: even short ones are announced, and kept by
/// their sender.
pub fn short_of_room(line: &mut Line, _arguments: &[String]) {
    const COUNT: usize = 64;
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    let (from, into) = (Memory::patterned(64, 3), Memory::new(64));
    let len = |number: usize| if number % 3 == 2 { 0 } else { 64 };
    for number in 0..COUNT {
        pair.post(|| pair.a.out(pair.to_b, from.slice(..len(number))).inject().send());
        pair.b.poll();
    }
    assert!(pair.a.statistic("shm_kept") > 8, "{}", pair.a.report());
    for number in 0..COUNT {
        pair.b.receive(&into).context(2).post().unwrap();
        let entry = pair.drive("a message", || pair.b.next_of(2)).done();
        assert_eq!(entry.len, len(number));
    }
    assert_eq!((pair.a.statistic("shm_corrupt"), pair.b.statistic("shm_corrupt")), (0, 0));
    line.say("done");
}

#[test]
fn empty_messages_to_a_receiver_without_room_arrive() {
    let mut child = Child::start_with("short_of_room", &[], &[("FI_UNEXPECTED_BYTES", "512")]);
    child.line.expect("done");
    child.finish();
}

#[test]
fn what_a_peer_has_withdrawn_does_not_stay_mapped() {
    const ROUNDS: usize = 1_000;
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("ofi-shm")).count()
    };
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    let (from, target) = (Memory::patterned(64, 3), Memory::library(&pair.b.domain, 4_096));
    let before = mappings();
    for _ in 0..ROUNDS {
        let region = pair.b.register(&target, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote_at(&region, 0, 64)]));
        pair.drive("a write", || pair.a.next_of(1)).done();
        region.close().unwrap();
    }
    assert!(pair.a.statistic("shm_direct_bytes") >= 64 * ROUNDS as u64, "{}", pair.a.report());
    let now = mappings();
    assert!(now < before + 200, "{before} mappings before {ROUNDS} registrations, {now} after");
}

#[test]
fn both_stores_are_tried_for_long_payloads_and_none_for_short_ones() {
    const LEN: usize = 4_096;
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    let (from, into) = (Memory::patterned(LEN, 3), Memory::new(LEN));
    let exchange = |len: usize| {
        into.fill(0);
        pair.b.receive(&into).context(2).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, from.slice(..len)).context(1).send());
        pair.drive("a message", || pair.b.next_of(2)).done();
        pair.drive("the send", || pair.a.next_of(1)).done();
        into.check(len, 3);
        pair.a.statistic("shm_streamed_bytes")
    };
    assert!((0..100).all(|_| exchange(1_000) == 0));
    let streamed: Vec<u64> = (0..100).map(|_| exchange(LEN)).collect();
    assert_eq!(streamed[0], 0, "nothing is known at first");
    if cfg!(target_arch = "x86_64") {
        assert!((1..100 * LEN as u64).contains(&streamed[99]), "{streamed:?}");
    }
}
