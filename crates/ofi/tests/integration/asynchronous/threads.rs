//! Futures on one thread, progress on another; and threads that sleep.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi::AsyncNode;

use super::support::{LONG, all, both, hints, pair, park_on, pattern};

/// A pause after which the receiver and its driver sleep.
const PAUSE: Duration = Duration::from_millis(30);

#[test]
fn wakers_from_a_driver_thread() {
    let pair = pair();
    let (_a, _b) = (pair.a.drive_on_thread().unwrap(), pair.b.drive_on_thread().unwrap());
    for round in 0..200 {
        let len = [8, 5000, 100_000][round % 3];
        let (sent, received) = park_on(both(pair.a.send(pattern(len), pair.to_b), pair.b.recv(vec![0; len])));
        assert!(sent.unwrap().buffer == received.unwrap().buffer);
    }
}

#[test]
fn sleepers_are_woken_by_late_messages() {
    let pair = pair();
    let driver = pair.b.drive_on_thread().unwrap();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            for _ in 0..5 {
                park_on(pair.b.recv(vec![0; 8])).unwrap();
            }
        });
        for _ in 0..5 {
            std::thread::sleep(PAUSE); // the receiver and its driver sleep
            pair.a.block_on(pair.a.send(vec![1; 8], pair.to_b)).unwrap();
        }
        let late = Instant::now() + LONG;
        while !receiver.is_finished() {
            assert!(Instant::now() < late, "a wake-up was lost");
            std::thread::yield_now();
        }
    });
    drop(driver);
}

#[test]
fn futures_go_on_when_their_driver_ends() {
    let pair = pair();
    let driver = pair.b.drive_on_thread().unwrap();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| park_on(pair.b.recv(vec![0; 8])));
        std::thread::sleep(PAUSE);
        drop(driver);
        pair.a.block_on(pair.a.send(vec![1; 8], pair.to_b)).unwrap();
        assert_eq!(receiver.join().unwrap().unwrap().buffer, [1; 8]);
    });
}

#[test]
fn many_threads_share_two_nodes() {
    let pair = pair();
    let (_a, _b) = (pair.a.drive_on_thread().unwrap(), pair.b.drive_on_thread().unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let pair = &pair;
            scope.spawn(move || {
                for round in 0..50u64 {
                    let tag = thread << 32 | round;
                    let (sent, received) = park_on(both(
                        pair.a.send_tagged(tag.to_le_bytes().to_vec(), pair.to_b, tag),
                        pair.b.recv_tagged(vec![0; 8], tag, 0),
                    ));
                    assert_eq!(sent.unwrap().buffer, received.unwrap().buffer);
                }
            });
        }
    });
    assert_eq!((pair.a.in_flight(), pair.b.in_flight()), (0, 0));
}

#[test]
fn block_on_sleeps_and_is_woken_from_both_sides() {
    let pair = pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..10 {
                let got = pair.b.block_on(pair.b.recv(vec![0; 8])).unwrap();
                pair.b.block_on(pair.b.send(got.buffer, pair.to_a)).unwrap();
            }
        });
        for round in 0..10u64 {
            std::thread::sleep(Duration::from_millis(2));
            let (sent, got) = pair.a.block_on(both(
                pair.a.send(round.to_le_bytes().to_vec(), pair.to_b),
                pair.a.recv(vec![0; 8]),
            ));
            assert_eq!(sent.unwrap().buffer, got.unwrap().buffer);
        }
    });
}

#[test]
fn two_threads_block_on_one_node() {
    let pair = pair();
    let _b = pair.b.drive_on_thread().unwrap();
    std::thread::scope(|scope| {
        for tag in 0..2 {
            let pair = &pair;
            scope.spawn(move || {
                for _ in 0..50 {
                    let (sent, got) = pair.a.block_on(both(
                        pair.b.send_tagged(vec![tag as u8; 8], pair.to_a, tag),
                        pair.a.recv_tagged(vec![0; 8], tag, 0),
                    ));
                    assert_eq!(sent.unwrap().buffer, got.unwrap().buffer);
                }
            });
        }
    });
}

#[test]
fn many_nodes_on_one_thread() {
    let hub = Arc::new(AsyncNode::open(&hints()).unwrap());
    let nodes: Vec<_> = (0..8).map(|_| AsyncNode::open(&hints()).unwrap()).collect();
    hub.block_on(async {
        let mut sends = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            let to_hub = node.insert(&hub.name().unwrap()).unwrap();
            sends.extend((0..10).map(|_| node.send_tagged(vec![number as u8; 100], to_hub, number as u64)));
        }
        let receives: Vec<_> = (0..80).map(|at| hub.recv_tagged(vec![0; 100], at / 10, 0)).collect();
        let (sent, received) = both(all(sends), all(receives)).await;
        assert!(sent.iter().all(Result::is_ok));
        for message in received {
            let message = message.unwrap();
            assert!(message.buffer.iter().all(|&byte| u64::from(byte) == message.tag.unwrap()));
        }
    });
}
