//! An endpoint over two transports.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ofi_api::{Address, EpOption, EpType, Errno, Error, Info, Piece, Result, Statistic};

use super::link::{Names, NearRequest, wrap};
use super::pace::Pace;
use super::routes::{FAR, NEAR, PeerRoute, Routes};
use super::side::{self, HalfUpcalls};
use super::{Composite, CompositeSpec, Either, OpOf, TokenOf};
use crate::domain::DomainPart;
use crate::slots::SlotId;
use crate::sys::WaitSet;
use crate::transport::{
    Arm, Attendant, GivenUp, OutAccess, OutAtomic, OutMessage, OutNote, OutPlain, OutRma, PeerId, Posted,
    RequestData, SharedReceives, Transport, TransportEndpoint, Upcalls,
};

/// The near transport of an enabled endpoint.
struct Nearby<P: CompositeSpec> {
    /// Closed first, so that no peer finds an endpoint that is gone. An endpoint with a connection is not announced.
    meeting: Option<P::Meeting>,
    endpoint: <P::Near as Transport>::Endpoint,
    /// Readable when either transport's descriptor is. The near descriptor is always in the set; the far one is added
    /// once a thread may sleep, because watching it may make the transport more expensive.
    wait: Option<WaitSet>,
    far_watched: AtomicBool,
}

/// One endpoint over a near and a far transport.
pub struct CompositeEndpoint<P: CompositeSpec> {
    /// Not enabled yet.
    prepared: Option<<P::Near as Transport>::Endpoint>,
    near: Option<Nearby<P>>,
    far: <P::Far as Transport>::Endpoint,
    routes: Routes,
    pace: Pace,
    /// The endpoint has a connection (`FI_EP_MSG`).
    connected: bool,
    /// The next poll starts with the far transport.
    far_first: bool,
    /// Peers for which notes wait and no route has been chosen.
    open: Vec<PeerId>,
}

/// The core, as the near transport sees it.
type NearUpcalls<'a, P, H> = HalfUpcalls<'a, side::Near, P, H>;
/// The core, as the far transport sees it.
type FarUpcalls<'a, P, H> = HalfUpcalls<'a, side::Far, P, H>;

impl<P: CompositeSpec> CompositeEndpoint<P> {
    /// See [`Transport::open_endpoint`].
    pub(super) fn open(domain: &Arc<DomainPart<Composite<P>>>, info: &Info) -> Result<Self> {
        let connected = info.ep_attr.ep_type == EpType::Msg;
        let reliable = connected || info.ep_attr.ep_type == EpType::Rdm;
        let prepared = match (&domain.transport.near, P::near_info(info)) {
            (Some(near), Some(info)) if reliable => Some(P::Near::open_endpoint(near, &info)?),
            _ => None,
        };
        Ok(Self {
            prepared,
            near: None,
            far: P::Far::open_endpoint(&domain.transport.far, info)?,
            routes: Routes::default(),
            pace: Pace::default(),
            connected,
            far_first: false,
            open: Vec::new(),
        })
    }

    /// Enables the near transport for the endpoint at the far address `address`.
    fn enable_near(
        &self,
        mut endpoint: <P::Near as Transport>::Endpoint,
        address: &Address,
    ) -> Result<Nearby<P>> {
        let near = P::own_near(&self.far, address).ok_or_else(|| Error::new(Errno::EADDRNOTAVAIL))?;
        endpoint.enable(Some(&near))?;
        let wait = match endpoint.wait_fd() {
            Some(near) => {
                let set = WaitSet::new()?;
                set.add(near)?;
                Some(set)
            }
            None => None,
        };
        let meeting = if self.connected { None } else { Some(P::meet(&near)?) };
        Ok(Nearby { meeting, endpoint, wait, far_watched: AtomicBool::new(false) })
    }

    /// Decides the route of sends to `peer`.
    #[cold]
    fn decide<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, peer: PeerId) -> Result<PeerRoute> {
        let route = self.decide_now(host, peer)?;
        if let Some(address) = self.routes.address(peer) {
            let why = match (&self.near, route.side()) {
                (_, NEAR) => "it is on this host and offers shared memory",
                (None, _) => "shared memory is off for this endpoint",
                _ if self.routes.refused(peer) => "it did not answer over shared memory",
                _ => "it is not on this host, or offers no shared memory there",
            };
            let path = if route.side() == NEAR { "shared memory" } else { P::FAR_NAME };
            tracing::info!(target: "ofi::core::ep_ctrl", peer = %address, path, why, "chose the path to a peer");
        }
        Ok(route)
    }

    fn decide_now<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, peer: PeerId) -> Result<PeerRoute> {
        if self.routes.link.is_near() {
            return self.routes.decide(NEAR, peer).ok_or_else(|| Error::new(Errno::ENOTCONN));
        }
        let address = self.routes.address(peer).ok_or_else(|| Error::new(Errno::EINVAL))?.clone();
        let mut heard = false;
        if let Some(Nearby { meeting: Some(meeting), endpoint, .. }) = &mut self.near
            && !self.routes.refused(peer)
            && let Some(name) = P::near_address(meeting, &address)
        {
            if self.routes.local(NEAR, peer).is_none() {
                self.routes.asked = Some(address.clone());
                let mut host = NearUpcalls::<P, H>::new(&mut self.routes, host, &mut heard);
                let met = endpoint.peer(&mut host, &name);
                self.routes.asked = None;
                met?;
            }
            if let Some(route) = self.routes.decide(NEAR, peer) {
                return Ok(route);
            }
        }
        if self.routes.local(FAR, peer).is_none() {
            let mut host = FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard);
            self.far.peer(&mut host, &address)?;
        }
        self.routes.decide(FAR, peer).ok_or_else(|| Error::new(Errno::EADDRNOTAVAIL))
    }

    #[inline(always)]
    fn route<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, peer: PeerId) -> Result<PeerRoute> {
        let route = self.routes.get(peer);
        if route.is_open() { self.decide(host, peer) } else { Ok(route) }
    }

    /// Chooses the routes of peers for which notes wait.
    #[cold]
    fn decide_open<H: Upcalls<Composite<P>>>(&mut self, host: &mut H) {
        for peer in std::mem::take(&mut self.open) {
            if let Err(error) = self.route(host, peer) {
                tracing::warn!(target: "ofi::core::ep_ctrl", peer, %error, "a peer is unreachable over one transport");
            }
        }
    }

    #[inline(always)]
    fn poll_near<H: Upcalls<Composite<P>>>(&mut self, host: &mut H) {
        let mut heard = false;
        if let Some(near) = &mut self.near {
            near.endpoint.poll(&mut NearUpcalls::<P, H>::new(&mut self.routes, host, &mut heard));
        }
    }

    fn settle_near<H: Upcalls<Composite<P>>>(&mut self, host: &mut H) {
        if let Some(near) = &mut self.near {
            let mut heard = false;
            near.endpoint.settle_receives(&mut NearUpcalls::<P, H>::new(&mut self.routes, host, &mut heard));
        }
    }

    fn poll_far<H: Upcalls<Composite<P>>>(&mut self, host: &mut H) {
        let mut heard = false;
        self.far.poll(&mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard));
        self.pace.looked(heard);
        // A peer that is lost there may still be filling receives over the other transport.
        self.settle_near(host);
    }

    /// Whether this poll may skip the far transport.
    #[inline(always)]
    fn is_far_due(&mut self) -> bool {
        !P::FAR_IS_COSTLY || self.near.is_none() || self.routes.met(NEAR) == 0 || self.pace.is_due()
    }
}

/// Calls `$call` on the transport of a route, with the core as `$host` and the transport's number for the peer as
/// `$peer`.
macro_rules! over {
    ($self:ident, $route:ident, $host:ident, |$endpoint:ident, $side_host:ident| $call:expr) => {{
        let mut heard = false;
        if $route.side() == NEAR {
            let Some(near) = &mut $self.near else { return Err(Error::new(Errno::EADDRNOTAVAIL)) };
            let $endpoint = &mut near.endpoint;
            let $side_host = &mut NearUpcalls::<P, _>::new(&mut $self.routes, $host, &mut heard);
            $call
        } else {
            $self.pace.wake();
            let $endpoint = &mut $self.far;
            let $side_host = &mut FarUpcalls::<P, _>::new(&mut $self.routes, $host, &mut heard);
            $call
        }
    }};
}

// SAFETY: both transports keep the contract, and each operation is given to only one.
unsafe impl<P: CompositeSpec> TransportEndpoint<Composite<P>> for CompositeEndpoint<P> {
    fn enable(&mut self, name: Option<&Address>) -> Result<Address> {
        let address = self.far.enable(name)?;
        if self.prepared.is_none() {
            tracing::info!(
                target: "ofi::core::ep_ctrl",
                %address,
                "local peers are reached over the network: shared memory is off (by a setting, FI_OPT_SHARED_MEMORY_PERMITTED \
                 or the kind of the endpoint)"
            );
        }
        if let Some(endpoint) = self.prepared.take() {
            match self.enable_near(endpoint, &address) {
                Ok(near) => {
                    tracing::debug!(target: "ofi::core::ep_ctrl", %address, "local peers may use shared memory");
                    self.near = Some(near);
                }
                Err(error) => {
                    tracing::warn!(target: "ofi::core::ep_ctrl", %address, %error, "shared memory is unavailable: local peers are reached over the network");
                }
            }
        }
        Ok(address)
    }

    /// The near name is announced when the endpoint is enabled. A peer on this host that sends before that decides for
    /// the far transport, and stays with it.
    fn reserve(&mut self, name: Option<&Address>) -> Result<Option<Address>> {
        self.far.reserve(name)
    }

    fn permit_shared_memory(&mut self, permitted: bool) {
        if !permitted && P::Near::needs_shared_memory() {
            self.prepared = None;
        }
        if let Some(endpoint) = &mut self.prepared {
            endpoint.permit_shared_memory(permitted);
        }
        self.far.permit_shared_memory(permitted);
    }

    fn report_to(&mut self, queues: [Option<usize>; 2]) {
        self.far.report_to(queues);
    }

    fn set_option(&mut self, option: EpOption, value: usize) {
        let near = self.near.as_mut().map(|near| &mut near.endpoint);
        if let Some(near) = near.or(self.prepared.as_mut()) {
            near.set_option(option, value);
        }
        self.far.set_option(option, value);
    }

    fn peer<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, address: &Address) -> Result<PeerId> {
        if let Some(peer) = self.routes.find(address) {
            return Ok(peer);
        }
        // The far transport needs nothing for a near peer, except that it validates the address.
        let mut heard = false;
        if let Some(Nearby { meeting: Some(meeting), endpoint, .. }) = &mut self.near
            && let Some(name) = P::near_address(meeting, address)
        {
            self.routes.asked = Some(address.clone());
            let mut host = NearUpcalls::<P, H>::new(&mut self.routes, host, &mut heard);
            let local = endpoint.peer(&mut host, &name);
            self.routes.asked = None;
            let peer = self.routes.peer(NEAR, local?);
            // An endpoint with several addresses is near under the first one that became known.
            if self.routes.address(peer) == Some(address) {
                return Ok(peer);
            }
        }
        let local =
            self.far.peer(&mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard), address)?;
        Ok(self.routes.peer(FAR, local))
    }

    fn named<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, peer: PeerId) {
        let mut heard = false;
        if let (Some(near), Some(local)) = (&mut self.near, self.routes.local(NEAR, peer)) {
            near.endpoint.named(&mut NearUpcalls::<P, H>::new(&mut self.routes, host, &mut heard), local);
        }
        if let Some(local) = self.routes.local(FAR, peer) {
            self.far.named(&mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard), local);
        }
    }

    #[inline(always)]
    unsafe fn send_now<const TAGGED: bool>(
        &mut self,
        peer: PeerId,
        tag: u64,
        from: *const u8,
        len: usize,
        injected: bool,
    ) -> bool {
        let route = self.routes.get(peer);
        if route.is_open() {
            return false;
        }
        if route.side() == NEAR {
            let Some(near) = &mut self.near else { return false };
            // SAFETY: the caller's promise.
            return unsafe { near.endpoint.send_now::<TAGGED>(route.local(), tag, from, len, injected) };
        }
        self.pace.wake();
        // SAFETY: the caller's promise.
        unsafe { self.far.send_now::<TAGGED>(route.local(), tag, from, len, injected) }
    }

    fn send<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted> {
        let route = self.route(host, out.peer)?;
        let out = OutMessage { peer: route.local(), ..*out };
        over!(self, route, host, |endpoint, host| endpoint.send(host, &out))
    }

    #[inline(always)]
    fn begin_now<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, out: &OutPlain) -> bool {
        let route = self.routes.get(out.peer);
        // The near transport finishes such messages at once, if it can.
        if route.is_open() || route.side() == NEAR {
            return false;
        }
        self.pace.wake();
        let mut heard = false;
        let out = OutPlain { peer: route.local(), ..*out };
        self.far.begin_now(&mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard), &out)
    }

    #[inline(always)]
    fn access_now<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, out: &OutAccess) -> bool {
        let route = self.routes.get(out.peer);
        // The near transport has no path for accesses besides `rma`.
        if route.is_open() || route.side() == NEAR {
            return false;
        }
        self.pace.wake();
        let mut heard = false;
        let out = OutAccess { peer: route.local(), ..*out };
        self.far.access_now(&mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard), &out)
    }

    fn rma<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted> {
        let route = self.route(host, out.peer)?;
        let out = OutRma { peer: route.local(), ..*out };
        over!(self, route, host, |endpoint, host| endpoint.rma(host, &out))
    }

    fn atomic<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        let route = self.route(host, out.peer)?;
        let out = OutAtomic { peer: route.local(), ..*out };
        over!(self, route, host, |endpoint, host| endpoint.atomic(host, &out))
    }

    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let route = self.routes.get(out.peer);
        if route.is_open() {
            if !self.open.contains(&out.peer) {
                self.open.push(out.peer);
            }
            return Err(Error::AGAIN); // the next poll decides
        }
        let out = OutNote { peer: route.local(), ..*out };
        if route.side() == NEAR {
            return match &mut self.near {
                Some(near) => near.endpoint.note(&out),
                None => Err(Error::new(Errno::EADDRNOTAVAIL)),
            };
        }
        self.pace.wake();
        self.far.note(&out)
    }

    fn await_note(&mut self, peer: PeerId) {
        let route = self.routes.get(peer);
        if route.is_open() {
            return;
        }
        match (route.side() == NEAR, &mut self.near) {
            (true, Some(near)) => near.endpoint.await_note(route.local()),
            (true, None) => {}
            (false, _) => self.far.await_note(route.local()),
        }
    }

    fn pull<H: Upcalls<Composite<P>>>(
        &mut self,
        host: &mut H,
        peer: PeerId,
        token: TokenOf<P>,
        into: SlotId,
    ) {
        let mut heard = false;
        match token {
            Either::Near(token) => {
                if let (Some(near), Some(local)) = (&mut self.near, self.routes.local(NEAR, peer)) {
                    let mut host = NearUpcalls::<P, H>::new(&mut self.routes, host, &mut heard);
                    near.endpoint.pull(&mut host, local, token, into);
                }
            }
            Either::Far(token) => {
                self.pace.wake();
                if let Some(local) = self.routes.local(FAR, peer) {
                    let mut host = FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard);
                    self.far.pull(&mut host, local, token, into);
                }
            }
        }
    }

    fn abandon(&mut self, peer: PeerId, id: SlotId, op: &mut OpOf<P>) -> bool {
        match op {
            Either::Near(op) => match (&mut self.near, self.routes.local(NEAR, peer)) {
                (Some(near), Some(local)) => near.endpoint.abandon(local, id, op),
                _ => false,
            },
            Either::Far(op) => {
                self.routes.local(FAR, peer).is_some_and(|local| self.far.abandon(local, id, op))
            }
        }
    }

    fn give_up(&mut self, peer: PeerId, id: SlotId, op: &mut OpOf<P>) -> GivenUp {
        let given_up = match op {
            Either::Near(op) => match (&mut self.near, self.routes.local(NEAR, peer)) {
                (Some(near), Some(local)) => Some(near.endpoint.give_up(local, id, op)),
                _ => None,
            },
            Either::Far(op) => self.routes.local(FAR, peer).map(|local| self.far.give_up(local, id, op)),
        };
        given_up.unwrap_or(GivenUp::Over)
    }

    fn sever<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, peer: PeerId) -> bool {
        if let Some(local) = self.routes.local(FAR, peer) {
            let mut heard = false;
            let mut host = FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard);
            if !self.far.sever(&mut host, local) {
                return false;
            }
        }
        // Operations in flight over shared memory continue.
        self.routes.local(NEAR, peer).is_none()
    }

    fn is_lost(&self) -> bool {
        self.far.is_lost()
    }

    fn removed(&mut self, peer: PeerId, id: SlotId, op: OpOf<P>) {
        match op {
            Either::Near(op) => {
                if let (Some(near), Some(local)) = (&mut self.near, self.routes.local(NEAR, peer)) {
                    near.endpoint.removed(local, id, op);
                }
            }
            Either::Far(op) => {
                if let Some(local) = self.routes.local(FAR, peer) {
                    self.far.removed(local, id, op);
                }
            }
        }
    }

    fn settle_receives<H: Upcalls<Composite<P>>>(&mut self, host: &mut H) {
        self.settle_near(host);
        let mut heard = false;
        self.far.settle_receives(&mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard));
    }

    fn discard(&mut self, peer: PeerId, token: TokenOf<P>) {
        match token {
            Either::Near(token) => {
                if let (Some(near), Some(local)) = (&mut self.near, self.routes.local(NEAR, peer)) {
                    near.endpoint.discard(local, token);
                }
            }
            Either::Far(token) => {
                if let Some(local) = self.routes.local(FAR, peer) {
                    self.far.discard(local, token);
                }
            }
        }
    }

    fn claims(&self) -> bool {
        self.far.claims()
    }

    fn follows(&self) -> bool {
        self.far.follows()
    }

    fn inserted<H: Upcalls<Composite<P>>>(&mut self, host: &mut H) {
        let mut heard = false;
        self.far.inserted(&mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard));
    }

    fn share(&mut self, receives: &Arc<dyn SharedReceives>) {
        self.far.share(receives);
    }

    fn rma_mapped(&mut self, out: &OutRma<'_>) -> Option<Result<Posted>> {
        let route = self.routes.get(out.peer);
        let near = self.near.as_mut().filter(|_| !route.is_open() && route.side() == NEAR)?;
        near.endpoint.rma_mapped(&OutRma { peer: route.local(), ..*out })
    }

    fn reaches<H: Upcalls<Composite<P>>>(
        &mut self,
        host: &mut H,
        peer: Option<PeerId>,
        pieces: &[Piece],
        accesses: bool,
    ) -> bool {
        let mut heard = false;
        let local = match peer.map(|peer| self.route(host, peer)) {
            None => None,
            Some(Ok(route)) if route.side() == NEAR => {
                let Some(near) = &mut self.near else { return false };
                let host = &mut NearUpcalls::<P, H>::new(&mut self.routes, host, &mut heard);
                return near.endpoint.reaches(host, Some(route.local()), pieces, accesses);
            }
            Some(Ok(route)) => Some(route.local()),
            Some(Err(_)) => return false,
        };
        let host = &mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard);
        self.far.reaches(host, local, pieces, accesses)
    }

    fn receive_posted<H: Upcalls<Composite<P>>>(&mut self, host: &mut H) {
        let mut heard = false;
        self.far.receive_posted(&mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard));
    }

    #[inline(always)]
    fn poll<H: Upcalls<Composite<P>>>(&mut self, host: &mut H) {
        if !self.open.is_empty() {
            self.decide_open(host);
        }
        if self.near.is_none() {
            return self.poll_far(host);
        }
        let far_is_due = self.is_far_due();
        if far_is_due && self.far_first {
            self.poll_far(host);
        }
        self.poll_near(host);
        if far_is_due && !self.far_first {
            self.poll_far(host);
        }
        // The transport that filled a poll is polled second in the next one.
        self.far_first = !host.hungry() && !self.far_first;
    }

    fn arm(&mut self) -> Arm {
        // Whatever ends the sleep, the next poll polls both transports.
        self.pace.wake();
        if !self.open.is_empty() {
            return Arm::Ready;
        }
        let near = self.near.as_mut().map_or(Arm::Armed, |near| near.endpoint.arm());
        if near == Arm::Ready {
            return Arm::Ready;
        }
        match self.far.arm() {
            Arm::Armed => near,
            far => far,
        }
    }

    fn wait_fd(&self) -> Option<RawFd> {
        let Some(near) = &self.near else { return self.far.wait_fd() };
        let set = near.wait.as_ref()?;
        if !near.far_watched.load(Ordering::Relaxed) {
            set.add(self.far.wait_fd()?).ok()?;
            near.far_watched.store(true, Ordering::Relaxed);
        }
        Some(set.fd())
    }

    fn packet(&mut self, to: &Address, packet: &[u8], watch: bool) -> Result<()> {
        let link = &mut self.routes.link;
        if let Some(near) = &mut self.near {
            if link.is_open()
                && let Some(name) = P::near_passive(to)
            {
                match wrap(to, packet).and_then(|packet| near.endpoint.packet(&name, &packet, watch)) {
                    Ok(()) => {
                        link.ask(Names { far: to.clone(), near: name });
                        return Ok(());
                    }
                    Err(error) => {
                        tracing::debug!(target: "ofi::core::ep_ctrl", %to, %error, "asked over the far transport");
                    }
                }
            } else if let Some(name) = link.near(to) {
                if link.has_asked(&name) {
                    return near.endpoint.packet(&name, &wrap(to, packet)?, watch);
                }
                return near.endpoint.packet(&name, packet, watch);
            }
        }
        if link.is_open() {
            link.go_far();
        }
        self.far.packet(to, packet, watch)
    }

    fn adopt(&mut self, held: &RequestData) -> Result<()> {
        let Some(names) = NearRequest::of(held) else {
            self.routes.link.go_far();
            return self.far.adopt(held);
        };
        if self.near.is_none() {
            return Err(Error::wanted(
                Errno::EOPNOTSUPP,
                "fi_accept of a request over shared memory",
                "an endpoint that may use shared memory with its host",
                "one without",
                "permit it (FI_OPT_SHARED_MEMORY_PERMITTED), or forbid it at the requester",
            ));
        }
        self.routes.link.join(names.clone());
        Ok(())
    }

    fn join<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, address: &Address, first: bool) -> Result<()> {
        let mut heard = false;
        if let Some(near) = &mut self.near
            && let Some(name) = self.routes.link.near(address)
        {
            let host = &mut NearUpcalls::<P, H>::new(&mut self.routes, host, &mut heard);
            return near.endpoint.join(host, &name, first);
        }
        self.far.join(&mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard), address, first)
    }

    fn part<H: Upcalls<Composite<P>>>(&mut self, host: &mut H, drain: bool) {
        let mut heard = false;
        match &mut self.near {
            Some(near) if self.routes.link.is_near() => {
                near.endpoint.part(&mut NearUpcalls::<P, H>::new(&mut self.routes, host, &mut heard), drain);
            }
            _ => self.far.part(&mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard), drain),
        }
    }

    fn attend(&mut self, attendant: Weak<dyn Attendant>) {
        self.far.attend(attendant);
    }

    fn let_out<H: Upcalls<Composite<P>>>(&mut self, host: &mut H) {
        let mut heard = false;
        self.far.let_out(&mut FarUpcalls::<P, H>::new(&mut self.routes, host, &mut heard));
    }

    fn give_back(&mut self) {
        if let Some(near) = &mut self.near {
            near.endpoint.give_back();
        }
        self.far.give_back();
    }

    fn is_settled(&self) -> bool {
        self.far.is_settled()
    }

    fn join_group(&mut self, group: &Address, receives: bool) -> Result<(Address, Posted)> {
        self.far.join_group(group, receives)
    }

    fn leave_group(&mut self, group: &Address, receives: bool) {
        self.far.leave_group(group, receives);
    }

    fn peer_statistics(&self, peer: PeerId, into: &mut Vec<Statistic>) {
        let route = self.routes.get(peer);
        match (&self.near, route.is_open()) {
            (_, true) => {}
            (Some(near), _) if route.side() == NEAR => near.endpoint.peer_statistics(route.local(), into),
            _ => self.far.peer_statistics(route.local(), into),
        }
    }

    fn statistics(&self, into: &mut Vec<Statistic>) {
        if let Some(near) = &self.near {
            let mut add = |name, value: usize, help| into.push(Statistic { name, value: value as u64, help });
            let (local, remote) = (self.routes.sent_over(NEAR), self.routes.sent_over(FAR));
            add("peers_local", local, "peers that sends reach through shared memory");
            add("peers_remote", remote, "peers that sends reach over the network");
            add("lanes_near", local, "the old name of peers_local, for this release");
            add("lanes_far", remote, "the old name of peers_remote, for this release");
            near.endpoint.statistics(into);
        }
        self.far.statistics(into);
    }
}
