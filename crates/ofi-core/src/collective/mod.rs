//! Collectives over any endpoint.
//!
//! [`schedule`] plans the steps of each rank; [`engine`] executes them with notes: small messages from the core of one
//! endpoint to the core of another, which transports carry separately from everything else
//! ([`crate::transport::TransportEndpoint::note`]). So the traffic of collectives never matches the application's
//! receives.

pub mod engine;
pub mod note;
pub mod schedule;

#[cfg(test)]
mod tests;
