//! A link between two devices goes down under traffic, and comes up again. If that is before the device gives up,
//! nothing is lost; otherwise operations in flight fail, and the next one connects again.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ofi::raw::LinkState;
use ofi_testkit::connect::{connect, event_of};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};

use super::ConnectedPair;
use super::VerbsPair;

/// The ends of the machine's wire (`xtask/src/vm/guest.sh`).
const HERE: [u8; 4] = [10, 78, 0, 1];
const THERE: [u8; 4] = [10, 78, 0, 2];
/// A packet is resent six times, two seconds apart: the device gives up after some 15 s. This is well below that,
const SHORT: Duration = Duration::from_millis(1200);
/// and this is how long an operation may take to fail.
const BOUND: Duration = Duration::from_secs(30);

/// The link, which one test at a time may cut. It is restored on drop.
struct Wire(#[allow(dead_code, reason = "held, not read")] MutexGuard<'static, ()>);

impl Wire {
    fn take() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        Self(ONE.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ip(arguments: &str) {
        let status = Command::new("ip").args(arguments.split(' ')).status().expect("ip (iproute2)");
        assert!(status.success(), "ip {arguments}: {status}");
    }

    fn cut(&self) {
        Self::ip("link set plug0 down");
        Self::ip("link set plug1 down");
    }

    fn mend(&self) {
        Self::ip("link set plug0 up");
        Self::ip("link set plug1 up");
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.mend();
    }
}

fn at(kit: &dyn Kit, ip: [u8; 4]) -> Opening {
    kit.opening().hints(|hints| hints.src_addr(SocketAddr::from((ip, 0)).into()))
}

/// Two endpoints of reliable datagrams at the ends of the wire, connected.
fn pair() -> Pair {
    let pair = Pair::of(at(&VerbsPair, HERE).open(), at(&VerbsPair, THERE).open());
    pair.warm_up();
    pair
}

fn connected() -> (TestEndpoint, TestEndpoint) {
    let a = at(&ConnectedPair, HERE).open_disabled().unwrap();
    let b = connect(&a, at(&ConnectedPair, THERE)).unwrap();
    (a, b)
}

/// Contexts of messages sent and received.
struct Traffic {
    sent: Vec<Memory>,
    received: Vec<Memory>,
}

impl Traffic {
    const LENS: [usize; 4] = [64, 5_000, 1 << 18, 1];
    const COUNT: usize = 24;

    /// Creates the traffic, and posts receives for all messages.
    fn to(side: &TestEndpoint) -> Self {
        let len = |index| Self::LENS[index % 4];
        let sent = (0..Self::COUNT).map(|index| Memory::patterned(len(index), index as u8)).collect();
        let received: Vec<_> = (0..Self::COUNT).map(|index| Memory::new(len(index))).collect();
        for (index, into) in received.iter().enumerate() {
            side.receive(into).context(index).post().unwrap();
        }
        Self { sent, received }
    }

    fn send(&self, sides: &[&TestEndpoint], to: FiAddr, range: std::ops::Range<usize>) {
        for index in range {
            wait::drive(sides, "room", || sides[0].out(to, &self.sent[index]).context(index).send().ok());
        }
    }

    /// Checks that all messages arrive, each in its receive.
    fn arrives(&self, sides: &[&TestEndpoint; 2]) {
        for (index, into) in self.received.iter().enumerate() {
            wait::drive_for(BOUND, sides, "a message", || sides[1].next_of(index)).done();
            into.check(into.len(), index as u8);
        }
        for index in 0..Self::COUNT {
            wait::drive_for(BOUND, sides, "the end of a send", || sides[0].next_of(index)).done();
        }
        assert!(sides[0].next().is_none() && sides[1].next().is_none(), "each once");
    }
}

#[test]
fn nothing_is_lost_on_a_wire_that_is_down_for_a_moment() {
    let (wire, pair) = (Wire::take(), pair());
    let sides = [&pair.a, &pair.b];
    let traffic = Traffic::to(&pair.b);
    traffic.send(&sides, pair.to_b, 0..Traffic::COUNT / 2);
    wire.cut();
    traffic.send(&sides, pair.to_b, Traffic::COUNT / 2..Traffic::COUNT);
    wait::drive_through(SHORT, &sides);
    assert!(pair.b.pending() < Traffic::COUNT, "the wire is cut");
    wire.mend();
    traffic.arrives(&sides);
    assert_eq!(sides.map(|side| side.statistic("verbs_connections")), [1, 1]);
}

/// The device reports that its port has lost the carrier. Until the carrier returns, getinfo omits the port.
#[test]
fn a_port_that_goes_down_and_comes_up_is_counted_and_offered_again() {
    let (wire, pair) = (Wire::take(), pair());
    let (a, b) = connected();
    let sides = [&pair.a, &pair.b, &a, &b];
    let offered = || {
        let hints = VerbsPair.hints().src_addr(SocketAddr::from((HERE, 0)).into());
        let kit: &dyn Kit = &VerbsPair;
        let infos = kit.getinfo(&hints).ok()?;
        infos.first().map(|info| info.nic.as_ref().expect("a device has a description").link_attr.state)
    };
    let counts = |name| sides.map(|side| side.statistic(name));
    assert_eq!((offered(), counts("verbs_port_errors")), (Some(LinkState::Up), [0; 4]));
    wire.cut();
    for side in sides {
        wait::drive(&sides, "a port error", || (side.statistic("verbs_port_errors") > 0).then_some(()));
    }
    assert_eq!(offered(), None);
    let active = counts("verbs_port_active");
    wire.mend();
    for (side, before) in sides.into_iter().zip(active) {
        let is_active = || (side.statistic("verbs_port_active") > before).then_some(());
        wait::drive(&sides, "an active port", is_active);
    }
    assert_eq!(offered(), Some(LinkState::Up));
    assert_eq!(counts("verbs_device_failures"), [0; 4]);
    pair.warm_up();
    assert_eq!([&pair.a, &pair.b].map(|side| side.statistic("verbs_connections")), [1, 1]);
}

/// Loses what is under way on a wire that stays down, fails to connect over it, and connects over the mended wire.
/// Says when it has done each.
pub fn outlast(line: &mut Line, _: &[String]) {
    let (wire, pair) = (Wire::take(), pair());
    let sides = [&pair.a, &pair.b];
    let (from, there) = (Memory::patterned(1 << 18, 3), Memory::new(1 << 18));
    let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    let region = pair.b.register(&there, rights).unwrap();
    // By the owner first, then by the device.
    for _ in 0..2 {
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
        pair.drive("a write", || pair.a.next_of(1)).done();
    }
    wire.cut();
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
    pair.post(|| pair.a.out(pair.to_b, from.slice(..64)).context(3).send());
    pair.post(|| pair.a.out(pair.to_b, &from).context(4).write(&[remote(&region)]));
    pair.post(|| pair.a.out(pair.to_b, &from).context(5).read(&[remote(&region)]));
    pair.post(|| pair.b.out(pair.to_a, from.slice(..64)).context(6).send());
    for (context, side) in [(2, &pair.a), (3, &pair.a), (4, &pair.a), (5, &pair.a), (6, &pair.b)] {
        let error = wait::drive_for(BOUND, &sides, "a failure", || side.next_of(context)).failed();
        assert!(matches!(error.err, Errno::ECONNABORTED | Errno::ECONNRESET), "{context}: {error:?}");
    }
    line.say("lost");
    pair.post(|| pair.a.out(pair.to_b, from.slice(..64)).context(7).send());
    let error = wait::drive_for(BOUND, &sides, "a failure", || pair.a.next_of(7)).failed();
    assert!(matches!(error.err, Errno::ETIMEDOUT | Errno::EHOSTUNREACH), "{error:?}");
    line.say("not connected");
    wire.mend();
    let traffic = Traffic::to(&pair.b);
    traffic.send(&sides, pair.to_b, 0..Traffic::COUNT);
    traffic.arrives(&sides);
    there.fill(0);
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
    pair.drive("a write", || pair.a.next_of(1)).done();
    there.check(1 << 18, 3);
    line.say("connected");
}

/// The time for a connection is a setting, so another process has it.
#[test]
fn what_is_under_way_on_a_wire_that_stays_down_fails_and_the_next_use_connects() {
    let _wire = Wire::take(); // the child's is another
    let mut child = Child::start_with("outlast", &[], &[("FI_VERBS_CONNECT_TIMEOUT_MS", "8000")]);
    for said in ["lost", "not connected", "connected"] {
        child.line.expect(said);
    }
    child.finish();
}

/// Prints the outcome of operations over a cut link, of reliable datagrams and of a connected endpoint. Both wait as
/// long as other cases wait for a message, which is less than a device without settings takes to give up.
pub fn cut(line: &mut Line, _: &[String]) {
    let (wire, pair, (a, b)) = (Wire::take(), pair(), connected());
    let memory = Memory::patterned(64, 1);
    wire.cut();
    pair.post(|| pair.a.out(pair.to_b, &memory).context(1).send());
    a.out(FiAddr::UNSPEC, &memory).context(1).send().unwrap();
    let sides = [&pair.a, &pair.b, &a, &b];
    let ends = [&pair.a, &a].map(|side| wait::drive(&sides, "a failure", || side.next_of(1)).failed().err);
    line.say(format!("{ends:?}"));
}

#[test]
fn a_device_gives_up_as_soon_as_the_settings_say() {
    let _wire = Wire::take(); // the child's is another
    let set = [("FI_VERBS_ACK_TIMEOUT", "12"), ("FI_VERBS_RETRY_COUNT", "1")];
    let mut child = Child::start_with("cut", &[], &set);
    child.line.expect("[FI_ECONNABORTED(103), FI_EIO(5)]");
    child.finish();
}

#[test]
fn nothing_is_lost_over_a_connection_whose_wire_is_down_for_a_moment() {
    let wire = Wire::take();
    let (a, b) = connected();
    let sides = [&a, &b];
    let traffic = Traffic::to(&b);
    traffic.send(&sides, FiAddr::UNSPEC, 0..Traffic::COUNT / 2);
    wire.cut();
    traffic.send(&sides, FiAddr::UNSPEC, Traffic::COUNT / 2..Traffic::COUNT);
    wait::drive_through(SHORT, &sides);
    assert!(b.pending() < Traffic::COUNT, "the wire is cut");
    wire.mend();
    traffic.arrives(&sides);
}

#[test]
fn a_connection_whose_wire_stays_down_ends_and_another_can_be_made() {
    let wire = Wire::take();
    let (a, b) = connected();
    wire.cut();
    let memory = Memory::patterned(1 << 18, 3);
    for side in [&a, &b] {
        side.out(FiAddr::UNSPEC, &memory).context(1).send().unwrap();
    }
    for side in [&a, &b] {
        let error = wait::drive_for(BOUND, &[&a, &b], "a failure", || side.next_of(1)).failed();
        assert_eq!(error.err, Errno::EIO);
        event_of(side, EventKind::Shutdown, &[&a, &b]);
    }
    wire.mend();
    let (a, b) = connected();
    let traffic = Traffic::to(&b);
    traffic.send(&[&a, &b], FiAddr::UNSPEC, 0..Traffic::COUNT);
    traffic.arrives(&[&a, &b]);
}
