//! Work that may block, such as commands to a device's firmware. A thread does it without the endpoint's lock, and the
//! endpoint takes the results when it polls. The thread exists while there is work.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi_api::Result;

use crate::sys;

/// Returns the result and its key; `None` for work without a result.
type Task<K, R> = Box<dyn FnOnce() -> Option<(K, R)> + Send>;

/// The tasks of one endpoint, each with a key. Dropping it drops the tasks that have not begun, and the result of the
/// one that has; it does not wait.
pub struct Background<K, R> {
    shared: Arc<BackgroundShared<K, R>>,
    /// Number of results that were not taken yet, of begun tasks too.
    owed: usize,
}

struct BackgroundShared<K, R> {
    state: Mutex<BackgroundState<K, R>>,
    /// Readable while results wait.
    done_fd: OwnedFd,
}

struct BackgroundState<K, R> {
    waiting: VecDeque<Task<K, R>>,
    done: Vec<(K, R)>,
    has_thread: bool,
    is_closed: bool,
}

impl<K: Send + 'static, R: Send + 'static> Background<K, R> {
    /// Without tasks.
    ///
    /// # Errors
    /// `FI_EMFILE`.
    pub fn new() -> Result<Self> {
        let state = BackgroundState {
            waiting: VecDeque::new(),
            done: Vec::new(),
            has_thread: false,
            is_closed: false,
        };
        let shared = BackgroundShared { state: Mutex::new(state), done_fd: sys::eventfd()? };
        Ok(Self { shared: Arc::new(shared), owed: 0 })
    }

    /// Begins a task after all earlier ones.
    pub fn begin(&mut self, key: K, work: impl FnOnce() -> R + Send + 'static) {
        self.owed += 1;
        self.push(Box::new(move || Some((key, work()))));
    }

    /// Drops a value after all earlier tasks.
    pub fn discard(&self, value: impl Send + 'static) {
        self.push(Box::new(move || {
            drop(value);
            None
        }));
    }

    fn push(&self, task: Task<K, R>) {
        let mut state = self.shared.state();
        state.waiting.push_back(task);
        if std::mem::replace(&mut state.has_thread, true) {
            return;
        }
        drop(state);
        let shared = Arc::clone(&self.shared);
        let started = std::thread::Builder::new().name("ofi-background".into()).spawn(move || shared.run());
        if started.is_err() {
            self.shared.run(); // without a thread, the caller waits
        }
    }

    /// Whether results are missing, or wait to be taken.
    #[inline]
    pub fn is_owed(&self) -> bool {
        self.owed > 0
    }

    /// Takes the results so far.
    pub fn take(&mut self) -> Vec<(K, R)> {
        let mut state = self.shared.state();
        if state.done.is_empty() {
            return Vec::new();
        }
        sys::drain_eventfd(&self.shared.done_fd);
        let done = std::mem::take(&mut state.done);
        self.owed -= done.len();
        done
    }

    /// The descriptor that is readable while results wait.
    pub fn fd(&self) -> RawFd {
        self.shared.done_fd.as_raw_fd()
    }
}

impl<K, R> BackgroundShared<K, R> {
    fn state(&self) -> MutexGuard<'_, BackgroundState<K, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.state();
        while let Some(task) = state.waiting.pop_front() {
            drop(state);
            let result = task();
            state = self.state();
            if let Some(result) = result {
                if state.is_closed {
                    state.has_thread = false;
                    drop(state); // before the result, which may block
                    return;
                }
                state.done.push(result);
                sys::signal_eventfd(&self.done_fd);
            }
        }
        state.has_thread = false;
    }
}

impl<K, R> Drop for Background<K, R> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_closed = true;
        let rest = (std::mem::take(&mut state.waiting), std::mem::take(&mut state.done));
        drop(state); // before the rest, which may block
        drop(rest);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Takes results until there is one.
    fn next(of: &mut Background<u8, u8>) -> Vec<(u8, u8)> {
        let began = std::time::Instant::now();
        loop {
            let taken = of.take();
            if !taken.is_empty() {
                return taken;
            }
            assert!(began.elapsed() < LIMIT, "no result");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_task_that_blocks_does_not_block_the_caller_and_tasks_keep_their_order() {
        let (release, held) = channel::<()>();
        let mut background = Background::new().unwrap();
        let (dropped, drops) = channel();
        background.begin(1, move || {
            held.recv_timeout(LIMIT).unwrap();
            10
        });
        struct Says(std::sync::mpsc::Sender<()>);
        impl Drop for Says {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        background.discard(Says(dropped));
        background.begin(2, || 20);
        assert!(background.take().is_empty() && background.is_owed());
        assert!(drops.try_recv().is_err(), "discarded before an earlier task has ended");
        release.send(()).unwrap();
        let mut all = next(&mut background);
        while all.len() < 2 {
            all.extend(next(&mut background));
        }
        assert_eq!(all, [(1, 10), (2, 20)]);
        assert!(!background.is_owed());
        drops.recv_timeout(LIMIT).unwrap();
        background.begin(3, || 30);
        assert_eq!(next(&mut background), [(3, 30)], "a thread is started again");
    }

    #[test]
    fn dropping_it_does_not_wait_and_drops_every_result() {
        let value = Arc::new(());
        let (release, held) = channel::<()>();
        let (begun, begins) = channel::<()>();
        let mut background = Background::<u8, Arc<()>>::new().unwrap();
        let made = Arc::clone(&value);
        background.begin(1, move || {
            begun.send(()).unwrap();
            held.recv_timeout(LIMIT).unwrap();
            made
        });
        let made = Arc::clone(&value);
        background.begin(2, move || made);
        begins.recv_timeout(LIMIT).unwrap();
        drop(background);
        assert_eq!(Arc::strong_count(&value), 2, "the second task was not begun");
        release.send(()).unwrap();
        let began = std::time::Instant::now();
        while Arc::strong_count(&value) > 1 {
            assert!(began.elapsed() < LIMIT, "a result leaks");
            std::thread::yield_now();
        }
    }
}
