//! Reliable, ordered records over lossy datagrams: the layer under messages and remote memory access between hosts.
//!
//! The crate has no socket, clock, thread, or `unsafe`. The driver of an [`Endpoint`] passes in datagrams and the time,
//! and gets out datagrams, events and the next timeout. `docs/protocol.md` specifies every byte on the wire.
//!
//! The path of a record: [`SendStream::record`] appends it to one of a session's two streams. `connection/` cuts the
//! stream into packets and retransmits lost ones. On the peer, `stream/receive.rs` restores the order and passes the
//! record to [`Driver::record`]. For the begin and end of sessions see `endpoint/incoming.rs` and `wire/handshake.rs`.
//!
//! Without the feature `encryption`, which is on by default, there are no ciphers: [`Endpoint::secure`] refuses keys,
//! and peers that require encryption are refused.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod chunks;
pub mod congestion;
mod connection;
mod crypto;
mod driver;
mod endpoint;
mod hash;
mod ranges;
mod rtt;
mod stream;
mod time;
pub mod wire;

pub use chunks::Chunks;
pub use connection::{Config, MAX_PACKET_LEN, RxPrediction, Stats};
pub use crypto::{Limits, NoEncryption, Refusal, Security};
pub use driver::{Began, Driver, GsoBatch, Late, Lost, Sign};
pub use endpoint::{Arrivals, Endpoint, EndpointStats, Transmit, answer_liveness, answer_question};
pub use stream::{Flow, Part, SendStream, Sender};
pub use time::Instant;
pub use wire::{Stream, suites};
