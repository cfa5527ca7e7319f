//! Waiting, and the two threading levels.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ofi::{Completion, Domain, Errno, MultiRecvBuffer, Node, WaitObj, threading};

use super::support::{LONG, hints, next, pair, pattern};

#[test]
fn a_waiting_thread_sleeps_until_a_message_or_its_time() {
    for wait_obj in [WaitObj::Yield, WaitObj::Unspec, WaitObj::Fd] {
        let b = Node::builder().hints(hints()).wait_obj(wait_obj).open().unwrap();
        let a = Node::open(&hints()).unwrap();
        let to_b = a.insert(&b.name().unwrap()).unwrap();
        b.recv(vec![0; 8]).unwrap();
        let start = Instant::now();
        assert!(b.wait(Duration::from_millis(30)).unwrap().is_none());
        assert!(start.elapsed() >= Duration::from_millis(30));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.wait(LONG).unwrap().unwrap());
            std::thread::sleep(Duration::from_millis(20));
            a.send(b"wake".to_vec(), to_b).unwrap();
            assert!(a.wait(LONG).unwrap().is_some());
            assert_eq!(waiting.join().unwrap().bytes(), b"wake");
        });
        assert_eq!(b.wait_fd().is_some(), wait_obj == WaitObj::Fd);
        // A failed operation also wakes.
        let op = b.recv(vec![0; 8]).unwrap();
        b.cancel(op).unwrap();
        assert_eq!(b.wait(LONG).unwrap().unwrap().result.unwrap_err(), Errno::ECANCELED);
    }
}

/// The processor time of this thread, in clock ticks of 10 ms.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn waiting_costs_no_processor_unless_asked_to() {
    for provider in ["shm", "udp", "tcp"] {
        let node = Node::open(&ofi::Hints::new().provider(provider)).unwrap();
        let before = ticks();
        assert!(node.wait(Duration::from_millis(500)).unwrap().is_none());
        assert!(ticks() - before < 20, "{provider}: {} ticks of 50", ticks() - before);
    }
}

/// Before the sender has mapped the receiver's memory, it cannot see that the receiver sleeps.
#[test]
fn the_first_message_of_a_stranger_wakes_a_sleeper() {
    for _ in 0..30 {
        let b = Node::builder().hints(hints()).wait_obj(WaitObj::Unspec).open().unwrap();
        let a = Node::open(&hints()).unwrap();
        let to_b = a.insert(&b.name().unwrap()).unwrap();
        b.recv(vec![0; 8]).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let start = Instant::now();
                (b.wait(LONG).unwrap().unwrap(), start.elapsed())
            });
            std::thread::sleep(Duration::from_millis(5));
            a.send(b"hello".to_vec(), to_b).unwrap();
            assert!(a.wait(LONG).unwrap().unwrap().result.is_ok());
            let (got, slept) = waiting.join().unwrap();
            assert_eq!((got.into_result().unwrap().bytes(), slept < LONG / 2), (&b"hello"[..], true));
        });
    }
}

#[test]
fn a_signal_wakes_and_a_polled_node_cannot_wait() {
    for wait_obj in [WaitObj::Yield, WaitObj::Unspec] {
        let node = Node::builder().hints(hints()).wait_obj(wait_obj).open().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| node.wait(None).unwrap());
            std::thread::sleep(Duration::from_millis(20));
            node.signal().unwrap();
            assert!(waiting.join().unwrap().is_none());
        });
    }
    let node = Node::builder().hints(hints()).wait_obj(WaitObj::None).open().unwrap();
    assert_eq!(node.wait(Duration::ZERO).unwrap_err(), Errno::EINVAL);
    assert_eq!(node.signal().unwrap_err(), Errno::EINVAL);
    assert_eq!(node.try_wait().unwrap_err(), Errno::EINVAL);
}

#[test]
fn trywait_says_whether_the_descriptor_may_be_slept_on() {
    let b = Node::builder().hints(hints()).wait_obj(WaitObj::Fd).open().unwrap();
    let a = Node::open(&hints()).unwrap();
    let to_b = a.insert(&b.name().unwrap()).unwrap();
    assert!(b.wait_fd().unwrap().as_raw_fd() >= 0);
    b.recv(vec![0; 8]).unwrap();
    let until = Instant::now() + LONG;
    while !b.try_wait().unwrap() {
        assert!(b.poll().unwrap().is_none() && Instant::now() < until);
    }
    a.send(b"ready".to_vec(), to_b).unwrap();
    while b.try_wait().unwrap() {
        a.poll().unwrap();
        assert!(Instant::now() < until);
    }
    let mut got = Vec::new();
    while b.poll_many(&mut got, 100).unwrap() == 0 {
        a.poll().unwrap();
        assert!(Instant::now() < until);
    }
    assert_eq!(got[0].bytes(), b"ready");
}

#[test]
fn many_completions_are_read_at_once() {
    let pair = pair();
    for n in 0..200u8 {
        pair.b.recv(vec![0; 1]).unwrap();
        pair.a.inject(&[n], pair.to_b).unwrap();
    }
    let mut got: Vec<Completion> = Vec::new();
    let until = Instant::now() + LONG;
    while got.len() < 150 {
        let left = 150 - got.len();
        assert!(pair.b.poll_many(&mut got, left).unwrap() <= left && Instant::now() < until);
        pair.a.poll().unwrap();
    }
    assert_eq!(pair.b.poll_many(&mut got, 0).unwrap(), 0);
    while got.len() < 200 {
        pair.b.poll_many(&mut got, 1000).unwrap();
    }
    assert!(got.iter().enumerate().all(|(n, got)| got.bytes() == [n as u8]));
}

#[test]
fn four_threads_share_a_node() {
    const EACH: usize = 500;
    let pair = pair();
    let got = AtomicUsize::new(0);
    let ranges = AtomicUsize::new(0);
    let sent = AtomicUsize::new(0);
    let until = Instant::now() + 3 * LONG;
    let (pair, got, ranges, sent) = (&pair, &got, &ranges, &sent);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                for n in 0..EACH {
                    let mut message = vec![thread as u8; 1 + n % 3000];
                    while let Err(rejected) = pair.a.send(message, pair.to_b) {
                        assert!(rejected.is_again() && Instant::now() < until, "{rejected}");
                        message = rejected.buffer;
                        sent.fetch_add(usize::from(pair.a.poll().unwrap().is_some()), Ordering::Relaxed);
                    }
                }
            });
            scope.spawn(move || {
                pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 1 << 16])).unwrap();
                while got.load(Ordering::Relaxed) < 2 * EACH {
                    assert!(Instant::now() < until);
                    sent.fetch_add(usize::from(pair.a.poll().unwrap().is_some()), Ordering::Relaxed);
                    let Some(mut done) = pair.b.poll().unwrap() else { continue };
                    let bytes = done.bytes();
                    assert!(
                        done.result.is_ok()
                            && !bytes.is_empty()
                            && bytes.iter().all(|byte| *byte == bytes[0])
                    );
                    ranges.fetch_add(usize::from(done.range.take().is_some()), Ordering::Relaxed);
                    got.fetch_add(1, Ordering::Relaxed);
                    if done.released.take().is_some() {
                        pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 1 << 16])).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(ranges.load(Ordering::Relaxed), 2 * EACH);
    while sent.load(Ordering::Relaxed) < 2 * EACH {
        assert!(pair.a.wait(LONG).unwrap().is_some());
        sent.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(pair.a.in_flight(), 0);
}

#[test]
fn nodes_without_locks_work_one_to_a_thread_and_move() {
    let domain = Domain::open_exclusive(&hints()).unwrap();
    let a = domain.node().open().unwrap();
    let b = domain.node().open().unwrap();
    let (name_a, name_b) = (a.name().unwrap(), b.name().unwrap());
    let rounds = 1000;
    let run = move |node: Node<threading::Exclusive>, peer: &ofi::Address, first: bool| {
        let peer = node.insert(peer).unwrap();
        if first {
            node.inject(&pattern(9), peer).unwrap();
        }
        for _ in 0..rounds {
            node.recv(vec![0; 9]).unwrap();
            let mut got = node.wait(LONG).unwrap().unwrap().into_result().unwrap();
            let bytes: Vec<u8> = got.take_buffer().unwrap();
            while node.inject(&bytes, peer).is_err() {
                node.poll().unwrap();
            }
        }
        node
    };
    let (a, b) = std::thread::scope(|scope| {
        let a = scope.spawn(|| run(a, &name_b, true));
        let b = scope.spawn(|| run(b, &name_a, false));
        (a.join().unwrap(), b.join().unwrap())
    });
    let window = domain.alloc_window(100, ofi::MrAccess::REMOTE_READ).unwrap();
    a.read(vec![0; 100], a.reverse_lookup(&name_b).unwrap(), window.remote()).unwrap();
    assert!(next(&a, &b).result.is_ok());
    assert_eq!(a.info().domain_attr.threading, ofi::raw::Threading::Completion);
    let alone = Node::open_exclusive(&hints()).unwrap();
    assert!(alone.poll().unwrap().is_none());
}
