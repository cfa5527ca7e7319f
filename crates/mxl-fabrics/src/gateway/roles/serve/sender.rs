//! The thread that sends all flows: it sleeps until one of them has changed.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mxl::{Wait, wait_any};

use super::source::Source;
use crate::{Error, Result};

/// The longest sleep: some commits wake nobody, and new flows are seen after it.
const TURN: Duration = Duration::from_millis(20);
/// The longest sleep without flows, for which a bell rings.
const IDLE: Duration = Duration::from_secs(10);

/// A running thread. It ends with this value.
pub struct Sender {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<SenderState>,
    bell: Condvar,
}

#[derive(Default)]
struct SenderState {
    sources: Vec<Arc<Source>>,
    is_over: bool,
}

impl Sender {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Argument`] if the system cannot.
    pub fn start() -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let run = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("mxl-sender".into()).spawn(move || run.run());
        let thread = thread.map_err(|error| Error::Argument(format!("start the sending thread: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sends these flows from now on, and no others.
    pub fn set(&self, sources: Vec<Arc<Source>>) {
        self.shared.lock().sources = sources;
        self.shared.bell.notify_all();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, SenderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let sources = {
                let mut state = self.lock();
                while state.sources.is_empty() && !state.is_over {
                    let woken = self.bell.wait_timeout(state, IDLE);
                    state = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
                if state.is_over {
                    return;
                }
                state.sources.clone()
            };
            // Watches first: what is written after them ends the sleep at once.
            let watches: Vec<_> = sources.iter().map(|source| source.watch()).collect();
            let mut more = false;
            for source in &sources {
                more |= source.send();
            }
            if !more {
                wait_any(&watches, Wait::For(TURN));
            }
        }
    }
}
