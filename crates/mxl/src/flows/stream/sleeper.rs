//! The threads that wait for the streams of a process: one for each [`GROUP`] streams, with one system call for all of
//! its own. A wake-up costs what its group has, however many streams the process has. A thread ends with the last
//! stream of its group.
//!
//! A thread goes on waiting for the flow of a stream whose time is over and whose task was woken for that: mostly the
//! task looks, finds nothing, and waits for the same again, which then changes nothing for the thread.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::Error;
use crate::flows::futex;
use crate::flows::grains::GrainReader;
use crate::flows::samples::SampleReader;
use crate::flows::wait::{FALLBACK, SLICE, Watch};

/// Streams of a group. The kernel would take 127. A grain costs two rounds over a group, so a quarter of that makes
/// many streams in turn cheaper, for a thread that sleeps for every 32 streams.
const GROUP: usize = 32;
const _: () = assert!(GROUP < futex::MANY);
/// Streams look for what no signal announces at multiples of this, so that a thread wakes once for many.
const STEP: Duration = Duration::from_millis(50);
/// Maximum sleep of a thread while no stream of its group waits.
const MAX_IDLE: Duration = Duration::from_secs(60);

/// The reader of a stream.
pub(super) trait Watched: Send + Sync + 'static {
    fn watch(&self) -> Watch<'_>;
}

impl Watched for GrainReader {
    fn watch(&self) -> Watch<'_> {
        self.watch()
    }
}

impl Watched for SampleReader {
    fn watch(&self) -> Watch<'_> {
        self.watch()
    }
}

/// A stream's entry in a group, which it joins with its first wait. Dropping it ends the wait.
#[derive(Debug, Default)]
pub(super) struct SleeperEntry(Option<(Arc<Group>, u64)>);

impl SleeperEntry {
    /// Wakes a task when the flow has changed since it was last seen, or after `limit`. The limit is needed because
    /// neither a deleted flow nor samples that complete no batch cause a signal: the streams check for those
    /// themselves.
    ///
    /// # Errors
    /// [`Error::Os`] if the system refuses a thread, [`Error::Argument`] for an entry that has waited in the parent of
    /// this process, which lacks the thread.
    pub fn wait(
        &mut self,
        reader: Arc<dyn Watched>,
        seen: u32,
        limit: Duration,
        waker: &Waker,
    ) -> Result<(), Error> {
        let (group, id) = self.0.get_or_insert_with(Group::join);
        let now = Instant::now();
        let until = if limit < SLICE { now + limit } else { group.in_step(now + limit) };
        group.wait(*id, Waiting { reader, seen, until, waker: Some(waker.clone()) })
    }
}

impl Drop for SleeperEntry {
    fn drop(&mut self) {
        let Some((group, id)) = self.0.take() else { return };
        if group.is_here() {
            group.leave(id);
        } else {
            std::mem::forget(group); // the parent's; one of its threads may have held the lock during the fork
        }
    }
}

/// A stream whose flow is waited for.
struct Waiting {
    reader: Arc<dyn Watched>,
    seen: u32,
    until: Instant,
    /// Its task, unless that was woken because the time was over.
    waker: Option<Waker>,
}

/// Streams that one thread waits for.
struct Group {
    state: Mutex<GroupState>,
    /// Changes with the state.
    changes: AtomicU32,
    /// The process of the thread.
    process: u32,
    /// Times are counted in steps from here.
    since: Instant,
}

#[derive(Default)]
struct GroupState {
    waiting: BTreeMap<u64, Waiting>,
    /// The thread looks again then at the latest, if a task waits.
    sleeps_until: Option<Instant>,
    /// Streams of the group, and the number of the last one.
    streams: usize,
    last: u64,
    is_running: bool,
}

/// The groups of a process.
struct Groups {
    process: u32,
    list: Mutex<Vec<Arc<Group>>>,
}

impl Groups {
    /// Those of this process. A forked child has new ones, because a thread of its parent may have held the lock; its
    /// parent's are never freed.
    fn here() -> &'static Self {
        static HERE: AtomicPtr<Groups> = AtomicPtr::new(ptr::null_mut());
        let process = std::process::id();
        let mut found = HERE.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or leaked below.
            if let Some(groups) = unsafe { found.as_ref() }
                && groups.process == process
            {
                return groups;
            }
            let new = Box::into_raw(Box::new(Self { process, list: Mutex::default() }));
            match HERE.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => found = new,
                Err(theirs) => {
                    // SAFETY: made above, and shared with nobody.
                    drop(unsafe { Box::from_raw(new) });
                    found = theirs;
                }
            }
        }
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").finish_non_exhaustive()
    }
}

impl Group {
    /// A group with room, and a number there.
    fn join() -> (Arc<Self>, u64) {
        let Groups { process, list } = Groups::here();
        let mut groups = list.lock().unwrap_or_else(PoisonError::into_inner);
        for group in groups.iter() {
            let mut state = group.lock();
            if state.streams < GROUP {
                return (Arc::clone(group), state.add());
            }
        }
        let state = Mutex::new(GroupState::default());
        let (changes, since) = (AtomicU32::new(0), Instant::now());
        let group = Arc::new(Self { state, changes, process: *process, since });
        groups.push(Arc::clone(&group));
        let id = group.lock().add();
        (group, id)
    }

    fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the process of the thread, and not a forked child.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Rounds `time` up to a multiple of [`STEP`] after `since`.
    fn in_step(&self, time: Instant) -> Instant {
        let steps = time.saturating_duration_since(self.since).as_nanos().div_ceil(STEP.as_nanos());
        self.since + STEP * u32::try_from(steps).unwrap_or(u32::MAX)
    }

    /// Makes the thread look at the state again.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        futex::wake(&self.changes);
    }

    fn leave(&self, id: u64) {
        let mut state = self.lock();
        let waiting = state.waiting.remove(&id);
        state.streams -= 1;
        drop(state);
        drop(waiting); // it may be the last of a reader
        self.changed();
    }

    fn wait(self: &Arc<Self>, id: u64, waiting: Waiting) -> Result<(), Error> {
        if !self.is_here() {
            return Err(Error::argument("a stream of the parent process: a forked child opens its own"));
        }
        let mut state = self.lock();
        let is_in_time = state.sleeps_until.is_some_and(|until| until <= waiting.until);
        let is_same = |there: &Waiting| there.seen == waiting.seen;
        let is_known = is_in_time && state.is_running && state.waiting.get(&id).is_some_and(is_same);
        let before = state.waiting.insert(id, waiting);
        if !state.is_running {
            let thread = std::thread::Builder::new().name("mxl-streams".into());
            let run = Arc::clone(self);
            if let Err(error) = thread.spawn(move || run.run()) {
                let waiting = state.waiting.remove(&id);
                drop(state);
                // Outside the lock: either may be the last of a task that owns a stream of this group.
                drop((waiting, before));
                return Err(Error::os("start a thread", "mxl-streams".as_ref(), error));
            }
            state.is_running = true;
        }
        drop(state);
        drop(before);
        if !is_known {
            self.changed();
        }
        Ok(())
    }

    /// The body of the thread.
    fn run(&self) {
        loop {
            let changes = self.changes.load(Ordering::Acquire);
            let (flows, until, is_timed) = {
                let mut state = self.lock();
                if state.streams == 0 {
                    state.is_running = false;
                    return;
                }
                let timed = state.waiting.values().filter(|waiting| waiting.waker.is_some());
                let first = timed.map(|waiting| waiting.until).min();
                // Without a task to wake, the thread sleeps until one waits.
                state.sleeps_until = first;
                let flow = |waiting: &Waiting| (waiting.reader.clone(), waiting.seen);
                let flows: Vec<_> = state.waiting.values().map(flow).collect();
                (flows, first.unwrap_or_else(|| Instant::now() + MAX_IDLE), first.is_some())
            };
            let limit = until.saturating_duration_since(Instant::now());
            let watches: Vec<_> = flows.iter().map(|(reader, seen)| (reader.watch(), *seen)).collect();
            let mut words = vec![(&self.changes, changes)];
            words.extend(watches.iter().map(|(watch, seen)| (watch.word(), *seen)));
            if !is_timed {
                futex::wait(&self.changes, changes, limit);
            } else if !futex::wait_many(&words, limit) {
                std::thread::sleep(FALLBACK.min(limit));
            }
            self.wake(Instant::now());
        }
    }

    /// Wakes the tasks whose flows have changed, or whose time limit has passed.
    fn wake(&self, now: Instant) {
        let mut ready = Vec::new();
        let mut state = self.lock();
        let is_changed = |_: &u64, waiting: &mut Waiting| waiting.reader.watch().seen() != waiting.seen;
        let changed: Vec<_> = state.waiting.extract_if(.., is_changed).map(|(_, waiting)| waiting).collect();
        for waiting in state.waiting.values_mut().filter(|waiting| now >= waiting.until) {
            ready.extend(waiting.waker.take());
        }
        drop(state);
        // Outside the lock: an executor may poll at once, or drop the stream, and with it the last of a reader.
        ready.extend(changed.into_iter().filter_map(|waiting| waiting.waker));
        ready.into_iter().for_each(Waker::wake);
    }
}

impl GroupState {
    /// Adds a stream. Returns its number.
    fn add(&mut self) -> u64 {
        self.streams += 1;
        self.last += 1;
        self.last
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::task::Wake;

    use super::*;

    const STREAMS: usize = 1000;
    const LONG: Duration = Duration::from_secs(30);

    /// A flow that counts how often it is looked at.
    #[derive(Default)]
    struct Flow {
        word: AtomicU32,
        looks: AtomicUsize,
    }

    impl Watched for Flow {
        fn watch(&self) -> Watch<'_> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            Watch::of(&self.word)
        }
    }

    #[derive(Default)]
    struct Task(AtomicBool);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// A child that was forked while another thread joined a group waited for the lock for ever.
    #[test]
    fn a_child_waits_for_streams_of_its_own_whatever_its_parent_has_locked() {
        let lock = Groups::here().list.lock().unwrap();
        ofi_testkit::fork::in_a_child(|| {
            let (flow, task) = (Arc::new(Flow::default()), Arc::new(Task::default()));
            let (mut entry, waker) = (SleeperEntry::default(), Waker::from(task.clone()));
            entry.wait(flow.clone(), 0, LONG, &waker).unwrap();
            flow.word.store(1, Ordering::Release);
            futex::wake(&flow.word);
            until("the task is woken", || task.0.load(Ordering::Acquire));
        });
        drop(lock);
    }

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < LONG, "not within {LONG:?}: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// One thread walked all waiting streams of the process, every half a millisecond if there were more than 127.
    #[test]
    fn a_wake_up_looks_at_a_group_however_many_streams_wait() {
        let flows: Vec<_> = (0..STREAMS).map(|_| Arc::new(Flow::default())).collect();
        let tasks: Vec<_> = (0..STREAMS).map(|_| Arc::new(Task::default())).collect();
        let mut entries: Vec<_> = (0..STREAMS).map(|_| SleeperEntry::default()).collect();
        let hour = Duration::from_secs(3600);
        let wait = |entries: &mut Vec<SleeperEntry>| {
            for ((entry, flow), task) in entries.iter_mut().zip(&flows).zip(&tasks) {
                entry.wait(flow.clone(), 0, hour, &Waker::from(task.clone())).unwrap();
            }
        };
        wait(&mut entries);
        let looks = || flows.iter().map(|flow| flow.looks.load(Ordering::Relaxed)).sum::<usize>();
        // All threads sleep.
        let mut before = 0;
        until("nobody looks", || {
            std::thread::sleep(Duration::from_millis(50));
            std::mem::replace(&mut before, looks()) == before && before >= STREAMS
        });
        // A task that looks, and waits for the same once more, wakes no thread.
        wait(&mut entries);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(looks(), before);
        for at in [0, STREAMS / 2, STREAMS - 1] {
            let before = looks();
            flows[at].word.store(1, Ordering::Release);
            futex::wake(&flows[at].word);
            until("the task is woken", || tasks[at].0.load(Ordering::Acquire));
            // What has changed, and then what is still to wait for; and once more, if the thread was interrupted.
            let looked = looks() - before;
            assert!(looked <= 4 * GROUP, "{looked} looks of {STREAMS} streams");
        }
        let woken = tasks.iter().filter(|task| task.0.load(Ordering::Acquire)).count();
        assert_eq!(woken, 3);
        // Nothing is kept of streams that are dropped, and the threads end.
        entries.clear();
        until("the flows are released", || flows.iter().all(|flow| Arc::strong_count(flow) == 1));
    }
}
