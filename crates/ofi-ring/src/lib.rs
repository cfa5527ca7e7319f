//! Rings, and the atomics under them, on heap or shared storage.
//!
//! This crate is small and stands alone so that loom can check all of it: with `--cfg loom`, every
//! atomic and every cell in it is loom's (see [`sync`]), and the tests become models.
//!
//! - [`record`]: records of any size from one process to another, the way of every message.
//! - [`mpsc`]: events from helper threads to an endpoint.
//! - [`doorbell`]: how a receiver goes to sleep without losing a record, and how a sender wakes it;
//!   [`membarrier`] is the barrier under it.
//! - [`biased`]: the lock of endpoints and queues, which costs a thread that is alone no locked instruction.
//! - [`alarm`]: whether a thread that waits at a descriptor must be woken.
//! - [`overdue`]: what a thread looks at later, if it is still due then.
//! - [`slumber`]: how a helper thread sleeps beside an application that polls.
//! - [`errand`]: work that any thread may bring and one at a time does.
//! - [`version`]: the state of a slot that is read without a lock.
//! - [`lease`]: memory that others copy from and to until it is taken back.
//! - [`ticket`]: memory that another process copies from and to by itself, until it is taken back.
//! - [`fifo`]: a plain queue for use under a lock.
//! - [`crash`]: steps at which tests let a process die; nothing in release builds.
//! - [`memory`], [`sync`]: where lines live; std or loom.
//!
//! What bytes mean, who maps which memory, and how one sleeps is left to the callers.

pub mod alarm;
pub mod biased;
pub mod crash;
pub mod doorbell;
pub mod errand;
pub mod fifo;
pub mod lease;
pub mod membarrier;
pub mod memory;
pub mod mpsc;
pub mod overdue;
pub mod record;
pub mod slumber;
pub mod sync;
pub mod ticket;
pub mod version;
