//! libfabric's object model for Rust programs: messages, tags, remote memory, atomic operations and collectives between
//! processes and hosts, without a C library underneath.
//!
//! ```
//! use std::time::Duration;
//!
//! use ofi::{Hints, Node};
//!
//! let (alice, bob) = (Node::open(&Hints::new().provider("shm"))?, Node::open(&Hints::new().provider("shm"))?);
//! let to_bob = alice.insert(&bob.name()?)?; // addresses are numbered
//! bob.recv(vec![0; 64])?; // the buffer moves into the operation
//! alice.send(b"hello, Bob".to_vec(), to_bob)?;
//! let message = bob.wait(Duration::from_secs(1))?.expect("a message").into_result()?; // and comes back with its completion
//! assert_eq!(message.bytes(), b"hello, Bob");
//! # Ok::<(), ofi::Error>(())
//! ```
//!
//! Processes find each other by addresses. [`Node::name`] returns a node's address as text, which a peer passes to
//! [`Node::insert`]; [`Node::meet`] exchanges addresses in a group of processes ([`rendezvous`]); or a [`Listener`]
//! waits at an address that a [`Connection`] dials. `examples/two_hosts.rs` does that over a network.
//!
//! # Features
//!
//! | feature | effect |
//! |---|---|
//! | `shm` (default) | provider `shm`: processes of one host |
//! | `tcp` | provider `tcp`: C libfabric's protocol over TCP; experimental |
//! | `udp` (default) | provider `udp`: processes of one host and of others |
//! | `encryption` (default) | `udp` has authorization keys and encryption; it refuses both without this feature |
//! | `tokio` | nodes and hubs that tokio's reactor drives |
//! | `verbs` | provider `verbs`: RDMA devices, by rdma-core, which is opened at run time |
//! | `efa` | provider `efa`: EFA devices, likewise |
//! | `bytes` | `bytes::Bytes` and `BytesMut` are buffers |
//! | `serde` | addresses and remote windows are written and read by serde |
//! | `futures` | a [`MultiRecv`] is a `futures_core::Stream` |
//!
//! Linux 5.1 or newer is needed. `udp` reaches processes of its own host through shared memory, with or without the
//! feature `shm`.
//!
//! # Progress and waiting
//!
//! A node makes progress when a call reads its queue: [`Node::wait`], which sleeps, or [`Node::poll`]. Futures of an
//! [`AsyncNode`] need no such calls: a thread of the library drives nodes that have no other driver. With
//! [`WaitObj::Yield`], [`NodeBuilder::wait_obj`] selects spinning instead, which saves the last microseconds of
//! latency.
//!
//! # Logging and metrics
//!
//! The library writes [`tracing`](https://docs.rs/tracing) events, and installs no subscriber. Their targets are
//! libfabric's subsystems (`ofi::core::av`, `ofi::shm::ep_data`, `ofi::udp::ep_ctrl`), so a filter is `ofi=debug` or
//! `ofi::udp=debug`. [`log_from_env`] prints them as libfabric does. [`Node::statistics`] has a name, a value and a
//! description for each counter. With `FI_EXPORT_STATISTICS=1`, another process can read them (`ofi top`, and
//! `ofi stats --prometheus`).
//!
//! # Two layers
//!
//! Both layers use libfabric's names, so that its man pages serve as reference.
//!
//! The safe layer is this module. A [`Node`] is an endpoint with its queue and addresses; buffers move into operations
//! and come back with their [`Completion`]s; memory that peers access is a [`Window`]. A program that uses only this
//! layer has no `unsafe` and cannot free memory in flight. The `examples/` show messages, tags, remote memory and many
//! peers. An [`AsyncNode`] has the same operations as futures. The contexts of a scalable endpoint are nodes too
//! ([`NodeBuilder::open_contexts`]), and nodes share contexts by [`SharedReceive`] and [`SharedTransmit`].
//!
//! The raw layer ([`raw`]) has exactly libfabric's semantics, on memory that is lent by an `unsafe` promise.
//! [`getinfo`] lists what this host offers and [`open_fabric`] opens it; everything else is a method of an opened
//! object.
#![warn(missing_debug_implementations)]

mod alias;
mod any_buffer;
mod asynchronous;
mod buffer;
#[cfg(feature = "bytes")]
mod bytes_buffer;
mod completion;
mod connection;
pub mod direct;
mod domain;
mod element;
mod hub;
mod layers;
mod memory;
mod missing;
mod multi_recv;
mod node;
mod op;
mod opened;
mod operations;
mod post;
mod profile;
mod region;
mod registered;
mod registry;
mod remote;
pub mod rendezvous;
mod request;
mod shared;
pub mod threading;
mod window;

pub use any_buffer::AnyBuffer;
pub use asynchronous::{
    AsyncConnection, AsyncNode, Connecting, ConnectionEnd, Done, Driver, DriverThread, Event, Failed,
    MultiRecv, NextHubEvent, NextMessage, NextRequest, Operation, Transferred, Turn,
};
pub use buffer::{Buffer, BufferMut, RawBuffer};
pub use completion::{Completion, CompletionKind, OpError};
pub use connection::{ConnectError, Connection, Incoming, Listener};
pub use domain::Domain;
pub use element::Element;
pub use hub::{Hub, HubConnection, HubEvent};
pub use memory::Memory;
pub use multi_recv::{MultiRecvBuffer, MultiRecvRange};
pub use node::{Group, Node, NodeBuilder, RawNode};
pub use op::{Claim, Op};
pub use registered::Registered;
pub use registry::{
    explain, getinfo, getinfo_asking_least, getinfo_of, log_from_env, log_from_env_or, log_settings,
    log_subscriber, open_fabric, provider_names, register_provider,
};
pub use remote::RemoteWindow;
pub use request::{PostError, RecvMsg, RmaMsg, SendMsg};
pub use shared::{SharedReceive, SharedTransmit};
pub use window::Window;

pub use ofi_core::log::{Level as LogLevel, Started as LogStarted};

pub use ofi_api::{
    AddrFormat, Address, AtomicKind, Caps, CompletionFlags, Datatype, EpOption, EpType, Errno, Error, FiAddr,
    FiOp, GetinfoFlags, Hints, Info, MrAccess, OpFlags, Placement, Progress, Refusal, Result, Statistic,
    Version, WaitObj,
};

/// Runtimes that drive nodes.
#[cfg(feature = "tokio")]
pub mod rt {
    pub use crate::asynchronous::tokio;
}

/// The raw layer: libfabric's objects and operations, on memory that is lent by an `unsafe` promise.
pub mod raw {
    pub use ofi_api::*;
}

/// The settings registry: every `FI_*` variable.
pub mod config {
    pub use ofi_core::config::{Listed, Problem, ValueKind, problems};

    /// All settings, with their current values.
    pub fn list() -> Vec<Listed> {
        crate::registry::settings()
    }
}
