//! A target whose process SIGSTOP stops while grains for it are under way: those of its initiator's other target go on
//! arriving, and so do those of a target that is added after the stopped one was removed.

use std::time::{Duration, Instant};

use mxl::{BatchHints, Domain, FlowDefinition, GrainWriter, Rational};
use mxl_fabrics::{Initiator, Options, PeerState, Protocol, Received, Target, TargetInfo};
use ofi_testkit::process::{Child, Line};

use super::common::{ANY, Folder, LONG, byte_of};

/// Slices of a grain.
const SLICES: u16 = 1080;
/// The length of a write or a message, so that a grain takes more of them than an endpoint has operations: 1,024.
const SHORT: usize = 512;
/// The same for the C++ SDK's protocol, whose writes are longer than a header.
const SHORT_OF_SDK: usize = 8192 + 512;
/// Grains that are sent while the target is stopped.
const GRAINS: u64 = 8;

/// How payloads travel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Writes,
    Messages,
    Sdk,
}

/// A picture of 552,960 bytes.
fn definition() -> FlowDefinition {
    FlowDefinition::video("camera", 192, SLICES.into(), Rational::new(50, 1)).unwrap()
}

fn options(by: By) -> Options {
    let mut options = Options::default();
    options.messages_only = by == By::Messages;
    options.max_message = Some(if by == By::Sdk { SHORT_OF_SDK } else { SHORT });
    options
}

fn place(provider: &str) -> (Option<&'static str>, Option<&'static str>) {
    if provider == "tcp" { (Some("127.0.0.1"), None) } else { ANY }
}

/// A target, which tells of each whole grain.
pub fn receiver(line: &mut Line, arguments: &[String]) {
    let [provider, by, folder] = arguments else { panic!("{arguments:?}") };
    let by = [By::Writes, By::Messages, By::Sdk][by.parse::<usize>().unwrap()];
    let domain = Domain::open(folder).unwrap();
    let mut target = Target::open_with(
        &domain,
        &definition(),
        provider.parse().unwrap(),
        place(provider),
        None,
        &options(by),
    )
    .unwrap();
    line.say(target.info().to_json().replace('\n', " "));
    while !line.has_news() {
        if let Some(Received::Grain { index, slices: SLICES, invalid: false }) =
            target.read(Duration::from_millis(5)).unwrap()
        {
            line.say(index);
        }
    }
    line.expect("end");
}

/// A target in a process of its own.
struct Receiver {
    child: Child,
    id: u64,
    _folder: Folder,
}

impl Receiver {
    /// Starts a target and adds it to an initiator.
    fn start(initiator: &mut Initiator, provider: &str, by: By) -> Self {
        let (folder, number) = (Folder::new(), (by as usize).to_string());
        // Provider tcp is to carry the grains, although both ends are on one host.
        let sockets = [("FI_TCP_SHARED_MEMORY", "0")];
        let arguments = [provider, &number, folder.path().to_str().unwrap()];
        let mut child = Child::start_with("receiver", &arguments, &sockets);
        let mut info = TargetInfo::parse(&child.line.hear()).unwrap();
        if by == By::Sdk {
            info.ours = None;
        }
        initiator.add(&info).unwrap();
        let wanted = if by == By::Sdk { Protocol::Sdk } else { Protocol::Own };
        assert_eq!(initiator.protocol(info.id), Some(wanted));
        Self { child, id: info.id, _folder: folder }
    }

    /// Whether it has told of a grain.
    fn has_heard(&mut self, index: u64) -> bool {
        self.child.line.has_news() && self.child.line.hear() == index.to_string()
    }

    /// Whether the process is stopped, as the system says.
    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    fn end(mut self) {
        self.child.line.say("end");
        self.child.finish();
    }
}

struct Scene {
    initiator: Initiator,
    writer: GrainWriter,
    stopped: Receiver,
    live: Receiver,
    /// Of the source.
    _folder: Folder,
}

impl Scene {
    fn new(provider: &str, by: By) -> Self {
        let folder = Folder::new();
        let (domain, definition) = (folder.domain(), definition());
        let writer = domain.create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let (of, place) = (provider.parse().unwrap(), place(provider));
        let mut initiator = Initiator::open_with(&domain, definition.id, of, place, &options(by)).unwrap();
        // The one that is stopped has the first turn.
        let stopped = Receiver::start(&mut initiator, provider, by);
        let live = Receiver::start(&mut initiator, provider, by);
        let mut scene = Self { initiator, writer, stopped, live, _folder: folder };
        scene.until("both are connected", |scene| scene.initiator.is_idle());
        scene
    }

    /// Stops a target that has granted room for the next grains.
    fn stop(&mut self) {
        for index in 1000..1003 {
            self.send(index);
            self.until("a grain before the stop", |scene| scene.live.has_heard(index));
            self.until("both have it", |scene| scene.initiator.is_idle());
        }
        // Both have granted the next slots.
        assert!(self.initiator.confirm(LONG).unwrap());
        self.stopped.child.stop();
        self.until("the process is stopped", |scene| scene.stopped.is_stopped());
    }

    /// Drives the initiator.
    #[track_caller]
    fn until(&mut self, what: &str, mut is_done: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !is_done(self) {
            let targets: Vec<_> = self.initiator.targets().collect();
            assert!(begin.elapsed() < LONG, "not within {LONG:?}: {what}: {targets:?}");
            self.initiator.poll().unwrap();
            while self.initiator.event().is_some() {}
        }
    }

    /// Writes and sends a grain.
    fn send(&mut self, index: u64) {
        let mut grain = self.writer.open(index).unwrap();
        let bytes = vec![byte_of(index); grain.len()];
        grain.write(0, &bytes).unwrap();
        grain.commit().unwrap();
        self.initiator.send(index).unwrap();
    }
}

fn a_stopped_target_holds_up_no_other(provider: &str, by: By) {
    let mut scene = Scene::new(provider, by);
    scene.stop();
    for index in 1003..1003 + GRAINS {
        let begin = Instant::now();
        scene.send(index);
        scene.until("a grain beside a stopped target", |scene| scene.live.has_heard(index));
        println!("{provider}: grain {index} in {:?}", begin.elapsed());
    }
    assert!(scene.stopped.is_stopped());
    let (state, stats) = scene.initiator.target(scene.stopped.id).unwrap();
    // udp takes a peer that is silent for `FI_UDP_PEER_TIMEOUT_MS` (5 s) for dead, and a slow machine needs as long.
    if provider != "udp" {
        assert_eq!(state, PeerState::Connected, "{provider}: {stats:?}");
    }
    assert_eq!(stats.connected, 1, "it was never given up");
    // Then it takes what is sent from now on.
    scene.stopped.child.go_on();
    let mut index = 1003 + GRAINS;
    let before = stats.done;
    scene.until("both take grains", |scene| {
        scene.initiator.target(scene.stopped.id).unwrap().1.done > before + 2 || {
            if scene.initiator.is_idle() {
                scene.send(index);
                index += 1;
            }
            false
        }
    });
    scene.stopped.end();
    scene.live.end();
}

/// Regression test: a target that was added after a stopped one was removed got its number in the address vector, and
/// with it the operations that were still under way to it. With no place left for a greeting, it was never connected.
fn a_target_that_follows_a_stopped_one_takes_grains(provider: &str, by: By) {
    let mut scene = Scene::new(provider, by);
    scene.stop();
    scene.send(1003);
    scene.until("a grain beside a stopped target", |scene| scene.live.has_heard(1003));
    scene.initiator.remove(scene.stopped.id).unwrap();
    let mut next = Receiver::start(&mut scene.initiator, provider, by);
    scene.until("the next one is connected", |scene| scene.initiator.is_idle());
    scene.send(1004);
    scene.until("a grain at the next one", |_| next.has_heard(1004));
    scene.until("a grain at the other one", |scene| scene.live.has_heard(1004));
    assert!(scene.stopped.is_stopped());
    scene.stopped.child.go_on();
    scene.stopped.end();
    scene.live.end();
    next.end();
}

#[test]
fn a_stopped_target_holds_up_no_other_over_shared_memory() {
    a_stopped_target_holds_up_no_other("shm", By::Writes);
}

#[test]
fn a_stopped_target_holds_up_no_other_over_udp() {
    a_stopped_target_holds_up_no_other("udp", By::Writes);
}

#[test]
fn a_stopped_target_holds_up_no_other_over_tcp() {
    a_stopped_target_holds_up_no_other("tcp", By::Writes);
}

#[test]
fn a_stopped_target_holds_up_no_other_by_messages() {
    for provider in ["shm", "udp", "tcp"] {
        a_stopped_target_holds_up_no_other(provider, By::Messages);
    }
}

#[test]
fn a_stopped_target_holds_up_no_other_by_the_protocol_of_the_sdk() {
    a_stopped_target_holds_up_no_other("tcp", By::Sdk);
}

#[test]
fn a_target_that_follows_a_stopped_one_takes_grains_by_writes() {
    for provider in ["shm", "udp", "tcp"] {
        a_target_that_follows_a_stopped_one_takes_grains(provider, By::Writes);
    }
}

#[test]
fn a_target_that_follows_a_stopped_one_takes_grains_by_messages() {
    for provider in ["shm", "udp", "tcp"] {
        a_target_that_follows_a_stopped_one_takes_grains(provider, By::Messages);
    }
}
