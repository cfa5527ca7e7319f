//! Event queues (fi_eq(3)): the results of asynchronous calls, and connection events.

use std::sync::Arc;
use std::time::Duration;

use crate::c_enum::c_enum;
use crate::{Context, Errno, Fid, Info, MutexCond, Result, WaitObj, WaitSet};

c_enum! {
    /// The kind of an event (`FI_NOTIFY` and the like of fi_eq(3)).
    #[non_exhaustive]
    pub enum EventKind {
        /// Written by the application, or specific to the transport.
        Notify = 0 => "FI_NOTIFY",
        /// A peer requests a connection from a passive endpoint.
        ConnReq = 1 => "FI_CONNREQ",
        /// An endpoint is connected.
        Connected = 2 => "FI_CONNECTED",
        /// The connection has ended, whether the peer shut it down or was lost.
        Shutdown = 3 => "FI_SHUTDOWN",
        /// A registration is ready.
        MrComplete = 4 => "FI_MR_COMPLETE",
        /// Addresses are inserted.
        AvComplete = 5 => "FI_AV_COMPLETE",
        /// An endpoint has joined a group.
        JoinComplete = 6 => "FI_JOIN_COMPLETE",
    }
}

/// How to open an event queue (`struct fi_eq_attr`).
#[derive(Clone, Debug)]
pub struct EqAttr {
    /// The number of events to make room for; 0 leaves it to the library. It limits only the events that the
    /// application writes; the library's events are never dropped.
    pub size: usize,
    /// Whether the application may write its own events (`FI_WRITE`).
    pub write: bool,
    /// How a thread may block on the queue.
    pub wait_obj: WaitObj,
    /// The wait set to join, with `FI_WAIT_SET`.
    pub wait_set: Option<Arc<dyn WaitSet>>,
}

impl Default for EqAttr {
    fn default() -> Self {
        Self { size: 0, write: false, wait_obj: WaitObj::None, wait_set: None }
    }
}

/// An event (`struct fi_eq_entry` and `struct fi_eq_cm_entry` in one).
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its kind.
    pub kind: EventKind,
    /// About which object.
    pub fid: Fid,
    /// The context of the call whose result this is.
    pub context: Context,
    /// Depends on the kind: for [`EventKind::AvComplete`] the number of inserted addresses.
    pub data: u64,
    /// With [`EventKind::ConnReq`]: the info to open the accepting endpoint with. Its `handle` is the request.
    pub info: Option<Box<Info>>,
    /// The data that the peer attached to its request or acceptance; or the data that the application wrote.
    pub conn_data: Vec<u8>,
}

impl Event {
    /// An event in which all fields but kind and object have their neutral values.
    pub const fn new(kind: EventKind, fid: Fid) -> Self {
        Self { kind, fid, context: Context::NULL, data: 0, info: None, conn_data: Vec::new() }
    }
}

/// The error of a call that failed after it had returned (`struct fi_eq_err_entry`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EqErrorEntry {
    /// About which object.
    pub fid: Fid,
    /// The context of the call.
    pub context: Context,
    /// Depends on the call: for an insertion, the index of the address that failed.
    pub data: u64,
    /// Why it failed.
    pub err: Errno,
    /// The transport's own error code; [`EventQueue::error_text`] explains it.
    pub prov_errno: i32,
    /// Further data: the data that the peer attached to its rejection.
    pub err_data: Vec<u8>,
}

impl EqErrorEntry {
    /// An entry in which all fields but object and error have their neutral values.
    pub const fn new(fid: Fid, err: Errno) -> Self {
        Self { fid, context: Context::NULL, data: 0, err, prov_errno: 0, err_data: Vec::new() }
    }
}

/// An event queue (`fid_eq`). Reading it drives progress of the objects bound to it, as with completion queues.
pub trait EventQueue: Send + Sync + std::any::Any {
    /// Takes the oldest event.
    ///
    /// # Errors
    /// `FI_EAGAIN` if there is no event; `FI_EAVAIL` if an error is pending, to be read with
    /// [`EventQueue::read_error`].
    fn read(&self) -> Result<Event>;

    /// Returns the oldest event without removing it (`FI_PEEK`).
    ///
    /// # Errors
    /// As `read`.
    fn peek(&self) -> Result<Event>;

    /// As [`EventQueue::read`], but blocks until there is an event or `timeout` has passed (`None`: no limit).
    ///
    /// # Errors
    /// As `read`; `FI_EAGAIN` also after a timeout; `FI_EINVAL` on a queue without a wait object.
    fn read_wait(&self, timeout: Option<Duration>) -> Result<Event>;

    /// As [`EventQueue::read_wait`], without removing the event.
    ///
    /// # Errors
    /// Those of [`EventQueue::read_wait`].
    fn peek_wait(&self, timeout: Option<Duration>) -> Result<Event>;

    /// Takes the oldest error.
    ///
    /// # Errors
    /// `FI_EAGAIN` if there is no error.
    fn read_error(&self) -> Result<EqErrorEntry>;

    /// Appends an event of the application.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` unless the queue was opened with [`EqAttr::write`]; `FI_EAGAIN` while it is full.
    fn write(&self, event: Event) -> Result<()>;

    /// Explains a `prov_errno`.
    fn error_text(&self, prov_errno: i32) -> String;

    /// Whether the caller may block on the wait descriptor (`fi_trywait`, fi_poll(3)).
    ///
    /// # Errors
    /// `FI_EAGAIN` if the caller must read the queue first; `FI_EINVAL` on a queue without a wait object.
    fn trywait(&self) -> Result<()>;

    /// The wait descriptor, for `FI_WAIT_FD` and `FI_WAIT_POLLFD` (an array of one, which never changes).
    fn wait_fd(&self) -> Option<std::os::fd::RawFd>;

    /// Mutex and condition variable, for `FI_WAIT_MUTEX_COND`. Wait on them only after [`EventQueue::trywait`] returned
    /// `Ok`. The condition is broadcast repeatedly until the queue is read.
    fn mutex_cond(&self) -> Option<MutexCond>;
}
