//! Every operation of the safe layer over shared memory, and its guarantees when programs misuse it.
#![forbid(unsafe_code)]

mod safe {
    pub mod atomics;
    pub mod collectives;
    pub mod connections;
    pub mod contexts;
    pub mod ending;
    pub mod hub;
    pub mod messages;
    pub mod multi;
    pub mod remote_memory;
    pub mod senders;
    pub mod shared;
    pub mod support;
    pub mod tagged;
    pub mod threads;
}
