//! Processes that do everything to each other at once: messages of all kinds and lengths, remote reads and writes of
//! both kinds of memory, atomic operations, memory that is lent for a short time and withdrawn, cancelled receives,
//! sleep. Every byte that arrives is checked.
//!
//! A [`member`] is such a process, controlled over its line; a [`Mesh`] is the test's end of all lines. Tests kill
//! members, let them die at a given step, or check their memory after hours.

mod load;
mod member;
mod orchestra;

/// Environment variable: the naming of members' endpoints ([`crate::Naming`]), which selects their transport.
pub const NAMING: &str = "OFI_MESH_NAMING";

pub use load::Load;
pub use member::member;
pub use orchestra::{Mesh, Report, Seat};
