//! Confirms that this process lives while its application is busy. One thread, asleep in the kernel, answers liveness
//! questions about endpoints (`docs/protocol.md`, "Liveness"). A question also makes the endpoint send its delayed
//! acknowledgements, because the peer may be waiting for one that no later poll would send. If the application is
//! inside a call, the thread does not wait for it but retries later (`late.rs`).
//!
//! The thread also flushes injected messages that no poll has sent for a while (`waiting.rs`). Those that are still
//! queued when the process exits are sent then (`exit.rs`).

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi_api::{Errno, Error, Result};
use ofi_core::sys::{WaitSet, os_error, wait_readable};
use ofi_core::transport::Attendant;

use crate::socket::local;

mod exit;
mod late;
mod questions;
mod waiting;

use late::Late;
use waiting::{List, Waiting};

/// How long the endpoint may leave its socket unread before the thread checks it.
const UNREAD_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Size in bytes of a buffer that any UDP datagram fits into.
const MAX_DATAGRAM_LEN: usize = 1 << 16;

/// State shared by the endpoints and the thread.
#[derive(Default)]
struct Known {
    /// The open endpoints, by epoch.
    live: HashMap<u64, Option<Weak<dyn Attendant>>>,
    /// A socket for each address of the endpoints, so that an answer is sent from the address that the question was
    /// sent to.
    sockets: HashMap<SocketAddr, (Arc<UdpSocket>, u16)>,
    /// Sockets of endpoints, and when to check each. A socket without a time is in the poll set.
    watched: HashMap<RawFd, Option<Instant>>,
}

impl Known {
    /// The endpoint of an epoch, if it is still open.
    fn attendant(&self, epoch: u64) -> Option<Arc<dyn Attendant>> {
        self.live.get(&epoch)?.as_ref()?.upgrade()
    }
}

struct Helper {
    known: Mutex<Known>,
    /// Endpoints with queued messages.
    list: List,
    set: WaitSet,
    process: u32,
}

/// The helper thread of this process. A forked child has none until it opens an endpoint.
static HELPER: Mutex<Option<Arc<Helper>>> = Mutex::new(None);

/// Registers an endpoint for liveness answers until it is dropped.
pub struct Alive {
    helper: Arc<Helper>,
    epoch: u64,
    /// The port on which its liveness is answered.
    pub port: u16,
    watched: Option<RawFd>,
    waiting: Arc<Waiting>,
}

impl Helper {
    fn get() -> Result<Arc<Self>> {
        let mut helper = HELPER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(helper) = helper.as_ref().filter(|helper| helper.process == std::process::id()) {
            return Ok(Arc::clone(helper));
        }
        let (list, set) = (List::new()?, WaitSet::new()?);
        set.add(list.fd())?;
        let fresh = Arc::new(Self { known: Mutex::default(), list, set, process: std::process::id() });
        let thread = Arc::clone(&fresh);
        std::thread::Builder::new()
            .name("ofi-udp-alive".into())
            .stack_size(128 << 10)
            .spawn(move || thread.run())
            .map_err(|error| Error::with(Errno::EAGAIN, format!("starting the liveness thread: {error}")))?;
        *helper = Some(Arc::clone(&fresh));
        exit::register();
        Ok(fresh)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut buffer = vec![0u8; MAX_DATAGRAM_LEN];
        let (mut due, mut late) = (None, Late::default());
        loop {
            wait_readable(&[self.set.fd()], [due, late.again()].into_iter().flatten().min());
            due = self.watch(&mut buffer);
            let sockets: Vec<Arc<UdpSocket>> =
                self.known().sockets.values().map(|(socket, _)| Arc::clone(socket)).collect();
            for socket in sockets {
                // A few from each socket, so that a flood at one does not delay the others.
                for _ in 0..64 {
                    let Ok((len, from, local)) = local::receive(&socket, &mut buffer) else { break };
                    let answer = ofi_rdm::answer_liveness(&buffer[..len], |epoch| {
                        let is_live = self.known().live.contains_key(&epoch);
                        if is_live {
                            late.add(epoch);
                        }
                        is_live
                    });
                    if let Some(answer) = answer {
                        let _ = local::send(&socket, &answer, from, local);
                    }
                }
            }
            self.list.look(|epoch| late.add(epoch));
            late.attempt(Instant::now(), |epoch| self.let_out(epoch));
        }
    }
}

impl Helper {
    /// Watches the sockets of endpoints. When data arrives at a socket in the set, its endpoint has
    /// [`UNREAD_CHECK_INTERVAL`] to read it. After that, requests for a session in the unread data are answered at each
    /// check until the endpoint reads it. Returns the time of the next check.
    ///
    /// This does not wake an idle process, and wakes a busy one twice a second.
    fn watch(&self, buffer: &mut [u8]) -> Option<Instant> {
        let mut known = self.known();
        let now = Instant::now();
        for fd in self.set.ready() {
            if let Some(due) = known.watched.get_mut(&fd) {
                self.set.remove(fd);
                *due = Some(now + UNREAD_CHECK_INTERVAL);
            }
        }
        for (&fd, due) in &mut known.watched {
            if due.is_none_or(|due| due > now) {
                continue;
            }
            // Under the lock, so that the descriptor is still the endpoint's.
            let unread = questions::answer(fd, buffer);
            *due = if unread || self.set.add(fd).is_err() { Some(now + UNREAD_CHECK_INTERVAL) } else { None };
        }
        known.watched.values().flatten().min().copied()
    }

    /// Makes an endpoint send its delayed acknowledgements and queued messages. Returns `false` if another thread is
    /// inside it.
    fn let_out(&self, epoch: u64) -> bool {
        let attendant = self.known().attendant(epoch);
        attendant.is_none_or(|endpoint| endpoint.let_out())
    }
}

impl Alive {
    /// Opens the liveness port of an address, which all endpoints at that address share.
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
        Ok(Self { helper, epoch: 0, port, watched: None, waiting: Arc::default() })
    }

    /// Starts to answer questions about this endpoint.
    pub fn set_epoch(&mut self, epoch: u64) {
        let mut known = self.helper.known();
        let attendant = known.live.remove(&self.epoch).flatten();
        known.live.insert(epoch, attendant);
        self.epoch = epoch;
    }

    /// Starts to answer requests for a session while the endpoint does not read its socket. This must be ended before
    /// the socket is closed.
    ///
    /// # Errors
    /// Errors of epoll_ctl(2).
    pub fn watch(&mut self, socket: &UdpSocket) -> Result<()> {
        let fd = socket.as_raw_fd();
        self.helper.known().watched.insert(fd, None);
        self.watched = Some(fd);
        self.helper.set.add(fd)
    }

    /// Stops watching the socket.
    pub fn unwatch(&mut self) {
        if let Some(fd) = self.watched.take() {
            let mut known = self.helper.known();
            known.watched.remove(&fd);
            self.helper.set.remove(fd);
        }
    }

    /// Called when the endpoint has queued messages. If no poll sends them soon, the thread does.
    #[inline]
    pub fn wait(&self) {
        if self.waiting.begin() {
            self.helper.list.add(&self.waiting, self.epoch);
        }
    }

    /// Called when the endpoint has no queued messages any more.
    #[inline]
    pub fn sent(&self) {
        self.waiting.end();
    }

    /// Called on a question about the endpoint, to send its delayed acknowledgements.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use ofi_rdm::wire::header::flag;
    use ofi_rdm::wire::{Header, Kind, header};

    use super::*;

    /// An endpoint that counts how often it is to be let out, and whose lock another thread may have.
    #[derive(Default)]
    struct Endpoint {
        busy: AtomicBool,
        calls: AtomicUsize,
    }

    impl Attendant for Endpoint {
        fn let_out(&self) -> bool {
            self.calls.fetch_add(1, Ordering::SeqCst);
            !self.busy.load(Ordering::SeqCst)
        }
    }

    /// Waits until `holds` for at most ten seconds.
    fn wait_until(what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn an_application_that_is_stopped_inside_a_call_delays_no_other_endpoint_of_its_process() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let (stopped, other) = (Arc::new(Endpoint::default()), Arc::new(Endpoint::default()));
        stopped.busy.store(true, Ordering::SeqCst);
        let alive: Vec<_> = [(&stopped, 0xdead_0001), (&other, 0xdead_0002)]
            .into_iter()
            .map(|(endpoint, epoch)| {
                let mut alive = Alive::new(address).unwrap();
                alive.set_epoch(epoch);
                let endpoint: Arc<dyn Attendant> = endpoint.clone();
                alive.set_attendant(Arc::downgrade(&endpoint));
                alive
            })
            .collect();
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let ask = |of: &Alive| {
            let mut question = [0u8; header::LEN];
            Header { flags: flag::CHECKED, ..Header::new(Kind::Ask, of.epoch, 7) }.write(&mut question);
            socket.send_to(&question, SocketAddr::from(([127, 0, 0, 1], of.port))).unwrap();
            let mut answer = [0u8; 2 * header::LEN];
            let (len, _) = socket.recv_from(&mut answer).unwrap();
            let (head, _) = Header::parse(&answer[..len]).unwrap();
            assert_eq!(
                (head.kind, head.session, head.flags & flag::ALIVE),
                (Kind::Answer, of.epoch, flag::ALIVE)
            );
        };
        ask(&alive[0]);
        wait_until("it is tried again", || stopped.calls.load(Ordering::SeqCst) > 2);
        ask(&alive[1]);
        wait_until("the other is let out", || other.calls.load(Ordering::SeqCst) > 0);
        stopped.busy.store(false, Ordering::SeqCst);
        let before = stopped.calls.load(Ordering::SeqCst);
        wait_until("it is let out", || stopped.calls.load(Ordering::SeqCst) > before);
    }
}
