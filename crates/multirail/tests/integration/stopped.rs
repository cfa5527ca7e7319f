//! A peer that SIGSTOP stops in the middle of its work: others go on beside it, and what is given up leaves memory
//! alone.

use std::time::{Duration, Instant};

use multirail::{Agent, Outcome, Region, Remote, Way};
use ofi::Hints;
use ofi_testkit::process::{Child, Line};

use super::support::{hex, unhex};

/// Longer than any operation takes on a loaded machine.
const LONG: Duration = Duration::from_secs(30);
/// Descriptors to the stopped peer, and their length.
const MANY: usize = 100_000;
const LEN: usize = 64;

fn open(name: &str, provider: &str, has_thread: bool) -> Agent {
    if provider == "efa" {
        // Refused if the provider is already registered.
        let _ = ofi::register_provider(std::sync::Arc::new(ofi_efa::EfaProvider));
    }
    let builder = Agent::builder(name).progress_thread(has_thread).shared_memory(provider == "shm");
    builder.rail(Hints::new().provider(provider)).open().unwrap()
}

/// Owns a region, and does nothing but progress.
pub fn stopped(line: &mut Line, arguments: &[String]) {
    let agent = open("bob", &arguments[0], true);
    let _region = agent.register(vec![2_u8; MANY * LEN]).unwrap();
    line.say(hex(&agent.metadata().unwrap()));
    line.expect("end");
}

/// An agent, and a peer in another process with an open session.
struct Scene {
    alice: Agent,
    own: Region<Vec<u8>>,
    bob: Child,
}

impl Scene {
    fn new(provider: &str) -> Self {
        let mut bob = Child::start("stopped", &[provider]);
        let alice = open("alice", provider, false);
        let own = alice.register(vec![1_u8; MANY * LEN]).unwrap();
        alice.load(&unhex(&bob.line.hear())).unwrap();
        alice.connect("bob").unwrap();
        let scene = Self { alice, own, bob };
        scene.poll(|scene| scene.alice.is_connected("bob").unwrap());
        scene
    }

    fn poll(&self, until: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !until(self) {
            assert!(began.elapsed() < LONG);
            self.alice.progress().unwrap();
        }
    }

    /// Whether the peer is stopped, as the system says.
    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.bob.id())).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    fn stop(&self) {
        self.bob.stop();
        self.poll(Self::is_stopped);
    }

    fn post(&self, way: Way) -> multirail::Transfer {
        let region = self.alice.regions("bob").unwrap()[0].0;
        let at = |nth: usize| (nth * LEN) as u64;
        let local: Vec<_> = (0..MANY).map(|nth| self.own.slice(at(nth)..at(nth + 1)).unwrap()).collect();
        let remote = |nth| Remote { region, offset: at(nth), len: LEN as u64 };
        let remote: Vec<_> = (0..MANY).map(remote).collect();
        self.alice.prepare("bob", way, &local, &remote).unwrap().post(LONG).unwrap()
    }
}

/// 64 bytes to a third agent arrive while the peer is stopped.
fn a_stopped_peer_holds_up_nobody(provider: &str) {
    for way in [Way::Write, Way::Read] {
        let scene = Scene::new(provider);
        let carol = open("carol", provider, true);
        let at_carol = carol.register(vec![0_u8; LEN]).unwrap();
        scene.alice.load(&carol.metadata().unwrap()).unwrap();
        let remote = Remote { region: at_carol.id(), offset: 0, len: LEN as u64 };
        let local = [scene.own.slice(..LEN as u64).unwrap()];
        let plan = scene.alice.prepare("carol", Way::Write, &local, &[remote]).unwrap();
        let once = || {
            let transfer = plan.post_notify(b"new", LONG).unwrap();
            scene.poll(|_| carol.take_notification().is_some());
            transfer.wait().unwrap();
        };
        once();
        scene.stop();
        let to_bob = scene.post(way);
        for _ in 0..20 {
            once();
        }
        // Also while its window is full and its rail has refused it more.
        std::thread::sleep(Duration::from_millis(20));
        once();
        assert!(scene.is_stopped() && to_bob.progress().outcome.is_none(), "{provider}, {way:?}");
        scene.bob.go_on();
        to_bob.wait().unwrap();
    }
}

/// A read from a stopped peer that is cancelled: as soon as the memory is said to be free, not one byte of it changes.
fn nothing_is_read_late(provider: &str) {
    let scene = Scene::new(provider);
    scene.stop();
    let read = scene.post(Way::Read);
    for _ in 0..1000 {
        scene.alice.progress().unwrap();
    }
    read.cancel();
    let progress = read.progress();
    assert_eq!(progress.outcome, Some(Outcome::Cancelled));
    // Otherwise the answer is that it is in progress, and the memory is the library's until the peer goes on.
    println!("{provider}: the memory is free at once: {}", progress.is_quiet);
    if !progress.is_quiet {
        scene.bob.go_on();
        assert!(read.wait_quiet(LONG).unwrap());
        scene.stop();
    }
    drop(read);
    let Scene { alice, own, mut bob } = scene;
    let mut memory = own.withdraw().expect("nothing uses the memory");
    memory.fill(77);
    bob.go_on();
    let began = Instant::now();
    while alice.under_way() != (0, 0) || began.elapsed() < Duration::from_millis(100) {
        assert!(began.elapsed() < LONG, "{:?} under way", alice.under_way());
        alice.progress().unwrap();
        assert!(memory.iter().all(|&byte| byte == 77), "nothing is written late");
    }
    // The peer has executed or dropped what was under way, and the two go on.
    let own = alice.register(vec![0_u8; LEN]).unwrap();
    let whole = Remote { region: alice.regions("bob").unwrap()[0].0, offset: 0, len: LEN as u64 };
    let again = alice.prepare("bob", Way::Read, &[own.slice(..).unwrap()], &[whole]).unwrap();
    again.post(LONG).unwrap().wait().unwrap();
    assert!(super::support::holds(&own, 2));
    assert!(memory.iter().all(|&byte| byte == 77), "nothing is written late");
    bob.line.say("end");
    bob.finish();
}

#[test]
fn a_stopped_peer_holds_up_nobody_over_shared_memory() {
    a_stopped_peer_holds_up_nobody("shm");
}

#[test]
fn a_stopped_peer_holds_up_nobody_over_udp() {
    a_stopped_peer_holds_up_nobody("udp");
}

#[test]
fn a_stopped_peer_holds_up_nobody_over_tcp() {
    a_stopped_peer_holds_up_nobody("tcp");
}

#[test]
#[ignore = "needs an EFA device: cargo xtask efa --test"]
fn a_stopped_peer_holds_up_nobody_over_efa() {
    a_stopped_peer_holds_up_nobody("efa");
}

#[test]
fn nothing_is_read_late_over_shared_memory() {
    nothing_is_read_late("shm");
}

#[test]
fn nothing_is_read_late_over_udp() {
    nothing_is_read_late("udp");
}

#[test]
fn nothing_is_read_late_over_tcp() {
    nothing_is_read_late("tcp");
}
