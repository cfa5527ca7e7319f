//! Connections: passive endpoints, connect, accept, reject, shutdown (fi_cm(3)). The cases ask for `FI_EP_MSG` whatever
//! the kit's type, so they run with each of its address formats.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi::raw::{Address, Caps, EpOption, EpType, Errno, EventKind, Info, OpFlags, PassiveEndpoint, WaitObj};

use crate::connect::{Listener, connect, event_of, open_eq, outcome, try_outcome};
use crate::memory::Memory;
use crate::opening::Opening;
use crate::side::{Event, TestEndpoint, remote};
use crate::{Kit, wait};

fn opening(kit: &dyn Kit) -> Opening {
    kit.opening_for(kit.usual().ep_type(EpType::Msg).caps(kit.connected_caps()))
}

fn info(kit: &dyn Kit) -> Info {
    opening(kit).first_info().expect("connected endpoints")
}

fn listener(kit: &dyn Kit) -> Listener {
    Listener::open(&info(kit)).expect("listening")
}

fn closed(kit: &dyn Kit) -> TestEndpoint {
    opening(kit).open_disabled().expect("opening an endpoint")
}

fn pair(kit: &dyn Kit) -> (TestEndpoint, TestEndpoint) {
    let caller = closed(kit);
    let accepting = connect(&caller, opening(kit)).expect("connecting");
    (caller, accepting)
}

const ANY: ofi::raw::FiAddr = ofi::raw::FiAddr::UNSPEC;

#[track_caller]
fn exchange(a: &TestEndpoint, b: &TestEndpoint, len: usize) {
    for (from, to) in [(a, b), (b, a)] {
        let (sent, got) = (Memory::patterned(len, 3), Memory::new(len));
        to.receive(&got).context(1).post().expect("posting a receive");
        wait::drive(&[a, b], "room", || from.out(ANY, &sent).context(2).send().ok());
        let entry = wait::drive(&[a, b], "the message", || to.next_of(1)).done();
        assert_eq!(entry.len, len);
        got.check(len, 3);
        wait::drive(&[a, b], "the send", || from.next_of(2)).done();
    }
}

pub fn a_connection_carries_data_both_ways_and_then_messages(kit: &dyn Kit) {
    let listener = listener(kit);
    let caller = closed(kit);
    caller.ep.connect(&listener.pep.name().expect("a name"), b"to you").expect("connecting");
    let request = listener.request(&[&caller]);
    assert_eq!(request.conn_data, b"to you");
    let info = request.info.expect("checked");
    assert_eq!(info.dest_addr, Some(caller.name()));
    let accepting = opening(kit).info(*info).open_disabled().expect("an endpoint for the request");
    accepting.ep.accept(b"and to you").expect("accepting");
    assert_eq!(event_of(&caller, EventKind::Connected, &[&accepting]).conn_data, b"and to you");
    assert!(event_of(&accepting, EventKind::Connected, &[&caller]).conn_data.is_empty());
    assert_eq!(caller.ep.peer_name().expect("a peer"), accepting.name());
    assert_eq!(accepting.ep.peer_name().expect("a peer"), caller.name());
    assert_eq!(accepting.name(), listener.pep.name().expect("a name"), "as a socket has its listener's name");
    for len in [0, 1, 4096, 100_000, 4 << 20] {
        exchange(&caller, &accepting, len);
    }
}

pub fn a_connected_endpoint_reads_and_writes_its_peer_s_memory(kit: &dyn Kit) {
    let (a, b) = pair(kit);
    let (target, source) = (Memory::new(70_000), Memory::patterned(70_000, 9));
    let access = ofi::raw::MrAccess::REMOTE_WRITE | ofi::raw::MrAccess::REMOTE_READ;
    let region = b.register(&target, access).expect("a registration");
    wait::drive(&[&a, &b], "room", || a.out(ANY, &source).context(1).write(&[remote(&region)]).ok());
    wait::drive(&[&a, &b], "the write", || a.next_of(1)).done();
    target.check(70_000, 9);
    let back = Memory::new(70_000);
    wait::drive(&[&a, &b], "room", || a.out(ANY, &back).context(2).read(&[remote(&region)]).ok());
    wait::drive(&[&a, &b], "the read", || a.next_of(2)).done();
    back.check(70_000, 9);
}

pub fn connection_data_is_cut_to_the_size_that_is_told(kit: &dyn Kit) {
    let listener = listener(kit);
    let size = listener.pep.cm_data_size();
    let caller = closed(kit);
    assert_eq!(caller.ep.option(EpOption::CmDataSize).expect("FI_OPT_CM_DATA_SIZE"), size);
    assert!(size > 0);
    let long: Vec<u8> = (0..size + 100).map(|index| index as u8).collect();
    caller.ep.connect(&listener.pep.name().expect("a name"), &long).expect("connecting");
    let request = listener.request(&[&caller]);
    assert_eq!(request.conn_data, long[..size]);
    let accepting = opening(kit).info(*request.info.expect("checked")).open_disabled().expect("an endpoint");
    accepting.ep.accept(&long).expect("accepting");
    assert_eq!(event_of(&caller, EventKind::Connected, &[&accepting]).conn_data, long[..size]);
}

pub fn a_rejection_is_an_error_with_its_data(kit: &dyn Kit) {
    let listener = listener(kit);
    let most = vec![7; listener.pep.cm_data_size().min(200)];
    for data in [&b""[..], b"not today", &most] {
        let caller = closed(kit);
        caller.ep.connect(&listener.pep.name().expect("a name"), &[]).expect("connecting");
        let info = listener.request(&[&caller]).info.expect("checked");
        let handle = info.handle.clone().expect("a request");
        listener.pep.reject(&handle, data).expect("rejecting");
        let error = outcome(caller.eq(), &[&caller]).expect_err("an error");
        assert_eq!((error.err, error.fid), (Errno::ECONNREFUSED, caller.ep.fid()));
        assert_eq!(error.err_data, data);
        assert_eq!(listener.pep.reject(&handle, &[]).unwrap_err().errno(), Errno::EALREADY);
        let late = opening(kit).info(*info).open_disabled().expect("an endpoint");
        assert_eq!(late.ep.accept(&[]).unwrap_err().errno(), Errno::EALREADY);
    }
}

pub fn a_request_that_is_dropped_is_refused(kit: &dyn Kit) {
    let listener = listener(kit);
    let caller = closed(kit);
    caller.ep.connect(&listener.pep.name().expect("a name"), &[]).expect("connecting");
    drop(listener.request(&[&caller]));
    assert_eq!(outcome(caller.eq(), &[&caller]).expect_err("an error").err, Errno::ECONNREFUSED);
}

pub fn requests_over_the_backlog_are_refused(kit: &dyn Kit) {
    let listener = listener(kit);
    assert_eq!(listener.pep.set_backlog(0).unwrap_err().errno(), Errno::EINVAL);
    listener.pep.set_backlog(2).expect("a backlog");
    let name = listener.pep.name().expect("a name");
    let callers: Vec<TestEndpoint> = (0..3).map(|_| closed(kit)).collect();
    callers.iter().for_each(|caller| caller.ep.connect(&name, &[]).expect("connecting"));
    let requests: Vec<_> = (0..2).map(|_| listener.request(&[])).collect();
    // Requests of different endpoints may arrive in any order.
    let refused = wait::drive(&[], "the refusal", || {
        assert!(try_outcome(&listener.eq).is_none(), "a third request");
        callers.iter().position(|caller| {
            try_outcome(caller.eq())
                .is_some_and(|outcome| outcome.is_err_and(|error| error.err == Errno::ECONNREFUSED))
        })
    });
    drop(requests);
    for (_, caller) in callers.iter().enumerate().filter(|&(number, _)| number != refused) {
        outcome(caller.eq(), &[]).expect_err("refused as it was dropped");
    }
    let again = closed(kit);
    again.ep.connect(&name, &[]).expect("connecting");
    listener.request(&[]);
}

pub fn nobody_listening_refuses(kit: &dyn Kit) {
    let name = {
        let listener = listener(kit);
        listener.pep.name().expect("a name")
    };
    let caller = closed(kit);
    caller.ep.connect(&name, &[]).expect("connecting begins");
    let error = outcome(caller.eq(), &[&caller]).expect_err("an error");
    assert_eq!(error.err, Errno::ECONNREFUSED);
    let again = caller.ep.connect(&name, &[]).unwrap_err();
    assert_eq!(again.errno(), Errno::EOPBADSTATE, "once in a lifetime: {again}");
}

pub fn a_listener_that_closes_refuses_what_waits(kit: &dyn Kit) {
    let listener = listener(kit);
    let caller = closed(kit);
    caller.ep.connect(&listener.pep.name().expect("a name"), &[]).expect("connecting");
    drop(listener);
    let start = Instant::now();
    assert_eq!(outcome(caller.eq(), &[&caller]).expect_err("an error").err, Errno::ECONNREFUSED);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

pub fn a_listener_that_closes_after_an_acceptance_undoes_nothing(kit: &dyn Kit) {
    for _ in 0..10 {
        let listener = listener(kit);
        let caller = closed(kit);
        caller.ep.connect(&listener.pep.name().expect("a name"), &[]).expect("connecting");
        let request = listener.request(&[&caller]);
        let accepting =
            opening(kit).info(*request.info.expect("checked")).open_disabled().expect("an endpoint");
        accepting.ep.enable().expect("enabling");
        accepting.ep.accept(&[]).expect("accepting");
        drop(listener);
        event_of(&caller, EventKind::Connected, &[&accepting]);
        event_of(&accepting, EventKind::Connected, &[&caller]);
    }
}

pub fn a_request_that_was_read_outlives_its_listener(kit: &dyn Kit) {
    for accepts in [true, false] {
        let listener = listener(kit);
        let caller = closed(kit);
        let name = listener.pep.name().expect("a name");
        caller.ep.connect(&name, &[]).expect("connecting");
        let request = listener.request(&[&caller]);
        drop(listener);
        // Allow time to notice that the passive endpoint is gone.
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end {
            assert!(try_outcome(caller.eq()).is_none(), "no outcome before the answer");
        }
        // Its name can be used at once.
        let again = Listener::open(&Info { src_addr: Some(name), ..info(kit) });
        again.expect("the name of a listener that is closed");
        if !accepts {
            drop(request);
            let error = outcome(caller.eq(), &[&caller]).expect_err("an error");
            assert_eq!((error.fid, error.err), (caller.ep.fid(), Errno::ECONNREFUSED));
            continue;
        }
        let accepting =
            opening(kit).info(*request.info.expect("checked")).open_disabled().expect("an endpoint");
        accepting.ep.accept(&[]).expect("accepting");
        event_of(&caller, EventKind::Connected, &[&accepting]);
        event_of(&accepting, EventKind::Connected, &[&caller]);
        exchange(&caller, &accepting, 100_000);
    }
}

pub fn nothing_is_sent_before_the_connection_but_receives_are_posted(kit: &dyn Kit) {
    let listener = listener(kit);
    let caller = closed(kit);
    caller.ep.enable().expect("enabling");
    let got = Memory::new(8);
    caller.receive(&got).context(5).post().expect("a receive before the connection");
    assert_eq!(caller.out(ANY, &got).send().unwrap_err().errno(), Errno::ENOTCONN);
    assert_eq!(caller.ep.peer_name().unwrap_err().errno(), Errno::ENOTCONN);
    assert_eq!(caller.ep.shutdown().unwrap_err().errno(), Errno::ENOTCONN);
    let name = listener.pep.name().expect("a name");
    caller.ep.connect(&name, &[]).expect("connecting");
    assert_eq!(caller.ep.connect(&name, &[]).unwrap_err().errno(), Errno::EALREADY);
    assert_eq!(caller.out(ANY, &got).send().unwrap_err().errno(), Errno::ENOTCONN);
    let request = listener.request(&[&caller]);
    let accepting = opening(kit).info(*request.info.expect("checked")).open_disabled().expect("an endpoint");
    accepting.ep.enable().expect("enabling");
    assert_eq!(accepting.ep.connect(&name, &[]).unwrap_err().errno(), Errno::EOPNOTSUPP);
    accepting.receive(&got).context(6).post().expect("a receive before accept");
    accepting.ep.accept(&[]).expect("accepting");
    event_of(&caller, EventKind::Connected, &[&accepting]);
    event_of(&accepting, EventKind::Connected, &[&caller]);
    assert_eq!(caller.ep.connect(&name, &[]).unwrap_err().errno(), Errno::EISCONN);
    accepting.out(ANY, &Memory::patterned(8, 1)).send().expect("sending");
    wait::drive(&[&caller, &accepting], "the message", || caller.next_of(5)).done();
    got.check(8, 1);
}

pub fn shutdown_follows_all_that_was_sent(kit: &dyn Kit) {
    let (a, b) = pair(kit);
    exchange(&a, &b, 16);
    for number in 0..20_u8 {
        let sent = Memory::patterned(100, number);
        wait::drive(&[&a], "room", || a.out(ANY, &sent).context(1).send().ok());
        wait::drive(&[&a, &b], "the send", || a.next_of(1)).done();
    }
    a.ep.shutdown().expect("shutting down");
    a.ep.shutdown().expect("twice");
    assert_eq!(a.out(ANY, &Memory::new(1)).send().unwrap_err().errno(), Errno::ESHUTDOWN);
    event_of(&b, EventKind::Shutdown, &[&a]);
    event_of(&a, EventKind::Shutdown, &[]);
    for number in 0..20_u8 {
        let got = Memory::new(100);
        let receive = b.receive(&got).context(2);
        // As fi_recv and as fi_recvmsg.
        let receive = if number % 2 == 0 { receive } else { receive.msg(OpFlags::COMPLETION) };
        receive.post().expect("a receive of what came before");
        wait::drive(&[&b], "the message", || b.next_of(2)).done();
        got.check(100, number);
    }
    assert_eq!(b.receive(&Memory::new(1)).post().unwrap_err().errno(), Errno::ESHUTDOWN);
    assert_eq!(b.out(ANY, &Memory::new(1)).send().unwrap_err().errno(), Errno::ESHUTDOWN);
    wait::drive_through(Duration::from_millis(50), &[&a, &b]);
    assert!(try_outcome(b.eq()).is_none(), "FI_SHUTDOWN comes once");
    assert!(try_outcome(a.eq()).is_none(), "at the end that shuts down too");
}

pub fn both_ends_may_shut_down_and_both_are_told_once(kit: &dyn Kit) {
    let (a, b) = pair(kit);
    for side in [&a, &b] {
        side.ep.shutdown().expect("shutting down");
    }
    for side in [&a, &b] {
        event_of(side, EventKind::Shutdown, &[]);
    }
    wait::drive_through(Duration::from_millis(50), &[&a, &b]);
    for side in [&a, &b] {
        assert!(try_outcome(side.eq()).is_none(), "FI_SHUTDOWN comes once");
    }
}

pub fn nothing_is_told_of_an_endpoint_that_was_closed(kit: &dyn Kit) {
    let (a, b) = pair(kit);
    let eq = Arc::clone(a.eq());
    b.ep.shutdown().expect("shutting down");
    a.ep.shutdown().expect("shutting down");
    drop(a);
    assert!(try_outcome(&eq).is_none(), "an event of an endpoint that is not there any more");
}

pub fn shutdown_ends_what_is_outstanding(kit: &dyn Kit) {
    let (a, b) = pair(kit);
    exchange(&a, &b, 16);
    let into = Memory::new(64);
    a.receive(&into).context(1).post().expect("posting");
    b.receive(&into).context(2).post().expect("posting");
    b.receive(&into).context(3).tag(7).post().expect("posting");
    let long = Memory::new(8 << 20);
    wait::drive(&[&a], "room", || a.out(ANY, &long).tag(1).context(4).send().ok());
    a.ep.shutdown().expect("shutting down");
    a.poll();
    for context in [1, 4] {
        let event = a.next_of(context).expect("ended when the call returned");
        assert_eq!(event.failed().err, Errno::ECANCELED);
    }
    event_of(&b, EventKind::Shutdown, &[&a, &b]);
    for context in [2, 3] {
        let event = wait::drive(&[&b], "the receive", || b.next_of(context));
        assert_eq!(event.failed().err, Errno::ECANCELED);
    }
}

pub fn closing_an_endpoint_shuts_its_peer_down(kit: &dyn Kit) {
    for exchanged in [true, false] {
        let (a, b) = pair(kit);
        if exchanged {
            exchange(&a, &b, 16);
        }
        drop(a);
        event_of(&b, EventKind::Shutdown, &[&b]);
        assert_eq!(b.out(ANY, &Memory::new(1)).send().unwrap_err().errno(), Errno::ESHUTDOWN);
    }
}

pub fn a_caller_that_closes_while_it_waits_fails_the_acceptance(kit: &dyn Kit) {
    let listener = listener(kit);
    let caller = closed(kit);
    caller.ep.connect(&listener.pep.name().expect("a name"), &[]).expect("connecting");
    let request = listener.request(&[&caller]);
    drop(caller);
    let accepting = opening(kit).info(*request.info.expect("checked")).open_disabled().expect("an endpoint");
    accepting.ep.accept(&[]).expect("accepting");
    let error = outcome(accepting.eq(), &[&accepting]).expect_err("an error");
    assert_eq!(error.fid, accepting.ep.fid());
    assert_eq!(accepting.out(ANY, &Memory::new(1)).send().unwrap_err().errno(), Errno::ESHUTDOWN);
}

pub fn one_listener_serves_many_callers_in_any_domain(kit: &dyn Kit) {
    let listener = listener(kit);
    let name = listener.pep.name().expect("a name");
    let callers: Vec<TestEndpoint> = (0..12).map(|_| closed(kit)).collect();
    callers.iter().for_each(|caller| caller.ep.connect(&name, &[]).expect("connecting"));
    let mut accepting = Vec::new();
    for _ in &callers {
        let request = listener.request(&[]);
        let opening = opening(kit).info(*request.info.expect("checked"));
        let opening = match accepting.last() {
            Some(other) if accepting.len() % 2 == 1 => opening.beside(other),
            _ => opening,
        };
        let side = opening.open_disabled().expect("an endpoint");
        side.ep.accept(&[]).expect("accepting");
        accepting.push(side);
    }
    for side in callers.iter().chain(&accepting) {
        event_of(side, EventKind::Connected, &[]);
    }
    for side in &accepting {
        let peer = side.ep.peer_name().expect("a peer");
        let caller = callers.iter().find(|caller| caller.name() == peer).expect("one of the callers");
        exchange(side, caller, 64);
    }
}

pub fn a_passive_endpoint_needs_its_queue_and_has_its_name(kit: &dyn Kit) {
    let info = info(kit);
    let fabric = ofi::open_fabric(&info).expect("a fabric");
    let eq = open_eq(&fabric).expect("an event queue");
    let open = || fabric.open_passive(&info).expect("a passive endpoint");
    let pep = open();
    assert_eq!(pep.name().unwrap_err().errno(), Errno::EOPBADSTATE);
    assert_eq!(pep.listen().unwrap_err().errno(), Errno::ENOEQ);
    pep.bind_eq(&eq).expect("binding");
    assert_eq!(pep.bind_eq(&eq).unwrap_err().errno(), Errno::EBUSY);
    pep.listen().expect("listening");
    pep.listen().expect("twice");
    let name: Address = pep.name().expect("a name");
    assert_eq!(pep.set_name(&name).unwrap_err().errno(), Errno::EOPBADSTATE);
    // A name is free once its endpoint is closed. Another process of this host may get a port that is free before the
    // case requests it again; then the case tries another one.
    let is_freed = |pep: Arc<dyn PassiveEndpoint>| {
        let name = pep.name().expect("a name");
        let second = open();
        second.bind_eq(&eq).expect("binding");
        second.set_name(&name).expect("a name to come");
        assert_eq!(second.listen().unwrap_err().errno(), Errno::EADDRINUSE);
        drop(pep);
        let listening = second.listen();
        assert!(listening.as_ref().map_or_else(|error| error.errno() == Errno::EADDRINUSE, |()| true));
        listening.is_ok_and(|()| second.name().expect("a name") == name)
    };
    let others = std::iter::repeat_with(|| {
        let pep = open();
        pep.bind_eq(&eq).expect("binding");
        pep.listen().expect("listening");
        pep
    });
    assert!(std::iter::once(pep).chain(others).take(5).any(is_freed), "no name was free again");
}

pub fn a_connected_endpoint_needs_an_event_queue_and_no_address_vector(kit: &dyn Kit) {
    let info = info(kit);
    let fabric = ofi::open_fabric(&info).expect("a fabric");
    let domain = fabric.open_domain(&info).expect("a domain");
    let ep = domain.open_endpoint(&info).expect("an endpoint");
    let cq = domain.open_cq(&ofi::raw::CqAttr::default()).expect("a queue");
    ep.bind_cq(&cq, ofi::raw::BindFlags::TRANSMIT | ofi::raw::BindFlags::RECV).expect("binding");
    let av = domain.open_av(&ofi::raw::AvAttr::default()).expect("an address vector");
    assert_eq!(ep.bind_av(&av).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(ep.enable().unwrap_err().errno(), Errno::ENOEQ);
    let eq = open_eq(&fabric).expect("an event queue");
    ep.bind_eq(&eq).expect("binding");
    assert_eq!(ep.bind_eq(&eq).unwrap_err().errno(), Errno::EBUSY);
    ep.enable().expect("enabling");
    assert_eq!(ep.accept(&[]).unwrap_err().errno(), Errno::EOPNOTSUPP);
}

pub fn a_connected_endpoint_without_an_event_queue_has_its_domain_s(kit: &dyn Kit) {
    let listener = Listener::open(&info(kit)).expect("listening");
    let info = info(kit);
    let domain = listener.fabric.open_domain(&info).expect("a domain");
    let cq = domain.open_cq(&ofi::raw::CqAttr::default()).expect("a queue");
    let (general, own) =
        (open_eq(&listener.fabric).expect("a queue"), open_eq(&listener.fabric).expect("a queue"));
    domain.bind_eq(&general, ofi::raw::BindFlags::empty()).expect("binding");
    for eq in [&general, &own] {
        let ep = domain.open_endpoint(&info).expect("an endpoint");
        ep.bind_cq(&cq, ofi::raw::BindFlags::TRANSMIT | ofi::raw::BindFlags::RECV).expect("binding");
        if std::ptr::eq(eq, &raw const own) {
            ep.bind_eq(eq).expect("binding");
        }
        ep.connect(&listener.pep.name().expect("a name"), &[]).expect("connecting");
        let request = listener.request(&[]).info.expect("an info");
        listener.pep.reject(&request.handle.expect("a handle"), b"no").expect("refusing");
        let error = outcome(eq, &[]).expect_err("refused");
        assert_eq!((error.fid, error.err), (ep.fid(), Errno::ECONNREFUSED));
    }
}

pub fn connection_calls_are_for_connected_endpoints(kit: &dyn Kit) {
    let hints = kit.hints().ep_type(EpType::Rdm).caps(Caps::MSG);
    let Ok(infos) = kit.getinfo(&hints) else { return };
    let info = &infos[0];
    let side = kit.opening_for(hints).open();
    for error in [side.ep.connect(&side.name(), &[]), side.ep.accept(&[]), side.ep.shutdown()] {
        assert_eq!(error.unwrap_err().errno(), Errno::EOPNOTSUPP);
    }
    assert_eq!(side.fabric.open_passive(info).expect_err("refused").errno(), Errno::EINVAL);
}

pub fn a_blocked_reader_of_events_wakes_for_a_connection(kit: &dyn Kit) {
    let listener = listener(kit);
    let name = listener.pep.name().expect("a name");
    let opening_here = opening(kit).wait_obj(WaitObj::Unspec);
    let bound = Some(Duration::from_secs(10));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let request = listener.eq.read_wait(bound).expect("a request");
            assert_eq!(request.kind, EventKind::ConnReq);
            let info = *request.info.expect("an info");
            let side = opening(kit).info(info).open_disabled().expect("an endpoint");
            side.ep.accept(&[]).expect("accepting");
            let connected = side.eq().read_wait(bound).expect("an event");
            assert_eq!(connected.kind, EventKind::Connected);
            let over = side.eq().read_wait(bound).expect("an event");
            assert_eq!(over.kind, EventKind::Shutdown);
        });
        std::thread::sleep(Duration::from_millis(20));
        let caller = opening_here.open_disabled().expect("an endpoint");
        caller.ep.connect(&name, &[]).expect("connecting");
        assert_eq!(caller.eq().read_wait(bound).expect("an event").kind, EventKind::Connected);
        std::thread::sleep(Duration::from_millis(20));
        caller.ep.shutdown().expect("shutting down");
        while !server.is_finished() {
            caller.poll();
            std::thread::yield_now();
        }
    });
}

pub fn connections_come_and_go(kit: &dyn Kit) {
    let listener = listener(kit);
    let name = listener.pep.name().expect("a name");
    for round in 0..30 {
        let caller = closed(kit);
        caller.ep.connect(&name, &[round]).expect("connecting");
        let request = listener.request(&[&caller]);
        assert_eq!(request.conn_data, [round]);
        let accepting =
            opening(kit).info(*request.info.expect("checked")).open_disabled().expect("an endpoint");
        accepting.ep.accept(&[]).expect("accepting");
        event_of(&caller, EventKind::Connected, &[&accepting]);
        event_of(&accepting, EventKind::Connected, &[&caller]);
        if round % 3 != 0 {
            let sent = Memory::patterned(32, round);
            accepting.receive(&Memory::new(32)).context(1).post().expect("posting");
            wait::drive(&[&caller], "room", || caller.out(ANY, &sent).send().ok());
            let event = wait::drive(&[&caller, &accepting], "the message", || accepting.next_of(1));
            assert!(matches!(event, Event::Done(..)), "{event:?}");
        }
        if round % 2 == 0 {
            drop(caller);
            event_of(&accepting, EventKind::Shutdown, &[]);
        } else {
            accepting.ep.shutdown().expect("shutting down");
            event_of(&caller, EventKind::Shutdown, &[&accepting]);
        }
    }
}
