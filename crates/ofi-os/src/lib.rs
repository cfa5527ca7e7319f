//! Linux as the stack uses it. Here are the system calls that several crates make, and what stands directly on them:
//! descriptors that wake a thread, wait objects, mappings, objects after fork(2), the endpoint's lock, copies of memory
//! that others change meanwhile, and when a polling thread yields its core.
//!
//! `ofi-core` re-exports these modules, so transports import them from there. Nothing here knows a message or a peer.
//!
//! ```
//! use ofi_os::wake_fd::WakeFd;
//!
//! let wake = WakeFd::new()?;
//! wake.arm(); // then check once more, then block on the descriptor
//! wake.notify();
//! assert!(ofi_os::sys::is_readable(wake.fd()));
//! # Ok::<(), ofi_api::Error>(())
//! ```

pub mod copy;
pub mod fork;
pub mod lock;
pub mod pages;
pub mod spin_policy;
pub mod sys;
pub mod wait;
pub mod wake_fd;
