//! Connected endpoints on a real device, with peers of other programs and peers that are killed.

use std::net::SocketAddr;
use std::sync::Arc;

use ibv::{
    CmEvent, CmEventKind, CmId, CompletionChannel, CompletionQueue, ConnParam, EventChannel, Post,
    ProtectionDomain, QueuePairAttr, Receives, Remote, Work,
};
use ofi_testkit::connect::{Listener, event_of, try_outcome};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::parse;

use super::ConnectedPair;
use super::connected::{closed, end};

const ANY: FiAddr = FiAddr::UNSPEC;
const LIMIT: Duration = Duration::from_secs(5);

fn kit() -> &'static dyn Kit {
    &ConnectedPair
}

fn messages_alone() -> Opening {
    kit().opening_for(kit().usual().caps(Caps::MSG))
}

/// A peer that is no endpoint of this library.
struct Stranger {
    channel: Arc<EventChannel>,
    attr: QueuePairAttr,
    address: SocketAddr,
}

impl Stranger {
    fn new(side: &TestEndpoint) -> Self {
        side.ep.enable().unwrap();
        let mut address = side.name().to_socket_addr().unwrap();
        address.set_port(0);
        let has = |context: &ibv::Context| {
            context.gids(1).unwrap_or_default().iter().any(|gid| gid.ip() == address.ip())
        };
        let context = *ibv::contexts().unwrap().iter().find(|context| has(context)).unwrap();
        let pd = ProtectionDomain::new(context).unwrap();
        let cq = CompletionQueue::new(&CompletionChannel::new(context).unwrap(), 64).unwrap();
        let receives = Receives::Own(8);
        let attr = QueuePairAttr { pd, cq, receives, size: 8, pieces: 1, receive_pieces: 1, inline: 0 };
        Self { channel: EventChannel::new().unwrap(), attr, address }
    }

    #[track_caller]
    fn event(&self, sides: &[&TestEndpoint], kind: CmEventKind) -> CmEvent {
        let event = wait::drive(sides, "an event", || self.channel.next().unwrap());
        assert_eq!(event.kind, kind);
        event
    }

    /// Requests a connection with this private data.
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
    // The next requester is served.
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

/// Another process's end of a connection sees the numbers of retries of its environment.
pub fn asker(line: &mut Line, _: &[String]) {
    let side = closed();
    let stranger = Stranger::new(&side);
    let listener = CmId::new(&stranger.channel).unwrap();
    listener.bind(stranger.address).unwrap();
    listener.listen(1).unwrap();
    side.ep.connect(&listener.local_address().unwrap().into(), b"").unwrap();
    line.say(format!("{:?}", stranger.event(&[&side], CmEventKind::Request).retries));
}

#[test]
fn a_request_has_the_retries_that_are_set() {
    let set = [("FI_VERBS_RETRY_COUNT", "3"), ("FI_VERBS_RNR_RETRY_COUNT", "5")];
    for (environment, wanted) in [(&[][..], "[6, 7]"), (&set, "[3, 5]")] {
        let mut child = Child::start_with("asker", &[], environment);
        child.line.expect(wanted);
        child.finish();
    }
}

/// If a peer disconnects before it learns that the connection is established, the kernel reports a rejection, not a
/// disconnect.
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
        // Drain the stranger's events.
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

/// Connects, reports it, and waits to be killed.
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

fn outcome_is_empty(side: &TestEndpoint) -> bool {
    wait::drive_through(Duration::from_millis(50), &[side]);
    try_outcome(side.eq()).is_none()
}
