//! What a program holds of transfers: plans, and those that it has posted.

use std::sync::Arc;
use std::time::Duration;

use ofi::{Errno, Error, Result};

use crate::agent::Agent;
use crate::driver::{Driver, Guard};
use crate::engine::{Outcome, PeerId, Plan, Progress, TransferId};
use crate::future::Ended;

/// A range of a region of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The region's number: [`Region::id`] there.
    pub region: u64,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Transfers that were prepared: post it as often as you like.
#[derive(Clone, Debug)]
pub struct Prepared {
    plan: Arc<Plan<Guard>>,
    peer: PeerId,
    agent: Agent,
}

impl Prepared {
    pub(crate) fn new(plan: Plan<Guard>, peer: PeerId, agent: Agent) -> Self {
        Self { plan: Arc::new(plan), peer, agent }
    }

    /// Bytes of one transfer.
    pub fn total(&self) -> u64 {
        self.plan.total
    }

    /// How many descriptors it has.
    pub fn len(&self) -> usize {
        self.plan.pieces.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.plan.pieces.is_empty()
    }

    /// Starts a transfer. It has ended after `timeout` in any case.
    ///
    /// # Errors
    /// `FI_ECONNRESET` if the peer has restarted since it was prepared; `FI_ENOENT` if it was forgotten.
    pub fn post(&self, timeout: Duration) -> Result<Transfer> {
        self.post_with(None, timeout)
    }

    /// Starts a transfer that ends with a notification: the peer's program gets `bytes` when all of the data is at its
    /// place (after a write), or has been read.
    ///
    /// # Errors
    /// As [`Prepared::post`]; `FI_EMSGSIZE` for a notification that is too long.
    pub fn post_notify(&self, bytes: &[u8], timeout: Duration) -> Result<Transfer> {
        self.post_with(Some(bytes), timeout)
    }

    pub(crate) fn post_with(&self, notice: Option<&[u8]>, timeout: Duration) -> Result<Transfer> {
        let shared = &self.agent.shared;
        let mut driver = shared.lock();
        let now = shared.now();
        let deadline = now.saturating_add(timeout);
        let id = driver
            .core
            .post(self.peer, Arc::clone(&self.plan), notice.map(<[u8]>::to_vec), deadline, now)
            .map_err(|(errno, why)| Error::with(errno, why))?;
        driver.pump(now);
        shared.posted(&mut driver);
        drop(driver);
        Ok(Transfer { agent: self.agent.clone(), id })
    }

    /// How long a transfer takes, by what was measured of the paths: `None` without a session.
    pub fn estimate(&self) -> Option<Duration> {
        let driver = self.agent.shared.lock();
        let paths = driver.core.paths(self.peer, self.agent.shared.now());
        let bandwidth: f64 = paths.iter().filter(|path| path.up).map(|path| path.bandwidth).sum();
        (bandwidth > 0.0).then(|| Duration::from_secs_f64(self.plan.total as f64 / bandwidth))
    }
}

/// A transfer under way. Dropping it cancels it, if it has not ended; its memory stays until rails have let go of it.
#[derive(Debug)]
#[must_use = "a transfer that is dropped is cancelled"]
pub struct Transfer {
    agent: Agent,
    id: TransferId,
}

impl Transfer {
    /// How it goes, as of the last progress.
    pub fn progress(&self) -> Progress {
        let gone = Progress { outcome: Some(Outcome::Cancelled), moved: 0, total: 0, is_quiet: true };
        self.agent.shared.lock().core.progress(self.id).unwrap_or(gone)
    }

    /// Drives the agent once, and says how the transfer goes.
    ///
    /// # Errors
    /// What a rail's queue answers.
    pub fn poll(&self) -> Result<Progress> {
        self.agent.progress()?;
        Ok(self.progress())
    }

    /// Waits for its end. It comes, by the time that was given when the transfer was posted.
    ///
    /// # Errors
    /// Why it failed: `FI_ETIMEDOUT` when its time was up, `FI_ECANCELED` if it was cancelled, `FI_ECONNRESET` and the
    /// like when the peer or all paths to it are gone, and what the peer answers for memory that it does not give.
    pub fn wait(&self) -> Result<()> {
        let ended = self.agent.shared.wait_for(Duration::MAX, |driver| self.outcome(driver))?;
        result(ended.unwrap_or(Outcome::Cancelled))
    }

    /// As [`Transfer::wait`], as a future of any executor. An agent with a progress thread wakes it when it has
    /// something; without one, the future drives the agent when it is polled, and has itself polled again at once.
    pub fn ended(&self) -> Ended<'_> {
        Ended(self)
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// How it ended, if it has.
    pub(crate) fn outcome(&self, driver: &Driver) -> Option<Outcome> {
        driver.core.progress(self.id).map_or(Some(Outcome::Cancelled), |progress| progress.outcome)
    }

    /// Waits, after its end, until no rail uses its memory; `false` if one still does after `timeout`.
    ///
    /// # Errors
    /// What a rail's queue answers.
    pub fn wait_quiet(&self, timeout: Duration) -> Result<bool> {
        let id = self.id;
        let quiet = self.agent.shared.wait_for(timeout, |driver| {
            driver.core.progress(id).is_none_or(|progress| progress.is_quiet).then_some(())
        })?;
        Ok(quiet.is_some())
    }

    /// Cancels it, if it has not ended: nothing more of it is posted. What is under way may still take place; see
    /// [`Transfer::wait_quiet`].
    pub fn cancel(&self) {
        let mut driver = self.agent.shared.lock();
        driver.core.cancel(self.id);
        self.agent.shared.rouse(&mut driver);
    }
}

pub(crate) fn result(outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Failed(errno) => Err(Error::with(errno, "a transfer")),
        Outcome::Cancelled => Err(Error::with(Errno::ECANCELED, "a transfer")),
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.agent.shared.lock().core.release(self.id);
    }
}
