//! The shared machinery of all transports: negotiation, matching, completions, address vectors, registrations.
//!
//! A transport implements [`transport::Transport`] and gets every feature of the model in return.
//! `docs/architecture.md` follows a message through this crate: [`endpoint`], the transport, [`endpoint`] again,
//! [`matching`], [`cq`].

pub mod atomic;
pub mod auth;
pub mod av;
pub mod budget;
pub mod cm;
pub mod cntr;
pub mod collective;
pub mod composite;
pub mod config;
pub mod copy;
pub mod cq;
pub mod domain;
pub mod domain_id;
pub mod endpoint;
pub mod endpoint_registry;
pub mod eq;
pub mod export;
pub mod fabric;
pub mod fork;
mod growth;
pub mod hmem;
pub mod ip;
pub mod keys;
pub mod lock;
pub mod log;
pub mod matching;
pub mod mr;
pub mod negotiate;
pub mod offer;
pub mod opened;
pub mod pages;
pub mod peers;
pub mod poll_set;
pub mod progress;
pub mod provider_filter;
pub mod rearm;
pub mod settings;
pub mod sleepers;
pub mod slots;
pub mod source;
pub mod spin_policy;
pub mod sys;
pub mod transport;
pub mod wait;
pub mod wake_fd;
