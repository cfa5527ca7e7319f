//! The layers of the API, and the examples.

mod asynchronous;
mod echo;
mod examples;
mod kv_store;
mod layers;
mod protections;
mod rendezvous;
mod safe;
mod support;
mod two_hosts;
