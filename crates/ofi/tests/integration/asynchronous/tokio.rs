//! On tokio's runtimes: the reactor wakes tasks, and timeouts and `select!` cancel.

use std::sync::Arc;
use std::time::Duration;

use ofi::rt::tokio::Driven;
use ofi::{AsyncConnection, AsyncNode, Errno, FiAddr, Listener, MultiRecvBuffer};
use tokio::time::timeout;

use super::support::{LONG, hints, pattern};

struct Pair {
    a: Driven,
    b: Driven,
    to_a: FiAddr,
    to_b: FiAddr,
}

fn pair() -> Pair {
    let open = || Driven::new(AsyncNode::open(&hints()).unwrap());
    let (a, b) = (open(), open());
    let to_b = a.insert(&b.name().unwrap()).unwrap();
    let to_a = b.insert(&a.name().unwrap()).unwrap();
    Pair { a, b, to_a, to_b }
}

/// Many tasks send and receive messages of several lengths at once; then echoes with pauses in between.
async fn traffic() {
    let pair = pair();
    let mut tasks = Vec::new();
    for tag in 0..40u64 {
        let len = [8, 5000, 100_000][tag as usize % 3];
        let (node, peer) = (Arc::clone(pair.a.node()), pair.to_b);
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                assert!(node.send_tagged(pattern(len), peer, tag).await.unwrap().buffer.len() == len);
            }
        }));
        let node = Arc::clone(pair.b.node());
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                assert!(node.recv_tagged(vec![0; len], tag, 0).await.unwrap().buffer == pattern(len));
            }
        }));
    }
    for task in tasks {
        timeout(LONG, task).await.expect("a wake-up was lost").unwrap();
    }
    let echo = async {
        for _ in 0..10 {
            let got = pair.b.recv(vec![0; 8]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await; // both drivers sleep
            pair.b.send(got.buffer, pair.to_a).await.unwrap();
        }
    };
    let ask = async {
        for round in 0..10u64 {
            let answer = pair.a.recv(vec![0; 8]);
            tokio::time::sleep(Duration::from_millis(2)).await;
            pair.a.send(round.to_le_bytes().to_vec(), pair.to_b).await.unwrap();
            assert_eq!(answer.await.unwrap().buffer, round.to_le_bytes());
        }
    };
    timeout(LONG, async { tokio::join!(echo, ask) }).await.expect("a wake-up was lost");
    assert_eq!((pair.a.in_flight(), pair.b.in_flight()), (0, 0));
}

#[tokio::test(flavor = "current_thread")]
async fn traffic_on_one_thread() {
    traffic().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn traffic_on_many_threads() {
    traffic().await;
}

#[tokio::test(flavor = "current_thread")]
async fn timeouts_and_selects_cancel_receives() {
    let pair = pair();
    let short = Duration::from_millis(10);
    timeout(short, pair.b.recv(vec![0; 8])).await.unwrap_err(); // dropped: cancelled
    let mut kept = pair.b.recv(vec![0; 8]);
    timeout(short, &mut kept).await.unwrap_err(); // only borrowed: still posted
    kept.cancel();
    assert_eq!(kept.await.unwrap_err().error, Errno::ECANCELED);

    let receive = pair.b.recv(vec![0; 8]);
    let (sent, received) = tokio::join!(pair.a.send(pattern(8), pair.to_b), timeout(LONG, receive));
    assert!(sent.is_ok());
    assert_eq!(received.unwrap().unwrap().buffer, pattern(8), "an earlier receive took the message");

    tokio::select! {
        biased;
        _ = pair.b.recv_tagged(vec![0; 8], 1, 0) => unreachable!("nobody sends with tag 1"),
        got = pair.b.recv_tagged(vec![0; 8], 2, 0) => assert_eq!(got.unwrap().buffer, pattern(8)),
        () = async {
            pair.a.send_tagged(pattern(8), pair.to_b, 2).await.unwrap();
            std::future::pending().await
        } => {}
    }
    assert_eq!((pair.b.in_flight(), pair.b.lost()), (0, 0));
}

#[tokio::test(flavor = "current_thread")]
async fn an_idle_node_does_not_spin() {
    let pair = pair();
    let waiting = pair.b.recv(vec![0; 8]);
    let before = processor_time();
    timeout(Duration::from_millis(300), waiting).await.unwrap_err();
    let spent = processor_time() - before;
    assert!(spent < Duration::from_millis(150), "{spent:?} of processor time in 300 idle ms");
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "current_thread")]
async fn a_node_outlives_its_driver() {
    let pair = pair();
    let b = Arc::clone(pair.b.node());
    let receive = b.recv(vec![0; 8]);
    drop(pair.b);
    let (sent, received) = tokio::join!(pair.a.send(pattern(8), pair.to_b), timeout(LONG, receive));
    assert!(sent.is_ok());
    assert_eq!(received.unwrap().unwrap().buffer, pattern(8));
}

/// A listener in a task, and callers in other tasks, some of which abandon their attempts.
async fn connections() {
    let listener = Listener::open(&hints()).unwrap();
    let name = listener.name().unwrap();
    let server = tokio::spawn(async move {
        let mut served = 0;
        while served < 8 {
            let request = timeout(LONG, listener.next_request()).await.expect("a wake-up was lost").unwrap();
            // A caller that gave up may still have a pending request.
            let Ok(connection) = timeout(LONG, request.accept_async(b"")).await.expect("an end") else {
                continue;
            };
            let driven = Driven::new(Arc::clone(connection.node()));
            let mut messages = driven.recv_multi(MultiRecvBuffer::new(vec![0; 100_000]));
            let Ok(message) = timeout(LONG, messages.next_message()).await.expect("a message").expect("room")
            else {
                continue;
            };
            if message.result.is_err() {
                continue; // the caller has given up
            }
            assert_eq!(message.bytes(), pattern(5000));
            driven.send(b"got it".to_vec(), connection.peer()).await.unwrap();
            timeout(LONG, connection.ended()).await.expect("the caller ends it").unwrap();
            served += 1;
        }
    });
    let mut callers = Vec::new();
    for number in 0..12 {
        let name = name.clone();
        callers.push(tokio::spawn(async move {
            let connecting = AsyncConnection::open(&hints(), &name, b"").unwrap();
            if number % 3 == 2 {
                let _ = timeout(Duration::from_millis(1), connecting).await; // gives up, most often
                return;
            }
            let connection = timeout(LONG, connecting).await.expect("an answer").unwrap();
            let driven = Driven::new(Arc::clone(connection.node()));
            let answer = driven.recv(vec![0; 8]);
            driven.send(pattern(5000), connection.peer()).await.unwrap();
            assert_eq!(timeout(LONG, answer).await.expect("an answer").unwrap().bytes(), b"got it");
            connection.shutdown().unwrap();
        }));
    }
    for caller in callers {
        timeout(LONG, caller).await.expect("callers end").unwrap();
    }
    timeout(LONG, server).await.expect("the server ends").unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn connections_come_and_go_on_one_thread() {
    connections().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn connections_come_and_go_on_threads() {
    connections().await;
}
