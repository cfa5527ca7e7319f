//! The state machine alone: every packet in every state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi_api::{Address, EqAttr, Errno, EventKind, EventQueue, Fid};
use proptest::prelude::*;

use super::packet::{Kind, Packet};
use super::{Connection, Ended};
use crate::eq::EqCore;
use crate::transport::Reaction;

fn address(name: &str) -> Address {
    Address::from_text(&format!("fi_test://{name}"))
}

/// A connection that asked `listener`, its queue, and its cookie.
fn calling(time: Duration) -> (Connection, Arc<EqCore>, u64) {
    let eq = EqCore::open(&EqAttr::default()).unwrap();
    let mut connection = Connection::new(Fid(3), None);
    connection.bind(Arc::clone(&eq)).unwrap();
    let packet = connection.connect(address("listener"), b"data", Instant::now() + time).unwrap();
    let packet = Packet::parse(&packet).unwrap();
    assert_eq!((packet.kind, packet.data), (Kind::Request, &b"data"[..]));
    (connection, eq, packet.cookie)
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn an_acceptance_by_anybody_who_knows_the_cookie_connects() {
    let (mut connection, eq, cookie) = calling(LONG);
    let forged = Packet::new(Kind::Accept, cookie ^ 1, b"").encode();
    assert_eq!(connection.packet(&address("forger"), &forged), (Reaction::Nothing, Ended::No));
    assert_eq!(connection.packet(&address("forger"), &forged[1..]), (Reaction::Nothing, Ended::No));
    assert_eq!(connection.refused(), 2);
    assert_eq!(connection.peer().unwrap_err().errno(), Errno::ENOTCONN);
    let accept = Packet::new(Kind::Accept, cookie, b"yes").encode();
    let (reaction, ended) = connection.packet(&address("peer"), &accept);
    let Reaction::Join(confirm) = reaction else { panic!("{reaction:?}") };
    assert_eq!(ended, Ended::No);
    assert_eq!(Packet::parse(&confirm).unwrap().kind, Kind::Confirm);
    assert_eq!(connection.peer().unwrap(), 0);
    assert_eq!(connection.peer_name().unwrap(), address("listener"), "whom it called");
    let event = eq.read().unwrap();
    assert_eq!((event.kind, event.conn_data), (EventKind::Connected, b"yes".to_vec()));
}

#[test]
fn only_the_one_that_was_asked_can_reject() {
    let (mut connection, eq, cookie) = calling(LONG);
    let reject = Packet { kind: Kind::Reject, cookie, errno: 111, data: b"no" }.encode();
    assert_eq!(connection.packet(&address("other"), &reject), (Reaction::Nothing, Ended::No));
    assert_eq!(connection.packet(&address("listener"), &reject), (Reaction::Nothing, Ended::Now));
    assert_eq!(connection.refused(), 1, "the one of whoever was not asked");
    let error = eq.read_error().unwrap();
    assert_eq!((error.err, error.err_data), (Errno::ECONNREFUSED, b"no".to_vec()));
    assert_eq!(connection.peer().unwrap_err().errno(), Errno::ESHUTDOWN);
}

#[test]
fn a_connection_that_nobody_answers_times_out() {
    let (mut connection, eq, cookie) = calling(Duration::from_millis(10));
    assert!(connection.deadline().is_some());
    assert_eq!(connection.tick(), Ended::No);
    std::thread::sleep(Duration::from_millis(15));
    assert_eq!(connection.tick(), Ended::Now);
    assert_eq!(eq.read_error().unwrap().err, Errno::ETIMEDOUT);
    assert_eq!((connection.tick(), connection.deadline()), (Ended::No, None));
    // An acceptance that comes too late is told so.
    let accept = Packet::new(Kind::Accept, cookie, b"").encode();
    let (reaction, _) = connection.packet(&address("peer"), &accept);
    let Reaction::Reply(reply) = reaction else { panic!("{reaction:?}") };
    assert_eq!(Packet::parse(&reply).unwrap().kind, Kind::Reject);
}

#[test]
fn a_loss_of_the_peer_is_told_once() {
    let (mut connection, eq, cookie) = calling(LONG);
    let accept = Packet::new(Kind::Accept, cookie, b"").encode();
    let _ = connection.packet(&address("peer"), &accept);
    assert_eq!(eq.read().unwrap().kind, EventKind::Connected);
    assert_eq!(connection.lost(&address("listener"), Errno::ECONNREFUSED), Ended::No);
    assert_eq!(connection.lost(&address("peer"), Errno::ECONNREFUSED), Ended::Now);
    assert_eq!(connection.gone(Errno::ECONNRESET), Ended::No);
    assert_eq!(eq.read().unwrap().kind, EventKind::Shutdown);
    assert!(eq.read().unwrap_err().is_again());
    assert_eq!(connection.shutdown().unwrap(), None);
}

#[test]
fn a_passive_endpoint_that_goes_after_it_granted_does_not_undo_the_acceptance() {
    let (mut connection, eq, cookie) = calling(LONG);
    let granted = Packet::new(Kind::Granted, cookie, b"").encode();
    assert_eq!(connection.packet(&address("other"), &granted), (Reaction::Nothing, Ended::No));
    assert_eq!(connection.refused(), 1, "only whoever was asked can say so");
    assert_eq!(connection.packet(&address("listener"), &granted), (Reaction::Nothing, Ended::No));
    assert_eq!(connection.lost(&address("listener"), Errno::ECONNREFUSED), Ended::No);
    assert!(connection.deadline().is_some(), "it still has an end");
    let accept = Packet::new(Kind::Accept, cookie, b"").encode();
    assert!(matches!(connection.packet(&address("peer"), &accept).0, Reaction::Join(_)));
    assert_eq!(connection.packet(&address("listener"), &granted), (Reaction::Nothing, Ended::No));
    assert_eq!((eq.read().unwrap().kind, connection.refused()), (EventKind::Connected, 1));
}

#[test]
fn a_refusal_comes_from_elsewhere_once_that_was_granted() {
    let (mut connection, eq, cookie) = calling(LONG);
    let granted = Packet::new(Kind::Granted, cookie, b"").encode();
    assert_eq!(connection.packet(&address("listener"), &granted), (Reaction::Nothing, Ended::No));
    let reject = |cookie| Packet { kind: Kind::Reject, cookie, errno: 111, data: b"" }.encode();
    assert_eq!(connection.packet(&address("other"), &reject(!cookie)), (Reaction::Nothing, Ended::No));
    assert_eq!(connection.packet(&address("other"), &reject(cookie)), (Reaction::Nothing, Ended::Now));
    assert_eq!(eq.read_error().unwrap().err, Errno::ECONNREFUSED);
}

proptest! {
    /// For any packets in any order: at most one outcome, at most one end, and no return to an earlier state.
    #[test]
    fn packets_of_any_kind_and_origin_end_a_connection_once(
        steps in prop::collection::vec((0u16..8, 0usize..3, any::<bool>()), 0..20)
    ) {
        let (mut connection, eq, cookie) = calling(LONG);
        let names = ["listener", "peer", "other"].map(address);
        let mut ends = 0;
        for (kind, from, right) in steps {
            let cookie = if right { cookie } else { !cookie };
            let (reaction, ended) = match kind {
                6 => (Reaction::Nothing, connection.gone(Errno::ECONNRESET)),
                7 => (Reaction::Nothing, connection.lost(&names[from], Errno::ECONNREFUSED)),
                kind => {
                    let kinds = [
                        Kind::Request,
                        Kind::Accept,
                        Kind::Confirm,
                        Kind::Reject,
                        Kind::Shutdown,
                        Kind::Granted,
                    ];
                    let kind = kinds[usize::from(kind)];
                    let errno = if kind == Kind::Reject { 111 } else { 0 };
                    let bytes = Packet { kind, cookie, errno, data: &[] }.encode();
                    connection.packet(&names[from], &bytes)
                }
            };
            if !right {
                prop_assert!(kind >= 6 || reaction == Reaction::Nothing);
            }
            ends += usize::from(ended == Ended::Now);
            prop_assert_eq!(connection.is_over(), ends == 1);
        }
        let (mut connected, mut over) = (0, 0);
        loop {
            match eq.read() {
                Ok(event) if event.kind == EventKind::Connected => connected += 1,
                Ok(_) => over += 1,
                Err(error) if error.is_again() => break,
                Err(_) => {
                    eq.read_error().unwrap();
                    over += 1;
                }
            }
        }
        prop_assert!(connected <= 1 && over == ends && ends <= 1);
    }
}
