//! Opens rails later: devices that `auto` and patterns name and that did not open, or were not there, at the start; and
//! devices of any rail that were lost and have come back. Those get a new rail, with another number: an endpoint does
//! not outlive its device.
//!
//! A thread looks at intervals: to list devices and to open one may take long, and the agent goes on meanwhile. It ends
//! with the agent, and when the agent has as many rails as it may have.
//!
//! Dropping the agent waits for the thread, which may have the last handle of the rails, unless the thread lists
//! devices or opens one: then it has none, and closes what it opens.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ofi::{Info, Result};

use crate::discovery::{RailList, Start};
use crate::driver::{Driver, Shared};
use crate::rail::Rail;
use crate::wire::MAX_RAILS;

/// The thread of an agent that looks for devices, if there is one.
pub(crate) struct Finder(Option<JoinHandle<()>>, Arc<Mutex<Stage>>);

/// What the thread does.
#[derive(Default)]
struct Stage {
    /// It lists devices or opens one, which may take long, and has no handle of the agent.
    is_apart: bool,
    /// The agent has ended.
    is_over: bool,
}

fn lock(stage: &Mutex<Stage>) -> MutexGuard<'_, Stage> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what may take long. `None` if the agent has ended meanwhile.
fn apart<T>(stage: &Mutex<Stage>, run: impl FnOnce() -> T) -> Option<T> {
    lock(stage).is_apart = true;
    let result = run();
    let mut stage = lock(stage);
    stage.is_apart = false;
    (!stage.is_over).then_some(result)
}

impl Finder {
    /// Starts the thread, if some list may name devices that are not there yet, or a rail may lose its device.
    pub(crate) fn spawn(
        shared: &Arc<Shared>,
        lists: Vec<(RailList, Start)>,
        interval: Duration,
        shared_memory: bool,
    ) -> Result<Self> {
        let stage = Arc::<Mutex<Stage>>::default();
        if (lists.is_empty() && !shared.lock()?.rails.iter().any(Rail::has_device)) || interval.is_zero() {
            return Ok(Self(None, stage));
        }
        let (weak, its) = (Arc::downgrade(shared), Arc::clone(&stage));
        let run = move || {
            while sleeps(&weak, &its, interval) {
                let looks = |(list, start): &_| look(&weak, &its, list, start, shared_memory);
                if !replace(&weak, &its, shared_memory) || !lists.iter().all(looks) {
                    return;
                }
            }
        };
        Ok(Self(Some(std::thread::Builder::new().name("multirail-find".into()).spawn(run)?), stage))
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        let Some(thread) = self.0.take() else { return };
        let is_apart = {
            let mut stage = lock(&self.1);
            stage.is_over = true;
            stage.is_apart
        };
        thread.thread().unpark();
        if !is_apart && thread.thread().id() != std::thread::current().id() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Sleeps. Returns whether the agent still exists.
fn sleeps(shared: &Weak<Shared>, stage: &Mutex<Stage>, interval: Duration) -> bool {
    let began = Instant::now();
    loop {
        let is_over = |shared: Arc<Shared>| shared.over.load(Ordering::Relaxed);
        if lock(stage).is_over || shared.upgrade().is_none_or(is_over) {
            return false;
        }
        match interval.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
            Some(left) => std::thread::park_timeout(left),
            None => return true,
        }
    }
}

/// Whether an agent may have more rails.
fn has_room(driver: &MutexGuard<'_, Driver>) -> bool {
    let has_room = driver.rails.len() < MAX_RAILS;
    if !has_room {
        tracing::warn!(target: "multirail", rails = MAX_RAILS, "an agent has as many rails as it may: none is added");
    }
    has_room
}

/// Opens the lost devices that have come back. Returns whether the agent may have more rails.
fn replace(shared: &Weak<Shared>, stage: &Mutex<Stage>, shared_memory: bool) -> bool {
    let missed = |shared: Arc<Shared>| {
        let now = shared.now();
        let driver = shared.lock().ok().filter(has_room)?;
        let missed = driver.rails.iter().enumerate().filter(|(_, rail)| rail.is_missed(now));
        Some(missed.map(|(number, rail)| (number, rail.info.clone())).collect::<Vec<_>>())
    };
    let Some(missed) = shared.upgrade().and_then(missed) else { return false };
    missed.into_iter().all(|(number, info)| open(shared, stage, &info, shared_memory, Some(number)))
}

/// Opens what a list names and has no rail. Returns whether the agent may have more rails.
fn look(
    shared: &Weak<Shared>,
    stage: &Mutex<Stage>,
    list: &RailList,
    start: &Start,
    shared_memory: bool,
) -> bool {
    let rails = |shared: Arc<Shared>| {
        let driver = shared.lock().ok().filter(has_room)?;
        Some(driver.rails.iter().map(|rail| rail.info.clone()).collect::<Vec<Info>>())
    };
    let Some(rails) = shared.upgrade().and_then(rails) else { return false };
    let Some(later) = apart(stage, || list.later(start, &rails)) else { return false };
    let later = later.inspect_err(|error| {
        tracing::debug!(target: "multirail", %error, "devices cannot be listed");
    });
    later.into_iter().flatten().all(|info| open(shared, stage, &info, shared_memory, None))
}

/// Opens a rail, which takes the place of `lost` if there is one. Returns whether the agent may have more rails.
fn open(
    shared: &Weak<Shared>,
    stage: &Mutex<Stage>,
    info: &Info,
    shared_memory: bool,
    lost: Option<usize>,
) -> bool {
    let (provider, domain) = (&info.fabric_attr.prov_name, &info.domain_attr.name);
    match apart(stage, || Rail::of_info(info, shared_memory)) {
        None => false,
        Some(Ok(rail)) => shared.upgrade().is_some_and(|shared| attach(&shared, rail, lost)),
        Some(Err(error)) => {
            tracing::debug!(target: "multirail", provider, domain, %error, "a rail does not open yet");
            true
        }
    }
}

/// Uses a rail that was opened now. Returns whether the agent has room for it, and has not ended.
fn attach(shared: &Shared, mut rail: Rail, lost: Option<usize>) -> bool {
    let Ok(mut driver) = shared.lock() else { return false };
    if shared.over.load(Ordering::Relaxed) {
        return false; // peers may have been told that it closes
    }
    let (provider, domain) = (rail.spec.info.provider.clone(), rail.info.domain_attr.name.clone());
    if let Some(lost) = lost.and_then(|lost| driver.rails.get_mut(lost)) {
        rail.replaces(lost);
    }
    let Some(number) = driver.add_rail(rail, &shared.domains, shared.now()) else { return false };
    tracing::info!(target: "multirail", provider, domain, number, ?lost, "a rail is used from now on");
    driver.pump(shared.now());
    shared.rouse(driver);
    true
}

#[cfg(test)]
mod tests {
    use ofi::Hints;

    use super::*;
    use crate::Agent;

    fn finders() -> usize {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = threads.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "multirail-find").count()
    }

    fn agent() -> Agent {
        let shm = Hints::new().provider("shm");
        let config = crate::Config { rails_interval: Duration::from_secs(3600), ..Default::default() };
        let builder = Agent::builder("alice").rails("shm".parse().unwrap()).config(config);
        builder.rail(shm).progress_thread(true).open().unwrap()
    }

    /// Otherwise the thread could drop the rails after the agent, whose ports would be in use.
    #[test]
    fn the_thread_has_ended_when_the_agent_has() {
        let agent = agent();
        let apart = Duration::from_millis(300);
        let shared = Arc::clone(&agent.shared);
        let list = || vec![(RailList::default(), Start::default())];
        let began = Instant::now();
        for _ in 0..200 {
            let finder = Finder::spawn(&shared, list(), Duration::from_secs(3600), false).unwrap();
            drop(finder);
            assert_eq!(finders(), 0, "one is joined");
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        // While it opens a device it is not waited for, and notices afterwards.
        let stage = Arc::<Mutex<Stage>>::default();
        let its = Arc::clone(&stage);
        let (opens, is_open) = std::sync::mpsc::channel();
        let run = move || {
            let opened = self::apart(&its, || {
                opens.send(()).unwrap();
                std::thread::sleep(apart);
            });
            assert!(opened.is_none());
        };
        let finder = Finder(Some(std::thread::spawn(run)), stage);
        is_open.recv().unwrap();
        let began = Instant::now();
        drop(finder);
        assert!(began.elapsed() < apart / 2, "{:?}", began.elapsed());
    }

    #[test]
    fn an_agent_that_has_ended_takes_no_rail() {
        let agent = agent();
        let shared = Arc::clone(&agent.shared);
        let open = || Rail::open(&Hints::new().provider("shm"), true).unwrap();
        assert!(attach(&shared, open(), None));
        shared.over.store(true, Ordering::Relaxed);
        assert!(!attach(&shared, open(), None));
        assert_eq!(shared.lock().unwrap().rails.len(), 3);
    }
}
