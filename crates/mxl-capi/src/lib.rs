//! The C interface of MXL over crate `mxl`: the 42 functions of `libmxl.so.1`, with the structures and numbers of the
//! C++ SDK's headers, so that programs that were linked against that library run on this one.
//!
//! `include/mxl/` has our own headers for compiling. A handle is a pointer to an [`mxl_ffi::object::Object`]; every
//! entry goes through [`mxl_ffi::border`]: no panic crosses it, and an error becomes its status.
//!
//! The library trusts C programs to follow the headers, except that it refuses null pointers, handles of another kind,
//! and the release of handles that are unknown to an instance. `unsafe` blocks name this promise "the C caller's
//! promise".
//!
//! # What differs from the C++ SDK
//!
//! * If another process truncates a file of a flow, calls return `MXL_ERR_FLOW_INVALID` ([`mxl::sigbus`]).
//!   With the C++ SDK the program dies by SIGBUS.
//! * A cached reader or writer whose flow was deleted is not handed out again: the caller gets a new one.
//! * Creating a writer of a flow that exists and differs from the definition returns `MXL_ERR_CONFLICT`.
//! * `mxlFlowWriterCommitSamples` without open samples returns `MXL_ERR_INVALID_ARG`; the C++ SDK moves the
//!   head to the highest index.
#![allow(clippy::missing_safety_doc)] // every function here has the same contract, given above

mod flow;
mod group;
mod instance;
mod reader;
mod time;
mod types;
mod version;
mod writer;
