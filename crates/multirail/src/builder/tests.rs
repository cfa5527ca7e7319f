//! Which rails an agent opens, and which it uses.

use std::time::Duration;

use super::*;
use crate::fake_sys::FakeSys;

fn infos() -> Vec<Info> {
    let infos = crate::rail::infos(&Hints::new().provider("udp")).unwrap();
    let mut gone = infos[0].clone();
    gone.fabric_attr.prov_name = "gone".into();
    vec![gone, infos[0].clone()]
}

/// An agent with a rail of `shm` on each of the four NICs of a machine, of which two suffice.
fn of_four(name: &str) -> Agent {
    let nics = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"];
    let mut tree = "node 0\nhost 0000:10 node 0\n  bridge 0000:10:00.0 16x16\n".to_string();
    for (nth, nic) in nics.into_iter().enumerate() {
        tree += &format!("    rdma 0000:1{}:00.0 15b3:101b 16x16 {nic} 100\n", nth + 1);
    }
    let topology = Topology::read(FakeSys::new(&tree).path()).unwrap();
    let info = crate::rail::infos(&Hints::new().provider("shm")).unwrap().remove(0);
    let rail = |nic: &str| {
        let mut rail = Rail::of_info(&info, true).unwrap();
        rail.info.domain_attr.name = nic.into();
        rail
    };
    let limit = DramLimit::AtMost(crate::topology::Rate::gbps(200));
    let builder = Agent::builder(name).progress_thread(true).topology(topology).dram_limit(limit);
    builder.assemble(nics.into_iter().map(rail).collect()).unwrap()
}

#[test]
fn a_region_has_keys_on_the_rails_near_it_and_transfers_use_no_other() {
    const LEN: usize = 4 << 20;
    let (here, there) = (of_four("here"), of_four("there"));
    let (ours, theirs) = (here.register(vec![7; LEN]).unwrap(), there.register(vec![0; LEN]).unwrap());
    let metadata = there.metadata().unwrap();
    let keys = crate::wire::Metadata::parse(&metadata).unwrap().regions.remove(0).keys;
    assert_eq!(keys.iter().map(|key| key.rail).collect::<Vec<_>>(), [0, 1]);
    here.load(&metadata).unwrap();
    let remote = [crate::Remote { region: theirs.id(), offset: 0, len: LEN as u64 }];
    for way in [crate::Way::Write, crate::Way::Read] {
        let plan = here.prepare("there", way, &[ours.slice(..).unwrap()], &remote).unwrap();
        plan.post(std::time::Duration::from_secs(30)).unwrap().wait().unwrap();
    }
    let mut last = [0];
    theirs.read_into(LEN - 1, &mut last).unwrap();
    assert_eq!(last, [7]);
    let accesses: Vec<bool> = here.rails().iter().map(|(_, counts)| counts.accesses > 0).collect();
    assert_eq!(accesses, [true, true, false, false]);
}

#[test]
fn of_the_rails_that_were_found_those_that_open_are_used() {
    let builder = Agent::builder("a");
    let [gone, good] = &infos()[..] else { panic!("two infos") };
    let count = |choices: &[Vec<Info>]| builder.those_that_open(choices).map(|rails| rails.len());
    assert_eq!(count(&[vec![gone.clone(), good.clone(), gone.clone()]]).unwrap(), 1);
    assert_eq!(count(&[vec![gone.clone()], vec![good.clone(); 2], vec![good.clone()]]).unwrap(), 2);
    let error = count(&[vec![gone.clone()], vec![gone.clone()]]).unwrap_err();
    assert_eq!(error.errno(), builder.of_info(gone).err().unwrap().errno());
    assert_eq!(count(&[]).unwrap_err().errno(), Errno::ENODATA);
}

/// A queue that cannot be read while it is broken.
struct Breaking {
    inner: Arc<dyn ofi::raw::CompletionQueue>,
    is_broken: Arc<AtomicBool>,
    error: Errno,
}

impl ofi::raw::CompletionQueue for Breaking {
    fn read(&self, buffer: &mut ofi::raw::CqBuffer<'_>) -> Result<usize> {
        match self.is_broken.load(std::sync::atomic::Ordering::Relaxed) {
            true => Err(Error::new(self.error)),
            false => self.inner.read(buffer),
        }
    }
    fn read_wait(&self, buffer: &mut ofi::raw::CqBuffer<'_>, timeout: Option<Duration>) -> Result<usize> {
        self.inner.read_wait(buffer, timeout)
    }
    fn read_error(&self) -> Result<ofi::raw::CqErrorEntry> {
        self.inner.read_error()
    }
    fn signal(&self) -> Result<()> {
        self.inner.signal()
    }
    fn error_text(&self, prov_errno: i32) -> String {
        self.inner.error_text(prov_errno)
    }
    fn trywait(&self) -> Result<()> {
        self.inner.trywait()
    }
    fn wait_fd(&self) -> Option<std::os::fd::RawFd> {
        self.inner.wait_fd()
    }
    fn wait_fds(&self) -> Vec<std::os::fd::RawFd> {
        self.inner.wait_fds()
    }
    fn mutex_cond(&self) -> Option<ofi::raw::MutexCond> {
        self.inner.mutex_cond()
    }
    fn format(&self) -> ofi::raw::CqFormat {
        self.inner.format()
    }
}

/// An agent with `rails` rails of a provider, the last of which breaks at will.
fn breaking(name: &str, provider: &str, rails: usize) -> (Agent, Arc<AtomicBool>) {
    breaking_with(name, provider, rails, Errno::EOVERRUN)
}

/// Likewise, with this error of its reads.
fn breaking_with(name: &str, provider: &str, rails: usize, error: Errno) -> (Agent, Arc<AtomicBool>) {
    let info = crate::rail::infos(&Hints::new().provider(provider)).unwrap().remove(0);
    let is_broken = Arc::new(AtomicBool::new(false));
    let mut rails: Vec<Rail> = (0..rails).map(|_| Rail::of_info(&info, false).unwrap()).collect();
    let last = rails.last_mut().unwrap();
    last.cq = Arc::new(Breaking { inner: last.queue(), is_broken: Arc::clone(&is_broken), error });
    let builder = Agent::builder(name).progress_thread(true).near_rails(false);
    (builder.assemble(rails).unwrap(), is_broken)
}

/// An error from the read of one queue ended `progress` for all rails, and the progress thread.
#[test]
fn a_queue_that_cannot_be_read_costs_its_rail_alone_and_is_tried_again() {
    const LEN: usize = 4 << 20;
    let limit = Duration::from_secs(30);
    for provider in ["shm", "udp"] {
        for way in [crate::Way::Write, crate::Way::Read] {
            let (alice, is_broken) = breaking("alice", provider, 2);
            let bob = breaking("bob", provider, 2).0;
            let (ours, theirs) = (alice.register(vec![0; LEN]).unwrap(), bob.register(vec![0; LEN]).unwrap());
            alice.load(&bob.metadata().unwrap()).unwrap();
            let remote = [crate::Remote { region: theirs.id(), offset: 0, len: LEN as u64 }];
            let plan = alice.prepare("bob", way, &[ours.slice(..).unwrap()], &remote).unwrap();
            let moves = |byte: u8, count: usize| {
                let (from, to) = if way == crate::Way::Write { (&ours, &theirs) } else { (&theirs, &ours) };
                from.write_from(0, &vec![byte; LEN]).unwrap();
                let posted: Vec<_> = (0..count).map(|_| plan.post(limit).unwrap()).collect();
                posted.iter().for_each(|transfer| transfer.wait().unwrap());
                let mut bytes = vec![0; LEN];
                to.read_into(0, &mut bytes).unwrap();
                assert!(bytes.iter().all(|&found| found == byte), "{provider} {way:?} {byte}");
            };
            let carried = || alice.rails().iter().map(|(_, counts)| counts.bytes).collect::<Vec<_>>();
            moves(1, 4);
            assert!(carried().iter().all(|&bytes| bytes > 0), "{:?}", carried());
            // In the middle of transfers.
            let posted: Vec<_> = (0..8).map(|_| plan.post(limit).unwrap()).collect();
            is_broken.store(true, std::sync::atomic::Ordering::Relaxed);
            let ended: Vec<_> = posted.iter().map(|transfer| transfer.wait()).collect();
            assert!(ended.iter().all(|end| end.is_ok()), "{provider} {way:?}: {ended:?}");
            std::thread::sleep(Duration::from_millis(20));
            let before = carried();
            moves(2, 4);
            let after = carried();
            assert!(
                after[0] > before[0] && after[1] == before[1],
                "{provider} {way:?}: {before:?} {after:?}"
            );
            assert!(alice.rails()[1].1.failed > 0);
            assert_eq!(alice.shared.queues.all().len(), 1, "no thread sleeps on a queue that cannot be read");
            is_broken.store(false, std::sync::atomic::Ordering::Relaxed);
            let began = Instant::now();
            while carried()[1] == after[1] {
                moves(3, 4);
                assert!(began.elapsed() < limit, "{provider} {way:?}: the rail is used again");
            }
            assert_eq!(alice.shared.queues.all().len(), 2, "threads sleep on its descriptor again");
        }
    }
}

/// With no other rail the program is told, and the agent goes on when the queue can be read again.
#[test]
fn the_error_of_the_only_rail_is_told_and_the_progress_thread_goes_on() {
    let (alice, is_broken) = breaking("alice", "shm", 1);
    let bob = breaking("bob", "shm", 1).0;
    alice.load(&bob.metadata().unwrap()).unwrap();
    let limit = Duration::from_secs(30);
    let note = |bytes: &[u8]| alice.notify("bob", bytes, limit).and_then(|transfer| transfer.wait());
    let taken = std::thread::scope(|scope| {
        let taken = scope.spawn(|| bob.wait_notification(limit).unwrap().unwrap().bytes);
        note(b"one").unwrap();
        taken.join().unwrap()
    });
    assert_eq!(taken, b"one");
    is_broken.store(true, std::sync::atomic::Ordering::Relaxed);
    let began = Instant::now();
    while alice.is_connected("bob").unwrap() {
        assert!(began.elapsed() < limit, "the session ends");
        std::thread::sleep(Duration::from_millis(1));
    }
    is_broken.store(false, std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| bob.wait_notification(limit).unwrap().unwrap().bytes);
        while note(b"two").is_err() {
            assert!(began.elapsed() < limit, "the rail is used again");
        }
        assert_eq!(taken.join().unwrap(), b"two");
    });
}

/// Withdrawing a region looked at every transfer of the agent, at each turn of its wait.
#[test]
fn withdrawing_a_region_looks_at_its_own_plans_alone() {
    const TRANSFERS: usize = 2_000;
    let agent = Agent::builder("self").rail(Hints::new().provider("shm")).open().unwrap();
    let [busy, used, idle] = [(); 3].map(|()| agent.register(vec![0; 4096]).unwrap());
    agent.load(&agent.metadata().unwrap()).unwrap();
    let limit = Duration::from_secs(30);
    let to = |region: &crate::Region<Vec<u8>>| {
        let remote = [crate::Remote { region: busy.id(), offset: 0, len: 64 }];
        agent.prepare("self", crate::Way::Write, &[region.slice(..64).unwrap()], &remote).unwrap()
    };
    // Nobody takes the notifications: all but the first are in flight.
    let plans: Vec<_> = (0..TRANSFERS).map(|_| to(&busy)).collect();
    let posted: Vec<_> = plans.iter().map(|plan| plan.post_notify(b"kept", limit).unwrap()).collect();
    let plan = to(&idle);
    for _ in 0..100 {
        plan.post(limit).unwrap().wait().unwrap();
    }
    let in_flight = posted.iter().filter(|transfer| transfer.progress().outcome.is_none()).count();
    assert!(in_flight > TRANSFERS / 2, "{in_flight} in flight");
    agent.revoke(&idle, limit).unwrap();
    assert!(idle.inner().looks_at_plans() <= 2, "{} plans", idle.inner().looks_at_plans());
    // One that is used is not withdrawn; when its transfer has been cancelled, it is.
    let last = to(&used).post_notify(b"kept", limit).unwrap();
    let error = agent.revoke(&used, Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    drop(last);
    agent.revoke(&used, limit).unwrap();
    // Of all those transfers, too.
    let error = agent.revoke(&busy, Duration::ZERO).unwrap_err();
    assert_eq!(error.errno(), Errno::EBUSY);
    drop(posted);
    agent.revoke(&busy, limit).unwrap();
}

/// Regression test: an error entry that another thread had taken let the rail rest.
#[test]
fn an_error_entry_that_is_gone_is_no_failure_of_the_rail() {
    let (agent, is_broken) = breaking_with("alice", "shm", 1, Errno::EAVAIL);
    is_broken.store(true, std::sync::atomic::Ordering::Relaxed);
    for _ in 0..100 {
        agent.progress().unwrap();
    }
    assert_eq!(agent.rails()[0].1.failed, 0);
    assert_eq!(agent.shared.queues.all().len(), 1);
}

/// Regression test: while all rails rested, no descriptor could be signalled, and a waiting thread slept for a second.
#[test]
fn a_thread_that_waits_while_all_rails_rest_is_roused() {
    use std::sync::atomic::Ordering::Relaxed;
    for is_asleep in [false, true] {
        let agent = Agent::builder("alice").rail(Hints::new().provider("shm")).open().unwrap();
        let shared = &agent.shared;
        let fail = || {
            let mut driver = shared.lock().unwrap();
            let now = shared.now();
            (0..6).for_each(|_| driver.rails[0].fail(Error::new(Errno::EIO), now)); // for 16 seconds
            driver.list_queues(now);
        };
        if !is_asleep {
            fail();
        }
        let is_there = AtomicBool::new(false);
        let took = std::thread::scope(|scope| {
            let wait = || {
                let end = |_: &mut Driver| is_there.load(Relaxed).then(Instant::now);
                shared.wait_for(Duration::from_secs(10), end).unwrap().unwrap()
            };
            let waiter = scope.spawn(wait);
            std::thread::sleep(Duration::from_millis(100));
            if is_asleep {
                fail(); // the thread sleeps on the queue's descriptor already
            }
            is_there.store(true, Relaxed);
            let told = Instant::now();
            shared.rouse(shared.lock().unwrap());
            waiter.join().unwrap().saturating_duration_since(told)
        });
        assert!(took < Duration::from_millis(400), "{is_asleep}: {took:?}");
    }
}
