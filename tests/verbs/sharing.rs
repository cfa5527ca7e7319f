//! Connected endpoints that share a completion queue of the device (`ofi-verbs/completions.rs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ofi_testkit::connect::connect;
use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Plan, SimulatedDevice};

use super::{ConnectedOver, device, hints};

const ANY: FiAddr = FiAddr::UNSPEC;

type Added = LazyLock<Arc<SimulatedDevice>>;

// Each test has a device of its own, whose polls it counts.
static SHARING: Added =
    LazyLock::new(|| device("sharing0", Plan { completions: 1 << 20, ..Plan::default() }));
static LEAVING: Added = LazyLock::new(|| device("leaving0", Plan { reuses: true, ..Plan::default() }));
static SLEEPING: Added = LazyLock::new(|| device("sleeping0", Plan::default()));
static FIXED: Added = LazyLock::new(|| device("fixed0", Plan { unresizable: true, ..Plan::default() }));
static SMALL: Added =
    LazyLock::new(|| device("small0", Plan { completions: 16 * (384 + 384), ..Plan::default() }));

fn over(added: &Added, name: &str) -> Hints {
    LazyLock::force(added);
    hints(name)
}

const fn sharing() -> ConnectedOver {
    ConnectedOver(|| over(&SHARING, "sharing0"))
}

const fn leaving() -> ConnectedOver {
    ConnectedOver(|| over(&LEAVING, "leaving0"))
}

const fn sleeping() -> ConnectedOver {
    ConnectedOver(|| over(&SLEEPING, "sleeping0"))
}

const fn fixed() -> ConnectedOver {
    ConnectedOver(|| over(&FIXED, "fixed0"))
}

const fn small() -> ConnectedOver {
    ConnectedOver(|| over(&SMALL, "small0"))
}

/// Connections of one end, whose endpoints all report to the queue of the first one, to ends with a queue of theirs.
struct Star {
    hub: Vec<TestEndpoint>,
    leaves: Vec<TestEndpoint>,
}

/// Another pair of endpoints, reporting to the queues of these.
fn beside(kit: &dyn Kit, hub: &TestEndpoint, leaf: &TestEndpoint) -> (TestEndpoint, TestEndpoint) {
    let hub = kit.opening().beside(hub).queue(&hub.tx).open_disabled().unwrap();
    let leaf = connect(&hub, kit.opening().beside(leaf).queue(&leaf.tx)).unwrap();
    (hub, leaf)
}

impl Star {
    fn open(kit: &dyn Kit, count: usize) -> Self {
        let first = kit.opening().open_disabled().unwrap();
        let leaf = connect(&first, kit.opening()).unwrap();
        let (mut hub, mut leaves) = (vec![first], vec![leaf]);
        for _ in 1..count {
            let (end, leaf) = beside(kit, &hub[0], &leaves[0]);
            hub.push(end);
            leaves.push(leaf);
        }
        Self { hub, leaves }
    }

    /// How often a read of the hub's queue polls the device, if there is nothing to read.
    fn polls(&self, device: &SimulatedDevice) -> usize {
        (0..10).for_each(|_| self.hub[0].poll());
        let before = device.polls();
        (0..10).for_each(|_| self.hub[0].poll());
        let polls = device.polls() - before;
        assert!(polls.is_multiple_of(10), "{polls}");
        polls / 10
    }

    /// Sends a message of every leaf to the hub and back.
    fn exchange(&self) {
        let (first, leaf) = (&self.hub[0], &self.leaves[0]);
        let into: Vec<Memory> = self.hub.iter().map(|_| Memory::new(100)).collect();
        let from: Vec<Memory> = (0..self.hub.len()).map(|at| Memory::patterned(100, at as u8)).collect();
        for (at, (end, into)) in self.hub.iter().zip(&into).enumerate() {
            end.receive(into).context(1000 + at).post().unwrap();
        }
        for (at, (end, from)) in self.leaves.iter().zip(&from).enumerate() {
            end.out(ANY, from).context(2000 + at).send().unwrap();
        }
        for (at, into) in into.iter().enumerate() {
            wait::drive(&[first, leaf], "a message", || first.next_of(1000 + at)).done();
            wait::drive(&[first, leaf], "its end", || leaf.next_of(2000 + at)).done();
            into.check(100, at as u8);
        }
        for (at, (end, leaf)) in self.hub.iter().zip(&self.leaves).enumerate() {
            leaf.receive(&into[at]).context(3000 + at).post().unwrap();
            end.out(ANY, &from[at]).context(4000 + at).send().unwrap();
        }
        for at in 0..self.hub.len() {
            wait::drive(&[first, leaf], "an answer", || leaf.next_of(3000 + at)).done();
            wait::drive(&[first, leaf], "its end", || first.next_of(4000 + at)).done();
        }
        assert_eq!((first.pending(), leaf.pending()), (0, 0));
    }
}

#[test]
fn a_queue_of_100_connections_is_read_by_one_poll_of_the_device() {
    let star = Star::open(&sharing(), 100);
    assert_eq!(star.polls(&SHARING), 1);
    star.exchange();
    assert_eq!(star.polls(&SHARING), 1);
}

#[test]
fn a_device_that_cannot_resize_queues_is_polled_a_few_times() {
    let star = Star::open(&fixed(), 20);
    star.exchange();
    assert_eq!(star.polls(&FIXED), 5, "queues for 1, 2, 4, 8 and 16 endpoints");
}

#[test]
fn no_queue_is_longer_than_the_device_s_limit() {
    let star = Star::open(&small(), 40);
    star.exchange();
    assert_eq!(star.polls(&SMALL), 3, "queues for 16 endpoints");
}

/// Each closed endpoint leaves completions that nobody has read, and its queue pair's number is the next one's.
#[test]
fn what_a_closed_endpoint_leaves_is_nobody_s() {
    let star = Star::open(&leaving(), 2);
    let into = Memory::new(64);
    for _ in 0..20 {
        let (end, leaf) = beside(&leaving(), &star.hub[0], &star.leaves[0]);
        for context in 0..32 {
            end.receive(&into).context(context).post().unwrap();
        }
        for context in 100..132 {
            leaf.out(ANY, &into).context(context).send().unwrap();
        }
        for context in 100..132 {
            wait::drive(&[&star.leaves[0]], "a message", || star.leaves[0].next_of(context)).done();
        }
        drop(end);
        star.exchange();
        drop(leaf);
    }
    assert_eq!(star.polls(&LEAVING), 1);
}

/// One thread sleeps on the queue, while another sleeps on a counter of one of its endpoints, and so takes
/// notifications and completions of the others.
#[test]
fn a_sleeper_hears_of_what_another_thread_takes_off_the_device() {
    let kit: &dyn Kit = &sleeping();
    let opening = || kit.opening().wait_obj(WaitObj::Fd);
    let first = opening().open_disabled().unwrap();
    let leaf = connect(&first, opening()).unwrap();
    let attr = CntrAttr { wait_obj: WaitObj::Fd, ..CntrAttr::default() };
    let counting = opening().counter(attr, BindFlags::RECV).beside(&first).queue(&first.tx);
    let second = counting.open_disabled().unwrap();
    let _peer = connect(&second, opening()).unwrap();
    let is_over = AtomicBool::new(false);
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = second.counters[0].wait(1, Some(Duration::from_micros(200)));
            }
        });
        for _ in 0..500 {
            first.receive(&into).context(1).post().unwrap();
            leaf.out(ANY, &from).inject().send().unwrap();
            let mut entries = [CqTaggedEntry::EMPTY; 4];
            let read = first.tx.read_wait(&mut CqBuffer::new(&mut entries), Some(wait::BOUND));
            assert_eq!((read.unwrap(), entries[0].op_context.0), (1, 1));
            leaf.poll(); // gives its room back
        }
        is_over.store(true, Ordering::Relaxed);
    });
    into.check(64, 5);
}
