//! System calls of this transport: its control socket, and liveness checks of processes. Shared memory and descriptors
//! are in `ofi-core`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use ofi_api::{Errno, Error, Result};
use ofi_core::sys::unix;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{self, Pid, PidfdFlags, Resource};

pub use ofi_core::sys::memory::{
    HUGE_PAGE, Mapping, Writers, allocate, empty_memfd, huge_memfd, map_foreign, memfd, seal, seal_size,
};
pub use ofi_core::sys::unix::{Datagram, is_bound};
pub use ofi_core::sys::{check_eventfd, effective_user, os_error};

/// A socket for control datagrams, bound to an abstract name.
#[derive(Debug)]
pub struct ControlSocket(OwnedFd);

impl ControlSocket {
    /// A socket bound to `name`.
    ///
    /// # Errors
    /// `FI_EADDRINUSE` if the name is taken.
    pub fn bind(name: &[u8]) -> Result<Self> {
        let socket = unix::socket(rustix::net::SocketType::DGRAM)?;
        unix::pass_credentials(&socket)?;
        if unix::bind(&socket, name)? {
            return Ok(Self(socket));
        }
        Err(Error::wanted(
            Errno::EADDRINUSE,
            "the address of an endpoint",
            "one that is not in use on this host",
            String::from_utf8_lossy(name),
            "choose another name or port, or port 0",
        ))
    }

    /// For polling.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Sends a datagram with descriptors to the socket called `to`. Never blocks.
    ///
    /// # Errors
    /// `FI_ECONNREFUSED` if there is no such socket; `FI_EAGAIN` if it is full.
    pub fn send(&self, to: &[u8], bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        unix::send(&self.0, Some(to), bytes, fds)
    }

    /// Takes the next datagram, if there is one.
    pub fn receive(&self, buffer: &mut [u8]) -> Option<Datagram> {
        unix::receive(&self.0, buffer)
    }
}

/// The process with this pid, if it is valid: 0 stands for processes of other namespaces.
fn process_of(pid: i32) -> Option<Pid> {
    if pid > 0 { Pid::from_raw(pid) } else { None }
}

/// A descriptor that becomes readable when process `pid` ends. `None` if it has ended or cannot be watched.
pub fn pidfd(pid: i32) -> Option<OwnedFd> {
    process::pidfd_open(process_of(pid)?, PidfdFlags::empty()).ok()
}

/// Whether the process of a [`pidfd`] has ended, even if another process has its pid now.
pub fn is_over(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)], Some(&now))
        .is_ok_and(|ready| ready > 0)
}

/// Whether process `pid` is known to have ended (as a zombie has).
pub fn has_ended(pid: i32) -> bool {
    match pidfd(pid) {
        Some(fd) => is_over(&fd),
        None => {
            process_of(pid).is_some_and(|pid| process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
        }
    }
}

/// The maximum number of open descriptors of this process.
pub fn descriptor_limit() -> usize {
    let limit = process::getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Random bits from the kernel.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // Falls back to the address and time only where the system has no random numbers at all.
    if getrandom::fill(&mut bytes).is_err() {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        return clock.as_nanos() as u64 ^ (&raw const bytes) as u64;
    }
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_process_is_told_from_a_living_one() {
        assert!(
            !has_ended(std::process::id() as i32) && !has_ended(0),
            "nobody knows of another namespace's"
        );
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        while !has_ended(pid) {
            std::thread::yield_now(); // until it is a zombie
        }
        child.wait().unwrap();
        assert!(has_ended(pid));
    }
}
