//! Reliable, ordered records over lossy datagrams: what carries messages and remote memory access between hosts.
//!
//! No socket, clock, thread, or `unsafe`: whoever drives an [`Endpoint`] hands it datagrams and the time, and takes
//! datagrams, events and the next timeout from it. `docs/protocol.md` specifies every byte that goes over the wire.
//!
//! Follow a record: [`SendStream::record`] appends it to one of a session's two streams, `connection/` cuts the stream
//! into packets and repeats what is lost, and on the peer `stream/receive.rs` puts it back in order and
//! hands it to [`Driver::record`]. How sessions begin and end: `endpoint/incoming.rs`, `wire/handshake.rs`.
//!
//! Without the feature `encryption`, which is on by default, there are no ciphers: [`Endpoint::secure`] refuses keys,
//! and peers that insist on encryption are refused.

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
pub use connection::{Config, Foresight, LONGEST_PACKET, Stats};
pub use crypto::{Limits, NoEncryption, Refusal, Security};
pub use driver::{Driver, Lost, Row};
pub use endpoint::{Arrivals, Endpoint, EndpointStats, Transmit, answer_liveness, answer_question};
pub use stream::{Flow, Part, SendStream, Sender};
pub use time::Instant;
pub use wire::{Stream, suites};
