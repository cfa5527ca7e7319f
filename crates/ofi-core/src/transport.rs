//! The contract between the core and a transport.
//!
//! A transport moves packets or commands to peers and reports which operations have ended. It does not match, complete
//! or block. All calls of one endpoint's [`TransportEndpoint`] are serialised by that endpoint's lock. Calls into the
//! core go through [`Upcalls`], and only from inside a call of the core into the transport: sources never call the
//! application.

mod endpoint;
mod outgoing;
mod part;
mod payload;
mod port;
pub mod record;
pub mod served;
mod upcalls;

use std::sync::Arc;

use ofi_api::{
    Address, AtomicKind, Datatype, Dmabuf, EpOption, EpType, Errno, Error, FiOp, Info, LibraryMemory,
    MrAccess, MrAttr, Placement, Result, RxAttr,
};

use crate::hmem::RegisteredDevice;
pub use crate::source::Arm;

pub use endpoint::{Attendant, GivenUp, Posted, SharedReceives, TransportEndpoint};
pub use outgoing::{OutAccess, OutAtomic, OutMessage, OutNote, OutPlain, OutRma};
pub use part::{DomainPart, RegionData, Regions, Registered};
pub use payload::Payload;
pub use port::{DATA_SIZE, MAX_PACKET, Port, Reaction, RequestData};
pub(crate) use upcalls::Origin;
pub use upcalls::{Announced, Arrived, CompletionInfo, CounterTarget, Delivery, Fault, Receiving, Upcalls};

/// An endpoint's own number for a peer, assigned by its [`TransportEndpoint`] from 0 on without gaps. A number is
/// reused only when nothing refers to its peer any more ([`Upcalls::retire`]).
pub type PeerId = u32;

/// A receive context of a peer (scalable endpoints; `fi_rx_addr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxName(u16);

impl RxName {
    /// The context that the peer chooses.
    pub const ANY: Self = Self(0);

    /// The context `index`, up to 65,534; `None` beyond.
    pub fn of(index: u64) -> Option<Self> {
        u16::try_from(index).ok()?.checked_add(1).map(Self)
    }

    /// The context's index, unless it is [`RxName::ANY`].
    #[inline]
    pub fn index(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }

    /// Whether an endpoint with one receive context has it.
    #[inline(always)]
    pub const fn is_of_one(self) -> bool {
        self.0 <= 1
    }

    /// The context as it is sent over the wire; 0 for [`RxName::ANY`], which a transport may omit.
    #[inline]
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// As it came over the wire.
    #[inline]
    pub const fn from_wire(bits: u16) -> Self {
        Self(bits)
    }
}

/// Remote CQ data of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteData {
    /// The data.
    pub value: u64,
    /// The receive context that reports it.
    pub rx: RxName,
}

/// A transport of messages.
///
/// # Safety
/// Memory that [`Transport::alloc`] returns is valid for its length while it exists, and belongs to nothing else. Peers
/// and devices access a registration only between [`Transport::register`] and [`Transport::deregister`], and only as
/// its rights allow.
pub unsafe trait Transport: Sized + Send + Sync + 'static {
    /// This transport's state of a domain.
    type Domain: Send + Sync + 'static;
    /// This transport's state of a registration.
    type Region: Send + Sync + 'static;
    /// This transport's state of an endpoint.
    type Endpoint: TransportEndpoint<Self>;
    /// This transport's state of an outstanding send, read or write.
    type Op: Send + 'static;
    /// Names a payload that is still at its sender.
    type Token: Send + 'static;

    /// Whether reliable endpoints can report that a message was matched with a receive (`FI_MATCH_COMPLETE`).
    const MATCHES: bool = false;

    /// Whether connections are established only while their endpoints are polled. If so, a thread polls for
    /// applications that do not ([`crate::cm::keeper`]).
    const KEEPS: bool = false;

    /// Whether a single read or write can be abandoned while its endpoint continues ([`TransportEndpoint::give_up`]).
    const ABANDONS: bool = false;

    /// Whether a device may register a dma-buf ([`MrAttr::of_dmabuf`]).
    const DMABUF: bool = false;

    /// Whether a device may register a dma-buf of a GPU's memory ([`Transport::register_device`]).
    const EXPORTS: bool = false;

    /// Whether each peer has a connection of its own that can be ended ([`TransportEndpoint::sever`]).
    const SEVERS: bool = false;

    /// The longest authorization key that its endpoints check, in bytes; 0 if they check none ([`crate::auth`]).
    const AUTH_KEY_SIZE: usize = 0;

    /// The length, in bytes, of the library's prefix of messages of an endpoint of this info (`FI_MSG_PREFIX`). The
    /// length of a send includes the prefix, and length limits do not.
    fn prefix(_info: &Info) -> usize {
        0
    }

    /// Opens a domain, whose registrations are `registered`.
    ///
    /// # Errors
    /// Errors of opening its resources.
    fn open_domain(info: &Info, registered: &Registered<Self::Region>) -> Result<Self::Domain>;

    /// Opens a transport's part of an endpoint. No peer can reach it before [`TransportEndpoint::enable`]. The
    /// endpoint's authorization key is that of `info.ep_attr`, wherever the application gave it.
    ///
    /// # Errors
    /// Errors of opening its resources.
    fn open_endpoint(domain: &Arc<DomainPart<Self>>, info: &Info) -> Result<Self::Endpoint>;

    /// Prepares a registration, before its key is known.
    ///
    /// # Errors
    /// `FI_ENOSYS` for memory that the transport cannot register.
    fn register(domain: &Self::Domain, attr: &MrAttr<'_>) -> Result<Self::Region>;

    /// Registers device memory (`FI_HMEM`). `dmabuf`: the memory, if its driver has exported it for a NIC of the
    /// transport ([`Transport::exports`]). A transport that neither has such NICs nor maps device memory registers it
    /// as [`Transport::register`] does, and the owner copies for its peers; so does one whose NIC refuses the dma-buf.
    ///
    /// # Errors
    /// As [`Transport::register`].
    fn register_device(
        domain: &Self::Domain,
        attr: &MrAttr<'_>,
        _device: &RegisteredDevice,
        _dmabuf: Option<Dmabuf<'_>>,
    ) -> Result<Self::Region> {
        Self::register(domain, attr)
    }

    /// Whether a device is to have the dma-buf of this memory ([`Transport::register_device`]): by default if peers
    /// may access it.
    fn exports(_domain: &Self::Domain, attr: &MrAttr<'_>) -> bool {
        attr.access().intersects(MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE)
    }

    /// The key by which peers' devices name a registration, where the domain chooses keys (`FI_MR_PROV_KEY`). `None`:
    /// any key will do. No other open registration of the domain has this key.
    fn key(_region: &Self::Region) -> Option<u64> {
        None
    }

    /// Stops accesses of peers that bypass the owner of a registration: one whose key is already gone
    /// ([`ofi_api::MemoryRegion::close`]), or one that counts its accesses from now on
    /// ([`crate::keys::Region::is_counted`]).
    ///
    /// # Errors
    /// `FI_EBUSY` if a live peer did not stop within the bound.
    fn deregister(domain: &Self::Domain, region: &Self::Region) -> Result<()>;

    /// Whether peers' accesses to a registration can be counted. False if every access bypasses its owner.
    fn counts(_region: &Self::Region) -> bool {
        true
    }

    /// Allocates memory that peers can map.
    ///
    /// # Errors
    /// `FI_ENOMEM`.
    fn alloc(
        domain: &Arc<DomainPart<Self>>,
        len: usize,
        placement: Placement,
    ) -> Result<Arc<dyn LibraryMemory>>;

    /// A device's part of a shared receive context that is being opened, if the domain's endpoints take receives before
    /// their messages ([`TransportEndpoint::claims`]).
    ///
    /// # Errors
    /// Errors of the device.
    fn shared_receives(
        _domain: &Arc<DomainPart<Self>>,
        _attr: &RxAttr,
    ) -> Result<Option<Arc<dyn SharedReceives>>> {
        Ok(None)
    }

    /// The value of a transport-specific endpoint option; `set` is the value that was set, if any. `None` if the option
    /// is unknown.
    fn option(
        _domain: &Self::Domain,
        _info: &Info,
        _set: &[(EpOption, usize)],
        _option: EpOption,
    ) -> Option<usize> {
        None
    }

    /// Checks a value for such an option. The transport's part gets it before it is enabled
    /// ([`TransportEndpoint::set_option`]).
    ///
    /// # Errors
    /// Why it cannot be set.
    fn check_option(_domain: &Self::Domain, _info: &Info, _option: EpOption, _value: usize) -> Result<()> {
        Ok(())
    }

    /// Explains the `prov_errno` of error entries (`fi_cq_strerror`): as error numbers, unless the domain's operations
    /// end with others ([`Fault`]).
    fn error_text(_domain: &Self::Domain) -> fn(i32) -> String {
        |number| Errno::from_raw(number).to_string()
    }

    /// Turns a node and service name into an address (`fi_av_insertsvc`).
    ///
    /// # Errors
    /// `FI_EINVAL` for names that do not resolve.
    fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address>;

    /// The maximum bytes that one atomic operation of an endpoint of this type changes; 0 if there are no atomics.
    fn atomic_size(_ep: EpType) -> usize {
        0
    }

    /// Whether endpoints of this type support an operation on a data type that the core can execute. True for all of
    /// them if the library executes them at the memory's owner.
    #[inline]
    fn has_atomic(_ep: EpType, _kind: AtomicKind, _op: FiOp, _datatype: Datatype) -> bool {
        true
    }

    /// The message bytes that a peer may still have in flight when it is told to hold its payloads. A peer that sends
    /// more is stopped.
    fn in_flight() -> usize {
        16 << 20
    }

    /// Bytes that an application may attach to a request, its acceptance, or its rejection.
    fn cm_data_size() -> usize {
        DATA_SIZE
    }

    /// Whether the transport consists of shared memory only.
    fn needs_shared_memory() -> bool {
        false
    }

    /// The maximum length of a note's payload, in bytes; 0 if the transport has no notes, and so no collectives.
    fn note_size() -> usize {
        0
    }

    /// Checks an address given by the application, and brings it into the one form that compares equal.
    ///
    /// # Errors
    /// `FI_EINVAL` for one that cannot be an address of this transport.
    fn normalize(address: &Address) -> Result<Address>;

    /// Opens the port through which a passive endpoint receives connection requests, under `name` or one of the
    /// transport's choosing. Its authorization key is that of `info.ep_attr`.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`; `FI_ENOSYS` for a transport without connections.
    fn open_port(_info: &Info, _name: Option<&Address>) -> Result<Box<dyn Port>> {
        Err(Error::new(Errno::ENOSYS))
    }
}
