//! What `libmxl.so.1` and `libmxl-fabrics.so.1` share: the border between C and Rust, the objects that handles point
//! to, the log.
//!
//! The two libraries are built apart and may be of different versions. What one of them reads of the other's objects is
//! their first fields, [`object::Place`] included, whose layout is C's and does not change.

// The functions here are for entries of C, whose callers promise what a signature cannot say.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

pub mod border;
pub mod log;
pub mod object;
