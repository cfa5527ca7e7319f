//! One transfer over many rails: the role of NIXL above libfabric, in Rust on `ofi`.
//!
//! An [`Agent`] has rails (each a domain, an endpoint and a queue of any provider) and regions of memory. It hands out
//! [metadata](Agent::metadata), by which its peers reach both. A peer [prepares](Agent::prepare) lists of local and
//! remote ranges and posts them: reads or writes, cut over the rails, with a notification behind the data. [`Topology`]
//! reports which NICs serve which accelerator and which memory.
//!
//! [`engine`] makes the decisions and does no I/O; [`wire`] has the messages between agents. `docs/multirail.md` is the
//! guide.
// Allowed in region.rs and rail.rs (lend memory), memory/ and staging/ (copy it), wait.rs, near/pages.rs (asks where
// pages are).
#![deny(unsafe_code)]

mod agent;
mod builder;
mod deadline;
mod discovery;
mod driver;
pub mod engine;
#[cfg(feature = "etcd")]
mod etcd;
mod exchange;
mod exported;
#[cfg(test)]
#[path = "../tests/topology/fake.rs"]
mod fake_sys;
mod future;
mod leases;
pub mod memory;
mod near;
mod prepare;
mod rail;
mod range;
mod region;
mod reopen;
mod staging;
mod thread;
pub mod topology;
mod transfer;
mod wait;
mod waiters;
pub mod wire;

pub use agent::Agent;
pub use builder::Builder;
pub use discovery::{RailList, rail_hints};
pub use engine::{Awaited, Config, Event, Notification, Outcome, PathState, Progress, Way};
#[cfg(feature = "etcd")]
pub use etcd::{Etcd, Members, Published};
pub use exchange::Server;
pub use future::{Ended, NextNotification};
pub use memory::Kind;
pub use rail::RailCounts;
pub use region::{Library, Local, Region};
pub use topology::Topology;
pub use transfer::{Prepared, Remote, Transfer};
