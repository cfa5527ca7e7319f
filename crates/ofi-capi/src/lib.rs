//! libfabric's C interface over this stack. `cargo xtask capi` links this crate's static library with the symbols and
//! versions of `link/` into `libfabric.so.1`. Programs that were linked against C libfabric run on it unchanged.
//!
//! An object of C is a box that begins with C's structure (`object.rs`). Its operation tables are complete: unsupported
//! operations return `-FI_ENOSYS` (`nosys.rs`). Every call goes through `ffi_guard.rs`: no panic crosses it, and an
//! error becomes its negated number. Memory of `fi_info` is malloc's, because programs free and replace parts of it
//! (`info/`).
//!
//! Pointers from a C program are trusted to be what the man pages require. Null and stale pointers are refused if they
//! can be detected. `unsafe` blocks name this promise "the C caller's promise".
#![allow(clippy::missing_safety_doc)] // every function here has the same contract, given above

mod abi;
mod atomic;
mod av;
mod av_attr;
mod av_keys;
mod av_list;
mod av_set;
mod cm;
mod cntr;
mod collective;
mod control;
mod cq;
mod directory;
mod domain;
mod endpoint;
mod entry;
mod eq;
mod fabric;
mod ffi_guard;
mod foreign;
mod info;
mod log;
mod log_import;
mod memory;
mod mr;
mod msg;
mod names;
mod nosys;
mod object;
mod params;
mod pep;
mod plugin;
mod posting;
pub mod probe;
mod profile;
mod rma;
mod sets;
mod state;
mod tagged;
mod tostr;
mod trigger;
mod triggered;
