//! Peers whose programs do not poll for a while, or cannot serve a request to connect, on the clock of a simulated
//! device.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};
use ofi_tests::heard::{count, listen, says};
use ofi_verbs::rc::{CmEventKind, Connection, Device, Event as CmEvent, Queues, Sizes};

use super::hints;

/// What the slowest program needs before it polls.
const SILENCE: Duration = Duration::from_secs(60);
/// More than an endpoint waits for an answer.
const LIMIT: Duration = Duration::from_secs(121);
/// More than the longest pause between two requests.
const PAUSE: Duration = Duration::from_millis(1100);

static SILENT: LazyLock<Arc<SimulatedDevice>> = LazyLock::new(|| {
    let device = SimulatedDevice::driven("silent0", Plan::default());
    ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
    device
});

/// Endpoints over that device.
struct Silent;

impl Kit for Silent {
    fn hints(&self) -> Hints {
        LazyLock::force(&SILENT);
        hints("silent0")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// Polls these sides, and no others, while the time passes. Polls take time, too.
fn through(time: Duration, sides: &[&TestEndpoint]) {
    const STEP: Duration = Duration::from_millis(500);
    let rounds = 20 / sides.len().min(20);
    let mut left = time;
    while !left.is_zero() {
        let step = left.min(STEP);
        SILENT.pass(step);
        left -= step;
        for _ in 0..rounds {
            sides.iter().for_each(|side| side.poll());
        }
    }
}

#[test]
fn a_peer_that_does_not_poll_for_a_minute_is_met() {
    let kit: &dyn Kit = &Silent;
    let pair = kit.pair();
    let (from, into) = (Memory::patterned(64, 1), Memory::new(64));
    pair.b.receive(&into).context(2).post().unwrap();
    pair.a.out(pair.to_b, &from).context(1).send().unwrap();
    through(SILENCE, &[&pair.a]);
    assert_eq!(pair.a.pending(), 0, "the send waits");
    pair.drive("the message", || pair.b.next_of(2)).done();
    pair.drive("the end of the send", || pair.a.next_of(1)).done();
    into.check(64, 1);
    assert_eq!(pair.a.statistic("verbs_connections"), 1);
}

/// The request arrives, and the requester's program polls too late to confirm the connection.
#[test]
fn a_requester_that_does_not_poll_for_a_minute_is_waited_for() {
    let kit: &dyn Kit = &Silent;
    let pair = kit.pair();
    let (from, into) = (Memory::patterned(64, 1), [Memory::new(64), Memory::new(64)]);
    pair.a.receive(&into[0]).context(1).post().unwrap();
    pair.b.receive(&into[1]).context(2).post().unwrap();
    pair.a.out(pair.to_b, &from).context(3).send().unwrap();
    through(Duration::from_secs(1), &[&pair.a]);
    pair.b.out(pair.to_a, &from).context(4).send().unwrap();
    through(SILENCE, &[&pair.b]);
    assert_eq!(pair.b.pending(), 0, "the send waits");
    for (side, context) in [(&pair.a, 1), (&pair.b, 2), (&pair.a, 3), (&pair.b, 4)] {
        pair.drive("a message", || side.next_of(context)).done();
    }
}

#[test]
fn many_senders_meet_one_silent_peer() {
    const SENDERS: usize = 300;
    let kit: &dyn Kit = &Silent;
    let silent = kit.side();
    let (from, into) = (Memory::patterned(64, 1), Memory::new(64));
    let senders: Vec<TestEndpoint> = (0..SENDERS).map(|_| kit.side()).collect();
    for sender in &senders {
        silent.receive(&into).context(2).post().unwrap();
        sender.out(sender.insert(&silent), &from).context(1).send().unwrap();
    }
    let mut all: Vec<&TestEndpoint> = senders.iter().collect();
    through(Duration::from_secs(30), &all);
    all.push(&silent);
    for _ in 0..SENDERS {
        wait::drive(&all, "a message", || silent.next_of(2)).done();
    }
    for sender in &senders {
        wait::drive(&all, "the end of a send", || sender.next_of(1)).done();
    }
}

#[test]
fn a_peer_that_stays_silent_is_given_up_and_the_log_says_what_was_awaited() {
    listen();
    let kit: &dyn Kit = &Silent;
    let pair = kit.pair();
    let from = Memory::patterned(64, 1);
    pair.a.out(pair.to_b, &from).context(1).send().unwrap();
    through(LIMIT, &[&pair.a]);
    assert_eq!(wait::drive(&[&pair.a], "the end", || pair.a.next_of(1)).failed().err, Errno::ETIMEDOUT);
    says(&["verbs:ep_ctrl<warn> gave up connecting", "FI_VERBS_CONNECT_TIMEOUT_MS", "poll"]);
    // The peer has a request of the past. A later one is served.
    let into = Memory::new(64);
    pair.b.receive(&into).context(2).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(3).send());
    pair.drive("the message", || pair.b.next_of(2)).done();
    pair.drive("its end", || pair.a.next_of(3)).done();
}

/// Listens without being an endpoint: the test answers the requests.
struct Listener {
    queues: Box<dyn Queues>,
    address: SocketAddr,
}

impl Listener {
    fn new() -> Self {
        let device = Handle(Arc::clone(&SILENT));
        let sizes = Sizes { requests: 8, receives: 8, completions: 32, inline: 0 };
        let mut queues = device.open(sizes).unwrap();
        let ip = device.addresses().into_iter().find(|ip| ip.is_ipv4()).unwrap();
        let address = queues.listen((ip, 0).into()).unwrap();
        Self { queues, address }
    }

    /// The next request of an endpoint.
    fn request(&self, side: &TestEndpoint) -> Box<dyn Connection> {
        let event = wait::drive(&[side], "a request", || self.event());
        assert_eq!(event.kind, CmEventKind::Request);
        event.request.unwrap()
    }

    fn event(&self) -> Option<CmEvent> {
        self.queues.event().unwrap()
    }
}

#[test]
fn a_request_that_could_not_be_served_is_repeated_until_it_is_or_the_time_is_over() {
    let kit: &dyn Kit = &Silent;
    let side = kit.side();
    let from = Memory::patterned(64, 1);
    let listener = Listener::new();
    let to = side.insert_address(&listener.address.into());
    // Dropped, as by an endpoint whose device holds no more queue pairs; then refused for now.
    side.out(to, &from).context(1).send().unwrap();
    drop(listener.request(&side));
    through(PAUSE, &[&side]);
    listener.request(&side).reject(b"ofv1 later: no room").unwrap();
    through(PAUSE, &[&side]);
    assert_eq!(side.pending(), 0, "the send waits");
    // A refusal for good ends it.
    listener.request(&side).reject(b"another program").unwrap();
    let error = wait::drive(&[&side], "the end", || side.next_of(1)).failed();
    assert_eq!(error.err, Errno::ECONNREFUSED);
    // Without an end of the refusals, the time limit ends it, after fewer requests than a busy peer would mind.
    side.out(to, &from).context(2).send().unwrap();
    let mut requests = 0;
    let error = loop {
        requests += usize::from(listener.event().is_some());
        through(Duration::from_millis(100), &[&side]);
        if let Some(end) = side.next_of(2) {
            break end.failed();
        }
    };
    assert_eq!(error.err, Errno::ECONNREFUSED);
    assert!((20..=140).contains(&requests), "{requests} requests");
}

#[test]
fn a_peer_where_nobody_listens_is_refused_at_once() {
    listen();
    let kit: &dyn Kit = &Silent;
    let side = kit.side();
    let listener = Listener::new();
    let to = side.insert_address(&listener.address.into());
    drop(listener);
    side.out(to, &Memory::patterned(64, 1)).context(1).send().unwrap();
    let error = wait::drive(&[&side], "the end", || side.next_of(1)).failed();
    assert_eq!(error.err, Errno::ECONNREFUSED);
    assert_eq!(count(&["the request to connect is repeated"]), 0);
}
