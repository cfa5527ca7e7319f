//! Says that this process lives, while its application does other things: one thread, asleep in the kernel, that
//! answers questions about endpoints (`docs/protocol.md`, "Liveness"). A question also has the endpoint send its
//! delayed acknowledgements, if any thread may call it: the peer asks because it has waited for something, which may be
//! the acknowledgement of the last message, after which the application does not poll again.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi_api::{Errno, Error, Result};
use ofi_core::sys::{WaitSet, os_error, wait_readable};
use ofi_core::transport::Attendant;

use crate::socket::local;

mod questions;

/// How long an endpoint has to look at what came to its socket before somebody else does.
const MOMENT: Duration = Duration::from_millis(500);
/// Room for any datagram.
const LONGEST: usize = 1 << 16;

/// What endpoints and the thread share.
#[derive(Default)]
struct Known {
    /// Epochs of the endpoints that are open, and their attendants.
    live: HashMap<u64, Option<Weak<dyn Attendant>>>,
    /// A socket for each address that endpoints have, so that answers come from where questions went.
    sockets: HashMap<SocketAddr, (Arc<UdpSocket>, u16)>,
    /// Sockets of endpoints, and when each is to be looked at; it is in the set if it has not to be.
    watched: HashMap<RawFd, Option<Instant>>,
}

struct Helper {
    known: Mutex<Known>,
    set: WaitSet,
    process: u32,
}

/// The helper of this process. After fork, the child has none until it opens an endpoint.
static HELPER: Mutex<Option<Arc<Helper>>> = Mutex::new(None);

/// Keeps an endpoint known as alive.
pub struct Alive {
    helper: Arc<Helper>,
    epoch: u64,
    /// Where it is answered for.
    pub port: u16,
    watched: Option<RawFd>,
}

impl Helper {
    fn get() -> Result<Arc<Self>> {
        let mut helper = HELPER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(helper) = helper.as_ref().filter(|helper| helper.process == std::process::id()) {
            return Ok(Arc::clone(helper));
        }
        let fresh =
            Arc::new(Self { known: Mutex::default(), set: WaitSet::new()?, process: std::process::id() });
        let thread = Arc::clone(&fresh);
        std::thread::Builder::new()
            .name("ofi-udp-alive".into())
            .stack_size(128 << 10)
            .spawn(move || thread.run())
            .map_err(|error| Error::with(Errno::EAGAIN, format!("starting the liveness thread: {error}")))?;
        *helper = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut buffer = vec![0u8; LONGEST];
        let mut due = None;
        loop {
            wait_readable(&[self.set.fd()], due);
            due = self.watch(&mut buffer);
            let sockets: Vec<Arc<UdpSocket>> =
                self.known().sockets.values().map(|(socket, _)| Arc::clone(socket)).collect();
            for socket in sockets {
                let mut asked = Vec::new();
                // A few of each: a flood at one does not keep the others waiting.
                for _ in 0..64 {
                    let Ok((len, from, local)) = local::receive(&socket, &mut buffer) else { break };
                    let answer = ofi_rdm::answer_liveness(&buffer[..len], |epoch| {
                        asked.push(epoch);
                        self.known().live.contains_key(&epoch)
                    });
                    if let Some(answer) = answer {
                        let _ = local::send(&socket, &answer, from, local);
                    }
                }
                asked.sort_unstable();
                asked.dedup();
                asked.into_iter().for_each(|epoch| self.let_out(epoch));
            }
        }
    }
}

impl Helper {
    /// Looks after the sockets of endpoints. Something came to one in the set: a moment later the endpoint may have
    /// looked itself. If not, questions of strangers among it are answered, again and again until it does. Answers when
    /// to look next.
    ///
    /// An idle process is not woken by this, and a busy one twice in a second.
    fn watch(&self, buffer: &mut [u8]) -> Option<Instant> {
        let mut known = self.known();
        let now = Instant::now();
        for fd in self.set.ready() {
            if let Some(due) = known.watched.get_mut(&fd) {
                self.set.remove(fd);
                *due = Some(now + MOMENT);
            }
        }
        for (&fd, due) in &mut known.watched {
            if due.is_none_or(|due| due > now) {
                continue;
            }
            // Under the lock, so that the descriptor is still the endpoint's.
            let unread = questions::answer(fd, buffer);
            *due = if unread || self.set.add(fd).is_err() { Some(now + MOMENT) } else { None };
        }
        known.watched.values().flatten().min().copied()
    }

    /// Has an endpoint let out what it owes.
    fn let_out(&self, epoch: u64) {
        let attendant = self.known().live.get(&epoch).cloned().flatten();
        if let Some(endpoint) = attendant.and_then(|attendant| attendant.upgrade()) {
            endpoint.let_out();
        }
    }
}

impl Alive {
    /// Finds the port on which endpoints are answered for that have an address, whatever their ports.
    ///
    /// # Errors
    /// `FI_EMFILE`, `FI_EAGAIN`.
    pub fn new(mut address: SocketAddr) -> Result<Self> {
        address.set_port(0);
        let helper = Helper::get()?;
        let mut known = helper.known();
        let port = match known.sockets.get(&address) {
            Some(&(_, port)) => port,
            None => {
                let socket = crate::ports::bind(address).map_err(|_| os_error("bind"))?;
                local::prepare(&socket, address);
                socket.set_nonblocking(true).map_err(|_| os_error("fcntl"))?;
                let port = socket.local_addr().map_err(|_| os_error("getsockname"))?.port();
                helper.set.add(socket.as_raw_fd())?;
                known.sockets.insert(address, (Arc::new(socket), port));
                port
            }
        };
        drop(known);
        Ok(Self { helper, epoch: 0, port, watched: None })
    }

    /// Answers for this endpoint from now on.
    pub fn set_epoch(&mut self, epoch: u64) {
        let mut known = self.helper.known();
        let attendant = known.live.remove(&self.epoch).flatten();
        known.live.insert(epoch, attendant);
        self.epoch = epoch;
    }

    /// Has strangers who ask for a session told that the endpoint lives, while it does not look at its socket. To be
    /// ended before that is closed.
    ///
    /// # Errors
    /// What epoll_ctl(2) answers.
    pub fn watch(&mut self, socket: &UdpSocket) -> Result<()> {
        let fd = socket.as_raw_fd();
        self.helper.known().watched.insert(fd, None);
        self.watched = Some(fd);
        self.helper.set.add(fd)
    }

    /// Ends that.
    pub fn unwatch(&mut self) {
        if let Some(fd) = self.watched.take() {
            let mut known = self.helper.known();
            known.watched.remove(&fd);
            self.helper.set.remove(fd);
        }
    }

    /// Who has the endpoint let out what it owes when it is asked after.
    pub fn set_attendant(&mut self, attendant: Weak<dyn Attendant>) {
        self.helper.known().live.insert(self.epoch, Some(attendant));
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.unwatch();
        self.helper.known().live.remove(&self.epoch);
    }
}
