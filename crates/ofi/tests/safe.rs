//! Every operation of the safe layer over shared memory, and what must hold when programs do the wrong thing.
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
