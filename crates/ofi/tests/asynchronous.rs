//! Async nodes: without a runtime, on threads, and with dropped and forgotten futures; on tokio with the
//! feature `tokio`.
#![forbid(unsafe_code)]

mod asynchronous {
    pub mod connections;
    pub mod contexts;
    pub mod dropping;
    pub mod hub;
    pub mod multi;
    pub mod operations;
    pub mod support;
    pub mod threads;
    #[cfg(feature = "tokio")]
    pub mod tokio;
    #[cfg(feature = "tokio")]
    pub mod tokio_hub;
    pub mod undriven;
}
