//! One registration: its memory, its rights, and the translation of addresses.
//!
//! Invariants:
//! I1. There is at least one piece. Each piece, and all of them together from `offset` on, end at valid addresses. Only
//!     a single piece may be empty: a region of no bytes. [`super::register`] checks that.
//! I2. A [`Span`] lies inside its region.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ofi_api::{Address, BindFlags, Context, Desc, HmemIface, KEY_NOTAVAIL, MrAccess, Piece, Result};

use super::Violation;
use crate::auth::AuthKey;
use crate::cntr::{Cntr, Counters, Kind};
use crate::hmem::RegisteredDevice;
use crate::sys::mapped;

/// The meaning of addresses in remote accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addressing {
    /// `FI_MR_VIRT_ADDR`: the owner's virtual address. An access stays in one piece.
    Virtual,
    /// The distance from the start, over all pieces in order, plus the registration's `offset`.
    Offset,
}

/// The accessor of a region.
#[derive(Clone, Copy)]
pub struct Accessor<'a> {
    /// The authorization key of the endpoint through which the access arrives.
    pub auth: &'a AuthKey,
    /// The peer, by its address as known to the application ([`crate::transport::Upcalls::address`]).
    pub peer: Option<&'a Address>,
}

impl Accessor<'static> {
    /// An unknown peer, at an endpoint without an authorization key.
    pub const ANYBODY: Self = Self { auth: &AuthKey::NONE, peer: None };
}

/// A registration, with data `T` of the transport.
pub struct Region<T> {
    pub(super) key: u64,
    pub(super) desc: Desc,
    pub(super) addressing: Addressing,
    pub(super) memory: RegionPieces,
    pub(super) len: usize,
    pub(super) offset: u64,
    pub(super) access: MrAccess,
    pub(super) is_enabled: AtomicBool,
    pub(super) iface: HmemIface,
    pub(super) device: u64,
    pub(super) requested_key: u64,
    pub(super) flags: u64,
    pub(super) context: Context,
    /// Cloned into every region that is derived from this one.
    pub(super) as_base: Arc<()>,
    /// `as_base` of the region from which this one is derived.
    pub(super) base: Option<Arc<()>>,
    pub(super) data: T,
    /// Accessible only through endpoints with this authorization key; through all if `None`.
    pub(super) auth: AuthKey,
    /// Accessible only for this peer; for all if `None`.
    pub(super) only: Option<Address>,
    /// It covers whatever is mapped, which each access has to check: it begins at the null pointer, or is longer than
    /// any memory.
    pub(super) is_unmapped: bool,
    /// Its memory is a device's, so only the copies of `access` reach it.
    pub(super) hmem: Option<RegisteredDevice>,
    /// An access needs more checks than usual, because of `only`, `is_unmapped` or `hmem`.
    pub(super) is_special: bool,
    /// The counters of peers' reads and writes.
    pub(super) counters: RwLock<Counters>,
    pub(super) is_counted: AtomicBool,
}

/// The pieces of a region, without an allocation for the usual case.
#[derive(Debug)]
pub(super) enum RegionPieces {
    One([Piece; 1]),
    Many(Box<[Piece]>),
}

impl RegionPieces {
    pub fn new(pieces: &[Piece]) -> Self {
        let mut filled = pieces.iter().filter(|piece| piece.len > 0);
        match (pieces, filled.clone().count()) {
            ([one], _) => RegionPieces::One([*one]),
            ([first, ..], 0) => RegionPieces::One([*first]),
            (_, 1) => RegionPieces::One([*filled.next().unwrap_or(&pieces[0])]),
            _ => RegionPieces::Many(filled.copied().collect()),
        }
    }

    #[inline]
    pub fn pieces(&self) -> &[Piece] {
        match self {
            RegionPieces::One(one) => one,
            RegionPieces::Many(many) => many,
        }
    }
}

/// How the memory of an access will be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// The processor, the kernel, or a peer's process.
    Processor,
    /// By the processor, or by the driver of the device that owns the memory.
    Driver,
}

/// Part of a region: `len` bytes starting at offset `start` of piece `first`, over as many pieces as necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub first: usize,
    pub start: usize,
    pub len: usize,
}

impl<T> Region<T> {
    /// The key by which peers name it; [`KEY_NOTAVAIL`] until it is enabled.
    pub fn key(&self) -> u64 {
        if self.is_enabled() { self.key } else { KEY_NOTAVAIL }
    }

    /// The descriptor by which local operations name it.
    pub fn desc(&self) -> Desc {
        self.desc
    }

    /// The memory, piece by piece.
    pub fn pieces(&self) -> &[Piece] {
        self.memory.pieces()
    }

    /// Length in bytes, over all pieces.
    #[expect(clippy::len_without_is_empty, reason = "nothing depends on it")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of the first byte in remote accesses.
    pub fn base_address(&self) -> u64 {
        match self.addressing {
            Addressing::Virtual => self.pieces()[0].addr.addr() as u64,
            Addressing::Offset => self.offset,
        }
    }

    /// Its rights.
    pub fn access(&self) -> MrAccess {
        self.access
    }

    /// Whether peers and local operations may use it.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Acquire)
    }

    /// Whether a counter is bound to it: then its owner must execute every access.
    #[inline]
    pub fn is_counted(&self) -> bool {
        self.is_counted.load(Ordering::Acquire)
    }

    /// Makes `counter` count accesses of peers.
    ///
    /// # Errors
    /// `FI_EBUSY` if a kind of access has a counter.
    pub fn bind(&self, counter: &Arc<Cntr>, flags: BindFlags) -> Result<()> {
        self.counters.write().unwrap_or_else(PoisonError::into_inner).bind(counter, flags)?;
        self.is_counted.store(true, Ordering::Release);
        Ok(())
    }

    /// Counts an access of `len` bytes.
    pub(super) fn count(&self, kind: Kind, len: usize) {
        self.counters.read().unwrap_or_else(PoisonError::into_inner).count(kind, len);
    }

    /// The kind of its memory.
    pub fn iface(&self) -> HmemIface {
        self.iface
    }

    /// The device that owns its memory, if the processor must not access it.
    pub(crate) fn hmem(&self) -> Option<&RegisteredDevice> {
        self.hmem.as_ref()
    }

    /// Device number within [`Region::iface`].
    pub fn device(&self) -> u64 {
        self.device
    }

    /// The key that the application requested, whether or not it was granted.
    pub fn requested_key(&self) -> u64 {
        self.requested_key
    }

    /// Flags of the registration (fi_mr(3), "FLAGS"), with the C values.
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// The application's context.
    pub fn context(&self) -> Context {
        self.context
    }

    /// The transport's data.
    pub fn data(&self) -> &T {
        &self.data
    }

    /// The authorization key that an endpoint must have to let its peers access it.
    pub fn auth(&self) -> &AuthKey {
        &self.auth
    }

    /// The only peer that may access it, if it is restricted to one.
    pub fn only(&self) -> Option<&Address> {
        self.only.as_ref()
    }

    /// Whether it was made from another region, its base.
    pub fn is_sub_region(&self) -> bool {
        self.base.is_some()
    }

    /// Whether an open region is derived from this one.
    pub(super) fn has_sub_regions(&self) -> bool {
        Arc::strong_count(&self.as_base) > 1
    }

    /// The memory of a span of this region.
    #[inline]
    pub(super) fn pieces_of(&self, span: Span) -> Pieces<'_> {
        Pieces { pieces: &self.pieces()[span.first..], start: span.start, left: span.len }
    }

    /// The span of a remote access. `means`: whether device memory is acceptable.
    #[inline]
    pub(super) fn resolve(
        &self,
        who: Accessor<'_>,
        addr: u64,
        len: u64,
        access: MrAccess,
        means: Means,
    ) -> Result<Span, Violation> {
        self.allow(access)?;
        if !who.auth.opens(&self.auth) {
            return Err(Violation::AuthKey);
        }
        if self.is_special {
            return self.resolve_special(who, addr, len, access, means);
        }
        self.span(addr, len)
    }

    #[inline]
    fn span(&self, addr: u64, len: u64) -> Result<Span, Violation> {
        match self.addressing {
            Addressing::Virtual => self.span_at_address(addr, len),
            Addressing::Offset => self.span_at_offset(addr, len),
        }
    }

    /// The rest of [`Region::resolve`] for a region of one peer, of the address space, or of a device.
    #[cold]
    fn resolve_special(
        &self,
        who: Accessor<'_>,
        addr: u64,
        len: u64,
        access: MrAccess,
        means: Means,
    ) -> Result<Span, Violation> {
        if self.only.is_some() && who.peer != self.only.as_ref() {
            return Err(Violation::OtherPeer);
        }
        let span = self.span(addr, len)?;
        if self.hmem.is_some() && means == Means::Processor {
            return Err(Violation::DeviceMemory);
        }
        if self.is_unmapped {
            let write = access.contains(MrAccess::REMOTE_WRITE);
            for piece in self.pieces_of(span) {
                if !mapped::is_mapped(piece.addr.addr(), piece.len, write) {
                    return Err(Violation::Unmapped);
                }
            }
        }
        Ok(span)
    }

    /// The span of a local buffer: local operations always use virtual addresses.
    #[inline]
    pub(super) fn resolve_local(&self, piece: Piece, access: MrAccess) -> Result<Span, Violation> {
        self.allow(access)?;
        if piece.len == 0 {
            return Ok(Span { first: 0, start: 0, len: 0 }); // may have any address, including null
        }
        self.span_at_address(piece.addr.addr() as u64, piece.len as u64)
    }

    #[inline]
    fn allow(&self, access: MrAccess) -> Result<(), Violation> {
        if !self.is_enabled() {
            return Err(Violation::NotEnabled);
        }
        if !self.access.contains(access) {
            return Err(Violation::Rights);
        }
        Ok(())
    }

    /// `addr..addr + len` as virtual addresses inside one piece. An empty span may be at a piece's end.
    #[inline]
    fn span_at_address(&self, addr: u64, len: u64) -> Result<Span, Violation> {
        let end = addr.checked_add(len).ok_or(Violation::Overflow)?;
        for (first, piece) in self.pieces().iter().enumerate() {
            let start = piece.addr.addr() as u64;
            if addr >= start && end <= start + piece.len as u64 {
                return Ok(Span { first, start: (addr - start) as usize, len: len as usize });
            }
        }
        Err(Violation::Bounds)
    }

    /// `addr..addr + len` counted from `offset` at the start of the first piece.
    #[inline]
    fn span_at_offset(&self, addr: u64, len: u64) -> Result<Span, Violation> {
        addr.checked_add(len).ok_or(Violation::Overflow)?;
        let from_start = addr.checked_sub(self.offset).ok_or(Violation::Bounds)?;
        // Both fit `usize` once they are inside the region.
        let whole = self.len as u64;
        if from_start > whole || len > whole - from_start {
            return Err(Violation::Bounds);
        }
        let mut start = from_start as usize;
        let last = self.pieces().len() - 1;
        for (first, piece) in self.pieces().iter().enumerate() {
            if start < piece.len || first == last {
                return Ok(Span { first, start, len: len as usize });
            }
            start -= piece.len;
        }
        Err(Violation::Bounds)
    }
}

/// The right to access part of a region, and a reference that keeps it open: while a grant exists, [`super::Closing`]
/// does not end.
#[derive(Debug)]
pub struct Grant<T> {
    pub(super) region: Arc<Region<T>>,
    pub(super) span: Span,
}

impl<T> Grant<T> {
    pub(super) fn whole(region: Arc<Region<T>>) -> Self {
        let span = Span { first: 0, start: 0, len: region.len };
        Self { region, span }
    }

    /// The region.
    #[inline]
    pub fn region(&self) -> &Region<T> {
        &self.region
    }

    /// Length of what was granted, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.span.len
    }

    /// Whether the grant is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.span.len == 0
    }

    /// The memory that was granted, in order. Together the pieces have [`Grant::len`] bytes; none is empty.
    #[inline]
    pub fn pieces(&self) -> Pieces<'_> {
        self.region.pieces_of(self.span)
    }
}

/// The memory of a [`Grant`], piece by piece.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    pieces: &'a [Piece],
    start: usize,
    left: usize,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        if self.left == 0 {
            return None;
        }
        let (piece, rest) = self.pieces.split_first()?;
        let len = self.left.min(piece.len - self.start);
        let part = Piece::new(piece.addr.wrapping_add(self.start), len);
        (self.pieces, self.start, self.left) = (rest, 0, self.left - len);
        Some(part)
    }
}

impl<T> std::fmt::Debug for Region<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Region");
        out.field("desc", &self.desc).field("memory", &self.memory).field("access", &self.access);
        out.finish_non_exhaustive() // neither the key, which is a secret, nor the transport's data
    }
}
