//! Memory: buffers lent to operations, memory to register, and memory that the library allocates.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{Address, Context, MrAccess};

/// One contiguous piece of memory. Laid out like C's `struct iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Piece {
    /// First byte. May be null where `len` is zero.
    pub addr: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

// SAFETY: a piece is only an address and a length; code that dereferences it relies on the promise of `Lent::new`.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

impl Piece {
    /// A piece over `addr..addr + len`.
    pub const fn new(addr: *mut u8, len: usize) -> Self {
        Self { addr, len }
    }
}

/// A local descriptor (`fi_mr_desc`), which names the registration of a local buffer. [`Desc::NONE`] is C's null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Desc(pub usize);

impl Desc {
    /// No descriptor.
    pub const NONE: Self = Self(0);
}

/// Memory lent to one operation: pieces and, optionally, the descriptor of each piece's registration.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    pieces: &'a [Piece],
    descs: &'a [Desc],
}

impl<'a> Lent<'a> {
    /// No memory: a zero-length message, or a receive that takes only the envelope.
    pub const EMPTY: Lent<'static> = Lent { pieces: &[], descs: &[] };

    /// Lends `pieces` to one operation. `descs` is empty or has one descriptor for each piece.
    ///
    /// The two slices themselves are read only during the call that takes this value; the memory that the pieces name
    /// is lent until the operation ends.
    ///
    /// # Safety
    /// The memory must stay allocated, nothing else may write it and, for a receive or a read, nothing else may read
    /// it, until the operation's completion is read, the endpoint is closed or, for an injected operation, the call
    /// returns. All safe code behind this constructor relies on this promise.
    #[inline]
    pub const unsafe fn new(pieces: &'a [Piece], descs: &'a [Desc]) -> Self {
        Self { pieces, descs }
    }

    /// The pieces, in order.
    #[inline]
    pub const fn pieces(&self) -> &'a [Piece] {
        self.pieces
    }

    /// The descriptors: none, or one for each piece.
    #[inline]
    pub const fn descs(&self) -> &'a [Desc] {
        self.descs
    }

    /// The sum of the pieces' lengths, in bytes; saturates.
    #[inline]
    pub fn len(&self) -> usize {
        match self.pieces {
            [one] => one.len,
            many => many.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len)),
        }
    }

    /// Whether the length is zero.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One range of a peer's registered memory. Laid out like C's `struct fi_rma_iov`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RemotePiece {
    /// Virtual address, or offset from the region's start, depending on the peer's `mr_mode`.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
    /// The region's key, from its owner.
    pub key: u64,
}

/// Memory that a device driver has exported as a dma-buf, such as that of a GPU (`struct fi_mr_dmabuf`).
#[derive(Clone, Copy, Debug)]
pub struct Dmabuf<'a> {
    /// The file descriptor. It may be closed once the memory is registered.
    pub fd: BorrowedFd<'a>,
    /// The offset of the first byte to register, from the start of the dma-buf.
    pub offset: u64,
}

/// The memory to register, and its attributes (`struct fi_mr_attr`).
#[derive(Clone, Debug)]
pub struct MrAttr<'a> {
    pieces: &'a [Piece],
    access: MrAccess,
    /// With offset addressing: the offset by which peers address the first byte. Zero otherwise.
    pub offset: u64,
    /// The key to use, if the application chooses keys (no `FI_MR_PROV_KEY`).
    pub requested_key: u64,
    /// The kind of memory; [`crate::HmemIface::System`] for ordinary memory.
    pub iface: crate::HmemIface,
    /// Device number within `iface`.
    pub device: u64,
    /// Leaves the region disabled, so that it can be bound to other objects first: no operation may use it before
    /// [`crate::MemoryRegion::enable`]. Implied by `FI_MR_ENDPOINT`.
    pub disabled: bool,
    /// Only endpoints with this authorization key give peers access to the region. Empty means the domain's key, or all
    /// endpoints if the domain has none.
    pub auth_key: &'a [u8],
    /// Only the peer with this address may access it (in C, `fi_mr_auth_key.src_addr`); `None` for all peers.
    pub peer: Option<&'a Address>,
    /// The context of the event that reports the registration (`FI_REG_MR`).
    pub context: Context,
    dmabuf: Option<Dmabuf<'a>>,
}

impl<'a> MrAttr<'a> {
    /// A registration of `pieces` for `access`; all other attributes have their defaults.
    ///
    /// # Safety
    /// Until the registration is closed, the memory stays mapped. With remote rights, any peer that has the key may
    /// read or write it at any moment, so the program must not hold Rust references that exclude such accesses.
    ///
    /// A piece that begins at the null pointer, or is longer than `isize::MAX`, promises no mapping: it covers whatever
    /// is mapped there when a peer accesses it (`fi_mr_reg(NULL, SIZE_MAX)`: the whole address space). Each access is
    /// checked, and fails at the peer if the address is not mapped (`FI_EACCES`). The program must not unmap memory
    /// that a peer is accessing, and must not hold references as above to any of its memory.
    pub const unsafe fn new(pieces: &'a [Piece], access: MrAccess) -> Self {
        Self {
            pieces,
            access,
            offset: 0,
            requested_key: 0,
            iface: crate::HmemIface::System,
            device: 0,
            disabled: false,
            auth_key: &[],
            peer: None,
            context: Context(0),
            dmabuf: None,
        }
    }

    /// A registration of a dma-buf (`FI_MR_DMABUF`). Only devices read and write the dma-buf, never a processor. The
    /// one piece has its length, and the address by which accesses name its first byte; that address need not be
    /// mapped, and must not belong to other memory. Local operations on that address use the dma-buf if the device
    /// alone moves the bytes: reads and writes of `efa` with RDMA at both ends, and all operations of connected
    /// endpoints of `verbs`. Those that the processor would have to copy fail with `FI_EOPNOTSUPP`: over `efa` reads
    /// and writes; over `verbs` injected ones and atomics; and with `FI_HMEM` all others, if [`MrAttr::iface`] is not
    /// the host's. What remains uses the memory that is mapped at the address. In a domain with `FI_HMEM`, CUDA copies
    /// memory that it knows by that address instead.
    ///
    /// Registering fails with `FI_ENOSYS` if no device supports it.
    pub const fn of_dmabuf(dmabuf: Dmabuf<'a>, piece: &'a [Piece; 1], access: MrAccess) -> Self {
        // SAFETY: the registration gives nobody access to addresses of this process.
        let mut attr = unsafe { Self::new(piece, access) };
        attr.dmabuf = Some(dmabuf);
        attr
    }

    /// The dma-buf, if this registers one.
    pub const fn dmabuf(&self) -> Option<Dmabuf<'a>> {
        self.dmabuf
    }

    /// The same registration, with its rights restricted to `access`.
    #[must_use]
    pub fn restricted(&self, access: MrAccess) -> Self {
        Self { access: self.access & access, ..self.clone() }
    }

    /// The memory: one piece, or several that together form one region.
    pub const fn pieces(&self) -> &'a [Piece] {
        self.pieces
    }

    /// Whether the memory stays mapped while it is registered. False if a piece begins at the null pointer or is longer
    /// than `isize::MAX`; see [`MrAttr::new`].
    pub fn promises_memory(&self) -> bool {
        let whatever = |piece: &Piece| piece.addr.is_null() || isize::try_from(piece.len).is_err();
        self.dmabuf.is_some() || !self.pieces.iter().any(|piece| piece.len > 0 && whatever(piece))
    }

    /// The rights of local and remote operations.
    pub const fn access(&self) -> MrAccess {
        self.access
    }
}

/// Placement of library memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The NUMA node to prefer; `None` leaves it to the first touch.
    pub node: Option<u32>,
    /// Requests huge pages; ordinary pages are used where the system has none.
    pub huge: bool,
    /// The kind of memory; only system memory is supported.
    pub iface: crate::HmemIface,
}

/// Memory that the library allocated, which transports may share with peers instead of copying.
pub trait LibraryMemory: Send + Sync {
    /// The first byte. The memory is initially zero, and stays mapped while this object exists.
    fn as_ptr(&self) -> *mut u8;
    /// The requested length, in bytes.
    fn len(&self) -> usize;
    /// Always false.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Shared handle to library memory.
pub type Allocation = Arc<dyn LibraryMemory>;
