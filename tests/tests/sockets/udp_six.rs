//! Provider `udp` over IPv6: the cases of the conformance suite in which addresses matter.

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};

use ofi::raw::{Address, Caps, EpType, Hints};
use ofi_testkit::Kit;
use ofi_testkit::conformance::{self, Case};

struct UdpSix;

impl Kit for UdpSix {
    fn hints(&self) -> Hints {
        let loopback = Address::from(SocketAddr::from((Ipv6Addr::LOCALHOST, 0)));
        Hints::new().provider("udp").ep_type(EpType::Rdm).src_addr(loopback)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::SOURCE | Caps::DIRECTED_RECV
    }

    fn missing(&self) -> Option<String> {
        let bound = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0));
        bound.err().map(|error| format!("NOT RUN: no IPv6 on this host ({error})"))
    }
}

macro_rules! cases {
    ($($module:ident: $($case:ident),+;)+) => {
        $($(#[test]
        fn $case() {
            let case: Case = conformance::$module::$case;
            conformance::run(&UdpSix, &[], stringify!($case), case);
        })+)+
    };
}

cases! {
    av: one_vector_serves_many_endpoints, the_source_follows_removal_and_reuse;
    queue: the_source_is_told, an_unknown_source_is_an_error_with_its_address_on_request;
    connection: a_connection_carries_data_both_ways_and_then_messages, nobody_listening_refuses,
        a_listener_that_closes_refuses_what_waits,
        a_listener_that_closes_after_an_acceptance_undoes_nothing, connections_come_and_go;
    datagram: datagrams_carry_messages_and_their_source, a_datagram_to_nobody_completes,
        a_group_s_members_receive_what_is_sent_to_it;
}
