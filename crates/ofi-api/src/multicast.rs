//! Multicast groups (`FI_MULTICAST`, fi_cm(3)).

use std::sync::Arc;

use crate::{FiAddr, Fid};

/// A multicast group that an endpoint has joined, or is joining (`fid_mc`). Dropping it leaves the group and discards
/// its unread events.
pub trait MulticastGroup: Send + Sync {
    /// The identity that events carry.
    fn fid(&self) -> Fid;

    /// The group's address in sends (`fi_mc_addr`), in the endpoint's address vector.
    fn addr(&self) -> FiAddr;
}

/// Shared handle to a multicast group.
pub type Multicast = Arc<dyn MulticastGroup>;
