//! Connections between processes, and what happens when one is killed at each step.

use std::any::Any;
use std::sync::Arc;

use ofi_core::cm::packet::{Kind, Packet};
use ofi_core::endpoint::Ep;
use ofi_shm::Shm;
use ofi_shm::fuzz::Hostile;
use ofi_testkit::connect::{Listener, event_of, outcome, try_outcome};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::parse;

/// How long the library may take to notice a death (1 s), and the same again for a busy machine.
const BOUND: Duration = Duration::from_secs(2);
const ANY: FiAddr = FiAddr::UNSPEC;

/// Providers that connect over shared memory; `udp` does so within one host.
const PROVIDERS: [&str; 2] = ["shm", "udp"];

fn opening_of(provider: &str) -> Opening {
    let caps = Caps::MSG | Caps::TAGGED | Caps::RMA;
    let hints = Hints::new().provider(provider).ep_type(EpType::Msg).caps(caps).mr_mode(MrMode::PROV_KEY);
    let loopback = Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    Opening::new(if matches!(provider, "udp" | "tcp") { hints.src_addr(loopback) } else { hints })
}

fn opening() -> Opening {
    opening_of("shm")
}

fn listen_of(provider: &str) -> Listener {
    Listener::open(&opening_of(provider).first_info().unwrap()).unwrap()
}

fn listen() -> Listener {
    listen_of("shm")
}

/// Accepts one connection and echoes messages until the connection ends.
pub fn server(line: &mut Line, arguments: &[String]) {
    let provider = &arguments[0];
    let listener = listen_of(provider);
    line.say(listener.pep.name().unwrap());
    let request = listener.request(&[]);
    assert_eq!(request.conn_data, b"ping");
    let side = opening_of(provider).info(*request.info.unwrap()).open_disabled().unwrap();
    side.ep.accept(b"pong").unwrap();
    event_of(&side, EventKind::Connected, &[]);
    let buffer = Memory::new(1 << 20);
    loop {
        if side.receive(&buffer).context(1).post().is_err() {
            break;
        }
        let event = wait::drive(&[&side], "a message or the end", || side.next_of(1));
        let Event::Done(entry, _) = event else { break };
        let out = side.out(ANY, buffer.slice(..entry.len)).context(2);
        wait::drive(&[&side], "room", || out.send().ok());
        wait::drive(&[&side], "the echo", || side.next_of(2)).done();
    }
    event_of(&side, EventKind::Shutdown, &[]);
    line.say("over");
}

/// Listens, and never answers.
pub fn silent_server(line: &mut Line, arguments: &[String]) {
    let provider = &arguments[0];
    let listener = listen_of(provider);
    line.say(listener.pep.name().unwrap());
    let _request = listener.request(&[]);
    line.say("asked");
    line.hear();
}

/// Connects, reports it, and waits.
pub fn caller(line: &mut Line, arguments: &[String]) {
    let provider = &arguments[0];
    let side = opening_of(provider).open_disabled().unwrap();
    side.ep.connect(&parse(&line.hear()), &[]).unwrap();
    event_of(&side, EventKind::Connected, &[]);
    line.say("connected");
    while line.hear() != "end" {
        side.poll();
    }
    side.ep.shutdown().unwrap();
    line.say("shut down");
    line.hear();
}

/// Requests a connection, and never polls.
pub fn silent_caller(line: &mut Line, arguments: &[String]) {
    let provider = &arguments[0];
    let side = opening_of(provider).open_disabled().unwrap();
    side.ep.connect(&parse(&line.hear()), &[]).unwrap();
    line.say("asked");
    line.hear();
}

#[test]
fn two_processes_connect_talk_and_part() {
    for provider in PROVIDERS {
        let mut child = Child::start("server", &[provider]);
        let side = opening_of(provider).open_disabled().unwrap();
        side.ep.connect(&parse(&child.line.hear()), b"ping").unwrap();
        assert_eq!(event_of(&side, EventKind::Connected, &[]).conn_data, b"pong");
        for len in [0, 8, 5_000, 1 << 20] {
            let (sent, got) = (Memory::patterned(len, 1), Memory::new(len));
            side.receive(&got).context(1).post().unwrap();
            wait::drive(&[&side], "room", || side.out(ANY, &sent).context(2).send().ok());
            wait::drive(&[&side], "the echo", || side.next_of(1)).done();
            wait::drive(&[&side], "the send", || side.next_of(2)).done();
            got.check(len, 1);
        }
        side.ep.shutdown().unwrap();
        child.line.expect("over");
        child.finish();
    }
}

#[test]
fn a_peer_killed_while_connected_is_a_shutdown() {
    for provider in PROVIDERS {
        let listener = listen_of(provider);
        let mut child = Child::start("caller", &[provider]);
        child.line.say(listener.pep.name().unwrap());
        let request = listener.request(&[]);
        let side = opening_of(provider).info(*request.info.unwrap()).open_disabled().unwrap();
        side.ep.accept(&[]).unwrap();
        child.line.expect("connected");
        event_of(&side, EventKind::Connected, &[]);
        let memory = Memory::new(16 << 20);
        side.receive(&memory).context(1).post().unwrap();
        wait::drive(&[&side], "room", || side.out(ANY, &memory).context(2).send().ok());
        child.kill();
        let start = Instant::now();
        for context in [1, 2] {
            wait::drive(&[&side], "an error", || side.next_of(context)).failed();
        }
        event_of(&side, EventKind::Shutdown, &[]);
        assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
        assert_eq!(side.out(ANY, ()).send().unwrap_err().errno(), Errno::ESHUTDOWN);
    }
}

#[test]
fn a_peer_killed_right_after_its_shutdown_is_one_shutdown() {
    for provider in PROVIDERS {
        let listener = listen_of(provider);
        let mut child = Child::start("caller", &[provider]);
        child.line.say(listener.pep.name().unwrap());
        let request = listener.request(&[]);
        let side = opening_of(provider).info(*request.info.unwrap()).open_disabled().unwrap();
        side.ep.accept(&[]).unwrap();
        child.line.expect("connected");
        event_of(&side, EventKind::Connected, &[]);
        child.line.say("end");
        child.line.expect("shut down");
        child.kill();
        event_of(&side, EventKind::Shutdown, &[]);
        wait::drive_through(Duration::from_millis(600), &[&side]);
        assert!(try_outcome(side.eq()).is_none());
    }
}

/// The connections of [`what_was_sent_before_an_end_comes_before_it`], and the rounds in which they are made.
const FEW: usize = 8;
const ROUNDS: usize = 40;

/// Starves the helper thread of this process: it shares one processor with a spinning thread, while the
/// calling thread runs on another.
fn slow_helper() {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let helper = tasks
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name.trim() == "ofi-shm-helper")
        })
        .find_map(|task| task.file_name().to_str()?.parse::<libc::pid_t>().ok())
        .expect("a helper thread");
    let processors = processors();
    let (own, other) = (processors[0], processors[processors.len() - 1]);
    pin(0, own);
    pin(helper, other);
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call only reads the structure.
    assert_eq!(unsafe { libc::sched_setscheduler(helper, libc::SCHED_IDLE, &raw const parameter) }, 0);
    std::thread::spawn(move || {
        pin(0, other);
        loop {
            std::hint::spin_loop();
        }
    });
}

/// The processors that this process may run on.
fn processors() -> Vec<usize> {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills the structure, which is as long as stated.
    assert_eq!(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) }, 0);
    // SAFETY: the numbers are below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Binds a thread (0: the calling one) to a processor.
fn pin(thread: libc::pid_t, processor: usize) {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the processor came from a set of this size.
    unsafe { libc::CPU_SET(processor, &mut one) };
    // SAFETY: the call only reads the structure, which is as long as stated.
    assert_eq!(unsafe { libc::sched_setaffinity(thread, size_of_val(&one), &raw const one) }, 0);
}

/// As [`wait::drive`], without yielding the processor in between.
fn spin<T>(side: &TestEndpoint, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        side.poll();
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < wait::BOUND, "{}", side.report());
    }
}

/// Connects a few endpoints on one queue, sends a message on each, and reads the answers, while its helper
/// thread hardly runs.
pub fn slow_hearer(line: &mut Line, _arguments: &[String]) {
    let listener = parse(&line.hear());
    for round in 0..ROUNDS {
        let mut sides: Vec<TestEndpoint> = Vec::new();
        for _ in 0..FEW {
            let opening = match sides.first() {
                Some(first) => opening().beside(first).queue(&first.rx),
                None => opening(),
            };
            let side = opening.open_disabled().unwrap();
            side.ep.connect(&listener, &[]).unwrap();
            event_of(&side, EventKind::Connected, &[]);
            if round == 0 && sides.is_empty() {
                slow_helper();
            }
            side.receive(()).context(1).post().unwrap();
            sides.push(side);
        }
        // One receive gets no message: it ends with its connection.
        sides[0].receive(()).context(2).post().unwrap();
        for side in &sides {
            wait::drive(&[&sides[0]], "room", || side.out(ANY, ()).inject().context(3).send().ok());
        }
        for left in (0..FEW).rev() {
            let event = spin(&sides[0], || match sides[0].next() {
                Some(event) if event.context() == 3 => None,
                other => other,
            });
            assert_eq!(event.context(), 1, "round {round}, {left} more messages: {event:?}");
            event.done();
        }
        let error = wait::drive(&[&sides[0]], "the end", || sides[0].next_of(2)).failed();
        assert_eq!(error.err, Errno::ECANCELED);
    }
    line.say("heard");
}

/// Endpoints share a queue: a program that has read the last message of each does not read further.
#[test]
fn what_was_sent_before_an_end_comes_before_it() {
    let listener = listen();
    let mut child = Child::start("slow_hearer", &[]);
    child.line.say(listener.pep.name().unwrap());
    for _ in 0..ROUNDS {
        let mut sides: Vec<TestEndpoint> = Vec::new();
        for _ in 0..FEW {
            let mut opening = opening().info(*listener.request(&[]).info.unwrap());
            if let Some(first) = sides.first() {
                opening = opening.beside(first).queue(&first.rx);
            }
            let side = opening.open_disabled().unwrap();
            side.ep.accept(&[]).unwrap();
            event_of(&side, EventKind::Connected, &[]);
            side.receive(()).context(1).post().unwrap();
            sides.push(side);
        }
        for _ in &sides {
            wait::drive(&[&sides[0]], "a message", || sides[0].next_of(1)).done();
        }
        for side in &sides {
            wait::drive(&[&sides[0]], "room", || side.out(ANY, ()).context(2).send().ok());
        }
    } // closes the endpoints, in the order of their opening
    child.line.expect("heard");
    child.finish();
}

#[test]
fn a_listener_killed_before_its_answer_refuses() {
    for provider in PROVIDERS {
        let mut child = Child::start("silent_server", &[provider]);
        let side = opening_of(provider).open_disabled().unwrap();
        side.ep.connect(&parse(&child.line.hear()), &[]).unwrap();
        child.line.expect("asked");
        child.kill();
        let start = Instant::now();
        assert_eq!(outcome(side.eq(), &[]).unwrap_err().err, Errno::ECONNREFUSED);
        assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    }
}

#[test]
fn a_caller_killed_before_the_answer_fails_the_acceptance() {
    for provider in PROVIDERS {
        let listener = listen_of(provider);
        for accepted_before in [false, true] {
            let mut child = Child::start("silent_caller", &[provider]);
            child.line.say(listener.pep.name().unwrap());
            let request = listener.request(&[]);
            child.line.expect("asked");
            let side = opening_of(provider).info(*request.info.unwrap()).open_disabled().unwrap();
            if accepted_before {
                side.ep.accept(&[]).unwrap();
            }
            child.kill();
            let start = Instant::now();
            if !accepted_before {
                side.ep.accept(&[]).unwrap();
            }
            match outcome(side.eq(), &[]) {
                // Over udp a thread of the library in the caller may have answered before the kill.
                Ok(event) if accepted_before => {
                    assert_eq!(event.kind, EventKind::Connected);
                    event_of(&side, EventKind::Shutdown, &[]);
                }
                other => assert_eq!(other.unwrap_err().err, Errno::ECONNREFUSED),
            }
            assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
        }
    }
}

/// Packets of every kind, valid and invalid, with guessed cookies.
fn hostile_packets() -> impl Iterator<Item = Vec<u8>> {
    let kinds = [Kind::Request, Kind::Accept, Kind::Confirm, Kind::Reject, Kind::Shutdown];
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..400).map(move |number| {
        let kind = kinds[random() as usize % kinds.len()];
        let errno = if kind == Kind::Reject { 1 + random() as u32 % 200 } else { 0 };
        let data: Vec<u8> = (0..random() % 300).map(|_| random() as u8).collect();
        let mut bytes = Packet { kind, cookie: random() % 3, errno, data: &data }.encode();
        if number % 2 == 0 {
            let at = random() as usize % bytes.len();
            bytes[at] = random() as u8;
        }
        if number % 5 == 0 {
            bytes.truncate(random() as usize % bytes.len());
        }
        bytes
    })
}

/// The address of an accepting endpoint's transport. The endpoint's name is its listener's, but any process can read
/// that of the transport in /proc/net/unix.
fn transport_address(side: &TestEndpoint) -> Address {
    let any: Arc<dyn Any + Send + Sync> = Arc::clone(&side.ep) as _;
    let ep: Arc<Ep<Shm>> = any.downcast().expect("an endpoint over shared memory");
    ep.transport_address().expect("an enabled endpoint")
}

#[test]
fn packets_of_a_stranger_change_nothing() {
    let listener = listen();
    listener.pep.set_backlog(4).unwrap();
    let caller = opening().open_disabled().unwrap();
    caller.ep.connect(&listener.pep.name().unwrap(), b"real").unwrap();
    let request = listener.request(&[]);
    let throw = |victim: &Address, look: &dyn Fn()| {
        let stranger = Hostile::new(victim).unwrap();
        for packet in hostile_packets() {
            wait::until("room in the victim's socket", || {
                look();
                stranger.drain();
                stranger.packet(&packet)
            });
        }
    };
    // While the caller connects.
    throw(&caller.name(), &|| assert!(try_outcome(caller.eq()).is_none()));
    // A valid packet to a passive endpoint is a connection request. The backlog limits their number.
    let strangers = std::cell::RefCell::new(Vec::new());
    throw(&listener.pep.name().unwrap(), &|| {
        let Some(outcome) = try_outcome(&listener.eq) else { return };
        let event = outcome.expect("an event");
        assert_eq!(event.kind, EventKind::ConnReq);
        strangers.borrow_mut().push(event);
        assert!(strangers.borrow().len() < 4, "the backlog is four, and one request is the real caller's");
    });
    strangers.borrow_mut().clear();
    let side = opening().info(*request.info.unwrap()).open_disabled().unwrap();
    side.ep.accept(&[]).unwrap();
    let own = transport_address(&side);
    // While the accepting end waits for the confirmation.
    throw(&own, &|| assert!(try_outcome(side.eq()).is_none()));
    event_of(&caller, EventKind::Connected, &[&side]);
    event_of(&side, EventKind::Connected, &[&caller]);
    // While it is connected. A stranger's handshake is not answered either.
    throw(&own, &|| assert!(try_outcome(side.eq()).is_none()));
    assert!(Hostile::new(&own).unwrap().greet().is_err());
    let (sent, got) = (Memory::patterned(100, 1), Memory::new(100));
    side.receive(&got).context(1).post().unwrap();
    wait::drive(&[&caller], "room", || caller.out(ANY, &sent).send().ok());
    wait::drive(&[&caller, &side], "the message", || side.next_of(1)).done();
    got.check(100, 1);
    assert!(
        side.statistic("cm_refused") > 0 && caller.statistic("cm_refused") > 0,
        "refused packets are not counted"
    );
}

/// Another socket has the port that the passive endpoint had.
#[test]
fn a_request_for_a_closed_passive_endpoint_is_refused_although_its_port_is_in_use() {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let opening = || opening_of("tcp");
    let info = opening().hints(|hints| hints.src_addr(Address::from(free))).first_info().unwrap();
    let listener = Listener::open(&info).unwrap();
    let caller = opening().open_disabled().unwrap();
    caller.ep.connect(&listener.pep.name().unwrap(), &[]).unwrap();
    let request = listener.request(&[&caller]);
    drop(listener);
    let _other = std::net::TcpListener::bind(free).unwrap();
    drop(request);
    assert_eq!(outcome(caller.eq(), &[&caller]).expect_err("refused").err, Errno::ECONNREFUSED);
}
