//! Transmit contexts that nodes share: the public type.

use std::fmt;
use std::sync::Arc;

use ofi_api::Result;

use crate::domain::Domain;
use crate::threading::{Level, Safe};

impl<L: Level> Domain<L> {
    /// Opens a transmit context for nodes to share: see [`SharedTransmit`].
    ///
    /// # Errors
    /// `FI_ENOSYS` if the transport has no shared transmit contexts.
    pub fn shared_transmit(&self) -> Result<SharedTransmit<L>> {
        SharedTransmit::open(self)
    }
}

/// A transmit context that several nodes of a domain share (`fi_stx_context`). The nodes share one limit on operations
/// in flight, instead of one limit each. Posting returns `FI_EAGAIN` when the limit is reached.
///
/// ```
/// use ofi::{Domain, Hints, Node};
///
/// let room = Domain::open(&Hints::new().provider("shm"))?.shared_transmit()?;
/// let red = Node::builder().shared_transmit(&room).open()?;
/// let blue = Node::builder().shared_transmit(&room).open()?;
/// # Ok::<(), ofi::Error>(())
/// ```
pub struct SharedTransmit<L: Level = Safe> {
    raw: Arc<dyn ofi_api::SharedTransmit>,
    domain: Domain<L>,
}

impl<L: Level> SharedTransmit<L> {
    fn open(domain: &Domain<L>) -> Result<Self> {
        let opened = domain.opened();
        let raw = opened.raw.open_shared_transmit(&opened.info.tx_attr)?;
        Ok(Self { raw, domain: domain.clone() })
    }

    pub(crate) fn raw(&self) -> &Arc<dyn ofi_api::SharedTransmit> {
        &self.raw
    }

    /// The domain of its nodes.
    pub fn domain(&self) -> &Domain<L> {
        &self.domain
    }
}

impl<L: Level> fmt::Debug for SharedTransmit<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTransmit").field("domain", &self.domain).finish()
    }
}
