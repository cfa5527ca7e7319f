//! NMOS for media flows: IS-04 v1.3 (discovery and registration) and IS-05 v1.2 (connection management), as AMWA
//! BCP-007-03 maps MXL to them.
//!
//! A [`Node`] holds the resources of a domain: a source, a flow and a sender for each MXL flow, and receivers. It
//! answers requests of its Node API and its Connection API ([`Node::answer`]); the program brings the HTTP server. A
//! [`Registration`] keeps the resources in a registry. [`Query`] asks a registry which senders there are, and their
//! Connection APIs which MXL flows these send.
//!
//! Everything that waits has a time-out, and everything that others send a bound. The program names the registries or,
//! with feature `dns-sd`, has them found. There is no TLS and no authorization (IS-10).
#![forbid(unsafe_code)]

mod activation;
mod api;
mod client;
mod clock;
mod connection;
#[cfg(feature = "dns-sd")]
mod discovery;
mod node;
mod query;
mod registration;
mod registries;
mod resources;

pub use api::Answer;
pub use client::{Client, Error};
pub use connection::{Activate, Route};
#[cfg(feature = "dns-sd")]
pub use discovery::{Discovery, Found, Service};
pub use node::{Node, NodeOptions};
pub use query::{Query, RemoteSender};
pub use registration::Registration;
pub use registries::{AUTO, Registries};
pub use resources::{ResourceKind, id_of};

/// The transport of all senders and receivers.
pub const TRANSPORT: &str = "urn:x-nmos:transport:mxl";
/// The type of a device's control that is a Connection API.
pub const CONTROL: &str = "urn:x-nmos:control:sr-ctrl/v1.2";
/// The type of a device's control at which mirrors ask for its flows, as `mxl://HOST:PORT/`.
pub const GATEWAY: &str = "urn:x-ofi:control:mxl-gateway/v1.0";
