//! Wait sets: one descriptor over those of all members.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi_api::{Errno, Error, MutexCond, Result, WaitAttr, WaitObj, WaitSet};

use super::mutex_cond::Waker;
use super::{Waitable, no_wait_object};
use crate::fork::Born;
use crate::sys;

/// The core's wait set. Fields drop in order: the waker watches the set.
pub struct Waits {
    waker: Option<Waker>,
    set: sys::WaitSet,
    wait_obj: WaitObj,
    born: Born,
    members: Mutex<Vec<(RawFd, Weak<dyn Waitable>)>>,
}

impl Waits {
    /// Opens an empty set.
    ///
    /// # Errors
    /// `FI_EINVAL` for `FI_WAIT_NONE` and `FI_WAIT_SET`; `FI_EMFILE` and the like.
    pub fn open(attr: &WaitAttr) -> Result<Arc<Self>> {
        if matches!(attr.wait_obj, WaitObj::None | WaitObj::Set) {
            return Err(Error::wanted(
                Errno::EINVAL,
                "fi_wait_attr.wait_obj",
                "FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_POLLFD, FI_WAIT_MUTEX_COND or FI_WAIT_YIELD",
                attr.wait_obj.to_string(),
                "open the set with one of those",
            ));
        }
        let set = sys::WaitSet::new()?;
        let waker = (attr.wait_obj == WaitObj::MutexCond).then(|| Waker::start(set.fd())).transpose()?;
        Ok(Arc::new(Self {
            waker,
            set,
            wait_obj: attr.wait_obj,
            born: Born::here(),
            members: Mutex::default(),
        }))
    }

    /// The core's set behind an application's handle.
    ///
    /// # Errors
    /// `FI_EINVAL` for none, or one of another library's making.
    pub fn of(set: Option<&Arc<dyn WaitSet>>) -> Result<Arc<Self>> {
        let any = set.map(|set| Arc::clone(set) as Arc<dyn std::any::Any + Send + Sync>);
        any.and_then(|any| any.downcast::<Self>().ok()).ok_or_else(|| {
            Error::wanted(
                Errno::EINVAL,
                "wait_set",
                "a set that was opened with fi_wait_open of this library, as FI_WAIT_SET needs one",
                "none, or one of another implementation",
                "give the set, or another wait_obj",
            )
        })
    }

    fn members(&self) -> MutexGuard<'_, Vec<(RawFd, Weak<dyn Waitable>)>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a member by its descriptor.
    ///
    /// # Errors
    /// Errors of adding the descriptor.
    pub fn add(&self, fd: RawFd, member: Weak<dyn Waitable>) -> Result<()> {
        self.born.check()?;
        self.set.add(fd)?;
        self.members().push((fd, member));
        Ok(())
    }

    /// Removes the member with this descriptor.
    pub fn remove(&self, fd: RawFd) {
        if !self.born.is_here() {
            return; // the set belongs to the parent too
        }
        self.set.remove(fd);
        self.members().retain(|(known, _)| *known != fd);
    }

    /// The members, held so that none is dropped while it is checked. Taken out of the lock, because the caller may
    /// become the last holder of a member, and a member removes itself when it is dropped.
    fn present(&self) -> Vec<Arc<dyn Waitable>> {
        self.members().iter().filter_map(|(_, member)| member.upgrade()).collect()
    }
}

impl WaitSet for Waits {
    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        self.born.check()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let members = self.present();
            if members.iter().any(|member| member.has_something()) {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::new(Errno::ETIMEDOUT));
            }
            if self.wait_obj == WaitObj::Yield {
                std::thread::yield_now();
            } else if members.iter().all(|member| member.prepare().is_ok()) {
                drop(members);
                sys::wait_readable(&[self.set.fd()], deadline);
            }
        }
    }

    fn trywait(&self) -> Result<()> {
        self.born.check()?;
        if self.wait_obj == WaitObj::Yield {
            return Err(no_wait_object("fi_wait_attr.wait_obj"));
        }
        self.waker.iter().for_each(Waker::prepare);
        self.present().iter().try_for_each(|member| member.prepare())
    }

    fn wait_fd(&self) -> Option<RawFd> {
        matches!(self.wait_obj, WaitObj::Fd | WaitObj::Pollfd).then(|| self.set.fd())
    }

    fn mutex_cond(&self) -> Option<MutexCond> {
        self.waker.as_ref().map(Waker::pair)
    }
}
