//! Media flows between hosts: an [`Initiator`] reads a flow and writes it into the rings of [`Target`]s, by remote
//! writes over any provider of `ofi`.
//!
//! A target creates the flow and publishes arriving data: a reader of its flow sees each slice as soon as it has
//! arrived. A [`TargetInfo`] holds the target's address; the C++ SDK's tools can carry its JSON. An initiator has a
//! queue for each of its targets: submitting a grain never waits and is never refused for lack of room, and one
//! target's failure does not affect the others. Either side may be restarted under the same address; the other one
//! reconnects.
//!
//! The program drives an end by polling it. Alternatively a thread drives it ([`Driven`]), and then the program can
//! await its events. One thread drives many ends with an [`Engine`].
//!
//! A [`Merge`] receives one flow by several paths, and loses no data when one of them fails.
//!
//! # On the wire
//!
//! Payloads go straight from ring to ring, as remote writes that carry CQ data ([`message::Commit`]); everything else
//! travels in short messages ([`message::Message`]). If either end has no remote writes, payloads travel in messages
//! ([`message::Piece`]), which the target copies into its ring. Writes and messages are split to the provider's limits.
//! Peers never write headers of grains: the target checks a peer's statements about a grain, and then publishes the
//! header itself. A target that ends a connection says why ([`message::Why`]); that message may be lost.
//!
//! # Invariants
//!
//! I1. A peer writes a slot only after the target has opened it for one index (`GRANT`), and until the target learns
//!     that the index is complete or given up (`OPEN` with a higher floor, sent when no write below it is in flight).
//!     So the rules of `mxl::protocol` hold for readers of the target's flow.
//! I2. A new initiator gets new keys, and the old keys are revoked before: no data of the old initiator arrives later.
//!     While an access under an old key is still running, no initiator is accepted.
//! I3. Commits are published in the order of their numbers, each when all of its parts have arrived: providers may
//!     deliver writes in any order.
//! I4. A commit is published only after its initiator has seen that the source was not overwritten before the last
//!     write was complete (`VERDICT`): a torn grain is published as invalid, torn samples as silence.
//!     An arrived commit is [`Transfer::Done`]; it is [`Transfer::Published`] when the target has said so, and
//!     [`Transfer::Unconfirmed`] if it ends before.
//! I5. No initiator of a [`Merge`] writes into the merged flow: valid data is copied there from the flows of its paths.
//!
//! That protocol is this library's own. Over provider `tcp` either end may be the C++ SDK's instead, which has a
//! simpler one: see [`sdk`]. A sender that can reach a target's endpoint and knows the numbers in its info can write
//! its flow; use keys of `udp` on untrusted networks (`docs/threat-model.md`).

#[cfg(feature = "programs")]
pub mod bench;
mod beside;
#[cfg(feature = "programs")]
pub mod demo;
#[cfg(feature = "programs")]
mod disk;
mod driven;
mod engine;
mod error;
#[cfg(test)]
#[path = "../../mxl/tests/common/folder.rs"]
mod folder;
pub mod gateway;
mod histogram;
mod info;
mod initiator;
pub mod interfaces;
mod interval_predictor;
mod lateness;
mod link;
#[cfg(feature = "programs")]
pub mod list;
mod merge;
pub mod message;
mod metrics;
mod options;
#[cfg(feature = "programs")]
mod program;
mod provider;
mod rest;
pub mod sdk;
mod shape;
mod target;

pub use beside::{Beside, Visit};
pub use driven::{Drive, Driven};
pub use engine::Engine;
pub use error::{Error, Result};
pub use histogram::Histogram;
pub use info::{OwnKeys, Protocol, RegionInfo, TargetInfo};
pub use initiator::{Initiator, PeerState, PeerStats, Transfer};
pub use merge::{Merge, MergePath, MergeStats};
pub use options::{Key, Options, Pacing};
pub use provider::Provider;
pub use target::{Received, Target, TargetStats, TargetTimes};
