//! One transfer over many rails: what NIXL does above libfabric, in Rust on `ofi`.
//!
//! [`Topology`] says which NICs serve which accelerator and which memory.
#![forbid(unsafe_code)]

pub mod topology;

pub use topology::Topology;
