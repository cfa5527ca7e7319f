//! Media flows on one host, in the file format of the EBU's Media eXchange Layer.
//!
//! A [`Domain`] is a directory on a tmpfs. A flow in it is a ring buffer in shared files: of *grains* (frames, fields,
//! blocks of ancillary data) or of audio *samples*. Writers and readers are processes. They need no server, and a
//! process that uses the C++ SDK can write or read the same flow at the same time.
//!
//! ```no_run
//! use mxl::{Domain, FlowDefinition, Rational, Wait};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), mxl::Error> {
//! let domain = Domain::open("/dev/shm/studio")?;
//! let definition = FlowDefinition::video("camera 1", 1920, 1080, Rational::new(50, 1))?;
//! let writer = domain.create_grains(&definition, &Default::default())?.writer;
//! let index = mxl::time::current_index(writer.rate()).unwrap_or(0);
//! let mut grain = writer.open(index)?;
//! grain.write(0, &vec![0x80; grain.len()])?;
//! grain.commit()?;
//!
//! let reader = domain.read_grains(definition.id)?;
//! let grain = reader.read(index, Wait::For(Duration::from_millis(40)))?;
//! let mut picture = vec![0; grain.len()];
//! grain.read_into(0, &mut picture)?;
//! assert!(grain.still_valid()); // the slot was not overwritten during the copy
//! # Ok(()) }
//! ```
//!
//! # Invariants
//!
//! * Memory that another process may write is never behind a reference to plain data: words are atomics ([`protocol`]);
//!   payloads are copied by code that is opaque to the compiler (`copy`), or exposed as raw pointers.
//! * Files are checked when they are opened and again when they are used: no value in them leads outside a mapping.
//! * The file format is that of the C++ SDK, byte for byte; [`protocol`] describes where our memory ordering is
//!   stricter.
//!
//! If a process *truncates* a mapped file, an access to the missing part raises `SIGBUS`. The crate handles that signal
//! for its own mappings: the read or write returns [`Error::Truncated`]. See [`sigbus`] for what that covers, and for
//! how to switch it off.

#[cfg(target_endian = "big")]
compile_error!("the files are little-endian");

mod atomic;
pub mod protocol;
pub mod ring;

#[cfg(not(loom))]
mod flows;
#[cfg(not(loom))]
pub use flows::*;
