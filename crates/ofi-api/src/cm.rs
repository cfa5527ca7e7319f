//! Passive endpoints (fi_cm(3)), which listen for connection requests. The calls of the connecting and accepting
//! endpoints are in [`crate::Endpoint`].

use std::sync::Arc;

use crate::{Address, EventQueue, Fid, Handle, Result};

/// A passive endpoint (`fid_pep`). It belongs to a fabric; an endpoint that accepts one of its requests may be opened
/// in any domain of that fabric.
pub trait PassiveEndpoint: Send + Sync + std::any::Any {
    /// The identity that events carry.
    fn fid(&self) -> Fid;

    /// Binds the queue that connection requests are reported to.
    ///
    /// # Errors
    /// `FI_EBUSY` if a queue is already bound; `FI_EINVAL` for a queue of another library.
    fn bind_eq(&self, eq: &Arc<dyn EventQueue>) -> Result<()>;

    /// Sets its address; before `listen`.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after listen; `FI_EINVAL` for an address of the wrong format.
    fn set_name(&self, address: &Address) -> Result<()>;

    /// Its address.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` while it has no address: before `listen`, unless one was set.
    fn name(&self) -> Result<Address>;

    /// Sets the maximum number of unanswered requests; further ones are rejected (`FI_BACKLOG`).
    ///
    /// # Errors
    /// `FI_EINVAL` for 0.
    fn set_backlog(&self, requests: usize) -> Result<()>;

    /// Starts to accept requests. Calling it again has no effect.
    ///
    /// # Errors
    /// `FI_ENOEQ` without an event queue; `FI_EADDRINUSE` if the address is taken.
    fn listen(&self) -> Result<()>;

    /// Rejects the request that `handle` names: the [`crate::Info::handle`] of its event. The peer's error event
    /// carries `data`, truncated to [`PassiveEndpoint::cm_data_size`].
    ///
    /// # Errors
    /// `FI_EINVAL` if `handle` is not a request of this endpoint; `FI_EALREADY` if the request was already answered.
    fn reject(&self, handle: &Handle, data: &[u8]) -> Result<()>;

    /// The maximum length of the data of connect, accept and reject, in bytes (`FI_OPT_CM_DATA_SIZE`).
    fn cm_data_size(&self) -> usize;
}
