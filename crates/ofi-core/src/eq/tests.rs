//! An event queue with sources that are not endpoints.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ofi_api::Fid;

use super::*;

fn open(attr: EqAttr) -> (Arc<EqCore>, Arc<dyn EventQueue>) {
    let core = EqCore::open(&attr).unwrap();
    (Arc::clone(&core), core)
}

fn event(data: u64) -> Event {
    Event { data, ..Event::new(EventKind::AvComplete, Fid(7)) }
}

/// Reports one event at its third drive.
struct Slow {
    queue: Weak<EqCore>,
    drives: AtomicU32,
}

impl Driven for Slow {
    fn drive(&self) {
        if self.drives.fetch_add(1, Ordering::Relaxed) == 2
            && let Some(queue) = self.queue.upgrade()
        {
            queue.push(event(3));
        }
    }
    fn arm(&self, _: &WakeFd) -> Arm {
        Arm::Armed
    }
    fn wait_fd(&self) -> Option<RawFd> {
        None
    }
    fn deadline(&self) -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(5))
    }
}

#[test]
fn a_read_drives_the_sources_and_a_wait_ends_at_their_deadlines() {
    let (core, queue) = open(EqAttr { wait_obj: WaitObj::Unspec, ..EqAttr::default() });
    let source: Arc<dyn Driven> = Arc::new(Slow { queue: Arc::downgrade(&core), drives: AtomicU32::new(0) });
    core.add(&source).unwrap();
    assert!(queue.read().unwrap_err().is_again());
    assert_eq!(queue.read_wait(Some(Duration::from_secs(10))).unwrap().data, 3);
    core.remove(&source);
    assert!(queue.read().unwrap_err().is_again());
}

#[test]
fn an_error_stands_before_all_events_until_it_is_taken() {
    let (core, queue) = open(EqAttr::default());
    core.push(event(1));
    core.push_error(EqErrorEntry { err_data: vec![1, 2], ..EqErrorEntry::new(Fid(7), Errno::ECONNREFUSED) });
    assert_eq!(queue.read().unwrap_err().errno(), Errno::EAVAIL);
    let error = queue.read_error().unwrap();
    assert_eq!((error.err, error.err_data), (Errno::ECONNREFUSED, vec![1, 2]));
    assert!(queue.read_error().unwrap_err().is_again());
    assert_eq!(queue.read().unwrap(), event(1));
}

#[test]
fn what_the_library_reports_takes_no_room_of_what_the_application_writes() {
    let (core, queue) = open(EqAttr { write: true, size: 2, ..EqAttr::default() });
    while queue.write(event(0)).is_ok() {}
    (0..1000).for_each(|data| core.push(event(data)));
    assert!(queue.write(event(0)).unwrap_err().is_again(), "nothing was read");
    queue.read().unwrap();
    queue.write(event(0)).unwrap();
    assert!(queue.write(event(0)).unwrap_err().is_again());
}

#[test]
fn a_push_from_another_thread_wakes_a_reader() {
    let (core, queue) = open(EqAttr { wait_obj: WaitObj::Fd, ..EqAttr::default() });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            core.push(event(9));
        });
        assert_eq!(queue.read_wait(None).unwrap().data, 9);
    });
}

#[test]
fn a_source_that_is_gone_is_forgotten() {
    let (core, queue) = open(EqAttr::default());
    let source: Arc<dyn Driven> = Arc::new(Slow { queue: Arc::downgrade(&core), drives: AtomicU32::new(2) });
    core.add(&source).unwrap();
    drop(source);
    assert!(queue.read().unwrap_err().is_again());
}

#[test]
fn a_request_for_a_connection_comes_after_what_there_is_to_say_of_others() {
    let (core, queue) = open(EqAttr::default());
    core.push(Event::new(EventKind::ConnReq, Fid(1)));
    core.push(Event::new(EventKind::Connected, Fid(2)));
    core.push(Event::new(EventKind::ConnReq, Fid(3)));
    core.push(Event::new(EventKind::Shutdown, Fid(4)));
    assert_eq!(queue.peek().unwrap().fid, Fid(2));
    let order: Vec<u64> = std::iter::from_fn(|| queue.read().ok()).map(|event| event.fid.0).collect();
    assert_eq!(order, [2, 4, 1, 3]);
}

/// An endpoint that has accepted, until its peer confirms.
#[derive(Default)]
struct Accepted {
    confirmed: AtomicBool,
}

impl Driven for Accepted {
    fn drive(&self) {}
    fn arm(&self, _: &WakeFd) -> Arm {
        Arm::Armed
    }
    fn wait_fd(&self) -> Option<RawFd> {
        None
    }
    fn is_settling(&self) -> bool {
        !self.confirmed.load(Ordering::Relaxed)
    }
    fn stop_settling(&self) {
        self.confirmed.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_request_waits_for_the_confirmation_of_another_one_from_when_it_is_there() {
    let (core, queue) = open(EqAttr::default());
    let accepted = Arc::new(Accepted::default());
    let source: Arc<dyn Driven> = accepted.clone();
    core.add(&source).unwrap();
    let request = |data| Event { data, ..Event::new(EventKind::ConnReq, Fid(7)) };
    // However long the acceptance was before.
    std::thread::sleep(HELD);
    core.push(request(1));
    assert!(queue.read().unwrap_err().is_again());
    core.push(event(2));
    assert_eq!(queue.read().unwrap().data, 2, "others do not wait");
    accepted.confirmed.store(true, Ordering::Relaxed);
    assert_eq!(queue.read().unwrap().data, 1);
    // And not for ever.
    accepted.confirmed.store(false, Ordering::Relaxed);
    core.push(request(3));
    assert!(queue.read().unwrap_err().is_again());
    std::thread::sleep(HELD);
    assert_eq!(queue.read().unwrap().data, 3);
    // Nor does the next one, for the same acceptance.
    core.push(request(4));
    assert_eq!(queue.read().unwrap().data, 4);
}
