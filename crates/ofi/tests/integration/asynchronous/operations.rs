//! Every operation, awaited.

use std::sync::Arc;
use std::task::Poll;

use ofi::{AsyncNode, Errno, FiOp, MrAccess, Node, RecvMsg, RmaMsg, SendMsg};

use super::support::{all, both, hints, pair, park_on, pattern, poll_once};

const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

#[test]
fn messages_of_all_sizes_come_back_with_their_buffers() {
    let pair = pair();
    park_on(async {
        for len in [0, 1, 64, 4096, 20_000, 300_000] {
            let (sent, received) =
                both(pair.a.send(pattern(len), pair.to_b), pair.b.recv(vec![0; len + 3])).await;
            let (sent, received) = (sent.unwrap(), received.unwrap());
            assert!(sent.buffer == pattern(len) && sent.len == len);
            assert!(received.bytes() == pattern(len) && received.buffer.len() == len + 3);
            assert_eq!(received.source, Some(pair.to_a));
        }
    });
}

#[test]
fn a_stranger_is_answered() {
    let server = Node::builder().hints(hints()).insert_senders(1).open_async().unwrap();
    let client = AsyncNode::open(&hints()).unwrap();
    let to_server = client.insert(&server.name().unwrap()).unwrap();
    park_on(async {
        let (sent, asked) = both(client.send(pattern(9), to_server), server.recv(vec![0; 9])).await;
        assert_eq!(sent.unwrap().len, 9);
        let asked = asked.unwrap();
        let answer = server.send(asked.buffer, asked.source.expect("inserted"));
        let (_, answered) = both(answer, client.recv(vec![0; 9])).await;
        assert_eq!(answered.unwrap().buffer, pattern(9));
    });
}

#[test]
fn tags_data_ranges_and_sources() {
    let pair = pair();
    park_on(async {
        let message = SendMsg::new(pattern(100), pair.to_b).tag(7).data(9).range(10..20);
        let receive = RecvMsg::new(vec![0; 50]).tag(7, 0).source(pair.to_a).range(5..);
        let (sent, received) = both(pair.a.send_message(message), pair.b.recv_message(receive)).await;
        let (sent, received) = (sent.unwrap(), received.unwrap());
        assert_eq!((sent.bytes(), received.bytes()), (&pattern(100)[10..20], &pattern(100)[10..20]));
        assert_eq!((received.tag, received.data, received.len), (Some(7), Some(9), 10));

        let (sent, received) = both(
            pair.a.send_tagged_with_data(vec![1], 5, pair.to_b, 0x12),
            pair.b.recv_tagged(vec![0; 4], 0x10, 0xF),
        )
        .await;
        assert!(sent.is_ok());
        assert_eq!((received.as_ref().unwrap().tag, received.unwrap().data), (Some(0x12), Some(5)));

        assert_eq!(pair.b.peek(3, 0).await.unwrap_err(), Errno::ENOMSG);
        let (sent, found) = both(pair.a.send_tagged(vec![1; 9], pair.to_b, 3), async {
            loop {
                match pair.b.peek(3, 0).await {
                    Ok(found) => return found.len,
                    Err(error) => assert_eq!(error, Errno::ENOMSG),
                }
            }
        })
        .await;
        assert_eq!((sent.unwrap().len, found), (9, 9));
        assert_eq!(pair.b.recv_tagged_from(vec![0; 9], pair.to_a, 3, 0).await.unwrap().bytes(), [1; 9]);
    });
}

#[test]
fn remote_memory_and_atomics() {
    let pair = pair();
    let window = pair.b.domain().alloc_window(1 << 16, RIGHTS).unwrap();
    let remote = window.remote();
    let _driver = pair.b.drive_on_thread().unwrap(); // drives progress for peers while no future waits
    park_on(both(
        async {
            let peer = pair.to_b;
            pair.a.write(pattern(1 << 16), peer, remote).await.unwrap();
            let part = remote.slice(100..200).unwrap();
            let read = pair.a.read(vec![0; 100], peer, part).await.unwrap();
            assert_eq!((read.bytes(), read.len), (&pattern(1 << 16)[100..200], 100));
            let message = RmaMsg::new(vec![0; 10], peer, remote.slice(..4).unwrap()).range(3..7);
            assert_eq!(pair.a.read_message(message).await.unwrap().bytes(), &pattern(4));

            let word = remote.slice(..8).unwrap();
            pair.a.write(40u64.to_le_bytes().to_vec(), peer, word).await.unwrap();
            assert_eq!(pair.a.fetch_add(2u64, peer, word).await.unwrap(), 40);
            assert_eq!(pair.a.compare_swap(42u64, 50, peer, word).await.unwrap(), 42);
            pair.a.atomic(FiOp::Max, &[60u64], peer, word).await.unwrap();
            let old = pair.a.fetch_atomic(FiOp::Min, &[1u64], vec![0; 8], peer, word).await.unwrap();
            assert_eq!(old.buffer, 60u64.to_le_bytes());
            pair.a.write_with_data(&b"done"[..], 77, peer, remote.slice(..4).unwrap()).await.unwrap();
            let wrong = ofi::RemoteWindow { key: remote.key ^ 1, ..part };
            let failed = pair.a.read(vec![7; 100], peer, wrong).await.unwrap_err();
            assert_eq!(failed.buffer.map(|buffer| buffer.len()), Some(100), "{}", failed.error);
        },
        async {
            assert_eq!(pair.b.event().await.unwrap().data, Some(77));
        },
    ));
}

#[test]
fn what_is_refused_comes_back_at_once() {
    let pair = pair();
    park_on(async {
        let failed = pair.a.send(vec![1, 2, 3], ofi::FiAddr(99)).await.unwrap_err();
        assert_eq!((failed.error.errno(), failed.buffer), (Errno::EINVAL, Some(vec![1, 2, 3])));
        let (sent, short) = both(pair.a.send(pattern(9), pair.to_b), pair.b.recv(vec![0; 4])).await;
        assert!(sent.is_ok());
        let short = short.unwrap_err();
        assert_eq!((short.error.errno(), short.len), (Errno::ETRUNC, 4));
        assert_eq!(short.buffer.unwrap(), pattern(4));
    });
}

#[test]
fn a_thousand_operations_beyond_the_room_keep_their_order() {
    let pair = pair();
    let count = pair.a.info().tx_attr.size * 3 + 100;
    park_on(async {
        // All begin at once: most of them wait for room.
        let sends: Vec<_> =
            (0..count).map(|number| pair.a.send((number as u64).to_le_bytes().to_vec(), pair.to_b)).collect();
        let receives: Vec<_> = (0..count).map(|_| pair.b.recv(vec![0; 8])).collect();
        let (sent, received) = both(all(sends), all(receives)).await;
        assert!(sent.iter().all(Result::is_ok));
        for (number, message) in received.into_iter().enumerate() {
            assert_eq!(message.unwrap().bytes(), (number as u64).to_le_bytes());
        }
    });
    assert_eq!((pair.a.in_flight(), pair.b.in_flight()), (0, 0));
}

#[test]
fn a_peer_that_does_not_answer_does_not_keep_others_waiting() {
    let hints = hints();
    let open = || AsyncNode::open(&hints).unwrap();
    let (a, deaf, b) = (open(), open(), open());
    let (to_deaf, to_b) = (a.insert(&deaf.name().unwrap()).unwrap(), a.insert(&b.name().unwrap()).unwrap());
    let room = a.info().tx_attr.size;
    park_on(async {
        // `deaf` does not poll: messages only fit until its ring is full.
        let mut stuck: Vec<_> = (0..room / 2).map(|_| a.send(vec![0; 8192], to_deaf)).collect();
        for _ in 0..100 {
            let _ = poll_once(&mut stuck[room / 2 - 1]);
        }
        assert!(matches!(poll_once(&mut stuck[room / 2 - 1]), Poll::Pending));
        let (sent, received) = both(a.send(vec![5; 5], to_b), b.recv(vec![0; 5])).await;
        assert_eq!((sent.unwrap().len, received.unwrap().buffer), (5, vec![5; 5]));
    });
}

#[test]
fn one_thread_without_locks() {
    let a = AsyncNode::open_exclusive(&hints()).unwrap();
    let b = AsyncNode::open_exclusive(&hints()).unwrap();
    let to_b = a.insert(&b.name().unwrap()).unwrap();
    let text: Arc<[u8]> = Arc::from(&b"shared"[..]);
    a.block_on(async {
        let (sent, received) = both(a.send(Arc::clone(&text), to_b), b.recv(vec![0; 10])).await;
        assert_eq!(received.unwrap().bytes(), &sent.unwrap().buffer[..]);
    });
}
