//! The helper thread of the process. It answers greetings and requests of peers while the application is busy, and
//! learns from the kernel when a peer's process ends. Otherwise it sleeps.
//!
//! One thread serves all endpoints; it starts with the first and ends with the last. It never touches a ring: it passes
//! what it learns to the endpoint as a [`HelperEvent`].

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use ofi_api::{Errno, Error, Result};
use ofi_core::sys::unix;
use ofi_ring::crash_point;
use tracing::{debug, warn};

use crate::control::{self, ControlMessage, Terms};
use crate::event::HelperEvent;
use crate::name;
use crate::pair::OwnPair;
use crate::peer_exit::{self, PeerExit, PeerExitKind};
use crate::region::{self, GrantAnswer};
use crate::shared::SharedEndpoint;
use crate::sys::{self, Datagram};

/// How long a greeting to an unused name is repeated, so that two programs may start in any order.
const GREETING_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause between two tries to send a datagram.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// Interval of repeated unanswered greetings: the receiver may have ended, and another process may have its name.
const GREETING_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of checks on processes that have no pidfd.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum number of pidfds for watching processes; other processes are polled.
const MAX_PIDFDS: usize = 200;

/// A datagram that has not been sent yet.
enum HelperOutgoing {
    /// Greets a peer, or answers its greeting.
    Introduce { own: Arc<OwnPair>, welcome: bool, since: Instant },
    /// Anything else.
    Plain(ControlMessage, Option<Arc<OwnedFd>>),
    /// A packet of connection management, in its datagram.
    Packet(Vec<u8>),
}

struct Late {
    endpoint: Weak<SharedEndpoint>,
    to: Vec<u8>,
    what: HelperOutgoing,
}

impl Late {
    fn same_way(&self, other: &Self) -> bool {
        self.to == other.to && self.endpoint.ptr_eq(&other.endpoint)
    }
}

/// A process of peers.
struct Process {
    watch: Option<OwnedFd>,
    peers: Vec<(Weak<SharedEndpoint>, Vec<u8>, u64)>,
}

#[derive(Default)]
struct HelperState {
    endpoints: HashMap<RawFd, Weak<SharedEndpoint>>,
    late: Vec<Late>,
    /// Greetings that were sent and not answered yet.
    unanswered: Vec<(Late, Instant)>,
    processes: HashMap<i32, Process>,
    /// Listening sockets of endpoints ([`crate::locality_probe`]). Their connections are accepted and dropped, so that
    /// the backlog has room for others.
    probes: HashMap<RawFd, Arc<OwnedFd>>,
    /// Ends to report when the next round has read all sockets.
    ends: Vec<PeerExit>,
}

/// The helper thread of one process.
pub struct Helper {
    state: Mutex<HelperState>,
    wake: OwnedFd,
    /// Rounds of the thread.
    rounds: AtomicU64,
}

/// A process and its helper.
type Running = Option<(u32, Weak<Helper>)>;

/// The time within which another thread must start the helper.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// The value that [`RUNNING`] guards. If a fork happens while another thread holds the lock, the child finds it locked
/// for ever, so the wait is limited.
///
/// # Errors
/// `FI_EBUSY`.
fn running() -> Result<MutexGuard<'static, Running>> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        match RUNNING.try_lock() {
            Ok(running) => return Ok(running),
            Err(TryLockError::Poisoned(running)) => return Ok(running.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_micros(50));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Error::wanted(
                    Errno::EBUSY,
                    "the helper thread of provider shm",
                    "a process that can start it",
                    "a child that was forked while its parent started one",
                    "open endpoints before the fork, or call exec after it",
                ));
            }
        }
    }
}

/// The running helper, if an endpoint needs one. A forked child has none of its parent's threads; a different pid shows
/// that.
static RUNNING: Mutex<Running> = Mutex::new(None);

impl Helper {
    /// The process's helper, started if necessary.
    ///
    /// # Errors
    /// Errors of starting a thread.
    pub fn get() -> Result<Arc<Self>> {
        let mut running = running()?;
        let process = std::process::id();
        if let Some((owner, helper)) = &*running
            && *owner == process
            && let Some(helper) = helper.upgrade()
        {
            return Ok(helper);
        }
        let helper = Arc::new(Self {
            state: Mutex::new(HelperState::default()),
            wake: ofi_core::sys::eventfd()?,
            rounds: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&helper);
        let clone = helper.wake.try_clone().map_err(|_| sys::os_error("dup"))?;
        let thread = std::thread::Builder::new().name("ofi-shm-helper".into());
        thread.spawn(move || run(&weak, clone)).map_err(|_| sys::os_error("starting the helper thread"))?;
        *running = Some((process, Arc::downgrade(&helper)));
        Ok(helper)
    }

    fn state(&self) -> MutexGuard<'_, HelperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wake(&self) {
        ofi_core::sys::signal_eventfd(&self.wake);
    }

    /// Serves an endpoint from now on.
    pub fn add(&self, endpoint: &Arc<SharedEndpoint>) {
        self.state().endpoints.insert(endpoint.socket.fd(), Arc::downgrade(endpoint));
        self.wake();
    }

    /// Stops serving an endpoint. On return the thread holds no reference to it, so its name is free as soon as the
    /// caller drops it.
    pub fn remove(&self, endpoint: &SharedEndpoint) {
        self.state().endpoints.remove(&endpoint.socket.fd());
        let round = self.rounds.load(Ordering::Acquire);
        self.wake();
        let deadline = Instant::now() + Duration::from_millis(100);
        // Two rounds: the current one may have started before.
        while self.rounds.load(Ordering::Acquire) < round + 2 && Instant::now() < deadline {
            self.wake();
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Serves `probe`, a non-blocking listening socket, from now on.
    pub fn add_probe(&self, probe: &Arc<OwnedFd>) {
        self.state().probes.insert(probe.as_raw_fd(), Arc::clone(probe));
        self.wake();
    }

    /// Stops serving a probe.
    pub fn remove_probe(&self, probe: RawFd) {
        self.state().probes.remove(&probe);
        self.wake();
    }

    fn serves(&self, endpoint: &Weak<SharedEndpoint>) -> bool {
        self.state().endpoints.values().any(|other| other.ptr_eq(endpoint))
    }

    /// Sends `to` a greeting, now or as soon as its socket takes it.
    pub fn greet(&self, endpoint: &Arc<SharedEndpoint>, to: &[u8], own: Arc<OwnPair>) {
        self.send(
            endpoint,
            to.to_vec(),
            HelperOutgoing::Introduce { own, welcome: false, since: Instant::now() },
        );
    }

    /// Sends a message, now or as soon as its socket takes it.
    pub fn post(
        &self,
        endpoint: &Arc<SharedEndpoint>,
        to: &[u8],
        message: ControlMessage,
        fd: Option<Arc<OwnedFd>>,
    ) {
        self.send(endpoint, to.to_vec(), HelperOutgoing::Plain(message, fd));
    }

    /// Sends a packet of connection management, now or as soon as its socket takes it. If the socket does not exist,
    /// the endpoint is notified.
    pub fn packet(&self, endpoint: &Arc<SharedEndpoint>, to: &[u8], packet: &[u8]) {
        self.send(endpoint, to.to_vec(), HelperOutgoing::Packet(endpoint.wrap(to, packet)));
    }

    fn send(&self, endpoint: &Arc<SharedEndpoint>, to: Vec<u8>, what: HelperOutgoing) {
        let late = Late { endpoint: Arc::downgrade(endpoint), to, what };
        let mut state = self.state();
        // Datagrams to one peer are sent in order, because those after an introduction mean nothing without it.
        let wakes = |late: &Late| matches!(late.what, HelperOutgoing::Plain(ControlMessage::Wake, _));
        let mut before = state.late.iter().filter(|other| other.same_way(&late));
        if wakes(&late) && before.clone().any(wakes) {
            return; // one is enough
        }
        if before.next().is_some() {
            state.late.push(late);
        } else {
            state.attempt(late);
        }
        let waits = !state.late.is_empty() || !state.unanswered.is_empty() || !state.ends.is_empty();
        drop(state);
        if waits {
            self.wake();
        }
    }
}

impl HelperState {
    /// Tries to send a datagram. Keeps it if it must be sent again or needs an answer.
    fn attempt(&mut self, late: Late) {
        match attempt(late) {
            Tried::Over => {}
            Tried::Later(late) => self.late.push(late),
            Tried::Greeted(late) => self.unanswered.push((late, Instant::now())),
            Tried::Failed(end) => self.ends.push(end),
        }
    }

    /// Repeats unanswered greetings, and abandons greetings to names that no longer exist.
    fn chase(&mut self) {
        for (late, sent) in std::mem::take(&mut self.unanswered) {
            let Some(endpoint) = late.endpoint.upgrade() else { continue };
            if endpoint.incarnation_of(&late.to).is_some() {
                continue;
            }
            if sent.elapsed() < GREETING_INTERVAL {
                self.unanswered.push((late, sent));
            } else {
                self.attempt(late);
            }
        }
    }
}

/// The outcome of sending a datagram.
enum Tried {
    Over,
    Later(Late),
    Greeted(Late),
    Failed(PeerExit),
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.wake(); // the thread sees that it has no endpoints left
    }
}

fn attempt(late: Late) -> Tried {
    let Some(endpoint) = late.endpoint.upgrade() else { return Tried::Over };
    let sent = match &late.what {
        HelperOutgoing::Introduce { own, welcome, .. } => endpoint.introduce(&late.to, own, *welcome),
        HelperOutgoing::Plain(message, fd) => {
            let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
            endpoint.socket.send(&late.to, &message.encode(), &fds)
        }
        HelperOutgoing::Packet(bytes) => endpoint.socket.send(&late.to, bytes, &[]),
    };
    let greets = matches!(&late.what, HelperOutgoing::Introduce { welcome: false, .. });
    let error = match sent {
        Ok(()) if greets => return Tried::Greeted(late),
        Ok(()) => {
            if let HelperOutgoing::Introduce { own, .. } = &late.what {
                own.delivered();
            }
            return Tried::Over;
        }
        Err(error) => error,
    };
    if error.is_again() {
        return Tried::Later(late);
    }
    match &late.what {
        HelperOutgoing::Introduce { welcome: false, since, .. } => {
            if error.errno() == Errno::ECONNREFUSED && since.elapsed() < GREETING_TIMEOUT {
                return Tried::Later(late);
            }
            Tried::Failed(PeerExit::new(&endpoint, late.to, PeerExitKind::Ungreeted(error.errno())))
        }
        HelperOutgoing::Packet(_) => {
            Tried::Failed(PeerExit::new(&endpoint, late.to, PeerExitKind::Unreached(error.errno())))
        }
        HelperOutgoing::Introduce { .. } | HelperOutgoing::Plain(..) => Tried::Over,
    }
}

/// Tells peers to close their mappings of device memory, by its keys. They no longer use them: the grants are void.
pub fn tell_withdrawn(keys: &[(Weak<SharedEndpoint>, u64)]) {
    if keys.is_empty() {
        return;
    }
    let Ok(helper) = Helper::get() else { return };
    for (shared, key) in keys {
        let Some(shared) = shared.upgrade() else { continue };
        for socket in shared.peers() {
            let message = ControlMessage::Withdrawn { incarnation: shared.incarnation, key: *key };
            helper.post(&shared, &socket, message, None);
        }
    }
}

fn run(helper: &Weak<Helper>, wake: OwnedFd) {
    let mut buffer = [0u8; control::MAX_BYTES + 1];
    let mut next_sweep = Instant::now() + SWEEP_INTERVAL;
    loop {
        // The poll set is built anew each time: this thread runs when peers come and go, not for messages.
        let (mut polls, endpoints, probes, ends, timeout) = {
            let Some(helper) = helper.upgrade() else { return };
            let mut state = helper.state();
            let ends = std::mem::take(&mut state.ends);
            let readable = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut polls = vec![readable(wake.as_raw_fd())];
            polls.extend(state.endpoints.keys().map(|&fd| readable(fd)));
            let endpoints: Vec<Weak<SharedEndpoint>> = state.endpoints.values().cloned().collect();
            let probes: Vec<Arc<OwnedFd>> = state.probes.values().cloned().collect();
            polls.extend(probes.iter().map(|probe| readable(probe.as_raw_fd())));
            let watches = state.processes.values().filter_map(|process| process.watch.as_ref());
            polls.extend(watches.map(|watch| readable(watch.as_raw_fd())));
            let swept = state.processes.values().any(|process| process.watch.is_none())
                || state.endpoints.values().filter_map(Weak::upgrade).any(|endpoint| endpoint.watches());
            let timeout = if !ends.is_empty() {
                0
            } else if !state.late.is_empty() {
                RETRY_INTERVAL.as_millis() as i32
            } else if !state.unanswered.is_empty() {
                GREETING_INTERVAL.as_millis() as i32 / 4
            } else if swept {
                SWEEP_INTERVAL.as_millis() as i32
            } else {
                -1
            };
            (polls, endpoints, probes, ends, timeout)
        };
        // SAFETY: the array is as long as said.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout) };
        ofi_core::sys::drain_eventfd(&wake);
        let Some(helper) = helper.upgrade() else { return };
        helper.rounds.fetch_add(1, Ordering::AcqRel);
        let (at_endpoints, rest) = polls[1..].split_at(endpoints.len());
        let (at_probes, at_processes) = rest.split_at(probes.len());
        for (endpoint, poll) in endpoints.iter().zip(at_endpoints) {
            if poll.revents != 0
                && !ends.iter().any(|end| end.holds_up(endpoint))
                && helper.serves(endpoint)
                && let Some(endpoint) = &endpoint.upgrade()
            {
                while let Some(datagram) = endpoint.socket.receive(&mut buffer) {
                    let bytes = &buffer[..datagram.len.min(buffer.len())];
                    if let Some(end) = helper.handle(endpoint, bytes, datagram) {
                        helper.state().ends.push(end);
                        break;
                    }
                }
            }
        }
        ends.into_iter().for_each(PeerExit::tell);
        for (probe, _) in probes.iter().zip(at_probes).filter(|(_, poll)| poll.revents != 0) {
            // The caller has already learned what it asked for.
            while let Some(caller) = unix::accept(probe.as_fd()) {
                drop(caller);
            }
        }
        if at_processes.iter().any(|poll| poll.revents != 0) || Instant::now() >= next_sweep {
            next_sweep = Instant::now() + SWEEP_INTERVAL;
            helper.report_dead();
        }
        {
            let mut state = helper.state();
            for late in std::mem::take(&mut state.late) {
                if state.late.iter().any(|other| other.same_way(&late)) {
                    state.late.push(late);
                } else {
                    state.attempt(late);
                }
            }
            state.chase();
        }
    }
}

impl Helper {
    /// Processes a datagram. Returns the end that it announces.
    fn handle(
        &self,
        endpoint: &Arc<SharedEndpoint>,
        bytes: &[u8],
        mut datagram: Datagram,
    ) -> Option<PeerExit> {
        let user = datagram.credentials.uid;
        if endpoint.connection.is_some()
            && (user == sys::effective_user() || user == 0)
            && name::is_endpoint(&datagram.from)
            && let Some((packet, ours)) = endpoint.unwrap(&datagram.from, bytes)
        {
            if !ours {
                endpoint.counts.other_key.fetch_add(1, Ordering::Relaxed);
                self.post(endpoint, &datagram.from, ControlMessage::Rejected { incarnation: 0 }, None);
                return None;
            }
            if peer_exit::is_shutdown(packet) {
                return Some(PeerExit::new(endpoint, datagram.from, PeerExitKind::Shutdown(packet.to_vec())));
            }
            endpoint.take_packet(datagram.from, packet);
            return None;
        }
        let named = name::is_endpoint(&datagram.from);
        let message = match ControlMessage::parse(bytes) {
            Some(message) if named && (user == sys::effective_user() || user == 0) => message,
            other => {
                endpoint.counts.dropped.fetch_add(1, Ordering::Relaxed);
                let from = String::from_utf8_lossy(&datagram.from);
                debug!(target: "ofi::shm::ep_ctrl", %from, user, understood = other.is_some(), "dropped a datagram");
                return None;
            }
        };
        let socket = std::mem::take(&mut datagram.from);
        let known = |incarnation| endpoint.incarnation_of(&socket) == Some(incarnation);
        match message {
            // No descriptors are free at the moment; the peer will greet again.
            ControlMessage::Hello(_)
                if !crate::pair::may_introduce() && endpoint.incarnation_of(&socket).is_none() => {}
            ControlMessage::Hello(who) | ControlMessage::Welcome(who) => {
                let greeted = matches!(message, ControlMessage::Hello(_));
                let credentials = datagram.credentials;
                match endpoint.meet(socket.clone(), &who, credentials.pid, greeted, &mut datagram.fds) {
                    Ok((own, event)) => {
                        if greeted {
                            crash_point!("greet.taken");
                        } else {
                            crash_point!("welcome.taken");
                        }
                        self.watch(endpoint, &socket, who.incarnation, credentials.pid);
                        crash_point!("meet.watched");
                        // Must precede the event to the endpoint, so that nothing it then posts is sent earlier.
                        if let Some(own) = own {
                            let since = Instant::now();
                            let welcome = HelperOutgoing::Introduce { own, welcome: true, since };
                            self.send(endpoint, socket.clone(), welcome);
                        }
                        if let Some(event) = event {
                            endpoint.tell(event);
                        }
                        // Its close notice came before its welcome and was ignored. The word of an idle connection is
                        // not polled, so check it here.
                        if endpoint.connection.is_some() && endpoint.is_closed_by(&socket) {
                            return Some(PeerExit::new(
                                endpoint,
                                socket,
                                PeerExitKind::Closed { incarnation: who.incarnation },
                            ));
                        }
                    }
                    Err(error) if error.errno() == Errno::EKEYREJECTED => {
                        debug!(target: "ofi::shm::ep_ctrl", %error, "refused a peer");
                        self.post(
                            endpoint,
                            &socket,
                            ControlMessage::Rejected { incarnation: who.incarnation },
                            None,
                        );
                        self.give_up_greeting(endpoint, socket);
                    }
                    Err(error) => {
                        endpoint.counts.dropped.fetch_add(1, Ordering::Relaxed);
                        warn!(target: "ofi::shm::ep_ctrl", %error, "refused a peer");
                        endpoint.tell(HelperEvent::Refused { socket, errno: error.errno() });
                    }
                }
            }
            ControlMessage::Close { incarnation } => {
                crash_point!("bye.taken");
                if known(incarnation) {
                    return Some(PeerExit::new(endpoint, socket, PeerExitKind::Closed { incarnation }));
                }
                // Usually the word in the peer's memory was seen before its datagram.
                endpoint.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
            ControlMessage::Rejected { incarnation: 0 } if endpoint.connection.is_some() => {
                endpoint.tell(HelperEvent::PacketLost { socket, errno: Errno::EKEYREJECTED });
            }
            ControlMessage::Rejected { incarnation } if incarnation == endpoint.incarnation => {
                self.give_up_greeting(endpoint, socket);
            }
            ControlMessage::Wake => ofi_core::sys::signal_eventfd(&endpoint.event),
            ControlMessage::Bulk { incarnation, lines } if known(incarnation) => {
                let len = (lines as usize).saturating_mul(crate::layout::LINE);
                let fd = datagram.fds.pop()?;
                crash_point!("bulk.taken");
                match sys::map_foreign(fd.as_fd(), len, true) {
                    Ok(memory) => endpoint.tell(HelperEvent::Bulk { socket, incarnation, lines, memory }),
                    Err(error) => {
                        endpoint.counts.dropped.fetch_add(1, Ordering::Relaxed);
                        warn!(target: "ofi::shm::ep_ctrl", %error, "refused a peer's bulk memory");
                    }
                }
            }
            ControlMessage::Request { incarnation, key, write, devices } if known(incarnation) => {
                crash_point!("grant.asked");
                let answer = region::answer(endpoint, key, write, devices);
                crash_point!("grant.decided");
                if !matches!(answer, GrantAnswer::Refused) {
                    endpoint.counts.granted.fetch_add(1, Ordering::Relaxed);
                }
                let incarnation = endpoint.incarnation;
                let (message, fd) = match answer {
                    GrantAnswer::Refused => {
                        (ControlMessage::Grant { incarnation, key, grant: Terms::default() }, None)
                    }
                    GrantAnswer::Memory(grant, fd) => {
                        (ControlMessage::Grant { incarnation, key, grant }, Some(Arc::new(fd)))
                    }
                    GrantAnswer::Device(grant, device) => {
                        (ControlMessage::Device { incarnation, key, grant, device }, None)
                    }
                };
                self.post(endpoint, &socket, message, fd);
                crash_point!("grant.answered");
            }
            ControlMessage::Device { incarnation, key, grant, device } if known(incarnation) => {
                let device = Box::new((grant, device));
                endpoint.tell(HelperEvent::Device { socket, incarnation, key, device });
            }
            ControlMessage::Withdrawn { incarnation, key } if known(incarnation) => {
                endpoint.tell(HelperEvent::Withdrawn { socket, incarnation, key });
            }
            ControlMessage::Grant { incarnation, key, grant } if known(incarnation) => {
                let memory = datagram.fds.pop().filter(|_| grant.len > 0).and_then(|fd| {
                    let len = usize::try_from(grant.len).ok()?;
                    sys::map_foreign(fd.as_fd(), len, grant.write).ok()
                });
                crash_point!("grant.mapped");
                endpoint.tell(HelperEvent::Grant { socket, incarnation, key, terms: grant, memory });
            }
            _ => {
                endpoint.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        None
    }

    /// Gives up the greeting of a peer with another authorization key, unless a peer with the same key had its name
    /// before: then the peer is a new incarnation.
    fn give_up_greeting(&self, endpoint: &Arc<SharedEndpoint>, socket: Vec<u8>) {
        if endpoint.incarnation_of(&socket).is_some() {
            return;
        }
        let this = Arc::downgrade(endpoint);
        let greets = |late: &Late| {
            let greets = matches!(late.what, HelperOutgoing::Introduce { welcome: false, .. });
            greets && late.to == socket && late.endpoint.ptr_eq(&this)
        };
        let mut state = self.state();
        state.unanswered.retain(|(late, _)| !greets(late));
        state.late.retain(|late| !greets(late));
        drop(state);
        endpoint.forget(&socket, None);
        endpoint.tell(HelperEvent::Refused { socket, errno: Errno::EKEYREJECTED });
    }

    /// Watches the process of a peer.
    fn watch(&self, endpoint: &Arc<SharedEndpoint>, socket: &[u8], incarnation: u64, pid: i32) {
        if pid == std::process::id() as i32 {
            return; // its endpoints send close notices
        }
        let mut state = self.state();
        let watched = state.processes.values().filter(|process| process.watch.is_some()).count();
        let process = state.processes.entry(pid).or_insert_with(|| Process {
            watch: (pid != 0 && watched < MAX_PIDFDS).then(|| sys::pidfd(pid)).flatten(),
            peers: Vec::new(),
        });
        process.peers.retain(|(endpoint, ..)| endpoint.strong_count() > 0);
        process.peers.push((Arc::downgrade(endpoint), socket.to_vec(), incarnation));
    }

    /// The number of the thread's rounds so far.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Acquire)
    }

    /// Reports the peers whose process has ended, and sockets that are gone.
    fn report_dead(&self) {
        let endpoints: Vec<_> = self.state().endpoints.values().filter_map(Weak::upgrade).collect();
        let mut ends: Vec<_> = endpoints.iter().filter_map(SharedEndpoint::look_after).collect();
        let mut gone = Vec::new();
        self.state().processes.retain(|&pid, process| {
            process.peers.retain(|(endpoint, ..)| endpoint.strong_count() > 0);
            if pid == 0 {
                // Processes of other namespaces are invisible; only their sockets can be checked.
                gone.extend(process.peers.extract_if(.., |(_, socket, _)| !sys::is_bound(socket)));
                return !process.peers.is_empty();
            }
            let ended = process.watch.as_ref().map_or_else(|| sys::has_ended(pid), sys::is_over);
            if ended {
                gone.append(&mut process.peers);
            }
            !ended && !process.peers.is_empty()
        });
        for (endpoint, socket, incarnation) in gone {
            if let Some(endpoint) = endpoint.upgrade() {
                ends.push(PeerExit::new(&endpoint, socket, PeerExitKind::Death { incarnation }));
            }
        }
        self.state().ends.append(&mut ends);
    }
}
