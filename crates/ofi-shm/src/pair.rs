//! The four memories of a pair of endpoints, two of each end, as one end uses them. The peer maps the pair memory
//! read-only. It maps the ring of commands writable, which makes the owner's copies of 3 KiB and more into it up to
//! twice as fast (`docs/design-choices.md`). The peer gains nothing by writing there, because the owner never reads
//! that ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{Errno, Error, Result};
use ofi_ring::memory::Lines;

use crate::cma::Remote;
use crate::layout::{LINE, doorbell, endpoint, pair};
use crate::sys::{self, Mapping, Writers};

/// Descriptors that this process holds for peers: its own pair memories that a peer has not received yet, and peers'
/// eventfds. Both are bounded, so that thousands of peers fit under the usual limit.
static UNDELIVERED: AtomicUsize = AtomicUsize::new(0);
static EVENTS: AtomicUsize = AtomicUsize::new(0);

/// The maximum number of descriptors of each kind: a quarter of the process's limit.
fn descriptor_budget() -> usize {
    (sys::descriptor_limit() / 4).clamp(16, 4096)
}

/// Descriptors of an undelivered pair: the pair memory and the ring of commands.
const EACH: usize = 2;

/// Whether another pair may be created before others have been delivered.
pub fn may_introduce() -> bool {
    UNDELIVERED.load(Ordering::Relaxed) + EACH <= descriptor_budget()
}

/// A peer's eventfd, counted.
struct EventFd(OwnedFd);

impl EventFd {
    /// Keeps `fd` unless there are too many; without it the peer is woken by a datagram.
    fn keep(fd: OwnedFd) -> Option<Self> {
        if EVENTS.fetch_add(1, Ordering::Relaxed) >= descriptor_budget() {
            EVENTS.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Self(fd))
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        EVENTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The descriptors that a peer receives.
pub struct Descriptors {
    /// [`OwnPair::memory`].
    pub memory: OwnedFd,
    /// The ring of commands.
    pub commands: OwnedFd,
}

/// This end's memories for one peer.
pub struct OwnPair {
    /// Writable here, read-only at the peer.
    pub memory: Mapping,
    /// The ring of commands. Writable at both ends, never read here.
    commands: Mapping,
    /// The peer's hint byte in this endpoint's doorbell memory.
    pub hint: u32,
    /// Dropped once the peer has received them, so that idle peers cost no descriptor.
    fds: Mutex<Option<Arc<Descriptors>>>,
}

impl OwnPair {
    /// Creates both memories. `attention`: the peer must always ring the doorbell.
    ///
    /// # Errors
    /// `FI_ENOMEM`, `FI_EMFILE`.
    pub fn new(command_lines: usize, hint: u32, attention: bool) -> Result<Self> {
        let make = |name, size, writers| {
            let fd = sys::memfd(name, size)?;
            let memory = Mapping::new(fd.as_fd(), size, true)?;
            sys::seal(&fd, writers)?;
            Ok::<_, Error>((fd, memory))
        };
        let (fd, memory) = make(c"ofi-shm pair", pair::SIZE, Writers::Present)?;
        let (ring, commands) = make(c"ofi-shm commands", command_lines * LINE, Writers::Any)?;
        UNDELIVERED.fetch_add(EACH, Ordering::Relaxed);
        let fds = Mutex::new(Some(Arc::new(Descriptors { memory: fd, commands: ring })));
        let own = Self { memory, commands, hint, fds };
        own.word32(pair::ATTENTION).store(attention.into(), Ordering::Relaxed);
        Ok(own)
    }

    /// Whether the peer may read a payload of this end.
    pub fn lends(&self) -> bool {
        (0..pair::LENT_SLOTS).any(|slot| self.word64(pair::LENT + 8 * slot).load(Ordering::Relaxed) != 0)
    }

    /// The descriptors, while they are kept.
    pub fn fds(&self) -> Option<Arc<Descriptors>> {
        self.fds.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The peer has them.
    pub fn delivered(&self) {
        if self.fds.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            UNDELIVERED.fetch_sub(EACH, Ordering::Relaxed);
        }
    }

    /// One of this end's words.
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `word` checks place and alignment; the memory is mapped while `self` lives and accessed atomically.
        unsafe { &*self.memory.word(offset) }
    }

    /// One of this end's words.
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { &*self.memory.word(offset) }
    }

    /// Lines of the ring of commands.
    pub fn command_lines(&self) -> usize {
        self.commands.len() / LINE
    }

    /// The ring of commands to the peer.
    ///
    /// # Safety
    /// As [`lines`].
    pub unsafe fn commands(&self) -> Result<Lines> {
        // SAFETY: the caller's promise.
        unsafe { lines(&self.commands, 0, self.command_lines()) }
    }

    /// The ring of replies to the peer.
    ///
    /// # Safety
    /// As [`lines`].
    pub unsafe fn replies(&self) -> Result<Lines> {
        // SAFETY: the caller's promise.
        unsafe { lines(&self.memory, pair::REPLIES, pair::REPLY_LINES) }
    }
}

impl Drop for OwnPair {
    fn drop(&mut self) {
        self.delivered();
    }
}

/// Names the lines of a ring in a mapping.
///
/// # Errors
/// `FI_EINVAL` for a number of lines that a ring cannot have.
///
/// # Safety
/// `memory` outlives every producer and consumer that is made from the lines. This process makes at most one of each,
/// and no reference to the lines.
pub unsafe fn lines(memory: &Mapping, offset: usize, count: usize) -> Result<Lines> {
    if count
        .checked_mul(LINE)
        .and_then(|bytes| bytes.checked_add(offset))
        .is_none_or(|end| end > memory.len())
    {
        return Err(Error::with(Errno::EINVAL, "a ring that is larger than its memory"));
    }
    // SAFETY: `offset` is at most the length, and a mapping does not wrap.
    let base = unsafe { memory.base().add(offset) };
    // SAFETY: the lines lie inside the mapping; the rest is the caller's promise.
    unsafe { Lines::new(base, count) }.map_err(|error| Error::with(Errno::EINVAL, error.to_string()))
}

/// The mapped memories and identity of a peer.
pub struct PeerParts {
    /// The incarnation of the peer.
    pub incarnation: u64,
    /// Its memory for this endpoint.
    pub pair: Arc<Mapping>,
    /// Its ring of commands, mapped writable and only read.
    pub commands: Mapping,
    /// Its endpoint memory.
    pub endpoint: Mapping,
    /// Its doorbell memory.
    pub doorbell: Mapping,
    /// This endpoint's hint byte in it.
    pub hint: u32,
    /// Its process, for direct copies.
    pub process: Remote,
    /// Its eventfd, if this process can afford to keep it.
    event: Option<EventFd>,
}

impl PeerParts {
    /// Maps the memories in an introduction of process `pid` (0 if it is not visible from here).
    ///
    /// # Errors
    /// `FI_EINVAL` for memory of the wrong kind or size.
    pub fn map(who: &crate::control::Introduction, fds: &mut Vec<OwnedFd>, pid: i32) -> Result<Self> {
        let wanted = if who.wakes { 5 } else { 4 };
        if fds.len() != wanted || !who.command_lines.is_power_of_two() || who.command_lines > 1 << 20 {
            return Err(Error::with(Errno::EINVAL, "an introduction with the wrong descriptors or sizes"));
        }
        if who.hint as usize >= doorbell::HINTS {
            return Err(Error::with(
                Errno::EINVAL,
                "an introduction with a hint outside the doorbell memory",
            ));
        }
        if let Some(event) = fds.get(4) {
            sys::check_eventfd(event.as_fd())?;
        }
        let map = |fd: BorrowedFd<'_>, len, writable| sys::map_foreign(fd, len, writable);
        Ok(Self {
            incarnation: who.incarnation,
            pair: Arc::new(map(fds[0].as_fd(), pair::SIZE, false)?),
            commands: map(fds[3].as_fd(), who.command_lines as usize * LINE, true)?,
            endpoint: map(fds[1].as_fd(), endpoint::SIZE, false)?,
            doorbell: map(fds[2].as_fd(), doorbell::SIZE, true)?,
            hint: who.hint,
            process: Remote { pid, token: who.token },
            event: if who.wakes { fds.pop().and_then(EventFd::keep) } else { None },
        })
    }

    /// Wakes the peer, if its eventfd was kept.
    pub fn signal(&self) -> bool {
        self.event.as_ref().map(|event| ofi_core::sys::signal_eventfd(&event.0)).is_some()
    }
}
