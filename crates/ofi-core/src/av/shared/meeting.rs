//! How processes find a shared vector by its name, and how they serialize changes.
//!
//! The name is an abstract socket. Every process that has the vector open holds the same listening socket and serves it
//! on a thread that sleeps otherwise: a client that connects receives the socket and the memory. So the name exists
//! exactly as long as some process has the vector open, whichever process created it and however others ended. The
//! kernel releases both with the last process.
//!
//! While a process changes the vector, it holds a second socket as a lock. The kernel releases it if the process dies.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ofi_api::{AddrFormat, Errno, Error, Result};
use rustix::net::SocketType;

use super::memory::VectorMemory;
use crate::fork::Born;
use crate::sys::{WaitSet, effective_user, eventfd, os_error, signal_eventfd, unix, wait_readable};

/// The time limit for opening a vector, and for waiting for the lock.
const BOUND: Duration = Duration::from_secs(2);
/// The time within which one process must answer before another is asked.
const ANSWER: Duration = Duration::from_millis(250);
/// The maximum wait for a vector whose name exists: its creator may not listen yet.
const ABSENT: Duration = Duration::from_millis(50);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(1);

/// The handles of a vector, which a process passes on.
struct VectorHandles {
    listener: OwnedFd,
    memory: OwnedFd,
}

/// Keeps the name alive and serves it until it is dropped.
pub struct Meeting {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
    born: Born,
    /// The name of the socket, from which the lock's name is derived.
    name: String,
}

/// The name of the socket: a hash, because the kernel limits names to about 100 bytes. The memory contains the full
/// name, which is compared.
fn socket_name(name: &str) -> String {
    // FNV-1a with 128 bits (draft-eastlake-fnv): the same in every process.
    let hash = name.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    format!("ofi-av/{}/{hash:032x}", effective_user())
}

fn nobody(name: &str) -> Error {
    Error::wanted(
        Errno::ENOENT,
        "a shared address vector opened with FI_READ",
        "one that a process of this host and user has open",
        format!("none called {name:?}"),
        "open it without FI_READ first, in the same domain",
    )
}

fn late(what: &str) -> Error {
    Error::with(
        Errno::ETIMEDOUT,
        format!("{what}: no process that shares the vector answered within {BOUND:?}; they may be stopped"),
    )
}

/// A socket that has the abstract `name`, or `None` if another one has it.
fn claim(name: &str) -> Result<Option<OwnedFd>> {
    let socket = unix::socket(SocketType::SEQPACKET)?;
    Ok(unix::bind(&socket, name.as_bytes())?.then_some(socket))
}

/// A connection to a process that listens under `name`; `None` if none does.
fn connect(name: &str) -> Result<Option<OwnedFd>> {
    let socket = unix::socket(SocketType::SEQPACKET)?;
    Ok(unix::connect(&socket, name.as_bytes())?.then_some(socket))
}

/// The answer of a process that has the vector: the listening socket and the memory.
fn take_both(from: &OwnedFd) -> Option<[OwnedFd; 2]> {
    let datagram = unix::receive(from, &mut [0])?;
    datagram.fds.try_into().ok().filter(|_| datagram.len == 1)
}

/// Opens the vector called `name` (made of provider, domain and vector), or creates it.
///
/// # Errors
/// `FI_ENOENT` for read-only access to a missing vector; `FI_EACCES` if another user has the name; `FI_EINVAL` for a
/// vector of another format; `FI_ETIMEDOUT` if no process that has it open answers.
pub fn open(
    name: &str,
    format: AddrFormat,
    expected: usize,
    read_only: bool,
) -> Result<(VectorMemory, Meeting)> {
    let socket = socket_name(name);
    let start = Instant::now();
    loop {
        if !read_only {
            // Create the memory before taking the name, so that no process waits for a vector that cannot be created.
            let (memory, fd) = VectorMemory::create(name, format, expected)?;
            if let Some(listener) = claim(&socket)? {
                unix::listen(&listener)?;
                let meeting = Meeting::start(VectorHandles { listener, memory: fd }, socket)?;
                return Ok((memory, meeting));
            }
        }
        match connect(&socket) {
            Ok(Some(to)) => {
                if unix::peer(&to).is_none_or(|who| who.uid != effective_user()) {
                    return Err(Error::with(
                        Errno::EACCES,
                        "another user owns an address vector of this name; choose another name",
                    ));
                }
                wait_readable(&[to.as_raw_fd()], Some(Instant::now() + ANSWER));
                if let Some([listener, fd]) = take_both(&to) {
                    let memory = VectorMemory::open(&fd, name, format, !read_only)?;
                    return Ok((memory, Meeting::start(VectorHandles { listener, memory: fd }, socket)?));
                }
            }
            Ok(None) if read_only && start.elapsed() > ABSENT => return Err(nobody(name)),
            Ok(None) => {}
            Err(error) if error.is_again() => {}
            Err(error) => return Err(error),
        }
        if start.elapsed() > BOUND {
            return Err(late("opening a shared address vector"));
        }
        std::thread::sleep(PAUSE);
    }
}

impl Meeting {
    fn start(held: VectorHandles, name: String) -> Result<Self> {
        let (stop, set) = (eventfd()?, WaitSet::new()?);
        set.add(stop.as_raw_fd())?;
        set.add(held.listener.as_raw_fd())?;
        let stopped = Arc::new(stop.try_clone().map_err(|_| os_error("dup"))?);
        let run = move || answer(&held, &set, &stopped);
        let thread = std::thread::Builder::new().name("ofi-av".into()).spawn(run);
        let thread = thread.map_err(|_| os_error("starting the thread of a shared vector"))?;
        Ok(Self { stop, thread: Some(thread), born: Born::here(), name })
    }

    /// Takes the lock for this process, if it is free.
    pub fn try_lock(&self) -> Option<Lock> {
        Some(Lock { _socket: claim(&format!("{}/lock", self.name)).ok()?? })
    }

    /// Waits for the lock, to change the vector.
    ///
    /// # Errors
    /// `FI_ETIMEDOUT` if another process holds it for two seconds, which only a stopped process does.
    pub fn lock(&self) -> Result<Lock> {
        let (name, start) = (format!("{}/lock", self.name), Instant::now());
        let mut pause = Duration::from_micros(20);
        loop {
            if let Some(socket) = claim(&name)? {
                return Ok(Lock { _socket: socket });
            }
            if start.elapsed() > BOUND {
                return Err(late("changing a shared address vector"));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE);
        }
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.born.is_here() {
            std::mem::forget(thread); // the thread does not exist in this process
            return;
        }
        signal_eventfd(&self.stop);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// The lock, until it is dropped.
pub struct Lock {
    _socket: OwnedFd,
}

/// Passes the vector to every process of this user that asks.
fn answer(held: &VectorHandles, set: &WaitSet, stop: &OwnedFd) {
    loop {
        wait_readable(&[set.fd()], None);
        if wait_readable(&[stop.as_raw_fd()], Some(Instant::now())) {
            return;
        }
        // Another process may have been faster.
        while let Some(asking) = unix::accept(held.listener.as_fd()) {
            if unix::peer(&asking).is_some_and(|who| who.uid == effective_user()) {
                // A client that does not receive them will ask again.
                let _ = unix::send(&asking, None, &[1], &[held.listener.as_fd(), held.memory.as_fd()]);
            }
        }
    }
}
