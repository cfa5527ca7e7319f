//! Two processes on one host: messages and remote accesses over every path of shared memory, with addresses
//! by name and by port.

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::{Naming, hints, open, parse, parse_region, region_text};

/// The tag that tells an echo to end.
const STOP: u64 = u64::MAX;
/// Maximum length of a message in bytes.
const MAX_MESSAGE_LEN: usize = 8 << 20;

/// Opens an endpoint, and exchanges addresses with the parent.
fn meet(line: &mut Line, naming: Naming) -> (TestEndpoint, FiAddr) {
    let side = open(naming);
    line.say(side.name());
    let to = side.insert_address(&parse(&line.hear()));
    (side, to)
}

/// The parent's half of [`meet`].
fn start(role: &str, naming: Naming) -> (Child, TestEndpoint, FiAddr) {
    let mut child = Child::start(role, &[naming.as_str()]);
    let side = open(naming);
    let to = side.insert_address(&parse(&child.line.hear()));
    child.line.say(side.name());
    (child, side, to)
}

/// Echoes messages until one has the tag [`STOP`].
pub fn echo(line: &mut Line, arguments: &[String]) {
    let (side, to) = meet(line, Naming::from_argument(&arguments[0]));
    let buffer = Memory::new(MAX_MESSAGE_LEN);
    loop {
        side.receive(&buffer).context(1).tag_ignoring(0, u64::MAX).post().unwrap();
        let entry = wait::drive(&[&side], "a message", || side.next_of(1)).done();
        if entry.tag == STOP {
            return;
        }
        let out = side.out(to, buffer.slice(..entry.len)).context(2).tag(entry.tag).data(entry.data);
        wait::drive(&[&side], "room", || out.send().ok());
        wait::drive(&[&side], "the echo", || side.next_of(2)).done();
    }
}

fn ping_pong(naming: Naming) {
    let (child, side, to) = start("echo", naming);
    let lengths = [0, 1, 63, 64, 65, 4_096, 8_160, 8_192, 16_384, 16_385, 100_000, 1 << 20, MAX_MESSAGE_LEN];
    for round in 0..3_u8 {
        for (number, len) in lengths.into_iter().enumerate() {
            let tag = (number * 1_000 + usize::from(round)) as u64;
            let (from, into) = (Memory::patterned(len, round), Memory::new(len));
            side.receive(&into).context(1).tag(tag).from(to).post().unwrap();
            let out = side.out(to, &from).context(2).tag(tag).data(tag + 7);
            wait::drive(&[&side], "room", || out.send().ok());
            let event = wait::drive(&[&side], "the echo", || side.next_of(1));
            let Event::Done(entry, source) = event else { panic!("{event:?}") };
            assert_eq!((entry.len, entry.data, source), (len, tag + 7, to));
            into.check(len, round);
            wait::drive(&[&side], "the send", || side.next_of(2)).done();
        }
    }
    wait::drive(&[&side], "room", || side.out(to, ()).tag(STOP).inject().send().ok());
    child.finish();
}

#[test]
fn ping_pong_by_name() {
    ping_pong(Naming::Names);
}

#[test]
fn ping_pong_by_port() {
    ping_pong(Naming::Ports);
}

#[test]
fn ping_pong_over_either_transport() {
    ping_pong(Naming::Crossed);
}

#[test]
fn ping_pong_by_udp_on_one_host() {
    ping_pong(Naming::Nearby);
}

#[test]
fn ping_pong_over_sockets() {
    ping_pong(Naming::Udp);
}

/// The length of message `number` of a stream: most are short, some are long.
fn length(number: usize) -> usize {
    match number % 50 {
        7 => 9_000 + number % 1_000,
        23 => 70_000 + number % 1_000,
        _ => number % 200,
    }
}

/// Receives a stream and checks each message. The line gives the number of messages, which is reported at the
/// end.
pub fn check_stream(line: &mut Line, arguments: &[String]) {
    let (side, _) = meet(line, Naming::from_argument(&arguments[0]));
    let count: usize = line.hear().parse().unwrap();
    let window = 64;
    let buffers: Vec<Memory> = (0..window).map(|_| Memory::new(80_000)).collect();
    let mut posted = 0;
    for number in 0..count {
        while posted < count && posted < number + window {
            side.receive(&buffers[posted % window]).context(posted + 1).post().unwrap();
            posted += 1;
        }
        let entry = wait::drive(&[&side], "a message", || side.next_of(number + 1)).done();
        assert_eq!((entry.data, entry.len), (number as u64, length(number)), "in order, each once");
        buffers[number % window].check(entry.len, number as u8);
    }
    line.say(count);
}

fn stream(naming: Naming) {
    const COUNT: usize = 20_000;
    let (mut child, side, to) = start("check_stream", naming);
    child.line.say(COUNT);
    let mut done = 0;
    for number in 0..COUNT {
        let from = Memory::patterned(length(number), number as u8);
        let out = side.out(to, &from).context(number + 1).data(number as u64);
        wait::drive(&[&side], "room", || out.send().ok());
        while let Some(event) = side.next() {
            event.done();
            done += 1;
        }
    }
    wait::drive(&[&side], "all sends", || {
        done += std::iter::from_fn(|| side.next()).map(Event::done).count();
        (done == COUNT).then_some(())
    });
    child.line.expect(&COUNT.to_string());
    child.finish();
}

#[test]
fn a_stream_arrives_in_order_by_name() {
    stream(Naming::Names);
}

#[test]
fn a_stream_arrives_in_order_by_port() {
    stream(Naming::Ports);
}

#[test]
fn a_stream_arrives_in_order_over_either_transport() {
    stream(Naming::Crossed);
}

#[test]
fn a_stream_arrives_in_order_by_udp_on_one_host() {
    stream(Naming::Nearby);
}

#[test]
fn a_stream_arrives_in_order_over_sockets() {
    stream(Naming::Udp);
}

/// Offers memory of the given kind for remote access, and executes commands: `check LENGTH SEED` and `fill
/// SEED` check and fill the memory, `data` reports a remote write.
pub fn target(line: &mut Line, arguments: &[String]) {
    let (side, _) = meet(line, Naming::from_argument(&arguments[0]));
    let library = arguments[1] == "library";
    let memory =
        if library { Memory::library(&side.domain, MAX_MESSAGE_LEN) } else { Memory::new(MAX_MESSAGE_LEN) };
    let region = side.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    line.say(region_text(&region));
    loop {
        side.poll();
        if !line.has_news() {
            std::thread::yield_now();
            continue;
        }
        let Some(text) = line.try_hear() else { return };
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["check", len, seed] => memory.check(len.parse().unwrap(), seed.parse().unwrap()),
            ["fill", seed] => memory.fill(seed.parse().unwrap()),
            ["data"] => {
                let entry = wait::drive(&[&side], "a remote write", || side.next()).done();
                line.say(format!("{} {}", entry.data, entry.len));
                continue;
            }
            _ => panic!("{text}"),
        }
        line.say("ok");
    }
}

fn remote_memory(naming: Naming, kind: &str) {
    let mut child = Child::start("target", &[naming.as_str(), kind]);
    let side = open(naming);
    let to = side.insert_address(&parse(&child.line.hear()));
    child.line.say(side.name());
    let there = parse_region(&child.line.hear());
    let lengths = [1, 8, 64, 4_096, 8_192, 16_385, 300_000, MAX_MESSAGE_LEN];
    for (number, len) in lengths.into_iter().enumerate() {
        let (seed, piece) = (number as u8 + 1, RemotePiece { len, ..there });
        let from = Memory::patterned(len, seed);
        wait::drive(&[&side], "room", || side.out(to, &from).context(1).write(&[piece]).ok());
        wait::drive(&[&side], "the write", || side.next_of(1)).done();
        child.line.say(format!("check {len} {seed}"));
        child.line.expect("ok");
        let seed = seed + 100;
        child.line.say(format!("fill {seed}"));
        child.line.expect("ok");
        let into = Memory::new(len);
        wait::drive(&[&side], "room", || side.out(to, &into).context(2).read(&[piece]).ok());
        wait::drive(&[&side], "the read", || side.next_of(2)).done();
        into.check(len, seed);
        wait::drive(&[&side], "room", || side.out(to, &from).context(3).data(99).write(&[piece]).ok());
        wait::drive(&[&side], "the write", || side.next_of(3)).done();
        child.line.say("data");
        child.line.expect(&format!("99 {len}"));
    }
    // Refused, and still there afterwards.
    let wrong = RemotePiece { key: there.key ^ 1, len: 8, ..there };
    let from = Memory::new(8);
    wait::drive(&[&side], "room", || side.out(to, &from).context(1).write(&[wrong]).ok());
    wait::drive(&[&side], "the refusal", || side.next_of(1)).failed();
    let piece = RemotePiece { len: 8, ..there };
    wait::drive(&[&side], "room", || side.out(to, &from).context(1).write(&[piece]).ok());
    wait::drive(&[&side], "the write", || side.next_of(1)).done();
    child.finish();
}

#[test]
fn remote_access_to_application_memory() {
    remote_memory(Naming::Names, "application");
}

#[test]
fn remote_access_to_library_memory() {
    remote_memory(Naming::Names, "library");
}

#[test]
fn remote_access_by_port() {
    remote_memory(Naming::Ports, "library");
}

#[test]
fn remote_access_over_either_transport() {
    for kind in ["application", "library"] {
        remote_memory(Naming::Crossed, kind);
    }
}

#[test]
fn remote_access_by_udp_on_one_host() {
    for kind in ["application", "library"] {
        remote_memory(Naming::Nearby, kind);
    }
}

/// Owns the address given by its parent until the line ends.
pub fn name_owner(line: &mut Line, arguments: &[String]) {
    let address = parse(&arguments[0]);
    let naming = if address.text().is_some() { Naming::Names } else { Naming::Ports };
    let side = Opening::new(hints(naming)).name(&address).open();
    assert_eq!(side.name(), address);
    side.receive(()).context(1).post().unwrap();
    line.say("ready");
    while !line.has_news() {
        side.poll();
        if side.next_of(1).is_some() {
            line.say("received");
            side.receive(()).context(1).post().unwrap();
        }
        std::thread::yield_now();
    }
}

#[test]
fn an_address_in_use_by_another_process_is_refused() {
    let port = open(Naming::Ports).name();
    let name = Address::from_text(&format!("fi_shm://ofi-test-{}", std::process::id()));
    for (address, naming) in [(name, Naming::Names), (port, Naming::Ports)] {
        // The port's first owner has just closed.
        let mut owner = Child::start("name_owner", &[&address.to_string()]);
        owner.line.expect("ready");
        let error = Opening::new(hints(naming)).name(&address).try_open().err().expect("an address in use");
        assert_eq!(error.errno(), Errno::EADDRINUSE, "{error}");
        let side = open(naming);
        let to = side.insert_address(&address);
        wait::drive(&[&side], "room", || side.out(to, ()).inject().send().ok());
        wait::drive(&[&side], "the message", || owner.line.has_news().then_some(()));
        owner.line.expect("received");
        owner.kill();
        wait::until("the address of a dead process", || {
            Opening::new(hints(naming)).name(&address).try_open().is_ok()
        });
    }
}

/// An endpoint whose queue has a descriptor to wait on.
fn open_sleeper() -> TestEndpoint {
    Opening::new(hints(Naming::Names)).wait_obj(WaitObj::Fd).open()
}

/// Sleeps until the queue has an entry, by the descriptor or by a blocking read.
fn sleep_for_next(side: &TestEndpoint, by_descriptor: bool) -> CqTaggedEntry {
    let start = Instant::now();
    let mut entry = [CqTaggedEntry::EMPTY];
    loop {
        let read = if by_descriptor {
            let read = side.rx.read(&mut CqBuffer::new(&mut entry));
            if read.as_ref().is_err_and(Error::is_again) && side.rx.trywait().is_ok() {
                let fd = side.rx.wait_fd().expect("FI_WAIT_FD");
                let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: `poll` is an array of one descriptor, as stated.
                let found = unsafe { libc::poll(&raw mut poll, 1, 5_000) };
                assert_eq!(found, 1, "a lost wake-up\n{}", side.report());
            }
            read
        } else {
            side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(Duration::from_secs(5)))
        };
        match read {
            Ok(_) => return entry[0],
            Err(error) if error.is_again() => {
                assert!(start.elapsed() < Duration::from_secs(5), "a lost wake-up\n{}", side.report());
            }
            Err(error) => panic!("{error}: {:?}", side.rx.read_error()),
        }
    }
}

/// As [`echo`], but sleeps instead of polling. Sometimes waits before it answers, so that the other end
/// sleeps, too.
pub fn sleeping_echo(line: &mut Line, arguments: &[String]) {
    let by_descriptor = arguments[0] == "descriptor";
    let side = open_sleeper();
    line.say(side.name());
    let to = side.insert_address(&parse(&line.hear()));
    let buffer = Memory::new(100_000);
    side.receive(&buffer).context(1).post().unwrap();
    line.say("ready");
    loop {
        let entry = sleep_for_next(&side, by_descriptor);
        if entry.flags.contains(CompletionFlags::SEND) {
            continue;
        }
        if entry.data == STOP {
            return;
        }
        buffer.check(entry.len, entry.data as u8);
        if entry.data.is_multiple_of(64) {
            std::thread::sleep(Duration::from_micros(entry.data % 300));
        }
        let out = side.out(to, buffer.slice(..entry.len)).context(2).data(entry.data);
        wait::drive(&[], "room", || out.send().ok());
        side.receive(&buffer).context(1).post().unwrap();
    }
}

fn sleeping_ping_pong(how: &str) {
    const ROUNDS: u64 = 6_000;
    let mut child = Child::start("sleeping_echo", &[how]);
    let side = open_sleeper();
    let to = side.insert_address(&parse(&child.line.hear()));
    child.line.say(side.name());
    child.line.expect("ready");
    let into = Memory::new(100_000);
    for round in 0..ROUNDS {
        let len = if round % 50 == 7 { 100_000 } else { (round % 200) as usize };
        let from = Memory::patterned(len, round as u8);
        side.receive(&into).context(1).post().unwrap();
        if round % 64 == 32 {
            std::thread::sleep(Duration::from_micros(round % 300));
        }
        let out = side.out(to, &from).context(2).data(round);
        wait::drive(&[], "room", || out.send().ok());
        let (mut sent, mut received) = (false, false);
        while !sent || !received {
            let entry = sleep_for_next(&side, how == "descriptor");
            sent |= entry.op_context == Context(2);
            if entry.op_context == Context(1) {
                received = true;
                assert_eq!((entry.data, entry.len), (round, len));
                into.check(len, round as u8);
            }
        }
    }
    wait::drive(&[&side], "room", || side.out(to, ()).data(STOP).inject().send().ok());
    child.finish();
}

#[test]
fn sleeping_processes_wake_each_other_by_descriptor() {
    sleeping_ping_pong("descriptor");
}

#[test]
fn sleeping_processes_wake_each_other_by_blocking_read() {
    sleeping_ping_pong("read");
}

/// Offers memory under automatic progress, and makes no library calls until the parent asks for the check.
pub fn idle_target(line: &mut Line, arguments: &[String]) {
    let side = Opening::new(hints(Naming::Names).progress(Progress::Auto)).open();
    let memory = if arguments[0] == "library" {
        Memory::library(&side.domain, MAX_MESSAGE_LEN)
    } else {
        Memory::new(MAX_MESSAGE_LEN)
    };
    let region = side.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    let into = Memory::new(MAX_MESSAGE_LEN);
    side.receive(&into).context(1).post().unwrap();
    line.say(side.name());
    line.say(region_text(&region));
    line.expect("check");
    memory.check(MAX_MESSAGE_LEN, 1);
    into.check(MAX_MESSAGE_LEN, 2);
    line.say("ok");
}

#[test]
fn a_process_with_automatic_progress_serves_without_a_call() {
    for kind in ["application", "library"] {
        let mut child = Child::start("idle_target", &[kind]);
        let side = open(Naming::Names);
        let to = side.insert_address(&parse(&child.line.hear()));
        let there = parse_region(&child.line.hear());
        let (one, two) = (Memory::patterned(MAX_MESSAGE_LEN, 1), Memory::patterned(MAX_MESSAGE_LEN, 2));
        wait::drive(&[&side], "room", || side.out(to, &one).context(1).write(&[there]).ok());
        wait::drive(&[&side], "a write to a process that makes no calls", || side.next_of(1)).done();
        let back = Memory::new(MAX_MESSAGE_LEN);
        wait::drive(&[&side], "room", || side.out(to, &back).context(2).read(&[there]).ok());
        wait::drive(&[&side], "a read from a process that makes no calls", || side.next_of(2)).done();
        back.check(MAX_MESSAGE_LEN, 1);
        let flags = OpFlags::DELIVERY_COMPLETE;
        wait::drive(&[&side], "room", || side.out(to, &two).context(3).msg(flags).send().ok());
        wait::drive(&[&side], "delivery to a process that makes no calls", || side.next_of(3)).done();
        child.line.say("check");
        child.line.expect("ok");
        child.finish();
    }
}

/// Hints with atomics.
fn atomic_hints(naming: Naming) -> Hints {
    hints(naming).caps(Caps::MSG | Caps::RMA | Caps::ATOMIC)
}

/// The numbers that counting processes add to: type and offset. The owner executes the last two under a lock:
/// a double complex with the alignment of a double, and a type too wide for any atomic instruction.
const COUNTED: [(Datatype, usize); 5] = [
    (Datatype::Uint64, 0),
    (Datatype::Int32, 8),
    (Datatype::Double, 16),
    (Datatype::DoubleComplex, 24),
    (Datatype::LongDoubleComplex, 64),
];
const COUNTERS: usize = 3;
const EACH: usize = 2_000;

/// The representation of a small number.
fn number(datatype: Datatype, value: u64) -> Vec<u8> {
    let extended = |value: u64| -> Vec<u8> {
        let zeroes = value.leading_zeros();
        let exponent = if value == 0 { 0 } else { 0x3FFF + 63 - u128::from(zeroes) };
        (exponent << 64 | u128::from(value.checked_shl(zeroes).unwrap_or(0))).to_ne_bytes().to_vec()
    };
    match datatype {
        Datatype::Uint64 => value.to_ne_bytes().to_vec(),
        Datatype::Int32 => (value as i32).to_ne_bytes().to_vec(),
        Datatype::Double => (value as f64).to_ne_bytes().to_vec(),
        Datatype::DoubleComplex => [(value as f64).to_ne_bytes(), [0; 8]].concat(),
        Datatype::LongDoubleComplex => [extended(value), vec![0; 16]].concat(),
        other => panic!("{other}"),
    }
}

/// Adds 1 to each of the counted numbers, many times.
pub fn counting(line: &mut Line, arguments: &[String]) {
    let side = Opening::new(atomic_hints(Naming::from_argument(&arguments[2]))).open();
    let to = side.insert_address(&parse(&arguments[0]));
    let there = parse_region(&arguments[1]);
    line.say("ready");
    line.expect("go");
    let ones = COUNTED.map(|(datatype, _)| {
        let bytes = number(datatype, 1);
        let memory = Memory::new(bytes.len());
        memory.slice(..).put(&bytes);
        memory
    });
    for _ in 0..EACH {
        for (one, (datatype, at)) in ones.iter().zip(COUNTED) {
            let piece = [RemotePiece { addr: there.addr + at as u64, len: datatype.size(), key: there.key }];
            let out = side.out(to, one).context(1);
            wait::drive(&[&side], "room", || out.atomic(FiOp::Sum, datatype, &piece).ok());
        }
        for _ in COUNTED {
            wait::drive(&[&side], "the sum", || side.next_of(1)).done();
        }
    }
    line.say("done");
}

fn count_together(naming: Naming, library: bool) {
    let side = Opening::new(atomic_hints(naming)).open();
    let memory = if library { Memory::library(&side.domain, 96) } else { Memory::new(96) };
    let region = side.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    let arguments = [side.name().to_string(), region_text(&region)];
    let mut children: Vec<Child> = (0..COUNTERS)
        .map(|_| Child::start("counting", &[&arguments[0], &arguments[1], naming.as_str()]))
        .collect();
    for child in &mut children {
        child.line.expect("ready");
    }
    for child in &mut children {
        child.line.say("go");
    }
    for child in &mut children {
        wait::drive(&[&side], "a process that counts", || child.line.has_news().then_some(()));
        child.line.expect("done");
    }
    let bytes = memory.bytes();
    for (datatype, at) in COUNTED {
        let found = &bytes[at..at + datatype.size()];
        assert_eq!(found, number(datatype, (COUNTERS * EACH) as u64), "{datatype}");
    }
    children.into_iter().for_each(Child::finish);
}

#[test]
fn processes_count_together_in_application_memory() {
    count_together(Naming::Names, false);
}

#[test]
fn processes_count_together_in_library_memory() {
    count_together(Naming::Names, true);
}

#[test]
fn processes_count_together_over_either_transport() {
    count_together(Naming::Crossed, false);
    count_together(Naming::Crossed, true);
}

#[test]
fn processes_count_together_by_udp_on_one_host() {
    count_together(Naming::Nearby, true);
}
