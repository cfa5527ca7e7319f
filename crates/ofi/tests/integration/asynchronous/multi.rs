//! Multi-receives as streams, and claims.

use std::time::Instant;

use ofi::{AsyncNode, EpOption, Errno, MultiRecvBuffer};

use super::support::{LONG as LIMIT, both, manual_pair, pair, park_on, pattern, poll_once};

#[test]
fn messages_come_one_by_one_and_the_buffer_with_the_last() {
    let pair = pair();
    pair.b.set_option(EpOption::MinMultiRecv, 64).unwrap();
    park_on(async {
        let mut messages = pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 1000]));
        let mut ranges = Vec::new();
        for len in [300, 0, 200, 100] {
            pair.a.send(pattern(len), pair.to_b).await.unwrap();
            let mut message = messages.next_message().await.unwrap().unwrap();
            assert_eq!((message.bytes(), message.released.is_none()), (&pattern(len)[..], true));
            ranges.extend(message.range.take());
        }
        // Dropping a message's future loses no message.
        let mut next = messages.next_message();
        assert!(poll_once(&mut next).is_pending());
        drop(next);
        let (sent, last) = both(pair.a.send(pattern(350), pair.to_b), messages.next_message()).await;
        assert!(sent.is_ok());
        let mut last = last.unwrap().unwrap();
        assert_eq!(last.bytes(), pattern(350));
        let buffer = last.released.take().expect("the buffer, as 50 bytes are too few for another message");
        assert!(messages.next_message().await.is_none() && messages.next_message().await.is_none());
        // The buffer can be posted again once its ranges are dropped.
        let mut refused = pair.b.recv_multi(buffer);
        let failed = refused.next_message().await.unwrap().unwrap_err();
        assert_eq!(failed.error.errno(), Errno::EBUSY);
        assert!(refused.next_message().await.is_none());
        drop((ranges, last));
        let mut buffer = failed.buffer.unwrap();
        assert!(buffer.is_unused());
        let mut again = pair.b.recv_multi(buffer);
        pair.a.send(pattern(10), pair.to_b).await.unwrap();
        assert_eq!(again.next_message().await.unwrap().unwrap().bytes(), pattern(10));
    });
    assert_eq!((pair.b.in_flight(), pair.b.lost()), (0, 0), "dropping cancels");
}

#[test]
fn a_cancelled_stream_gives_what_came_and_its_buffer() {
    let pair = pair();
    park_on(async {
        let mut messages = pair.b.recv_multi_tagged(MultiRecvBuffer::new(vec![0; 100_000]), 1, 0);
        for len in [10, 20] {
            pair.a.send_tagged(pattern(len), pair.to_b, 1).await.unwrap();
        }
        look_around(&pair.b).await;
        messages.cancel();
        for len in [10, 20] {
            assert_eq!(messages.next_message().await.unwrap().unwrap().bytes(), pattern(len));
        }
        let end = messages.next_message().await.unwrap().unwrap();
        assert_eq!(end.result.unwrap_err().errno(), Errno::ECANCELED);
        assert!(end.released.is_some());
        assert!(messages.next_message().await.is_none());
    });
    assert_eq!(pair.b.in_flight(), 0);
}

/// The receive is cancelled when a message has matched and its payload is still at the sender.
#[test]
fn a_stream_that_is_cancelled_in_the_middle_of_a_message_gives_that_too() {
    const LONG: usize = 300_000;
    let pair = manual_pair();
    park_on(async {
        let mut messages = pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 1_000_000]));
        pair.a.send(pattern(10), pair.to_b).await.unwrap();
        let mut long = pair.a.send(pattern(LONG), pair.to_b);
        assert!(poll_once(&mut long).is_pending());
        look_around(&pair.b).await;
        messages.cancel();
        look_around(&pair.b).await;
        assert_eq!(messages.next_message().await.unwrap().unwrap().bytes(), pattern(10));
        let (sent, last) = both(long, messages.next_message()).await;
        sent.unwrap();
        let last = last.unwrap().unwrap();
        assert!(last.bytes() == pattern(LONG) && last.released.is_some());
        assert!(messages.next_message().await.is_none());
        let mut event = pair.b.event();
        assert!(poll_once(&mut event).is_pending(), "a completion was left to event()");
    });
    assert_eq!((pair.b.in_flight(), pair.b.lost()), (0, 0));
}

#[test]
fn a_stream_that_is_dropped_in_the_middle_of_a_message_gives_its_buffer_up() {
    let pair = manual_pair();
    park_on(async {
        // Once the nodes have met, messages arrive at the next poll.
        let (met, _) = both(pair.a.send(pattern(1), pair.to_b), pair.b.recv(vec![0; 1])).await;
        met.unwrap();
        let messages = pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 1_000_000]));
        let mut long = pair.a.send(pattern(300_000), pair.to_b);
        assert!(poll_once(&mut long).is_pending());
        look_around(&pair.b).await;
        drop(messages);
        let (sent, (behind, got)) =
            both(long, Box::pin(both(pair.a.send(pattern(9), pair.to_b), pair.b.recv(vec![0; 9])))).await;
        assert!(sent.is_ok() && behind.is_ok());
        assert_eq!(got.unwrap().buffer, pattern(9));
        let mut event = pair.b.event();
        // The later message may have completed first.
        let until = Instant::now() + LIMIT;
        while pair.b.in_flight() > 0 && Instant::now() < until {
            look_around(&pair.b).await;
        }
        assert!(poll_once(&mut event).is_pending(), "a completion was left to event()");
    });
    assert_eq!((pair.b.in_flight(), pair.b.lost()), (0, 1));
}

#[test]
fn a_dropped_stream_is_counted_and_takes_no_message_of_others() {
    let pair = pair();
    park_on(async {
        let messages = pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 100_000]));
        for len in [10, 20, 30] {
            pair.a.send(pattern(len), pair.to_b).await.unwrap();
        }
        look_around(&pair.b).await;
        drop(messages);
        assert_eq!(pair.b.lost(), 3);
        let (sent, got) = both(pair.a.send(pattern(9), pair.to_b), pair.b.recv(vec![0; 9])).await;
        assert!(sent.is_ok());
        assert_eq!(got.unwrap().buffer, pattern(9));
    });
    assert_eq!((pair.b.in_flight(), pair.b.lost()), (0, 3));
}

/// Polls until all that was sent has arrived.
async fn look_around(node: &AsyncNode) {
    for _ in 0..50 {
        let _ = node.peek(u64::MAX, 0).await;
    }
}

async fn arrived(node: &AsyncNode, tag: u64) {
    while node.peek(tag, 0).await.is_err() {}
}

#[test]
fn a_claimed_message_is_received_or_dropped() {
    let pair = pair();
    park_on(async {
        for (tag, len) in [(1, 100), (2, 50_000), (3, 7), (4, 5)] {
            let _sent = pair.a.send_tagged(pattern(len), pair.to_b, tag); // a long one waits for its receive
            arrived(&pair.b, tag).await;
        }
        for (tag, len) in [(1, 100), (2, 50_000)] {
            let mut found = pair.b.peek_claim(tag, 0).await.unwrap();
            assert_eq!((found.len, found.tag), (len, Some(tag)));
            assert_eq!(
                pair.b.peek(tag, 0).await.unwrap_err().errno(),
                Errno::ENOMSG,
                "the claimed message is found again"
            );
            let claimed = pair.b.claim(found.claim.take().unwrap(), vec![0; len]);
            let moved = async { while pair.a.peek(9, 0).await.is_ok() {} };
            let (got, ()) = both(claimed, moved).await;
            assert_eq!(got.unwrap().buffer, pattern(len));
        }
        let mut found = pair.b.peek_claim(3, 0).await.unwrap();
        pair.b.discard_claimed(found.claim.take().unwrap()).await.unwrap();
        pair.b.discard(4, 0).await.unwrap();
        assert_eq!(pair.b.discard(4, 0).await.unwrap_err().errno(), Errno::ENOMSG);
    });
    assert_eq!(pair.b.in_flight(), 0);
}

#[test]
fn a_claim_for_a_future_that_is_gone_is_discarded() {
    let pair = pair();
    park_on(async {
        let _ = pair.a.send_tagged(pattern(10), pair.to_b, 1).await;
        arrived(&pair.b, 1).await;
        drop(pair.b.peek_claim(1, 0));
        // After another poll of the queue the claim, and the message with it, are discarded.
        look_around(&pair.b).await;
        assert_eq!(pair.b.peek(1, 0).await.unwrap_err().errno(), Errno::ENOMSG);
    });
    assert_eq!((pair.b.in_flight(), pair.b.lost()), (0, 1));
}

#[cfg(feature = "futures")]
#[test]
fn messages_are_a_stream() {
    use std::future::poll_fn;
    use std::pin::Pin;

    use futures_core::Stream;

    let pair = pair();
    pair.b.set_option(EpOption::MinMultiRecv, 64).unwrap();
    park_on(async {
        let mut messages = pair.b.recv_multi(MultiRecvBuffer::new(vec![0; 1000]));
        pair.a.send(pattern(300), pair.to_b).await.unwrap();
        let next = poll_fn(|context| Stream::poll_next(Pin::new(&mut messages), context)).await;
        assert_eq!(next.unwrap().unwrap().bytes(), pattern(300));
        messages.cancel();
        let last = poll_fn(|context| Stream::poll_next(Pin::new(&mut messages), context)).await;
        assert!(last.unwrap().unwrap().released.is_some());
        assert!(poll_fn(|context| Stream::poll_next(Pin::new(&mut messages), context)).await.is_none());
    });
}
