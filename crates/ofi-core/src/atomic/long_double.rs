//! C's `long double` on x86-64: the 80-bit format of the x87, in 16 bytes of which the last 6 are padding.
//!
//! The x87 calculates with 64 bits of mantissa unless a program has changed its control word, as C code does too. On
//! other CPUs nothing here is called, because the table refuses the type.

use std::cmp::Ordering;

use super::number::{Number, Ordered};

/// Whether this CPU calculates with them.
pub const IS_POSSIBLE: bool = cfg!(target_arch = "x86_64");

/// The bits, as they lie in memory.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct LongDouble(pub u128);

/// The bits that count.
const MEANING: u128 = (1 << 80) - 1;
/// The bits of 1.
const ONE: u128 = 0x3FFF << 64 | 1 << 63;

macro_rules! x87 {
    ($(#[$doc:meta] $name:ident = $instruction:literal;)+) => {$(
        #[$doc]
        #[cfg(target_arch = "x86_64")]
        fn $name(self, other: Self) -> Self {
            let mut result = Self(0);
            // SAFETY: reads the two numbers and writes the result, 10 bytes of 16 each; the x87's stack is empty
            // before and after.
            unsafe {
                std::arch::asm!(
                    "fld tbyte ptr [{a}]",
                    "fld tbyte ptr [{b}]",
                    $instruction,
                    "fstp tbyte ptr [{result}]",
                    a = in(reg) &raw const self,
                    b = in(reg) &raw const other,
                    result = in(reg) &raw mut result,
                    out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                    out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                    options(nostack)
                );
            }
            result
        }

        #[$doc]
        #[cfg(not(target_arch = "x86_64"))]
        fn $name(self, _: Self) -> Self {
            unreachable!("IS_POSSIBLE is false")
        }
    )+};
}

impl LongDouble {
    /// Whether `self > other`, and whether they are equal.
    #[cfg(target_arch = "x86_64")]
    fn compare(self, other: Self) -> (bool, bool) {
        let (above, equal, ordered): (u8, u8, u8);
        // SAFETY: reads the two numbers; the x87's stack is empty before and after.
        unsafe {
            std::arch::asm!(
                "fld tbyte ptr [{b}]",
                "fld tbyte ptr [{a}]",
                "fucomip st(0), st(1)",
                "fstp st(0)",
                "seta {above}",
                "sete {equal}",
                "setnp {ordered}",
                a = in(reg) &raw const self,
                b = in(reg) &raw const other,
                above = out(reg_byte) above,
                equal = out(reg_byte) equal,
                ordered = out(reg_byte) ordered,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack, readonly)
            );
        }
        (above != 0, equal & ordered != 0)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn compare(self, _: Self) -> (bool, bool) {
        unreachable!("IS_POSSIBLE is false")
    }

    #[cfg(test)]
    pub fn from_f64(value: f64) -> Self {
        let mut result = Self(0);
        // SAFETY: reads the number and writes the result.
        unsafe {
            std::arch::asm!(
                "fld qword ptr [{a}]",
                "fstp tbyte ptr [{result}]",
                a = in(reg) &raw const value,
                result = in(reg) &raw mut result,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack)
            );
        }
        result
    }
}

impl Number for LongDouble {
    type Bits = u128;

    fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    fn to_bits(self) -> u128 {
        self.0
    }

    x87! {
        /// The sum.
        add = "faddp st(1), st(0)";
        /// The difference.
        sub = "fsubp st(1), st(0)";
        /// The product.
        mul = "fmulp st(1), st(0)";
    }

    fn is_true(self) -> bool {
        self.0 & (MEANING >> 1) != 0 // all but the sign
    }

    fn from_bool(value: bool) -> Self {
        Self(if value { ONE } else { 0 })
    }
}

impl Ordered for LongDouble {}

impl PartialEq for LongDouble {
    fn eq(&self, other: &Self) -> bool {
        self.compare(*other).1
    }
}

impl PartialOrd for LongDouble {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self.compare(*other), other.compare(*self)) {
            ((_, true), _) => Some(Ordering::Equal),
            ((true, _), _) => Some(Ordering::Greater),
            (_, (true, _)) => Some(Ordering::Less),
            _ => None,
        }
    }
}
