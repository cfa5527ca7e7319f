//! The end of the process: messages that gather until the next poll leave, as nobody polls any more. `_exit` and
//! signals that kill lose them.

use std::sync::{Arc, Mutex, MutexGuard, Once, TryLockError};
use std::time::Duration;

use super::HELPER;

/// Between two attempts to get a lock, and how many there are. A process that exits inside a call, by a signal handler,
/// may hold it for ever.
const PAUSE: Duration = Duration::from_micros(100);
const ATTEMPTS: usize = 100;

/// Has `exit` and the return of `main` call [`leave`].
pub fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the function takes no argument, does not unwind, and stays loaded: the C library calls it before a
        // library that registered it is unloaded.
        unsafe { libc::atexit(leave) };
    });
}

/// A lock, if it is free soon.
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
