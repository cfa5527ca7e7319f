//! Local memory of atomics: C counts elements of a type, this library counts bytes.

use std::ffi::c_void;

use ofi_api::{Datatype, Desc, Errno, Error, FiOp, Lent, Piece, Result};

use crate::abi::fi_ioc;
use crate::ffi_guard::invalid;
use crate::posting::{descriptors, vector};

/// Maximum pieces of a vector. Every endpoint's limit is lower.
pub(super) const MAX_PIECES: usize = 16;

/// An operation and its data type.
#[derive(Clone, Copy)]
pub(super) struct Verb {
    pub(super) datatype: Datatype,
    pub(super) op: FiOp,
}

impl Verb {
    pub(super) fn new(datatype: u32, op: u32) -> Result<Self> {
        let Some(datatype) = Datatype::from_c(datatype) else {
            return Err(unknown("the data type", datatype));
        };
        let Some(op) = FiOp::from_c(op) else { return Err(unknown("the operation", op)) };
        Ok(Self { datatype, op })
    }

    pub(super) fn bytes(self, count: usize) -> Result<usize> {
        let size = self.datatype.size();
        count.checked_mul(size).ok_or_else(|| invalid("count", "less", count.to_string()))
    }

    /// Converts C's numbers to the operation, the type, and the bytes of `count` elements. On the hot path, so it
    /// constructs no error; [`Verb::new`] and [`Verb::bytes`] do.
    #[inline(always)]
    pub(super) fn with_bytes(datatype: u32, op: u32, count: usize) -> Option<(Self, usize)> {
        let verb = Self { datatype: Datatype::from_c(datatype)?, op: FiOp::from_c(op)? };
        Some((verb, count.checked_mul(verb.datatype.size())?))
    }
}

#[cold]
fn unknown(what: &str, number: u32) -> Error {
    let advice = "use one that fi_query_atomic knows";
    Error::wanted(Errno::EOPNOTSUPP, what, "one of C's header", number.to_string(), advice)
}

/// A vector of C's buffers, measured in bytes.
pub(super) struct Many<'a> {
    pieces: [Piece; MAX_PIECES],
    count: usize,
    descs: &'a [Desc],
}

impl<'a> Many<'a> {
    /// # Safety
    /// The C caller's promise.
    pub(super) unsafe fn new(verb: Verb, Iov(iov, desc, count): Iov) -> Result<Self> {
        // SAFETY: the same promise.
        let list = unsafe { vector::<fi_ioc>("the buffers", iov, count)? };
        if list.len() > MAX_PIECES {
            return Err(invalid("the buffers", &format!("at most {MAX_PIECES}"), list.len().to_string()));
        }
        let mut pieces = [Piece::new(std::ptr::null_mut(), 0); MAX_PIECES];
        for (out, ioc) in pieces.iter_mut().zip(list) {
            let len = verb.bytes(ioc.count)?;
            *out = Piece::new(ioc.addr.cast(), if ioc.addr.is_null() { 0 } else { len });
        }
        // SAFETY: the same promise.
        Ok(Self { pieces, count: list.len(), descs: unsafe { descriptors(desc, count)? } })
    }

    /// # Safety
    /// The promise of [`Lent::new`], which a C program makes by its call.
    pub(super) unsafe fn lend(&self) -> Lent<'_> {
        // SAFETY: the same promise.
        unsafe { Lent::new(&self.pieces[..self.count], self.descs) }
    }
}

/// A vector as C passes it: buffers, their descriptors, their number.
#[derive(Clone, Copy)]
pub(crate) struct Iov(pub *const fi_ioc, pub *const *mut c_void, pub usize);

impl Iov {
    pub(crate) const NONE: Self = Self(std::ptr::null(), std::ptr::null(), 0);

    /// The total number of elements.
    ///
    /// # Safety
    /// The C caller's promise.
    pub(super) unsafe fn elements(self) -> Result<usize> {
        // SAFETY: the same promise.
        let list = unsafe { vector::<fi_ioc>("the buffers", self.0, self.2)? };
        Ok(list.iter().fold(0, |sum, ioc| sum.saturating_add(ioc.count)))
    }
}
