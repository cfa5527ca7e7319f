//! Shared by `libmxl.so.1` and `libmxl-fabrics.so.1`: the border between C and Rust, the objects behind handles, the
//! log.
//!
//! The two libraries are built separately and may be of different versions. Each reads only the first fields of the
//! other's objects, including [`object::Place`], whose layout is C's and does not change.

// The functions here are for C entry points, whose callers make promises that a signature cannot express.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

pub mod border;
pub mod log;
pub mod object;
