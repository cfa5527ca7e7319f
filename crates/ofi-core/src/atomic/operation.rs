//! The formula of each operation on target, operand and comparand, and the two loops around it.

use std::ptr;

use super::cell::Cell;
use super::number::{Integer, Native, Number, Ordered};

/// Changes elements: target, operands, comparands, room for old values (or null), how many.
pub type Routine = unsafe fn(*mut u8, *const u8, *const u8, *mut u8, usize);

/// The two ways to perform one operation on one type.
#[derive(Clone, Copy, Debug)]
pub struct Routines {
    /// Uses atomic instructions on aligned elements. `None` if the CPU has none of that size.
    pub lock_free: Option<Routine>,
    /// For a caller with exclusive access.
    pub alone: Routine,
}

impl Routines {
    /// Those of operation `O` on `E`.
    #[inline]
    pub fn of<E: Number, O: Operation<E>>() -> Self {
        let lock_free = if E::Bits::is_atomic() { Some(lock_free::<E, O> as Routine) } else { None };
        Self { lock_free, alone: alone::<E, O> }
    }
}

/// An operation on elements of type `E`.
pub trait Operation<E: Number> {
    /// Whether it reads operands.
    const OPERANDS: bool = true;
    /// Whether it reads comparands.
    const COMPARANDS: bool = false;
    /// The instruction that does all of it.
    const NATIVE: Option<Native> = None;

    /// The new value of the target; `None` leaves it unchanged.
    fn apply(target: E, operand: E, comparand: E) -> Option<E>;
}

macro_rules! operations {
    ($bound:ident: $($name:ident $(($native:ident))?, $target:pat, $operand:pat => $value:expr;)+) => {$(
        pub struct $name;

        impl<E: $bound> Operation<E> for $name {
            $(const NATIVE: Option<Native> = Some(Native::$native);)?

            #[inline]
            fn apply($target: E, $operand: E, _: E) -> Option<E> {
                $value
            }
        }
    )+};
}

operations! {
    Number:
    Sum(Add), a, b => Some(a.add(b));
    Diff(Sub), a, b => Some(a.sub(b));
    Prod, a, b => Some(a.mul(b));
    Lor, a, b => Some(E::from_bool(a.is_true() || b.is_true()));
    Land, a, b => Some(E::from_bool(a.is_true() && b.is_true()));
    Lxor, a, b => Some(E::from_bool(a.is_true() != b.is_true()));
    Write(Swap), _, b => Some(b);
}

operations! {
    Ordered:
    Min, a, b => (b < a).then_some(b);
    Max, a, b => (b > a).then_some(b);
}

operations! {
    Integer:
    Bor(Or), a, b => Some(a.or(b));
    Band(And), a, b => Some(a.and(b));
    Bxor(Xor), a, b => Some(a.xor(b));
}

/// `FI_ATOMIC_READ`.
pub struct Read;

impl<E: Number> Operation<E> for Read {
    const OPERANDS: bool = false;

    #[inline]
    fn apply(_: E, _: E, _: E) -> Option<E> {
        None
    }
}

macro_rules! swaps {
    ($bound:ident: $($name:ident, $comparand:ident, $target:ident => $holds:expr;)+) => {$(
        pub struct $name;

        impl<E: $bound> Operation<E> for $name {
            const COMPARANDS: bool = true;

            #[inline]
            fn apply($target: E, operand: E, $comparand: E) -> Option<E> {
                $holds.then_some(operand)
            }
        }
    )+};
}

swaps! {
    Number:
    SwapEq, c, t => (c == t);
    SwapNe, c, t => (c != t);
}

swaps! {
    Ordered:
    SwapLe, c, t => (c <= t);
    SwapLt, c, t => (c < t);
    SwapGe, c, t => (c >= t);
    SwapGt, c, t => (c > t);
}

/// `FI_MSWAP`.
pub struct Mswap;

impl<E: Integer> Operation<E> for Mswap {
    const COMPARANDS: bool = true;

    #[inline]
    fn apply(target: E, operand: E, mask: E) -> Option<E> {
        Some(operand.and(mask).or(target.and(mask.not())))
    }
}

/// Element `index` of an array that the operation may not use.
///
/// # Safety
/// If `is_there`, `array` may be read that far.
#[inline]
unsafe fn element<E: Number>(is_there: bool, array: *const u8, index: usize) -> E {
    if !is_there {
        return E::from_bool(false);
    }
    // SAFETY: the caller's promise; no alignment is assumed.
    E::from_bits(unsafe { array.cast::<E::Bits>().wrapping_add(index).read_unaligned() })
}

/// Uses atomic instructions.
///
/// # Safety
/// As [`super::Executor::execute`], and `target` is aligned to the size of an element, for which there are
/// instructions.
unsafe fn lock_free<E: Number, O: Operation<E>>(
    target: *mut u8,
    operands: *const u8,
    comparands: *const u8,
    results: *mut u8,
    count: usize,
) {
    for index in 0..count {
        let at = target.wrapping_add(index * size_of::<E::Bits>());
        // SAFETY: the caller's promise.
        let operand: E = unsafe { element(O::OPERANDS, operands, index) };
        // SAFETY: the caller's promise.
        let comparand: E = unsafe { element(O::COMPARANDS, comparands, index) };
        let native = match O::NATIVE {
            // SAFETY: aligned and writable, by the caller's promise.
            Some(native) => unsafe { E::native(at, native, operand) },
            None => None,
        };
        let old = match native {
            Some(old) => old.to_bits(),
            None => {
                // SAFETY: as above, and there are instructions of this size.
                let mut bits = unsafe { E::Bits::load(at) };
                loop {
                    let Some(new) = O::apply(E::from_bits(bits), operand, comparand) else { break bits };
                    // SAFETY: as above.
                    match unsafe { E::Bits::replace(at, bits, new.to_bits()) } {
                        Ok(()) => break bits,
                        Err(found) => bits = found,
                    }
                }
            }
        };
        if !results.is_null() {
            // SAFETY: room for `count` elements, by the caller's promise.
            unsafe { results.cast::<E::Bits>().wrapping_add(index).write_unaligned(old) };
        }
    }
}

/// Uses plain reads and writes.
///
/// # Safety
/// As [`super::Executor::execute`], without concurrent changes of the elements.
unsafe fn alone<E: Number, O: Operation<E>>(
    target: *mut u8,
    operands: *const u8,
    comparands: *const u8,
    results: *mut u8,
    count: usize,
) {
    for index in 0..count {
        let at = target.cast::<E::Bits>().wrapping_add(index);
        // SAFETY: the caller's promise.
        let operand: E = unsafe { element(O::OPERANDS, operands, index) };
        // SAFETY: the caller's promise.
        let comparand: E = unsafe { element(O::COMPARANDS, comparands, index) };
        // SAFETY: readable, by the caller's promise; read once into a value of its own.
        let old = unsafe { ptr::read_unaligned(at) };
        if let Some(new) = O::apply(E::from_bits(old), operand, comparand) {
            // SAFETY: writable, as the operation changes it.
            unsafe { ptr::write_unaligned(at, new.to_bits()) };
        }
        if !results.is_null() {
            // SAFETY: room for `count` elements, by the caller's promise.
            unsafe { results.cast::<E::Bits>().wrapping_add(index).write_unaligned(old) };
        }
    }
}
