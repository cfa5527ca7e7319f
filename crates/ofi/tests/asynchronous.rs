//! Async nodes: without a runtime, on threads, dropped and forgotten futures; with the feature `tokio`, on tokio.
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
}
