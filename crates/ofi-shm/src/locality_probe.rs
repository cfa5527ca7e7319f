//! The locality probe: a listening abstract UNIX socket, named after an endpoint's address in shared memory. It tells
//! processes on this host that an endpoint of another transport is reachable over shared memory, or that a passive
//! endpoint accepts requests there. The answer is immediate and does not involve the peer's application.
//!
//! A connection attempt answers three questions. If the socket exists, the endpoint lives in the same network
//! namespace, to which abstract sockets belong and in which the address is unique. If it listens, its owner accepts
//! peers over shared memory. The kernel identifies the owner (`SO_PEERCRED`): a socket of another user is ignored.
//! Nothing is sent.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use ofi_api::{Address, Errno, Error, Result};
use ofi_core::sys::effective_user;
use ofi_core::sys::unix::{self, Credentials};
use rustix::net::{Shutdown, SocketType, shutdown};

use crate::helper::Helper;
use crate::name::SCHEME;
use crate::sys;

pub use crate::name::is_local;

/// Prefix of the names; the address follows without its scheme.
const PREFIX: &str = "ofi-near/";
/// The user id that the kernel reports for users without one in this user namespace.
const NOBODY: u32 = 65_534;

/// An endpoint's listening socket for the locality probe, open until it is dropped.
pub struct ProbeListener {
    helper: Arc<Helper>,
    socket: Arc<OwnedFd>,
}

/// The abstract name of the socket of the endpoint at `near`.
fn name(near: &Address) -> Result<String> {
    let own = near.text().and_then(|text| text.strip_prefix(SCHEME));
    let own = own.ok_or_else(|| {
        Error::wanted(
            Errno::EINVAL,
            "the address of an endpoint that is reachable over shared memory",
            format!("{SCHEME}PROVIDER/NAME"),
            near.to_string(),
            "use an address of provider shm",
        )
    })?;
    Ok(format!("{PREFIX}{own}"))
}

impl ProbeListener {
    /// Opens the socket of the endpoint at `near`.
    ///
    /// # Errors
    /// `FI_EADDRINUSE` if the name is taken; `FI_EMFILE`.
    pub fn open(near: &Address) -> Result<Self> {
        let (name, socket) = (name(near)?, unix::socket(SocketType::STREAM)?);
        if !unix::bind(&socket, name.as_bytes())? {
            return Err(Error::with(Errno::EADDRINUSE, format!("another endpoint already uses {near}")));
        }
        unix::listen(&socket)?;
        let (helper, socket) = (Helper::get()?, Arc::new(socket));
        helper.add_probe(&socket);
        Ok(Self { helper, socket })
    }
}

impl Drop for ProbeListener {
    fn drop(&mut self) {
        self.helper.remove_probe(self.socket.as_raw_fd());
        // This closes it immediately, even if the helper still holds a reference.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// The process that listens at the socket. `None` if none does, or if its backlog is full.
fn listener(near: &Address) -> Option<Credentials> {
    let (name, socket) = (name(near).ok()?, unix::socket(SocketType::STREAM).ok()?);
    unix::connect(&socket, name.as_bytes()).ok().filter(|there| *there)?;
    unix::peer(&socket)
}

/// Whether the endpoint at `near` belongs to this user on this host and is reachable over shared memory.
///
/// A child may have inherited the socket without serving it, so the process itself must be alive. A process of another
/// pid namespace has no pid here and is trusted.
pub fn is_open(near: &Address) -> bool {
    let Some(who) = listener(near) else { return false };
    who.uid == effective_user() && who.uid != NOBODY && !sys::has_ended(who.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address::from_text(&format!("{SCHEME}test/127.0.0.1:{port}"))
    }

    #[test]
    fn a_probe_listens_while_it_is_kept() {
        assert!(!is_open(&address(1)));
        let probe = ProbeListener::open(&address(1)).unwrap();
        assert!(is_open(&address(1)) && !is_open(&address(2)));
        assert_eq!(ProbeListener::open(&address(1)).err().unwrap().errno(), Errno::EADDRINUSE);
        drop(probe);
        assert!(!is_open(&address(1)));
    }

    #[test]
    fn only_addresses_in_shared_memory_have_probes() {
        let error = ProbeListener::open(&Address::from_text("127.0.0.1:1")).err().unwrap();
        assert_eq!(error.errno(), Errno::EINVAL);
        assert!(!is_open(&Address::from_text("127.0.0.1:1")));
    }

    #[test]
    fn knocking_costs_nothing_that_runs_out() {
        let _probe = ProbeListener::open(&address(3)).unwrap();
        for _ in 0..20_000 {
            while !is_open(&address(3)) {
                std::thread::yield_now(); // its owner is behind
            }
        }
    }
}
