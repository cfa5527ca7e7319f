//! Transfers and notifications as futures, on any executor.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ofi::Result;

use crate::agent::Agent;
use crate::driver::Driver;
use crate::engine::Notification;
use crate::transfer::Transfer;

/// A future of the end of a transfer; see [`Transfer::ended`]. Dropping the future does not cancel the transfer.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Ended<'a>(&'a Transfer);

impl Future for Ended<'_> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let transfer = self.0;
        poll(transfer.agent(), context, |driver| transfer.outcome(driver))
            .map(|ended| transfer.result(ended?))
    }
}

/// A future of the next notification; see [`Agent::next_notification`]. If several are pending, any one of them gets
/// it.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct NextNotification<'a>(&'a Agent);

impl Future for NextNotification<'_> {
    type Output = Result<Notification>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Notification>> {
        poll(self.0, context, |driver| driver.take_notification(self.0.shared.now()))
    }
}

impl Agent {
    /// The next notification as a future for any executor: [`Agent::wait_notification`] without a timeout. See
    /// [`Transfer::ended`].
    pub fn next_notification(&self) -> NextNotification<'_> {
        NextNotification(self)
    }
}

impl Transfer {
    /// The end of the transfer as a future for any executor; see [`Transfer::wait`]. The progress thread of an agent
    /// wakes the future after each event. Without a progress thread, each poll of the future drives the agent and
    /// schedules the next poll at once.
    pub fn ended(&self) -> Ended<'_> {
        Ended(self)
    }
}

/// Polls the agent unless a thread does, and then checks for the result.
fn poll<T>(
    agent: &Agent,
    context: &mut Context<'_>,
    found: impl FnOnce(&mut Driver) -> Option<T>,
) -> Poll<Result<T>> {
    let shared = &agent.shared;
    if !shared.has_thread
        && let Err(error) = shared.poll()
    {
        return Poll::Ready(Err(error));
    }
    // A waker is code of the executor: none of its functions runs under the lock.
    let waker = context.waker().clone();
    let mut driver = match shared.lock() {
        Ok(driver) => driver,
        Err(error) => return Poll::Ready(Err(error)),
    };
    if let Some(found) = found(&mut driver) {
        return Poll::Ready(Ok(found));
    }
    if shared.has_thread {
        driver.waiters.register(waker);
    } else {
        drop(driver);
        waker.wake();
    }
    Poll::Pending
}
