//! Device memory of agents in two processes over the emulator, mapped or staged.

#[path = "support/memory.rs"]
mod memory;
#[allow(dead_code, reason = "only other tests run without a driver")]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use memory::{LONG, Memory, agent, memory, pattern};
use multirail::memory::Export;
use multirail::memory::cuda::{Cuda, DeviceMemory};
use multirail::{Agent, Region, Remote, Way};
use ofi::Hints;
use support::{INSIDE, again, is_inside};

/// Set in the process of a peer.
const SERVES: &str = "CUDA_EMULATOR_SERVES";

/// A peer in a process of its own, killed on drop.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Peer {
    fn start(test: &str) -> (Self, String) {
        let mut command = again(test);
        command.env(SERVES, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.split_once("ADDRESS ").map(|(_, rest)| rest.to_string()));
        std::thread::spawn(move || lines.for_each(drop));
        (Self(child), address.expect("the peer's address"))
    }
}

const SERVED: usize = 6 << 20;

/// The peer's process: offers a region of a device until its standard input ends.
fn serve_a_region() {
    let bob = agent("bob", &["shm"]);
    let region = memory(&bob, "cuda", SERVED);
    (region.fill)(&pattern(SERVED, 7));
    serve(&bob);
}

/// Serves metadata until the standard input ends.
fn serve(bob: &Agent) {
    let server = bob.serve("127.0.0.1:0").unwrap();
    println!("ADDRESS {}", server.address());
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Regions that share the driver's blocks of 2 MiB with other memory, one that does not, and the allocation of two of
/// them, which must outlive them.
fn parts(agent: &Agent) -> (Vec<Region<DeviceMemory>>, DeviceMemory) {
    let device = Cuda::open(0).unwrap();
    let [small, odd, whole, parent] =
        [4096, (4 << 20) + 512, SERVED, 4 << 20].map(|len| device.alloc(len).unwrap());
    // SAFETY: the caller keeps the allocation.
    let half = |at| unsafe { device.borrow(parent.address() + at, 2 << 20) }.unwrap();
    let all = [small, odd, half(0), half(2 << 20), whole];
    (all.map(|memory| agent.register_device(memory).unwrap()).into(), parent)
}

/// A handle opens the driver's whole blocks: an agent gave one of every region.
#[test]
fn no_handle_opens_more_than_its_region() {
    let test = "no_handle_opens_more_than_its_region";
    if std::env::var_os(SERVES).is_some() {
        let bob = agent("bob", &["shm"]);
        let (regions, _parent) = parts(&bob);
        regions.iter().for_each(|region| region.write_from(0, &pattern(region.len(), 7)).unwrap());
        return serve(&bob);
    }
    if !is_inside(test, &[]) {
        return;
    }
    let alice = agent("alice", &["shm"]);
    let (regions, _parent) = parts(&alice);
    let metadata = multirail::wire::Metadata::parse(&alice.metadata().unwrap()).unwrap();
    let handles = metadata.regions.iter().map(|region| region.export.as_ref().unwrap().handle);
    let opened: Vec<bool> = handles.map(|handle| handle != Export::NO_HANDLE).collect();
    assert_eq!(opened, [false, false, false, false, true]);
    // All are written and read, mapped or not.
    let (_peer, address) = Peer::start(test);
    alice.visit(&*address, LONG).unwrap();
    let theirs = alice.regions("bob").unwrap();
    for (ours, &(region, len)) in regions.iter().zip(&theirs) {
        let remote = [Remote { region, offset: 0, len }];
        let run = |way| {
            let plan = alice.prepare("bob", way, &[ours.slice(..).unwrap()], &remote).unwrap();
            plan.post(LONG).unwrap().wait().unwrap();
        };
        let holds = |seed| {
            let mut bytes = vec![0; len as usize];
            ours.read_into(0, &mut bytes).unwrap();
            assert!(bytes == pattern(len as usize, seed), "{len} bytes, {seed}");
        };
        run(Way::Read);
        holds(7);
        ours.write_from(0, &pattern(len as usize, 8)).unwrap();
        run(Way::Write);
        ours.write_from(0, &pattern(len as usize, 9)).unwrap();
        run(Way::Read);
        holds(8);
    }
    let moved = alice.rails().iter().map(|(_, counts)| counts.bytes).sum::<u64>();
    assert_eq!(moved, 3 * theirs[..4].iter().map(|&(_, len)| len).sum::<u64>(), "one is mapped");
}

/// Two processes: transfers between devices use one mapping and no rails, and so do those between host and device once
/// the process has a device; killing a peer fails the transfers in progress.
#[test]
fn processes_of_a_host_map_and_bear_a_kill() {
    if std::env::var_os(SERVES).is_some() {
        return serve_a_region();
    }
    if !is_inside("processes_of_a_host_map_and_bear_a_kill", &[]) {
        return;
    }
    let (peer, address) = Peer::start("processes_of_a_host_map_and_bear_a_kill");
    let alice = agent("alice", &["shm"]);
    let host = memory(&alice, "dram", SERVED);
    alice.visit(&*address, LONG).unwrap();
    let (id, len) = alice.regions("bob").unwrap()[0];
    let remote = [Remote { region: id, offset: 0, len }];
    let moved = || alice.rails().iter().map(|(_, counts)| counts.bytes).sum::<u64>();
    let run = |way, memory: &Memory| {
        let plan = alice.prepare("bob", way, std::slice::from_ref(&memory.whole), &remote).unwrap();
        plan.post(LONG).unwrap().wait()
    };
    run(Way::Read, &host).unwrap();
    assert_eq!((host.contents)(), pattern(SERVED, 7));
    assert_eq!(moved(), len, "staged: this process has no device open, and opens none by itself");
    let device = memory(&alice, "cuda", SERVED);
    run(Way::Read, &device).unwrap();
    assert_eq!((device.contents)(), pattern(SERVED, 7));
    (device.fill)(&pattern(SERVED, 8));
    run(Way::Write, &device).unwrap();
    run(Way::Read, &host).unwrap();
    assert_eq!((host.contents)(), pattern(SERVED, 8));
    (host.fill)(&pattern(SERVED, 9));
    run(Way::Write, &host).unwrap();
    run(Way::Read, &device).unwrap();
    assert_eq!((device.contents)(), pattern(SERVED, 9));
    assert_eq!(moved(), len, "mapped");
    // Copies into a mapping need no peer, so these go over the rails.
    let carol = Agent::builder("carol").progress_thread(true).shared_memory(false).map_devices(false);
    let carol = carol.rail(Hints::new().provider("shm")).open().unwrap();
    let host = memory(&carol, "dram", SERVED);
    carol.visit(&*address, LONG).unwrap();
    let plan = carol.prepare("bob", Way::Write, std::slice::from_ref(&host.whole), &remote).unwrap();
    plan.post(LONG).unwrap().wait().unwrap();
    let transfers: Vec<_> = (0..8).map(|_| plan.post(LONG).unwrap()).collect();
    drop(peer);
    let failed = transfers.iter().filter(|transfer| transfer.wait().is_err()).count();
    assert!(failed > 0, "transfers in flight fail");
    for transfer in &transfers {
        assert!(transfer.wait_quiet(LONG).unwrap());
    }
}

/// A device maps another's memory if the driver gives it access; otherwise the rails carry the bytes.
#[test]
fn two_devices_of_a_host_map_where_they_may() {
    let test = "two_devices_of_a_host_map_where_they_may";
    if std::env::var_os(SERVES).is_some() {
        return serve_a_region();
    }
    if std::env::var_os(INSIDE).is_none() {
        for peers in ["1", "0"] {
            is_inside(test, &[("CUDA_EMULATOR_DEVICES", "2"), ("CUDA_EMULATOR_PEERS", peers)]);
        }
        return;
    }
    let (_peer, address) = Peer::start(test);
    let alice = agent("alice", &["shm"]);
    let other = memory(&alice, "cuda:1", SERVED);
    alice.visit(&*address, LONG).unwrap();
    let (id, len) = alice.regions("bob").unwrap()[0];
    let remote = [Remote { region: id, offset: 0, len }];
    let run = |way| {
        let plan = alice.prepare("bob", way, std::slice::from_ref(&other.whole), &remote).unwrap();
        plan.post(LONG).unwrap().wait().unwrap();
    };
    run(Way::Read);
    assert_eq!((other.contents)(), pattern(SERVED, 7));
    (other.fill)(&pattern(SERVED, 3));
    run(Way::Write);
    (other.fill)(&[0; SERVED]);
    run(Way::Read);
    assert_eq!((other.contents)(), pattern(SERVED, 3));
    let moved = alice.rails().iter().map(|(_, counts)| counts.bytes).sum::<u64>();
    let may = std::env::var("CUDA_EMULATOR_PEERS").unwrap() == "1";
    assert_eq!(moved, if may { 0 } else { 3 * len });
}

/// Within one process no memory is mapped, as the driver does not map what the process itself exports.
#[test]
fn two_devices_of_a_process_exchange() {
    if !is_inside("two_devices_of_a_process_exchange", &[("CUDA_EMULATOR_DEVICES", "2")]) {
        return;
    }
    let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
    let (source, target) = (memory(&alice, "cuda:1", SERVED), memory(&bob, "cuda:0", SERVED));
    (source.fill)(&pattern(SERVED, 1));
    alice.load(&bob.metadata().unwrap()).unwrap();
    let remote = [Remote { region: target.id, offset: 0, len: SERVED as u64 }];
    let plan = alice.prepare("bob", Way::Write, std::slice::from_ref(&source.whole), &remote).unwrap();
    plan.post(LONG).unwrap().wait().unwrap();
    assert_eq!((target.contents)(), pattern(SERVED, 1));
}
