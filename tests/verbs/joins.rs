//! Joins of multicast groups that the network of a simulated device answers late, refuses, or does not answer.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ofi::raw::{BindFlags, EqErrorEntry, EventQueue, Multicast};
use ofi_testkit::connect::{event, open_eq, outcome, try_outcome};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_testkit::rc::{Plan, SimulatedDevice};

use super::{add, hints};

const LEN: usize = 64;
const GROUP: u8 = 1;
const BOTH: BindFlags = BindFlags::empty();

/// A device whose network answers joins only on request.
struct Silent(&'static str, Arc<SimulatedDevice>);

impl Silent {
    fn new(name: &'static str) -> Self {
        let device = SimulatedDevice::new(name, Plan::default());
        device.hold_joins(true);
        add(&device);
        Self(name, device)
    }

    fn member(&self) -> Member {
        self.member_with(|opening| opening)
    }

    fn member_with(&self, change: impl Fn(Opening) -> Opening) -> Member {
        let hints = hints(self.0).caps(Caps::MSG | Caps::SOURCE | Caps::MULTICAST);
        let side = change(Opening::new(hints)).open_disabled().expect("an endpoint");
        let eq = open_eq(&side.fabric).unwrap();
        side.ep.bind_eq(&eq).unwrap();
        side.ep.enable().unwrap();
        Member { side, eq }
    }

    /// Answers the only pending join of the group.
    #[track_caller]
    fn answer(&self, number: u8, answer: Result<(), i32>) {
        assert_eq!(self.1.answer_join(ip(number), answer), 1, "joins of group {number} that wait");
    }
}

/// An endpoint with an event queue.
struct Member {
    side: TestEndpoint,
    eq: Arc<dyn EventQueue>,
}

fn ip(number: u8) -> IpAddr {
    Ipv4Addr::new(239, 192, 80, number).into()
}

fn group(number: u8) -> Address {
    SocketAddr::new(ip(number), 0).into()
}

impl Member {
    /// Starts to join the group with this number, which is also the join's context.
    #[track_caller]
    fn join(&self, number: u8) -> Multicast {
        self.try_join(number, BOTH).expect("joining")
    }

    fn try_join(&self, number: u8, flags: BindFlags) -> Result<Multicast, Errno> {
        let joined = self.side.ep.join_multicast(&group(number), flags, Context(number.into()));
        joined.map_err(|error| error.errno())
    }

    /// The completion of the join with this number, which needs no other call.
    #[track_caller]
    fn joined(&self, number: u8, group: &Multicast) {
        let event = event(&self.eq, &[]);
        let found = (event.kind, event.fid, event.context);
        assert_eq!(found, (EventKind::JoinComplete, group.fid(), Context(number.into())));
    }

    #[track_caller]
    fn refused(&self, number: u8, group: &Multicast, errno: Errno) {
        let error = outcome(&self.eq, &[]).expect_err("an error");
        assert_eq!(
            error,
            EqErrorEntry { context: Context(number.into()), ..EqErrorEntry::new(group.fid(), errno) }
        );
    }

    /// Nothing more is reported for some time.
    #[track_caller]
    fn hears_nothing(&self) {
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end {
            assert!(try_outcome(&self.eq).is_none(), "an event");
        }
    }

    /// The number of joined groups, and of unanswered joins.
    fn groups(&self) -> [u64; 2] {
        ["verbs_groups", "verbs_joins_now"].map(|name| self.side.statistic(name))
    }

    fn send(&self, to: FiAddr, from: &Memory) -> Option<Errno> {
        self.side.out(to, from).context(2).send().err().map(|error| error.errno())
    }

    /// Sends a datagram with this number, and receives it at `other`, which skips others: its own datagrams to a group
    /// arrive too.
    #[track_caller]
    fn tells(&self, to: FiAddr, other: &Self, number: u8) {
        let (from, into) = (Memory::patterned(LEN, number), Memory::new(LEN));
        let post = || other.side.receive(&into).context(1).post().unwrap();
        post();
        self.side.out(to, &from).context(2).data(number.into()).send().expect("sending");
        let sides = [&self.side, &other.side];
        while wait::drive(&sides, "a datagram", || other.side.next_of(1)).done().data != u64::from(number) {
            post();
        }
        into.check(LEN, number);
        wait::drive(&sides, "its end", || self.side.next_of(2)).done();
    }
}

#[test]
fn an_endpoint_sends_and_receives_while_a_join_waits_for_the_network() {
    let network = Silent::new("joins0");
    let (a, b) = (network.member(), network.member());
    let (to_b, to_a) = (a.side.insert(&b.side), b.side.insert(&a.side));
    let joined = a.join(GROUP);
    assert_eq!(a.groups(), [0, 1]);
    for number in 0..50 {
        a.tells(to_b, &b, number);
        b.tells(to_a, &a, number);
        assert!(try_outcome(&a.eq).is_none(), "nobody has answered");
        assert_eq!(a.send(joined.addr(), &Memory::new(LEN)), Some(Errno::EAGAIN));
    }
    assert_eq!(a.try_join(GROUP, BOTH).err(), Some(Errno::EALREADY), "it is being joined");
    network.answer(GROUP, Ok(()));
    a.joined(GROUP, &joined);
    a.hears_nothing();
    assert_eq!(a.groups(), [1, 0]);
    // The other joins while the first one sends and receives.
    let also = b.join(GROUP);
    network.answer(GROUP, Ok(()));
    b.joined(GROUP, &also);
    a.tells(joined.addr(), &b, 1);
    b.tells(also.addr(), &a, 2);
    a.tells(to_b, &b, 3);
}

/// Reading the completion queue advances the join too, which is enough for a sender that retries refused sends.
#[test]
fn a_sender_that_tries_again_sends_when_the_network_has_answered() {
    let network = Silent::new("joins1");
    let a = network.member();
    let joined = a.try_join(GROUP, BindFlags::SEND).unwrap();
    let from = Memory::new(LEN);
    let mut tries = 0;
    wait::drive(&[&a.side], "room", || {
        tries += 1;
        if tries == 100 {
            network.answer(GROUP, Ok(()));
        }
        let refused = a.send(joined.addr(), &from);
        assert!(matches!(refused, None | Some(Errno::EAGAIN)), "{refused:?}");
        refused.is_none().then_some(())
    });
    assert!(tries > 100, "it was sent before the network had answered");
    a.joined(GROUP, &joined);
    wait::drive(&[&a.side], "its end", || a.side.next_of(2)).done();
}

#[test]
fn a_refused_join_is_an_error_event_and_its_group_is_of_no_use() {
    let network = Silent::new("joins2");
    let (a, b) = (network.member(), network.member());
    let refused = a.join(GROUP);
    network.answer(GROUP, Err(libc::EACCES));
    a.refused(GROUP, &refused, Errno::EACCES);
    a.hears_nothing();
    assert_eq!((a.groups(), network.1.joins()), ([0, 0], 0));
    assert_eq!(a.send(refused.addr(), &Memory::new(LEN)), Some(Errno::EADDRNOTAVAIL));
    // The same group again, while the first handle exists: the refused join does not leave the group.
    let again = a.join(GROUP);
    assert_eq!(again.addr(), refused.addr(), "the group's address");
    drop(refused);
    assert_eq!(a.groups(), [0, 1]);
    network.answer(GROUP, Ok(()));
    a.joined(GROUP, &again);
    let also = b.join(GROUP);
    network.answer(GROUP, Ok(()));
    b.joined(GROUP, &also);
    a.tells(again.addr(), &b, 1);
    b.tells(also.addr(), &a, 2);
    drop(again);
    assert_eq!(a.send(also.addr(), &Memory::new(LEN)), Some(Errno::EADDRNOTAVAIL), "it has left");
}

/// A child with its own timeout.
pub fn unanswered(line: &mut Line, _: &[String]) {
    let network = Silent::new("joins3");
    let (sleeper, other) = (network.member(), network.member());
    let limit = Duration::from_millis(300); // as in the environment
    let begun = Instant::now();
    let joined = sleeper.join(GROUP);
    let error = sleeper.eq.read_wait(Some(wait::BOUND)).expect_err("nobody answers");
    let slept = begun.elapsed();
    assert_eq!(error.errno(), Errno::EAVAIL, "after {slept:?}");
    assert!(slept >= limit && slept < Duration::from_secs(5), "{slept:?}, and the default is 5 s");
    sleeper.refused(GROUP, &joined, Errno::ETIMEDOUT);
    assert_eq!(sleeper.send(joined.addr(), &Memory::new(LEN)), Some(Errno::EADDRNOTAVAIL));
    // An endpoint that reads only its completion queue.
    let begun = Instant::now();
    let joined = other.join(GROUP);
    wait::drive(&[&other.side], "the end", || (other.groups() == [0, 0]).then_some(()));
    assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());
    other.refused(GROUP, &joined, Errno::ETIMEDOUT);
    // A late answer is ignored, and the group can be joined again.
    assert_eq!((network.1.joins(), network.1.answer_join(ip(GROUP), Ok(()))), (0, 0));
    network.1.hold_joins(false);
    let again = sleeper.join(GROUP);
    sleeper.joined(GROUP, &again);
    line.say("in time");
}

#[test]
fn a_join_that_nobody_answers_ends_in_time() {
    let mut child = Child::start_with("unanswered", &[], &[("FI_VERBS_RESOLVE_TIMEOUT_MS", "300")]);
    child.line.expect("in time");
    child.finish();
}

#[test]
fn a_group_is_left_before_the_network_has_answered() {
    let network = Silent::new("joins4");
    let a = network.member();
    drop(a.join(GROUP));
    assert_eq!((a.groups(), network.1.joins()), ([0, 0], 0));
    assert_eq!(network.1.answer_join(ip(GROUP), Ok(())), 0, "nobody waits for it");
    a.hears_nothing();
    // The join is answered, but its event is unread.
    let joined = a.join(GROUP);
    network.answer(GROUP, Ok(()));
    wait::drive(&[&a.side], "the end", || (a.groups() == [1, 0]).then_some(()));
    drop(joined);
    a.hears_nothing();
    assert_eq!((a.groups(), network.1.joins()), ([0, 0], 0));
    let joined = a.join(GROUP);
    network.answer(GROUP, Ok(()));
    a.joined(GROUP, &joined);
}

#[test]
fn an_endpoint_is_closed_while_joins_wait_for_the_network() {
    let network = Silent::new("joins5");
    let Member { side, eq } = network.member();
    let join = |number| side.ep.join_multicast(&group(number), BOTH, Context(1)).unwrap();
    let groups = [join(1), join(2)];
    network.answer(2, Ok(()));
    event(&eq, &[]);
    assert_eq!(network.1.joins(), 2);
    drop(side);
    assert_eq!(network.1.joins(), 0, "the endpoint has left both");
    let quiet = || {
        assert!(try_outcome(&eq).is_none(), "an event of an endpoint that is closed");
        eq.trywait().unwrap();
        !wait::readable(eq.wait_fd().unwrap(), Duration::from_millis(20))
    };
    assert!(quiet());
    drop(groups);
    assert!(quiet());
}

#[test]
fn two_joins_wait_at_once_and_end_each_by_itself() {
    let network = Silent::new("joins6");
    let (a, b) = (network.member(), network.member());
    let groups = [1, 2, 3].map(|number| a.join(number));
    assert_eq!(a.groups(), [0, 3]);
    assert!(groups[0].addr() != groups[1].addr() && groups[0].fid() != groups[1].fid());
    network.answer(2, Ok(()));
    a.joined(2, &groups[1]);
    assert_eq!(a.groups(), [1, 2]);
    let also = b.join(2);
    network.answer(2, Ok(()));
    b.joined(2, &also);
    a.tells(groups[1].addr(), &b, 1);
    assert_eq!(a.send(groups[0].addr(), &Memory::new(LEN)), Some(Errno::EAGAIN));
    network.answer(1, Err(libc::ENOMEM));
    a.refused(1, &groups[0], Errno::ENOMEM);
    network.answer(3, Ok(()));
    a.joined(3, &groups[2]);
    assert_eq!(a.groups(), [2, 0]);
    a.hears_nothing();
}

/// A group is joined for sending and for both, and left in one of the ways.
#[test]
fn a_group_that_is_joined_in_two_ways_is_sent_to_until_both_are_left() {
    let network = Silent::new("joins7");
    network.1.hold_joins(false);
    let (a, b) = (network.member(), network.member());
    let (both, also) = (a.join(GROUP), b.join(GROUP));
    a.joined(GROUP, &both);
    b.joined(GROUP, &also);
    network.1.hold_joins(true);
    let sends = a.try_join(GROUP, BindFlags::SEND).unwrap();
    a.tells(both.addr(), &b, 1);
    network.answer(GROUP, Ok(()));
    a.joined(GROUP, &sends);
    drop(both);
    a.tells(sends.addr(), &b, 2);
    let received = |side: &TestEndpoint| side.statistic("verbs_rx_datagrams");
    let before = received(&a.side);
    b.tells(also.addr(), &b, 3); // to itself: the simulated network returns what a member sends
    wait::drive_through(Duration::from_millis(20), &[&a.side]);
    assert_eq!(received(&a.side), before, "it has left the group as a receiver");
    drop(sends);
    assert_eq!(a.send(also.addr(), &Memory::new(LEN)), Some(Errno::EADDRNOTAVAIL));
}

/// A thread that sleeps at the event queue is woken by the network's answer, and by nothing else once the join is over.
#[test]
fn a_sleeper_at_the_event_queue_is_woken_by_the_answer_and_not_by_datagrams_after_it() {
    let network = Silent::new("joins8");
    for auto in [false, true] {
        let progress = if auto { Progress::Auto } else { Progress::Manual };
        let open = || network.member_with(|opening| opening.hints(|hints| hints.progress(progress)));
        let (a, b) = (open(), open());
        let to_a = b.side.insert(&a.side);
        let fd = a.eq.wait_fd().unwrap();
        // Before it sleeps it may find an event of the device.
        let sleeps = || {
            wait::drive(&[], "sleep", || {
                assert!(try_outcome(&a.eq).is_none(), "an event");
                a.eq.trywait().ok()
            });
            !wait::readable(fd, Duration::from_millis(20))
        };
        let joined = a.join(GROUP);
        assert!(sleeps(), "{progress:?}");
        network.answer(GROUP, Ok(()));
        assert!(wait::readable(fd, wait::BOUND), "woken, {progress:?}");
        a.joined(GROUP, &joined);
        assert!(sleeps(), "{progress:?}");
        assert_eq!(b.send(to_a, &Memory::new(LEN)), None);
        wait::drive(&[&b.side], "its end", || b.side.next_of(2)).done();
        assert!(!wait::readable(fd, Duration::from_millis(50)), "woken by a datagram, {progress:?}");
        // A thread in the call.
        let again = a.join(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                network.answer(2, Ok(()));
            });
            let event = a.eq.read_wait(Some(wait::BOUND)).expect("an event");
            assert_eq!((event.kind, event.fid), (EventKind::JoinComplete, again.fid()));
        });
    }
}

#[test]
fn joins_that_wait_end_with_their_device() {
    for (name, removed) in [("joins9", false), ("joins10", true)] {
        let network = Silent::new(name);
        let a = network.member();
        let joined = a.join(GROUP);
        match removed {
            true => network.1.remove(),
            false => network.1.die(),
        }
        wait::drive(&[&a.side], "the end", || (a.groups() == [0, 0]).then_some(()));
        a.refused(GROUP, &joined, Errno::ENODEV);
    }
}

/// Datagrams are sent to an inserted group address only while the group is joined.
#[test]
fn a_group_that_was_not_joined_is_not_sent_to() {
    let network = Silent::new("joins11");
    network.1.hold_joins(false);
    let (a, b) = (network.member(), network.member());
    let joined = a.join(GROUP);
    a.joined(GROUP, &joined);
    let name = a.side.av.lookup(joined.addr()).unwrap();
    let to = b.side.insert_address(&name);
    assert_eq!(b.send(to, &Memory::new(LEN)), Some(Errno::EADDRNOTAVAIL));
    // The address also names the group in a join.
    let also = b.side.ep.join_multicast(&name, BOTH, Context(GROUP.into())).unwrap();
    b.joined(GROUP, &also);
    assert_eq!(also.addr(), to);
    b.tells(to, &a, 1);
}
