//! A store-load barrier that costs only one of its two sides anything.
//!
//! Two sides that each store and then load what the other stored need a barrier in between, or both may miss the
//! other's store. Here the frequent side runs [`light`], which costs no instruction, and the rare side runs [`heavy`],
//! a system call that makes every running thread of every process that has called [`register`] pass a full barrier
//! (`MEMBARRIER_CMD_GLOBAL_EXPEDITED`, membarrier(2), Linux 4.16). A thread that was not running passed one when it was
//! switched out.
//!
//! So each thread of the frequent side passes a full barrier at some point during the call. If that point comes before
//! the thread's store, its load sees what the caller stored before the call; if it comes after, the caller sees the
//! thread's store after the call. A `fence(SeqCst)` on both sides guarantees the same. Loom models the two calls as
//! read-modify-writes of one word, which guarantees it as well, but only between these two, not between `light` and a
//! fence.

#[cfg(all(target_os = "linux", not(loom)))]
mod early;

/// Whether [`light`] and [`heavy`] work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// This process is registered: other processes' [`heavy`] reaches it, and it may call its own.
    Expedited,
    /// The kernel is too old, or a sandbox forbids the call. [`heavy`] fails, and no process's [`heavy`] reaches the
    /// [`light`] of this process.
    Missing,
}

/// Registers this process, once; further calls are cheap and have no effect. Both sides must be registered before they
/// rely on the barrier.
pub fn register() -> Support {
    imp::register()
}

/// The rare side's barrier. It interrupts every processor that is running a registered process, and takes microseconds.
///
/// # Errors
/// [`Failed`] if [`register`] returned [`Support::Missing`], or if a sandbox was entered since. Then nothing was
/// ordered.
pub fn heavy() -> Result<(), Failed> {
    imp::heavy()
}

/// As [`register`], for [`heavy_private`]. Makes its system call once per process.
pub fn register_private() -> Support {
    imp::register_private()
}

/// As [`heavy`], for the threads of this process only, which costs less (`MEMBARRIER_CMD_PRIVATE_EXPEDITED`, Linux
/// 4.14).
///
/// # Errors
/// As for [`heavy`].
pub fn heavy_private() -> Result<(), Failed> {
    imp::heavy_private()
}

/// Replaces a heavy barrier that fails although the process is registered, for example because it has entered a sandbox
/// since: waits longer than any processor delays a store.
#[cold]
pub fn outwait() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

/// The frequent side's barrier: prevents reordering by the compiler, and leaves the rest to [`heavy`].
#[inline(always)]
pub fn light() {
    imp::light();
}

/// membarrier(2) refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("membarrier failed with errno {errno}")]
pub struct Failed {
    /// The error number.
    pub errno: i32,
}

#[cfg(all(target_os = "linux", not(loom)))]
mod imp {
    use core::sync::atomic::{Ordering, compiler_fence};
    use std::sync::OnceLock;

    use super::{Failed, Support};

    pub(super) fn register() -> Support {
        enter(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED, libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
    }

    /// Registers for a kind of barrier, if the kernel has both.
    fn enter(barrier: libc::c_int, register: libc::c_int) -> Support {
        // A program that links a static library by hand gets the constructor only if something refers to it.
        core::hint::black_box(&super::early::REGISTER);
        let wanted = barrier | register;
        let offered = membarrier(libc::MEMBARRIER_CMD_QUERY).is_ok_and(|offered| offered & wanted == wanted);
        if offered && membarrier(register).is_ok() { Support::Expedited } else { Support::Missing }
    }

    pub(super) fn heavy() -> Result<(), Failed> {
        membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED).map(|_| ())
    }

    pub(super) fn register_private() -> Support {
        static SUPPORT: OnceLock<Support> = OnceLock::new();
        *SUPPORT.get_or_init(|| {
            enter(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
        })
    }

    pub(super) fn heavy_private() -> Result<(), Failed> {
        match membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
            // Not registered: this is a forked child of the process that was.
            Err(Failed { errno: libc::EPERM }) => {
                membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)?;
                membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).map(drop)
            }
            other => other.map(drop),
        }
    }

    #[inline(always)]
    pub(super) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    pub(super) fn membarrier(command: libc::c_int) -> Result<libc::c_int, Failed> {
        // SAFETY: the call takes two integers after the command and touches no memory of the caller.
        let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        if result >= 0 {
            return Ok(result as libc::c_int);
        }
        Err(Failed { errno: std::io::Error::last_os_error().raw_os_error().unwrap_or(0) })
    }
}

#[cfg(all(not(target_os = "linux"), not(loom)))]
mod imp {
    use core::sync::atomic::{Ordering, compiler_fence};

    use super::{Failed, Support};

    pub(super) fn register() -> Support {
        Support::Missing
    }

    pub(super) fn heavy() -> Result<(), Failed> {
        Err(Failed { errno: libc::ENOSYS })
    }

    pub(super) fn register_private() -> Support {
        Support::Missing
    }

    pub(super) fn heavy_private() -> Result<(), Failed> {
        heavy()
    }

    #[inline(always)]
    pub(super) fn light() {
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
mod imp {
    use super::{Failed, Support};
    use crate::sync::{AtomicU32, Ordering};

    loom::lazy_static! {
        static ref BARRIER: AtomicU32 = AtomicU32::new(0);
    }

    pub(super) fn register() -> Support {
        Support::Expedited
    }

    pub(super) fn heavy() -> Result<(), Failed> {
        BARRIER.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    pub(super) fn register_private() -> Support {
        Support::Expedited
    }

    pub(super) fn heavy_private() -> Result<(), Failed> {
        heavy()
    }

    pub(super) fn light() {
        BARRIER.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_registered_process_may_call_the_heavy_barrier() {
        let support = register();
        assert_eq!(register(), support);
        assert_eq!(heavy().is_ok(), support == Support::Expedited);
        let support = register_private();
        assert_eq!(heavy_private().is_ok(), support == Support::Expedited);
    }
}
