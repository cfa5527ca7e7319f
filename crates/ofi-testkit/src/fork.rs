//! Forked children of a test, without `exec`: they have what their parent had. Each of them ends within a time.

use std::time::{Duration, Instant};

/// The time in which a child must end.
const CHILD_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two looks at a child.
const PAUSE: Duration = Duration::from_millis(2);

/// A forked child that runs a function and ends. It is killed on drop.
pub struct Forked {
    id: libc::pid_t,
    /// Whether it has been waited for: then its process id may belong to another process.
    is_gone: bool,
}

impl Forked {
    /// Forks a child that runs `body` and ends without running exit handlers: with the code that `body` returns, or
    /// with 99 if it panics. What `body` uses of other threads of this process must survive a fork.
    ///
    /// # Panics
    /// If there is no child.
    #[track_caller]
    pub fn start(body: impl FnOnce() -> i32) -> Self {
        // SAFETY: the child runs `body`, which allocates; the C library's allocator works in a forked child.
        let id = unsafe { libc::fork() };
        assert!(id >= 0, "fork");
        if id == 0 {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: it ends this process at once.
            unsafe { libc::_exit(code.unwrap_or(99)) }
        }
        Self { id, is_gone: false }
    }

    /// Its process id.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The exit code, once it has ended.
    ///
    /// # Panics
    /// If a signal ended it.
    #[track_caller]
    fn code(&mut self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: `status` is writable, and the child is ours.
        let ended = unsafe { libc::waitpid(self.id, &raw mut status, libc::WNOHANG) };
        self.is_gone = ended == self.id;
        assert!(!self.is_gone || libc::WIFEXITED(status), "a forked child ended with {status:#x}");
        self.is_gone.then(|| libc::WEXITSTATUS(status))
    }

    /// Waits until it has ended with code 0, and calls `beside` repeatedly meanwhile.
    ///
    /// # Panics
    /// If it ends in any other way, or does not end in time.
    #[track_caller]
    pub fn finish(mut self, mut beside: impl FnMut()) {
        let begin = Instant::now();
        loop {
            beside();
            if let Some(code) = self.code() {
                return assert_eq!(code, 0, "how the forked child ended");
            }
            assert!(begin.elapsed() < CHILD_TIMEOUT, "the forked child hangs");
        }
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if !self.is_gone {
            // SAFETY: a child of ours that has not been waited for, so the process id is still its own.
            unsafe { libc::kill(self.id, libc::SIGKILL) };
            // SAFETY: no status is asked for.
            unsafe { libc::waitpid(self.id, std::ptr::null_mut(), 0) };
        }
    }
}

/// Runs `body` in a child, and waits for its end.
///
/// # Panics
/// If `body` panics, or does not end within a time.
#[track_caller]
pub fn in_a_child(body: impl FnOnce()) {
    let child = Forked::start(|| {
        body();
        0
    });
    child.finish(|| std::thread::sleep(PAUSE));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_what_its_parent_has_and_changes_nothing_of_it() {
        let mut value = 1;
        in_a_child(|| {
            assert_eq!(value, 1);
            value = 2;
        });
        assert_eq!(value, 1);
    }

    #[test]
    #[should_panic(expected = "how the forked child ended")]
    fn a_panic_of_a_child_is_one_of_its_parent() {
        in_a_child(|| panic!("on purpose"));
    }

    #[test]
    fn a_child_that_hangs_is_killed() {
        let child = Forked::start(|| {
            std::thread::sleep(Duration::from_secs(60));
            0
        });
        let id = child.id();
        drop(child);
        // SAFETY: asks whether the process exists, and sends nothing.
        assert_eq!(unsafe { libc::kill(id, 0) }, -1, "it is gone");
    }
}
