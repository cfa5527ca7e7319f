//! A target whose process SIGSTOP stops while grains for it are under way: those of its initiator's other target go on
//! arriving.

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

struct Scene {
    initiator: Initiator,
    writer: GrainWriter,
    stopped: (Child, u64),
    live: (Child, u64),
    /// Of the source and of both targets.
    _folders: [Folder; 3],
}

impl Scene {
    fn new(provider: &str, by: By) -> Self {
        let folders = [Folder::new(), Folder::new(), Folder::new()];
        let (domain, definition) = (folders[0].domain(), definition());
        let writer = domain.create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let (of, place) = (provider.parse().unwrap(), place(provider));
        let mut initiator = Initiator::open_with(&domain, definition.id, of, place, &options(by)).unwrap();
        let mut receiver = |folder: &Folder| {
            let number = (by as usize).to_string();
            let mut child = Child::start("receiver", &[provider, &number, folder.path().to_str().unwrap()]);
            let mut info = TargetInfo::parse(&child.line.hear()).unwrap();
            if by == By::Sdk {
                info.ours = None;
            }
            initiator.add(&info).unwrap();
            let wanted = if by == By::Sdk { Protocol::Sdk } else { Protocol::Own };
            assert_eq!(initiator.protocol(info.id), Some(wanted));
            (child, info.id)
        };
        // The one that is stopped has the first turn.
        let (stopped, live) = (receiver(&folders[1]), receiver(&folders[2]));
        let mut scene = Self { initiator, writer, stopped, live, _folders: folders };
        scene.until("both are connected", |scene| scene.initiator.is_idle());
        scene
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

    /// Whether the live target has told of a grain.
    fn has_heard(&mut self, index: u64) -> bool {
        self.live.0.line.has_news() && self.live.0.line.hear() == index.to_string()
    }

    /// Whether the process is stopped, as the system says.
    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.stopped.0.id())).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }
}

fn a_stopped_target_holds_up_no_other(provider: &str, by: By) {
    let mut scene = Scene::new(provider, by);
    for index in 1000..1003 {
        scene.send(index);
        scene.until("a grain before the stop", |scene| scene.has_heard(index));
        scene.until("both have it", |scene| scene.initiator.is_idle());
    }
    // Both have granted the next slots.
    assert!(scene.initiator.confirm(LONG).unwrap());
    scene.stopped.0.stop();
    scene.until("the process is stopped", |scene| scene.is_stopped());
    for index in 1003..1003 + GRAINS {
        let begin = Instant::now();
        scene.send(index);
        scene.until("a grain beside a stopped target", |scene| scene.has_heard(index));
        println!("{provider}: grain {index} in {:?}", begin.elapsed());
    }
    let (state, stats) = scene.initiator.target(scene.stopped.1).unwrap();
    assert!(scene.is_stopped() && state == PeerState::Connected, "{provider}: {state:?}, {stats:?}");
    assert_eq!(stats.connected, 1, "it was never given up");
    // Then it takes what is sent from now on.
    scene.stopped.0.go_on();
    let mut index = 1003 + GRAINS;
    let before = stats.done;
    scene.until("both take grains", |scene| {
        scene.initiator.target(scene.stopped.1).unwrap().1.done > before + 2 || {
            if scene.initiator.is_idle() {
                scene.send(index);
                index += 1;
            }
            false
        }
    });
    for (mut child, _) in [scene.stopped, scene.live] {
        child.line.say("end");
        child.finish();
    }
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
