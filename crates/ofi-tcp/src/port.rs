//! A passive endpoint: a listener, and the connection requests that it has received.
//!
//! The core identifies requests by cookies, which the protocol lacks, so this port generates them. A request's socket
//! is kept with it (`RequestData`): accepting takes the socket, rejecting sends a refusal on it, and dropping refuses
//! the request.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi_api::{AddrFormat, Address, Errno, Error, Info, Result};
use ofi_core::auth::AuthKey;
use ofi_core::cm::packet::{Kind, Packet};
use ofi_core::log::Limit;
use ofi_core::transport::{Port, RequestData};
use rustc_hash::FxHashMap;

use crate::listener::{Accepted, Listener};
use crate::mismatch::{self, Mismatch};
use crate::sys::{self, Interest, Ready};
use crate::tls::{Security, Session};
use crate::wire::Order;
use crate::wire::cm::{self, CmMessage, Extras};
use crate::{address, ports, settings, stream};

/// The maximum number of connections whose requests have not arrived.
const MAX_UNIDENTIFIED: usize = 1024;
/// Connections accepted in one call, so that callers keep no call forever.
const MAX_ACCEPTS_PER_CALL: usize = 256;
/// The time within which a peer must send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A request that was not answered.
pub struct Caller {
    pub socket: OwnedFd,
    pub tls: Option<Box<Session>>,
    /// The passive endpoint's authorization key.
    pub auth: AuthKey,
    pub order: Order,
    pub extras: Extras,
}

impl Caller {
    fn refuse(mut self, data: &[u8]) {
        let refusal = CmMessage::new(cm::CmKind::Refusal, data).encode();
        let _ = stream::send_message(self.socket.as_fd(), self.tls.as_deref_mut(), &refusal); // it may be gone
        sys::end_sending(self.socket.as_fd());
    }
}

/// The socket of an unanswered request.
pub struct PendingCaller(Mutex<Option<Caller>>);

impl PendingCaller {
    /// Takes the socket, to answer.
    pub fn take(&self) -> Option<Caller> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for PendingCaller {
    fn drop(&mut self) {
        if let Some(caller) = self.take() {
            caller.refuse(&[]);
        }
    }
}

/// Requests by their cookies.
type Requests = FxHashMap<u64, (Weak<PendingCaller>, Option<Arc<PendingCaller>>)>;

/// A connection whose request has not arrived completely.
struct Called {
    socket: OwnedFd,
    tls: Option<Box<Session>>,
    bytes: Vec<u8>,
    deadline: Instant,
}

struct Desk {
    listener: Listener,
    called: Vec<Called>,
    requests: Requests,
}

/// A passive endpoint: a listening socket and the requests that it has received.
pub struct TcpPort {
    ready: Ready,
    address: Address,
    auth: AuthKey,
    /// How it encrypts, if it does.
    tls: Option<Box<Security>>,
    desk: Mutex<Desk>,
}

impl TcpPort {
    /// Listens at `name`, or at any port: whoever only refuses a request for a closed passive endpoint needs no name,
    /// and another socket may have the one that it had.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`, `FI_EMFILE`, and errors of [`Security::of`].
    pub fn open(info: &Info, name: Option<&Address>) -> Result<Self> {
        let name = name.map(address::socket).transpose()?;
        let wanted = address::to_bind(name, None, info.addr_format == AddrFormat::SockaddrIn6)?;
        let (listener, mut bound) = ports::listen(wanted)?;
        if bound.ip().is_unspecified() {
            bound.set_ip(address::host_ip(bound.is_ipv6()));
        }
        let ready = Ready::new()?;
        let listener = Listener::new(listener, 0, 2, &ready)?;
        let (auth, tls) = (AuthKey::of(info), Security::of(info)?);
        let desk = Desk { listener, called: Vec::new(), requests: Requests::default() };
        Ok(Self { ready, address: bound.into(), auth, tls, desk: Mutex::new(desk) })
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(&self, desk: &mut Desk) {
        if desk.listener.rests(&self.ready) {
            return;
        }
        for _ in 0..MAX_ACCEPTS_PER_CALL {
            let socket = match desk.listener.accept(&self.ready) {
                Accepted::Connection(socket) => socket,
                Accepted::Failed => continue,
                Accepted::Nothing => return,
            };
            let patience = Duration::from_millis(settings::PEER_TIMEOUT_MS.get() as u64);
            sys::prepare(socket.as_fd(), patience);
            if desk.called.len() >= MAX_UNIDENTIFIED {
                continue;
            }
            let Ok(tls) = self.tls.as_ref().map(|tls| tls.accept(socket.as_fd())).transpose() else {
                continue;
            };
            if self.ready.add(&socket, 1, Interest { read: true, write: false }).is_ok() {
                let deadline = Instant::now() + REQUEST_TIMEOUT;
                desk.called.push(Called { socket, tls, bytes: Vec::new(), deadline });
            }
        }
    }

    /// Takes a request: returns the peer's address, and the packet for the core.
    fn take(
        &self,
        desk: &mut Desk,
        Called { socket, tls, .. }: Called,
        (order, extras): (Order, Extras),
        data: &[u8],
    ) -> Option<(Address, Vec<u8>)> {
        let from = Address::from(address::canonical(sys::peer_name(socket.as_fd())?));
        self.ready.remove(&socket);
        let cookie = getrandom::u64().ok()?;
        let auth = self.auth.clone();
        let packet = Packet::new(Kind::Request, cookie, data).encode();
        let asked = Arc::new(PendingCaller(Mutex::new(Some(Caller { socket, tls, auth, order, extras }))));
        desk.requests.retain(|_, (asked, _)| asked.strong_count() > 0);
        desk.requests.insert(cookie, (Arc::downgrade(&asked), Some(asked)));
        Some((from, packet))
    }
}

/// The result of reading a request.
enum RequestRead {
    /// Not all of it.
    Part,
    /// All of it.
    Whole((Order, Extras), Vec<u8>),
    /// No request.
    Nothing,
}

fn read_request(Called { socket, tls, bytes, .. }: &mut Called) -> RequestRead {
    match stream::receive_into(socket.as_fd(), tls.as_deref_mut(), bytes) {
        Ok(1..) => {}
        Err(errno) if sys::is_full(errno) => return RequestRead::Part,
        _ => {
            if let Some(mismatch) = tls.as_ref().and_then(|session| session.mismatch()) {
                log_refused(socket, mismatch);
            }
            return RequestRead::Nothing;
        }
    }
    match CmMessage::parse(bytes) {
        Err(_) if tls.is_none() && mismatch::begins_tls(bytes) => {
            mismatch::deny(socket.as_fd());
            log_refused(socket, &Mismatch::Encrypted);
            RequestRead::Nothing
        }
        Ok(None) => RequestRead::Part,
        Ok(Some((message, _))) if message.kind == cm::CmKind::Request => {
            RequestRead::Whole((message.order, message.extras), message.payload.to_vec())
        }
        Ok(Some(_)) => RequestRead::Nothing,
        Err(unreadable) => {
            log_refused(socket, &unreadable);
            RequestRead::Nothing
        }
    }
}

fn log_refused(socket: &OwnedFd, why: &dyn std::fmt::Display) {
    static LIMIT: Limit = Limit::new();
    let Some(more) = LIMIT.pass() else { return };
    let from = sys::peer_name(socket.as_fd()).map_or_else(String::new, |from| from.to_string());
    tracing::warn!(target: "ofi::tcp::ep_ctrl", from, more, "a connection is refused: {why}");
}

impl Port for TcpPort {
    fn address(&self) -> &Address {
        &self.address
    }

    fn send(&self, _to: &Address, packet: &[u8]) -> Result<()> {
        // The accepting endpoint answers itself.
        let Some(Packet { kind: Kind::Reject, cookie, data, .. }) = Packet::parse(packet) else {
            return Ok(());
        };
        let request = self.desk().requests.remove(&cookie);
        let caller = request.and_then(|(asked, _)| asked.upgrade()).and_then(|asked| asked.take());
        let caller = caller.ok_or_else(|| Error::new(Errno::ECONNREFUSED))?;
        caller.refuse(data);
        Ok(())
    }

    fn receive(&self) -> Option<(Address, Vec<u8>)> {
        let mut desk = self.desk();
        let desk = &mut *desk;
        self.accept(desk);
        let now = Instant::now();
        let mut at = 0;
        while let Some(called) = desk.called.get_mut(at) {
            match read_request(called) {
                RequestRead::Part if called.deadline > now => {
                    let write = called.tls.as_ref().is_some_and(|session| session.has_sealed());
                    if self.tls.is_some() {
                        self.ready.change(&called.socket, 1, Interest { read: true, write });
                    }
                    at += 1;
                }
                RequestRead::Part | RequestRead::Nothing => {
                    desk.called.swap_remove(at);
                }
                RequestRead::Whole(of, data) => {
                    let called = desk.called.swap_remove(at);
                    let request = self.take(desk, called, of, &data);
                    if request.is_some() {
                        return request;
                    }
                }
            }
        }
        None
    }

    fn held(&self, cookie: u64) -> Option<RequestData> {
        self.desk().requests.get_mut(&cookie)?.1.take().map(|asked| asked as RequestData)
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.ready.raw())
    }
}
