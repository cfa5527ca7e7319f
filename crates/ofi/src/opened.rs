//! An opened domain.

use std::sync::Arc;

use ofi_api::{Fabric, Info};

/// The parts of a domain that nodes and memory keep open.
pub struct OpenedDomain {
    /// Identifies the domain, so that a descriptor of one domain is not used in another.
    pub id: u64,
    pub info: Info,
    pub raw: Arc<dyn ofi_api::Domain>,
    pub fabric: Arc<dyn Fabric>,
}
