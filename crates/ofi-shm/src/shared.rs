//! The part of an endpoint that its owner shares with the process's helper thread.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ofi_api::{Address, Caps, Errno, Error, Result};
use ofi_core::auth::AuthKey;
use ofi_core::domain::DomainPart;
use ofi_ring::membarrier::Support;
use ofi_ring::mpsc;
use ofi_ring::{crash_point, lease};

use crate::cma::TokenPage;
use crate::connected::Connected;
use crate::control::{self, ControlMessage, Introduction};
use crate::endpoint_info::{EndpointInfo, may_map_devices};
use crate::event::HelperEvent;
use crate::layout::{doorbell, endpoint};
use crate::pair::{OwnPair, PeerParts};
use crate::settings::SingleCopy;
use crate::sys::{self, ControlSocket, Mapping, Writers};
use crate::{Shm, name};

/// The time for which a close notice to a peer with a full socket is retried; the helper of such a peer is not running.
const CLOSE_NOTICE_TIMEOUT: Duration = Duration::from_millis(50);

/// The doorbell memory of an endpoint.
struct Doorbell {
    memory: Mapping,
    fd: OwnedFd,
}

impl Doorbell {
    fn new() -> Result<Self> {
        let fd = sys::memfd(c"ofi-shm doorbell", doorbell::SIZE)?;
        let memory = Mapping::new(fd.as_fd(), doorbell::SIZE, true)?;
        sys::seal(&fd, Writers::Any)?;
        Ok(Self { memory, fd })
    }
}

/// The part of this end of a pair that exists before the peer is attached.
struct PairEntry {
    own: Arc<OwnPair>,
    /// The incarnation of the attached peer, once known.
    incarnation: Option<u64>,
    /// The peer's pair memory, in which it announces copies.
    memory: Option<Arc<Mapping>>,
}

/// Counters of the helper's work for one endpoint.
#[derive(Default)]
pub struct HelperCounts {
    /// Dropped datagrams: malformed, or from another user.
    pub dropped: AtomicU64,
    /// Greetings, and packets of connection management, from endpoints with another authorization key.
    pub other_key: AtomicU64,
    /// Grants to peers for direct access.
    pub granted: AtomicU64,
}

/// The part of one endpoint that its owner and the helper thread share.
pub struct SharedEndpoint {
    /// Its address.
    pub address: Address,
    /// Distinguishes this endpoint from later ones with the same name.
    pub incarnation: u64,
    /// Control datagrams.
    pub socket: ControlSocket,
    /// The endpoint memory.
    pub memory: Mapping,
    memory_fd: OwnedFd,
    /// The doorbell memory, made for the first peer: an endpoint that waits for peers takes no descriptor and no
    /// mapping for it.
    doorbell: OnceLock<Doorbell>,
    /// Identifies this process to peers, if they may copy from and to its memory.
    token_page: Option<TokenPage>,
    /// The eventfd that peers write to when this endpoint sleeps.
    pub event: OwnedFd,
    /// The domain, whose registrations the helper may grant.
    pub domain: Arc<DomainPart<Shm>>,
    /// The capabilities of the endpoint.
    pub caps: Caps,
    /// Whether it maps device memory of peers, and lets them map its own.
    maps_devices: AtomicBool,
    /// Its authorization key, which its peers must share.
    pub auth: AuthKey,
    /// The name of its socket.
    name: Vec<u8>,
    /// Whether the process has the barrier that spares senders a fence.
    pub barrier: Support,
    /// Counters.
    pub counts: HelperCounts,
    inbox: mpsc::Sender<HelperEvent>,
    /// The inbox has something.
    news: AtomicBool,
    /// Events for which the inbox had no room.
    late: Mutex<Vec<HelperEvent>>,
    pairs: Mutex<HashMap<Vec<u8>, PairEntry>>,
    /// The endpoint is closed.
    closed: AtomicBool,
    /// For an endpoint of type `FI_EP_MSG`.
    pub connection: Option<Connected>,
    next_hint: AtomicU32,
    command_lines: usize,
}

/// Events of the helper thread for which an endpoint has room; more wait in [`SharedEndpoint::late`]. An idle endpoint
/// pays for the room too, 112 bytes for each.
const INBOX: usize = 64;

impl SharedEndpoint {
    /// Binds an endpoint's socket and creates its memories. Also returns the receiving end of its events.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_ENOMEM`, `FI_EMFILE`.
    pub fn open(
        domain: &Arc<DomainPart<Shm>>,
        wanted: Option<&Address>,
        info: &EndpointInfo,
        barrier: Support,
    ) -> Result<(Arc<Self>, mpsc::Receiver<HelperEvent>)> {
        let (address, socket) =
            name::bind(wanted, wanted.is_some() && wanted == info.proposed.as_ref(), info.format)?;
        let memory_fd = sys::memfd(c"ofi-shm endpoint", endpoint::SIZE)?;
        let memory = Mapping::new(memory_fd.as_fd(), endpoint::SIZE, true)?;
        sys::seal(&memory_fd, Writers::Present)?;
        // SAFETY: `word` checks place and alignment; mapped while `memory` lives and accessed atomically.
        let fence: &AtomicU32 = unsafe { &*memory.word(endpoint::FENCE) };
        fence.store((barrier == Support::Missing).into(), Ordering::Relaxed);
        let (inbox, events) = mpsc::queue(INBOX);
        let shared = Self {
            name: name::socket_name(&address)?,
            address,
            incarnation: sys::random(),
            socket,
            memory,
            memory_fd,
            doorbell: OnceLock::new(),
            token_page: if SingleCopy::get() == SingleCopy::Never { None } else { TokenPage::new() },
            event: ofi_core::sys::eventfd()?,
            domain: Arc::clone(domain),
            caps: info.caps,
            maps_devices: AtomicBool::new(info.maps_devices),
            auth: info.auth.clone(),
            barrier,
            counts: HelperCounts::default(),
            inbox,
            news: AtomicBool::new(false),
            late: Mutex::new(Vec::new()),
            pairs: Mutex::new(HashMap::new()),
            closed: AtomicBool::new(false),
            connection: info.connected.then(Connected::default),
            next_hint: AtomicU32::new(0),
            command_lines: crate::settings::COMMAND_LINES.get().next_power_of_two(),
        };
        Ok((Arc::new(shared), events))
    }

    /// Whether it maps device memory of peers, and lets them map its own (`FI_OPT_FI_HMEM_P2P`).
    pub fn maps_devices(&self) -> bool {
        self.maps_devices.load(Ordering::Relaxed)
    }

    /// Sets whether it does from now on.
    pub fn map_devices(&self, permitted: bool) {
        self.maps_devices.store(may_map_devices(self.caps, permitted), Ordering::Relaxed);
    }

    fn pairs(&self) -> MutexGuard<'_, HashMap<Vec<u8>, PairEntry>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The doorbell memory; `None` before the first peer.
    pub fn doorbell(&self) -> Option<&Mapping> {
        self.doorbell.get().map(|doorbell| &doorbell.memory)
    }

    fn new_pair(&self) -> Result<Arc<OwnPair>> {
        if self.doorbell.get().is_none() {
            let made = Doorbell::new()?;
            self.doorbell.get_or_init(|| made);
        }
        let hint = self.next_hint.fetch_add(1, Ordering::Relaxed) % doorbell::HINTS as u32;
        Ok(Arc::new(OwnPair::new(self.command_lines, hint, self.barrier == Support::Missing)?))
    }

    /// This end of the pair with `socket`, created if necessary, and whether the peer must be greeted.
    ///
    /// # Errors
    /// `FI_ENOMEM`, `FI_EMFILE`.
    pub fn pair_for(&self, socket: &[u8]) -> Result<(Arc<OwnPair>, bool)> {
        let mut pairs = self.pairs();
        if let Some(entry) = pairs.get(socket) {
            return Ok((Arc::clone(&entry.own), entry.incarnation.is_none()));
        }
        if !crate::pair::may_introduce() {
            return Err(Error::AGAIN); // until peers have answered
        }
        let own = self.new_pair()?;
        crash_point!("greet.paired");
        pairs.insert(socket.to_vec(), PairEntry { own: Arc::clone(&own), incarnation: None, memory: None });
        Ok((own, true))
    }

    /// Greets `socket`, or answers its greeting.
    ///
    /// # Errors
    /// Those of [`ControlSocket::send`].
    pub fn introduce(&self, socket: &[u8], own: &OwnPair, welcome: bool) -> Result<()> {
        // A pair has a doorbell.
        let (Some(fds), Some(doorbell)) = (own.fds(), self.doorbell.get()) else { return Ok(()) };
        let who = Introduction {
            incarnation: self.incarnation,
            command_lines: own.command_lines() as u32,
            hint: own.hint,
            wakes: true,
            proof: self.auth.proof(&control::greeting_text(
                welcome,
                &self.name,
                socket,
                &self.incarnation.to_ne_bytes(),
            )),
            token: self.token_page.as_ref().map(TokenPage::token).unwrap_or_default(),
        };
        let message = if welcome { ControlMessage::Welcome(who) } else { ControlMessage::Hello(who) };
        let fds: [BorrowedFd<'_>; 5] = [
            fds.memory.as_fd(),
            self.memory_fd.as_fd(),
            doorbell.fd.as_fd(),
            fds.commands.as_fd(),
            self.event.as_fd(),
        ];
        if welcome {
            crash_point!("welcome.send");
        } else {
            crash_point!("greet.send");
        }
        self.socket.send(socket, &message.encode(), &fds)?;
        if welcome {
            crash_point!("welcome.sent");
        } else {
            crash_point!("greet.sent");
        }
        Ok(())
    }

    /// Takes the introduction of a peer in process `pid`. Returns this end of the pair if the peer must be welcomed,
    /// and the event to report to the endpoint after that.
    ///
    /// # Errors
    /// `FI_EKEYREJECTED` if its authorization key differs; errors of mapping its memories.
    pub fn meet(
        &self,
        socket: Vec<u8>,
        who: &Introduction,
        pid: i32,
        greeted: bool,
        fds: &mut Vec<OwnedFd>,
    ) -> Result<(Option<Arc<OwnPair>>, Option<HelperEvent>)> {
        let incarnation = who.incarnation.to_ne_bytes();
        let about = control::greeting_text(!greeted, &socket, &self.name, &incarnation);
        if !self.auth.accepts(&about, who.proof) {
            self.counts.other_key.fetch_add(1, Ordering::Relaxed);
            return Err(Error::with(
                Errno::EKEYREJECTED,
                "the peer has another authorization key; give both ends the same auth_key",
            ));
        }
        let mut pairs = self.pairs();
        if self.closed.load(Ordering::Relaxed) {
            return Ok((None, None));
        }
        if self.connection.as_ref().is_some_and(|connection| !connection.admits(&socket)) {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            return Ok((None, None)); // a peer greets again
        }
        let mut event = None;
        let known = pairs.get(&socket).and_then(|entry| entry.incarnation);
        if known != Some(who.incarnation) {
            let parts = Box::new(PeerParts::map(who, fds, pid)?);
            crash_point!("meet.mapped");
            if known.is_some() || !pairs.contains_key(&socket) {
                // A new incarnation starts with empty rings.
                pairs.insert(
                    socket.clone(),
                    PairEntry { own: self.new_pair()?, incarnation: None, memory: None },
                );
            }
            if let Some(entry) = pairs.get_mut(&socket) {
                entry.incarnation = Some(who.incarnation);
                entry.memory = Some(Arc::clone(&parts.pair));
                let own = Arc::clone(&entry.own);
                event = Some(HelperEvent::Attached { socket: socket.clone(), own, parts });
            }
        }
        let own = pairs.get(&socket).map(|entry| Arc::clone(&entry.own));
        let welcome = match own {
            Some(own) if greeted => Some(own),
            Some(own) => {
                own.delivered(); // a welcome says that our greeting arrived
                None
            }
            None => None,
        };
        Ok((welcome, event))
    }

    /// Forgets a pair whose peer is gone; with `incarnation`, only if the peer is that incarnation.
    pub fn forget(&self, socket: &[u8], incarnation: Option<u64>) {
        let mut pairs = self.pairs();
        if pairs.get(socket).is_some_and(|entry| entry.incarnation == incarnation) {
            pairs.remove(socket);
        }
    }

    /// A packet of connection management to `to`, in its datagram.
    pub fn wrap(&self, to: &[u8], packet: &[u8]) -> Vec<u8> {
        control::wrap_packet(self.auth.proof(&control::packet_text(&self.name, to, packet)), packet)
    }

    /// The packet of connection management in a datagram from `from`, and whether its sender has the same authorization
    /// key.
    pub fn unwrap<'a>(&self, from: &[u8], bytes: &'a [u8]) -> Option<(&'a [u8], bool)> {
        let (proof, packet) = control::packet_in(bytes)?;
        Some((packet, self.auth.accepts(&control::packet_text(from, &self.name, packet), proof)))
    }

    /// The known peers, to which a closing endpoint announces its end.
    pub fn peers(&self) -> Vec<Vec<u8>> {
        self.pairs()
            .iter()
            .filter(|(_, entry)| entry.incarnation.is_some())
            .map(|(socket, _)| socket.clone())
            .collect()
    }

    /// Marks the endpoint as closed in every pair, including pairs with peers that only the helper knows, because a
    /// close notice that reaches them before their welcome is dropped. No peer is added after this.
    pub fn close_pairs(&self) {
        let pairs = self.pairs();
        self.closed.store(true, Ordering::Relaxed); // under the lock
        for entry in pairs.values() {
            entry.own.word32(crate::layout::pair::WISH).store(crate::layout::wish::CLOSED, Ordering::Release);
            crash_point!("close.word");
        }
    }

    /// The incarnation of a known peer.
    pub fn incarnation_of(&self, socket: &[u8]) -> Option<u64> {
        self.pairs().get(socket).and_then(|entry| entry.incarnation)
    }

    /// Whether a known peer's memory says that it has closed.
    pub fn is_closed_by(&self, socket: &[u8]) -> bool {
        self.pairs().get(socket).and_then(|entry| entry.memory.as_ref()).is_some_and(|memory| {
            // SAFETY: `word` checks place and alignment; mapped while `memory` lives and accessed atomically.
            let wish: &AtomicU32 = unsafe { &*memory.word(crate::layout::pair::WISH) };
            wish.load(Ordering::Acquire) == crate::layout::wish::CLOSED
        })
    }

    /// Whether the endpoint reports what peers do with its memory (`FI_RMA_EVENT`).
    pub fn counts(&self) -> bool {
        self.caps.contains(Caps::RMA_EVENT)
    }

    /// Whether a peer is copying through grant slot `slot`.
    pub fn copies_through(&self, slot: u32) -> bool {
        self.pairs().values().filter_map(|entry| entry.memory.as_ref()).any(|memory| {
            // SAFETY: `word` checks place and alignment; mapped while `memory` lives and accessed atomically.
            let copying: &AtomicU64 = unsafe { &*memory.word(crate::layout::pair::COPYING) };
            lease::is_copying(copying, slot)
        })
    }

    /// Hands an event to the endpoint, and wakes it if it sleeps.
    pub fn tell(&self, event: HelperEvent) {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.push(event);
        self.hand_over(&mut late);
    }

    /// Whether the inbox holds an event. Costs one load.
    #[inline(always)]
    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// Whether the inbox holds an event. The caller must then empty it.
    pub fn take_news(&self) -> bool {
        self.news.swap(false, Ordering::Acquire)
    }

    /// Hands over events for which the inbox had no room. The endpoint calls this after it has emptied the inbox: the
    /// helper may have nothing more to do.
    pub fn hand_over_late(&self) {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        if !late.is_empty() {
            self.hand_over(&mut late);
        }
    }

    fn hand_over(&self, late: &mut Vec<HelperEvent>) {
        let mut rest = Vec::new();
        for event in late.drain(..) {
            if !rest.is_empty() {
                rest.push(event);
            } else if let Err(mpsc::PushError::Full(event)) = self.inbox.push(event) {
                rest.push(event);
            }
        }
        *late = rest;
        self.news.store(true, Ordering::Release);
        ofi_core::sys::signal_eventfd(&self.event);
    }
}

/// For connected endpoints.
impl SharedEndpoint {
    /// Hands a packet to the endpoint.
    pub fn take_packet(&self, socket: Vec<u8>, packet: &[u8]) {
        let Some(connection) = &self.connection else { return };
        if !connection.begin_packet() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.tell(HelperEvent::Packet { socket, packet: packet.to_vec() });
    }

    /// Ends the connection: a successor of the peer under its name is not admitted.
    pub fn shut_out(&self) {
        if let Some(connection) = &self.connection {
            connection.shut_out();
        }
    }

    /// Sends a close notice to the one admitted peer, which may know this endpoint before this endpoint knows it.
    /// Nothing else notifies it: the word of an idle connection is not polled.
    pub fn notify_admitted(&self) {
        let Some(socket) = self.connection.as_ref().and_then(Connected::admitted) else { return };
        let notice = ControlMessage::Close { incarnation: self.incarnation }.encode();
        let deadline = Instant::now() + CLOSE_NOTICE_TIMEOUT;
        while self.socket.send(&socket, &notice, &[]).is_err_and(|error| error.is_again())
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether `look_after` must be called periodically.
    pub fn watches(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.watched().is_some())
    }
}
