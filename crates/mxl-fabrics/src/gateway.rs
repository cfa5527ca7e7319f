//! `mxl-gateway`: offers a domain's flows to other hosts, and mirrors flows of another host into a domain here.
//!
//! The two roles meet by a control connection ([`wire`]): the mirror asks for flows by their ids, gets their
//! definitions, opens a [`Target`](crate::Target) for each, and sends its info back. The serving side then sends the
//! flow to it. The control connection tells each side what happens to the flows; data has connections of its own, which
//! outlive it.

#[cfg(feature = "programs")]
pub mod http;
#[cfg(feature = "programs")]
mod roles;
pub mod wire;

#[cfg(feature = "programs")]
pub use roles::{command, main};
