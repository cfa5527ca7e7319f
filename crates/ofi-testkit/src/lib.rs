//! Shared by tests: the conformance suite for every transport, and its tools.
//!
//! The suite ([`conformance!`]) sees a transport only as a [`Kit`], which opens endpoints. Everything runs in one
//! process, and the test polls all sides itself, so a case decides which side makes progress. Tests of several
//! processes start them with [`process`]. Every wait has a limit: a case that would hang fails with the counters of all
//! its endpoints instead.

pub mod conformance;
pub mod connect;
mod connection;
pub mod etcd;
pub mod fork;
pub mod kit;
pub mod leftovers;
mod mapped;
pub mod memory;
pub mod net;
pub mod network;
pub mod opening;
pub mod pair;
pub mod post;
pub mod process;
pub mod rc;
pub mod side;
pub mod srd;
pub mod wait;

/// Time in which the registrations of closed domains are gone.
const UNREGISTERED_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);

pub use kit::Kit;
pub use memory::{Memory, Slice};
pub use opening::Opening;
pub use pair::Pair;
pub use side::{Event, TestEndpoint};

/// The imports of almost every case and test.
pub mod prelude {
    pub use std::time::{Duration, Instant};

    pub use ofi::raw::*;

    pub use crate::kit::Kit;
    pub use crate::memory::{Memory, Slice};
    pub use crate::opening::Opening;
    pub use crate::pair::Pair;
    pub use crate::side::{Event, TestEndpoint, remote, remote_at};
    pub use crate::wait;
}
