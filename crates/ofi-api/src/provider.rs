//! The trait that a transport implements to be found by getinfo.

use std::sync::Arc;

use crate::{Fabric, GetinfoFlags, Hints, Info, Refusal, Result, Version};

/// What an application asks getinfo for.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The interface version that the application was written for.
    pub version: Version,
    /// A host name, a numeric address, or a transport's own name.
    pub node: Option<&'a str>,
    /// A port or service name.
    pub service: Option<&'a str>,
    /// Which end `node` and `service` name, and how.
    pub flags: GetinfoFlags,
    /// What the application wants; `None` asks for everything.
    pub hints: Option<&'a Hints>,
}

/// A provider's answer: what it offers, best first, and why the rest was refused.
#[derive(Clone, Debug, Default)]
pub struct Offers {
    /// Usable as they are to open a fabric.
    pub infos: Vec<Info>,
    /// One for each thing that stood in the way.
    pub refusals: Vec<Refusal>,
}

/// One way of moving messages: shared memory, sockets, an adapter.
///
/// # Safety
/// Programs without `unsafe` rely on every object that comes from a provider, so each keeps what its trait promises:
/// * A completion is reported when the operation no longer uses the lent memory, and not before.
/// * [`MemoryRegion::close`](crate::MemoryRegion::close) answers `Ok` only when no peer can reach the memory any more.
/// * [`LibraryMemory`](crate::LibraryMemory) names memory that is mapped, initialised and nobody else's while it lives.
/// * A descriptor that a wait object names is open as long as the object lives.
#[allow(unsafe_code)] // the promise of the trait, not a call
pub unsafe trait Provider: Send + Sync {
    /// Name as written in `FI_PROVIDER`, such as `"shm"`.
    fn name(&self) -> &str;

    /// Version of the provider.
    fn version(&self) -> Version;

    /// What this host can offer for `request`. A pure function of the request and the host's state.
    fn offers(&self, request: &Request<'_>) -> Offers;

    /// Opens the fabric that `info` describes; `info` came from this provider.
    ///
    /// # Errors
    /// `FI_EINVAL` if it did not.
    fn open_fabric(&self, info: &Info) -> Result<Arc<dyn Fabric>>;

    /// Whether devices access registrations by themselves, under keys of their own: faster, and only in domains that choose the keys
    /// (`FI_MR_PROV_KEY`).
    fn has_device_keys(&self) -> bool {
        false
    }
}
