//! Domains: nodes are opened, and memory is allocated and registered, in a domain.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ofi_api::{Caps, EpType, Error, GetinfoFlags, Hints, Info, MrAccess, MrMode, Placement, Result, Version};

use crate::buffer::{Buffer, BufferMut};
use crate::memory::Memory;
use crate::opened::OpenedDomain;
use crate::registered::Registered;
use crate::request::PostError;
use crate::threading::{Exclusive, Level, Safe};
use crate::window::Window;

/// Capabilities that are expensive or change a program's results, so that hints without capabilities do not get them:
/// `FI_SOURCE_ERR`, for example, turns messages from unknown senders into errors.
const UNASKED: Caps = Caps::SOURCE_ERR.union(Caps::RMA_EVENT).union(Caps::EXACT_DIRECTED_RECV);

/// A domain (`fid_domain`). A [`Node`](crate::Node) opens one of its own. Open a domain separately to share it between
/// nodes, or to allocate and register memory without a node.
///
/// Clones are the same domain. At every level, any thread may use them: the level restricts only the nodes.
pub struct Domain<L: Level = Safe> {
    opened: Arc<OpenedDomain>,
    _level: PhantomData<fn() -> L>,
}

impl Domain<Safe> {
    /// Opens the first domain that getinfo offers for `hints`, for `FI_THREAD_SAFE` nodes. Hints without capabilities
    /// get all except `FI_SOURCE_ERR`, `FI_RMA_EVENT` and `FI_EXACT_DIRECTED_RECV`; hints without a type get
    /// `FI_EP_RDM`. Hints that name no provider get the fastest one that reaches other hosts, unless they have
    /// `FI_LOCAL_COMM`. (`udp` reaches processes of its own host through shared memory.)
    ///
    /// ```
    /// use ofi::{Caps, Domain, Hints};
    ///
    /// assert!(Domain::open(&Hints::new())?.info().caps.contains(Caps::REMOTE_COMM));
    /// let here = Domain::open(&Hints::new().caps(Caps::MSG | Caps::LOCAL_COMM))?;
    /// assert_eq!(here.info().fabric_attr.prov_name, "shm");
    /// # Ok::<(), ofi::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`getinfo`](crate::getinfo) and of opening.
    pub fn open(hints: &Hints) -> Result<Self> {
        Self::open_as(hints, Caps::empty(), (None, None), GetinfoFlags::empty())
    }
}

impl Domain<Exclusive> {
    /// As [`Domain::open`], for `FI_THREAD_COMPLETION` nodes.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_exclusive(hints: &Hints) -> Result<Self> {
        Self::open_as(hints, Caps::empty(), (None, None), GetinfoFlags::empty())
    }
}

impl<L: Level> Domain<L> {
    /// Opens a domain. `extra` is required in addition to the capabilities of the hints.
    pub(crate) fn open_as(
        hints: &Hints,
        extra: Caps,
        (node, service): (Option<&str>, Option<&str>),
        flags: GetinfoFlags,
    ) -> Result<Self> {
        let mut hints = hints.clone();
        if !hints.info.caps.is_empty() {
            hints.info.caps |= extra;
        }
        let unasked = UNASKED - extra;
        let wanted = &mut hints.info;
        if wanted.ep_attr.ep_type == EpType::Unspec {
            wanted.ep_attr.ep_type = EpType::Rdm;
        }
        wanted.domain_attr.threading = L::THREADING;
        // The modes that this layer handles itself: the hints permit them, and the provider chooses those that it
        // needs.
        wanted.domain_attr.mr_mode |= MrMode::VIRT_ADDR | MrMode::ALLOCATED | MrMode::PROV_KEY;
        // If the program names neither a provider nor `FI_LOCAL_COMM`, its peers may be on other hosts.
        let anywhere =
            hints.info.fabric_attr.prov_name.is_empty() && !hints.info.caps.contains(Caps::LOCAL_COMM);
        let first = |hints: &Hints| {
            let mut infos = crate::getinfo(Version::API, node, service, flags, Some(hints))?;
            let far = infos.iter().position(|info| anywhere && info.caps.contains(Caps::REMOTE_COMM));
            Ok::<_, Error>(infos.swap_remove(far.unwrap_or(0)))
        };
        let mut info = first(&hints)?;
        if hints.info.caps.is_empty() && info.caps.intersects(unasked) {
            hints.info.caps = info.caps - unasked;
            info = first(&hints.provider(info.fabric_attr.prov_name))?;
        }
        Self::of_info(info)
    }

    /// Opens the domain of an info from getinfo or a connection request.
    pub(crate) fn of_info(info: Info) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let fabric = crate::open_fabric(&info)?;
        let raw = fabric.open_domain(&info)?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { opened: Arc::new(OpenedDomain { id, info, raw, fabric }), _level: PhantomData })
    }

    /// The negotiated attributes.
    pub fn info(&self) -> &Info {
        &self.opened.info
    }

    pub(crate) fn opened(&self) -> &Arc<OpenedDomain> {
        &self.opened
    }

    /// Allocates memory that the transport can share with peers, which saves copies. It is the best memory for large
    /// messages and for windows. It is zeroed.
    ///
    /// # Errors
    /// `FI_ENOMEM`; `FI_EINVAL` for a length of zero.
    pub fn alloc(&self, len: usize, placement: Placement) -> Result<Memory> {
        Memory::new(&self.opened, len, placement)
    }

    /// Registers `buffer` for local operations, once for all operations that use it. Adapters whose `mr_mode` has
    /// `FI_MR_LOCAL` require that; others are faster with it.
    ///
    /// # Errors
    /// The errors of [`register`](ofi_api::Domain::register), with the buffer.
    pub fn register<B: Buffer>(&self, buffer: B) -> Result<Registered<B>, PostError<B>> {
        Registered::new(&self.opened, buffer)
    }

    /// Lets peers access `buffer` with the rights in `access`: `FI_REMOTE_READ`, `FI_REMOTE_WRITE` or both.
    ///
    /// # Errors
    /// `FI_EINVAL` for other rights, and the errors of [`register`](ofi_api::Domain::register); with the buffer.
    pub fn window<B: BufferMut>(&self, buffer: B, access: MrAccess) -> Result<Window<B>, PostError<B>> {
        Window::new(&self.opened, buffer, access)
    }

    /// Allocates memory and lets peers access it: [`Domain::alloc`] and [`Domain::window`].
    ///
    /// # Errors
    /// The errors of [`Domain::alloc`] and [`Domain::window`].
    pub fn alloc_window(&self, len: usize, access: MrAccess) -> Result<Window<Memory>> {
        Ok(self.window(self.alloc(len, Placement::default())?, access)?)
    }
}

impl<L: Level> Clone for Domain<L> {
    fn clone(&self) -> Self {
        Self { opened: Arc::clone(&self.opened), _level: PhantomData }
    }
}

impl<L: Level> fmt::Debug for Domain<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({} of {})", self.opened.raw.name(), self.opened.info.fabric_attr.prov_name)
    }
}
