//! Sends queued messages when the process exits, because no poll follows. They are lost on `_exit` and on fatal
//! signals.

use std::sync::{Arc, Mutex, MutexGuard, Once, TryLockError};
use std::time::Duration;

use super::HELPER;

/// Time between two attempts to take a lock, and their number. A process that exits from a signal handler inside a call
/// may hold it forever.
const PAUSE: Duration = Duration::from_micros(100);
const ATTEMPTS: usize = 100;

/// Registers [`leave`], which runs at `exit` and when `main` returns.
pub fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the function takes no argument, does not unwind, and stays loaded: the C library calls it before a
        // library that registered it is unloaded.
        unsafe { libc::atexit(leave) };
    });
}

/// Takes a lock if it becomes free soon.
fn soon<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..ATTEMPTS {
        match lock.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
        }
    }
    None
}

extern "C" fn leave() {
    let helper = soon(&HELPER).and_then(|helper| helper.as_ref().map(Arc::clone));
    // A child after fork has copies of its parent's endpoints.
    let Some(helper) = helper.filter(|helper| helper.process == std::process::id()) else { return };
    let epochs: Vec<u64> = match soon(&helper.list.listed) {
        Some(listed) => listed.iter().map(|listed| listed.epoch).collect(),
        None => return,
    };
    for epoch in epochs {
        let endpoint = soon(&helper.known).and_then(|known| known.attendant(epoch));
        if let Some(endpoint) = endpoint {
            endpoint.let_out();
        }
    }
}
