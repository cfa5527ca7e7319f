//! One transport, chosen at compile time: libfabric's `FABRIC_DIRECT`.
//!
//! The raw layer's objects are `dyn`, so that a program can choose its transport at run time. A program for a single
//! transport can convert the two objects of its data path into types of that transport. They have the same methods,
//! those of [`raw::Endpoint`] and [`raw::CompletionQueue`], but the compiler calls them directly and may inline them.
//! All other objects are unchanged.
//!
//! ```
//! use ofi::direct::{CompletionQueue, Endpoint, Shm};
//! use ofi::raw::{
//!     AvAttr, BindFlags, CompletionQueue as _, Context, CqAttr, CqBuffer, CqTaggedEntry, Endpoint as _, Lent, OpFlags,
//!     Call, Piece, SendOp,
//! };
//! use ofi::{Caps, EpType, Hints, Version};
//!
//! let hints = Hints::new().provider("shm").ep_type(EpType::Rdm).caps(Caps::MSG);
//! let info = ofi::getinfo(Version::API, None, None, ofi::GetinfoFlags::empty(), Some(&hints))?.remove(0);
//! let domain = ofi::open_fabric(&info)?.open_domain(&info)?;
//! let endpoint = Endpoint::<Shm>::new(domain.open_endpoint(&info)?)?;
//! let queue = CompletionQueue::new(domain.open_cq(&CqAttr::default())?)?;
//! let av = domain.open_av(&AvAttr::default())?;
//! endpoint.bind_cq(&queue.shared(), BindFlags::TRANSMIT | BindFlags::RECV)?;
//! endpoint.bind_av(&av)?;
//! endpoint.enable()?;
//! let itself = av.insert(&[endpoint.name()?]).remove(0)?;
//! static HELLO: &[u8] = b"hello";
//! let pieces = [Piece::new(HELLO.as_ptr().cast_mut(), HELLO.len())];
//! // SAFETY: a send only reads the memory, which is static.
//! let buf = unsafe { Lent::new(&pieces, &[]) };
//! let (context, flags) = (Context(7), OpFlags::empty());
//! let hello = SendOp { buf, dest: itself, context, data: 0, flags, call: Call::Plain };
//! while let Err(error) = endpoint.send(&hello) { // no dynamic call
//!     assert!(error.is_again(), "{error}"); // until the endpoint has connected to the peer
//! }
//! let mut entries = [CqTaggedEntry::EMPTY; 4];
//! while let Err(error) = queue.read(&mut CqBuffer::new(&mut entries)) {
//!     assert!(error.is_again(), "{error}");
//! }
//! assert_eq!(entries[0].op_context, context);
//! # Ok::<(), ofi::Error>(())
//! ```

use std::any::{Any, type_name};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use ofi_api::{Errno, Error, Result};
use ofi_core::cq::Cq;
use ofi_core::endpoint::Ep;
use ofi_core::transport::Transport;

use crate::raw;

#[cfg(feature = "shm")]
pub use ofi_shm::Shm;

#[cold]
fn another(what: &str, wanted: impl Into<String>) -> Error {
    Error::wanted(
        Errno::EINVAL,
        what,
        wanted,
        "one of another transport or library",
        "open it with an info of that transport's provider",
    )
}

/// An endpoint of transport `T`: dereferences to a type whose [`raw::Endpoint`] methods are called directly.
pub struct Endpoint<T: Transport>(Arc<Ep<T>>);

impl<T: Transport> Endpoint<T> {
    /// Converts an endpoint that was opened as usual.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is not of transport `T`.
    pub fn new(endpoint: Arc<dyn raw::Endpoint>) -> Result<Self> {
        let any: Arc<dyn Any + Send + Sync> = endpoint;
        any.downcast().map(Self).map_err(|_| another("a direct endpoint", type_name::<T>()))
    }

    /// As a trait object that hides the transport.
    pub fn shared(&self) -> Arc<dyn raw::Endpoint> {
        Arc::clone(&self.0) as _
    }
}

impl<T: Transport> Deref for Endpoint<T> {
    type Target = Ep<T>;

    #[inline]
    fn deref(&self) -> &Ep<T> {
        &self.0
    }
}

impl<T: Transport> fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint<{}>", type_name::<T>())
    }
}

/// A completion queue: dereferences to a type whose [`raw::CompletionQueue`] methods are called directly. It may serve
/// endpoints of any transport, so one call below it stays dynamic.
pub struct CompletionQueue(Arc<Cq>);

impl CompletionQueue {
    /// Converts a queue that was opened as usual.
    ///
    /// # Errors
    /// `FI_EINVAL` for a queue of another library.
    pub fn new(queue: Arc<dyn raw::CompletionQueue>) -> Result<Self> {
        let any: Arc<dyn Any + Send + Sync> = queue;
        any.downcast().map(Self).map_err(|_| another("a direct completion queue", "one of this library"))
    }

    /// As a trait object that hides the transport, for binding.
    pub fn shared(&self) -> Arc<dyn raw::CompletionQueue> {
        Arc::clone(&self.0) as _
    }
}

impl Deref for CompletionQueue {
    type Target = Cq;

    #[inline]
    fn deref(&self) -> &Cq {
        &self.0
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompletionQueue")
    }
}
