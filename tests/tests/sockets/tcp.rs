//! The conformance suite over the sockets of provider `tcp`. With shared memory as well: `processes/composite/mod.rs`.

use std::net::SocketAddr;

use ofi::raw::{AV_AUTH_KEY, Address, Caps, EpType, Hints};
use ofi_testkit::Kit;
use ofi_testkit::prelude::{Event, Memory, Opening, wait};

#[macro_use]
#[path = "../suites/connected.rs"]
mod connected;
#[macro_use]
#[path = "../suites/tcp.rs"]
mod skipped;

/// Reliable datagram endpoints on loopback.
struct TcpPair;

impl Kit for TcpPair {
    fn hints(&self) -> Hints {
        ofi_tests::tcp_atomics();
        let loopback = Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
        Hints::new().provider("tcp").ep_type(EpType::Rdm).src_addr(loopback)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// Connected endpoints on loopback.
struct TcpConnected;

impl Kit for TcpConnected {
    fn hints(&self) -> Hints {
        TcpPair.hints().ep_type(EpType::Msg)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::TAGGED | Caps::RMA
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

over_connected_tcp!(tcp_msg: TcpConnected, skip = [
    closing_in_the_middle_of_an_access_stops_it: "a read whose answer is under way ends with the connection (docs/tcp.md)",
    each_level_completes_at_its_step: "FI_TRANSMIT_COMPLETE needs an acknowledgement, so the peer must poll",
]);

over_tcp!(tcp: TcpPair, skip = [
    closing_in_the_middle_of_an_access_stops_it: "a read whose answer is under way ends with the connection (docs/tcp.md)",
    each_level_completes_at_its_step: "FI_TRANSMIT_COMPLETE needs an acknowledgement, so the peer must poll",
]);

/// The same with bulk connections.
struct TcpStriped;

impl Kit for TcpStriped {
    fn hints(&self) -> Hints {
        ofi_tests::tcp_bulk();
        TcpPair.hints()
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

over_tcp!(tcp_striped: TcpStriped, skip = [
    closing_in_the_middle_of_an_access_stops_it: "a read whose answer is under way ends with the connection (docs/tcp.md)",
    each_level_completes_at_its_step: "FI_TRANSMIT_COMPLETE needs an acknowledgement, so the peer must poll",
]);

/// The same with a key: TLS.
struct TcpSealed;

impl Kit for TcpSealed {
    fn hints(&self) -> Hints {
        TcpPair.hints().auth_key(*b"the conformance suite")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// Connected endpoints with a key.
struct TcpSealedConnected;

impl Kit for TcpSealedConnected {
    fn hints(&self) -> Hints {
        TcpConnected.hints().auth_key(*b"the conformance suite")
    }

    fn usual_caps(&self) -> Caps {
        TcpConnected.usual_caps()
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

over_tcp!(tcp_sealed: TcpSealed, skip = [
    authorization_keys_are_granted_or_refused_by_name: "the endpoints already have a key",
    a_vector_s_key_is_that_of_its_endpoints_and_addresses: "the endpoints already have a key",
    a_key_stays_in_its_vector_while_anything_is_of_it: "the endpoints already have a key",
    closing_in_the_middle_of_an_access_stops_it: "a read whose answer is under way ends with the connection (docs/tcp.md)",
    each_level_completes_at_its_step: "FI_TRANSMIT_COMPLETE needs an acknowledgement, so the peer must poll",
]);

/// What differs between connections that are encrypted and others: their beginning, their end, and long payloads.
mod tcp_sealed_msg {
    static KIT: &dyn ofi_testkit::Kit = &super::TcpSealedConnected;
    const SKIPPED: &[(&str, &str)] = &[];

    ofi_testkit::conformance_tests! {
        connection {
            a_connection_carries_data_both_ways_and_then_messages
            a_connected_endpoint_reads_and_writes_its_peer_s_memory
            a_rejection_is_an_error_with_its_data
            a_request_that_is_dropped_is_refused
            nobody_listening_refuses
            a_listener_that_closes_refuses_what_waits
            a_request_that_was_read_outlives_its_listener
            shutdown_follows_all_that_was_sent
            both_ends_may_shut_down_and_both_are_told_once
            shutdown_ends_what_is_outstanding
            closing_an_endpoint_shuts_its_peer_down
            a_caller_that_closes_while_it_waits_fails_the_acceptance
            one_listener_serves_many_callers_in_any_domain
            a_blocked_reader_of_events_wakes_for_a_connection
            connections_come_and_go
        }
        auth {
            a_connection_of_one_key_comes_about
            a_request_with_another_key_is_refused
        }
        rma {
            every_size_on_application_memory
            many_accesses_at_once
            both_sides_access_each_other
        }
    }
}

/// A peer that was given another of its addresses, as on a command line, gets a connection of its own.
#[test]
fn an_endpoint_of_all_addresses_is_called_by_another_of_them_after_it_called() {
    let caps = Caps::MSG | Caps::SOURCE;
    let hints = || Hints::new().provider("tcp").ep_type(EpType::Rdm).caps(caps);
    let mut info = Opening::new(hints()).first_info().expect("an info");
    info.src_addr = None;
    let everywhere = Opening::new(hints()).info(info).without_shared_memory().open();
    let at_loopback = Opening::new(TcpPair.hints().caps(caps)).without_shared_memory().open();
    let port = everywhere.name().to_socket_addr().expect("an address of IP").port();
    let there = everywhere.insert(&at_loopback);
    let back = at_loopback.insert_address(&Address::from(SocketAddr::from(([127, 0, 0, 1], port))));
    for round in 0..2 {
        for (from, to, at) in [(&everywhere, there, &at_loopback), (&at_loopback, back, &everywhere)] {
            let (sent, got) = (Memory::patterned(64, round), Memory::new(64));
            at.receive(&got).context(1).post().expect("a receive");
            from.out(to, &sent).context(2).send().expect("a send");
            wait::drive(&[from, at], "the message", || at.next_of(1)).done();
            wait::drive(&[from, at], "the send", || from.next_of(2)).done();
            got.check(64, round);
        }
    }
}

/// The peer knows it by that name: as the source of the message, and for its own operations.
#[test]
fn an_endpoint_of_all_addresses_calls_a_peer_at_loopback_from_the_address_of_its_name() {
    let caps = Caps::MSG | Caps::SOURCE;
    let hints = || Hints::new().provider("tcp").ep_type(EpType::Rdm).caps(caps);
    let mut info = Opening::new(hints()).first_info().expect("an info");
    info.src_addr = None;
    let everywhere = Opening::new(hints()).info(info).without_shared_memory().open();
    let at_loopback = Opening::new(TcpPair.hints().caps(caps)).without_shared_memory().open();
    if everywhere.name().to_socket_addr().expect("an address of IP").ip().is_loopback() {
        println!("skipped: an endpoint of all addresses, on a host with loopback alone");
        return;
    }
    let (there, back) = (everywhere.insert(&at_loopback), at_loopback.insert(&everywhere));
    for (from, to, at, source) in
        [(&everywhere, there, &at_loopback, back), (&at_loopback, back, &everywhere, there)]
    {
        let (sent, got) = (Memory::patterned(64, 3), Memory::new(64));
        at.receive(&got).context(1).post().expect("a receive");
        from.out(to, &sent).context(2).send().expect("a send");
        let event = wait::drive(&[from, at], "the message", || at.next_of(1));
        let Event::Done(_, named) = event else { panic!("a failure: {event:?}") };
        assert_eq!(named, source);
        wait::drive(&[from, at], "the send", || from.next_of(2)).done();
        got.check(64, 3);
    }
}

/// Regression test: with a key that the vector got after fi_getname, the endpoint bound the address of its name alone.
#[test]
fn an_endpoint_of_all_addresses_keeps_them_with_the_key_of_its_vector() {
    const KEY: &[u8] = b"job 7";
    for (provider, key_first) in [("tcp", true), ("tcp", false), ("udp", true), ("udp", false)] {
        let hints = || Hints::new().provider(provider).ep_type(EpType::Rdm).caps(Caps::MSG);
        let mut in_vector = hints();
        in_vector.info.domain_attr.auth_key_size = AV_AUTH_KEY;
        let mut info = Opening::new(in_vector).first_info().expect("an info");
        info.src_addr = None;
        let opening = Opening::new(hints()).info(info).without_shared_memory();
        let everywhere = opening.open_disabled().expect("an endpoint");
        if key_first {
            everywhere.av.insert_auth_key(KEY).expect("a key");
        }
        let name = everywhere.ep.name().expect("a name before enabling");
        everywhere.av.insert_auth_key(KEY).expect("the key, perhaps once more");
        everywhere.ep.enable().expect("enabling");
        assert_eq!(everywhere.name(), name);
        let mut keyed = hints();
        (keyed.info.ep_attr.auth_key_size, keyed.info.ep_attr.auth_key) = (KEY.len(), KEY.to_vec());
        let peer = Opening::new(keyed).without_shared_memory().open();
        let port = name.to_socket_addr().expect("an address of IP").port();
        let to = peer.insert_address(&Address::from(SocketAddr::from(([127, 0, 0, 1], port))));
        let (sent, got) = (Memory::patterned(64, 3), Memory::new(64));
        everywhere.receive(&got).context(1).post().expect("a receive");
        let sides = [&peer, &everywhere];
        wait::drive(&sides, "room", || peer.out(to, &sent).context(2).send().ok());
        wait::drive(&sides, "the message", || everywhere.next_of(1)).done();
        got.check(64, 3);
    }
}
