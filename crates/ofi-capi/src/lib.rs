//! libfabric's C interface on top of this stack. `cargo xtask capi` links this crate's static library with the symbols
//! and versions of `link/` into `libfabric.so.1`. Programs that were linked against C libfabric run on it unchanged.
//!
//! An object of C is a box that begins with C's structure (`object.rs`). Its operation tables are complete: unsupported
//! operations return `-FI_ENOSYS` (`nosys.rs`). Every call goes through `ffi_guard.rs`: no panic leaves it, and an
//! error becomes its negated number. The memory of an `fi_info` comes from malloc, because programs free and replace
//! parts of it (`info/`).
//!
//! A C program is trusted to pass the pointers that the man pages require; `unsafe` blocks call this "the C caller's
//! promise". Null and stale pointers are refused where they can be detected.
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
