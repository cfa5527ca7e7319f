//! Waits for one end of a flow while driving other ends.
//!
//! Each end needs the other end's answers: an initiator waits for slots and arrivals, a target for verdicts. A thread
//! that drives both but waits for one alone would deadlock until its timeout expires.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi::raw::CompletionQueue;

use crate::Result;
use crate::driven::Drive;
use crate::driven::sealed::Polled;
use crate::rest::{Sleeper, WaitFor};

/// Ends that are driven while the program waits for another one: an [`Initiator`](crate::Initiator), a
/// [`Target`](crate::Target), a [`Merge`](crate::Merge), none (`()`), or those that the program finds.
pub trait Beside {
    /// Passes each of these ends to `visit`. It is called many times during a wait.
    ///
    /// # Errors
    /// The error that ends the wait: that of a visit, unless the program keeps it for later.
    fn each(&mut self, visit: &mut Visit<'_>) -> Result<()>;
}

/// Drives an end that [`Beside`] passes to it.
pub struct Visit<'a>(&'a mut dyn FnMut(&mut dyn Turn) -> Result<()>);

impl Visit<'_> {
    /// Drives an end.
    ///
    /// # Errors
    /// The error that broke the end.
    pub fn end<T: Drive>(&mut self, end: &mut T) -> Result<()> {
        (self.0)(end)
    }
}

impl Beside for () {
    fn each(&mut self, _visit: &mut Visit<'_>) -> Result<()> {
        Ok(())
    }
}

impl<T: Drive> Beside for T {
    fn each(&mut self, visit: &mut Visit<'_>) -> Result<()> {
        visit.end(self)
    }
}

/// An end that is driven beside a wait, whatever its type of events.
trait Turn {
    fn drive(&mut self) -> Result<bool>;
    fn has_room(&self) -> bool;
    fn await_on(&self, queues: &mut Vec<Arc<dyn CompletionQueue>>) -> WaitFor;
}

impl<T: Polled> Turn for T {
    fn drive(&mut self) -> Result<bool> {
        self.turn()
    }

    fn has_room(&self) -> bool {
        Polled::has_room(self)
    }

    fn await_on(&self, queues: &mut Vec<Arc<dyn CompletionQueue>>) -> WaitFor {
        queues.extend(self.queues());
        self.rest()
    }
}

/// Drives an end, and the ends beside it, until `is_done`. Returns false if `timeout` expires first.
pub(crate) fn wait<T: Polled>(
    end: &mut T,
    beside: &mut dyn Beside,
    timeout: Duration,
    is_done: impl Fn(&T) -> bool,
) -> Result<bool> {
    let (begin, mut sleeper) = (Instant::now(), Sleeper::default());
    loop {
        let mut was_busy = end.turn()?;
        let left = timeout.saturating_sub(begin.elapsed());
        if is_done(end) || left.is_zero() {
            return Ok(is_done(end));
        }
        let mut queues = Vec::new();
        let mut rest = end.await_on(&mut queues);
        beside.each(&mut Visit(&mut |other| {
            // The program has not read its events for long. Further ones would displace them.
            if other.has_room() {
                was_busy |= other.drive()?;
                rest = rest.or(other.await_on(&mut queues));
            }
            Ok(())
        }))?;
        if !was_busy {
            sleeper.wait(&queues, rest, left);
        }
    }
}
