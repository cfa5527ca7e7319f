//! The core's view of an endpoint, which has peers once it is enabled.

use std::os::fd::RawFd;
use std::sync::Arc;

use ofi_api::{Address, EpOption, Errno, Error, Info, OpFlags, Piece, Result, Statistic};
use ofi_core::domain::DomainPart;
use ofi_core::slots::SlotId;
use ofi_core::transport::{
    Arm, GivenUp, OutAccess, OutAtomic, OutMessage, OutNote, OutPlain, OutRma, PeerId, Posted,
    TransportEndpoint, Upcalls,
};

use crate::endpoint::EfaEndpoint;
use crate::moving::Token;
use crate::op::Op;
use crate::options::Options;
use crate::{Efa, address};

/// An endpoint's peers before and after it is enabled.
pub enum EndpointState {
    Closed { domain: Arc<DomainPart<Efa>>, info: Box<Info>, options: Options },
    Open(Box<EfaEndpoint>),
}

impl EndpointState {
    /// See [`ofi_core::transport::Transport::open_endpoint`].
    pub fn new(domain: &Arc<DomainPart<Efa>>, info: &Info) -> Self {
        Self::Closed { domain: Arc::clone(domain), info: Box::new(info.clone()), options: Options::default() }
    }

    /// # Safety
    /// As [`TransportEndpoint::send_now`].
    unsafe fn inject_now<const TAGGED: bool>(
        &mut self,
        peer: PeerId,
        tag: u64,
        from: *const u8,
        len: usize,
    ) -> bool {
        let Self::Open(endpoint) = self else { return false };
        let state = &mut endpoint.peers[peer as usize];
        // SAFETY: the caller's promise.
        let sent = unsafe { state.inject_now::<TAGGED>(&mut endpoint.common, peer, tag, from, len) };
        if sent {
            endpoint.common.adapter.tell();
        }
        sent
    }

    #[inline]
    fn open(&mut self) -> Result<&mut EfaEndpoint> {
        match self {
            Self::Open(endpoint) => Ok(endpoint),
            Self::Closed { .. } => Err(Error::new(Errno::EOPBADSTATE)),
        }
    }
}

// SAFETY: an operation ends by the completion of the request that has its memory; receives and reads that end early
// wait for the device in `settle_receives`, and the queue pair is stopped before the other state is dropped.
unsafe impl TransportEndpoint<Efa> for EndpointState {
    fn enable(&mut self, name: Option<&Address>) -> Result<Address> {
        let Self::Closed { domain, info, options } = self else {
            return Err(Error::new(Errno::EOPBADSTATE));
        };
        // The local address of the offer names only the device.
        if let Some(name) = name.filter(|name| address::device(name) != Ok(domain.transport.device.gid())) {
            return Err(Error::wanted(
                Errno::EADDRNOTAVAIL,
                "the name of an endpoint of provider efa",
                "none: the device chooses it",
                name.to_string(),
                "omit the name, and pass what fi_getname returns to the peers",
            ));
        }
        let endpoint = EfaEndpoint::new(domain, info, options)?;
        let address = address::named(&endpoint.common.adapter.address);
        *self = Self::Open(Box::new(endpoint));
        Ok(address)
    }

    fn set_option(&mut self, option: EpOption, value: usize) {
        if let Self::Closed { options, .. } = self {
            options.set(option, value);
        }
    }

    fn peer<H: Upcalls<Efa>>(&mut self, host: &mut H, address: &Address) -> Result<PeerId> {
        self.open()?.peer_at(host, address::raw(address)?)
    }

    fn follows(&self) -> bool {
        // On fabric `efa` a peer accesses memory only after this end has answered its handshake.
        matches!(self, Self::Open(endpoint) if endpoint.common.direct)
    }

    fn inserted<H: Upcalls<Efa>>(&mut self, host: &mut H) {
        if let Self::Open(endpoint) = self {
            endpoint.meet(host);
        }
    }

    fn named<H: Upcalls<Efa>>(&mut self, host: &mut H, peer: PeerId) {
        if let Self::Open(endpoint) = self {
            endpoint.peers[peer as usize].named(&mut endpoint.common, host, peer);
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
        // A plain send completes when the message has arrived.
        if !injected {
            return false;
        }
        // SAFETY: the caller's promise.
        unsafe { self.inject_now::<TAGGED>(peer, tag, from, len) }
    }

    #[inline(always)]
    fn begin_now<H: Upcalls<Efa>>(&mut self, host: &mut H, out: &OutPlain) -> bool {
        let Self::Open(endpoint) = self else { return false };
        let direct = endpoint.common.direct && out.tag.is_none();
        direct && endpoint.peers[out.peer as usize].send_alone_now(&mut endpoint.common, host, out)
    }

    fn send<H: Upcalls<Efa>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted> {
        let endpoint = self.open()?;
        let state = &mut endpoint.peers[out.peer as usize];
        let posted = state
            .send(&mut endpoint.common, host, out)
            .inspect(|_| state.posted(&mut endpoint.common, out.peer));
        endpoint.posted(out.flags, posted)
    }

    #[inline(always)]
    fn access_now<H: Upcalls<Efa>>(&mut self, host: &mut H, out: &OutAccess) -> bool {
        let Self::Open(endpoint) = self else { return false };
        endpoint.peers[out.peer as usize].access_now(&mut endpoint.common, host, true, out)
    }

    fn rma<H: Upcalls<Efa>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted> {
        /// Flags that [`Peer::access_now`] always satisfies, and flags that are handled here.
        const PLAIN: OpFlags = OpFlags::COMPLETION.union(OpFlags::MORE).union(OpFlags::TRANSMIT_COMPLETE);
        let endpoint = self.open()?;
        let state = &mut endpoint.peers[out.peer as usize];
        if let ([piece], [remote]) = (out.pieces, out.remote)
            && PLAIN.contains(out.flags)
            && out.len > 0
        {
            let (piece, remote) = (*piece, *remote);
            let now = OutAccess { write: out.write, piece, remote, peer: out.peer, ticket: out.ticket };
            if state.access_now(&mut endpoint.common, host, false, &now) {
                return endpoint.posted(out.flags, Ok(Posted::Pending));
            }
        }
        let posted = state
            .rma(&mut endpoint.common, host, out)
            .inspect(|_| state.posted(&mut endpoint.common, out.peer));
        endpoint.posted(out.flags, posted)
    }

    fn atomic<H: Upcalls<Efa>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        let endpoint = self.open()?;
        let state = &mut endpoint.peers[out.peer as usize];
        let posted = state
            .atomic(&mut endpoint.common, host, out)
            .inspect(|_| state.posted(&mut endpoint.common, out.peer));
        endpoint.posted(out.flags, posted)
    }

    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let endpoint = self.open()?;
        let noted = endpoint.peers[out.peer as usize].note(&mut endpoint.common, out);
        endpoint.common.adapter.tell();
        noted
    }

    fn pull<H: Upcalls<Efa>>(&mut self, host: &mut H, peer: PeerId, token: Token, into: SlotId) {
        let Ok(endpoint) = self.open() else { return };
        endpoint.peers[peer as usize].pull(&mut endpoint.common, host, peer, token, into);
        endpoint.common.adapter.tell();
    }

    fn settle_receives<H: Upcalls<Efa>>(&mut self, host: &mut H) {
        if let Self::Open(endpoint) = self {
            endpoint.settle_receives(host);
        }
    }

    fn give_up(&mut self, peer: PeerId, id: SlotId, op: &mut Op) -> GivenUp {
        let Self::Open(endpoint) = self else { return GivenUp::Over };
        endpoint.peers[peer as usize].give_up(&mut endpoint.common, id, op)
    }

    fn is_lost(&self) -> bool {
        matches!(self, Self::Open(endpoint) if endpoint.is_lost())
    }

    fn removed(&mut self, peer: PeerId, id: SlotId, op: Op) {
        if let Self::Open(endpoint) = self {
            endpoint.peers[peer as usize].abandoned(&mut endpoint.common, id, op);
        }
    }

    fn discard(&mut self, peer: PeerId, token: Token) {
        let Ok(endpoint) = self.open() else { return };
        endpoint.peers[peer as usize].discard(&mut endpoint.common, peer, token);
        endpoint.common.adapter.tell();
    }

    fn reaches<H: Upcalls<Efa>>(
        &mut self,
        _host: &mut H,
        _peer: Option<PeerId>,
        pieces: &[Piece],
        accesses: bool,
    ) -> bool {
        let Self::Open(endpoint) = self else { return false };
        let common = &endpoint.common;
        // Short messages are copied into the request, and those of several pieces into one slot.
        let sends = || common.direct && matches!(pieces, [piece] if piece.len > common.adapter.inline());
        (accesses || sends()) && common.domain.transport.dmabufs.touch(pieces)
    }

    fn poll<H: Upcalls<Efa>>(&mut self, host: &mut H) {
        if let Self::Open(endpoint) = self {
            endpoint.poll(host);
        }
    }

    fn arm(&mut self) -> Arm {
        match self {
            Self::Open(endpoint) => endpoint.arm(),
            Self::Closed { .. } => Arm::Armed,
        }
    }

    fn wait_fd(&self) -> Option<RawFd> {
        match self {
            Self::Open(endpoint) => Some(endpoint.waits.fd()),
            Self::Closed { .. } => None,
        }
    }

    fn statistics(&self, into: &mut Vec<Statistic>) {
        let Self::Open(endpoint) = self else { return };
        let common = &endpoint.common;
        let counts = &common.counts;
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("efa_eager", counts.eager, "messages sent in one packet");
        add("efa_medium", counts.medium, "messages sent in a few packets at once");
        add("efa_long", counts.long, "messages sent as their receiver cleared them");
        add("efa_lent", counts.lent, "messages announced for their receivers to read");
        add("efa_runts", counts.runts, "of those, messages whose first bytes were sent ahead");
        add("efa_fetched", counts.fetched, "payloads that this end read from their senders");
        add("efa_nacks", counts.nacks, "payloads that this end could not read, and requested in packets");
        add("efa_native_reads", counts.native_reads, "requests that read a peer's memory");
        add("efa_native_writes", counts.native_writes, "requests that write a peer's memory");
        add(
            "efa_native_refused",
            counts.native_refused,
            "accesses that the peer's device refused, sent to the memory's owner instead",
        );
        add("efa_sent", counts.sent, "packets posted");
        add("efa_doorbells", common.adapter.doorbells, "doorbells rung for requests");
        add("efa_received", counts.received, "packets received");
        add("efa_not_ready", counts.not_ready, "packets resent because the receiver had no receive posted");
        add("efa_failed", counts.failed, "packets that the device could not deliver, or not confirm");
        add("efa_repeated", counts.repeated, "of those, packets that were sent again");
        add("efa_early", counts.early, "packets that arrived out of order, ahead of their turn");
        add("efa_stalls", counts.stalls, "messages and reports that waited for room in this endpoint");
        add("efa_refused", counts.refused, "accesses by peers that this end refused");
        add("efa_strangers", counts.strangers, "packets from unknown senders");
        add("efa_stale", counts.stale, "packets from closed endpoints, or about operations that have ended");
        add("efa_version", counts.version, "packets of another protocol version");
        let cache = common.domain.transport.cache.counts();
        add("efa_mr_cache_hits", cache.hits, "uses of a cached registration of local memory");
        add(
            "efa_mr_cache_misses",
            cache.misses,
            "registrations of local memory made, cached or for one operation",
        );
        add("efa_mr_cache_evictions", cache.evictions, "registrations evicted from the cache");
        add(
            "efa_mr_cache_invalidations",
            cache.invalidations,
            "cached registrations that ended because the pages of their memory were replaced",
        );
        add("efa_mr_cache_count", cache.kept as u64, "registrations in the cache now");
        add("efa_mr_cache_size", cache.bytes as u64, "bytes of the cached registrations");
        let peers = &endpoint.peers;
        let held = peers.iter().map(|state| state.window.bytes()).sum::<usize>();
        let open =
            peers.iter().map(|state| state.outstanding + state.detached + state.transfers).sum::<usize>();
        add("efa_packets_now", common.adapter.taken() as u64, "slots of packets in flight");
        add(
            "efa_numbers_now",
            common.ids.len() as u64,
            "operations and transfers with a number that peers refer to",
        );
        add("efa_open_now", open as u64, "operations of this end and requests of its device under way");
        add("efa_held_now", held as u64, "bytes of messages held because they arrived out of order");
        add("efa_malformed", counts.malformed, "packets that violate the protocol");
    }
}
