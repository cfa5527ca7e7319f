//! Event queues: writing, reading and waiting (fi_eq(3)).

use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi::raw::{Context, EqAttr, Errno, Event, EventKind, EventQueue, Fid, Result, WaitAttr, WaitObj};

use super::sets::broadcast;
use crate::Kit;

fn open(kit: &dyn Kit, attr: EqAttr) -> Result<Arc<dyn EventQueue>> {
    ofi::open_fabric(&kit.info(&kit.usual())).expect("opening a fabric").open_eq(&attr)
}

fn writable(kit: &dyn Kit, wait_obj: WaitObj) -> Arc<dyn EventQueue> {
    open(kit, EqAttr { write: true, wait_obj, ..EqAttr::default() }).expect("opening an event queue")
}

fn note(data: u64) -> Event {
    Event { context: Context(5), data, ..Event::new(EventKind::Notify, Fid(17)) }
}

pub fn an_event_queue_has_every_wait_object(kit: &dyn Kit) {
    for &wait_obj in WaitObj::VALUES.iter().filter(|&&wait_obj| wait_obj != WaitObj::Set) {
        for size in [0, 1, 100, 1000] {
            let queue = open(kit, EqAttr { size, wait_obj, ..EqAttr::default() }).expect("opening");
            let shows_descriptor = matches!(wait_obj, WaitObj::Fd | WaitObj::Pollfd);
            assert_eq!(queue.wait_fd().is_some(), shows_descriptor, "{wait_obj}");
            assert_eq!(queue.mutex_cond().is_some(), wait_obj == WaitObj::MutexCond, "{wait_obj}");
        }
    }
    let refused = open(kit, EqAttr { wait_obj: WaitObj::Set, ..EqAttr::default() }).err();
    assert_eq!(refused.expect("no wait set").errno(), Errno::EINVAL);
}

pub fn a_condition_variable_is_broadcast_for_events(kit: &dyn Kit) {
    let queue = writable(kit, WaitObj::MutexCond);
    let pair = queue.mutex_cond().expect("a condition variable");
    for data in 0..10 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                queue.write(note(data)).expect("writing");
            });
            while queue.peek().is_err() {
                if queue.trywait().is_ok() {
                    assert!(broadcast(pair), "blocked for ever after fi_trywait said so");
                }
            }
        });
        assert_eq!(queue.read().expect("reading").data, data);
    }
    // Blocking calls do not depend on the condition variable.
    assert!(queue.read_wait(Some(Duration::from_millis(50))).unwrap_err().is_again());
}

pub fn a_wait_set_wakes_for_events(kit: &dyn Kit) {
    let fabric = ofi::open_fabric(&kit.info(&kit.usual())).expect("opening a fabric");
    let set = fabric.open_wait_set(&WaitAttr { wait_obj: WaitObj::Unspec }).expect("opening a wait set");
    let wait_set = Some(Arc::clone(&set));
    let attr = EqAttr { write: true, wait_obj: WaitObj::Set, wait_set, ..EqAttr::default() };
    let queue = fabric.open_eq(&attr).expect("opening a member");
    let error = queue.read_wait(None).expect_err("members are waited for together");
    assert_eq!(error.errno(), Errno::EINVAL);
    assert_eq!(set.wait(Some(Duration::from_millis(10))).unwrap_err().errno(), Errno::ETIMEDOUT);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            queue.write(note(3)).expect("writing");
        });
        set.wait(Some(Duration::from_secs(10))).expect("waking");
    });
    assert!(set.trywait().unwrap_err().is_again(), "there is something to read");
    assert_eq!(queue.read().expect("reading").data, 3);
    set.trywait().expect("an empty queue may be waited for");
    drop(queue);
    assert_eq!(set.wait(Some(Duration::from_millis(10))).unwrap_err().errno(), Errno::ETIMEDOUT);
}

pub fn an_event_that_was_written_is_read_once_and_in_order(kit: &dyn Kit) {
    let queue = writable(kit, WaitObj::None);
    assert!(queue.read().unwrap_err().is_again());
    for data in 0..10 {
        queue.write(note(data)).expect("writing");
    }
    for data in 0..10 {
        assert_eq!(queue.peek().expect("peeking"), note(data));
        assert_eq!(queue.read().expect("reading"), note(data));
    }
    assert!(queue.peek().unwrap_err().is_again());
    assert!(queue.read_error().unwrap_err().is_again());
}

pub fn an_event_queue_is_written_to_only_if_opened_for_it(kit: &dyn Kit) {
    let queue = open(kit, EqAttr::default()).expect("opening");
    assert_eq!(queue.write(note(1)).unwrap_err().errno(), Errno::EOPNOTSUPP);
}

pub fn a_full_event_queue_refuses_and_loses_nothing(kit: &dyn Kit) {
    let attr = EqAttr { size: 64, write: true, ..EqAttr::default() };
    let queue = open(kit, attr).expect("opening");
    let written = (0..1 << 20).take_while(|&data| queue.write(note(data)).is_ok()).count() as u64;
    assert!((64..1 << 20).contains(&written), "{written} events found room");
    assert!(queue.write(note(0)).unwrap_err().is_again());
    for data in 0..written {
        assert_eq!(queue.read().expect("reading").data, data);
    }
    queue.write(note(1)).expect("there is room again");
}

pub fn an_event_wait_ends_at_its_time(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Unspec, WaitObj::Fd, WaitObj::Yield] {
        let queue = writable(kit, wait_obj);
        let start = Instant::now();
        assert!(queue.read_wait(Some(Duration::from_millis(50))).unwrap_err().is_again());
        assert!(start.elapsed() >= Duration::from_millis(50), "{wait_obj}: {:?}", start.elapsed());
        queue.write(note(4)).expect("writing");
        assert_eq!(queue.peek_wait(None).expect("peeking").data, 4);
        assert_eq!(queue.read_wait(None).expect("reading").data, 4);
    }
    let queue = writable(kit, WaitObj::None);
    assert_eq!(queue.read_wait(None).unwrap_err().errno(), Errno::EINVAL);
}

pub fn an_event_descriptor_is_readable_while_there_are_events(kit: &dyn Kit) {
    let queue = writable(kit, WaitObj::Fd);
    let fd = queue.wait_fd().expect("a descriptor");
    queue.trywait().expect("an empty queue may be waited for");
    queue.write(note(1)).expect("writing");
    assert!(ofi_core::sys::wait_readable(&[fd], Some(Instant::now() + Duration::from_secs(1))));
    assert!(queue.trywait().unwrap_err().is_again(), "there is something to read");
    queue.read().expect("reading");
    queue.trywait().expect("an empty queue may be waited for");
    assert!(!ofi_core::sys::wait_readable(&[fd], Some(Instant::now() + Duration::from_millis(10))));
}

pub fn a_written_event_wakes_a_blocked_reader(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Unspec, WaitObj::Yield] {
        let queue = writable(kit, wait_obj);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                queue.write(note(9)).expect("writing");
            });
            assert_eq!(queue.read_wait(Some(Duration::from_secs(10))).expect("waking").data, 9);
        });
    }
}
