//! Poll sets, wait sets, and the older wait objects (fi_poll(3), fi_cq(3)).

use std::sync::Arc;

use crate::prelude::*;

const SHORT: Duration = Duration::from_millis(50);
/// No wake-up may take this long.
const LONG: Duration = Duration::from_secs(5);

fn empty() -> [Context; 8] {
    [Context::NULL; 8]
}

/// The contexts that a poll of `set` reports.
fn polled(set: &Arc<dyn PollSet>) -> Vec<usize> {
    let mut contexts = empty();
    let found = set.poll(&mut contexts);
    contexts[..found].iter().map(|context| context.0).collect()
}

/// Two receivers in one domain, with a queue and a counter each, and a sender.
struct Scene {
    sender: TestEndpoint,
    receivers: [TestEndpoint; 2],
    to: [FiAddr; 2],
}

impl Scene {
    fn new(kit: &dyn Kit, cq: &CqAttr, cntr: &CntrAttr, domain: Option<&TestEndpoint>) -> Self {
        let mut receivers: Vec<TestEndpoint> = Vec::new();
        for _ in 0..2 {
            let within = receivers.first().or(domain);
            let opening = within.map_or_else(|| kit.opening(), |side| kit.opening().beside(side));
            let queue = within.map(|side| side.domain.open_cq(cq).unwrap());
            let opening = match &queue {
                Some(queue) => opening.queue(queue),
                None => opening.wait_obj(cq.wait_obj),
            };
            receivers.push(opening.counter(cntr.clone(), BindFlags::RECV).open());
        }
        let receivers: [TestEndpoint; 2] = receivers.try_into().ok().unwrap();
        let sender = kit.side();
        let to = [sender.insert(&receivers[0]), sender.insert(&receivers[1])];
        let scene = Self { sender, receivers, to };
        for which in 0..2 {
            let side = &scene.receivers[which];
            side.receive(()).context(9).post().unwrap();
            scene.send(which);
            wait::drive(&[&scene.sender, side], "a first message", || side.next_of(9)).done();
        }
        scene
    }

    fn send(&self, which: usize) {
        let post = || self.sender.out(self.to[which], ()).inject().send().ok();
        wait::drive(&[&self.sender], "room", post);
    }
}

pub fn a_poll_set_reports_what_has_something(kit: &dyn Kit) {
    let scene = Scene::new(kit, &CqAttr::default(), &CntrAttr::default(), None);
    let [one, two] = &scene.receivers;
    let set = one.domain.open_poll_set().unwrap();
    set.add(PollMember::Queue(Arc::clone(&one.rx)), Context(1)).unwrap();
    set.add(PollMember::Queue(Arc::clone(&two.rx)), Context(2)).unwrap();
    assert_eq!(polled(&set), [0; 0]);
    for (which, side) in scene.receivers.iter().enumerate() {
        side.receive(()).context(5).post().unwrap();
        scene.send(which);
        // Polling drives progress, and a queue is reported until it is read.
        wait::drive(&[], "the queue", || (polled(&set) == [which + 1]).then_some(()));
        assert_eq!(polled(&set), [which + 1]);
        side.poll();
        side.next_of(5).unwrap().done();
        assert_eq!(polled(&set), [0; 0]);
    }
    // An error counts too.
    one.receive(()).context(6).post().unwrap();
    one.cancel(6).unwrap();
    assert_eq!(polled(&set), [1]);
}

pub fn a_poll_set_reports_each_change_of_a_counter_once(kit: &dyn Kit) {
    let scene = Scene::new(kit, &CqAttr::default(), &CntrAttr::default(), None);
    let side = &scene.receivers[0];
    let counter = &side.counters[0];
    let set = side.domain.open_poll_set().unwrap();
    set.add(PollMember::Counter(Arc::clone(counter)), Context(7)).unwrap();
    assert_eq!(polled(&set), [7], "the first message");
    assert_eq!(polled(&set), [0; 0]);
    side.receive(()).post().unwrap();
    scene.send(0);
    wait::drive(&[], "the counter", || (polled(&set) == [7]).then_some(()));
    counter.read();
    assert_eq!(polled(&set), [0; 0]);
    // The application's own changes are not reported; a failure is.
    counter.add(5).unwrap();
    counter.set(40).unwrap();
    assert_eq!(polled(&set), [0; 0]);
    side.receive(()).context(6).post().unwrap();
    side.cancel(6).unwrap();
    assert_eq!(polled(&set), [7]);
}

pub fn a_poll_set_with_little_room_starves_nobody(kit: &dyn Kit) {
    let side = kit.side();
    let set = side.domain.open_poll_set().unwrap();
    let counters: Vec<_> = (0..3).map(|_| side.domain.open_counter(&CntrAttr::default()).unwrap()).collect();
    for (number, counter) in counters.iter().enumerate() {
        set.add(PollMember::Counter(Arc::clone(counter)), Context(number)).unwrap();
        counter.add_error(1).unwrap();
    }
    let mut told = Vec::new();
    for _ in 0..3 {
        let mut room = [Context(99)];
        assert_eq!(set.poll(&mut room), 1);
        told.push(room[0].0);
    }
    told.sort_unstable();
    assert_eq!(told, [0, 1, 2]);
    assert_eq!(set.poll(&mut []), 0);
}

pub fn members_of_a_poll_set_come_and_go(kit: &dyn Kit) {
    let side = kit.opening().counter(CntrAttr::default(), BindFlags::RECV).open();
    let set = side.domain.open_poll_set().unwrap();
    let queue = PollMember::Queue(Arc::clone(&side.rx));
    let counter = PollMember::Counter(Arc::clone(&side.counters[0]));
    assert_eq!(set.remove(&queue).unwrap_err().errno(), Errno::EINVAL);
    set.add(queue.clone(), Context(1)).unwrap();
    assert_eq!(set.add(queue.clone(), Context(2)).unwrap_err().errno(), Errno::EBUSY);
    set.add(counter.clone(), Context(2)).unwrap();
    side.receive(()).context(6).post().unwrap();
    side.cancel(6).unwrap();
    assert_eq!(polled(&set), [1, 2]);
    set.remove(&queue).unwrap();
    assert_eq!(polled(&set), [0; 0]);
    set.remove(&counter).unwrap();
    assert_eq!(set.remove(&counter).unwrap_err().errno(), Errno::EINVAL);
}

const WAIT_OBJS: [WaitObj; 5] =
    [WaitObj::Unspec, WaitObj::Fd, WaitObj::Yield, WaitObj::Pollfd, WaitObj::MutexCond];

/// A wait set, and a scene whose queues and counters belong to it.
fn with_set(kit: &dyn Kit, wait_obj: WaitObj) -> (Arc<dyn WaitSet>, Scene) {
    let host = kit.side();
    let set = host.fabric.open_wait_set(&WaitAttr { wait_obj }).unwrap();
    let wait_set = Some(Arc::clone(&set));
    let cq = CqAttr { wait_obj: WaitObj::Set, wait_set: wait_set.clone(), ..CqAttr::default() };
    let cntr = CntrAttr { wait_obj: WaitObj::Set, wait_set, ..CntrAttr::default() };
    let scene = Scene::new(kit, &cq, &cntr, Some(&host));
    // The counts so far have been seen.
    scene.receivers.iter().for_each(TestEndpoint::poll);
    (set, scene)
}

pub fn a_wait_set_wakes_for_any_member(kit: &dyn Kit) {
    for wait_obj in WAIT_OBJS {
        let (set, scene) = with_set(kit, wait_obj);
        for round in 0..10 {
            let which = round % 2;
            let side = &scene.receivers[which];
            side.receive(()).context(5).post().unwrap();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| {
                    let start = Instant::now();
                    // Either the counter or the queue may wake the thread.
                    while side.pending() == 0 {
                        set.wait(Some(LONG)).unwrap();
                        scene.receivers.iter().for_each(TestEndpoint::poll);
                        assert!(start.elapsed() < LONG, "{wait_obj}: awake all the time, for nothing");
                    }
                });
                std::thread::sleep(Duration::from_millis(2));
                scene.send(which);
                waiter.join().unwrap();
            });
            side.next_of(5).unwrap().done();
        }
    }
}

pub fn a_wait_set_times_out(kit: &dyn Kit) {
    for wait_obj in WAIT_OBJS {
        let (set, _scene) = with_set(kit, wait_obj);
        for timeout in [Duration::ZERO, SHORT] {
            let start = Instant::now();
            assert_eq!(set.wait(Some(timeout)).unwrap_err().errno(), Errno::ETIMEDOUT, "{wait_obj}");
            assert!(start.elapsed() >= timeout, "{wait_obj}: returned after {:?}", start.elapsed());
            assert!(start.elapsed() < timeout + LONG, "{wait_obj}: returned after {:?}", start.elapsed());
        }
    }
}

pub fn a_wait_set_has_one_descriptor_for_all(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Fd, WaitObj::Pollfd] {
        let (set, scene) = with_set(kit, wait_obj);
        let fd = set.wait_fd().expect("FI_WAIT_FD has a descriptor");
        for round in 0..10 {
            let which = round % 2;
            let side = &scene.receivers[which];
            side.receive(()).context(5).post().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(2));
                    scene.send(which);
                });
                while side.pending() == 0 {
                    if set.trywait().is_ok() {
                        assert!(wait::readable(fd, LONG), "blocked for ever after fi_trywait said so");
                    }
                    scene.receivers.iter().for_each(TestEndpoint::poll);
                }
            });
            side.next_of(5).unwrap().done();
        }
    }
}

pub fn members_of_a_wait_set_do_not_block_alone(kit: &dyn Kit) {
    let (set, scene) = with_set(kit, WaitObj::Unspec);
    let side = &scene.receivers[1];
    let mut entry = [CqTaggedEntry::EMPTY];
    let error = side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(SHORT)).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    assert_eq!(side.counters[0].wait(99, Some(SHORT)).unwrap_err().errno(), Errno::EINVAL);
    // FI_WAIT_SET without a set is an error; and a set cannot be a member of a set.
    let alone = CqAttr { wait_obj: WaitObj::Set, ..CqAttr::default() };
    assert_eq!(side.domain.open_cq(&alone).err().unwrap().errno(), Errno::EINVAL);
    for wait_obj in [WaitObj::None, WaitObj::Set] {
        let error = side.fabric.open_wait_set(&WaitAttr { wait_obj }).err().unwrap();
        assert_eq!(error.errno(), Errno::EINVAL);
    }
    // Members are closed before the set, or after it.
    drop(scene);
    assert_eq!(set.wait(Some(SHORT)).unwrap_err().errno(), Errno::ETIMEDOUT);
}

/// Waits on a condition variable once, for at most `LONG`. Whether it was signalled.
pub(super) fn broadcast(pair: MutexCond) -> bool {
    let (mutex, cond) =
        (pair.mutex.cast::<libc::pthread_mutex_t>(), pair.cond.cast::<libc::pthread_cond_t>());
    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `until` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until) };
    until.tv_sec += LONG.as_secs() as libc::time_t;
    // SAFETY: both objects live as long as the queue that handed them out, which the caller holds.
    unsafe { libc::pthread_mutex_lock(mutex) };
    // SAFETY: as above, and the mutex is held.
    let rc = unsafe { libc::pthread_cond_timedwait(cond, mutex, &raw const until) };
    // SAFETY: held since the lock above.
    unsafe { libc::pthread_mutex_unlock(mutex) };
    rc == 0
}

pub fn a_condition_variable_is_broadcast(kit: &dyn Kit) {
    let wait_obj = WaitObj::MutexCond;
    let cntr = CntrAttr { wait_obj, ..CntrAttr::default() };
    let scene = Scene::new(kit, &CqAttr { wait_obj, ..CqAttr::default() }, &cntr, None);
    let side = &scene.receivers[1];
    let (queue, counter) = (side.rx.mutex_cond().unwrap(), side.counters[0].mutex_cond().unwrap());
    assert!(side.rx.wait_fd().is_none());
    for round in 0..20 {
        side.receive(()).context(5).post().unwrap();
        let seen = side.counters[0].read();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                scene.send(1);
            });
            if round % 2 == 0 {
                while side.pending() == 0 {
                    if side.rx.trywait().is_ok() {
                        assert!(broadcast(queue), "blocked for ever after fi_trywait said so");
                    }
                    side.poll();
                }
            } else {
                while side.counters[0].read() == seen {
                    if side.counters[0].trywait().is_ok() {
                        assert!(broadcast(counter), "blocked for ever after fi_trywait said so");
                    }
                }
            }
        });
        wait::drive(&[side], "the message", || side.next_of(5)).done();
    }
    // Blocking calls do not depend on the condition variable.
    let mut entry = [CqTaggedEntry::EMPTY];
    assert!(side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(SHORT)).unwrap_err().is_again());
}
