//! The C interface of MXL between hosts over crate `mxl-fabrics`: the 25 functions of `libmxl-fabrics.so.1`, with the
//! structures and numbers of the C++ SDK's header.
//!
//! Readers and writers come from `libmxl.so.1`, which has to be ours too: which flow they are of stands in their
//! objects ([`mxl_ffi::object::Place`]). This library opens the flow once more, by its domain.
//!
//! What a C program gives is believed to be what the header says, except that null pointers and handles of another kind
//! are refused. `unsafe` blocks name this promise "the C caller's promise".
//!
//! # What differs from the C++ SDK
//!
//! * Both ends must be this library: a target info of the C++ SDK is read and written, and refused by an initiator.
//! * A target publishes what arrives by itself. A program that opens and commits the grain as well, as it has to with
//!   the C++ SDK, does no harm.
//! * A transfer is never refused for want of room, and a target that fails does not stop the others.
//! * `MXL_FABRICS_PROVIDER_TCP` is reliable transfer over UDP; `MXL_FABRICS_PROVIDER_UDP`, an addition, is the same.
//! * A target is added once: twice is `MXL_ERR_EXISTS` over every provider.
#![allow(clippy::missing_safety_doc)] // every function here has the same contract, given above

mod info;
mod initiator;
mod instance;
mod interfaces;
mod status;
mod target;
mod types;
