//! A peer on another host's device dies by `kill -9`: operations with it end with an error within a bound,
//! and its successor is reached. Runs on the emulated device; the peer uses this library or C's libfabric:
//! `cargo xtask efa --test`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::{parse_region, region_text};

/// How long an operation with a dead peer may take to end. A peer that owes an answer is probed after half a
/// second to one second, and is given up five to six seconds later. The rest is for the emulated device, whose
/// thread waits for a core on a busy machine.
const BOUND: Duration = Duration::from_secs(20);
/// Bytes of a message that its receiver clears to send, and of one that its receiver reads.
const CLEARED: usize = 600_000;
const READ: usize = 32 << 20;
const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

/// An endpoint over the device. With `keys`, devices access registered memory by themselves.
pub fn open(keys: bool) -> TestEndpoint {
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(std::sync::Arc::new(ofi_efa::EfaProvider));
    let modes = if keys { MrMode::VIRT_ADDR | MrMode::PROV_KEY } else { MrMode::VIRT_ADDR };
    let hints = Hints::new().provider("efa").ep_type(EpType::Rdm).caps(Caps::MSG | Caps::RMA).mr_mode(modes);
    Opening::new(hints).without_shared_memory().open()
}

/// An endpoint's name as text: its bytes in hexadecimal.
pub fn name_of(side: &TestEndpoint) -> String {
    side.name().bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Inserts the endpoint with this name.
pub fn insert(side: &TestEndpoint, name: &str) -> FiAddr {
    let digits = name.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).expect("text"));
    let bytes: Vec<u8> = digits.map(|two| u8::from_str_radix(two, 16).expect("digits")).collect();
    side.insert_address(&Address::new(side.name().format(), &bytes))
}

/// Executes commands from the line, and never ends by itself: `receive` and `send LEN` post; `until COUNTER
/// NUMBER` polls until the counter has that value; `nothing` does not even poll.
pub fn victim(line: &mut Line, arguments: &[String]) {
    let side = open(arguments[0] == "keys");
    line.say(name_of(&side));
    let to = insert(&side, &line.hear());
    let (from, into) = (Memory::patterned(READ, 1), Memory::new(READ));
    let region = side.register(&into, RIGHTS).unwrap();
    line.say(region_text(&region));
    side.receive(()).context(1).post().unwrap();
    wait::drive(&[&side], "a greeting", || side.next_of(1)).done();
    wait::drive(&[&side], "room", || side.out(to, ()).inject().send().ok());
    wait::drive_through(Duration::from_millis(50), &[&side]);
    loop {
        let text = line.hear();
        match text.split(' ').collect::<Vec<_>>()[..] {
            ["receive"] => side.receive(&into).context(2).post().unwrap(),
            ["send", len] => {
                let len: usize = len.parse().unwrap();
                let out = side.out(to, from.slice(..len)).context(3);
                wait::drive(&[&side], "room", || out.send().ok());
            }
            ["until", name, count] => {
                let count = count.parse().unwrap();
                wait::drive(&[&side], name, || (side.statistic(name) >= count).then_some(()));
            }
            ["nothing"] => {}
            _ => panic!("{text}"),
        }
        line.say("ok");
    }
}

/// A survivor and its victim.
struct Scene {
    side: TestEndpoint,
    victim: Child,
    to_victim: FiAddr,
    region: RemotePiece,
}

impl Scene {
    fn new(keys: &str) -> Self {
        let side = open(keys == "keys");
        let (victim, to_victim, region) = Self::meet(&side, keys);
        Self { side, victim, to_victim, region }
    }

    fn meet(side: &TestEndpoint, keys: &str) -> (Child, FiAddr, RemotePiece) {
        let mut victim = Child::start("victim", &[keys]);
        let to = insert(side, &victim.line.hear());
        victim.line.say(name_of(side));
        let region = parse_region(&victim.line.hear());
        side.receive(()).context(1).post().unwrap();
        wait::drive(&[side], "room", || side.out(to, ()).inject().send().ok());
        wait::drive(&[side], "the victim's greeting", || side.next_of(1)).done();
        (victim, to, region)
    }

    /// Sends the victim a command, and polls until it is done.
    fn tell(&mut self, text: &str) {
        self.victim.line.say(text);
        let (side, line) = (&self.side, &mut self.victim.line);
        wait::drive(&[side], text, || line.has_news().then_some(()));
        line.expect("ok");
    }

    /// Posts, and polls until the counter is at least `count` more than before.
    fn until(&self, name: &str, count: u64, mut post: impl FnMut() -> Result<()>) {
        let before = self.side.statistic(name);
        wait::drive(&[&self.side], "room", || post().ok());
        wait::drive(&[&self.side], name, || (self.side.statistic(name) >= before + count).then_some(()));
    }

    /// Kills the victim, waits for the error of operation 5, and connects to a successor.
    fn end(mut self, step: &str, keys: &str) {
        self.victim.kill();
        let error = fails(&self.side, step);
        assert!(matches!(error.err, Errno::ECONNRESET | Errno::ECONNREFUSED), "{step}: {error:?}");
        let _other = Self::meet(&self.side, keys);
    }
}

/// Waits for the error of operation 5.
fn fails(side: &TestEndpoint, step: &str) -> CqErrorEntry {
    ended(side, step).failed()
}

/// Waits for the end of operation 5.
fn ended(side: &TestEndpoint, step: &str) -> Event {
    let since = Instant::now();
    loop {
        side.poll();
        if let Some(event) = side.next() {
            assert_eq!(event.context(), 5, "{step}: unexpected event");
            return event;
        }
        assert!(since.elapsed() < BOUND, "{step}: operation 5 did not end\n{}", side.report());
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "needs an EFA device: cargo xtask efa --test"]
fn what_was_for_a_peer_that_dies_fails_and_who_comes_in_its_place_is_reached() {
    let flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
    let memory = Memory::patterned(READ, 1);
    let send = |scene: &Scene, len: usize| {
        scene.side.out(scene.to_victim, memory.slice(..len)).context(5).msg(flags).send()
    };
    for (step, len) in
        [("one packet", 64), ("a few packets", 60_000), ("to be cleared", CLEARED), ("to be read", READ)]
    {
        let scene = Scene::new("keys");
        // The victim does not poll, but its device accepts packets.
        scene.until("efa_sent", 1, || send(&scene, len));
        scene.end(step, "keys");
    }
    let step = "in the middle of what is cleared";
    let mut scene = Scene::new("keys");
    scene.tell("receive");
    wait::drive(&[&scene.side], "room", || send(&scene, CLEARED).ok());
    scene.tell("until efa_received 20");
    scene.end(step, "keys");

    let step = "in the middle of a read payload";
    let mut scene = Scene::new("keys");
    scene.tell("receive");
    wait::drive(&[&scene.side], "room", || send(&scene, READ).ok());
    scene.tell("until efa_native_reads 1");
    scene.end(step, "keys");

    let step = "its payload comes in packets";
    let mut scene = Scene::new("keys");
    scene.side.receive(&memory).context(5).post().unwrap();
    scene.tell(&format!("send {CLEARED}"));
    // More packets than its control messages: part of the payload that was cleared first. It cannot be the
    // whole message, which would have to be cleared again.
    scene.tell("until efa_sent 20");
    scene.end(step, "keys");

    let step = "its payload is read";
    let mut scene = Scene::new("keys");
    scene.side.receive(&memory).context(5).post().unwrap();
    scene.victim.line.say(format!("send {READ}"));
    let reads = || (scene.side.statistic("efa_native_reads") > 0).then_some(());
    wait::drive(&[&scene.side], "a read", reads);
    // The device may have finished the read before.
    scene.victim.kill();
    if let Event::Failed(error) = ended(&scene.side, step) {
        assert_eq!(error.err, Errno::ECONNRESET, "{step}: {error:?}");
    }
    let _other = Scene::meet(&scene.side, "keys");

    for (step, keys) in [("the devices write", "keys"), ("its owner is to write", "none")] {
        let scene = Scene::new(keys);
        let write = || scene.side.out(scene.to_victim, &memory).context(5).write(&[scene.region]);
        wait::drive(&[&scene.side], "room", || write().ok());
        scene.end(step, keys);
    }
    for (step, keys) in [("the devices read", "keys"), ("its owner is to answer", "none")] {
        let scene = Scene::new(keys);
        let read = || scene.side.out(scene.to_victim, &memory).context(5).read(&[scene.region]);
        wait::drive(&[&scene.side], "room", || read().ok());
        scene.end(step, keys);
    }
}

/// A process on C's libfabric (`tests/capi/efa/victim.c`), which accepts packets and does not post receives.
struct CVictim(std::process::Child);

impl CVictim {
    fn start(side: &TestEndpoint) -> (Self, FiAddr) {
        let wanted = std::env::var("EFA_VICTIM").expect("folders of libraries, a program, its arguments");
        let mut words = wanted.split('\n');
        let libraries = words.next().unwrap();
        let mut command = Command::new(words.next().unwrap());
        command.env("LD_LIBRARY_PATH", libraries);
        let child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("a process on C's library");
        let mut name = String::new();
        BufReader::new(child.stdout.take().unwrap().take(200)).read_line(&mut name).unwrap();
        let to = insert(side, name.trim());
        child.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
        (Self(child), to)
    }
}

impl Drop for CVictim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs an EFA device and libfabric's headers: cargo xtask efa --test"]
fn what_a_dead_peer_of_c_s_owes_fails_and_who_comes_in_its_place_is_reached() {
    let side = open(true);
    let memory = Memory::patterned(READ, 1);
    let flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
    for (step, len) in [("a receipt", 64), ("word to send", CLEARED), ("word that it has read", READ)] {
        let (victim, to) = CVictim::start(&side);
        let known = side.statistic("efa_received");
        wait::drive(&[&side], "room", || side.out(to, memory.slice(..64)).context(4).send().ok());
        wait::drive(&[&side], step, || side.next_of(4)).done();
        wait::drive(&[&side], "a handshake", || (side.statistic("efa_received") > known).then_some(()));
        wait::drive(&[&side], "room", || side.out(to, memory.slice(..len)).context(5).msg(flags).send().ok());
        // The peer lives, and is probed more than once: no operation ends.
        wait::drive_through(Duration::from_millis(1500), &[&side]);
        assert_eq!(side.pending(), 0, "{step}");
        drop(victim);
        let error = fails(&side, step);
        assert_eq!(error.err, Errno::ECONNRESET, "{step}: {error:?}");
    }
}
