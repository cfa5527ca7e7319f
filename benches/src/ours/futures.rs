//! Wake-ups of futures.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

use ofi::{AsyncNode, FiAddr, Hints, Result as OfiResult};

use super::{Job, Role, run::stack};
use crate::{Figures, Result, link::Link};

/// Messages back and forth between two sides that sleep until they come. `own`: the calling thread drives the node;
/// otherwise the library's thread does, and wakes this one.
pub fn wake(job: &Job, own: bool, role: Role, link: &mut Link) -> Result<Figures> {
    let node = AsyncNode::open(&Hints::new().provider("shm")).map_err(stack)?;
    let theirs: String = link.exchange(&node.name().map_err(stack)?.to_string())?;
    let peer = node.insert(&theirs.parse().map_err(stack)?).map_err(stack)?;
    let rounds = |count: u64| {
        let future = rounds(&node, peer, job.size, count, role);
        if own { node.block_on(future) } else { block_on(future) }.map_err(stack)
    };
    rounds((job.iterations / 20).max(10))?;
    link.barrier(thread::yield_now)?;
    let begin = Instant::now();
    rounds(job.iterations)?;
    let each = begin.elapsed().as_secs_f64() * 1e6 / job.iterations as f64;
    link.barrier(thread::yield_now)?;
    Ok(Figures::from_latency(job.size, each))
}

async fn rounds(node: &AsyncNode, peer: FiAddr, size: usize, count: u64, role: Role) -> OfiResult<()> {
    let (mut out, mut back) = (vec![1; size], vec![0; size]);
    for _ in 0..count {
        let receive = node.recv(back);
        if role == Role::Client {
            out = node.send(out, peer).await?.buffer;
            back = receive.await?.buffer;
        } else {
            back = receive.await?.buffer;
            out = node.send(out, peer).await?.buffer;
        }
    }
    Ok(())
}

/// Wakes a parked thread.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps until it is woken: an executor without a reactor.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Parked(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
