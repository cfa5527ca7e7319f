//! An endpoint's peers, for every endpoint type, behind the core's interface.

use std::any::Any;
use std::os::fd::RawFd;
use std::sync::Arc;

use ofi_api::{Address, EpType, Errno, Error, Info, OpFlags, Piece, Result, Statistic};
use ofi_core::domain::DomainPart;
use ofi_core::slots::SlotId;
use ofi_core::transport::record::Fields;
use ofi_core::transport::{
    Arm, OutAccess, OutAtomic, OutMessage, OutNote, OutRma, PeerId, Posted, RequestData, TransportEndpoint,
    Upcalls,
};

use crate::adapter::Posted as Request;
use crate::connected::Connected;
use crate::datagram::Datagrams;
use crate::endpoint::VerbsEndpoint;
use crate::op::{One, Op, Token};
use crate::peer::Peer;
use crate::transfer::End;
use crate::wire::kind;
use crate::{Verbs, address};

/// An endpoint's peers before and after it is enabled.
pub enum EndpointState {
    Closed {
        domain: Arc<DomainPart<Verbs>>,
        info: Box<Info>,
        /// The queues that report its operations and its receives.
        queues: [Option<usize>; 2],
    },
    Open(Box<VerbsEndpoint>),
    /// An endpoint of `FI_EP_DGRAM`.
    Datagrams(Box<Datagrams>),
    /// An endpoint of `FI_EP_MSG`.
    Connected(Box<Connected>),
}

impl EndpointState {
    /// See [`ofi_core::transport::Transport::open_endpoint`].
    pub fn new(domain: &Arc<DomainPart<Verbs>>, info: &Info) -> Self {
        Self::Closed { domain: Arc::clone(domain), info: Box::new(info.clone()), queues: [None; 2] }
    }

    /// The address of an enabled endpoint.
    fn address(&self) -> Result<Address> {
        match self {
            Self::Closed { .. } => Err(Error::new(Errno::EOPBADSTATE)),
            Self::Open(endpoint) => Ok(Address::from(address::canonical(endpoint.common.adapter.address))),
            Self::Datagrams(datagrams) => Ok(datagrams.address()),
            Self::Connected(connected) => Ok(connected.address()),
        }
    }

    fn connected(&mut self) -> Result<&mut Connected> {
        match self {
            Self::Connected(connected) => Ok(connected),
            _ => Err(Error::new(Errno::ENOSYS)),
        }
    }

    #[inline]
    fn open(&mut self) -> Result<&mut VerbsEndpoint> {
        match self {
            Self::Open(endpoint) => Ok(endpoint),
            Self::Closed { .. } => Err(Error::new(Errno::EOPBADSTATE)),
            Self::Datagrams(_) => Err(Error::with(
                Errno::EOPNOTSUPP,
                "endpoints of FI_EP_DGRAM support messages only; use FI_EP_RDM",
            )),
            Self::Connected(_) => Err(Error::with(
                Errno::EOPNOTSUPP,
                "endpoints of FI_EP_MSG support messages, reads, writes and the device's atomics; use FI_EP_RDM for the rest",
            )),
        }
    }
}

// SAFETY: an operation ends by the completion of the request that has its memory; failed queue pairs are flushed, and
// dropped before the operations of their peers are.
unsafe impl TransportEndpoint<Verbs> for EndpointState {
    fn enable(&mut self, name: Option<&Address>) -> Result<Address> {
        let (domain, info, queues) = match self {
            Self::Closed { domain, info, queues } => (domain, info, queues),
            reserved => return reserved.address(),
        };
        if info.ep_attr.ep_type == EpType::Dgram {
            *self = Self::Datagrams(Box::new(Datagrams::new(domain, info, name)?));
            return self.address();
        }
        if info.ep_attr.ep_type == EpType::Msg {
            *self = Self::Connected(Box::new(Connected::new(domain, info, name, *queues)?));
            return self.address();
        }
        *self = Self::Open(Box::new(VerbsEndpoint::new(domain, info, name)?));
        self.address()
    }

    fn reserve(&mut self, name: Option<&Address>) -> Result<Option<Address>> {
        self.enable(name).map(Some) // a connected endpoint then has a completion queue of the device for itself
    }

    fn report_to(&mut self, to: [Option<usize>; 2]) {
        if let Self::Closed { queues, .. } = self {
            *queues = to;
        }
    }

    fn peer<H: Upcalls<Verbs>>(&mut self, host: &mut H, address: &Address) -> Result<PeerId> {
        if let Self::Datagrams(datagrams) = self {
            return datagrams.peer(host, address);
        }
        let endpoint = self.open()?;
        let socket = address::socket(address)?;
        let own = endpoint.common.adapter.address;
        if socket.is_ipv4() != own.is_ipv4() || socket.port() == 0 {
            return Err(Error::with(
                Errno::EADDRNOTAVAIL,
                format!(
                    "{socket} cannot be reached from {own}: it needs a port, and the same address family"
                ),
            ));
        }
        Ok(endpoint.peer_at(host, socket))
    }

    fn send<H: Upcalls<Verbs>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted> {
        match self {
            Self::Datagrams(datagrams) => return datagrams.send(out),
            Self::Connected(connected) => return connected.send(host, out),
            Self::Closed { .. } | Self::Open(_) => {}
        }
        let endpoint = self.open()?;
        endpoint.prepare(out.peer)?;
        endpoint.peers[out.peer as usize].send(&mut endpoint.common, host, out)
    }

    #[inline]
    fn access_now<H: Upcalls<Verbs>>(&mut self, host: &mut H, out: &OutAccess) -> bool {
        let Self::Open(endpoint) = self else { return false };
        let state = &mut endpoint.peers[out.peer as usize];
        state.access_now(&mut endpoint.common, host, (out.peer, out.ticket), &One::from(out))
    }

    fn rma<H: Upcalls<Verbs>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted> {
        /// Flags that [`Peer::access_now`] satisfies: the end of its request is the device's acknowledgement.
        const PLAIN: OpFlags = OpFlags::COMPLETION
            .union(OpFlags::MORE)
            .union(OpFlags::INJECT)
            .union(OpFlags::INJECT_COMPLETE)
            .union(OpFlags::TRANSMIT_COMPLETE);
        if let Self::Connected(connected) = self {
            return connected.rma(host, out);
        }
        let endpoint = self.open()?;
        if let ([piece], [remote]) = (out.pieces, out.remote)
            && PLAIN.contains(out.flags)
            && (1..=piece.len).contains(&out.len)
            && remote.len == out.len
        {
            let piece = Piece { len: out.len, ..*piece };
            let injected = out.flags.contains(OpFlags::INJECT);
            let one = One { write: out.write, piece, remote: *remote, injected };
            let state = &mut endpoint.peers[out.peer as usize];
            if state.access_now(&mut endpoint.common, host, (out.peer, out.ticket), &one) {
                return Ok(Posted::Pending);
            }
        }
        endpoint.prepare(out.peer)?;
        endpoint.peers[out.peer as usize].rma(&mut endpoint.common, host, out)
    }

    fn atomic<H: Upcalls<Verbs>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        if let Self::Connected(connected) = self {
            return connected.atomic(host, out);
        }
        let endpoint = self.open()?;
        endpoint.prepare(out.peer)?;
        endpoint.peers[out.peer as usize].atomic(&mut endpoint.common, host, out)
    }

    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let endpoint = self.open()?;
        endpoint.prepare(out.peer)?;
        let state = &mut endpoint.peers[out.peer as usize];
        state.may_post(ofi_api::OpFlags::empty())?;
        if !state.is_open() {
            // An endpoint that closes after its part of a collective waits for posted records, but establishes no
            // connections.
            state.wanted = endpoint.common.turn;
            return Err(Error::AGAIN);
        }
        let mut fields = Fields::new();
        for word in out.words {
            fields.word(word);
        }
        state.record(
            &mut endpoint.common,
            out.peer,
            (kind::NOTE, 0),
            fields.bytes(),
            out.len,
            None,
            |body| {
                // SAFETY: the pieces are lent during the call, and `body` has `len` bytes.
                unsafe { ofi_core::copy::gather(out.pieces, out.skip, body, out.len) };
            },
        );
        Ok(())
    }

    fn await_note(&mut self, peer: PeerId) {
        if let Self::Open(endpoint) = self {
            endpoint.await_note(peer);
        }
    }

    fn pull<H: Upcalls<Verbs>>(&mut self, host: &mut H, peer: PeerId, token: Token, into: SlotId) {
        let Ok(endpoint) = self.open() else { return };
        endpoint.peers[peer as usize].pull(&mut endpoint.common, host, peer, token, into);
    }

    fn abandon(&mut self, peer: PeerId, id: SlotId, op: &mut Op) -> bool {
        let Ok(endpoint) = self.open() else { return false };
        endpoint.peers[peer as usize].abandon(&mut endpoint.common, peer, id, op)
    }

    fn sever<H: Upcalls<Verbs>>(&mut self, host: &mut H, peer: PeerId) -> bool {
        let Self::Open(endpoint) = self else { return false };
        endpoint.sever(host, peer);
        true
    }

    fn is_lost(&self) -> bool {
        match self {
            Self::Closed { .. } => false,
            Self::Open(endpoint) => endpoint.common.gone.is_some(),
            Self::Datagrams(datagrams) => datagrams.is_lost(),
            Self::Connected(connected) => connected.is_lost(),
        }
    }

    fn removed(&mut self, peer: PeerId, _id: SlotId, op: Op) {
        if let Self::Open(endpoint) = self {
            endpoint.peers[peer as usize].is_over(&op);
        }
    }

    fn settle_receives<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        if let Self::Connected(connected) = self {
            return connected.settle_receives(host);
        }
        let Ok(endpoint) = self.open() else { return };
        for peer in 0..endpoint.peers.len() {
            let mut is_gone = false;
            for id in endpoint.peers[peer].transfers.ids(|_| true) {
                is_gone |= match endpoint.peers[peer].transfers.get(id).map(|transfer| &transfer.end) {
                    Some(&End::Receive { into, .. }) => host.receiving(into).is_none(),
                    Some(&(End::Access(op) | End::Told(op, _))) => host.op(peer as PeerId, op).is_none(),
                    None => false,
                };
            }
            for posted in endpoint.common.adapter.posted.values() {
                is_gone |= match *posted {
                    Request::Single { peer: of, op, .. } => of as usize == peer && host.op(of, op).is_none(),
                    Request::Send { .. } | Request::Step { .. } => false,
                };
            }
            if !is_gone {
                continue;
            }
            // The device may still write to that memory: only the end of the connection stops it.
            endpoint.stop(peer as PeerId);
            endpoint.unlink(peer as PeerId);
            endpoint.peers[peer].lose(&mut endpoint.common, host, peer as PeerId, Errno::ECONNABORTED);
        }
    }

    fn discard(&mut self, peer: PeerId, token: Token) {
        let Ok(endpoint) = self.open() else { return };
        endpoint.peers[peer as usize].discard(&mut endpoint.common, peer, &token);
    }

    fn poll<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        match self {
            Self::Open(endpoint) => endpoint.poll(host),
            Self::Datagrams(datagrams) => datagrams.poll(host),
            Self::Connected(connected) => connected.poll(host),
            Self::Closed { .. } => {}
        }
    }

    fn claims(&self) -> bool {
        matches!(self, Self::Connected(_))
    }

    fn share(&mut self, receives: &Arc<dyn ofi_core::transport::SharedReceives>) {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(receives) as _;
        if let (Self::Connected(connected), Ok(receives)) = (self, any.downcast()) {
            connected.share(receives);
        }
    }

    fn receive_posted<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        if let Self::Connected(connected) = self {
            connected.claim(host);
        }
    }

    fn reaches<H: Upcalls<Verbs>>(
        &mut self,
        _host: &mut H,
        _peer: Option<PeerId>,
        pieces: &[Piece],
        _accesses: bool,
    ) -> bool {
        matches!(self, Self::Connected(connected) if connected.reaches(pieces))
    }

    fn packet(&mut self, to: &Address, packet: &[u8], _watch: bool) -> Result<()> {
        self.connected()?.packet(to, packet)
    }

    fn adopt(&mut self, held: &RequestData) -> Result<()> {
        self.connected()?.adopt(held)
    }

    fn join<H: Upcalls<Verbs>>(&mut self, host: &mut H, address: &Address, _first: bool) -> Result<()> {
        self.connected()?.join(host, address);
        Ok(())
    }

    fn part<H: Upcalls<Verbs>>(&mut self, host: &mut H, _drain: bool) {
        if let Self::Connected(connected) = self {
            connected.part(host);
        }
    }

    fn join_group(&mut self, group: &Address, receives: bool) -> Result<(Address, Posted)> {
        match self {
            Self::Datagrams(datagrams) => datagrams.join_group(group, receives),
            _ => Err(Error::with(Errno::ENOSYS, "only endpoints of FI_EP_DGRAM join multicast groups")),
        }
    }

    fn leave_group(&mut self, group: &Address, receives: bool) {
        if let Self::Datagrams(datagrams) = self {
            datagrams.leave_group(group, receives);
        }
    }

    fn arm(&mut self) -> Arm {
        match self {
            Self::Open(endpoint) => endpoint.arm(),
            Self::Datagrams(datagrams) => datagrams.arm(),
            Self::Connected(connected) => connected.arm(),
            Self::Closed { .. } => Arm::Armed,
        }
    }

    fn wait_fd(&self) -> Option<RawFd> {
        match self {
            Self::Open(endpoint) => Some(endpoint.common.adapter.waiter.fd()),
            Self::Datagrams(datagrams) => Some(datagrams.wait_fd()),
            Self::Connected(connected) => Some(connected.wait_fd()),
            Self::Closed { .. } => None,
        }
    }

    fn statistics(&self, into: &mut Vec<Statistic>) {
        match self {
            Self::Datagrams(datagrams) => return datagrams.statistics(into),
            Self::Connected(connected) => return connected.statistics(into),
            Self::Closed { .. } | Self::Open(_) => {}
        }
        let Self::Open(endpoint) = self else { return };
        endpoint.common.adapter.watch.statistics(into);
        let counts = &endpoint.common.counts;
        let open = endpoint.peers.iter().filter(|state| state.link.id().is_some_and(|id| id.qp().is_some()));
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("verbs_eager", counts.eager, "messages sent inside a record");
        add("verbs_announced", counts.announced, "messages announced, for the receiver to read");
        add("verbs_reads", counts.reads, "remote reads posted for announced messages");
        add(
            "verbs_native_writes",
            counts.native_writes,
            "requests with which the device writes a peer's memory",
        );
        add(
            "verbs_native_reads",
            counts.native_reads,
            "requests with which the device reads a peer's memory",
        );
        add(
            "verbs_asked_again",
            counts.asked_again,
            "accesses that a peer's device refused, sent to the memory's owner instead",
        );
        add("verbs_keys_given", counts.given, "device keys of registrations sent to peers");
        let cache = endpoint.common.domain.transport.cache.counts();
        add("verbs_mr_cache_hits", cache.hits, "uses of a cached registration of local memory");
        add(
            "verbs_mr_cache_misses",
            cache.misses,
            "registrations of local memory made, cached or for one operation",
        );
        add("verbs_mr_cache_evictions", cache.evictions, "registrations evicted from the cache");
        add(
            "verbs_mr_cache_invalidations",
            cache.invalidations,
            "cached registrations that ended because the pages of their memory were replaced",
        );
        add("verbs_mr_cache_count", cache.kept as u64, "registrations in the cache now");
        add("verbs_mr_cache_size", cache.bytes as u64, "bytes of the cached registrations");
        add("verbs_regions", counts.regions, "registrations made for announced messages");
        add("verbs_sent", counts.sent, "records posted");
        add("verbs_inline", counts.inline, "records sent inline");
        add("verbs_quiet", counts.quiet, "unsignaled records, whose success the device does not report");
        add("verbs_packs", counts.packs, "records that are packs of several queued ones");
        add("verbs_received", counts.received, "records received");
        add("verbs_stalls", counts.stalls, "received records that waited for room in this endpoint");
        add("verbs_connections", counts.connections, "connections established");
        add("verbs_retired", counts.retired, "connections closed because they were idle");
        add("verbs_probes", counts.probes, "requests that probed whether a peer is alive");
        add("verbs_connections_now", open.count() as u64, "peers with a queue pair now");
        let now = |of: fn(&Peer) -> usize| endpoint.peers.iter().map(of).sum::<usize>() as u64;
        add(
            "verbs_requests_now",
            now(|state| state.requests.saturating_sub(state.quiet.len()) + state.transfers.len()),
            "requests and transfers under way, except unsignaled records",
        );
        add(
            "verbs_waiting_now",
            now(|state| state.waiting),
            "bytes of queued records that wait for room or credits",
        );
        add(
            "verbs_slots_now",
            endpoint.common.adapter.slots() as u64,
            "slots of records under way, except unsignaled ones",
        );
        add(
            "verbs_malformed",
            counts.malformed,
            "records and requests that violate the protocol, or come from another program",
        );
    }
}
