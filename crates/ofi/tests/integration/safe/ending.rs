//! Cancelling, dropping and forgetting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi::{Errno, MrAccess, MultiRecvBuffer, Node};

use super::support::{LONG, hints, pair, pattern};

#[test]
fn cancelling_gives_the_buffer_back_and_only_once() {
    let pair = pair();
    let op = pair.b.recv(pattern(9)).unwrap();
    pair.b.cancel(op).unwrap();
    let mut ended = pair.of_b();
    assert_eq!((ended.op, ended.result.clone().unwrap_err().errno()), (Some(op), Errno::ECANCELED));
    assert_eq!(ended.take_buffer::<Vec<u8>>().unwrap(), pattern(9));
    assert_eq!(pair.b.cancel(op).unwrap_err(), Errno::ENOENT);

    let (here, there) = (pair.a.recv(vec![0; 1]).unwrap(), pair.b.recv(vec![0; 1]).unwrap());
    assert_eq!(pair.a.cancel(there).unwrap_err(), Errno::ENOENT, "an operation of another node");
    pair.a.cancel(here).unwrap();
    assert_eq!(pair.a.poll().unwrap().unwrap().op, Some(here));
    let again = pair.a.recv(vec![0; 1]).unwrap();
    assert_ne!(again, here);
    assert_eq!(pair.a.cancel(here).unwrap_err(), Errno::ENOENT, "the slot belongs to another operation now");
}

/// Buffers with a reference count that shows when they are freed.
fn counted(count: usize) -> (Arc<[u8]>, Vec<Arc<[u8]>>) {
    let bytes: Arc<[u8]> = Arc::from(pattern(300_000));
    (Arc::clone(&bytes), vec![bytes; count])
}

#[test]
fn dropping_a_node_frees_what_was_in_flight_after_closing() {
    let pair = pair();
    let (watch, buffers) = counted(8);
    for buffer in buffers {
        pair.a.send(buffer, pair.to_b).unwrap();
    }
    for _ in 0..100 {
        pair.b.recv(vec![0; 300_000]).unwrap();
        pair.b.poll().unwrap();
    }
    assert_eq!(Arc::strong_count(&watch), 9);
    drop(pair.a); // in the middle of rendezvous
    assert_eq!(Arc::strong_count(&watch), 1);
    for _ in 0..1000 {
        if let Some(got) = pair.b.poll().unwrap()
            && got.result.is_ok()
        {
            assert!(got.bytes() == pattern(300_000), "a message arrived in part");
        }
    }
    drop(pair.b);
}

#[test]
fn closing_gives_the_buffers_back() {
    let pair = pair();
    pair.b.recv(pattern(1)).unwrap();
    pair.b.recv_tagged(pattern(2).into_boxed_slice(), 1, 0).unwrap();
    pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 10])).unwrap();
    assert_eq!(pair.b.in_flight(), 3);
    let mut buffers = pair.b.close();
    assert_eq!(buffers.len(), 2);
    assert_eq!(buffers.pop().unwrap().downcast::<Box<[u8]>>().unwrap()[..], pattern(2));
    assert_eq!(buffers.pop().unwrap().downcast::<Vec<u8>>().unwrap(), pattern(1));
}

#[test]
fn forgetting_a_node_frees_nothing() {
    let pair = pair();
    let (watch, mut buffers) = counted(1);
    pair.a.send(buffers.remove(0), pair.to_b).unwrap();
    std::mem::forget(pair.a);
    assert_eq!(Arc::strong_count(&watch), 2);
}

/// The receiver closes at different times: before it has seen anything of the sender, after the handshake, or
/// after messages.
#[test]
fn a_receiver_that_goes_away_fails_or_frees_every_send() {
    for polls in [0, 0, 0, 1, 1, 2, 3, 10, 100, 1000] {
        let pair = pair();
        let (watch, buffers) = counted(5);
        for buffer in buffers {
            pair.a.send(buffer, pair.to_b).unwrap();
        }
        pair.b.recv(vec![0; 300_000]).unwrap();
        let mut sent = 0;
        for _ in 0..polls {
            pair.b.poll().unwrap();
        }
        drop(pair.b);
        for _ in 0..5 {
            let completion = pair.a.wait(LONG).unwrap().expect("a completion for each");
            // The send with a matching receive may have moved its last byte, and counts as sent.
            sent += usize::from(completion.result.is_ok());
            assert!(completion.buffer.is_some());
        }
        assert!(sent <= 1);
        assert_eq!((Arc::strong_count(&watch), pair.a.in_flight()), (1, 0));
    }
}

#[test]
fn everything_at_once_is_dropped_in_any_order() {
    let (long, longer) = (Arc::<[u8]>::from(pattern(400_000)), Arc::<[u8]>::from(pattern(500_000)));
    for order in 0..6 {
        let pair = pair();
        let window =
            pair.b.domain().alloc_window(500_000, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
        for step in 0..30 {
            let _ = pair.b.recv(vec![0; 400_000]);
            let _ = pair.a.send(Arc::clone(&long), pair.to_b);
            let _ = pair.a.send_tagged(pattern(100), pair.to_b, 1);
            let _ = pair.a.write(Arc::clone(&longer), pair.to_b, window.remote());
            let _ = pair.a.read(vec![0; 500_000], pair.to_b, window.remote());
            let _ = pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 50_000]));
            if step % 3 == order % 3 {
                let _ = (pair.a.poll(), pair.b.poll());
            }
        }
        match order {
            0 => drop((pair.a, window, pair.b)),
            1 => drop((pair.a, pair.b, window)),
            2 => drop((window, pair.a, pair.b)),
            3 => drop((window, pair.b, pair.a)),
            4 => drop((pair.b, pair.a, window)),
            _ => drop((pair.b, window, pair.a)),
        }
    }
}

#[test]
fn a_node_opens_again_under_its_name_after_it_was_dropped() {
    let name: ofi::Address = format!("fi_shm://safe-again-{}", std::process::id()).parse().unwrap();
    for _ in 0..3 {
        let builder = || Node::builder().hints(hints()).name(name.clone());
        // The helper thread of `shm` may hold the socket for a moment longer.
        let until = Instant::now() + LONG;
        let node = loop {
            match builder().open() {
                Err(error) if error == Errno::EADDRINUSE && Instant::now() < until => {
                    std::thread::yield_now()
                }
                other => break other.unwrap(),
            }
        };
        node.recv(vec![0; 10]).unwrap();
        assert_eq!(builder().open().unwrap_err(), Errno::EADDRINUSE);
        assert!(node.wait(Duration::from_millis(1)).unwrap().is_none());
    }
}
