//! Arithmetic of elements. Integers wrap around; floating point follows IEEE 754 and C's comparisons, so nothing is
//! less than, equal to or greater than NaN.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::cell::Cell;

/// A type of elements.
pub trait Number: Copy + PartialEq + 'static {
    /// As many bits.
    type Bits: Cell;
    /// The number with these bits.
    fn from_bits(bits: Self::Bits) -> Self;
    /// Its bits.
    fn to_bits(self) -> Self::Bits;
    /// The sum.
    fn add(self, other: Self) -> Self;
    /// The difference.
    fn sub(self, other: Self) -> Self;
    /// The product.
    fn mul(self, other: Self) -> Self;
    /// Whether C treats it as true: it is not zero.
    fn is_true(self) -> bool;
    /// 1 or 0.
    fn from_bool(value: bool) -> Self;

    /// Adds by one instruction, if there is one, and returns the old value.
    ///
    /// # Safety
    /// `at` is aligned to the element's size and may be written.
    #[inline]
    unsafe fn native(_at: *mut u8, _native: Native, _operand: Self) -> Option<Self> {
        None
    }
}

/// Atomic instructions on integers.
#[derive(Clone, Copy)]
pub enum Native {
    Add,
    Sub,
    Or,
    And,
    Xor,
    Swap,
}

/// A number with an order.
pub trait Ordered: Number + PartialOrd {}

/// A number made of bits.
pub trait Integer: Ordered {
    /// Bits of either.
    fn or(self, other: Self) -> Self;
    /// Bits of both.
    fn and(self, other: Self) -> Self;
    /// Bits of one of the two.
    fn xor(self, other: Self) -> Self;
    /// The other bits.
    fn not(self) -> Self;
}

macro_rules! integers {
    ($($number:ty, $bits:ty $(, $atomic:ty)?;)+) => {$(
        impl Number for $number {
            type Bits = $bits;

            #[inline]
            fn from_bits(bits: $bits) -> Self {
                bits as Self
            }

            #[inline]
            fn to_bits(self) -> $bits {
                self as $bits
            }

            #[inline]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline]
            fn is_true(self) -> bool {
                self != 0
            }

            #[inline]
            fn from_bool(value: bool) -> Self {
                value.into()
            }

            $(#[inline]
            unsafe fn native(at: *mut u8, native: Native, operand: Self) -> Option<Self> {
                // SAFETY: the caller's promise; the reference is to an atomic, which others may change.
                let (cell, bits) = (unsafe { <$atomic>::from_ptr(at.cast()) }, operand as $bits);
                let order = Ordering::AcqRel;
                let old = match native {
                    Native::Add => cell.fetch_add(bits, order),
                    Native::Sub => cell.fetch_sub(bits, order),
                    Native::Or => cell.fetch_or(bits, order),
                    Native::And => cell.fetch_and(bits, order),
                    Native::Xor => cell.fetch_xor(bits, order),
                    Native::Swap => cell.swap(bits, order),
                };
                Some(old as Self)
            })?
        }

        impl Ordered for $number {}

        impl Integer for $number {
            #[inline]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }

            #[inline]
            fn not(self) -> Self {
                !self
            }
        }
    )+};
}

integers! {
    i8, u8, AtomicU8;
    u8, u8, AtomicU8;
    i16, u16, AtomicU16;
    u16, u16, AtomicU16;
    i32, u32, AtomicU32;
    u32, u32, AtomicU32;
    i64, u64, AtomicU64;
    u64, u64, AtomicU64;
    i128, u128;
    u128, u128;
}

macro_rules! floats {
    ($($number:ty, $bits:ty;)+) => {$(
        impl Number for $number {
            type Bits = $bits;

            #[inline]
            fn from_bits(bits: $bits) -> Self {
                <$number>::from_bits(bits)
            }

            #[inline]
            fn to_bits(self) -> $bits {
                self.to_bits()
            }

            #[inline]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline]
            fn sub(self, other: Self) -> Self {
                self - other
            }

            #[inline]
            fn mul(self, other: Self) -> Self {
                self * other
            }

            #[inline]
            fn is_true(self) -> bool {
                self != 0.0
            }

            #[inline]
            fn from_bool(value: bool) -> Self {
                u8::from(value).into()
            }
        }

        impl Ordered for $number {}
    )+};
}

floats! {
    f32, u32;
    f64, u64;
}

/// A complex number. Products are the plain formula: infinities that C's Annex G would restore become NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Complex<F> {
    pub re: F,
    pub im: F,
}

/// A part of a complex number: joins two bit patterns, the first in memory first.
pub trait Part: Number {
    /// Twice the bits.
    type Both: Cell;
    /// Joins.
    fn join(first: Self::Bits, second: Self::Bits) -> Self::Both;
    /// Parts again.
    fn split(both: Self::Both) -> [Self::Bits; 2];
}

macro_rules! parts {
    ($($number:ty, $bits:ty, $both:ty;)+) => {$(
        impl Part for $number {
            type Both = $both;

            #[inline]
            fn join(first: $bits, second: $bits) -> $both {
                // SAFETY: twice the bits, without invalid values.
                unsafe { std::mem::transmute([first, second]) }
            }

            #[inline]
            fn split(both: $both) -> [$bits; 2] {
                // SAFETY: as above.
                unsafe { std::mem::transmute(both) }
            }
        }
    )+};
}

parts! {
    f32, u32, u64;
    f64, u64, u128;
}

impl Part for super::LongDouble {
    type Both = [u128; 2];

    fn join(first: u128, second: u128) -> [u128; 2] {
        [first, second]
    }

    fn split(both: [u128; 2]) -> [u128; 2] {
        both
    }
}

impl<F: Part> Number for Complex<F> {
    type Bits = F::Both;

    fn from_bits(bits: F::Both) -> Self {
        let [re, im] = F::split(bits);
        Self { re: F::from_bits(re), im: F::from_bits(im) }
    }

    fn to_bits(self) -> F::Both {
        F::join(self.re.to_bits(), self.im.to_bits())
    }

    fn add(self, other: Self) -> Self {
        Self { re: self.re.add(other.re), im: self.im.add(other.im) }
    }

    fn sub(self, other: Self) -> Self {
        Self { re: self.re.sub(other.re), im: self.im.sub(other.im) }
    }

    fn mul(self, other: Self) -> Self {
        Self {
            re: self.re.mul(other.re).sub(self.im.mul(other.im)),
            im: self.re.mul(other.im).add(self.im.mul(other.re)),
        }
    }

    fn is_true(self) -> bool {
        self.re.is_true() || self.im.is_true()
    }

    fn from_bool(value: bool) -> Self {
        Self { re: F::from_bool(value), im: F::from_bool(false) }
    }
}
