//! Every operation of the safe layer over shared memory, and its guarantees when programs misuse it.
#![forbid(unsafe_code)]

mod atomics;
mod collectives;
mod connections;
mod contexts;
mod ending;
mod hub;
mod messages;
mod multi;
mod remote_memory;
mod senders;
mod shared;
mod support;
mod tagged;
mod threads;
