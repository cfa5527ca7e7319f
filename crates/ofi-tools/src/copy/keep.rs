//! The mode and time of a copy.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{Mode, Timespec, Timestamps, UTIME_OMIT, fchmod, futimens};
use rustix::process::umask;

use super::wire::Kept;

/// The properties that a copy of a file or directory keeps.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// Keep permission bits and the time of modification. Otherwise the copy gets the permission bits less `umask`, as
    /// with `cp`.
    pub all: bool,
    /// The umask of this process.
    pub umask: u32,
}

impl Keep {
    /// Reads this process's umask, which changes it for a moment. Must be called before threads are started.
    pub fn here(all: bool) -> Self {
        let now = umask(Mode::RWXG | Mode::RWXO);
        umask(now);
        Self { all, umask: now.bits() }
    }

    /// The permission bits of a copy. A server cannot make a program run as another user.
    pub fn mode(self, kept: &Kept) -> Mode {
        let bits = kept.mode & 0o777;
        Mode::from_raw_mode(if self.all { bits } else { bits & !self.umask })
    }

    /// Sets a copy's mode and, if it is kept, its time.
    ///
    /// # Errors
    /// The system's error.
    pub fn put_on(self, copy: impl AsFd, kept: &Kept) -> io::Result<()> {
        fchmod(&copy, self.mode(kept))?;
        if self.all {
            let nanos = kept.nanos.min(999_999_999);
            let last_modification = Timespec { tv_sec: kept.modified, tv_nsec: nanos.into() };
            let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            futimens(&copy, &Timestamps { last_access, last_modification })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_holds_unless_all_is_kept_and_a_server_makes_no_program_privileged() {
        let mode = |all, mode| Keep { all, umask: 0o027 }.mode(&Kept { mode, ..Kept::default() }).bits();
        assert_eq!((mode(false, 0o777), mode(false, 0o644), mode(true, 0o777)), (0o750, 0o640, 0o777));
        assert_eq!((mode(true, 0o6755), mode(false, u32::MAX)), (0o755, 0o750));
    }
}
