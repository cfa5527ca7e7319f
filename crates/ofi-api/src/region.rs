//! Registrations (fi_mr(3)).

use std::sync::Arc;

use crate::{BindFlags, Counter, Desc, Endpoint, Fid, Piece, Result};

/// A registration (`fid_mr`). Closed when the last handle is dropped, or by [`MemoryRegion::close`].
pub trait MemoryRegion: Send + Sync {
    /// The identity that events carry.
    fn fid(&self) -> Fid;
    /// The key by which peers name it; `FI_KEY_NOTAVAIL` until it is enabled.
    fn key(&self) -> u64;
    /// The descriptor by which local operations name it.
    fn desc(&self) -> Desc;
    /// The address by which peers name the first byte: a virtual address or an offset.
    fn base(&self) -> u64;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Always false: an empty region cannot be registered.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Counts peers' accesses to the region on `counter` (`fi_mr_bind`): those of `FI_REMOTE_WRITE`, `FI_REMOTE_READ`
    /// or both. Peers that access the region through a mapping lose it first: from then on the owner executes their
    /// accesses, because only the owner can count them.
    ///
    /// # Errors
    /// `FI_EBADFLAGS` for other flags; `FI_EBUSY` if that kind already has a counter; `FI_EINVAL` for a counter of
    /// another library, `FI_EDOMAIN` for one of another domain.
    fn bind_counter(&self, counter: &Arc<dyn Counter>, flags: BindFlags) -> Result<()>;

    /// Ties the region to an endpoint, as domains with `FI_MR_ENDPOINT` require. Has no effect in other domains.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` if the region is enabled and the domain has `FI_MR_ENDPOINT`; `FI_EDOMAIN` for an endpoint of
    /// another domain.
    fn bind_endpoint(&self, endpoint: &Arc<dyn Endpoint>) -> Result<()>;

    /// Enables the region (`fi_mr_enable`). A second call has no effect.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is closed.
    fn enable(&self) -> Result<()>;

    /// Announces that the pages behind `pieces` of the region may have changed (`fi_mr_refresh`). Empty means all of
    /// it.
    ///
    /// # Errors
    /// `FI_EINVAL` if the region is closed, or a piece lies outside it.
    fn refresh(&self, pieces: &[Piece]) -> Result<()>;

    /// Withdraws all rights. After `Ok`, no peer that follows the protocol touches the memory any more: accesses with
    /// its key fail at the peer.
    ///
    /// # Errors
    /// `FI_EBUSY` if an access in progress did not end within a second. The rights are withdrawn, but the memory is
    /// still in use: call again until it succeeds, and only then free the memory.
    fn close(&self) -> Result<()>;
}
