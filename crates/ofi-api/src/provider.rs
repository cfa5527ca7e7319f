//! The trait by which getinfo finds a transport.

use std::sync::Arc;

use crate::{Fabric, GetinfoFlags, Hints, Info, Refusal, Result, Version};

/// An application's request to getinfo.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The interface version that the application was written for.
    pub version: Version,
    /// A host name, a numeric address, or a transport's own name.
    pub node: Option<&'a str>,
    /// A port or service name.
    pub service: Option<&'a str>,
    /// Which end `node` and `service` name, and how to resolve them.
    pub flags: GetinfoFlags,
    /// The application's requirements; `None` asks for everything.
    pub hints: Option<&'a Hints>,
}

/// A provider's answer: its offers, best first, and the reasons for what it refused.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    /// Infos with which a fabric can be opened as they are.
    pub infos: Vec<Info>,
    /// One refusal for each obstacle.
    pub refusals: Vec<Refusal>,
}

/// One way of moving messages: shared memory, sockets, an adapter.
///
/// # Safety
/// Programs without `unsafe` rely on the objects of a provider, so each object must keep the promises of its trait:
/// * A completion is reported only once the operation no longer uses the lent memory.
/// * [`MemoryRegion::close`](crate::MemoryRegion::close) returns `Ok` only when peers can no longer reach the memory.
/// * [`LibraryMemory`](crate::LibraryMemory) is mapped and initialised while it exists, and owns its memory
///   exclusively.
/// * The descriptor of a wait object stays open while the object exists.
#[allow(unsafe_code)] // the promise of the trait, not a call
pub unsafe trait Provider: Send + Sync {
    /// Name as written in `FI_PROVIDER`, such as `"shm"`.
    fn name(&self) -> &str;

    /// Version of the provider.
    fn version(&self) -> Version;

    /// What this host offers for `request`. A pure function of the request and the host's state.
    fn offers(&self, request: &Request<'_>) -> Offers;

    /// Opens the fabric that `info` describes; `info` came from this provider.
    ///
    /// # Errors
    /// `FI_EINVAL` if it did not.
    fn open_fabric(&self, info: &Info) -> Result<Arc<dyn Fabric>>;

    /// Whether devices access registrations directly, with keys of their own. That is faster, but works only in domains
    /// that choose the keys (`FI_MR_PROV_KEY`).
    fn has_device_keys(&self) -> bool {
        false
    }
}
