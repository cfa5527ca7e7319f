//! How a process of this host learns, at once and without the application's help, that an endpoint can be met over shared
//! memory, or a passive one be asked there: an abstract UNIX socket named after its address in shared memory.
//!
//! Connecting to it answers three things. It is there: so the endpoint lives in the same network namespace, which abstract
//! sockets belong to, and which says whose address it is. It listens: so its owner met no obstacle, and wants to be met.
//! And the kernel tells whose process listens (`SO_PEERCRED`): somebody else's is not to be believed. Nothing is sent.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use ofi_api::{Address, Errno, Error, Result};
use ofi_core::sys::os_error;

use crate::liveness::{self, Tended};

/// How the names begin.
const PREFIX: &str = "ofi-udp/near/";
/// How addresses in shared memory begin, in whose place that is.
pub const SCHEME: &str = "fi_shm://udp/";
/// The user that the kernel names where the true one has no number in this user namespace.
const NOBODY: libc::uid_t = 65_534;

/// An endpoint's door, open until it is dropped.
pub struct Door {
    _tended: Tended,
}

/// The abstract name of the door of the endpoint at `near`.
fn name(near: &Address) -> Result<(libc::sockaddr_un, libc::socklen_t)> {
    let own = near.text().and_then(|text| text.strip_prefix(SCHEME));
    let text = format!("{PREFIX}{}", own.ok_or_else(|| Error::with(Errno::EINVAL, near.to_string()))?);
    // SAFETY: all zero is a valid `sockaddr_un`.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let Some(path) = name.sun_path.get_mut(1..=text.len()) else {
        return Err(Error::with(Errno::EINVAL, text));
    };
    path.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + text.len();
    Ok((name, len as libc::socklen_t))
}

fn socket() -> Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(os_error("socket"));
    }
    // SAFETY: the call just made this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Door {
    /// Opens the door of the endpoint at `near`.
    ///
    /// # Errors
    /// `FI_EADDRINUSE` if somebody has the name; `FI_EMFILE`.
    pub fn open(near: &Address) -> Result<Self> {
        let (name, len) = name(near)?;
        let socket = socket()?;
        // SAFETY: `name` is an address of `len` bytes.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len) } < 0 {
            return Err(os_error("bind"));
        }
        // SAFETY: takes no pointers.
        if unsafe { libc::listen(socket.as_raw_fd(), libc::SOMAXCONN) } < 0 {
            return Err(os_error("listen"));
        }
        Ok(Self { _tended: liveness::tend(socket)? })
    }
}

/// Who listens at a door: `None` if nobody does, or too many are knocking.
fn listener(near: &Address) -> Option<libc::ucred> {
    let (name, len) = name(near).ok()?;
    let socket = socket().ok()?;
    // SAFETY: `name` is an address of `len` bytes. The socket does not block.
    if unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), len) } < 0 {
        return None;
    }
    let mut who = libc::ucred { pid: 0, uid: NOBODY, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let place = (&raw mut who).cast();
    // SAFETY: `place` has room for `size` bytes, which are a `ucred`.
    let rc = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut size)
    };
    (rc == 0).then_some(who)
}

/// Whether the process has ended: its socket may have been inherited by a child, which does not answer for it. A process of
/// another process namespace has no number here, and is believed.
fn has_ended(pid: libc::pid_t) -> bool {
    if pid <= 0 {
        return false;
    }
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    }
    // SAFETY: the call just made this descriptor, so nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) };
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd; does not wait.
    unsafe { libc::poll(&mut poll, 1, 0) > 0 }
}

/// Whether the endpoint at `near` is one of this user's on this host, and to be met over shared memory.
pub fn is_open(near: &Address) -> bool {
    let Some(who) = listener(near) else { return false };
    // SAFETY: takes no pointers.
    let own = unsafe { libc::geteuid() };
    who.uid == own && own != NOBODY && !has_ended(who.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address::from_text(&format!("{SCHEME}127.0.0.1:{port}"))
    }

    #[test]
    fn a_door_is_open_while_it_is_kept() {
        assert!(!is_open(&address(1)));
        let door = Door::open(&address(1)).unwrap();
        assert!(is_open(&address(1)) && !is_open(&address(2)));
        assert_eq!(Door::open(&address(1)).err().unwrap().errno(), Errno::EADDRINUSE);
        drop(door);
        assert!(!is_open(&address(1)));
    }

    #[test]
    fn only_addresses_of_this_transport_have_doors() {
        for text in ["fi_shm://127.0.0.1:1", "127.0.0.1:1"] {
            assert_eq!(Door::open(&Address::from_text(text)).err().unwrap().errno(), Errno::EINVAL);
        }
    }

    #[test]
    fn knocking_costs_nothing_that_runs_out() {
        let _door = Door::open(&address(3)).unwrap();
        for _ in 0..20_000 {
            while !is_open(&address(3)) {
                std::thread::yield_now(); // those who tend it are behind
            }
        }
    }

    #[test]
    fn an_ended_process_is_told_from_a_living_one() {
        assert!(!has_ended(std::process::id() as libc::pid_t));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as libc::pid_t;
        while !has_ended(pid) {
            std::thread::yield_now(); // until it is a zombie, which has ended
        }
        child.wait().unwrap();
        assert!(has_ended(pid));
    }
}
