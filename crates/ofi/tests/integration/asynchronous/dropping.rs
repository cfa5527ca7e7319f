//! Futures that are cancelled, dropped and forgotten at every possible point.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use ofi::{AsyncNode, Errno, MrAccess};

use super::support::{LONG, Pair, all, both, manual_pair, pair, park_on, pattern, poll_once};

/// Bytes of a message that takes several polls of both sides.
const LARGE: usize = 1_200_000;

#[test]
fn a_cancelled_receive_ends_with_its_buffer_or_its_message() {
    let pair = manual_pair();
    park_on(async {
        let receive = pair.b.recv(pattern(9));
        receive.cancel();
        let failed = receive.await.unwrap_err();
        assert_eq!((failed.error.errno(), failed.buffer), (Errno::ECANCELED, Some(pattern(9))));

        let receive = pair.b.recv(vec![0; 9]);
        pair.a.send(pattern(9), pair.to_b).await.unwrap();
        let _ = pair.b.peek(0, 0).await; // the message arrives
        receive.cancel(); // too late
        assert_eq!(receive.await.unwrap().buffer, pattern(9));
    });
}

#[test]
fn what_waits_for_room_is_cancelled_with_its_buffer() {
    let pair = manual_pair();
    let room = pair.a.info().rx_attr.size;
    let posted: Vec<_> = (0..room).map(|_| pair.a.recv(vec![0; 1])).collect();
    let waits = pair.a.recv(pattern(3));
    let dropped = pair.a.recv(pattern(4));
    waits.cancel();
    drop(dropped);
    let failed = park_on(waits).unwrap_err();
    assert_eq!((failed.error.errno(), failed.buffer), (Errno::ECANCELED, Some(pattern(3))));
    drop(posted);
    assert_eq!(pair.a.in_flight(), 0, "dropping a receive frees its buffer at once");
}

#[test]
fn a_dropped_receive_takes_no_message_of_others() {
    let pair = manual_pair();
    park_on(async {
        let mut first = pair.b.recv(vec![0; 4]);
        assert!(poll_once(&mut first).is_pending());
        drop(first);
        let (sent, received) = both(pair.a.send(pattern(4), pair.to_b), pair.b.recv(vec![0; 4])).await;
        assert!(sent.is_ok());
        assert_eq!(received.unwrap().buffer, pattern(4));
    });
    assert_eq!(pair.b.lost(), 0);
}

#[test]
fn a_message_for_a_dropped_receive_is_counted() {
    let pair = manual_pair();
    let receive = pair.b.recv(vec![0; 4]);
    park_on(async {
        pair.a.send(pattern(4), pair.to_b).await.unwrap();
        let _ = pair.b.peek(0, 0).await; // the message arrives, and matches the receive
    });
    drop(receive);
    assert_eq!((pair.b.lost(), pair.b.in_flight()), (1, 0));
}

/// Two nodes run every kind of operation in turn.
async fn session(pair: &Pair, shared: &Arc<[u8]>) -> ofi::Result<()> {
    let window = pair.b.domain().alloc_window(LARGE, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE)?;
    let remote = window.remote();
    let plain = pair.b.domain().window(vec![0; LARGE], MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE)?;
    for _ in 0..2 {
        let (sent, received) =
            both(pair.a.send(Arc::clone(shared), pair.to_b), pair.b.recv(vec![0; LARGE])).await;
        assert!(received?.buffer[..] == sent?.buffer[..]);
        pair.a.write(Arc::clone(shared), pair.to_b, plain.remote()).await?;
        let back = pair.a.read(vec![0; LARGE], pair.to_b, remote).await?;
        assert_eq!(back.buffer.len(), LARGE);
        pair.a.fetch_add(1u64, pair.to_b, remote.slice(..8)?).await?;
        let (sent, received) =
            both(pair.a.send_tagged(vec![1], pair.to_b, 1), pair.b.recv_tagged(vec![0], 1, 0)).await;
        assert_eq!(sent?.buffer, received?.buffer);
    }
    Ok(())
}

/// Drives progress of a node on which no future waits.
fn drive(node: &AsyncNode) {
    let _ = poll_once(&mut node.peek(u64::MAX, 0));
}

/// Polls `session` `steps` times, and drops it. Returns whether it became ready.
fn dropped_after(steps: usize, pair: Pair) -> bool {
    let shared: Arc<[u8]> = pattern(LARGE).into();
    let ready = {
        let mut future = pin!(session(&pair, &shared));
        let mut context = Context::from_waker(Waker::noop());
        (0..steps).any(|_| {
            // The owner of the memory makes progress while nothing of its own is in flight.
            drive(&pair.b);
            future.as_mut().poll(&mut context).is_ready()
        })
    };
    // The nodes still work, with the rest of the operations in flight.
    let mut sent = pair.a.send_tagged(pattern(50), pair.to_b, 99);
    let mut received = pair.b.recv_tagged(vec![0; 50], 99, 0);
    let late = Instant::now() + LONG;
    let message = loop {
        drive(&pair.a); // its send may have completed before earlier operations have
        if let Poll::Ready(message) = poll_once(&mut received) {
            break message.unwrap();
        }
        assert!(Instant::now() < late, "after {steps} steps, no message arrives");
    };
    assert_eq!(message.buffer, pattern(50));
    while poll_once(&mut sent).is_pending() {
        drive(&pair.b);
        assert!(Instant::now() < late, "after {steps} steps, the send does not end");
    }
    drop((sent, received));
    // All operations have ended, or end with their node, and release their buffers.
    drop(pair);
    assert_eq!(Arc::strong_count(&shared), 1);
    assert!(shared[..] == pattern(LARGE));
    ready
}

#[test]
fn futures_dropped_at_every_await_point() {
    let mut steps = 0;
    while !dropped_after(steps, manual_pair()) {
        steps += 1;
        assert!(steps < 10_000, "the session never ends");
    }
    assert!(steps > 10, "the session has too few points at which to drop it");
}

#[test]
fn futures_dropped_while_another_thread_drives() {
    for steps in 0..40 {
        dropped_after(steps, pair());
    }
}

#[test]
fn forgotten_futures_free_nothing_before_the_node() {
    let pair = manual_pair();
    let shared: Arc<[u8]> = pattern(LARGE).into();
    let mut send = pair.a.send(Arc::clone(&shared), pair.to_b);
    assert!(poll_once(&mut send).is_pending());
    std::mem::forget(send);
    std::mem::forget(pair.b.recv(vec![0; LARGE]));
    park_on(async {
        // The forgotten receive gets the forgotten message.
        let (sent, received) = both(pair.a.send(vec![1], pair.to_b), pair.b.recv(vec![0; LARGE])).await;
        assert_eq!((sent.unwrap().len, received.unwrap().len), (1, 1));
    });
    let node: AsyncNode = Arc::into_inner(pair.a).unwrap();
    drop(node);
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn many_receives_dropped_in_any_order() {
    let pair = manual_pair();
    park_on(async {
        for round in 0..20 {
            let mut receives: Vec<_> =
                (0..50).map(|tag| Some(pair.b.recv_tagged(vec![0; 8], tag, 0))).collect();
            let sends: Vec<_> = (0..50u64)
                .map(|tag| pair.a.send_tagged(tag.to_le_bytes().to_vec(), pair.to_b, tag))
                .collect();
            for step in 0..25 {
                receives[(step * 7 + round) % 50] = None;
            }
            let kept: Vec<_> = receives.into_iter().flatten().collect();
            let count = kept.len();
            let (sent, received) = both(all(sends), all(kept)).await;
            assert!(sent.iter().all(Result::is_ok));
            assert_eq!(received.iter().filter(|message| message.is_ok()).count(), count);
            for message in received {
                let message = message.unwrap();
                assert_eq!(message.tag.unwrap().to_le_bytes(), message.bytes());
            }
            // Messages whose receives were dropped before they arrived are still unexpected.
            while let Ok(found) = pair.b.peek(0, u64::MAX).await {
                pair.b.recv_tagged(vec![0; 8], found.tag.unwrap(), 0).await.unwrap();
            }
        }
    });
    assert_eq!(pair.b.in_flight(), 0);
}
