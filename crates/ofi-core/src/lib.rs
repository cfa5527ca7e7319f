//! The shared machinery of all transports: matching, completions, address vectors, registrations, endpoints.
//!
//! A transport implements [`transport::Transport`], and gets every feature of the model in return.
//! `docs/architecture.md` follows a message through this crate: [`endpoint`], the transport, [`endpoint`] again,
//! [`matching`], [`cq`].
//!
//! Two crates are below this one and re-exported here: `ofi-config` (settings, log, negotiation) and `ofi-os` (system
//! calls, wake-ups, the lock).

pub use ofi_config::{config, log, negotiate, provider_filter, settings};
pub use ofi_os::{copy, fork, lock, pages, spin_policy, sys, wait, wake_fd};

pub mod atomic;
pub mod auth;
pub mod av;
pub mod budget;
pub mod cm;
pub mod cntr;
pub mod collective;
pub mod composite;
pub mod cq;
pub mod domain;
pub mod domain_id;
pub mod endpoint;
pub mod endpoint_registry;
pub mod eq;
pub mod export;
pub mod fabric;
mod growth;
pub mod hmem;
pub mod ip;
pub mod keys;
pub mod matching;
pub mod mr;
pub mod offer;
pub mod opened;
pub mod peers;
pub mod poll_set;
pub mod progress;
pub mod rearm;
pub mod sleepers;
pub mod slots;
pub mod source;
pub mod transport;
pub mod unattended;
