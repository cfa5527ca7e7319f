//! Passive endpoints, and the requests that they report.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi_api::{
    Address, EpType, EqErrorEntry, Errno, Error, Event, EventKind, EventQueue, Fid, Handle, Info,
    PassiveEndpoint, Result,
};

use super::cut;
use super::packet::{Kind, Packet};
use crate::eq::{Driven, EqCore};
use crate::fork::Born;
use crate::transport::{Arm, Port, RequestData, Transport};
use crate::wake_fd::WakeFd;

/// The interval after which an answer is sent again if its receiver had no room.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// The maximum number of answers that wait for room. Beyond it the oldest is dropped: its receiver does not read, and
/// its request times out.
const MAX_LATE_ANSWERS: usize = 1024;

/// [`Transport::open_port`].
type OpenPort = fn(&Info, Option<&Address>) -> Result<Box<dyn Port>>;

/// A connection request: the object in [`Info::handle`] of an `FI_CONNREQ` event. Dropping it unanswered rejects it.
pub struct ConnectionRequest {
    from: Address,
    to: Address,
    cookie: u64,
    held: Option<RequestData>,
    listener: Weak<Listener>,
    answered: AtomicBool,
    born: Born,
    /// The passive endpoint's context, for rejections after it is closed.
    info: Info,
    open_port: OpenPort,
}

impl ConnectionRequest {
    /// The requester.
    pub fn from(&self) -> &Address {
        &self.from
    }

    /// The address of the passive endpoint that got the request.
    pub fn to(&self) -> &Address {
        &self.to
    }

    /// The connection's cookie.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The port's data of the request.
    pub fn held(&self) -> Option<&RequestData> {
        self.held.as_ref()
    }

    /// Claims the right to answer. Returns `false` if it was claimed before.
    pub fn answer(&self) -> bool {
        if self.answered.swap(true, Ordering::AcqRel) {
            return false;
        }
        if let Some(listener) = self.listener.upgrade() {
            listener.unanswered.fetch_sub(1, Ordering::AcqRel);
        }
        true
    }

    /// Tells the requester that the answer may come from another endpoint, so that it does not take the closing of the
    /// passive endpoint for a rejection.
    pub fn grant(&self) {
        if let Some(listener) = self.listener.upgrade()
            && listener.born.is_here()
        {
            listener.answer(&self.from, Packet::new(Kind::Granted, self.cookie, &[]));
        }
    }

    /// Refuses it.
    pub fn refuse(&self) {
        let listener = self.listener.upgrade();
        if !listener.is_some_and(|listener| listener.refuse(&self.from, self.cookie, &[])) {
            self.refuse_from_elsewhere();
        }
    }

    /// Rejects the request for a closed passive endpoint. Before it closed, it told the requester that the answer may
    /// come from another endpoint.
    fn refuse_from_elsewhere(&self) {
        let sent = (self.open_port)(&self.info, None)
            .and_then(|port| port.send(&self.from, &refusal(self.cookie, &[]).encode()));
        if let Err(error) = sent {
            // The requester's connect timeout ends the attempt.
            tracing::debug!(target: "ofi::core::eq", %error, to = %self.from, "a refusal was not sent");
        }
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        // A forked child drops requests that its parent still has.
        if self.born.is_here() && self.answer() {
            self.refuse();
        }
    }
}

fn refusal(cookie: u64, data: &[u8]) -> Packet<'_> {
    Packet { kind: Kind::Reject, cookie, errno: Errno::ECONNREFUSED.get() as u32, data: cut(data) }
}

/// The mutable state of a passive endpoint.
struct ListenerState {
    name: Option<Address>,
    eq: Option<Arc<EqCore>>,
    port: Option<Arc<dyn Port>>,
    /// Set when the port's device is lost.
    lost: Option<Errno>,
    /// Answers that found no room.
    late: VecDeque<(Address, Vec<u8>)>,
    /// Requests that may be unanswered.
    requests: Vec<Weak<ConnectionRequest>>,
}

/// The part of a passive endpoint that the event queue and the requests share.
struct Listener {
    born: Born,
    fid: Fid,
    info: Info,
    state: Mutex<ListenerState>,
    /// Held while the port is used outside the state's lock. Once the port was taken out of the state and this lock is
    /// free, no thread uses the port. Locked before the state.
    driving: Mutex<()>,
    open_port: OpenPort,
    unanswered: AtomicUsize,
    backlog: AtomicUsize,
}

impl Listener {
    fn state(&self) -> MutexGuard<'_, ListenerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn driving(&self) -> MutexGuard<'_, ()> {
        self.driving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Listener::answer`].
    fn refuse(&self, to: &Address, cookie: u64, data: &[u8]) -> bool {
        self.answer(to, refusal(cookie, data))
    }

    /// Sends an answer, now or as soon as there is room. `false` if the passive endpoint is closed.
    fn answer(&self, to: &Address, packet: Packet<'_>) -> bool {
        let mut state = self.state();
        if state.port.is_none() {
            return false;
        }
        if state.late.len() >= MAX_LATE_ANSWERS {
            state.late.pop_front();
        }
        state.late.push_back((to.clone(), packet.encode()));
        state.flush();
        true
    }

    /// Reports that the port's device is lost, as C's provider does: the passive endpoint gets no more requests.
    fn lose(&self, port: &dyn Port, errno: Errno) {
        let eq = {
            let mut state = self.state();
            state.lost = Some(errno);
            state.eq.clone()
        };
        let Some(eq) = eq else { return };
        port.wait_fd().into_iter().for_each(|fd| eq.mute(fd));
        eq.push_error(EqErrorEntry { prov_errno: errno.get(), ..EqErrorEntry::new(self.fid, errno) });
    }

    /// Processes one packet. Events are reported without the lock.
    fn take(self: &Arc<Self>, from: Address, bytes: &[u8]) {
        let Some(Packet { kind: Kind::Request, cookie, data, .. }) = Packet::parse(bytes) else { return };
        let (eq, port) = {
            let state = self.state();
            let port = state.port.as_ref();
            (state.eq.clone(), port.map(|port| (port.address_towards(&from), port.held(cookie))))
        };
        let Some((eq, (name, held))) = eq.zip(port) else { return }; // no longer listens
        let before = self.unanswered.fetch_add(1, Ordering::AcqRel);
        if before >= self.backlog.load(Ordering::Relaxed) {
            self.unanswered.fetch_sub(1, Ordering::AcqRel);
            tracing::info!(
                target: "ofi::core::ep_ctrl",
                %from, unanswered = before,
                "refused a connection: the backlog is full (FI_BACKLOG)"
            );
            self.refuse(&from, cookie, &[]);
            return;
        }
        tracing::info!(target: "ofi::core::ep_ctrl", %from, at = %name, "a peer asks for a connection");
        let request = Arc::new(ConnectionRequest {
            from: from.clone(),
            to: name.clone(),
            cookie,
            held,
            listener: Arc::downgrade(self),
            answered: AtomicBool::new(false),
            born: self.born,
            info: self.info.clone(),
            open_port: self.open_port,
        });
        {
            let requests = &mut self.state().requests;
            requests.retain(|request| request.strong_count() > 0);
            requests.push(Arc::downgrade(&request));
        }
        let mut info = self.info.clone();
        (info.src_addr, info.dest_addr) = (Some(name), Some(from));
        info.handle = Some(Handle::new(request));
        let conn_data = data.to_vec();
        let info = Some(Box::new(info));
        eq.push(Event { info, conn_data, ..Event::new(EventKind::ConnReq, self.fid) });
    }
}

impl ListenerState {
    /// Sends waiting answers while there is room.
    fn flush(&mut self) {
        let Some(port) = &self.port else { return self.late.clear() };
        let mut rest = VecDeque::new();
        for (to, packet) in self.late.drain(..) {
            let blocked = rest.iter().any(|(other, _): &(Address, Vec<u8>)| *other == to);
            if blocked || port.send(&to, &packet).is_err_and(|error| error.is_again()) {
                rest.push_back((to, packet)); // other errors: the requester is gone
            }
        }
        self.late = rest;
    }
}

/// The part of a listener that its event queue drives. It has a reference to itself, for requests.
struct Pump(Arc<Listener>);

impl Driven for Pump {
    fn drive(&self) {
        if !self.0.born.is_here() {
            return;
        }
        let _driving = self.0.driving();
        let port = {
            let mut state = self.0.state();
            if !state.late.is_empty() {
                state.flush();
            }
            state.port.clone().filter(|_| state.lost.is_none())
        };
        let Some(port) = port else { return };
        while let Some((from, packet)) = port.receive() {
            self.0.take(from, &packet);
        }
        if let Some(errno) = port.lost() {
            self.0.lose(&*port, errno);
        }
    }

    fn arm(&self, _: &WakeFd) -> Arm {
        Arm::Armed // the descriptor is readable while packets wait
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.0.state().port.as_ref()?.wait_fd()
    }

    fn is_pending(&self) -> bool {
        let state = self.0.state();
        state.port.is_some() && state.lost.is_none()
    }

    fn deadline(&self) -> Option<Instant> {
        (!self.0.state().late.is_empty()).then(|| Instant::now() + RETRY_INTERVAL)
    }
}

/// The application's handle. Dropping it stops listening; requests that it reported can still be accepted.
struct Passive<T: Transport> {
    pump: Arc<dyn Driven>,
    listener: Arc<Listener>,
    transport: std::marker::PhantomData<fn() -> T>,
}

/// Opens a passive endpoint of transport `T` as `info` says.
///
/// # Errors
/// `FI_EINVAL` unless it is of `FI_EP_MSG`.
pub fn open_passive<T: Transport>(info: &Info) -> Result<Arc<dyn PassiveEndpoint>> {
    if info.ep_attr.ep_type != EpType::Msg {
        return Err(Error::wanted(
            Errno::EINVAL,
            "the info that a passive endpoint is opened with",
            "one of FI_EP_MSG",
            format!("one of {}", info.ep_attr.ep_type),
            "ask getinfo for endpoints of FI_EP_MSG",
        ));
    }
    let name = info.src_addr.clone();
    let listener = Arc::new(Listener {
        born: Born::here(),
        fid: Fid::next(),
        info: info.clone(),
        state: Mutex::new(ListenerState {
            name,
            eq: None,
            port: None,
            lost: None,
            late: VecDeque::new(),
            requests: Vec::new(),
        }),
        driving: Mutex::new(()),
        open_port: T::open_port,
        unanswered: AtomicUsize::new(0),
        backlog: AtomicUsize::new(crate::settings::backlog()),
    });
    let pump: Arc<dyn Driven> = Arc::new(Pump(Arc::clone(&listener)));
    Ok(Arc::new(Passive::<T> { pump, listener, transport: std::marker::PhantomData }))
}

impl<T: Transport> PassiveEndpoint for Passive<T> {
    fn fid(&self) -> Fid {
        self.listener.fid
    }

    fn bind_eq(&self, eq: &Arc<dyn EventQueue>) -> Result<()> {
        self.listener.born.check()?;
        let eq = EqCore::of(eq)?;
        let mut state = self.listener.state();
        if state.eq.is_some() {
            return Err(Error::wanted(
                Errno::EBUSY,
                "fi_pep_bind",
                "one event queue",
                "a second one",
                "bind one queue to each passive endpoint",
            ));
        }
        state.eq = Some(eq);
        Ok(())
    }

    fn set_name(&self, address: &Address) -> Result<()> {
        self.listener.born.check()?;
        let mut state = self.listener.state();
        if state.port.is_some() {
            return Err(Error::wanted(
                Errno::EOPBADSTATE,
                "fi_setname",
                "a passive endpoint before fi_listen",
                "one that listens",
                "name it first",
            ));
        }
        state.name = Some(T::normalize(address)?);
        Ok(())
    }

    fn name(&self) -> Result<Address> {
        self.listener.born.check()?;
        let state = self.listener.state();
        // An address without a port is useless, so it was not named.
        let leads = |name: &Address| name.to_socket_addr().is_none_or(|socket| socket.port() != 0);
        let given = || state.name.clone().filter(leads);
        let chosen = state.port.as_ref().map(|port| port.address().clone()).or_else(given);
        chosen.ok_or_else(|| {
            Error::wanted(
                Errno::EOPBADSTATE,
                "fi_getname",
                "a passive endpoint that listens or was named",
                "one that is neither",
                "call fi_listen first",
            )
        })
    }

    fn set_backlog(&self, requests: usize) -> Result<()> {
        self.listener.born.check()?;
        if requests == 0 {
            return Err(Error::with(
                Errno::EINVAL,
                "a backlog of 0 would refuse every request; use 1 or more",
            ));
        }
        self.listener.backlog.store(requests, Ordering::Relaxed);
        Ok(())
    }

    fn listen(&self) -> Result<()> {
        self.listener.born.check()?;
        let eq = {
            let mut state = self.listener.state();
            if let Some(errno) = state.lost {
                let advice = "its device is lost; close the passive endpoint, and call getinfo again";
                return Err(Error::with(errno, advice));
            }
            if state.port.is_some() {
                return Ok(());
            }
            let Some(eq) = state.eq.clone() else {
                return Err(Error::wanted(
                    Errno::ENOEQ,
                    "fi_listen",
                    "an event queue, to report requests to",
                    "none",
                    "open one with fi_eq_open and bind it",
                ));
            };
            let port = T::open_port(&self.listener.info, state.name.as_ref())?;
            tracing::info!(target: "ofi::core::ep_ctrl", address = %port.address(), "listens for connections");
            state.port = Some(port.into());
            eq
        };
        eq.add(&self.pump)?;
        if T::KEEPS { super::keeper::keep(&self.pump) } else { Ok(()) }
    }

    fn reject(&self, handle: &Handle, data: &[u8]) -> Result<()> {
        self.listener.born.check()?;
        let request = handle
            .downcast::<ConnectionRequest>()
            .filter(|request| Weak::as_ptr(&request.listener) == Arc::as_ptr(&self.listener));
        let Some(request) = request else {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the handle given to fi_reject",
                "one of an FI_CONNREQ event of this passive endpoint",
                "another",
                "give the info's handle of the event",
            ));
        };
        if !request.answer() {
            return Err(Error::with(Errno::EALREADY, "the connection request was already answered"));
        }
        self.listener.refuse(&request.from, request.cookie, data);
        Ok(())
    }

    fn cm_data_size(&self) -> usize {
        T::cm_data_size()
    }
}

impl<T: Transport> Drop for Passive<T> {
    fn drop(&mut self) {
        if !self.listener.born.is_here() {
            return; // the parent listens on
        }
        let driving = self.listener.driving();
        let eq = self.listener.state().eq.take();
        if let Some(eq) = eq {
            eq.remove(&self.pump);
            eq.forget(self.listener.fid); // which refuses requests that nobody read
        }
        // The others may still be accepted, by endpoints that need no passive endpoint. Dropped outside the state's
        // lock, because a rejection takes it.
        let requests = std::mem::take(&mut self.listener.state().requests);
        let handed: Vec<_> = requests.iter().filter_map(Weak::upgrade).collect();
        for request in handed.iter().filter(|request| !request.answered.load(Ordering::Acquire)) {
            request.grant();
        }
        drop(handed);
        let port = {
            let mut state = self.listener.state();
            state.flush();
            state.port.take()
        };
        // From here on, no driver finds or uses the port: its name is free when this returns.
        drop(driving);
        drop(port);
    }
}
