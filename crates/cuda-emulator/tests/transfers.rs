//! Device memory over the emulator: each test runs in a process whose `libcuda.so.1` is the emulator.

#[path = "support/memory.rs"]
mod memory;
mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use memory::{LONG, Memory, agent, memory, pattern};
use multirail::memory::cuda::{self, Cuda};
use multirail::{Agent, Config, Prepared, Remote, Way};
use ofi::{AddrFormat, Errno, Hints};
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};
use ofi_testkit::srd;
use support::{INSIDE, again, is_inside, without_driver};

/// A write and a read between all of both memories, after each has gone over both rails.
fn over_both_rails(
    [alice, bob]: [&Agent; 2],
    source: &Memory,
    target: &Memory,
    len: usize,
) -> (Prepared, Prepared) {
    alice.load(&bob.metadata().unwrap()).unwrap();
    let remote = [Remote { region: target.id, offset: 0, len: len as u64 }];
    let local = [source.whole.clone()];
    let write = alice.prepare("bob", Way::Write, &local, &remote).unwrap();
    let read = alice.prepare("bob", Way::Read, &local, &remote).unwrap();
    for _ in 0..3 {
        write.post(LONG).unwrap().wait().unwrap();
        read.post(LONG).unwrap().wait().unwrap();
    }
    assert!(alice.paths("bob").unwrap().iter().all(|path| path.moved > 0), "both rails are used");
    (write, read)
}

/// Writes and reads with every pair of kinds that includes a device.
fn every_pair(rails: &[&str]) {
    for (ours, theirs) in [("cuda", "dram"), ("dram", "cuda"), ("cuda", "cuda")] {
        let (alice, bob) = (agent("alice", rails), agent("bob", rails));
        for len in [1, 4097, (1 << 20) - 3, (11 << 20) + 5] {
            let (source, target) = (memory(&alice, ours, len), memory(&bob, theirs, len));
            bob.load(&alice.metadata().unwrap()).unwrap();
            alice.load(&bob.metadata().unwrap()).unwrap();
            let remote = [Remote { region: target.id, offset: 0, len: len as u64 }];
            let local = [source.whole.clone()];
            (source.fill)(&pattern(len, 1));
            let plan = alice.prepare("bob", Way::Write, &local, &remote).unwrap();
            let transfer = plan.post_notify(b"written", LONG).unwrap();
            let notification = bob.wait_notification(LONG).unwrap().expect("a notification");
            assert_eq!(notification.bytes, b"written");
            assert_eq!((target.contents)(), pattern(len, 1), "{len} bytes from {ours} to {theirs}");
            transfer.wait().unwrap();
            assert_eq!(transfer.progress().moved, len as u64);
            (target.fill)(&pattern(len, 2));
            let plan = alice.prepare("bob", Way::Read, &local, &remote).unwrap();
            plan.post(LONG).unwrap().wait().unwrap();
            assert_eq!((source.contents)(), pattern(len, 2), "{len} bytes from {theirs} to {ours}");
        }
        assert_eq!((alice.counts(), bob.counts()), Default::default(), "nothing was dropped");
        assert_eq!(alice.under_way().1, 0);
    }
}

#[test]
fn every_pair_of_kinds_over_shared_memory() {
    if is_inside("every_pair_of_kinds_over_shared_memory", &[]) {
        every_pair(&["shm"]);
    }
}

#[test]
fn every_pair_of_kinds_over_sockets() {
    if is_inside("every_pair_of_kinds_over_sockets", &[]) {
        every_pair(&["udp", "udp"]);
    }
}

/// The address of a rail of `verbs`.
fn socket(agent: &Agent, rail: usize) -> SocketAddr {
    let metadata = multirail::wire::Metadata::parse(&agent.metadata().unwrap()).unwrap();
    match metadata.rails[rail].address[..] {
        [_, _, high, low, a, b, c, d, ..] => {
            (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])).into()
        }
        ref other => panic!("an address of verbs: {other:?}"),
    }
}

/// Device memory goes through windows, over two rails of a device. One of them goes mute: the parts of chunks on it
/// move to the other, and arrive nowhere when its link is mended.
#[test]
fn chunks_of_windows_move_from_a_mute_rail() {
    const LEN: usize = 8 << 20;
    if !is_inside("chunks_of_windows_move_from_a_mute_rail", &[]) {
        return;
    }
    let device = SimulatedDevice::new("window0", Plan::default());
    ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider)); // a build with every provider has it already
    let hints = Hints::new().provider("verbs").addr_format(AddrFormat::SockaddrIn).domain("window0");
    let open = |name: &str| {
        let config = Config { stall_timeout: Duration::from_secs(1), ..Config::default() };
        let builder = Agent::builder(name).config(config).progress_thread(true).shared_memory(false);
        builder.map_devices(false).rail(hints.clone()).rail(hints.clone()).open().unwrap()
    };
    let (alice, bob) = (open("alice"), open("bob"));
    let (source, target) = (memory(&alice, "dram", LEN), memory(&bob, "cuda", LEN));
    let (write, read) = over_both_rails([&alice, &bob], &source, &target, LEN);

    device.mute(&[socket(&alice, 1), socket(&bob, 1)]);
    (source.fill)(&pattern(LEN, 3));
    write.post(LONG).unwrap().wait().unwrap();
    assert_eq!((target.contents)(), pattern(LEN, 3));
    let counts = alice.counts();
    assert!(counts.fenced > 0 && counts.moved > 0, "{counts:?}");
    assert!(device.late() > 0, "writes have left the device");
    (source.fill)(&vec![0; LEN]);
    read.post(LONG).unwrap().wait().unwrap();
    assert_eq!((source.contents)(), pattern(LEN, 3));
    assert_eq!(device.mend(), 0, "bob has ended the connection that they are for");
}

/// Both agents are on one host, so the device would not be used.
const NO_SHM: (&str, &str) = ("FI_EFA_ENABLE_SHM_TRANSFER", "0");

/// A simulated NIC of `efa`, and the hints for rails of it.
fn nic(name: &'static str) -> (Arc<srd::SimulatedDevice>, Hints) {
    let device = srd::SimulatedDevice::new(name, srd::Plan::default());
    ofi_efa::srd::add(Arc::new(srd::Handle(Arc::clone(&device))));
    let _ = ofi::register_provider(Arc::new(ofi_efa::EfaProvider)); // refused the second time
    (device, Hints::new().provider("efa").domain(format!("{name}-rdm")))
}

/// An agent whose device memory is not mapped by others.
fn unmapped(name: &str, hints: &[&Hints]) -> Agent {
    let config = Config { stall_timeout: Duration::from_secs(1), ..Config::default() };
    let builder = Agent::builder(name).config(config).progress_thread(true).shared_memory(false);
    let builder = hints.iter().fold(builder, |builder, hints| builder.rail((*hints).clone()));
    builder.map_devices(false).open().unwrap()
}

/// NICs write and read the memory of devices at both ends if they take the driver's dma-buf; otherwise the bytes go
/// through pool and windows.
fn over_a_nic(name: &'static str, is_direct: bool) {
    const LEN: usize = 8 << 20;
    let (device, hints) = nic(name);
    for (ours, theirs) in [("dram", "cuda"), ("cuda", "cuda"), ("cuda", "dram")] {
        let (alice, bob) = (unmapped("alice", &[&hints]), unmapped("bob", &[&hints]));
        let (source, target) = (memory(&alice, ours, LEN), memory(&bob, theirs, LEN));
        let metadata = bob.metadata().unwrap();
        let keys = multirail::wire::Metadata::parse(&metadata).unwrap().regions[0].keys.len();
        assert_eq!(keys, usize::from(is_direct || theirs == "dram"));
        alice.load(&metadata).unwrap();
        let remote = [Remote { region: target.id, offset: 0, len: LEN as u64 }];
        let local = [source.whole.clone()];
        for (way, seed) in [(Way::Write, 1), (Way::Read, 2)] {
            let from = if way == Way::Write { &source } else { &target };
            (from.fill)(&pattern(LEN, seed));
            let plan = alice.prepare("bob", way, &local, &remote).unwrap();
            device.take_accesses();
            plan.post(LONG).unwrap().wait().unwrap();
            let accesses: usize = device.take_accesses().iter().sum();
            // A chunk of the pool or of a window has 1 MiB, an access of a rail up to 4. Windows are written by their
            // owner until their keys are known.
            if is_direct {
                assert_eq!(accesses, LEN >> 22, "{way:?} of {ours} and {theirs}");
            }
            let to = if way == Way::Write { &target } else { &source };
            assert_eq!((to.contents)(), pattern(LEN, seed), "{way:?} of {ours} and {theirs}");
        }
    }
}

/// The peer's NIC refuses an access from our device's memory. Only the owner of the remote memory can name the reason,
/// and only if the processor sends the bytes. So the bytes go through the pool, and the transfer ends with the owner's
/// error, as one of host memory does.
#[test]
fn what_a_nic_refuses_of_a_device_goes_through_the_pool() {
    const LEN: usize = 3 << 20;
    let name = "what_a_nic_refuses_of_a_device_goes_through_the_pool";
    if !is_inside(name, &[("CUDA_EMULATOR_DMABUF", "1"), NO_SHM]) {
        return;
    }
    let (_device, hints) = nic("nic2");
    let (alice, bob) = (unmapped("alice", &[&hints]), unmapped("bob", &[&hints]));
    let target = memory(&bob, "dram", LEN);
    alice.load(&bob.metadata().unwrap()).unwrap();
    let remote = [Remote { region: target.id, offset: 0, len: LEN as u64 }];
    let sources = ["dram", "cuda"].map(|kind| memory(&alice, kind, LEN));
    let plans = sources.each_ref().map(|source| {
        alice.prepare("bob", Way::Write, std::slice::from_ref(&source.whole), &remote).unwrap()
    });
    plans.iter().for_each(|plan| plan.post(LONG).unwrap().wait().unwrap());
    drop(target);
    let errors = plans.each_ref().map(|plan| plan.post(LONG).unwrap().wait().unwrap_err().errno());
    assert_eq!(errors[0], errors[1]);
    assert_ne!(errors[1], Errno::EOPNOTSUPP);
}

/// NICs move memory of devices at both ends by its dma-bufs over two rails. One of them goes mute: its parts move to
/// the other, and their first copies have no effect later.
#[test]
fn device_memory_moves_from_a_mute_rail_by_dma_buf() {
    const LEN: usize = 16 << 20;
    if !is_inside("device_memory_moves_from_a_mute_rail_by_dma_buf", &[("CUDA_EMULATOR_DMABUF", "1"), NO_SHM])
    {
        return;
    }
    let (device, hints) = nic("nic3");
    let (alice, bob) = (unmapped("alice", &[&hints, &hints]), unmapped("bob", &[&hints, &hints]));
    let (source, target) = (memory(&alice, "cuda", LEN), memory(&bob, "cuda", LEN));
    let (write, read) = over_both_rails([&alice, &bob], &source, &target, LEN);

    let queue_pair = |agent: &Agent| {
        let metadata = multirail::wire::Metadata::parse(&agent.metadata().unwrap()).unwrap();
        let address = &metadata.rails[1].address;
        u16::from_le_bytes([address[16], address[17]])
    };
    let rails = [&alice, &bob].map(queue_pair);
    device.mute(&rails);
    (source.fill)(&pattern(LEN, 3));
    let written = write.post(LONG).unwrap();
    written.wait().unwrap();
    assert_eq!((target.contents)(), pattern(LEN, 3));
    let counts = alice.counts();
    assert!(counts.fenced > 0 && counts.moved > 0, "{counts:?}");
    assert!(device.flying() > 0, "the device has them still");
    assert!(!written.progress().is_quiet, "and reads their memory");
    (target.fill)(&pattern(LEN, 4));
    device.mend();
    assert!(written.wait_quiet(LONG).unwrap());
    assert_eq!((target.contents)(), pattern(LEN, 4), "no write came late");

    // Until both rails are used again.
    let before = alice.paths("bob").unwrap().iter().map(|path| path.moved).min().unwrap();
    let began = std::time::Instant::now();
    while alice.paths("bob").unwrap().iter().map(|path| path.moved).min().unwrap() == before {
        assert!(began.elapsed() < LONG, "{:?}", alice.paths("bob").unwrap());
        write.post(LONG).unwrap().wait().unwrap();
    }
    (target.fill)(&pattern(LEN, 5));
    device.mute(&rails);
    read.post(LONG).unwrap().wait().unwrap();
    assert_eq!((source.contents)(), pattern(LEN, 5));
    assert!(alice.counts().fenced > counts.fenced);
    (source.fill)(&pattern(LEN, 6));
    device.mend();
    while device.flying() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((source.contents)(), pattern(LEN, 6), "no read came late");
}

#[test]
fn device_memory_is_registered_by_dma_buf_where_the_driver_exports_it() {
    let name = "device_memory_is_registered_by_dma_buf_where_the_driver_exports_it";
    if is_inside(name, &[("CUDA_EMULATOR_DMABUF", "1"), NO_SHM]) {
        over_a_nic("nic0", true);
    }
}

#[test]
fn device_memory_without_a_dma_buf_is_staged() {
    if is_inside("device_memory_without_a_dma_buf_is_staged", &[("CUDA_EMULATOR_DMABUF", "0"), NO_SHM]) {
        over_a_nic("nic1", false);
    }
}

/// Ranges inside an allocation, in any order; memory beside them is not changed.
#[test]
fn parts_of_allocations_and_nothing_beside_them() {
    if !is_inside("parts_of_allocations_and_nothing_beside_them", &[]) {
        return;
    }
    let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
    let device = Cuda::open(0).unwrap();
    let source = alice.register_device(device.alloc(10_000).unwrap()).unwrap();
    let whole = device.alloc(10_000).unwrap();
    // SAFETY: `whole` lives until the end of this function, after the region.
    let part = unsafe { device.borrow(whole.address() + 1000, 8000) }.unwrap();
    let target = bob.register_device(part).unwrap();
    source.write_from(0, &pattern(10_000, 1)).unwrap();
    target.write_from(0, &[0xEE; 8000]).unwrap();
    alice.load(&bob.metadata().unwrap()).unwrap();
    let local = [source.slice(5000..5003).unwrap(), source.slice(10..4010).unwrap()];
    let remote = [
        Remote { region: target.id(), offset: 7997, len: 3 },
        Remote { region: target.id(), offset: 1, len: 4000 },
    ];
    let plan = alice.prepare("bob", Way::Write, &local, &remote).unwrap();
    plan.post(LONG).unwrap().wait().unwrap();
    let mut wanted = vec![0xEE; 8000];
    wanted[7997..].copy_from_slice(&pattern(10_000, 1)[5000..5003]);
    wanted[1..4001].copy_from_slice(&pattern(10_000, 1)[10..4010]);
    let mut found = vec![0; 8000];
    target.read_into(0, &mut found).unwrap();
    assert!(found == wanted);
    // SAFETY: refused.
    let beyond = unsafe { device.borrow(whole.address() + 9000, 8000) };
    assert_eq!(beyond.unwrap_err().errno(), Errno::EINVAL);
}

/// A copy that the peer's device refuses fails only its transfer, with the device's error.
#[test]
fn a_device_that_refuses_fails_the_transfer_alone() {
    let settings = [("CUDA_EMULATOR_FAIL", "cuMemcpyAsync:2@2")];
    if !is_inside("a_device_that_refuses_fails_the_transfer_alone", &settings) {
        return;
    }
    let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
    let (source, target) = (memory(&alice, "dram", 5000), memory(&bob, "cuda", 5000));
    (target.fill)(&[1; 5000]); // the first copy
    (source.fill)(&pattern(5000, 1));
    alice.load(&bob.metadata().unwrap()).unwrap();
    let remote = [Remote { region: target.id, offset: 0, len: 5000 }];
    let plan = alice.prepare("bob", Way::Write, std::slice::from_ref(&source.whole), &remote).unwrap();
    assert_eq!(plan.post(LONG).unwrap().wait().unwrap_err().errno(), Errno::ENOMEM);
    plan.post(LONG).unwrap().wait().unwrap();
    assert_eq!((target.contents)(), pattern(5000, 1));
}

/// A transfer whose copies never end does end, at its deadline or when it is cancelled, and keeps its memory.
#[test]
fn copies_that_never_end_hold_nobody_up() {
    let settings = [("CUDA_EMULATOR_POLLS", "1000000000000")];
    if !is_inside("copies_that_never_end_hold_nobody_up", &settings) {
        return;
    }
    let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
    let (source, target) = (memory(&alice, "cuda", 5000), memory(&bob, "dram", 5000));
    alice.load(&bob.metadata().unwrap()).unwrap();
    let remote = [Remote { region: target.id, offset: 0, len: 5000 }];
    let plan = alice.prepare("bob", Way::Write, std::slice::from_ref(&source.whole), &remote).unwrap();
    let overdue = plan.post(Duration::from_millis(200)).unwrap();
    assert_eq!(overdue.wait().unwrap_err().errno(), Errno::ETIMEDOUT);
    assert!(!overdue.wait_quiet(Duration::from_millis(50)).unwrap());
    let cancelled = plan.post(LONG).unwrap();
    cancelled.cancel();
    assert_eq!(cancelled.wait().unwrap_err().errno(), Errno::ECANCELED);
    std::process::exit(0); // the devices' copies would keep the memory
}

/// A transfer is cancelled while its chunks move, at any point: it ends as cancelled and releases its memory, and later
/// transfers arrive whole.
#[test]
fn a_cancel_while_chunks_move_leaves_nothing_behind() {
    const LEN: usize = (11 << 20) + 5;
    if !is_inside("a_cancel_while_chunks_move_leaves_nothing_behind", &[("CUDA_EMULATOR_POLLS", "40")]) {
        return;
    }
    for (ours, theirs) in [("cuda", "dram"), ("dram", "cuda"), ("cuda", "cuda")] {
        let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
        let (source, target) = (memory(&alice, ours, LEN), memory(&bob, theirs, LEN));
        alice.load(&bob.metadata().unwrap()).unwrap();
        let remote = [Remote { region: target.id, offset: 0, len: LEN as u64 }];
        let (mut cancelled, mut half) = (0, 0);
        for (seed, way) in [Way::Write, Way::Read].into_iter().cycle().take(12).enumerate() {
            let plan = alice.prepare("bob", way, std::slice::from_ref(&source.whole), &remote).unwrap();
            let transfer = plan.post(LONG).unwrap();
            // Later with each turn: after none, one, two megabytes and so on.
            while transfer.progress().outcome.is_none() && transfer.progress().moved < (seed as u64) << 19 {
                std::thread::yield_now();
            }
            transfer.cancel();
            match transfer.wait() {
                Ok(()) => {} // it was quicker
                Err(error) => {
                    assert_eq!(error.errno(), Errno::ECANCELED);
                    cancelled += 1;
                }
            }
            assert!(transfer.wait_quiet(LONG).unwrap(), "its memory is released");
            half += usize::from((1..LEN as u64).contains(&transfer.progress().moved));
            drop(transfer);
            let (from, to) = if way == Way::Write { (&source, &target) } else { (&target, &source) };
            (from.fill)(&pattern(LEN, seed));
            plan.post(LONG).unwrap().wait().unwrap();
            assert!((to.contents)() == pattern(LEN, seed), "{way:?} from {ours} to {theirs}, {seed}");
        }
        assert!(cancelled > 6 && half > 3, "{cancelled} of 12 were cancelled, {half} in the middle");
        assert_eq!(alice.under_way(), (0, 0));
    }
}

/// Each call of the driver fails once: the operation that made it returns an error, nothing hangs, and a retry works.
#[test]
fn a_driver_call_that_fails_is_one_error() {
    const CALLS: [&str; 6] = [
        "cuMemAllocHost_v2",
        "cuStreamCreate",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuMemcpyAsync",
    ];
    let test = "a_driver_call_that_fails_is_one_error";
    if std::env::var_os(INSIDE).is_some() {
        return one_call_fails();
    }
    let mut errors = 0;
    for call in CALLS {
        for nth in 1..=4 {
            let output = again(test).env("CUDA_EMULATOR_FAIL", format!("{call}:2@{nth}")).output().unwrap();
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "call {nth} of {call}: {}\n{out}{err}", output.status);
            errors += usize::from(out.contains("ERRORS 1"));
        }
    }
    // Some calls are made fewer than four times.
    assert!(errors >= CALLS.len(), "{errors} runs met an error");
}

fn one_call_fails() {
    const LEN: usize = (2 << 20) + 1;
    let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
    let mut errors = 0;
    let device = Cuda::open(0).or_else(|error| {
        assert_eq!(error.errno(), Errno::ENOMEM, "{error}"); // the error for result 2
        errors += 1;
        Cuda::open(0)
    });
    let device = device.unwrap();
    let (source, target) = (device.alloc(LEN).unwrap(), device.alloc(LEN).unwrap());
    let (source, target) = (alice.register_device(source).unwrap(), bob.register_device(target).unwrap());
    alice.load(&bob.metadata().unwrap()).unwrap();
    let remote = [Remote { region: target.id(), offset: 0, len: LEN as u64 }];
    let plan = alice.prepare("bob", Way::Write, &[source.slice(..).unwrap()], &remote).unwrap();
    let mut step = |done: ofi::Result<()>| {
        if let Err(error) = done {
            assert_eq!(error.errno(), Errno::ENOMEM, "{error}");
            errors += 1;
        }
    };
    for seed in 0..2 {
        step(source.write_from(0, &pattern(LEN, seed)));
        step(plan.post(LONG).unwrap().wait());
        step(target.read_into(0, &mut vec![0; LEN]));
    }
    println!("ERRORS {errors}");
    assert!(errors <= 1, "one call has failed, and {errors} operations");
    // From now on all calls succeed.
    source.write_from(0, &pattern(LEN, 9)).unwrap();
    plan.post(LONG).unwrap().wait().unwrap();
    let mut found = vec![0; LEN];
    target.read_into(0, &mut found).unwrap();
    assert!(found == pattern(LEN, 9));
}

/// Memory that the program has lent returns to it only after pending copies have ended: revoking reports when that is.
#[test]
fn borrowed_memory_is_kept_until_copies_have_ended() {
    if !is_inside("borrowed_memory_is_kept_until_copies_have_ended", &[("CUDA_EMULATOR_POLLS", "100000")]) {
        return;
    }
    let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
    let whole = Cuda::open(0).unwrap().alloc(5000).unwrap();
    // SAFETY: `whole` is dropped after the region has been revoked.
    let part = unsafe { Cuda::open(0).unwrap().borrow(whole.address(), 5000) }.unwrap();
    let (source, target) = (alice.register_device(part).unwrap(), memory(&bob, "dram", 5000));
    alice.load(&bob.metadata().unwrap()).unwrap();
    let remote = [Remote { region: target.id, offset: 0, len: 5000 }];
    let plan = alice.prepare("bob", Way::Write, &[source.slice(..).unwrap()], &remote).unwrap();
    // Opens the session: otherwise the copy would begin later.
    let opens = alice.notify("bob", b"", LONG).unwrap();
    bob.wait_notification(LONG).unwrap().expect("a notification");
    opens.wait().unwrap();
    let transfer = plan.post(LONG).unwrap();
    let kept = alice.revoke(&source, Duration::ZERO).map_err(|error| error.errno());
    assert_eq!(kept, Err(Errno::EBUSY), "a copy in flight keeps the memory");
    transfer.cancel();
    alice.revoke(&source, LONG).unwrap();
    assert!(transfer.progress().is_quiet);
    drop((source, whole));
}

/// Without a driver there is a named error, and everything else works.
#[test]
fn a_host_without_the_driver_says_so() {
    let test = "a_host_without_the_driver_says_so";
    if std::env::var_os(INSIDE).is_none() {
        return without_driver(test);
    }
    let error = cuda::count().unwrap_err();
    assert_eq!(error.errno(), Errno::ENODEV);
    assert!(error.to_string().contains("libcuda.so.1"), "{error}");
    let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
    let (source, target) = (memory(&alice, "dram", 5000), memory(&bob, "dram", 5000));
    (source.fill)(&pattern(5000, 1));
    alice.load(&bob.metadata().unwrap()).unwrap();
    let remote = [Remote { region: target.id, offset: 0, len: 5000 }];
    let plan = alice.prepare("bob", Way::Write, std::slice::from_ref(&source.whole), &remote).unwrap();
    plan.post(LONG).unwrap().wait().unwrap();
    assert_eq!((target.contents)(), pattern(5000, 1));
}

fn count_is_real() -> bool {
    cuda::count().is_ok()
}

/// On a real GPU, if there is one.
#[test]
fn a_real_gpu_writes_and_reads() {
    if !count_is_real() || std::env::var_os(INSIDE).is_some() {
        println!("NOT RUN: device memory on a real GPU: no libcuda.so.1 with a device");
        return;
    }
    every_pair(&["shm"]);
}
