//! Drives an agent: polls rails, carries out the engine's commands, waits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi::raw::CompletionQueue;
use ofi::{Errno, Error, Result};
use ofi_core::fork::Born;

use crate::engine::{Access, Core, Notification, OpId, Piece, Plan, Refused, Sink};
use crate::leases::Leases;
use crate::near::{Domains, RailSet, bit};
use crate::rail::{Rail, Shutting};
use crate::region::{Guard, Inner as RegionInner, Shares};
use crate::staging::Staging;
use crate::waiters::Waiters;
use crate::wire::RegionKey;
use crate::wire::message::LeasedKey;

/// Maximum queue reads of one rail in one call of [`Driver::progress`], so that the call ends.
const READS: usize = 16;

/// State that the handles of an agent share.
pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    /// The process of the agent. A forked child has a copy, in which it must not do anything.
    pub(crate) born: Born,
    pub(crate) began: Instant,
    pub(crate) domains: Arc<Domains>,
    pub(crate) state: Mutex<Driver>,
    /// Wakes threads that wait while another thread sleeps on the rails' descriptors.
    pub(crate) news: Condvar,
    pub(crate) queues: Arc<Queues>,
    pub(crate) has_thread: bool,
    pub(crate) regions: Arc<Mutex<BTreeMap<u64, Weak<RegionInner>>>>,
    pub(crate) shares: Shares,
    pub(crate) next_region: AtomicU64,
    /// The number of regions at which those that are gone are forgotten.
    pub(crate) sweep_at: AtomicUsize,
    pub(crate) over: AtomicBool,
}

impl Shared {
    /// Locks the agent.
    ///
    /// # Errors
    /// `FI_EINVAL` in a forked child: the state is its parent's, and a thread of the parent may have held the lock.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Driver>> {
        self.born.check()?;
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// The queues of the rails that are polled. A thread that sleeps on their descriptors keeps them.
#[derive(Default)]
pub(crate) struct Queues(Mutex<Arc<[Arc<dyn CompletionQueue>]>>);

impl Queues {
    pub(crate) fn all(&self) -> Arc<[Arc<dyn CompletionQueue>]> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// State that the lock protects.
pub(crate) struct Driver {
    // Fields drop in order: rails first, since closing them ends their use of the memory that the plans of `core` keep.
    pub(crate) rails: Vec<Rail>,
    pub(crate) core: Core<Guard>,
    pub(crate) staging: Staging,
    pub(crate) waiters: Waiters,
    pub(crate) leases: Leases,
    pub(crate) queues: Arc<Queues>,
}

impl Driver {
    /// Polls all rails and does the pending work. Returns whether there was any.
    pub(crate) fn progress(&mut self, now: Duration) -> Result<bool> {
        let mut was_busy = false;
        let Self { rails, core, .. } = self;
        let (mut failed, mut has_recovered) = (0, false);
        for (number, rail) in rails.iter_mut().enumerate() {
            if rail.rests(now) {
                continue;
            }
            let had_failed = rail.failure().is_some();
            for _ in 0..READS {
                match rail.poll(core, now) {
                    Ok(polled) => {
                        was_busy |= polled.had_news;
                        if !polled.may_have_more {
                            break;
                        }
                    }
                    Err(error) => {
                        rail.fail(error, now);
                        failed |= bit(number);
                        break;
                    }
                }
            }
            has_recovered |= had_failed && rail.failure().is_none();
        }
        if has_recovered {
            self.list_queues(now); // a thread may sleep on its descriptor again
        }
        let failed = if failed != 0 { self.leave_failed(failed, now) } else { Ok(()) };
        self.core.tick(now);
        was_busy |= self.staging.advance(&mut self.core, now);
        let was_busy = self.pump(now) || was_busy;
        failed.map(|()| was_busy)
    }

    /// Leaves out the rails whose queues could not be read now, until they are tried again.
    ///
    /// # Errors
    /// That of one of them, if no other rail is left.
    #[cold]
    fn leave_failed(&mut self, failed: RailSet, now: Duration) -> Result<()> {
        let mut last = Errno::EIO;
        for (number, rail) in self.rails.iter().enumerate().filter(|(number, _)| failed & bit(*number) != 0) {
            if let Some((errno, until)) = rail.failure() {
                self.core.rail_failed(number, errno, until, now);
                last = errno;
            }
        }
        self.list_queues(now);
        match self.rails.iter().all(|rail| rail.rests(now)) {
            true => Err(Error::with(last, "no rail's queue can be read")),
            false => Ok(()),
        }
    }

    /// Lists the queues of the rails that are polled.
    pub(crate) fn list_queues(&mut self, now: Duration) {
        let queues = self.rails.iter().filter(|rail| !rail.rests(now)).map(Rail::queue).collect();
        *self.queues.0.lock().unwrap_or_else(PoisonError::into_inner) = queues;
    }

    /// Uses a rail that was opened now. Returns its number; `None` if the agent has as many as it may have.
    pub(crate) fn add_rail(&mut self, rail: Rail, domains: &Domains, now: Duration) -> Option<usize> {
        let number = self.core.add_rail(rail.spec.clone())?;
        domains.add(&rail.info, &rail.domain);
        self.rails.push(rail);
        self.list_queues(now);
        Some(number)
    }

    /// The time by which [`Driver::progress`] must be called next.
    pub(crate) fn next_timeout(&self) -> Option<Duration> {
        let resting = self.rails.iter().filter_map(Rail::failure).map(|(_, until)| until).min();
        self.core.next_timeout().into_iter().chain(self.staging.next_timeout()).chain(resting).min()
    }

    /// Whether work waits for a change that no descriptor reports: room on a rail, the end of a copy.
    pub(crate) fn is_stalled(&self) -> bool {
        self.core.is_stalled() || self.staging.is_copying() || self.rails.iter().any(Rail::is_short)
    }

    /// The next notification, which is acknowledged.
    pub(crate) fn take_notification(&mut self, now: Duration) -> Option<Notification> {
        let taken = self.core.take_notification()?;
        self.pump(now);
        Some(taken)
    }

    /// Hands the pending work to the rails. Returns whether there was any.
    pub(crate) fn pump(&mut self, now: Duration) -> bool {
        let Self { rails, core, leases, .. } = self;
        core.perform(now, &mut Rails(rails, leases))
    }
}

/// The rails, and the keys that are leased to peers, as the engine uses them.
struct Rails<'a>(&'a mut [Rail], &'a mut Leases);

#[cold]
fn refused(error: &Error, rail: usize, what: &str) -> Refused {
    if error.is_again() {
        return Refused::Full;
    }
    tracing::debug!(target: "multirail", %error, rail, "{what} could not be posted");
    Refused::Failed(error.errno())
}

impl Sink<Guard> for Rails<'_> {
    fn access(&mut self, access: &Access, plan: &Plan<Guard>, more: bool) -> Result<(), Refused> {
        self.row(&mut { *access }, &[], plan, more)
    }

    #[inline(always)] // see `Rail::access`
    fn row(
        &mut self,
        access: &mut Access,
        pieces: &[Piece],
        plan: &Plan<Guard>,
        more: bool,
    ) -> Result<(), Refused> {
        let rail = access.rail;
        let posted = self.0[rail].access(access, pieces, &plan.guard, more);
        posted.map_err(|error| refused(&error, rail, "an access"))
    }

    fn send(&mut self, op: OpId, rail: usize, addr: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
        let sent = self.0[rail].send(op, addr, bytes);
        sent.map_err(|(error, bytes)| (refused(&error, rail, "a message"), bytes))
    }

    fn insert(&mut self, rail: usize, format: u32, address: &[u8]) -> Result<u64, Errno> {
        self.0[rail].insert(format, address)
    }

    fn remove(&mut self, rail: usize, addr: u64) {
        self.0[rail].remove(addr);
    }

    fn abandon(&mut self, rail: usize, op: OpId) -> Result<(), Errno> {
        self.0[rail].abandon(op).map_err(|error| error.errno())
    }

    fn abandons_alone(&self, rail: usize) -> bool {
        self.0[rail].shutting() == Shutting::Table
    }

    fn lease(&mut self, tag: u64, region: u64) -> Vec<RegionKey> {
        let rails: Vec<_> = self.0.iter().map(Rail::shutting).collect();
        self.1.lease(tag, region, &rails)
    }

    fn widen(&mut self, region: u64) -> Vec<RegionKey> {
        self.1.widen(region)
    }

    fn renew(&mut self, region: u64) -> Vec<RegionKey> {
        self.1.renew(region)
    }

    fn sever(&mut self, rail: usize, addr: u64) -> Result<(), Errno> {
        self.0[rail].sever(addr).map_err(|error| error.errno())
    }

    fn close_leased(&mut self, tag: u64, keys: &[LeasedKey], peer: &[(usize, u64)]) -> bool {
        let is_named = |rail: usize| keys.iter().any(|key| usize::from(key.rail) == rail);
        let connections = peer.iter().filter(|&&(rail, _)| is_named(rail) && self.0[rail].spec.severs);
        let severed = connections.copied().try_for_each(|(rail, addr)| self.0[rail].sever(addr));
        if let Err(error) = severed {
            tracing::warn!(target: "multirail", %error, "a connection to a peer goes on");
            return false;
        }
        self.1.close(tag, keys)
    }

    fn end_leases(&mut self, tag: u64) {
        self.1.end(tag);
    }
}
