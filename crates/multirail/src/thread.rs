//! The progress thread of an agent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use ofi::Result;

use crate::driver::{Driver, Shared};
use crate::reopen::Finder;

/// Time after which the thread checks again whether the agent still exists.
const TURN: Duration = Duration::from_secs(1);

/// The progress thread, if there is one, and the one that looks for devices. They end with the agent.
pub(crate) struct Thread(
    Option<JoinHandle<()>>,
    #[expect(dead_code, reason = "ends when it is dropped")] Finder,
);

impl Thread {
    /// No thread: the calling threads drive the agent.
    pub(crate) fn none(finder: Finder) -> Self {
        Self(None, finder)
    }

    /// Starts the thread.
    pub(crate) fn spawn(shared: &Arc<Shared>, finder: Finder) -> Result<Self> {
        let weak = Arc::downgrade(shared);
        let run = move || {
            // The thread keeps the agent for one turn at most: the thread ends with the agent's last handle.
            while let Some(shared) = weak.upgrade().filter(|shared| !shared.over.load(Ordering::Relaxed)) {
                let over = Arc::clone(&shared);
                let is_over = move |_: &mut Driver| over.over.load(Ordering::Relaxed).then_some(());
                if let Err(error) = shared.wait_for(TURN, is_over) {
                    // The rails are tried again after some time, which the next wait takes.
                    tracing::error!(target: "multirail", %error, "no rail is driven");
                }
            }
        };
        Ok(Self(Some(std::thread::Builder::new().name("multirail".into()).spawn(run)?), finder))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // The thread itself may drop the last handle that it has upgraded, and must not join itself.
        if let Some(thread) = self.0.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}
