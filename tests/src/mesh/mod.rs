//! Processes that do everything to each other at once: messages of all kinds and lengths, remote reads and writes of
//! both kinds of memory, atomic operations, memory that is lent for a moment and withdrawn, cancelled receives, sleep.
//! Every byte that arrives is checked.
//!
//! A [`member`] is such a process, told what to do on its line; a [`Mesh`] is the test's end of all lines. Tests kill
//! members, let them die at a given step, or watch what hours of this do to their memory.

mod load;
mod member;
mod orchestra;

/// Environment variable: how members' endpoints are named ([`crate::Naming`]), and so what carries their messages.
pub const NAMING: &str = "OFI_MESH_NAMING";

pub use load::Load;
pub use member::member;
pub use orchestra::{Mesh, Report, Seat};
