//! libfabric's object model for Rust programs.
//!
//! [`getinfo`] says what this host offers, [`open_fabric`] opens it; everything else is a method of what was opened.
//! The raw layer ([`raw`]) has exactly libfabric's semantics.

mod registry;

pub use registry::{explain, getinfo, open_fabric, provider_names, register_provider};

/// The raw layer: libfabric's objects and operations, on memory that is lent by an `unsafe` promise.
pub mod raw {
    pub use ofi_api::*;
}

/// The settings registry: every `FI_*` variable.
pub mod config {
    pub use ofi_core::config::{Listed, Problem, list, problems};
}
