//! What `libplugin_OFI.so` is made of: `multirail` behind a C interface (`shim/ofi_nixl.h`), which a shim in C++
//! (`shim/plugin.cpp`) turns into the classes that NVIDIA's NIXL calls. `cargo xtask install --nixl` builds both;
//! `docs/multirail.md` says how to use them.
//!
//! Every call answers a status of NIXL's and catches panics. Handles are boxes: each is given back once, by the call
//! that its header names. Nothing here calls back but the sinks, before the call returns.

#![allow(clippy::multiple_unsafe_ops_per_block)] // the arguments of a call are one promise of its caller

mod border;
mod engine;
mod memory;
mod options;
mod request;
#[cfg(test)]
mod tests;

pub use border::{Bytes, Sink};
