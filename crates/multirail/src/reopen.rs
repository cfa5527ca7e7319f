//! Opens rails later: those that did not open at the start of their agent, and those whose devices were gone.
//!
//! A thread tries them, and ends when none is left: to open a device may take long, and the agent goes on meanwhile.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ofi::{Info, Result};

use crate::driver::Shared;
use crate::rail::Rail;

/// Maximum time after the end of an agent for which the thread sleeps.
const TURN: Duration = Duration::from_secs(1);

/// A rail that is not open.
#[derive(Clone)]
pub(crate) struct Closed {
    pub(crate) info: Info,
    /// The number that it had.
    pub(crate) instead: Option<usize>,
}

/// The rails that are to be opened. The agent's lock protects them.
pub(crate) struct Reopening {
    shared: Weak<Shared>,
    closed: Vec<Closed>,
    /// The time between attempts; zero for none.
    interval: Duration,
    shared_memory: bool,
    /// The thread exists.
    is_running: bool,
}

impl Reopening {
    pub(crate) fn new(shared: Weak<Shared>, interval: Duration, shared_memory: bool) -> Self {
        Self { shared, closed: Vec::new(), interval, shared_memory, is_running: false }
    }

    /// Whether rails that are gone may come back.
    pub(crate) fn may_reopen(&self) -> bool {
        !self.interval.is_zero()
    }

    /// Adds a rail to those that are tried at intervals from now on.
    pub(crate) fn add(&mut self, closed: Closed) {
        if !self.may_reopen() {
            return;
        }
        self.closed.push(closed);
        if self.is_running {
            return;
        }
        let (shared, interval, shared_memory) = (self.shared.clone(), self.interval, self.shared_memory);
        let thread = std::thread::Builder::new().name("multirail-open".into());
        match thread.spawn(move || run(&shared, interval, shared_memory)) {
            Ok(_) => self.is_running = true,
            Err(error) => tracing::warn!(target: "multirail", %error, "rails that are closed stay closed"),
        }
    }
}

/// Tries the closed rails at intervals until none is left, or the agent is gone. The agent is kept for moments only.
fn run(shared: &Weak<Shared>, interval: Duration, shared_memory: bool) {
    let is_over = || shared.upgrade().is_none_or(|shared| shared.over.load(Ordering::Relaxed));
    loop {
        let began = Instant::now();
        while let Some(left) = interval.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::sleep(left.min(TURN));
            if is_over() {
                return;
            }
        }
        for closed in shared.upgrade().map_or_else(Vec::new, |shared| shared.closed_rails()) {
            if is_over() {
                return;
            }
            match Rail::of_info(&closed.info, shared_memory) {
                Ok(rail) => {
                    if let Some(shared) = shared.upgrade()
                        && let Err(error) = shared.attach(rail, &closed)
                    {
                        tracing::debug!(target: "multirail", %error, "an opened rail is not used");
                    }
                }
                Err(error) => {
                    let (provider, domain) =
                        (&closed.info.fabric_attr.prov_name, &closed.info.domain_attr.name);
                    tracing::debug!(target: "multirail", provider, domain, %error, "a rail stays closed");
                }
            }
        }
        if shared.upgrade().is_none_or(|shared| shared.has_opened_all()) {
            return;
        }
    }
}

impl Closed {
    fn is_same(&self, other: &Self) -> bool {
        let name = |closed: &Self| {
            (closed.info.fabric_attr.prov_name.clone(), closed.info.domain_attr.name.clone(), closed.instead)
        };
        name(self) == name(other)
    }
}

impl Shared {
    fn closed_rails(&self) -> Vec<Closed> {
        self.lock().map_or_else(|_| Vec::new(), |driver| driver.reopening.closed.clone())
    }

    /// Whether the thread has nothing to do any more. It then ends.
    fn has_opened_all(&self) -> bool {
        let Ok(mut driver) = self.lock() else { return true };
        let is_all = driver.reopening.closed.is_empty();
        driver.reopening.is_running = !is_all;
        is_all
    }

    /// Uses a rail that was opened now.
    fn attach(&self, rail: Rail, closed: &Closed) -> Result<()> {
        let mut guard = self.lock()?;
        let driver = &mut *guard;
        if let Some(at) = driver.reopening.closed.iter().position(|other| other.is_same(closed)) {
            driver.reopening.closed.remove(at);
        }
        let (provider, domain) = (&rail.info.fabric_attr.prov_name, &rail.info.domain_attr.name);
        let Some(number) = driver.core.add_rail(rail.spec.clone(), closed.instead, self.now()) else {
            tracing::warn!(
                target: "multirail", provider, domain,
                "a rail is not used again: the agent has had as many rails as it may have"
            );
            return Ok(());
        };
        tracing::info!(target: "multirail", provider, domain, number, instead = closed.instead, "a rail is used");
        self.domains.add(&rail.info, &rail.domain);
        driver.rails.push(rail);
        driver.list_queues();
        self.rouse(guard);
        Ok(())
    }
}
