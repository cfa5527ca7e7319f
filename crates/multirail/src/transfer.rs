//! A program's handles of transfers: prepared and posted ones.

use std::sync::Arc;
use std::time::Duration;

use ofi::{Errno, Error, Result};
use ofi_core::slots::SlotId;

use crate::agent::Agent;
use crate::driver::Driver;
use crate::engine::{Awaited, Outcome, PeerId, Plan, Progress, TransferId};
use crate::region::Guard;
use crate::staging;

/// A range of a region of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The owner's number of the region ([`Region::id`](crate::Region::id)).
    pub region: u64,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A prepared transfer, which can be posted any number of times, also concurrently. See [`Agent::prepare`].
#[derive(Clone, Debug)]
pub struct Prepared {
    plan: Posted,
    peer: PeerId,
    agent: Agent,
}

/// The plan behind a prepared transfer.
#[derive(Clone, Debug)]
pub(crate) enum Posted {
    /// The rails move its bytes directly.
    Moved(Arc<Plan<Guard>>),
    /// One of the ends copies the bytes.
    Staged(Arc<staging::Plan>),
}

/// Names a transfer in flight.
#[derive(Clone, Copy, Debug)]
enum Id {
    Moved(TransferId),
    Staged(SlotId),
}

impl Prepared {
    pub(crate) fn new(plan: Posted, peer: PeerId, agent: Agent) -> Self {
        Self { plan, peer, agent }
    }

    /// Bytes of one transfer.
    pub fn total(&self) -> u64 {
        match &self.plan {
            Posted::Moved(plan) => plan.total,
            Posted::Staged(plan) => plan.total,
        }
    }

    /// Number of descriptors.
    pub fn len(&self) -> usize {
        match &self.plan {
            Posted::Moved(plan) => plan.pieces.len(),
            Posted::Staged(plan) => plan.pieces.len(),
        }
    }

    /// Whether it has no descriptors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts a transfer. It fails with `FI_ETIMEDOUT` if it has not ended after `timeout`.
    ///
    /// # Errors
    /// `FI_ECONNRESET` if the peer has restarted since the call of `prepare`; `FI_ENOENT` if the peer was forgotten.
    pub fn post(&self, timeout: Duration) -> Result<Transfer> {
        self.post_with(None, timeout)
    }

    /// Starts a transfer with a notification: the peer's program gets `bytes` when all data of a write has arrived, or
    /// all data of a read has been read. The transfer is done when that program has taken them
    /// ([`Config::acknowledge_taken`](crate::Config)). It waits while the program leaves 512 notifications of this
    /// agent, or 8 MiB, untaken.
    ///
    /// # Errors
    /// Those of [`Prepared::post`]; `FI_EMSGSIZE` for a notification above
    /// [`Config::longest_notification`](crate::Config).
    pub fn post_notify(&self, bytes: &[u8], timeout: Duration) -> Result<Transfer> {
        self.post_with(Some(bytes), timeout)
    }

    pub(crate) fn post_with(&self, notice: Option<&[u8]>, timeout: Duration) -> Result<Transfer> {
        let shared = &self.agent.shared;
        let mut driver = shared.lock()?;
        let now = shared.now();
        let deadline = now.saturating_add(timeout);
        let notice = notice.map(<[u8]>::to_vec);
        let posted = match &self.plan {
            Posted::Moved(plan) => {
                driver.core.post(self.peer, Arc::clone(plan), notice, deadline, now).map(Id::Moved)
            }
            Posted::Staged(plan) => {
                let checked = driver.core.check(self.peer, plan.incarnation, notice.as_deref());
                let driver = &mut *driver;
                checked.map(|()| {
                    let id = driver.staging.post(Arc::clone(plan), notice, deadline);
                    driver.staging.advance(&mut driver.core, now);
                    Id::Staged(id)
                })
            }
        };
        let id = posted.map_err(|(errno, why)| Error::with(errno, why))?;
        driver.pump(now);
        shared.posted(&mut driver);
        drop(driver);
        Ok(Transfer { agent: self.agent.clone(), id })
    }

    /// Estimated duration of a transfer, from the measured speed of the paths; `None` without a session.
    pub fn estimate(&self) -> Option<Duration> {
        let driver = self.agent.shared.lock().ok()?;
        let paths = driver.core.paths(self.peer, self.agent.shared.now());
        let bandwidth: f64 = paths.iter().filter(|path| path.up).map(|path| path.bandwidth).sum();
        (bandwidth > 0.0).then(|| Duration::from_secs_f64(self.total() as f64 / bandwidth))
    }
}

/// A posted transfer. Dropping it cancels it if it has not ended. Its memory stays allocated until no rail uses it.
#[derive(Debug)]
#[must_use = "a transfer that is dropped is cancelled"]
pub struct Transfer {
    agent: Agent,
    id: Id,
}

impl Transfer {
    /// The state as of the agent's last progress.
    pub fn progress(&self) -> Progress {
        let gone = Progress { outcome: Some(Outcome::Cancelled), moved: 0, total: 0, is_quiet: true };
        self.agent.shared.lock().ok().and_then(|driver| driver.progress_of(self.id)).unwrap_or(gone)
    }

    /// What the transfer waits for, or waited for when its time was over. `None` if it ended otherwise, and for staged
    /// device memory.
    pub fn awaited(&self) -> Option<Awaited> {
        let driver = self.agent.shared.lock().ok()?;
        match self.id {
            Id::Moved(id) => driver.core.awaited(id),
            Id::Staged(_) => None,
        }
    }

    /// Drives the agent once and returns the transfer's state.
    ///
    /// # Errors
    /// The error of reading a rail's queue.
    pub fn poll(&self) -> Result<Progress> {
        self.agent.progress()?;
        Ok(self.progress())
    }

    /// Waits for the end of the transfer, which comes within the timeout given to `post`. It takes no notifications:
    /// two programs that notify each other, and both wait before either takes the other's notification, wait until
    /// the timeout ([`Config::acknowledge_taken`](crate::Config)).
    ///
    /// # Errors
    /// `FI_ETIMEDOUT` after the timeout, with what it waited for ([`Transfer::awaited`]); `FI_ECANCELED` if it was
    /// cancelled; `FI_ECONNRESET` and similar errors when the peer or all paths to it are lost; the peer's error for
    /// memory to which it denies access.
    pub fn wait(&self) -> Result<()> {
        let ended = self.agent.shared.wait_for(Duration::MAX, |driver| self.outcome(driver))?;
        self.result(ended.unwrap_or(Outcome::Cancelled))
    }

    /// The result of an outcome.
    pub(crate) fn result(&self, outcome: Outcome) -> Result<()> {
        match outcome {
            Outcome::Done => Ok(()),
            Outcome::Failed(Errno::ETIMEDOUT) => {
                let awaited = self.awaited().map_or_else(String::new, |awaited| format!(": {awaited}"));
                Err(Error::with(Errno::ETIMEDOUT, format!("the transfer failed{awaited}")))
            }
            Outcome::Failed(errno) => Err(Error::with(errno, "the transfer failed")),
            Outcome::Cancelled => Err(Error::with(Errno::ECANCELED, "the transfer was cancelled")),
        }
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The outcome, if the transfer has ended.
    pub(crate) fn outcome(&self, driver: &Driver) -> Option<Outcome> {
        driver.progress_of(self.id).map_or(Some(Outcome::Cancelled), |progress| progress.outcome)
    }

    /// Waits until no rail uses the transfer's memory, which may be later than its end. Returns `false` if a rail still
    /// does after `timeout`.
    ///
    /// # Errors
    /// The error of reading a rail's queue.
    pub fn wait_quiet(&self, timeout: Duration) -> Result<bool> {
        let id = self.id;
        let quiet = self.agent.shared.wait_for(timeout, |driver| {
            driver.progress_of(id).is_none_or(|progress| progress.is_quiet).then_some(())
        })?;
        Ok(quiet.is_some())
    }

    /// Cancels the transfer if it has not ended: no further part is posted, and rails that can give up the parts in
    /// flight do so at once: the transfer is quiet on return. Other rails keep the memory until the parts have ended;
    /// see [`Transfer::wait_quiet`]. What was sent of a write may still reach the peer.
    pub fn cancel(&self) {
        let Ok(mut driver) = self.agent.shared.lock() else { return };
        match self.id {
            Id::Moved(id) => driver.core.cancel(id),
            Id::Staged(id) => driver.staging.cancel(id),
        }
        let now = self.agent.shared.now();
        let Driver { staging, core, .. } = &mut *driver;
        staging.advance(core, now);
        driver.pump(now);
        self.agent.shared.rouse(driver);
    }
}

impl Driver {
    fn progress_of(&self, id: Id) -> Option<Progress> {
        match id {
            Id::Moved(id) => self.core.progress(id),
            Id::Staged(id) => self.staging.progress(id),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let Ok(mut driver) = self.agent.shared.lock() else { return };
        let is_under_way = match self.id {
            Id::Moved(id) => driver.core.release(id),
            Id::Staged(id) => {
                driver.staging.release(id);
                true
            }
        };
        if is_under_way {
            let now = self.agent.shared.now();
            driver.pump(now); // the rails give up what they have of it
        }
    }
}
