//! What drives an agent: polls rails, carries the engine's commands out, waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi::raw::{CompletionQueue, Domain};
use ofi::{Errno, Error, Result};

use crate::engine::{Access, Command, Core, OpId, Plan};
use crate::memory::Inner as RegionInner;
use crate::rail::{Happened, Rail};
use crate::wait::Waiters;

/// Commands that one call of [`Driver::progress`] carries out, so that it ends.
const COMMANDS: usize = 4096;
/// Queue reads of one rail in one call, likewise.
const READS: usize = 16;
/// What keeps the memory of a plan.
pub(crate) type Guard = Vec<Arc<RegionInner>>;

/// What the handles of an agent share.
pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    pub(crate) began: Instant,
    pub(crate) domains: Arc<[Arc<dyn Domain>]>,
    pub(crate) state: Mutex<Driver>,
    /// For threads that wait while another sleeps on the rails' descriptors.
    pub(crate) news: Condvar,
    /// The rails' queues: their descriptors stay open while somebody sleeps on them.
    pub(crate) queues: Box<[Arc<dyn CompletionQueue>]>,
    pub(crate) has_thread: bool,
    pub(crate) regions: Mutex<BTreeMap<u64, Weak<RegionInner>>>,
    pub(crate) next_region: AtomicU64,
    pub(crate) over: AtomicBool,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Driver> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// What the lock protects.
pub(crate) struct Driver {
    // Fields drop in order: rails first, since closing them ends what uses the memory that the plans of `core` keep.
    pub(crate) rails: Vec<Rail>,
    pub(crate) core: Core<Guard>,
    /// Commands that a rail had no room for, oldest first.
    pub(crate) stalled: Vec<VecDeque<Command>>,
    pub(crate) waiters: Waiters,
}

impl Driver {
    /// Polls all rails and does what is to be done. Whether there was anything.
    pub(crate) fn progress(&mut self, now: Duration) -> Result<bool> {
        let mut was_busy = false;
        let Self { rails, core, .. } = self;
        for rail in rails.iter_mut() {
            for _ in 0..READS {
                let has_news = rail.poll(|happened| match happened {
                    Happened::Ended(op, result) => core.ended(op, result, now),
                    Happened::Message(bytes) => core.message(bytes, now),
                    Happened::Arrived(data) => core.arrived(data),
                })?;
                was_busy |= has_news;
                if !has_news {
                    break;
                }
            }
        }
        self.core.tick(now);
        Ok(self.pump(now) || was_busy)
    }

    /// Whether something waits for room of a rail, of which no descriptor tells.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.iter().any(|commands| !commands.is_empty()) || self.rails.iter().any(Rail::is_short)
    }

    /// Carries out commands. Whether there were any.
    pub(crate) fn pump(&mut self, now: Duration) -> bool {
        let mut blocked = 0_u64;
        let mut was_freed = false;
        for rail in 0..self.stalled.len() {
            while let Some(command) = self.stalled[rail].pop_front() {
                if let Some(refused) = self.carry_out(command, false, now) {
                    self.stalled[rail].push_front(refused);
                    blocked |= 1 << rail;
                    break;
                }
                was_freed = true;
            }
        }
        if was_freed {
            self.core.wake_all();
        }
        let mut done = 0;
        while done < COMMANDS && self.core.has_command(blocked, now) {
            done += 1;
            let Self { rails, core, stalled, .. } = self;
            let Some((access, plan, more)) = core.first_access() else {
                let Some(command) = core.take_command() else { break };
                let rail = rail_of(&command);
                let refused = match rail {
                    Some(rail) if blocked >> rail & 1 == 1 => Some(command),
                    _ => self.carry_out(command, false, now),
                };
                if let (Some(refused), Some(rail)) = (refused, rail) {
                    blocked |= 1 << rail;
                    self.stalled[rail].push_back(refused);
                }
                continue;
            };
            let (op, rail) = (access.op, access.rail);
            let posted = match blocked >> rail & 1 {
                0 => post(&mut rails[rail], access, plan, more),
                _ => Err(Error::new(Errno::EAGAIN)),
            };
            let command = core.take_command();
            match posted {
                Ok(()) => {}
                Err(error) if error.is_again() => {
                    blocked |= 1 << rail;
                    stalled[rail].extend(command);
                }
                Err(error) => failed(core, rail, op, &error, now),
            }
        }
        done > 0 || was_freed
    }

    /// Carries a command out, or gives it back if the rail has no room.
    fn carry_out(&mut self, command: Command, more: bool, now: Duration) -> Option<Command> {
        match command {
            Command::Insert { path, rail, format, address } => {
                let inserted = self.rails[rail].insert(format, &address);
                self.core.inserted(path, inserted);
            }
            Command::Remove { rail, addr } => self.rails[rail].remove(addr),
            Command::Send { op, rail, addr, bytes } => match self.rails[rail].send(op, addr, bytes) {
                Ok(()) => {}
                Err((error, bytes)) if error.is_again() => {
                    return Some(Command::Send { op, rail, addr, bytes });
                }
                Err((error, _)) => {
                    tracing::debug!(target: "multirail", %error, rail, "a message could not be sent");
                    self.core.ended(op, Err(error.errno()), now);
                }
            },
            Command::Access(access) => {
                let Self { rails, core, .. } = self;
                let plan = core.plan(access.transfer).map(|plan| &**plan);
                match post(&mut rails[access.rail], &access, plan, more) {
                    Ok(()) => {}
                    Err(error) if error.is_again() => return Some(command),
                    Err(error) => failed(core, access.rail, access.op, &error, now),
                }
            }
        }
        None
    }
}

/// Posts an access of a plan. `more` says that another follows at once.
fn post(rail: &mut Rail, access: &Access, plan: Option<&Plan<Guard>>, more: bool) -> Result<()> {
    match plan.and_then(|plan| plan.guard.get(access.region as usize)) {
        Some(region) => rail.access(access, region, more),
        None => Err(Error::new(Errno::ECANCELED)),
    }
}

fn failed(core: &mut Core<Guard>, rail: usize, op: OpId, error: &Error, now: Duration) {
    tracing::debug!(target: "multirail", %error, rail, "an access could not be posted");
    core.ended(op, Err(error.errno()), now);
}

fn rail_of(command: &Command) -> Option<usize> {
    match command {
        Command::Send { rail, .. } => Some(*rail),
        Command::Access(access) => Some(access.rail),
        Command::Insert { .. } | Command::Remove { .. } => None,
    }
}
