//! A target that ends the connection of an initiator tells it why: when it closes, when another initiator takes its
//! place, and when its flow fails.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mxl::{BatchHints, GrainWriter};
use mxl_fabrics::message::{Message, Why};
use mxl_fabrics::{
    Driven, Error, Initiator, Merge, MergePath, OwnKeys, PeerState, Provider, Received, Target, TargetInfo,
    Transfer,
};

use super::common::{ANY, Ends, Folder, LONG, Running, both, byte_of, camera, command, microphone};
use super::hostile_target::Hostile;

const PROVIDERS: [Provider; 2] = [Provider::Shm, Provider::Udp];

/// Polls an initiator whose target does not run.
fn alone(initiator: &mut Initiator, what: &str, is_done: impl Fn(&Initiator) -> bool) {
    let begin = Instant::now();
    while !is_done(initiator) {
        initiator.poll().unwrap();
        std::thread::sleep(Duration::from_micros(50));
        assert!(begin.elapsed() < LONG, "{what}: {:?}", initiator.targets().collect::<Vec<_>>());
    }
}

fn state(initiator: &Initiator, id: u64) -> PeerState {
    initiator.target(id).unwrap().0
}

fn connected(initiator: &mut Initiator, target: &mut Target) {
    let id = target.info().id;
    both(initiator, target, |initiator, _| state(initiator, id) == PeerState::Connected);
}

fn events(initiator: &mut Initiator) -> Vec<Transfer> {
    std::iter::from_fn(|| initiator.event()).collect()
}

fn write(writer: &GrainWriter, index: u64) {
    let mut grain = writer.open(index).unwrap();
    let bytes = vec![byte_of(index); grain.len()];
    grain.write(0, &bytes).unwrap();
    grain.commit().unwrap();
}

/// A target that closes: the initiator sends nothing meanwhile, so nothing of it fails, and it has only the farewell to
/// go by. A target that comes back at its `place` is found again.
fn closes(provider: Provider, place: (Option<&str>, Option<&str>)) {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let open = || Target::open(&far.domain(), &definition, provider, place, Some(4711)).unwrap();
    let mut target = open();
    let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
    initiator.add(target.info()).unwrap();
    connected(&mut initiator, &mut target);
    events(&mut initiator);
    drop(target);
    alone(&mut initiator, &format!("{provider}: no farewell"), |initiator| {
        state(initiator, 4711) == PeerState::Parted(Why::Closed)
    });
    let told = events(&mut initiator);
    let parted = Transfer::Parted { target: 4711, why: Why::Closed };
    assert_eq!(told, [Transfer::Disconnected { target: 4711 }, parted], "{provider}");
    assert_eq!(initiator.target(4711).unwrap().1.parted, 1, "{provider}");
    assert_eq!(initiator.nonsense(), 0, "{provider}");
    assert!(initiator.metrics().contains("mxl_initiator_parted_total"), "{provider}");
    // It is greeted until it is back, and the reason stays until then.
    assert!(initiator.check().is_ok() && !initiator.is_idle());
    assert!(!initiator.connect(Duration::from_millis(600)).unwrap(), "{provider}");
    assert_eq!(state(&initiator, 4711), PeerState::Parted(Why::Closed), "{provider}");
    if place == ANY {
        return; // It would come back at another address.
    }
    let mut target = open();
    connected(&mut initiator, &mut target);
    write(&writer, 77);
    initiator.send(77).unwrap();
    both(&mut initiator, &mut target, |_, received| {
        matches!(received, Some(Received::Grain { index: 77, invalid: false, .. }))
    });
}

#[test]
fn a_target_that_closes_tells_it_and_is_waited_for() {
    // Below the ports that the system assigns.
    let service = (10_000 + std::process::id() % 5_000 * 2).to_string();
    closes(Provider::Shm, (Some(&format!("fi_shm://mxl-parted-{service}")), None));
    closes(Provider::Tcp, (Some("127.0.0.1"), Some(&service)));
}

#[test]
fn the_paths_of_a_merge_that_closes_tell_their_initiators() {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let _writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let path = |provider| MergePath { provider, node: None, service: None, id: None, options: None };
    let paths = PROVIDERS.map(path);
    let mut merge = Merge::open(&far.domain(), &definition, &paths).unwrap();
    let mut initiators = Vec::new();
    for (at, provider) in PROVIDERS.into_iter().enumerate() {
        let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        initiator.add(merge.path(at).unwrap().info()).unwrap();
        let begin = Instant::now();
        while !initiator.is_idle() {
            initiator.poll().unwrap();
            merge.poll().unwrap();
            assert!(begin.elapsed() < LONG, "{provider}");
        }
        initiators.push((initiator, merge.path(at).unwrap().info().id));
    }
    drop(merge);
    for (initiator, id) in &mut initiators {
        let id = *id;
        alone(initiator, "no farewell", |initiator| state(initiator, id) == PeerState::Parted(Why::Closed));
    }
}

fn replaces(provider: Provider) {
    let (near, far, other) = (Folder::new(), Folder::new(), Folder::new());
    let definition = camera();
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let mut target = Target::open(&far.domain(), &definition, provider, ANY, None).unwrap();
    let info = target.info().clone();
    let open = || {
        let mut made = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        made.add(&info).unwrap();
        made
    };
    let replaced = |initiator: &Initiator| state(initiator, info.id) == PeerState::Parted(Why::Replaced);
    let mut old = open();
    connected(&mut old, &mut target);
    let mut new = open();
    connected(&mut new, &mut target);
    both(&mut old, &mut target, |old, _| replaced(old));
    assert!(matches!(old.check(), Err(Error::Replaced(id)) if id == info.id), "{provider}");
    assert!(matches!(old.connect(LONG), Err(Error::Replaced(_))), "{provider}");
    assert!(matches!(old.settle(LONG), Err(Error::Replaced(_))), "{provider}");
    assert!(matches!(new.add(&info), Err(Error::Exists(_))), "{provider}");
    // It does not greet the target any more.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        old.poll().unwrap();
        new.poll().unwrap();
        target.poll().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((target.stats().taken, target.stats().parted), (2, 1), "{provider}");
    assert!(replaced(&old) && new.is_idle(), "{provider}");
    // It serves its other targets.
    let mut second = Target::open(&other.domain(), &definition, provider, ANY, None).unwrap();
    old.add(second.info()).unwrap();
    connected(&mut old, &mut second);
    assert!(old.check().is_ok(), "{provider}");
    write(&writer, 9);
    old.send(9).unwrap();
    both(&mut old, &mut second, |_, received| matches!(received, Some(Received::Grain { index: 9, .. })));
    both(&mut old, &mut second, |old, _| old.is_idle());
    assert!(old.settle(LONG).unwrap(), "{provider}");
    assert!(matches!(old.connect(LONG), Err(Error::Replaced(id)) if id == info.id), "{provider}");
    // An info that is as new takes the place back; an older one does not count.
    let ours = info.ours.clone().unwrap();
    let older = TargetInfo { ours: Some(OwnKeys { epoch: ours.epoch - 1, ..ours.clone() }), ..info.clone() };
    assert!(matches!(old.add(&older), Err(Error::Exists(_))), "{provider}");
    old.add(&info).unwrap();
    connected(&mut old, &mut target);
    both(&mut new, &mut target, |new, _| replaced(new));
    assert_eq!((old.nonsense(), new.nonsense()), (0, 0), "{provider}");
}

#[test]
fn a_replaced_initiator_stops_with_an_error_until_its_target_is_added_again() {
    PROVIDERS.into_iter().for_each(replaces);
}

/// Writes are in flight when the next initiator comes, so the farewell races their failure.
#[test]
fn initiators_that_send_do_not_fight_for_their_target() {
    for provider in PROVIDERS {
        let (near, far) = (Folder::new(), Folder::new());
        let definition = camera();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let target =
            Driven::start(Target::open(&far.domain(), &definition, provider, ANY, None).unwrap()).unwrap();
        let info = target.with(|target| target.info().clone());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let write_all = || {
                let end = Instant::now() + LONG * 2;
                for index in 1000.. {
                    if is_over.load(Ordering::Relaxed) || Instant::now() > end {
                        return;
                    }
                    write(&writer, index);
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            scope.spawn(write_all);
            let reader = near.domain().read_grains(definition.id).unwrap();
            let send = |initiator: &Initiator| initiator.target(info.id).unwrap();
            let mut initiators: Vec<Driven<Initiator>> = Vec::new();
            for life in 1..=8 {
                let mut made = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
                made.add(&info).unwrap();
                initiators.push(Driven::start(made).unwrap());
                // All send until the newest has sent some, and all the others have stopped.
                let begin = Instant::now();
                let is_settled = |initiators: &[Driven<Initiator>]| {
                    let mut rest =
                        initiators.iter().rev().map(|initiator| initiator.with(|there| send(there)));
                    rest.next().is_some_and(|(_, stats)| stats.done > 3)
                        && rest.all(|(state, _)| state == PeerState::Parted(Why::Replaced))
                };
                while !is_settled(&initiators) {
                    for initiator in &initiators {
                        // Overwritten in the meantime, or not there yet.
                        let _ = initiator.with(|initiator| initiator.send(reader.head()));
                        while initiator.wait(Duration::ZERO).unwrap().is_some() {}
                    }
                    while target.wait(Duration::ZERO).unwrap().is_some() {}
                    std::thread::sleep(Duration::from_micros(500));
                    if begin.elapsed() > LONG {
                        is_over.store(true, Ordering::Relaxed);
                    }
                    assert!(begin.elapsed() < LONG, "{provider}: initiator {life} is not the only one");
                }
            }
            is_over.store(true, Ordering::Relaxed);
            // An initiator that a busy machine leaves no time may have connected anew, at its own place.
            let stats = target.with(|target| target.stats());
            assert!((7..14).contains(&stats.parted) && stats.taken < 24, "{provider}: {stats:?}");
        });
    }
}

fn fails(provider: Provider) {
    let Ends { near: _near, far, definition, writer, mut target, mut initiator } = Ends::open(provider);
    let id = target.info().id;
    connected(&mut initiator, &mut target);
    let data = far.path().join(format!("{}.mxl-flow", definition.id)).join("data");
    std::fs::OpenOptions::new().write(true).open(data).unwrap().set_len(0).unwrap();
    let begin = Instant::now();
    let mut index = 10;
    while target.poll().is_ok() {
        write(&writer, index);
        initiator.send(index).unwrap();
        initiator.poll().unwrap();
        index += 1;
        std::thread::sleep(Duration::from_millis(1));
        assert!(begin.elapsed() < LONG, "{provider}: the target does not notice it");
    }
    assert!(!target.is_connected());
    alone(&mut initiator, &format!("{provider}: no farewell"), |initiator| {
        state(initiator, id) == PeerState::Parted(Why::Broken)
    });
}

#[test]
fn a_target_whose_flow_fails_tells_its_initiator() {
    PROVIDERS.into_iter().for_each(fails);
}

#[test]
fn farewells_that_make_no_sense_are_counted_and_dropped() {
    for provider in [(Provider::Shm, "shm"), (Provider::Udp, "udp")] {
        let near = Folder::new();
        let definition = camera();
        let _writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let mut initiator = Initiator::open(&near.domain(), definition.id, provider.0, ANY).unwrap();
        // Two targets: each knows the nonce of its own connection only, and they have nothing in common.
        let mut targets = [1, 2].map(|id| Hostile::open(provider, &definition, id));
        for target in &mut targets {
            initiator.add(&target.info).unwrap();
            target.accept(&mut initiator);
        }
        let [first, second] = &targets;
        let nonce = first.nonce;
        let farewell = Message::Refused { nonce, why: Why::Closed }.encode();
        let with_code = |code: u8| [&farewell[..farewell.len() - 1], &[code]].concat();
        for code in [8, 9, 100, 255] {
            first.is_nonsense(&mut initiator, with_code(code), &format!("code {code}"));
        }
        first.is_nonsense(
            &mut initiator,
            farewell[..farewell.len() - 1].to_vec(),
            "a farewell without a reason",
        );
        first.is_nonsense(&mut initiator, [&farewell[..], &[0]].concat(), "a farewell with a byte too many");
        first.is_nonsense(&mut initiator, vec![10], "a payload");
        first.is_nonsense(&mut initiator, vec![12; 9], "a message of a later protocol");
        first.is_nonsense(
            &mut initiator,
            Message::Bye { token: nonce ^ 5 }.encode(),
            "an initiator's message",
        );
        for why in [Why::Closed, Why::Replaced, Why::Version] {
            for wrong in [0, 1, nonce.wrapping_add(1), nonce.wrapping_sub(1), nonce ^ 5] {
                let said = Message::Refused { nonce: wrong, why }.encode();
                second.is_nonsense(&mut initiator, said, &format!("nonce {wrong}, {why:?}"));
            }
        }
        // From the target itself it counts, once.
        let counted = initiator.nonsense();
        first.say(farewell.clone());
        first.say(farewell);
        let begin = Instant::now();
        while state(&initiator, 1) != PeerState::Parted(Why::Closed) {
            first.turn(&mut initiator);
            assert!(begin.elapsed() < LONG, "the right farewell does not count");
        }
        // A later message shows that the second one has arrived too.
        first.is_nonsense(&mut initiator, vec![12; 9], "a message of a later protocol");
        let (_, stats) = initiator.target(1).unwrap();
        assert_eq!((stats.parted, initiator.nonsense()), (1, counted + 1), "{}", provider.1);
        assert_eq!(state(&initiator, 2), PeerState::Connected, "{}", provider.1);
    }
}

/// The writes of a parted initiator may fail before its farewell arrives. Then it has given up the connection already,
/// and would greet the target again and take the place back.
#[test]
fn a_farewell_that_comes_after_the_connection_was_lost_counts_until_the_next_greeting() {
    for provider in [(Provider::Shm, "shm"), (Provider::Udp, "udp")] {
        let near = Folder::new();
        let definition = camera();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let mut initiator = Initiator::open(&near.domain(), definition.id, provider.0, ANY).unwrap();
        let mut target = Hostile::open(provider, &definition, 1);
        initiator.add(&target.info).unwrap();
        // A busy machine may leave the initiator no time before its next greeting.
        for life in 1..=5 {
            target.accept(&mut initiator);
            write(&writer, 10 * life);
            initiator.send(10 * life).unwrap();
            let begin = Instant::now();
            // Its request is not answered.
            while state(&initiator, 1) == PeerState::Connected {
                target.turn(&mut initiator);
                assert!(begin.elapsed() < LONG, "{}: it waits for ever", provider.1);
            }
            target.say(Message::Refused { nonce: target.nonce, why: Why::Replaced }.encode());
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(600) {
                target.turn(&mut initiator);
            }
            if state(&initiator, 1) == PeerState::Parted(Why::Replaced) {
                break;
            }
        }
        assert_eq!(state(&initiator, 1), PeerState::Parted(Why::Replaced), "{}", provider.1);
        let told = events(&mut initiator);
        let [.., lost, parted] = &told[..] else { panic!("{told:?}") };
        assert_eq!(*lost, Transfer::Disconnected { target: 1 });
        assert_eq!(*parted, Transfer::Parted { target: 1, why: Why::Replaced });
        assert_eq!(initiator.nonsense(), 0, "{}", provider.1);
    }
}

/// A flow of samples: the same for the other kind of ring.
#[test]
fn a_target_of_samples_that_closes_tells_it() {
    for provider in PROVIDERS {
        let (near, far) = (Folder::new(), Folder::new());
        let definition = microphone(2);
        let _writer = near.domain().create_samples(&definition, &BatchHints::default()).unwrap().writer;
        let mut target = Target::open(&far.domain(), &definition, provider, ANY, Some(5)).unwrap();
        let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        initiator.add(target.info()).unwrap();
        connected(&mut initiator, &mut target);
        // By a progress thread, which ends first.
        drop(Driven::start(target).unwrap());
        alone(&mut initiator, &format!("{provider}: no farewell"), |initiator| {
            state(initiator, 5) == PeerState::Parted(Why::Closed)
        });
    }
}

/// Starts the program, and reads its lines in a thread.
fn reading(arguments: &[&str], domain: &Folder) -> (Running, std::sync::mpsc::Receiver<String>) {
    let mut program = command(arguments, domain);
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (send, said) = std::sync::mpsc::channel();
    // The thread ends with the process.
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
    (Running(child), said)
}

fn wait_for(path: &Path) {
    let begin = Instant::now();
    while std::fs::read(path).map_or(0, |text| text.len()) == 0 {
        assert!(begin.elapsed() < LONG, "no target info");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a program to end.
fn end(program: &mut Running) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = program.0.try_wait().unwrap() {
            return status;
        }
        assert!(begin.elapsed() < LONG, "the program goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process with a target that ends, one with its successor, and two with initiators, the second of which takes the
/// place of the first.
fn processes_part(provider: &str, node: &str, service: Option<&str>) {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let file = far.path().join("flow.json");
    std::fs::write(&file, definition.to_json()).unwrap();
    let (info, flow) = (far.path().join("info.json"), definition.id.to_string());
    let at = format!("@{}", info.display());
    let (file, path) = (file.display().to_string(), info.display().to_string());
    let mut target = vec!["-p", provider, "-f", &file, "-t", &path, "--target-id", "4711", "-n", node];
    target.extend(service.map(|service| ["-s", service]).into_iter().flatten());
    let ending = [&target[..], &["-c", "20"]].concat();
    let initiator = ["-i", "-p", provider, "-f", &flow, "-t", &at];
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let mut index = 1000;
    let mut until_said = |said: &std::sync::mpsc::Receiver<String>, wanted: &str| {
        let begin = Instant::now();
        let mut all: Vec<String> = Vec::new();
        while !all.iter().any(|line| line.contains(wanted)) {
            assert!(begin.elapsed() < LONG, "{provider}: {wanted} is missing in {all:?}");
            write(&writer, index);
            index += 1;
            std::thread::sleep(Duration::from_millis(5));
            // Without a target each grain is lost.
            all.extend(said.try_iter().filter(|line| !line.contains("Lost")));
        }
    };
    let (mut ending, _of_target) = reading(&ending, &far);
    wait_for(&info);
    let (mut sending, said) = reading(&initiator, &near);
    until_said(&said, "Parted { target: 4711, why: Closed }");
    // It has its address until it has closed.
    assert!(end(&mut ending).success());
    let (_receiving, arrived) = reading(&target, &far);
    until_said(&said, "Connected { target: 4711 }");
    until_said(&arrived, "Connected");
    let (_next, of_next) = reading(&initiator, &near);
    until_said(&of_next, "Connected { target: 4711 }");
    until_said(&said, "Parted { target: 4711, why: Replaced }");
    // The replaced one ends with an error, and the new one goes on.
    let status = end(&mut sending);
    let mut error = String::new();
    sending.0.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!(status.code(), Some(1), "{provider}: {error}");
    assert!(error.contains("another initiator writes to target 4711"), "{provider}: {error}");
}

#[test]
fn processes_part_over_shared_memory() {
    processes_part("shm", &format!("fi_shm://mxl-parts-{}", std::process::id()), None);
}

#[test]
fn processes_part_over_udp() {
    let service = (20_000 + std::process::id() % 10_000).to_string();
    processes_part("udp", "127.0.0.1", Some(&service));
}

#[cfg(feature = "efa")]
#[test]
#[ignore = "needs an EFA device: cargo xtask efa --test"]
fn targets_part_over_efa() {
    closes(Provider::Efa, ANY);
    replaces(Provider::Efa);
    fails(Provider::Efa);
}

/// The device's address in the guest.
#[cfg(feature = "verbs")]
const DEVICE: &str = "10.77.0.1";

/// In a process whose peers on the same host use the device too.
#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device of 10.77.0.1: cargo xtask rdma"]
fn targets_part_over_verbs() {
    const ONLY_DEVICES: (&str, &str) = ("FI_VERBS_SHARED_MEMORY", "0");
    if std::env::var(ONLY_DEVICES.0).as_deref() != Ok(ONLY_DEVICES.1) {
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        program.args(["parted::targets_part_over_verbs", "--exact", "--include-ignored", "--nocapture"]);
        assert!(program.env(ONLY_DEVICES.0, ONLY_DEVICES.1).status().unwrap().success());
        return;
    }
    closes(Provider::Verbs, (Some(DEVICE), Some("7478")));
    replaces(Provider::Verbs);
    fails(Provider::Verbs);
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device of 10.77.0.1: cargo xtask rdma"]
fn processes_part_over_verbs() {
    processes_part("verbs", DEVICE, Some("7479"));
}
