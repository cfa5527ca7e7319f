//! Atomic operations: one table for all transports, from (kind, operation, data type) to an [`Executor`].
//!
//! An element of up to 8 bytes (16 if the CPU has cmpxchg16b) that is aligned to its size is changed by a lock-free
//! read-modify-write. Any process that maps the memory may do that, and it is atomic with respect to the owner's own
//! atomic instructions too. All other elements (wider ones, and misaligned ones such as a complex number that C aligned
//! to half its size) are changed only by the owner of the memory, under a lock chosen by the element's address. The
//! choice depends only on type, CPU and address, so all parties agree on it.
//!
//! The lock depends on the address and not on the registration, since memory may be registered twice.
//!
//! Other processes may change the target memory at any time, so it is accessed only by raw pointers and atomic
//! instructions.

mod cell;
mod long_double;
mod number;
mod operation;
mod sent;
mod small_float;

#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

use ofi_api::{AtomicKind, Datatype, Errno, Error, FiOp, MrAccess, RemotePiece, Result};

use self::long_double::LongDouble;
use self::number::{Complex, Integer, Number, Ordered};
use self::operation::{self as ops, Routines};
use self::small_float::{Bf16, E4m3, E5m2, F16};
use crate::keys::{Accessor, RegionTable};

pub use sent::{MAX_PACKET_ATOMIC_LEN, Sent};

/// Executes one operation on elements of one type.
#[derive(Clone, Copy, Debug)]
pub struct Executor {
    routines: Routines,
    size: usize,
    kind: AtomicKind,
    op: FiOp,
    datatype: Datatype,
}

/// Locks for elements without a lock-free path, chosen by the element's address.
static LOCKS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

fn lock(target: *mut u8) -> MutexGuard<'static, ()> {
    LOCKS[(target.addr() >> 3) % LOCKS.len()].lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    /// The executor for a kind of call, an operation and a data type.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` if fi_atomic(3) does not define the combination, or this CPU does not support the type.
    #[inline]
    pub fn find(kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<Self> {
        match routines(op, datatype) {
            Some(routines) if belongs(kind, op) && is_possible(datatype) => {
                debug_assert!(datatype.size().is_power_of_two());
                Ok(Self { routines, size: datatype.size(), kind, op, datatype })
            }
            _ => Err(refusal(kind, op, datatype)),
        }
    }

    /// Decodes [`Executor::to_wire`]. `None` for an encoding without an executor.
    pub fn from_wire(word: u16) -> Option<Self> {
        let kind = *AtomicKind::ALL.get(usize::from(word >> 10))?;
        let op = FiOp::from_c(u32::from(word & 0x1F))?;
        let datatype = Datatype::from_c(u32::from(word >> 5 & 0x1F))?;
        Self::find(kind, op, datatype).ok()
    }

    /// Its encoding on the wire: operation in bits 0 to 4, data type in 5 to 9, kind in 10 and 11.
    pub fn to_wire(&self) -> u16 {
        (self.kind as u16) << 10 | (self.datatype.as_c() as u16) << 5 | self.op.as_c() as u16
    }

    /// The kind of the call.
    pub fn kind(&self) -> AtomicKind {
        self.kind
    }

    /// The operation.
    pub fn op(&self) -> FiOp {
        self.op
    }

    /// Bytes of an element.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether `len` is a multiple of the element size, which is a power of two. Also checks the alignment of an
    /// address.
    #[inline]
    pub fn divides(&self, len: usize) -> bool {
        len & (self.size - 1) == 0
    }

    /// The number of elements in `len` bytes.
    #[inline]
    pub fn count(&self, len: usize) -> usize {
        len >> self.size.trailing_zeros()
    }

    /// Whether it takes operands.
    #[inline]
    pub fn takes_operands(&self) -> bool {
        self.op != FiOp::AtomicRead
    }

    /// Whether it fetches the old value.
    #[inline]
    pub fn fetches(&self) -> bool {
        self.kind != AtomicKind::Base
    }

    /// Whether it takes comparands.
    #[inline]
    pub fn compares(&self) -> bool {
        self.kind == AtomicKind::Compare
    }

    /// Whether elements at this address are changed lock-free, which any process that maps them may do. Otherwise only
    /// the owner may change them.
    #[inline]
    pub fn is_lock_free(&self, addr: u64) -> bool {
        self.routines.lock_free.is_some() && self.divides(addr as usize)
    }

    /// Bytes of operands and comparands that an operation on `len` bytes sends.
    pub fn sent_len(&self, len: usize) -> usize {
        (usize::from(self.takes_operands()) + usize::from(self.compares())) * len
    }

    /// The rights that the target must give.
    pub fn rights(&self) -> MrAccess {
        match (self.kind, self.op) {
            (_, FiOp::AtomicRead) => MrAccess::REMOTE_READ,
            (AtomicKind::Base, _) => MrAccess::REMOTE_WRITE,
            _ => MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE,
        }
    }

    /// Changes `count` elements at `target`: lock-free where possible, otherwise under their locks.
    ///
    /// # Safety
    /// For `count` elements each: `target` is writable (for `FI_ATOMIC_READ`: readable), and all other accesses to it
    /// are atomic; `operand` is readable if [`Executor::takes_operands`], `compare` if [`Executor::compares`]; `result`
    /// is writable, or null. If not [`Executor::is_lock_free`], this process owns the memory.
    #[inline]
    pub unsafe fn execute(
        &self,
        target: *mut u8,
        operand: *const u8,
        compare: *const u8,
        result: *mut u8,
        count: usize,
    ) {
        if let Some(lock_free) = self.routines.lock_free
            && self.divides(target.addr())
        {
            // SAFETY: the caller's promise, and each element is aligned to its size.
            return unsafe { lock_free(target, operand, compare, result, count) };
        }
        for index in 0..count {
            let skip = index * self.size;
            let at = target.wrapping_add(skip);
            let result = if result.is_null() { result } else { result.wrapping_add(skip) };
            let _locked = lock(at);
            let (operand, compare) = (operand.wrapping_add(skip), compare.wrapping_add(skip));
            // SAFETY: the caller's promise; others change this element under the same lock.
            unsafe { (self.routines.alone)(at, operand, compare, result, 1) };
        }
    }

    /// Changes `count` elements at `target`, to which the caller has exclusive access.
    ///
    /// # Safety
    /// As [`Executor::execute`], and there is no other access to `target` during the call.
    pub unsafe fn execute_alone(&self, target: *mut u8, operand: *const u8, count: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            (self.routines.alone)(target, operand, std::ptr::null(), std::ptr::null_mut(), count);
        }
    }

    /// Executes a peer's operation on registered memory, at the owner, with the rights of `who`. `operand`, `compare`
    /// and `result` cover all of `remote`, in order.
    ///
    /// # Errors
    /// The error to report to the peer. Pieces before the failed one may have been changed.
    ///
    /// # Safety
    /// As [`Executor::execute`] for operand, compare and result.
    pub unsafe fn execute_at<R>(
        &self,
        regions: &RegionTable<R>,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        operand: *const u8,
        compare: *const u8,
        result: *mut u8,
    ) -> Result<(), Errno> {
        let mut done = 0;
        for piece in remote {
            let checked = regions.check_as(who, piece.key, piece.addr, piece.len as u64, self.rights());
            let granted = checked.map_err(|violation| violation.errno())?;
            if !self.divides(granted.len()) || granted.pieces().any(|part| !self.divides(part.len)) {
                return Err(Errno::EINVAL); // an element across two pieces of a region
            }
            for part in granted.pieces() {
                let result = if result.is_null() { result } else { result.wrapping_add(done) };
                let (operand, compare) = (operand.wrapping_add(done), compare.wrapping_add(done));
                // SAFETY: the grant holds the registered memory, which is this process's, with the right to change it;
                // the rest is the caller's promise.
                unsafe { self.execute(part.addr, operand, compare, result, self.count(part.len)) };
                done += part.len;
            }
        }
        Ok(())
    }
}

/// Whether an operation is allowed in a kind of call (fi_atomic(3), "Base", "Fetch-", "Compare-Atomic Functions").
#[inline]
fn belongs(kind: AtomicKind, op: FiOp) -> bool {
    let compares = (FiOp::Cswap as u32..=FiOp::Mswap as u32).contains(&op.as_c());
    match kind {
        AtomicKind::Base => !compares && op != FiOp::AtomicRead,
        AtomicKind::Fetch => !compares,
        AtomicKind::Compare => compares,
    }
}

/// Whether this CPU can compute with a type.
#[inline]
fn is_possible(datatype: Datatype) -> bool {
    long_double::IS_POSSIBLE || !matches!(datatype, Datatype::LongDouble | Datatype::LongDoubleComplex)
}

#[cold]
fn refusal(kind: AtomicKind, op: FiOp, datatype: Datatype) -> Error {
    let call = match kind {
        AtomicKind::Base => "fi_atomic",
        AtomicKind::Fetch => "fi_fetch_atomic",
        AtomicKind::Compare => "fi_compare_atomic",
    };
    let wanted = if !belongs(kind, op) {
        "an operation of this kind of call (fi_atomic(3))"
    } else if is_possible(datatype) {
        "a type that the operation supports: bitwise ones take integers, ordering ones no complex numbers"
    } else {
        "a type that this CPU supports: long double needs an x87"
    };
    Error::wanted(
        Errno::EOPNOTSUPP,
        call,
        wanted,
        format!("{op} on {datatype}"),
        "ask fi_query_atomic first, and do the others with messages",
    )
}

/// The routines for an operation on a data type.
fn routines(op: FiOp, datatype: Datatype) -> Option<Routines> {
    match datatype {
        Datatype::Int8 => integer::<i8>(op),
        Datatype::Uint8 => integer::<u8>(op),
        Datatype::Int16 => integer::<i16>(op),
        Datatype::Uint16 => integer::<u16>(op),
        Datatype::Int32 => integer::<i32>(op),
        Datatype::Uint32 => integer::<u32>(op),
        Datatype::Int64 => integer::<i64>(op),
        Datatype::Uint64 => integer::<u64>(op),
        Datatype::Int128 => integer::<i128>(op),
        Datatype::Uint128 => integer::<u128>(op),
        Datatype::Float => ordered::<f32>(op),
        Datatype::Double => ordered::<f64>(op),
        Datatype::LongDouble => ordered::<LongDouble>(op),
        Datatype::Float16 => ordered::<F16>(op),
        Datatype::Bfloat16 => ordered::<Bf16>(op),
        Datatype::Float8E4m3 => ordered::<E4m3>(op),
        Datatype::Float8E5m2 => ordered::<E5m2>(op),
        Datatype::FloatComplex => number::<Complex<f32>>(op),
        Datatype::DoubleComplex => number::<Complex<f64>>(op),
        Datatype::LongDoubleComplex => number::<Complex<LongDouble>>(op),
        Datatype::Void => None,
    }
}

/// Operations of any number.
fn number<E: Number>(op: FiOp) -> Option<Routines> {
    Some(match op {
        FiOp::Sum => Routines::of::<E, ops::Sum>(),
        FiOp::Diff => Routines::of::<E, ops::Diff>(),
        FiOp::Prod => Routines::of::<E, ops::Prod>(),
        FiOp::Lor => Routines::of::<E, ops::Lor>(),
        FiOp::Land => Routines::of::<E, ops::Land>(),
        FiOp::Lxor => Routines::of::<E, ops::Lxor>(),
        FiOp::AtomicRead => Routines::of::<E, ops::Read>(),
        FiOp::AtomicWrite => Routines::of::<E, ops::Write>(),
        FiOp::Cswap => Routines::of::<E, ops::SwapEq>(),
        FiOp::CswapNe => Routines::of::<E, ops::SwapNe>(),
        _ => return None,
    })
}

/// Operations of ordered numbers.
fn ordered<E: Ordered>(op: FiOp) -> Option<Routines> {
    Some(match op {
        FiOp::Min => Routines::of::<E, ops::Min>(),
        FiOp::Max => Routines::of::<E, ops::Max>(),
        FiOp::CswapLe => Routines::of::<E, ops::SwapLe>(),
        FiOp::CswapLt => Routines::of::<E, ops::SwapLt>(),
        FiOp::CswapGe => Routines::of::<E, ops::SwapGe>(),
        FiOp::CswapGt => Routines::of::<E, ops::SwapGt>(),
        _ => return number::<E>(op),
    })
}

/// Operations of integers: all of them.
fn integer<E: Integer>(op: FiOp) -> Option<Routines> {
    Some(match op {
        FiOp::Bor => Routines::of::<E, ops::Bor>(),
        FiOp::Band => Routines::of::<E, ops::Band>(),
        FiOp::Bxor => Routines::of::<E, ops::Bxor>(),
        FiOp::Mswap => Routines::of::<E, ops::Mswap>(),
        _ => return ordered::<E>(op),
    })
}
