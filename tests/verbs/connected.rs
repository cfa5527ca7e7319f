//! Connected endpoints (`ofi-verbs/connected/`): rules that the suite cannot test, because a device has no unexpected
//! messages.

use ofi_testkit::connect::{connect, event_of};
use ofi_testkit::prelude::*;

use super::ConnectedPair;

const ANY: FiAddr = FiAddr::UNSPEC;
const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

fn kit() -> &'static dyn Kit {
    &ConnectedPair
}

pub fn closed() -> TestEndpoint {
    kit().opening().open_disabled().unwrap()
}

fn pair() -> (TestEndpoint, TestEndpoint) {
    let a = closed();
    let b = connect(&a, kit().opening()).unwrap();
    (a, b)
}

/// The outcome of the operation `context` of `side`.
#[track_caller]
pub fn end(sides: &[&TestEndpoint], side: &TestEndpoint, context: usize) -> Event {
    wait::drive(sides, "the end of an operation", || side.next_of(context))
}

#[test]
fn messages_carry_4_bytes_of_data_and_any_pieces() {
    let (a, b) = pair();
    for (len, data) in
        [(0, None), (1, Some(7)), (1024, Some(u32::MAX.into())), (1025, None), (3 << 20, Some(1))]
    {
        let (from, into) = (Memory::patterned(len, 3), Memory::new(len));
        let (sent, got) =
            ((from.slice(..len / 3), from.slice(len / 3..)), (into.slice(..len / 2), into.slice(len / 2..)));
        b.receive(vec![got.0, got.1]).context(1).post().unwrap();
        let out = a.out(ANY, vec![sent.0, sent.1]).context(2);
        data.map_or_else(|| out.send(), |data| a.out(ANY, &from).context(2).data(data).send()).unwrap();
        let entry = end(&[&a, &b], &b, 1).done();
        end(&[&a, &b], &a, 2).done();
        assert_eq!((entry.len, entry.data), (len, data.unwrap_or(0)));
        assert_eq!(entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA), data.is_some());
        into.check(len, 3);
    }
    let error = a.out(ANY, ()).data(1 << 32).send().unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL, "{error}");
}

/// A fenced send carries the bytes of the read before it, whether the read used a slot or went directly into memory.
#[test]
fn a_fenced_message_follows_earlier_reads() {
    let (a, b) = pair();
    for len in [64, 100_000] {
        let (there, here, into) = (Memory::patterned(len, 6), Memory::new(len), Memory::new(len));
        let region = b.register(&there, RIGHTS).unwrap();
        b.receive(&into).context(1).post().unwrap();
        a.out(ANY, &here).context(2).read(&[remote(&region)]).unwrap();
        let fenced = || a.out(ANY, &here).context(3).msg(OpFlags::FENCE).send();
        let error = fenced().unwrap_err();
        assert_eq!(error.errno(), Errno::EAGAIN, "the read is under way: {error}");
        wait::drive(&[&a, &b], "room for the fenced send", || fenced().ok());
        for context in [2, 3] {
            end(&[&a, &b], &a, context).done();
        }
        end(&[&a, &b], &b, 1).done();
        into.check(len, 6);
    }
}

#[test]
fn injected_messages_arrive_though_their_sender_closes() {
    let (a, b) = pair();
    let (from, into) = (Memory::patterned(1024, 5), Memory::new(1024));
    for _ in 0..50 {
        b.receive(&into).context(1).post().unwrap();
        a.out(ANY, &from).inject().send().unwrap();
    }
    from.fill(9); // injected: the memory is the sender's again
    drop(a);
    for _ in 0..50 {
        end(&[&b], &b, 1).done();
    }
    into.check(1024, 5);
    event_of(&b, EventKind::Shutdown, &[&b]);
}

#[test]
fn accesses_are_the_device_s_and_a_write_s_data_uses_up_a_receive() {
    let (a, b) = pair();
    for len in [1, 1024, 1025, 1 << 20] {
        let (there, from, back) = (Memory::new(len), Memory::patterned(len, 8), Memory::new(len));
        let region = b.register(&there, RIGHTS).unwrap();
        assert!(region.key() <= u64::from(u32::MAX), "the device's");
        let counter = b.domain.open_counter(&CntrAttr::default()).unwrap();
        let counted = region.bind_counter(&counter, BindFlags::REMOTE_WRITE).unwrap_err();
        assert_eq!(counted.errno(), Errno::EOPNOTSUPP, "nobody would count: {counted}");
        a.out(ANY, &from).context(1).write(&[remote(&region)]).unwrap();
        end(&[&a], &a, 1).done();
        there.check(len, 8);
        a.out(ANY, vec![back.slice(..len / 2), back.slice(len / 2..)])
            .context(2)
            .read(&[remote(&region)])
            .unwrap();
        end(&[&a], &a, 2).done();
        back.check(len, 8);
        let untouched = Memory::patterned(16, 2);
        b.receive(&untouched).context(3).post().unwrap();
        from.fill(11);
        a.out(ANY, &from).context(4).data(0xFEED).write(&[remote(&region)]).unwrap();
        let entry = end(&[&a, &b], &b, 3).done();
        let flags = CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE | CompletionFlags::REMOTE_CQ_DATA;
        assert_eq!((entry.flags, entry.data, entry.len), (flags, 0xFEED, len));
        end(&[&a, &b], &a, 4).done();
        there.check(len, 11);
        untouched.check(16, 2);
        region.close().unwrap();
    }
}

#[test]
fn what_the_peer_s_device_refuses_ends_the_connection() {
    for closes in [true, false] {
        let (a, b) = pair();
        let (there, from) = (Memory::new(4096), Memory::new(4096));
        let region = b.register(&there, MrAccess::REMOTE_READ).unwrap();
        let target = remote(&region);
        if closes {
            region.close().unwrap();
        }
        b.receive(&there).context(9).post().unwrap();
        a.out(ANY, &from).context(1).write(&[target]).unwrap();
        let error = end(&[&a, &b], &a, 1).failed();
        assert_eq!(
            (error.err, error.prov_errno),
            (Errno::EIO, 10),
            "IBV_WC_REM_ACCESS_ERR, as C's provider has it"
        );
        event_of(&a, EventKind::Shutdown, &[&a, &b]);
        event_of(&b, EventKind::Shutdown, &[&a, &b]);
        assert_eq!(end(&[&b], &b, 9).failed().err, Errno::ECANCELED);
        assert_eq!(a.out(ANY, ()).send().unwrap_err().errno(), Errno::ESHUTDOWN);
    }
}

#[test]
fn a_message_longer_than_its_receive_is_an_error_at_both_ends() {
    let (a, b) = pair();
    let (from, into) = (Memory::new(100), Memory::patterned(100, 4));
    b.receive(into.slice(..99)).context(1).post().unwrap();
    b.receive(into.slice(..99)).context(2).post().unwrap();
    a.out(ANY, &from).context(3).send().unwrap();
    // The status of the request is `prov_errno`, as in C's provider. Soft-RoCE and InfiniBand have different ones.
    let numbers = |error: CqErrorEntry| (error.err, error.prov_errno);
    let (err, status) = numbers(end(&[&a, &b], &b, 1).failed());
    assert!(err == Errno::EIO && matches!(status, 1 | 2), "local length, or local operation: {status}");
    assert_eq!(numbers(end(&[&a, &b], &b, 2).failed()), (Errno::ECANCELED, 5), "IBV_WC_WR_FLUSH_ERR");
    let (err, status) = numbers(end(&[&a, &b], &a, 3).failed());
    assert!(err == Errno::EIO && matches!(status, 9 | 11), "remote request, or remote operation: {status}");
    let text = |number| a.tx.error_text(number).to_lowercase();
    assert!(text(9).contains("remote invalid request"), "{}", text(9));
    assert!(text(125).contains("cancel"), "{}", text(125));
    event_of(&a, EventKind::Shutdown, &[&a, &b]);
    event_of(&b, EventKind::Shutdown, &[&a, &b]);
    into.slice(99..).check_from(4, 99);
}

#[test]
fn a_sender_waits_for_receives_and_shutdown_ends_its_waiting() {
    let (a, b) = pair();
    let memory = Memory::patterned(64, 1);
    a.out(ANY, &memory).context(1).send().unwrap();
    wait::drive_through(Duration::from_millis(100), &[&a, &b]);
    assert_eq!(a.pending(), 0, "no receive, so it has not arrived");
    let into = Memory::new(64);
    b.receive(&into).context(2).post().unwrap();
    end(&[&a, &b], &b, 2).done();
    end(&[&a, &b], &a, 1).done();
    into.check(64, 1);
    a.out(ANY, &memory).context(3).send().unwrap();
    a.receive(&into).context(4).post().unwrap();
    a.ep.shutdown().unwrap();
    a.poll();
    for context in [3, 4] {
        let event = a.next_of(context).expect("ended when the call returned");
        let error = event.failed();
        assert_eq!((error.err, error.prov_errno), (Errno::ECANCELED, 5), "IBV_WC_WR_FLUSH_ERR");
    }
    event_of(&b, EventKind::Shutdown, &[&a, &b]);
}

#[test]
fn accesses_carry_data_for_applications_that_give_receives_for_it() {
    let info = kit().info(&kit().usual());
    assert_eq!((info.rx_attr.mode, info.domain_attr.cq_data_size), (Mode::RX_CQ_DATA, 4));
    // Without the mode: accesses without CQ data, as from C's provider, and messages with data.
    let hints = kit().usual().mode(Mode::empty());
    let info = kit().info(&hints);
    assert_eq!(
        (info.rx_attr.mode, info.mode, info.domain_attr.cq_data_size),
        (Mode::empty(), Mode::empty(), 0)
    );
    let info = kit().info(&hints.clone().caps(Caps::MSG));
    assert_eq!(
        (info.rx_attr.mode, info.mode, info.domain_attr.cq_data_size),
        (Mode::empty(), Mode::empty(), 4)
    );
    // Both offers require the mode.
    let hints = hints.cq_data_size(4);
    let explained = ofi::explain(&Request {
        version: Version::API,
        node: None,
        service: None,
        flags: GetinfoFlags::empty(),
        hints: Some(&hints),
    });
    let refusals = explained.unwrap().refusals;
    assert!(refusals.iter().any(|refusal| refusal.offered.contains("RX_CQ_DATA")), "{refusals:?}");
}
