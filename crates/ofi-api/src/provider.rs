//! The trait that a transport implements to be found by getinfo.

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

/// A provider's answer: its offers, best first, and the reasons for refusing the rest.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    /// Usable as they are to open a fabric.
    pub infos: Vec<Info>,
    /// One refusal for each obstacle.
    pub refusals: Vec<Refusal>,
}

/// One way of moving messages: shared memory, sockets, an adapter.
///
/// # Safety
/// Programs without `unsafe` rely on every object of a provider, so each object must keep the promises of its trait:
/// * A completion is reported when the operation no longer uses the lent memory, and not before.
/// * [`MemoryRegion::close`](crate::MemoryRegion::close) returns `Ok` only when peers can no longer reach the memory.
/// * [`LibraryMemory`](crate::LibraryMemory) names memory that is mapped, initialised and owned by it alone while it
///   lives.
/// * A descriptor that a wait object names is open as long as the object lives.
#[allow(unsafe_code)] // the promise of the trait, not a call
pub unsafe trait Provider: Send + Sync {
    /// Name as written in `FI_PROVIDER`, such as `"shm"`.
    fn name(&self) -> &str;

    /// Version of the provider.
    fn version(&self) -> Version;

    /// The offers of this host for `request`. A pure function of the request and the host's state.
    fn offers(&self, request: &Request<'_>) -> Offers;

    /// Opens the fabric that `info` describes; `info` came from this provider.
    ///
    /// # Errors
    /// `FI_EINVAL` if it did not.
    fn open_fabric(&self, info: &Info) -> Result<Arc<dyn Fabric>>;

    /// Whether devices access registrations directly, under keys of their own: faster, but only in domains that choose
    /// the keys (`FI_MR_PROV_KEY`).
    fn has_device_keys(&self) -> bool {
        false
    }
}
