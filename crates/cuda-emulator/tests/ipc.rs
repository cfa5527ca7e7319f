//! Device memory of two processes of a host over `shm`: accesses go straight between devices (CUDA IPC).

#[allow(dead_code, reason = "only other tests run without a driver")]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc;

use ofi_core::copy;
use ofi_core::hmem::cuda::Cuda;
use ofi_core::hmem::{DeviceHandle, MappedPeerDevice};
use ofi_shm::fuzz::Hostile;
use ofi_testkit::prelude::*;
use support::{INSIDE, again, is_inside};

/// Set in the process that owns the memory.
const OWNS: &str = "CUDA_EMULATOR_OWNS";
const LEN: usize = 2 << 20;

fn open() -> TestEndpoint {
    let caps = Caps::MSG | Caps::RMA | Caps::HMEM | Caps::ATOMIC;
    let modes = MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::ALLOCATED | MrMode::HMEM;
    Opening::new(Hints::new().provider("shm").ep_type(EpType::Rdm).caps(caps).mr_mode(modes)).open()
}

/// The process that owns the memory: does what its input says, and answers each line.
fn own() {
    let cuda = Cuda::open(0).unwrap();
    let side = open();
    let memory = Memory::device(&cuda, LEN);
    let read_only = Memory::device(&cuda, LEN);
    let half = Memory::device(&cuda, 2 * LEN);
    let both = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    let regions = [
        side.register(&memory, both).unwrap(),
        side.register(&read_only, MrAccess::REMOTE_READ).unwrap(),
        side.register(half.slice(..LEN), both).unwrap(),
    ];
    let (told, lines) = mpsc::channel();
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(std::result::Result::ok).try_for_each(|line| told.send(line))
    });
    let keys: Vec<String> =
        regions.iter().map(|region| format!("{} {}", region.key(), region.base())).collect();
    let (handle, _) = cuda.export(memory.as_ptr().addr() as u64).unwrap_or(([0; 64], 0));
    let handle: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("answer {} {handle} {}", side.name().text().unwrap(), keys.join(" "));
    loop {
        side.poll();
        let line = match lines.try_recv() {
            Ok(line) => line,
            Err(mpsc::TryRecvError::Empty) => continue,
            Err(mpsc::TryRecvError::Disconnected) => return,
        };
        let (word, number) = line.split_once(' ').unwrap();
        let number: usize = number.parse().unwrap();
        let memories = [&memory, &read_only, &half];
        let answer = match word {
            "fill" => {
                memories.iter().for_each(|memory| memory.fill(number as u8));
                true
            }
            "check" => Memory::patterned(LEN, number as u8).bytes() == memory.bytes()[..LEN],
            "close" => regions[number].close().is_ok(),
            _ => panic!("{line}"),
        };
        println!("answer {answer} {}", copy::counted());
    }
}

/// The other process, and its memory.
struct Owner {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    at: FiAddr,
    /// The whole of an allocation, one that may only be read, and a half of one.
    regions: [RemotePiece; 3],
    /// The driver's handle of the first one.
    handle: [u8; 64],
}

impl Owner {
    fn start(test: &str, side: &TestEndpoint, settings: &[(&str, &str)]) -> Self {
        let mut command = again(test);
        command.env(OWNS, "1").envs(settings.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (orders, answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut owner = Self {
            process,
            orders,
            answers: BufReader::new(answers),
            at: FiAddr::UNSPEC,
            regions: [RemotePiece { addr: 0, len: LEN, key: 0 }; 3],
            handle: [0; 64],
        };
        let words = owner.answer();
        owner.at = side.insert_address(&Address::from_text(&words[0]));
        for (at, byte) in owner.handle.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&words[1][2 * at..2 * at + 2], 16).unwrap();
        }
        for (region, words) in owner.regions.iter_mut().zip(words[2..].chunks(2)) {
            (region.key, region.addr) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        }
        owner
    }

    fn answer(&mut self) -> Vec<String> {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the owner has ended");
            if let Some(answer) = line.split_once("answer ").map(|(_, answer)| answer) {
                return answer.split_whitespace().map(str::to_owned).collect();
            }
        }
    }

    /// Gives an order, and returns the bytes that the owner's processor has copied so far.
    fn order(&mut self, order: &str) -> u64 {
        writeln!(self.orders, "{order}").unwrap();
        let answer = self.answer();
        assert_eq!(answer[0], "true", "{order}");
        answer[1].parse().unwrap()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An owner, and a hostile peer that may lend the owner's memory as its own.
struct HostileOwner {
    owner: Owner,
    hostile: Hostile,
    /// The hostile peer's address.
    at: FiAddr,
    /// The whole of an allocation of the owner's.
    device: DeviceHandle,
}

impl HostileOwner {
    fn new(test: &str, side: &TestEndpoint) -> Self {
        let owner = Owner::start(test, side, &[]);
        let mut hostile = Hostile::new(&side.name()).unwrap();
        hostile.greet().unwrap();
        let at = side.insert_address(&hostile.address());
        let device = DeviceHandle { uuid: Cuda::open(0).unwrap().uuid(), handle: owner.handle, offset: 0 };
        Self { owner, hostile, at, device }
    }
}

/// Runs an access of this process to its end.
fn access(side: &TestEndpoint, owner: &Owner, local: &Memory, remote: RemotePiece, write: bool) -> Event {
    let out = || side.out(owner.at, local.slice(..remote.len)).context(1);
    wait::drive(&[side], "room", || {
        let posted = if write { out().write(&[remote]) } else { out().read(&[remote]) };
        match posted {
            Ok(()) => Some(()),
            Err(error) if error.is_again() => None,
            Err(error) => panic!("{error}"),
        }
    });
    wait::drive(&[side], "the end", || side.next())
}

/// Writes and reads all of a region of both kinds of memory. Returns the bytes that both processors have copied in the
/// last write, those that went straight between devices, and its time.
fn rounds(
    side: &TestEndpoint,
    owner: &mut Owner,
    cuda: Option<&Cuda>,
    region: usize,
) -> (u64, u64, Duration) {
    let local = cuda.map_or_else(|| Memory::new(LEN), |cuda| Memory::device(cuda, LEN));
    let _registered = side.register(&local, MrAccess::all()).unwrap();
    let remote = owner.regions[region];
    let mut last = (0, 0, Duration::ZERO);
    // The first access may wait for the owner's answer.
    for seed in 0..3 {
        local.fill(seed);
        let theirs = owner.order(&format!("fill {}", seed + 50));
        let (ours, mapped) = (copy::counted(), side.statistic("shm_device_bytes"));
        let began = Instant::now();
        if region != 1 {
            access(side, owner, &local, remote, true).done();
        }
        let written = (copy::counted() - ours, side.statistic("shm_device_bytes") - mapped, began.elapsed());
        if region == 0 {
            let theirs = owner.order(&format!("check {seed}")) - theirs;
            // The check itself copies the memory to the host, chunk by chunk.
            last = (written.0 + theirs.saturating_sub(LEN as u64), written.1, written.2);
        } else {
            last = written;
        }
        let found = Memory::new(LEN);
        let _found = side.register(&found, MrAccess::all()).unwrap();
        access(side, owner, &found, remote, false).done();
        found.check(LEN, if region == 1 { seed + 50 } else { seed });
        local.slice(..).put(&vec![0; LEN]);
        access(side, owner, &local, remote, false).done();
        local.check(LEN, if region == 1 { seed + 50 } else { seed });
    }
    last
}

/// Whether this process is the test's own; otherwise runs it, or owns the memory.
fn is_test(name: &str, settings: &[(&str, &str)]) -> bool {
    if std::env::var_os(OWNS).is_some() {
        own();
        return false;
    }
    is_inside(name, settings) && std::env::var_os(INSIDE).is_some()
}

#[test]
fn accesses_go_straight_between_devices_of_two_processes() {
    let name = "accesses_go_straight_between_devices_of_two_processes";
    if !is_test(name, &[]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let side = open();
    let mut owner = Owner::start(name, &side, &[]);
    let (copied, mapped, took) = rounds(&side, &mut owner, Some(&cuda), 0);
    println!("mapped: {copied} bytes copied by processors, {mapped} by devices alone, {took:?}");
    assert_eq!((copied, mapped), (0, LEN as u64), "one copy, of the device");
    assert_eq!(side.statistic("shm_device_mappings"), 1);
    let (_, mapped, _) = rounds(&side, &mut owner, None, 0);
    assert_eq!(mapped, LEN as u64, "from memory of the host, too");
    // Memory that is not all of an allocation, or that peers may not write, is not mapped.
    for region in [1, 2] {
        let (_, mapped, took) = rounds(&side, &mut owner, Some(&cuda), region);
        println!("region {region} through the host: {took:?}");
        assert_eq!(mapped, 0, "region {region}");
    }
    assert_eq!(side.statistic("shm_device_mappings"), 1);
    // The owner's answers hold where this end has mapped the memory.
    let local = Memory::device(&cuda, LEN);
    let _registered = side.register(&local, MrAccess::all()).unwrap();
    let whole = owner.regions[0];
    for (at, len) in [(1, LEN), (LEN as u64 - 10, 11), (u64::MAX - whole.addr, 8)] {
        let beyond = RemotePiece { addr: whole.addr.wrapping_add(at), len, ..whole };
        for write in [true, false] {
            assert_eq!(access(&side, &owner, &local, beyond, write).failed().err, Errno::EACCES, "{at}");
        }
    }
    let plain = Memory::new(8);
    let number = RemotePiece { len: 8, ..whole };
    wait::drive(&[&side], "room", || {
        side.out(owner.at, &plain).context(2).atomic(FiOp::Sum, Datatype::Uint64, &[number]).ok()
    });
    let refused = wait::drive(&[&side], "the atomic's end", || side.next()).failed();
    assert_eq!(refused.err, Errno::EOPNOTSUPP);
    // A closed registration is not accessed any more, and its mapping is closed.
    owner.order("close 0");
    local.fill(9);
    assert_eq!(access(&side, &owner, &local, whole, true).failed().err, Errno::EKEYREJECTED);
    wait::drive(&[&side], "the mapping's end", || (side.statistic("shm_device_mappings") == 0).then_some(()));
}

/// What a peer claims about its memory holds only as far as the driver confirms it.
#[test]
fn forged_handles_and_ranges_are_refused() {
    let name = "forged_handles_and_ranges_are_refused";
    if !is_test(name, &[]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let side = open();
    let owner = Owner::start(name, &side, &[]);
    let whole = DeviceHandle { uuid: cuda.uuid(), handle: owner.handle, offset: 0 };
    let open = |handle: DeviceHandle, len| {
        MappedPeerDevice::open(&handle, len).map(drop).map_err(|error| error.errno())
    };
    assert_eq!(open(whole, LEN as u64), Ok(()));
    assert_eq!(open(whole, LEN as u64 + 1), Err(Errno::EINVAL));
    assert_eq!(open(DeviceHandle { offset: 1, ..whole }, LEN as u64), Err(Errno::EINVAL));
    assert_eq!(open(DeviceHandle { offset: u64::MAX, ..whole }, 2), Err(Errno::EINVAL));
    assert_eq!(open(DeviceHandle { uuid: [7; 16], ..whole }, 1), Err(Errno::ENODEV));
    for at in 0..64 {
        let mut forged = whole;
        forged.handle[at] ^= 0x55;
        let _ = open(forged, LEN as u64); // refused, or memory that its owner has exported
    }
    assert!(open(DeviceHandle { handle: [7; 64], ..whole }, 1).is_err());
}

/// A peer that answers requests by any claim about a device's memory: its victim maps what the driver confirms and
/// nothing else, and each access stays in the range that was confirmed.
#[test]
fn a_hostile_owner_lends_no_more_than_the_driver_confirms() {
    let name = "a_hostile_owner_lends_no_more_than_the_driver_confirms";
    if !is_test(name, &[]) {
        return;
    }
    let side = open();
    let HostileOwner { owner: _owner, hostile, at, device: real } = HostileOwner::new(name, &side);
    let local = Memory::new(64);
    let _registered = side.register(&local, MrAccess::all()).unwrap();
    let read = |addr: u64, key: u64| {
        let there = [RemotePiece { addr, len: 64, key }];
        wait::drive(&[&side], "room", || side.out(at, &local).context(key as usize).read(&there).ok());
    };
    let settle = || (0..1000).for_each(|_| side.poll());
    let whole = LEN as u64;
    // Nobody has asked for this one.
    hostile.lend_device(1, (0, whole), real).unwrap();
    settle();
    let claims = [
        (whole + 1, real),
        (u64::MAX, real),
        (whole, DeviceHandle { offset: 1, ..real }),
        (2, DeviceHandle { offset: u64::MAX, ..real }),
        (whole, DeviceHandle { uuid: [7; 16], ..real }),
        (whole, DeviceHandle { handle: [7; 64], ..real }),
    ];
    for (key, (len, device)) in (10..).zip(claims) {
        read(0, key);
        settle();
        hostile.lend_device(key, (0, len), device).unwrap();
        settle();
        assert_eq!(side.statistic("shm_device_mappings"), 0, "{len} bytes, {device:?}");
    }
    // The closing of a registration that is not mapped says nothing.
    hostile.withdraw(10).unwrap();
    hostile.withdraw(u64::MAX).unwrap();
    settle();
    assert!(side.next().is_none(), "the hostile peer answers no access");
}

/// The victim checks each access against the range that its peer has named, whatever its first address.
#[test]
fn accesses_stay_in_the_range_that_a_hostile_owner_lends() {
    let name = "accesses_stay_in_the_range_that_a_hostile_owner_lends";
    if !is_test(name, &[]) {
        return;
    }
    let side = open();
    let HostileOwner { mut owner, hostile, at, device } = HostileOwner::new(name, &side);
    owner.order("fill 3");
    let local = Memory::new(64);
    let _registered = side.register(&local, MrAccess::all()).unwrap();
    let base = u64::MAX - 99; // the last address is below the first one
    let access = |addr: u64, len: usize, write: bool| {
        let there = [RemotePiece { addr, len, key: 5 }];
        let out = || side.out(at, local.slice(..len)).context(1);
        wait::drive(&[&side], "room", || if write { out().write(&there) } else { out().read(&there) }.ok());
    };
    access(base, 64, false);
    (0..1000).for_each(|_| side.poll());
    hostile.lend_device(5, (base, 100), device).unwrap();
    assert_eq!(wait::drive(&[&side], "the read", || side.next()).done().op_context, Context(1));
    assert_eq!(side.statistic("shm_device_mappings"), 1);
    assert_eq!(local.bytes(), Memory::patterned(LEN, 3).bytes()[..64]);
    for (addr, len) in [(base + 40, 61), (base - 1, 8), (0, 8), (u64::MAX, 2)] {
        for write in [false, true] {
            access(addr, len, write);
            let failed = wait::drive(&[&side], "the refusal", || side.next()).failed();
            assert_eq!(failed.err, Errno::EACCES, "{len} bytes at {addr:#x}");
        }
    }
    owner.order("check 3");
}

/// Regression test: where the table is full, the keys of one access drove each other out for ever. The mapping of the
/// first one stays, and the owner executes the access.
#[test]
fn keys_of_one_access_do_not_drive_each_other_out() {
    const LIMIT: u64 = 256;
    let name = "keys_of_one_access_do_not_drive_each_other_out";
    if !is_test(name, &[]) {
        return;
    }
    let side = open();
    let HostileOwner { owner: _owner, hostile: many, at: at_many, device } = HostileOwner::new(name, &side);
    let mut few = Hostile::new(&side.name()).unwrap();
    few.greet().unwrap();
    let at_few = side.insert_address(&few.address());
    let local = Memory::new(64);
    let _registered = side.register(&local, MrAccess::all()).unwrap();
    let read = |at: FiAddr, keys: &[u64]| {
        let len = local.len() / keys.len();
        let there: Vec<_> = keys.iter().map(|&key| RemotePiece { addr: 0, len, key }).collect();
        wait::drive(&[&side], "room", || side.out(at, &local).context(keys[0] as usize).read(&there).ok());
    };
    let settle = || (0..1000).for_each(|_| side.poll());
    let map = |at: FiAddr, owner: &Hostile, key: u64| {
        read(at, &[key]);
        settle();
        owner.lend_device(key, (0, LEN as u64), device).unwrap();
        wait::drive(&[&side], "the read", || side.next()).done();
    };
    (1..LIMIT).for_each(|key| map(at_many, &many, key));
    map(at_few, &few, 1000);
    assert_eq!(side.statistic("shm_device_mappings"), LIMIT);
    read(at_few, &[2000, 2001]);
    settle();
    for key in [2000, 2001] {
        few.lend_device(key, (0, LEN as u64), device).unwrap();
        settle();
    }
    assert!(side.next().is_none(), "the owner, which answers no access, executes this one");
    // An answer counts only if this end has asked again, and an answer for the full table would take another's place.
    few.lend_device(2000, (0, LEN as u64), DeviceHandle { handle: [7; 64], ..device }).unwrap();
    settle();
    assert_eq!(side.statistic("shm_device_mappings"), LIMIT, "the first key of the access stays mapped");
}

/// A peer cannot make this end open mappings without bound: beyond 256, the one used least recently is closed.
#[test]
fn mappings_are_bounded_and_the_one_used_least_recently_goes_first() {
    const LIMIT: u64 = 256;
    let name = "mappings_are_bounded_and_the_one_used_least_recently_goes_first";
    if !is_test(name, &[]) {
        return;
    }
    let side = open();
    let HostileOwner { owner: _owner, hostile, at, device } = HostileOwner::new(name, &side);
    let local = Memory::new(64);
    let _registered = side.register(&local, MrAccess::all()).unwrap();
    let read = |key: u64| {
        let there = [RemotePiece { addr: 0, len: 64, key }];
        wait::drive(&[&side], "room", || side.out(at, &local).context(key as usize).read(&there).ok());
    };
    let ends = |key: u64| {
        let done = wait::drive(&[&side], "the read", || side.next()).done();
        assert_eq!(done.op_context, Context(key as usize));
    };
    let settle = || (0..1000).for_each(|_| side.poll());
    let map = |key: u64| {
        read(key);
        hostile.lend_device(key, (0, LEN as u64), device).unwrap();
        ends(key);
    };
    read(0);
    settle();
    hostile.lend_device(0, (0, LEN as u64), device).unwrap();
    ends(0);
    (1..LIMIT).for_each(map);
    assert_eq!(side.statistic("shm_device_mappings"), LIMIT);
    read(0);
    ends(0);
    map(LIMIT);
    assert_eq!(side.statistic("shm_device_mappings"), LIMIT);
    // The first one was used again, so it is still there; the second one has to be lent again.
    read(0);
    ends(0);
    read(1);
    settle();
    assert!(side.next().is_none(), "the mapping was closed");
    hostile.lend_device(1, (0, LEN as u64), device).unwrap();
    ends(1);
    assert_eq!(side.statistic("shm_device_mappings"), LIMIT);
}

/// A mapping ends with its owner's process, and an access under way fails.
#[test]
fn mappings_end_with_their_owner() {
    let name = "mappings_end_with_their_owner";
    if !is_test(name, &[]) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let side = open();
    let mut owner = Owner::start(name, &side, &[]);
    rounds(&side, &mut owner, Some(&cuda), 0);
    assert_eq!(side.statistic("shm_device_mappings"), 1);
    owner.process.kill().unwrap();
    owner.process.wait().unwrap();
    wait::drive(&[&side], "the mapping's end", || (side.statistic("shm_device_mappings") == 0).then_some(()));
}

/// Accesses through memory of the host, where devices' memory is not mapped.
fn through_the_host(name: &str, settings: &[(&str, &str)], change: impl Fn(&TestEndpoint)) {
    if !is_test(name, settings) {
        return;
    }
    let cuda = Cuda::open(0).unwrap();
    let side = open();
    change(&side);
    let mut owner = Owner::start(name, &side, settings);
    let (copied, mapped, took) = rounds(&side, &mut owner, Some(&cuda), 0);
    println!("staged: {copied} bytes copied by processors, {mapped} by devices alone, {took:?}");
    assert_eq!(mapped, 0);
    assert!(copied > 0, "by processors");
    rounds(&side, &mut owner, None, 0);
    assert_eq!(side.statistic("shm_device_mappings"), 0);
}

#[test]
fn a_handle_that_cannot_be_opened_is_done_without() {
    let settings = [("CUDA_EMULATOR_FAIL", "cuIpcOpenMemHandle_v2:217")];
    through_the_host("a_handle_that_cannot_be_opened_is_done_without", &settings, |_| {});
}

#[test]
fn memory_without_a_handle_is_copied() {
    let settings = [("CUDA_EMULATOR_FAIL", "cuIpcGetMemHandle:801")];
    through_the_host("memory_without_a_handle_is_copied", &settings, |_| {});
}

#[test]
fn nothing_is_mapped_if_the_user_says_so() {
    let settings = [("FI_HMEM_DISABLE_P2P", "1")];
    through_the_host("nothing_is_mapped_if_the_user_says_so", &settings, |_| {});
}

#[test]
fn nothing_is_mapped_if_the_endpoint_says_so() {
    through_the_host("nothing_is_mapped_if_the_endpoint_says_so", &[], |side| {
        side.ep.set_option(EpOption::HmemP2p, 3).unwrap();
    });
}
