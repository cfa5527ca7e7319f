//! The C interface of MXL between hosts over crate `mxl-fabrics`: the 25 functions of `libmxl-fabrics.so.1`, with the
//! structures and numbers of the C++ SDK's header, and extensions with a prefix and headers of their own: a hitless
//! merge (`mxl/ofi_merge.h`), and the protocol of a pair (`mxl/ofi_protocol.h`).
//!
//! Readers and writers come from `libmxl.so.1`, which must be ours too: their objects contain the name of their flow
//! ([`mxl_ffi::object::Place`]). This library opens the flow once more, by its domain.
//!
//! The library trusts C programs to follow the header, except that it refuses null pointers and handles of another
//! kind. `unsafe` blocks name this promise "the C caller's promise".
//!
//! # What differs from the C++ SDK
//!
//! * Pairs of this library speak a protocol of their own. Over TCP either end may be the C++ SDK's; an initiator
//!   refuses infos of its targets over other providers.
//! * A target publishes arriving data by itself. A program that also opens and commits the grain, as the C++ SDK
//!   requires, does no harm.
//! * A transfer is never refused for lack of room, and a target that fails does not stop the others.
//! * `MXL_FABRICS_PROVIDER_UDP`, an addition, is reliable transfer over UDP.
//! * A call that waits for one end also drives the ends of this process that it waits for, if they have no progress
//!   thread and no call uses them: one thread may drive both ends of a flow.
//! * A target can be added once: a second call returns `MXL_ERR_EXISTS` over every provider.
#![allow(clippy::missing_safety_doc)] // every function here has the same contract, given above

mod info;
mod initiator;
mod instance;
mod interfaces;
mod meetings;
mod merge;
mod protocol;
mod status;
mod target;
mod types;
