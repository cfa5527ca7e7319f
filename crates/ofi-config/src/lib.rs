//! What a user and a program may choose: the settings in the environment, the log, and how hints are negotiated
//! against a provider's offer. It reads the environment and writes the log; the rest is computation.
//!
//! `ofi-core` re-exports these modules, so transports import them from there.
//!
//! ```
//! use ofi_config::config::NameFilter;
//!
//! let filter = NameFilter::parse("^udp,tcp"); // the value of FI_PROVIDER: all but these
//! assert!(filter.allows("shm") && !filter.allows("udp"));
//! ```

#![forbid(unsafe_code)]

pub mod config;
pub mod log;
pub mod negotiate;
pub mod provider_filter;
pub mod settings;
