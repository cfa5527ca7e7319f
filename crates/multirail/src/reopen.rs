//! Opens rails later: devices that `auto` and patterns name and that did not open, or were not there, at the start.
//!
//! A thread looks at intervals: to list devices and to open one may take long, and the agent goes on meanwhile. It ends
//! with the agent, and when the agent has as many rails as it may have. A list of names has no such thread.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use ofi::{Info, Result};

use crate::discovery::RailList;
use crate::driver::Shared;
use crate::rail::Rail;
use crate::wire::MAX_RAILS;

/// The thread of an agent that looks for devices, if there is one.
pub(crate) struct Finder(Option<JoinHandle<()>>);

impl Finder {
    /// Starts the thread, if some list may name devices that are not there yet.
    pub(crate) fn spawn(
        shared: &Arc<Shared>,
        lists: Vec<RailList>,
        interval: Duration,
        shared_memory: bool,
    ) -> Result<Self> {
        if lists.is_empty() || interval.is_zero() {
            return Ok(Self(None));
        }
        let weak = Arc::downgrade(shared);
        let run = move || {
            while sleeps(&weak, interval) {
                for list in &lists {
                    if !look(&weak, list, shared_memory) {
                        return;
                    }
                }
            }
        };
        Ok(Self(Some(std::thread::Builder::new().name("multirail-find".into()).spawn(run)?)))
    }

    fn thread(&self) -> Option<&Thread> {
        self.0.as_ref().map(JoinHandle::thread)
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        // It ends by itself: it may be opening a device, and keeps nothing of the agent.
        if let Some(thread) = self.thread() {
            thread.unpark();
        }
    }
}

/// Sleeps. Returns whether the agent still exists.
fn sleeps(shared: &Weak<Shared>, interval: Duration) -> bool {
    let began = Instant::now();
    loop {
        let is_over = |shared: Arc<Shared>| shared.over.load(Ordering::Relaxed);
        if shared.upgrade().is_none_or(is_over) {
            return false;
        }
        match interval.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            Some(left) => std::thread::park_timeout(left),
            None => return true,
        }
    }
}

/// Opens what a list names and has no rail. Returns whether the agent may have more rails.
fn look(shared: &Weak<Shared>, list: &RailList, shared_memory: bool) -> bool {
    let open = |shared: Arc<Shared>| {
        let driver = shared.lock().ok()?;
        Some(driver.rails.iter().map(|rail| rail.info.clone()).collect::<Vec<Info>>())
    };
    let Some(open) = shared.upgrade().and_then(open) else { return false };
    if open.len() >= MAX_RAILS {
        return false;
    }
    let later = list.later(&open).inspect_err(|error| {
        tracing::debug!(target: "multirail", %error, "devices cannot be listed");
    });
    for info in later.into_iter().flatten() {
        let (provider, domain) = (&info.fabric_attr.prov_name, &info.domain_attr.name);
        match Rail::of_info(&info, shared_memory) {
            Ok(rail) => {
                let Some(shared) = shared.upgrade() else { return false };
                if !attach(&shared, rail) {
                    return false;
                }
            }
            Err(error) => {
                tracing::debug!(target: "multirail", provider, domain, %error, "a rail does not open yet");
            }
        }
    }
    true
}

/// Uses a rail that was opened now. Returns whether the agent has room for it.
fn attach(shared: &Shared, rail: Rail) -> bool {
    let Ok(mut driver) = shared.lock() else { return false };
    let (provider, domain) = (rail.spec.info.provider.clone(), rail.info.domain_attr.name.clone());
    let Some(number) = driver.add_rail(rail, &shared.domains, shared.now()) else { return false };
    tracing::info!(target: "multirail", provider, domain, number, "a rail is used from now on");
    driver.pump(shared.now());
    shared.rouse(driver);
    true
}
