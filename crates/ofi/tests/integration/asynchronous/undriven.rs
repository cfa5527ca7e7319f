//! Nodes that nobody drives: the library's thread does, and futures sleep.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ofi::{AsyncNode, Errno, Hints, WaitObj};

use super::support::{all, both, hints, pair, park_on, pattern, poll_once};

/// A pause after which everybody sleeps.
const PAUSE: Duration = Duration::from_millis(50);

/// Counts how often it was woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Awaits a future, and counts its polls.
async fn counted<F: Future>(future: F) -> (F::Output, usize) {
    let (mut future, mut polls) = (pin!(future), 0);
    let output = std::future::poll_fn(|context| {
        polls += 1;
        future.as_mut().poll(context)
    })
    .await;
    (output, polls)
}

#[test]
fn a_future_sleeps_until_its_message_comes() {
    for hints in [hints(), Hints::new().provider("udp")] {
        let open = || AsyncNode::open(&hints).unwrap();
        let (a, b) = (open(), open());
        let to_b = a.insert(&b.name().unwrap()).unwrap();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                (0..5)
                    .map(|_| park_on(counted(b.recv(vec![0; 8]))))
                    .map(|(got, polls)| {
                        assert_eq!(got.unwrap().buffer, [7; 8]);
                        polls
                    })
                    .sum::<usize>()
            });
            for _ in 0..5 {
                std::thread::sleep(PAUSE);
                park_on(a.send(vec![7; 8], to_b)).unwrap();
            }
            // A future that wakes itself is polled some hundred thousand times here.
            let polls = receiver.join().unwrap();
            assert!(polls < 200, "{polls} polls for five messages");
        });
    }
}

#[test]
fn messages_of_all_sizes_and_many_nodes() {
    let server = AsyncNode::open(&hints()).unwrap();
    let nodes: Vec<_> = (0..6).map(|_| AsyncNode::open(&hints()).unwrap()).collect();
    std::thread::scope(|scope| {
        for (number, node) in nodes.iter().enumerate() {
            let to_server = node.insert(&server.name().unwrap()).unwrap();
            scope.spawn(move || {
                for len in [8, 5_000, 100_000] {
                    let message = pattern(len + number);
                    park_on(node.send_tagged(message, to_server, number as u64)).unwrap();
                }
            });
        }
        park_on(async {
            let receives = (0..18).map(|at| server.recv_tagged(vec![0; 100_006], at / 3, 0));
            for message in all(receives.collect()).await {
                let message = message.unwrap();
                assert!(message.bytes() == pattern(message.len));
            }
        });
    });
}

#[test]
fn an_event_and_a_cancellation_wake_a_sleeper() {
    let pair = pair();
    std::thread::scope(|scope| {
        let window = pair.b.domain().alloc_window(64, ofi::MrAccess::REMOTE_WRITE).unwrap();
        let event = scope.spawn(|| park_on(pair.b.event()).unwrap().data);
        std::thread::sleep(PAUSE);
        park_on(pair.a.write_with_data(vec![1; 64], 42, pair.to_b, window.remote())).unwrap();
        assert_eq!(event.join().unwrap(), Some(42));

        let receive = pair.b.recv(vec![0; 8]);
        std::thread::sleep(PAUSE);
        receive.cancel();
        assert_eq!(park_on(receive).unwrap_err().error, Errno::ECANCELED);
    });
}

#[test]
fn a_node_that_is_dropped_while_it_is_driven_closes_at_once() {
    let (peer, mut name) = (AsyncNode::open(&hints()).unwrap(), None);
    for round in 0..50u64 {
        let mut builder = AsyncNode::builder().hints(hints());
        if let Some(name) = name.take() {
            builder = builder.name(name); // taken, if the node of the last round still had it
        }
        let node = builder.open_async().unwrap();
        let own = node.name().unwrap();
        let to_node = peer.insert(&own).unwrap();
        {
            let mut receive = node.recv(vec![0; 8]);
            assert!(poll_once(&mut receive).is_pending());
            if round % 2 == 0 {
                let (sent, got) = park_on(both(peer.send(vec![1; 8], to_node), receive));
                assert_eq!(sent.unwrap().buffer, got.unwrap().buffer);
            }
        }
        name = Some(own);
        peer.remove(to_node).unwrap();
        match round % 3 {
            0 => drop(node.close()),
            _ => drop(node),
        }
    }
}

#[test]
fn a_driver_takes_over_and_gives_back() {
    let pair = pair();
    for round in 0..20u64 {
        let driver = (round % 2 == 0).then(|| pair.b.drive_on_thread().unwrap());
        let exchange = both(pair.a.send(vec![round as u8; 8], pair.to_b), pair.b.recv(vec![0; 8]));
        let (sent, got) = if round % 3 == 0 { pair.b.block_on(exchange) } else { park_on(exchange) };
        assert_eq!(sent.unwrap().buffer, got.unwrap().buffer);
        drop(driver);
    }
}

#[test]
fn futures_wake_themselves_where_that_is_asked_for_and_where_no_other_thread_may() {
    fn wakes(future: &mut (impl Future + Unpin)) -> usize {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        assert!(matches!(std::pin::Pin::new(future).poll(&mut Context::from_waker(&waker)), Poll::Pending));
        count.0.load(Ordering::SeqCst)
    }
    let spins = AsyncNode::builder().hints(hints()).wait_obj(WaitObj::Yield).open_async().unwrap();
    assert_eq!(wakes(&mut spins.recv(vec![0; 8])), 1);
    assert_eq!(wakes(&mut spins.event()), 1);
    let exclusive = AsyncNode::open_exclusive(&hints()).unwrap();
    assert_eq!(wakes(&mut exclusive.recv(vec![0; 8])), 1);
    // Nodes of both kinds may move to another thread.
    std::thread::scope(|scope| scope.spawn(|| drop((spins, exclusive))).join().unwrap());
}
