//! Connected endpoints (`ofi-verbs/connected/`): what the suite cannot ask of them, as a device has no unexpected
//! messages.

use std::net::SocketAddr;
use std::sync::Arc;

use ibv::{
    CmEvent, CmEventKind, CmId, CompletionChannel, CompletionQueue, ConnParam, EventChannel, Post,
    ProtectionDomain, QueuePairAttr, Receives, Remote, Work,
};
use ofi_testkit::connect::{Listener, connect, event_of, try_outcome};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::parse;

/// Connected endpoints, by IPv4.
pub struct ConnectedPair;

impl Kit for ConnectedPair {
    fn hints(&self) -> Hints {
        let hints = Hints::new().provider("verbs").ep_type(EpType::Msg).addr_format(AddrFormat::SockaddrIn);
        hints.mode(Mode::RX_CQ_DATA)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::RMA
    }

    fn connected_caps(&self) -> Caps {
        self.usual_caps()
    }

    fn moves_by_itself(&self) -> bool {
        true
    }
}

const ANY: FiAddr = FiAddr::UNSPEC;
const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
const LIMIT: Duration = Duration::from_secs(5);

fn kit() -> &'static dyn Kit {
    &ConnectedPair
}

fn messages_alone() -> Opening {
    kit().opening_for(kit().usual().caps(Caps::MSG))
}

fn closed() -> Side {
    kit().opening().open_disabled().unwrap()
}

fn pair() -> (Side, Side) {
    let a = closed();
    let b = connect(&a, kit().opening()).unwrap();
    (a, b)
}

/// What has become of the operation `context` of `side`.
#[track_caller]
fn end(sides: &[&Side], side: &Side, context: usize) -> Event {
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

/// What is sent behind a fence is what was read before it, through a slot or straight into its memory.
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
    // With the status of the request as `prov_errno`, as C's provider has it. What soft-RoCE has for it is not what
    // InfiniBand has.
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
    // Without the mode: accesses as they are, as from C's provider, and messages with data.
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
    // Both of them are for an application with the mode alone.
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

/// An end of connections that is no endpoint of ours.
struct Stranger {
    channel: Arc<EventChannel>,
    attr: QueuePairAttr,
    address: SocketAddr,
}

impl Stranger {
    fn new(side: &Side) -> Self {
        side.ep.enable().unwrap();
        let mut address = side.name().to_socket_addr().unwrap();
        address.set_port(0);
        let has = |context: &ibv::Context| {
            context.gids(1).unwrap_or_default().iter().any(|gid| gid.ip() == address.ip())
        };
        let context = *ibv::contexts().unwrap().iter().find(|context| has(context)).unwrap();
        let pd = ProtectionDomain::new(context).unwrap();
        let cq = CompletionQueue::new(&CompletionChannel::new(context).unwrap(), 64).unwrap();
        let attr = QueuePairAttr { pd, cq, receives: Receives::Own(8), size: 8, pieces: 1, inline: 0 };
        Self { channel: EventChannel::new().unwrap(), attr, address }
    }

    #[track_caller]
    fn event(&self, sides: &[&Side], kind: CmEventKind) -> CmEvent {
        let event = wait::drive(sides, "an event", || self.channel.next().unwrap());
        assert_eq!(event.kind, kind);
        event
    }

    /// Asks for a connection with this private data.
    fn ask(&self, to: &Address, private_data: &[u8]) -> CmId {
        let mut id = CmId::new(&self.channel).unwrap();
        id.resolve_address(None, to.to_socket_addr().unwrap(), LIMIT).unwrap();
        self.event(&[], CmEventKind::AddressResolved);
        id.resolve_route(LIMIT).unwrap();
        self.event(&[], CmEventKind::RouteResolved);
        id.create_qp(&self.attr).unwrap();
        id.connect(param(private_data)).unwrap();
        id
    }
}

fn param(private_data: &[u8]) -> ConnParam<'_> {
    ConnParam { private_data, reads: 1, retries: 7, rnr_retries: 7 }
}

#[test]
fn another_program_s_request_is_refused_by_name() {
    let side = closed();
    let listener = Listener::open(&kit().opening().first_info().unwrap()).unwrap();
    let stranger = Stranger::new(&side);
    let _id = stranger.ask(&listener.pep.name().unwrap(), &[56; 56]);
    let refused = wait::drive(&[], "a refusal", || {
        assert!(listener.eq.read().is_err(), "no request of anybody is reported");
        stranger.channel.next().unwrap()
    });
    assert_eq!(refused.kind, CmEventKind::Rejected);
    let told = String::from_utf8_lossy(&refused.private_data).into_owned();
    assert!(told.contains("private data of another program"), "{told}");
    // And whoever comes next is served.
    side.ep.connect(&listener.pep.name().unwrap(), b"next").unwrap();
    assert_eq!(listener.request(&[&side]).conn_data, b"next");
}

#[test]
fn another_program_s_acceptance_counts_as_one_without_data() {
    let side = closed();
    let stranger = Stranger::new(&side);
    let listener = CmId::new(&stranger.channel).unwrap();
    listener.bind(stranger.address).unwrap();
    listener.listen(1).unwrap();
    side.ep.connect(&listener.local_address().unwrap().into(), b"hello").unwrap();
    let request = stranger.event(&[&side], CmEventKind::Request);
    assert_eq!(request.private_data[..6], *b"\x05hello");
    let mut id = request.request.unwrap();
    id.create_qp(&stranger.attr).unwrap();
    id.accept(param(&[255; 196])).unwrap();
    assert!(event_of(&side, EventKind::Connected, &[]).conn_data.is_empty());
    assert_eq!(side.statistic("verbs_malformed"), 1);
    drop(id);
    event_of(&side, EventKind::Shutdown, &[&side]);
}

/// The kernel tells of a peer that goes before it has heard that the connection is there by a refusal, not by a
/// disconnection.
#[test]
fn a_peer_that_goes_as_soon_as_it_has_accepted_ends_the_connection() {
    let stranger = Stranger::new(&closed());
    let listener = CmId::new(&stranger.channel).unwrap();
    listener.bind(stranger.address).unwrap();
    listener.listen(1).unwrap();
    for _ in 0..50 {
        let side = closed();
        side.ep.enable().unwrap();
        side.ep.connect(&listener.local_address().unwrap().into(), &[]).unwrap();
        let mut id = stranger.event(&[&side], CmEventKind::Request).request.unwrap();
        id.create_qp(&stranger.attr).unwrap();
        id.accept(param(&[0])).unwrap();
        event_of(&side, EventKind::Connected, &[]);
        drop(id);
        event_of(&side, EventKind::Shutdown, &[&side]);
        // What the stranger's end has heard of it meanwhile.
        while stranger.channel.next().unwrap().is_some() {}
    }
}

#[test]
fn data_of_a_write_that_nobody_allowed_ends_the_connection() {
    let listener = Listener::open(&messages_alone().first_info().unwrap()).unwrap();
    let side = closed();
    let stranger = Stranger::new(&side);
    let id = stranger.ask(&listener.pep.name().unwrap(), &[0]);
    let info = *listener.request(&[]).info.unwrap();
    let accepting = messages_alone().info(info).open_disabled().unwrap();
    accepting.ep.enable().unwrap();
    accepting.receive(()).context(1).post().unwrap();
    accepting.ep.accept(&[]).unwrap();
    stranger.event(&[&accepting], CmEventKind::Established);
    event_of(&accepting, EventKind::Connected, &[]);
    // SAFETY: a write of nothing uses no memory.
    unsafe {
        id.qp().unwrap().work(1, &[], Work::Write(Remote { addr: 0, rkey: 0 }, Some(5)), Post::default())
    }
    .unwrap();
    assert_eq!(end(&[&accepting], &accepting, 1).failed().err, Errno::EIO);
    event_of(&accepting, EventKind::Shutdown, &[&accepting]);
    assert_eq!(accepting.statistic("verbs_malformed"), 1);
}

/// Connects, says so, and waits to be killed.
pub fn caller(line: &mut Line, _arguments: &[String]) {
    let side = closed();
    side.ep.connect(&parse(&line.hear()), b"from another process").unwrap();
    event_of(&side, EventKind::Connected, &[]);
    let into = Memory::new(1 << 20);
    side.receive(&into).context(1).post().unwrap();
    end(&[&side], &side, 1).done();
    into.check(1 << 20, 6);
    line.say("received");
    line.hear();
}

#[test]
fn a_peer_that_is_killed_is_a_shutdown_and_ends_what_is_outstanding() {
    let listener = Listener::open(&kit().opening().first_info().unwrap()).unwrap();
    let mut child = Child::start("caller", &[]);
    child.line.say(listener.pep.name().unwrap());
    let request = listener.request(&[]);
    assert_eq!(request.conn_data, b"from another process");
    let side = kit().opening().info(*request.info.unwrap()).open_disabled().unwrap();
    side.ep.accept(&[]).unwrap();
    event_of(&side, EventKind::Connected, &[]);
    let memory = Memory::patterned(1 << 20, 6);
    side.out(ANY, &memory).context(1).send().unwrap();
    end(&[&side], &side, 1).done();
    child.line.expect("received");
    side.receive(&memory).context(2).post().unwrap();
    side.out(ANY, &memory).context(3).send().unwrap(); // there is no receive for it
    child.kill();
    for context in [2, 3] {
        wait::drive_for(Duration::from_secs(30), &[&side], "an error", || side.next_of(context)).failed();
    }
    event_of(&side, EventKind::Shutdown, &[&side]);
    assert!(outcome_is_empty(&side), "FI_SHUTDOWN comes once");
}

fn outcome_is_empty(side: &Side) -> bool {
    wait::drive_through(Duration::from_millis(50), &[side]);
    try_outcome(side.eq()).is_none()
}
