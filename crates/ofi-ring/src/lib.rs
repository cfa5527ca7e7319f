//! Rings, and the atomics under them, on heap or shared storage.
//!
//! This crate is small and self-contained so that loom can check all of it: with `--cfg loom`, every atomic and every
//! cell in it is loom's (see [`sync`]), and the tests become models.
//!
//! - [`record`]: records of any size from one process to another; all messages use it.
//! - [`mpsc`]: events from helper threads to an endpoint.
//! - [`doorbell`]: how a receiver goes to sleep without losing a record, and how a sender wakes it;
//!   [`membarrier`] is the barrier under it.
//! - [`biased`]: the lock of endpoints and queues, which needs no locked instruction while only one thread uses it.
//! - [`wake_state`]: whether a thread that waits at a descriptor must be woken.
//! - [`cq_arm`]: how a thread goes to sleep on a device's completion queue.
//! - [`deferred_check`]: an item that a thread checks later, if it is still due then.
//! - [`sleep_handshake`]: how a helper thread sleeps while an application polls the same sources.
//! - [`single_runner`]: work that any thread may submit, and that one thread at a time executes.
//! - [`version`]: the state of a slot that is read without a lock.
//! - [`lease`]: memory that others copy from and to until the owner takes it back.
//! - [`access_token`]: memory that another process accesses directly until the owner takes it back.
//! - [`fifo`]: a plain queue for use under a lock.
//! - [`crash`]: steps at which tests kill a process; nothing in release builds.
//! - [`memory`], [`sync`]: the storage of lines; std or loom.
//!
//! The meaning of bytes, the mapping of memory, and how to sleep are left to the callers.

pub mod access_token;
pub mod biased;
pub mod cq_arm;
pub mod crash;
pub mod deferred_check;
pub mod doorbell;
pub mod fifo;
pub mod lease;
pub mod membarrier;
pub mod memory;
pub mod mpsc;
pub mod record;
pub mod single_runner;
pub mod sleep_handshake;
pub mod sync;
pub mod version;
pub mod wake_state;
