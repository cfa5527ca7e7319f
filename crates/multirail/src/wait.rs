//! Waiting: sleeping threads, and futures.
//!
//! A waiting thread polls for a while, then sleeps. One thread *leads*: it sleeps on the descriptors of the rails'
//! queues, until the engine's next timer. Other waiting threads *follow*: they sleep until the leader, or a polling
//! thread, has found an event. A thread that polls while the leader sleeps disarms the leader's descriptors, which
//! wakes the leader; the leader then leaves the rails to that thread as long as it polls.
//!
//! No wait depends on a wake-up alone: no sleep is longer than [`SLEEP`] or, for followers, [`FOLLOW`].
#![allow(unsafe_code)] // borrows descriptors of queues that the thread keeps

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use ofi::Result;
use ofi::raw::CompletionQueue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::driver::{Driver, Shared};

/// Empty polls per reading of the clock.
const POLLS: usize = 8;
/// Time for which a waiting thread polls before it sleeps.
const SPIN: Duration = Duration::from_micros(200);
/// Time of one sleep if no descriptor reports the awaited change, such as room on a full rail.
const NAP: Duration = Duration::from_micros(50);
/// Time of one sleep while all rails rest.
const REST: Duration = Duration::from_millis(2);
/// Time for which a leader leaves the rails to a thread that polls them.
const LEAVE: Duration = Duration::from_millis(1);
/// Maximum sleep of a leader.
const SLEEP: Duration = Duration::from_secs(1);
/// Maximum sleep of a follower.
const FOLLOW: Duration = Duration::from_millis(100);

impl Shared {
    /// Drives the agent once. Returns whether there was anything to do.
    pub(crate) fn poll(&self) -> Result<bool> {
        let mut driver = self.lock()?;
        let was_busy = driver.progress(self.now());
        let wakers = self.polled(&mut driver, !matches!(was_busy, Ok(false)));
        drop(driver);
        wakers.into_iter().for_each(Waker::wake);
        was_busy
    }

    /// Completes a poll: disarms the leader's descriptors and, if the poll found something, notifies the other waiters.
    /// The caller must call the returned wakers after releasing the lock.
    fn polled(&self, driver: &mut Driver, was_busy: bool) -> Vec<Waker> {
        self.disarm(driver);
        if !was_busy {
            return Vec::new();
        }
        if driver.waiters.followers > 0 {
            self.news.notify_all();
        }
        std::mem::take(&mut driver.waiters.wakers)
    }

    fn disarm(&self, driver: &mut Driver) {
        let waiters = &mut driver.waiters;
        if waiters.led_until.is_some() && !std::mem::replace(&mut waiters.is_disarmed, true) {
            // A queue with a descriptor can be signalled, and no sleep is longer than `SLEEP`.
            // A rail may have left the list, or joined it, since the leader fell asleep.
            if let Some(queue) = waiters.led.first() {
                let _ = queue.signal();
            }
        }
    }

    /// Makes waiting threads check again after a change of state by a call of the program. Wakers run after the lock is
    /// released: they are code of the program and may call the agent.
    pub(crate) fn rouse(&self, mut driver: MutexGuard<'_, Driver>) {
        let wakers = self.polled(&mut driver, true);
        drop(driver);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes the leader after a post, if it would sleep beyond the new timer.
    pub(crate) fn posted(&self, driver: &mut Driver) {
        let is_earlier = |until| driver.next_timeout().is_some_and(|next| next < until);
        if driver.waiters.led_until.is_some_and(is_earlier) || driver.is_stalled() {
            self.disarm(driver);
        }
    }

    /// Drives the agent until `found` returns a value, or the time is up.
    pub(crate) fn wait_for<T>(
        &self,
        timeout: Duration,
        mut found: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut now = self.now();
        let deadline = now.saturating_add(timeout);
        let mut idle = now;
        loop {
            let mut was_busy = false;
            for _ in 0..POLLS {
                let mut driver = self.lock()?;
                let result = driver.progress(now);
                was_busy = !matches!(result, Ok(false));
                let wakers = self.polled(&mut driver, was_busy);
                let end = result.map(|_| found(&mut driver));
                drop(driver);
                wakers.into_iter().for_each(Waker::wake);
                match end {
                    Ok(None) => {}
                    end => return end,
                }
                if was_busy {
                    break;
                }
            }
            now = self.now();
            if now >= deadline {
                return Ok(None);
            }
            if was_busy {
                idle = now;
            } else if now.saturating_sub(idle) < SPIN {
                std::thread::yield_now();
            } else if let Some(end) = self.sleep(deadline, now, &mut found)? {
                return Ok(Some(end));
            } else {
                now = self.now();
                if now >= deadline {
                    return Ok(None);
                }
            }
        }
    }

    /// Sleeps until there may be an event, or until `deadline`.
    fn sleep<T>(
        &self,
        deadline: Duration,
        now: Duration,
        found: &mut impl FnMut(&mut Driver) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut driver = self.lock()?;
        if driver.waiters.led_until.is_some() {
            driver.waiters.followers += 1;
            let left = deadline.saturating_sub(now).min(FOLLOW);
            driver = self.news.wait_timeout(driver, left).unwrap_or_else(PoisonError::into_inner).0;
            driver.waiters.followers -= 1;
            return Ok(found(&mut driver));
        }
        let until = [Some(deadline), driver.next_timeout(), Some(now.saturating_add(SLEEP))];
        let until = until.into_iter().flatten().min().unwrap_or(now);
        let queues = self.queues.all();
        if queues.is_empty() {
            // All rails rest, and no descriptor could be signalled.
            drop(driver);
            std::thread::sleep(REST.min(until.saturating_sub(now)));
            return Ok(None);
        }
        if driver.is_stalled() || queues.iter().any(|queue| queue.wait_fd().is_none()) {
            drop(driver);
            std::thread::sleep(NAP.min(until.saturating_sub(now)));
            return Ok(None);
        }
        if queues.iter().any(|queue| queue.trywait().is_err()) {
            return Ok(None); // there is an event already
        }
        (driver.waiters.led_until, driver.waiters.is_disarmed) = (Some(until), false);
        driver.waiters.led = Arc::clone(&queues);
        drop(driver);
        sleep_on_descriptors(&queues, until.saturating_sub(now));
        loop {
            let mut driver = self.lock()?;
            if !std::mem::take(&mut driver.waiters.is_disarmed) || self.now() >= until {
                driver.waiters.led_until = None;
                if driver.waiters.followers > 0 {
                    self.news.notify_one(); // a follower leads, if this thread no longer does
                }
                return Ok(found(&mut driver));
            }
            let end = found(&mut driver);
            if end.is_some() || self.over.load(Ordering::Relaxed) {
                driver.waiters.led_until = None;
                return Ok(end);
            }
            drop(driver);
            std::thread::sleep(LEAVE.min(until.saturating_sub(self.now())));
        }
    }
}

/// Sleeps until a queue has an event, or for this time.
fn sleep_on_descriptors(queues: &[Arc<dyn CompletionQueue>], time: Duration) {
    let mut fds: Vec<PollFd<'_>> = queues
        .iter()
        .filter_map(|queue| queue.wait_fd())
        .map(|fd| {
            // SAFETY: the descriptor belongs to the queue as long as it lives, and the caller keeps the queue.
            PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::IN)
        })
        .collect();
    let time = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) };
    // A signal ends the sleep early, which is harmless.
    let _ = poll(&mut fds, Some(&time));
}
