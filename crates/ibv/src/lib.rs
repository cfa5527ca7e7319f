//! Safe handles over libibverbs, librdmacm and libefa: devices, protection domains, registrations, queues, and
//! connections.
//!
//! This is the only crate that calls rdma-core. It opens the libraries at run time (`library.rs`), so that a binary
//! runs on hosts without them, and building needs neither them nor their headers: `abi.rs` and `abi_ex.rs` declare the
//! part of their interface that is used.
//!
//! Invariants:
//! - An object holds the objects that it was made from, so parents outlive children whatever the order of drops.
//! - The memory of a posted work request belongs to the caller that posted it: the functions that post are `unsafe`,
//!   and document how long the memory is lent.
//! - An error names the call, the error number, and a remedy.

pub mod abi;
pub mod abi_ex;
mod ah;
mod batch;
mod binding;
pub mod cache;
mod cm;
mod completion;
mod cq;
mod cq_ex;
mod device;
mod efa;
mod error;
mod events;
mod extended;
mod fork;
mod library;
mod missing;
pub mod monitor;
mod multicast;
mod name;
mod pd;
mod polling;
mod qp;
mod srd;
mod srq;
pub mod transfer;
mod ud;
mod window;
mod work;

pub use ah::{AddressHandle, Way};
pub use batch::Payload;
pub use binding::{Binding, binding_of};
pub use cm::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel, MAX_BACKLOG, refusal};
pub use completion::{Opcode, Status, WorkCompletion};
pub use cq::{CompletionChannel, CompletionQueue};
pub use cq_ex::{EfaCompletion, EfaCompletionQueue, EfaOpcode};
pub use device::{Context, DeviceInfo, Gid, GidEntry, GidVersion, PortInfo, contexts};
pub use efa::{EfaInfo, efa_contexts};
pub use error::{Error, Result};
pub use events::{AsyncEvent, AsyncEvents};
pub use fork::{ForkSafety, fork_safety, make_fork_safe};
pub use library::available;
pub use multicast::{GroupAddress, Multicast};
pub use pd::{Access, MemoryRegion, ProtectionDomain};
pub use qp::{QueuePair, QueuePairAttr, Receives, Requests, Timers};
pub use srd::{SrdAttr, SrdPeer, SrdQueuePair, SrdRequests};
pub use srq::SharedReceiveQueue;
pub use ud::{GRH, UdAttr, UdPeer, UdQueuePair, UdRequests};
pub use window::{MemoryWindow, Part, WindowKind};
pub use work::{Post, Remote, Segment, Work};
