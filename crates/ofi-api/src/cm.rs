//! Passive endpoints (fi_cm(3)): where connections are asked for. The calls of the connecting ends are in
//! [`crate::Endpoint`].

use std::sync::Arc;

use crate::{Address, EventQueue, Fid, Handle, Result};

/// A passive endpoint (`fid_pep`). It belongs to a fabric; endpoints that accept its requests may be opened in any
/// domain of that fabric.
pub trait PassiveEndpoint: Send + Sync + std::any::Any {
    /// The identity that events carry.
    fn fid(&self) -> Fid;

    /// Binds the queue that connection requests are reported to.
    ///
    /// # Errors
    /// `FI_EBUSY` if it has one; `FI_EINVAL` for one of another implementation.
    fn bind_eq(&self, eq: &Arc<dyn EventQueue>) -> Result<()>;

    /// Chooses its address, before it listens.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after listen; `FI_EINVAL` for an address of the wrong format.
    fn set_name(&self, address: &Address) -> Result<()>;

    /// Its address.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` while it has no address: before `listen`, unless one was chosen.
    fn name(&self) -> Result<Address>;

    /// Sets the maximum number of unanswered requests; more are refused (`FI_BACKLOG`).
    ///
    /// # Errors
    /// `FI_EINVAL` for 0.
    fn set_backlog(&self, requests: usize) -> Result<()>;

    /// Starts to accept requests. Calling it again has no effect.
    ///
    /// # Errors
    /// `FI_ENOEQ` without an event queue; `FI_EADDRINUSE` if another has the address.
    fn listen(&self) -> Result<()>;

    /// Refuses the request behind `handle`, which is the [`crate::Info::handle`] of its event. The peer gets `data`,
    /// cut to [`PassiveEndpoint::cm_data_size`], with its error.
    ///
    /// # Errors
    /// `FI_EINVAL` for a handle that is not a request of this endpoint; `FI_EALREADY` if it was answered before.
    fn reject(&self, handle: &Handle, data: &[u8]) -> Result<()>;

    /// The maximum data of connect, accept and reject, in bytes (`FI_OPT_CM_DATA_SIZE`).
    fn cm_data_size(&self) -> usize;
}
