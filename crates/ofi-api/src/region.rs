//! Registrations (fi_mr(3)).

use std::sync::Arc;

use crate::{BindFlags, Counter, Desc, Endpoint, Fid, Piece, Result};

/// A registration (`fid_mr`). Closed when the last handle is dropped, or by [`MemoryRegion::close`].
pub trait MemoryRegion: Send + Sync {
    /// The identity that events carry.
    fn fid(&self) -> Fid;
    /// The key that peers name it by; `FI_KEY_NOTAVAIL` until it is enabled.
    fn key(&self) -> u64;
    /// The descriptor that local operations name it by.
    fn desc(&self) -> Desc;
    /// The address that peers use for the first byte: a virtual address or an offset.
    fn base(&self) -> u64;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether the length is zero: never, as the man page forbids it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Makes `counter` count accesses by peers to the region (`fi_mr_bind`): `FI_REMOTE_WRITE`, `FI_REMOTE_READ` or
    /// both. Accesses through peers' mappings are stopped first, and go to the owner from now on, since only it can
    /// count them.
    ///
    /// # Errors
    /// `FI_EBADFLAGS` for other flags; `FI_EBUSY` if that kind has a counter; `FI_EINVAL` for a counter of another
    /// library's making, `FI_EDOMAIN` for one of another domain.
    fn bind_counter(&self, counter: &Arc<dyn Counter>, flags: BindFlags) -> Result<()>;

    /// Ties the region to an endpoint, as domains with `FI_MR_ENDPOINT` need; others take note of it and change
    /// nothing.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` if the region is enabled and the domain has `FI_MR_ENDPOINT`; `FI_EDOMAIN` for an endpoint of
    /// another domain.
    fn bind_endpoint(&self, endpoint: &Arc<dyn Endpoint>) -> Result<()>;

    /// Lets the region be used (`fi_mr_enable`). Twice changes nothing.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is closed.
    fn enable(&self) -> Result<()>;

    /// Announces that other pages may now be behind `pieces` of the region (`fi_mr_refresh`). No piece means all of it.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is closed, or a piece is outside of it.
    fn refresh(&self, pieces: &[Piece]) -> Result<()>;

    /// Withdraws all rights. When it returns successfully, no peer that follows the protocol touches the memory, now or
    /// later: further accesses with its key fail at the peer.
    ///
    /// # Errors
    /// `FI_EBUSY` if an access in progress has not ended within a second. The rights are withdrawn, but the memory is
    /// still in use: call it again until it succeeds, before the memory is freed.
    fn close(&self) -> Result<()>;
}
