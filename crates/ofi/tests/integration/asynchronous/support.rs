//! Pairs of async nodes, and a small executor that belongs to no node.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use ofi::{AsyncNode, FiAddr, Hints, WaitObj};

/// Longer than any step takes: only a failure waits this long.
pub const LONG: Duration = Duration::from_secs(20);

pub fn hints() -> Hints {
    Hints::new().provider("shm")
}

/// Two nodes that know each other.
pub struct Pair {
    pub a: Arc<AsyncNode>,
    pub b: Arc<AsyncNode>,
    pub to_a: FiAddr,
    pub to_b: FiAddr,
}

pub fn pair() -> Pair {
    pair_of(|| AsyncNode::open(&hints()).unwrap())
}

/// Nodes that make progress only when their futures are polled: each step of theirs is the test's.
pub fn manual_pair() -> Pair {
    pair_of(|| AsyncNode::builder().hints(hints()).wait_obj(WaitObj::Yield).open_async().unwrap())
}

fn pair_of(open: impl Fn() -> AsyncNode) -> Pair {
    let (a, b) = (Arc::new(open()), Arc::new(open()));
    let to_b = a.insert(&b.name().unwrap()).unwrap();
    let to_a = b.insert(&a.name().unwrap()).unwrap();
    Pair { a, b, to_a, to_b }
}

/// Bytes that differ at every position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

struct Unpark {
    thread: Thread,
    wakes: AtomicUsize,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Runs a future on this thread, which parks until it is woken. Independent of nodes.
#[track_caller]
pub fn park_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let unpark = Arc::new(Unpark { thread: std::thread::current(), wakes: AtomicUsize::new(0) });
    let waker = Waker::from(Arc::clone(&unpark));
    let until = Instant::now() + LONG;
    loop {
        let seen = unpark.wakes.load(Ordering::SeqCst);
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(Instant::now() < until, "the future does not end");
        while unpark.wakes.load(Ordering::SeqCst) == seen {
            std::thread::park_timeout(Duration::from_secs(1));
            assert!(Instant::now() < until, "the future was not woken");
        }
    }
}

/// Polls a future once.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Awaits all of the futures at once.
pub async fn all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (Some(future), None)).collect();
    std::future::poll_fn(move |context| {
        for (future, output) in &mut futures {
            if let Some(running) = future
                && let Poll::Ready(value) = Pin::new(running).poll(context)
            {
                (*future, *output) = (None, Some(value));
            }
        }
        if futures.iter().any(|(future, _)| future.is_some()) {
            return Poll::Pending;
        }
        Poll::Ready(futures.drain(..).filter_map(|(_, output)| output).collect())
    })
    .await
}

/// Awaits both futures at once.
pub async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (Box::pin(a), Box::pin(b));
    let (mut from_a, mut from_b) = (None, None);
    std::future::poll_fn(move |context| {
        if from_a.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(context)
        {
            from_a = Some(value);
        }
        if from_b.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(context)
        {
            from_b = Some(value);
        }
        match (from_a.take(), from_b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (from_a, from_b) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}
