//! Connected endpoints of providers `udp` and `tcp` within one host: which connections go entirely over shared memory,
//! and which do not.

use std::net::Ipv4Addr;

use ofi_testkit::connect::{Listener, connect, event_of, outcome};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::{Naming, hints, opening, parse};

use super::nearby::{PROVIDERS, Provider, become_another_user, is_root};

const ANY: FiAddr = FiAddr::UNSPEC;
const LENGTHS: [usize; 3] = [0, 64, 300_000];

fn connected(naming: Naming) -> Opening {
    let hints = hints(naming).ep_type(EpType::Msg).caps(Caps::MSG | Caps::TAGGED | Caps::RMA);
    if naming.is_far() { Opening::new(hints).without_shared_memory() } else { Opening::new(hints) }
}

fn pair(caller: Naming, accepting: Naming) -> Pair {
    let a = connected(caller).open_disabled().unwrap();
    a.ep.enable().unwrap();
    let b = connect(&a, connected(accepting)).unwrap();
    Pair { a, b, to_b: ANY, to_a: ANY }
}

fn exchange(pair: &Pair) {
    for len in LENGTHS {
        let (from, into) = (Memory::patterned(len, 3), Memory::new(len));
        for (one, other) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
            pair.post(|| other.receive(&into).context(1).post());
            pair.post(|| one.out(ANY, &from).context(2).send());
            assert_eq!(pair.done(other).len, len);
            pair.done(one);
            into.check(len, 3);
        }
    }
}

/// The numbers of peers over shared memory, and of what was begun over sockets.
fn paths(provider: Provider, side: &TestEndpoint) -> (u64, u64) {
    (side.statistic("peers_local"), side.statistic(provider.begun))
}

/// Listens, accepts a connection, and sends each message back. Arguments: its naming, and its place, as for
/// [`super::nearby::echo`].
pub fn accept(line: &mut Line, arguments: &[String]) {
    if arguments[1] == "other-user" {
        become_another_user();
    }
    let naming = Naming::from_argument(&arguments[0]);
    let listener = Listener::open(&connected(naming).first_info().unwrap()).unwrap();
    line.say(listener.pep.name().unwrap());
    let info = *listener.request(&[]).info.unwrap();
    let side = connected(naming).info(info).open_disabled().unwrap();
    side.ep.accept(&[]).unwrap();
    event_of(&side, EventKind::Connected, &[]);
    let into = Memory::new(1 << 20);
    while side.receive(&into).context(1).post().is_ok() {
        let event = wait::drive(&[&side], "a message or the end", || side.next_of(1));
        let Event::Done(entry, _) = event else { break };
        let back = side.out(ANY, into.slice(..entry.len)).context(2);
        wait::drive(&[&side], "room", || back.send().ok());
        wait::drive(&[&side], "the answer to go", || side.next_of(2)).done();
    }
    line.say("over");
}

/// Connects to another process and exchanges messages with it. Returns [`paths`].
fn talk_to(provider: Provider, mut child: Child) -> (u64, u64) {
    let side = connected(provider.near).open_disabled().unwrap();
    side.ep.connect(&parse(&child.line.hear()), &[]).unwrap();
    event_of(&side, EventKind::Connected, &[]);
    for len in LENGTHS {
        let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
        side.receive(&into).context(1).post().unwrap();
        wait::drive(&[&side], "room", || side.out(ANY, &from).context(2).send().ok());
        wait::drive(&[&side], "the answer", || side.next_of(1)).done();
        wait::drive(&[&side], "the send", || side.next_of(2)).done();
        into.check(len, 5);
    }
    let paths = paths(provider, &side);
    side.ep.shutdown().unwrap();
    child.line.expect("over");
    child.finish();
    paths
}

#[test]
fn a_connection_within_the_host_is_shared_memory_as_a_whole() {
    for provider in PROVIDERS {
        let pair = pair(provider.near, provider.near);
        exchange(&pair);
        for side in [&pair.a, &pair.b] {
            assert_eq!(paths(provider, side), (1, 0), "{}", side.report());
            assert!(side.statistic("shm_bulk_bytes") >= 300_000, "{}", side.report());
        }
    }
}

#[test]
fn an_end_that_forbids_shared_memory_asks_over_sockets() {
    for provider in PROVIDERS {
        let pair = pair(provider.far, provider.near);
        exchange(&pair);
        assert_eq!((paths(provider, &pair.a).0, paths(provider, &pair.b).0), (0, 0));
        assert!(paths(provider, &pair.a).1 > 0, "{}", pair.a.report());
    }
}

#[test]
fn an_end_that_forbids_shared_memory_cannot_accept_a_request_over_it() {
    for Provider { near, far, .. } in PROVIDERS {
        let caller = connected(near).open_disabled().unwrap();
        let accepting = connected(far);
        let listener = Listener::open(&accepting.first_info().unwrap()).unwrap();
        caller.ep.connect(&listener.pep.name().unwrap(), &[]).unwrap();
        let info = *listener.request(&[]).info.unwrap();
        let side = accepting.info(info).open_disabled().unwrap();
        assert_eq!(side.ep.accept(&[]).unwrap_err().errno(), Errno::EOPNOTSUPP);
        assert_eq!(outcome(caller.eq(), &[&caller]).unwrap_err().err, Errno::ECONNREFUSED);
    }
}

/// Several connections of one passive endpoint, all open at the same time.
#[test]
fn both_ends_know_each_other_by_their_addresses_on_the_network() {
    for provider in PROVIDERS {
        let listener = Listener::open(&connected(provider.near).first_info().unwrap()).unwrap();
        let name = listener.pep.name().unwrap();
        let mut pairs = Vec::new();
        for _ in 0..3 {
            let caller = connected(provider.near).open_disabled().unwrap();
            caller.ep.connect(&name, &[]).unwrap();
            let info = *listener.request(&[]).info.unwrap();
            assert_eq!(
                (info.src_addr.as_ref(), info.dest_addr.clone()),
                (Some(&name), caller.ep.name().ok())
            );
            let side = connected(provider.near).info(info).open_disabled().unwrap();
            side.ep.accept(&[]).unwrap();
            event_of(&caller, EventKind::Connected, &[&side]);
            event_of(&side, EventKind::Connected, &[&caller]);
            assert_eq!(caller.ep.peer_name(), Ok(name.clone()));
            assert_eq!(side.ep.peer_name(), caller.ep.name());
            assert_eq!(side.ep.name(), Ok(name.clone()));
            pairs.push(Pair { a: caller, b: side, to_b: ANY, to_a: ANY });
        }
        for pair in &pairs {
            exchange(pair);
            assert_eq!((paths(provider, &pair.a), paths(provider, &pair.b)), ((1, 0), (1, 0)));
        }
    }
}

/// Neither end is bound to one address of the host.
#[test]
fn ends_with_all_addresses_of_the_host_meet_over_shared_memory() {
    for provider in PROVIDERS {
        let hints = || Hints::new().provider(provider.name).ep_type(EpType::Msg).caps(Caps::MSG);
        let listener = Listener::open(&Opening::new(hints()).first_info().unwrap()).unwrap();
        let mut socket = listener.pep.name().unwrap().to_socket_addr().unwrap();
        socket.set_ip(Ipv4Addr::LOCALHOST.into());
        let caller = Opening::new(hints()).open_disabled().unwrap();
        caller.ep.connect(&Address::from(socket), &[]).unwrap();
        let info = *listener.request(&[]).info.unwrap();
        let side = Opening::new(hints()).info(info).open_disabled().unwrap();
        side.ep.accept(&[]).unwrap();
        event_of(&caller, EventKind::Connected, &[&side]);
        event_of(&side, EventKind::Connected, &[&caller]);
        let pair = Pair { a: caller, b: side, to_b: ANY, to_a: ANY };
        exchange(&pair);
        assert_eq!((paths(provider, &pair.a), paths(provider, &pair.b)), ((1, 0), (1, 0)));
    }
}

#[test]
fn two_processes_connect_over_shared_memory() {
    for provider in PROVIDERS {
        let child = Child::start("accept", &[provider.near.as_str(), "here"]);
        assert_eq!(talk_to(provider, child), (1, 0));
    }
}

#[test]
fn the_setting_has_connections_go_over_sockets() {
    for provider in PROVIDERS {
        let setting = [(provider.setting, "0")];
        let child = Child::start_with("accept", &[provider.near.as_str(), "here"], &setting);
        assert_eq!(talk_to(provider, child).0, 0);
    }
}

#[test]
fn another_user_s_process_is_connected_to_over_sockets() {
    for provider in PROVIDERS.into_iter().filter(|_| is_root()) {
        let child = Child::start("accept", &[provider.near.as_str(), "other-user"]);
        assert_eq!(talk_to(provider, child).0, 0);
    }
}

/// No passive endpoint listens at its address, on either transport.
#[test]
fn an_endpoint_that_does_not_listen_refuses() {
    for Provider { near, .. } in PROVIDERS {
        let other = opening(near).open();
        let caller = connected(near).open_disabled().unwrap();
        caller.ep.connect(&other.name(), &[]).unwrap();
        let error = outcome(caller.eq(), &[&caller, &other]).unwrap_err();
        assert_eq!(error.err, Errno::ECONNREFUSED);
    }
}
