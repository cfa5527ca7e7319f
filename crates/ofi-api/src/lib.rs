//! libfabric's object model in Rust, shared by applications and transports. It does no I/O.
//!
//! Names and values are those of libfabric's headers (API 2.x), so that the man pages serve as reference and the C ABI
//! is a cast. The documentation of each value names the man page that defines it.
#![deny(unsafe_code)] // allowed where memory is lent, and where addresses are handed out: `memory`, `completion`, `wait`
#![warn(missing_debug_implementations)]

// Reported here rather than in `ofi`: the transports, built before it, would fail with a hundred errors about system
// calls.
#[cfg(not(target_os = "linux"))]
compile_error!(
    "ofi needs Linux: its transports are built on memfd, pidfd and epoll, and its error numbers are Linux's"
);

mod address;
#[cfg(feature = "serde")]
mod address_serde;
mod address_text;
mod c_enum;
#[cfg(test)]
mod c_values;
mod error;
mod fid;
mod flags;
mod handle;
mod hints;
mod info;
mod nic;
mod text;
mod types;
mod values;

pub use address::Address;
pub use error::{Detail, Errno, Error, Refusal, Result};
pub use fid::Fid;
pub use flags::{BindFlags, Caps, CompletionFlags, GetinfoFlags, Mode, MrAccess, MrMode, MsgOrder, OpFlags};
pub use handle::Handle;
pub use hints::Hints;
pub use info::{
    AV_AUTH_KEY, DomainAttr, EpAttr, FabricAttr, Info, KEY_NOTAVAIL, RxAttr, SHARED_CONTEXT, TAG_BITS,
    TAG_CCL, TAG_MAX_FORMAT, TAG_MPI, TxAttr,
};
pub use nic::{BusAttr, BusType, DeviceAttr, LinkAttr, LinkState, Nic, PciAttr};
pub use types::{
    AddrFormat, AvType, CntrEvents, CqFormat, EpType, HmemIface, Progress, ResourceMgmt, Threading, WaitCond,
    WaitObj,
};
pub use values::{Context, FiAddr, Protocol, TrafficClass, Version};

// The objects and the transport contract, outermost first.
mod atomic;
mod av;
mod cm;
mod collective;
#[allow(unsafe_code)]
mod completion;
mod counter;
mod debug;
mod domain;
mod endpoint;
mod eq;
#[allow(unsafe_code)]
mod memory;
mod multicast;
mod operation;
mod poll;
mod provider;
mod region;
mod trigger;
#[allow(unsafe_code)]
mod wait;
mod work;

pub use atomic::{AtomicAttr, AtomicKind, AtomicOp, Datatype, FiOp};
pub use av::{AddressVector, Addresses, AvAttr, Inserted, Insertion};
pub use cm::PassiveEndpoint;
pub use collective::{
    AvSet, AvSetAttr, CollectiveAttr, CollectiveGroup, CollectiveKind, CollectiveOp, Group,
};
pub use completion::{
    CompletionQueue, CqAttr, CqBuffer, CqDataEntry, CqEntry, CqErrorEntry, CqFormatEntry, CqMsgEntry,
    CqTaggedEntry,
};
pub use counter::{CntrAttr, Counter};
pub use domain::{Domain, Fabric};
pub use endpoint::{Endpoint, EpOption, SharedTransmit, Statistic, UnexpectedEvent, Watcher};
pub use eq::{EqAttr, EqErrorEntry, Event, EventKind, EventQueue};
pub use memory::{Allocation, Desc, Dmabuf, Lent, LibraryMemory, MrAttr, Piece, Placement, RemotePiece};
pub use multicast::{Multicast, MulticastGroup};
pub use operation::{Call, ReceiveOp, RmaOp, SendOp, TagMatch};
pub use poll::{PollMember, PollSet};
pub use provider::{Offers, Provider, Request};
pub use region::MemoryRegion;
pub use trigger::{DeferredOp, Threshold};
pub use wait::{MutexCond, WaitAttr, WaitSet};
pub use work::{Work, WorkId};
