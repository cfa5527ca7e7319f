//! The Rust part of `libplugin_OFI.so`: `multirail` behind a C interface (`shim/ofi_nixl.h`), which a shim in C++
//! (`shim/plugin.cpp`) turns into the classes that NVIDIA's NIXL calls. `cargo xtask install --nixl` builds both;
//! `docs/multirail.md` explains their use.
//!
//! Every call returns a NIXL status and catches panics. Handles are boxes: each is released once, by the call that its
//! header names. The only callbacks are the sinks, before the call returns.

#![allow(clippy::multiple_unsafe_ops_per_block)] // the arguments of a call are one promise of its caller

mod border;
mod engine;
mod log;
mod memory;
mod options;
mod request;
#[cfg(test)]
mod tests;

pub use border::{Bytes, Sink};
