//! Collectives over any endpoint.
//!
//! [`schedule`] works out what each rank does; [`engine`] does it, by notes: small messages from the core of one
//! endpoint to the core of another, which transports carry beside everything else ([`crate::transport::Lanes::note`]).
//! So the traffic of collectives never meets the application's receives. `set` has the sets of addresses that groups
//! are made from.

pub mod engine;
pub mod note;
pub mod schedule;

#[cfg(test)]
mod tests;
