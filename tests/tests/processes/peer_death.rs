//! A peer dies by `kill -9`: operations with it end with an error within a second, others go on, and nothing
//! is left behind.

use std::sync::Arc;

use ofi_testkit::leftovers::{Snapshot, sockets_named};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::{Naming, hints, open, parse, parse_region, region_text};

/// How long an operation with a dead peer may take to end. ([`GRACE`] is for the scheduler of a busy test
/// machine.)
const BOUND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(1);
/// Larger than any ring.
const LARGE: usize = 16 << 20;

/// Executes commands from the line, and never ends by itself: `receive`, `send LEN`, `write REGION` and `read
/// REGION` post one operation; `progress N` polls until at least `N` bytes have moved; `poll MS` polls for a
/// time.
pub fn victim(line: &mut Line, _arguments: &[String]) {
    let side = open(Naming::Names);
    line.say(side.name());
    let to = side.insert_address(&parse(&line.hear()));
    let memory = Memory::patterned(LARGE, 1);
    let into = Memory::new(LARGE);
    let region = side.register(&into, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    let library = Memory::library(&side.domain, LARGE);
    let library_region = side.register(&library, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    line.say(region_text(&region));
    line.say(region_text(&library_region));
    // The two ends connect before any other operation.
    side.receive(()).context(1).post().unwrap();
    wait::drive(&[&side], "a greeting", || side.next_of(1)).done();
    wait::drive(&[&side], "room", || side.out(to, ()).inject().send().ok());
    loop {
        let text = line.hear();
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["receive"] => side.receive(&into).context(2).post().unwrap(),
            ["send", len] => {
                let len: usize = len.parse().unwrap();
                let out = side.out(to, memory.slice(..len)).context(3);
                wait::drive(&[&side], "room", || out.send().ok());
            }
            ["write" | "read", ..] => {
                let there = parse_region(text.split_once(' ').unwrap().1);
                let out = side.out(to, memory.slice(..there.len)).context(4);
                wait::drive(&[&side], "room", || {
                    if words[0] == "write" { out.write(&[there]) } else { out.read(&[there]) }.ok()
                });
            }
            ["progress", bytes] => {
                let bytes: usize = bytes.parse().unwrap();
                // Received bytes are no longer zero; sent bytes are counted.
                wait::drive(&[&side], "some bytes", || {
                    let moved = side.statistic("shm_bulk_bytes") as usize;
                    let placed = into.slice(bytes..bytes + 64).bytes().iter().any(|&byte| byte != 0);
                    (moved >= bytes || placed).then_some(())
                });
            }
            ["poll", ms] => wait::drive_through(Duration::from_millis(ms.parse().unwrap()), &[&side]),
            _ => panic!("{text}"),
        }
        line.say("ok");
    }
}

/// A third process, which survives: answers each message with an empty one.
pub fn friend(line: &mut Line, _arguments: &[String]) {
    let side = open(Naming::Names);
    line.say(side.name());
    let to = side.insert_address(&parse(&line.hear()));
    side.receive(()).context(1).post().unwrap();
    while !line.has_news() {
        side.poll();
        if side.next_of(1).is_some() {
            side.receive(()).context(1).post().unwrap();
            wait::drive(&[&side], "room", || side.out(to, ()).tag(1).inject().send().ok());
        }
        std::thread::yield_now();
    }
}

/// A survivor, with its friend and its victim.
struct Scene {
    side: TestEndpoint,
    victim: Child,
    to_victim: FiAddr,
    application: RemotePiece,
    library: RemotePiece,
    _friend: Child,
    to_friend: FiAddr,
    before: Snapshot,
}

impl Scene {
    fn new() -> Self {
        Self::with(Opening::new(hints(Naming::Names)).open())
    }

    fn with(side: TestEndpoint) -> Self {
        let before = Snapshot::take();
        let start = |role| {
            let mut child = Child::start(role, &[]);
            let to = side.insert_address(&parse(&child.line.hear()));
            child.line.say(side.name());
            (child, to)
        };
        let (friend, to_friend) = start("friend");
        let (mut victim, to_victim) = start("victim");
        let application = parse_region(&victim.line.hear());
        let library = parse_region(&victim.line.hear());
        side.receive(()).context(1).from(to_victim).post().unwrap();
        wait::drive(&[&side], "room", || side.out(to_victim, ()).inject().send().ok());
        wait::drive(&[&side], "the victim's greeting", || side.next_of(1)).done();
        let scene =
            Self { side, victim, to_victim, application, library, _friend: friend, to_friend, before };
        scene.talk_to_the_friend();
        scene
    }

    fn talk_to_the_friend(&self) {
        let side = &self.side;
        side.receive(()).context(9).tag(1).from(self.to_friend).post().unwrap();
        wait::drive(&[side], "room", || side.out(self.to_friend, ()).inject().send().ok());
        wait::drive(&[side], "the friend's answer", || side.next_of(9)).done();
    }

    /// Sends the victim a command, and polls until it is done.
    fn tell(&mut self, text: &str) {
        self.victim.line.say(text);
        let (side, line) = (&self.side, &mut self.victim.line);
        wait::drive(&[side], text, || line.has_news().then_some(()));
        line.expect("ok");
    }

    /// Kills the victim, and waits for the errors of `contexts`, each once.
    fn kill(&mut self, contexts: &[usize]) {
        let id = self.victim.id();
        self.victim.kill();
        let side = &self.side;
        let start = Instant::now();
        let mut left = contexts.to_vec();
        while !left.is_empty() {
            side.poll();
            while let Some(event) = side.next() {
                let at = left.iter().position(|&context| context == event.context());
                let at = at.unwrap_or_else(|| panic!("unexpected: {event:?}"));
                left.swap_remove(at);
                let error = event.failed();
                assert_ne!(error.err, Errno::ETRUNC, "{error:?}");
            }
            assert!(start.elapsed() < BOUND + GRACE, "no error for {left:?}\n{}", side.report());
            std::thread::yield_now();
        }
        self.aftermath(id);
    }

    /// Checks after any death: new operations with the victim fail, others go on, and nothing is left behind.
    fn aftermath(&self, id: u32) {
        let side = &self.side;
        let start = Instant::now();
        let memory = Memory::new(64);
        let error = loop {
            let posted = side.out(self.to_victim, &memory).context(8).send();
            if let Err(error) = posted {
                assert!(error.is_again(), "{error}");
            }
            side.poll();
            match side.next() {
                Some(Event::Failed(error)) => break error,
                _ => assert!(
                    start.elapsed() < BOUND + GRACE,
                    "sends to the dead peer succeed\n{}",
                    side.report()
                ),
            }
            std::thread::yield_now();
        };
        assert_eq!(error.op_context, Context(8));
        wait::drive_through(Duration::from_millis(20), &[side]);
        while let Some(event) = side.next() {
            assert_eq!(event.context(), 8);
        }
        self.talk_to_the_friend();
        assert_eq!(self.before.new_since(&[id.to_string()]), Vec::<std::path::PathBuf>::new());
        assert_eq!(sockets_named(&format!("/{id}:")), Vec::<String>::new());
    }
}

#[test]
fn an_idle_peer_dies() {
    let mut scene = Scene::new();
    scene.kill(&[]);
}

#[test]
fn a_peer_dies_with_sends_to_it_outstanding() {
    let mut scene = Scene::new();
    let (small, large) = (Memory::new(64), Memory::new(LARGE));
    let side = &scene.side;
    // The victim does not poll, so it receives nothing.
    let delivered = OpFlags::DELIVERY_COMPLETE;
    side.out(scene.to_victim, &small).context(11).msg(delivered).send().unwrap();
    side.out(scene.to_victim, &large).context(12).send().unwrap();
    side.out(scene.to_victim, &large).context(13).tag(5).msg(delivered).send().unwrap();
    wait::drive_through(Duration::from_millis(20), &[side]);
    scene.kill(&[11, 12, 13]);
}

#[test]
fn a_peer_dies_in_the_middle_of_receiving_a_large_message() {
    let mut scene = Scene::new();
    let large = Memory::patterned(LARGE, 7);
    scene.side.out(scene.to_victim, &large).context(11).send().unwrap();
    scene.tell("receive");
    scene.tell("progress 1000000");
    scene.kill(&[11]);
}

#[test]
fn a_peer_dies_in_the_middle_of_sending_a_large_message() {
    let mut scene = Scene::new();
    let large = Memory::new(LARGE);
    scene.side.receive(&large).context(11).post().unwrap();
    scene.tell(&format!("send {LARGE}"));
    scene.tell("progress 1000000");
    scene.kill(&[11]);
}

#[test]
fn a_peer_dies_before_its_announced_message_is_received() {
    let mut scene = Scene::new();
    scene.tell(&format!("send {LARGE}"));
    scene.tell("poll 20");
    wait::drive_through(Duration::from_millis(20), &[&scene.side]);
    scene.kill(&[]);
    // The announced message is lost: a receive posted now fails, and does not wait for ever.
    let into = Memory::new(LARGE);
    let side = &scene.side;
    side.receive(&into).context(12).post().unwrap();
    let event = wait::drive_for(BOUND + GRACE, &[side], "the end of a lost message", || side.next_of(12));
    event.failed();
}

#[test]
fn small_messages_of_a_dead_peer_that_have_arrived_are_received() {
    let mut scene = Scene::new();
    for _ in 0..10 {
        scene.tell("send 64");
    }
    scene.kill(&[]);
    let (side, into) = (&scene.side, Memory::new(64));
    for _ in 0..10 {
        side.receive(&into).context(12).post().unwrap();
        wait::drive(&[side], "a message of the dead peer", || side.next_of(12)).done();
        into.check(64, 1);
    }
}

fn in_the_middle_of_an_access(write: bool, library: bool) {
    let mut scene = Scene::new();
    let there = if library { scene.library } else { scene.application };
    let local = Memory::patterned(LARGE, 7);
    let side = &scene.side;
    let out = side.out(scene.to_victim, &local).context(11);
    // The victim has not yet granted its memory, and does not poll: direct access has to wait, too.
    wait::drive(&[side], "room", || if write { out.write(&[there]) } else { out.read(&[there]) }.ok());
    if !library {
        scene.tell(if write { "progress 1000000" } else { "poll 2" });
    }
    if library || scene.side.statistic("tx_outstanding") == 0 {
        // The access completed at once: the memory was already mapped, or the machine is fast.
        wait::drive(&[&scene.side], "the access", || scene.side.next_of(11)).done();
        scene.kill(&[]);
    } else {
        scene.kill(&[11]);
    }
}

#[test]
fn a_peer_dies_in_the_middle_of_a_write_to_it() {
    in_the_middle_of_an_access(true, false);
}

#[test]
fn a_peer_dies_in_the_middle_of_a_read_from_it() {
    in_the_middle_of_an_access(false, false);
}

#[test]
fn a_peer_dies_after_direct_accesses_to_it() {
    in_the_middle_of_an_access(true, true);
    in_the_middle_of_an_access(false, true);
}

fn in_the_middle_of_its_access(write: bool) {
    let mut scene = Scene::new();
    let memory = Memory::new(LARGE);
    let region = scene.side.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    scene.tell(&format!("{} {}", if write { "write" } else { "read" }, region_text(&region)));
    scene.tell(if write { "progress 1000000" } else { "poll 5" });
    scene.kill(&[]);
    // The memory belongs to the application: closing does not wait for the dead peer, and the memory is not
    // written any more.
    let start = Instant::now();
    region.close().unwrap();
    assert!(start.elapsed() < BOUND, "closing waited {:?}", start.elapsed());
    memory.fill(9);
    wait::drive_through(Duration::from_millis(20), &[&scene.side]);
    memory.check(LARGE, 9);
}

#[test]
fn a_peer_dies_in_the_middle_of_its_write_to_here() {
    in_the_middle_of_its_access(true);
}

#[test]
fn a_peer_dies_in_the_middle_of_its_read_from_here() {
    in_the_middle_of_its_access(false);
}

#[test]
fn a_sleeping_survivor_is_woken() {
    let side = Opening::new(hints(Naming::Names)).wait_obj(WaitObj::Fd).open();
    let mut scene = Scene::with(side);
    let large = Memory::new(LARGE);
    scene.side.out(scene.to_victim, &large).context(11).send().unwrap();
    wait::drive_through(Duration::from_millis(20), &[&scene.side]);
    let (side, id) = (&scene.side, scene.victim.id());
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut entry = [CqTaggedEntry::EMPTY];
            let start = Instant::now();
            loop {
                let read = side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(Duration::from_secs(5)));
                match read {
                    Err(error) if error.errno() == Errno::EAVAIL => break,
                    Err(error) if error.is_again() && start.elapsed() < Duration::from_secs(5) => {}
                    other => panic!("{other:?} after {:?}\n{}", start.elapsed(), side.report()),
                }
            }
            Instant::now()
        });
        std::thread::sleep(Duration::from_millis(20));
        scene.victim.kill();
        let killed = Instant::now();
        let woken = sleeper.join().unwrap();
        assert!(woken.duration_since(killed) < BOUND + GRACE);
    });
    assert_eq!(side.rx.read_error().unwrap().op_context, Context(11));
    scene.aftermath(id);
}

#[test]
fn a_stopped_peer_is_not_dead() {
    let mut scene = Scene::new();
    scene.tell("receive");
    scene.victim.stop();
    let from = Memory::patterned(64, 4);
    let flags = OpFlags::DELIVERY_COMPLETE;
    scene.side.out(scene.to_victim, &from).context(11).msg(flags).send().unwrap();
    wait::drive_through(Duration::from_millis(1_500), &[&scene.side]);
    assert_eq!(scene.side.pending(), 0, "a stopped peer counts as dead");
    scene.victim.go_on();
    scene.tell("poll 20");
    wait::drive(&[&scene.side], "the delivery", || scene.side.next_of(11)).done();
}

/// Opens an endpoint under the given name, and answers messages with its generation.
pub fn same_name(line: &mut Line, arguments: &[String]) {
    let side = Opening::new(hints(Naming::Names)).name(&parse(&arguments[0])).open();
    let to = side.insert_address(&parse(&arguments[1]));
    let generation: u64 = arguments[2].parse().unwrap();
    side.receive(()).context(1).post().unwrap();
    line.say("ready");
    while !line.has_news() {
        side.poll();
        if side.next_of(1).is_some() {
            side.receive(()).context(1).post().unwrap();
            wait::drive(&[&side], "room", || side.out(to, ()).data(generation).inject().send().ok());
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_peer_that_is_restarted_under_its_name_is_met_anew() {
    let side = open(Naming::Names);
    let name = Address::from_text(&format!("fi_shm://ofi-restart-{}", std::process::id()));
    let to = side.insert_address(&name);
    for generation in 1..=4_u64 {
        let arguments = [name.to_string(), side.name().to_string(), generation.to_string()];
        let mut child = Child::start("same_name", &arguments.each_ref().map(String::as_str));
        child.line.expect("ready");
        // Only operations posted before the death is known may fail.
        side.receive(()).context(2).post().unwrap();
        let start = Instant::now();
        let mut outstanding = false;
        let answer = loop {
            if !outstanding {
                // Delivered to the live process, or an error: messages to the dead one are lost.
                let flags = OpFlags::DELIVERY_COMPLETE;
                outstanding = side.out(to, ()).context(1).msg(flags).send().is_ok();
            }
            side.poll();
            match side.next() {
                Some(Event::Done(entry, _)) if entry.op_context == Context(2) => break entry.data,
                Some(Event::Failed(_)) => outstanding = false,
                _ => {}
            }
            assert!(start.elapsed() < wait::BOUND, "generation {generation}\n{}", side.report());
            std::thread::yield_now();
        };
        assert_eq!(answer, generation, "an answer of an old generation");
        child.kill();
    }
}

#[test]
fn a_name_that_nobody_has_is_an_error_within_about_a_second() {
    let side = open(Naming::Names);
    let nobody = Address::from_text(&format!("fi_shm://ofi-nobody-{}", std::process::id()));
    let to = side.insert_address(&nobody);
    let memory = Memory::new(64);
    for _ in 0..2 {
        let start = Instant::now();
        wait::drive(&[&side], "room", || side.out(to, &memory).context(1).send().ok());
        let event = wait::drive_for(Duration::from_secs(2), &[&side], "an error", || side.next_of(1));
        let error = event.failed();
        assert!(
            [Errno::ECONNREFUSED, Errno::EHOSTUNREACH, Errno::ENOTCONN, Errno::EADDRNOTAVAIL]
                .contains(&error.err),
            "{error:?}"
        );
        assert!(start.elapsed() < Duration::from_secs(2));
        assert!(!side.tx.error_text(error.prov_errno).is_empty());
    }
    // Remote accesses too.
    let there = RemotePiece { addr: 0, len: 64, key: 1 };
    wait::drive(&[&side], "room", || side.out(to, &memory).context(1).write(&[there]).ok());
    wait::drive_for(Duration::from_secs(2), &[&side], "an error", || side.next_of(1)).failed();
}

#[test]
fn programs_may_start_in_any_order() {
    let side = open(Naming::Names);
    let name = Address::from_text(&format!("fi_shm://ofi-late-{}", std::process::id()));
    let to = side.insert_address(&name);
    wait::drive(&[&side], "room", || side.out(to, ()).context(1).send().ok());
    wait::drive_through(Duration::from_millis(50), &[&side]);
    let late = Opening::new(hints(Naming::Names)).name(&name).open();
    late.receive(()).context(2).post().unwrap();
    wait::drive(&[&side, &late], "the message", || late.next_of(2)).done();
    wait::drive(&[&side, &late], "the send", || side.next_of(1)).done();
}

#[test]
fn a_domain_outlives_the_death_of_a_peer_of_one_endpoint() {
    // The victim is a peer of two endpoints of one domain; both learn of its death.
    let mut scene = Scene::new();
    let other = Opening::new(hints(Naming::Names)).beside(&scene.side).open();
    let address = scene.side.av.lookup(scene.to_victim).unwrap();
    let to = other.insert_address(&address);
    let large = Memory::new(LARGE);
    wait::drive(&[&other], "room", || other.out(to, &large).context(21).send().ok());
    scene.tell("poll 20");
    wait::drive_through(Duration::from_millis(20), &[&other]);
    scene.kill(&[]);
    wait::drive_for(BOUND + GRACE, &[&other], "the other endpoint's error", || other.next_of(21)).failed();
    drop(Arc::clone(&other.domain));
}

/// Sends numbered messages of all sizes to the hub, and waits for the answer to each. Reports its progress on
/// request.
pub fn pinger(line: &mut Line, arguments: &[String]) {
    let side = open(Naming::Names);
    line.say(side.name());
    let to = side.insert_address(&parse(&arguments[0]));
    line.expect("go");
    let from = Memory::patterned(200_000, 3);
    let mut number = 0_u64;
    loop {
        let len = [8, 64, 9_000, 200_000][number as usize % 4];
        side.receive(()).context(1).post().unwrap();
        let out = side.out(to, from.slice(..len)).context(2).data(number);
        wait::drive(&[&side], "room", || out.send().ok());
        wait::drive(&[&side], "the send", || side.next_of(2)).done();
        let answer = wait::drive(&[&side], "the answer", || side.next_of(1)).done();
        assert_eq!(answer.data, number);
        number += 1;
        if line.has_news() {
            line.expect("how far");
            line.say(number);
        }
    }
}

/// A process that answers pingers.
struct Hub {
    side: TestEndpoint,
    into: Memory,
}

impl Hub {
    fn new() -> Self {
        let side = Opening::new(hints(Naming::Names)).open();
        let into = Memory::new(200_000);
        // One receive at a time: other messages are unexpected meanwhile, or still at their senders.
        side.receive(&into).context(1).post().unwrap();
        Self { side, into }
    }

    fn start(&self) -> (Child, FiAddr) {
        let mut child = Child::start("pinger", &[&self.side.name().to_string()]);
        let address = self.side.insert_address(&parse(&child.line.hear()));
        child.line.say("go");
        (child, address)
    }

    /// Answers messages. If a sender dies in the middle of a message, the receive fails, which is expected.
    fn serve(&self) {
        self.side.poll();
        while let Some(event) = self.side.next() {
            let received = event.context() == 1;
            if let Event::Done(entry, source) = event
                && received
                && source != FiAddr::NOTAVAIL
            {
                self.into.check(entry.len, 3);
                // If the sender is dead by now, the answer ends with an error entry later. (Messages of a
                // dead peer have no source once its address is removed.)
                let answer = self.side.out(source, ()).context(2).data(entry.data);
                while let Err(error) = answer.send() {
                    if error.errno() == Errno::EINVAL {
                        break; // the address was removed after the message had completed
                    }
                    assert!(error.is_again(), "{error}");
                    self.side.poll();
                }
            }
            if received {
                self.side.receive(&self.into).context(1).post().unwrap();
            }
        }
    }

    /// The progress of a pinger.
    fn ask(&self, child: &mut Child) -> u64 {
        child.line.say("how far");
        let start = Instant::now();
        while !child.line.has_news() {
            self.serve();
            assert!(start.elapsed() < wait::BOUND, "a pinger made no progress\n{}", self.side.report());
        }
        child.line.hear().parse().unwrap()
    }
}

/// Many deaths around one hub. Runs in its own process, so that its descriptors can be counted.
pub fn survive(line: &mut Line, _arguments: &[String]) {
    const PINGERS: usize = 4;
    const DEATHS: usize = 24;
    let hub = Hub::new();
    let mut pingers: Vec<(Child, FiAddr)> = (0..PINGERS).map(|_| hub.start()).collect();
    let mut descriptors = 0;
    for death in 0..DEATHS {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(10 + death as u64 % 7) {
            hub.serve();
        }
        let at = death * 5 % PINGERS;
        pingers[at].0.kill();
        let old = std::mem::replace(&mut pingers[at], hub.start());
        hub.side.av.remove(&[old.1]).unwrap();
        drop(old);
        for (child, _) in &mut pingers {
            let before = hub.ask(child);
            assert!(hub.ask(child) > before);
        }
        if death == DEATHS / 2 {
            descriptors = ofi_testkit::leftovers::open_files();
        }
    }
    let now = ofi_testkit::leftovers::open_files();
    assert!(now < descriptors + 8, "{descriptors} descriptors after half the deaths, {now} after all");
    line.say("survived");
}

#[test]
fn a_hub_outlives_many_deaths() {
    let mut child = Child::start("survive", &[]);
    child.line.expect("survived");
    child.finish();
}
