//! Async nodes: without a runtime, on threads, and with dropped and forgotten futures; on tokio with the
//! feature `tokio`.
#![forbid(unsafe_code)]

mod connections;
mod contexts;
mod dropping;
mod hub;
mod multi;
mod operations;
mod support;
mod threads;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(feature = "tokio")]
mod tokio_hub;
mod undriven;
