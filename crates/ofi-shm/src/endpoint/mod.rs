//! All peers of an endpoint: their state, and the operations that the core calls.
//!
//! `peers.rs`: creation and reuse; `events.rs`: events of the helper thread; `poll.rs`: polling; `cold.rs`: peers that
//! are polled rarely; `sleep.rs`: sleeping; `close.rs`: the end; `statistics.rs`: counters.

mod close;
mod cold;
mod connection;
mod events;
mod peers;
mod poll;
mod sleep;
mod statistics;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use ofi_api::{AddrFormat, Address, EpOption, Errno, Error, Info, Result, Statistic};
use ofi_core::domain::DomainPart;
use ofi_core::slots::SlotId;
use ofi_core::transport::{
    Arm, OutAtomic, OutMessage, OutNote, OutRma, PeerId, Posted, TransportEndpoint, Upcalls,
};
use ofi_ring::doorbell::Sleeper;
use ofi_ring::{membarrier, mpsc};
use rustc_hash::FxHashMap;

use crate::Shm;
use crate::common::{Common, EndpointCounts};
use crate::endpoint_info::{EndpointInfo, may_map_devices};
use crate::event::HelperEvent;
use crate::helper::Helper;
use crate::hints::HintTable;
use crate::layout::endpoint;
use crate::op::Op;
use crate::peer::Peer;
use crate::settings::{SINGLE_COPY_SIZE, SingleCopy, StreamingStores};
use crate::shared::SharedEndpoint;
use crate::token::Token;

/// The peers of one endpoint.
pub struct ShmEndpoint {
    inbox: mpsc::Receiver<HelperEvent>,
    /// Events that wait until everything that a peer sent has been processed.
    postponed: Vec<HelperEvent>,
    pub(crate) format: AddrFormat,
    pub(crate) by_socket: FxHashMap<Vec<u8>, PeerId>,
    pub(crate) peers: Vec<Peer>,
    /// Lost peers, the oldest first. Some may be in use again.
    spare: VecDeque<PeerId>,
    hot: Vec<PeerId>,
    cold: Vec<PeerId>,
    hinted: HintTable,
    next_cold: usize,
    next_line: usize,
    sleeper: Sleeper,
    armed: bool,
    /// The next poll must do more than check the hot peers.
    rare: bool,
    /// Polls since the endpoint last prepared to sleep. `None` if senders need not ring.
    polls_awake: Option<u32>,
    /// Keeps the endpoint's memory: dropped last.
    pub(crate) common: Common,
}

/// An endpoint's peers before and after it is enabled.
pub enum EndpointState {
    Closed { domain: Arc<DomainPart<Shm>>, info: EndpointInfo },
    Open(Box<ShmEndpoint>),
}

impl EndpointState {
    /// See [`ofi_core::transport::Transport::open_endpoint`].
    pub fn new(domain: &Arc<DomainPart<Shm>>, info: &Info) -> Self {
        Self::Closed { domain: Arc::clone(domain), info: EndpointInfo::of(info) }
    }

    #[inline]
    fn open(&mut self) -> Result<&mut ShmEndpoint> {
        match self {
            Self::Open(endpoint) => Ok(endpoint),
            Self::Closed { .. } => Err(Error::new(Errno::EOPBADSTATE)),
        }
    }
}

impl ShmEndpoint {
    fn new(domain: &Arc<DomainPart<Shm>>, info: &EndpointInfo, name: Option<&Address>) -> Result<Self> {
        let barrier = membarrier::register();
        let helper = Helper::get()?;
        let (shared, inbox) = SharedEndpoint::open(domain, name, info, barrier)?;
        helper.add(&shared);
        // SAFETY: the word lies in the endpoint memory, which `common.shared` keeps; only this sleeper stores it.
        let sleeper = unsafe { Sleeper::new(shared.memory.word(endpoint::SLEEPING), barrier) };
        let common = Common {
            shared,
            helper,
            eager: crate::common::eager(),
            kept: 0,
            kept_limit: crate::settings::KEPT_BYTES.get(),
            strict: info.strict,
            single: SingleCopy::get(),
            single_size: SINGLE_COPY_SIZE.get(),
            streaming: StreamingStores::get(),
            counts: EndpointCounts::default(),
            mapped_devices: Arc::default(),
        };
        tracing::info!(
            target: "ofi::shm::ep_ctrl",
            address = %common.shared.address,
            inside_up_to = common.eager,
            single_copies = ?common.single,
            single_copies_from = common.single_size,
            kept = common.kept_limit,
            "opened shared memory"
        );
        Ok(Self {
            common,
            inbox,
            postponed: Vec::new(),
            format: info.format,
            by_socket: FxHashMap::default(),
            peers: Vec::new(),
            spare: VecDeque::new(),
            hot: Vec::new(),
            cold: Vec::new(),
            hinted: HintTable::default(),
            next_cold: 0,
            next_line: 0,
            sleeper,
            armed: false,
            rare: false,
            polls_awake: None,
        })
    }
}

// SAFETY: copies by this end run in its polls and are finished when they report; a peer copies under a lease or a
// grant, which ends before the operation does (`bulk`, `single`, `grants`); dropping the state withdraws all of them.
unsafe impl TransportEndpoint<Shm> for EndpointState {
    fn enable(&mut self, name: Option<&Address>) -> Result<Address> {
        let endpoint = match self {
            Self::Closed { domain, info } => ShmEndpoint::new(domain, info, name)?,
            Self::Open(endpoint) => return Ok(endpoint.common.shared.address.clone()), // it was reserved
        };
        let address = endpoint.common.shared.address.clone();
        *self = Self::Open(Box::new(endpoint));
        Ok(address)
    }

    fn reserve(&mut self, name: Option<&Address>) -> Result<Option<Address>> {
        self.enable(name).map(Some) // peers are served when they are polled
    }

    fn peer<H: Upcalls<Shm>>(&mut self, host: &mut H, address: &Address) -> Result<PeerId> {
        let endpoint = self.open()?;
        let socket = crate::name::socket_name(address)?;
        endpoint.meet(host, &socket).ok_or_else(|| Error::new(Errno::EADDRNOTAVAIL))
    }

    #[inline(always)]
    unsafe fn send_now<const TAGGED: bool>(
        &mut self,
        peer: PeerId,
        tag: u64,
        from: *const u8,
        len: usize,
        _injected: bool,
    ) -> bool {
        let Self::Open(endpoint) = self else { return false };
        let Some(state) = endpoint.peers.get_mut(peer as usize) else { return false };
        // SAFETY: the caller's promise.
        unsafe { state.send_now::<TAGGED>(&mut endpoint.common, tag, from, len) }
    }

    fn send<H: Upcalls<Shm>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted> {
        let Self::Open(endpoint) = self else { return Err(Error::new(Errno::EOPBADSTATE)) };
        endpoint.peers[out.peer as usize].send(&mut endpoint.common, host, out)
    }

    fn rma<H: Upcalls<Shm>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted> {
        let endpoint = self.open()?;
        endpoint.peers[out.peer as usize].rma(&mut endpoint.common, host, out)
    }

    fn rma_mapped(&mut self, out: &OutRma<'_>) -> Option<Result<Posted>> {
        let Self::Open(endpoint) = self else { return None };
        endpoint.peers[out.peer as usize].rma_mapped(&mut endpoint.common, out)
    }

    fn set_option(&mut self, option: EpOption, value: usize) {
        const P2P_DISABLED: usize = 3;
        if option != EpOption::HmemP2p {
            return;
        }
        match self {
            Self::Open(endpoint) => endpoint.common.shared.map_devices(value != P2P_DISABLED),
            Self::Closed { info, .. } => {
                info.maps_devices = may_map_devices(info.caps, value != P2P_DISABLED)
            }
        }
    }

    fn atomic<H: Upcalls<Shm>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        let endpoint = self.open()?;
        endpoint.peers[out.peer as usize].atomic(&mut endpoint.common, host, out)
    }

    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let endpoint = self.open()?;
        endpoint.peers[out.peer as usize].note(&mut endpoint.common, out)
    }

    fn pull<H: Upcalls<Shm>>(&mut self, host: &mut H, peer: PeerId, token: Token, into: SlotId) {
        if let Ok(endpoint) = self.open() {
            endpoint.peers[peer as usize].pull(&mut endpoint.common, host, token, into);
        }
    }

    fn abandon(&mut self, peer: PeerId, id: SlotId, op: &mut Op) -> bool {
        match self {
            Self::Open(endpoint) => {
                endpoint.peers.get_mut(peer as usize).is_some_and(|state| state.abandon(id, op))
            }
            Self::Closed { .. } => false,
        }
    }

    fn settle_receives<H: Upcalls<Shm>>(&mut self, host: &mut H) {
        if let Self::Open(endpoint) = self {
            for &peer in &endpoint.hot {
                endpoint.peers[peer as usize].settle_receives(host);
            }
        }
    }

    fn discard(&mut self, peer: PeerId, token: Token) {
        if let Ok(endpoint) = self.open() {
            endpoint.peers[peer as usize].discard(&mut endpoint.common, token);
        }
    }

    #[inline(always)]
    fn poll<H: Upcalls<Shm>>(&mut self, host: &mut H) {
        if let Self::Open(endpoint) = self {
            endpoint.poll(host);
        }
    }

    fn arm(&mut self) -> Arm {
        self.open().map_or(Arm::Armed, ShmEndpoint::arm)
    }

    fn wait_fd(&self) -> Option<RawFd> {
        match self {
            Self::Open(endpoint) => Some(endpoint.common.shared.event.as_raw_fd()),
            Self::Closed { .. } => None,
        }
    }

    fn packet(&mut self, to: &Address, packet: &[u8], watch: bool) -> Result<()> {
        self.open()?.packet(to, packet, watch)
    }

    fn join<H: Upcalls<Shm>>(&mut self, host: &mut H, address: &Address, first: bool) -> Result<()> {
        self.open()?.join(host, address, first)
    }

    fn part<H: Upcalls<Shm>>(&mut self, host: &mut H, drain: bool) {
        if let Ok(endpoint) = self.open() {
            endpoint.part(host, drain);
        }
    }

    fn statistics(&self, into: &mut Vec<Statistic>) {
        if let Self::Open(endpoint) = self {
            endpoint.statistics(into);
        }
    }
}
