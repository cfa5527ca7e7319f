//! 16-bit and 8-bit floating point. Values are computed in single precision and then rounded to nearest, ties to even.
//! Single precision has more than twice the digits of each format plus two, so the double rounding gives the correct
//! result.

use std::cmp::Ordering;

use super::number::{Number, Ordered};

/// A format: bits of exponent and mantissa, and whether the largest exponent means infinity and NaN (IEEE 754) or only
/// NaN in its last pattern (FP8 E4M3).
struct Format {
    exponent: u32,
    mantissa: u32,
    has_infinity: bool,
}

impl Format {
    const fn bias(&self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The largest finite magnitude's bits.
    const fn largest(&self) -> u32 {
        let top = 1 << (self.exponent + self.mantissa);
        if self.has_infinity { top - (1 << self.mantissa) - 1 } else { top - 2 }
    }

    /// The value of bits. Exact.
    fn decode(&self, bits: u32) -> f32 {
        let sign = if bits >> (self.exponent + self.mantissa) & 1 == 1 { -1.0f32 } else { 1.0 };
        let exponent = (bits >> self.mantissa & ((1 << self.exponent) - 1)) as i32;
        let mantissa = bits & ((1 << self.mantissa) - 1);
        let magnitude = bits & ((1 << (self.exponent + self.mantissa)) - 1);
        if magnitude > self.largest() {
            return if self.has_infinity && mantissa == 0 { sign * f32::INFINITY } else { f32::NAN };
        }
        let digits = if exponent == 0 { mantissa } else { mantissa | 1 << self.mantissa };
        let scale = power_of_2(exponent.max(1) - self.bias() - self.mantissa as i32);
        (f64::from(sign) * f64::from(digits) * scale) as f32
    }

    /// The bits of the nearest value. Too large values become infinity, or NaN in formats without infinity.
    fn encode(&self, value: f32) -> u32 {
        let sign = (value.to_bits() >> 31) << (self.exponent + self.mantissa);
        let quiet_nan = (1 << (self.exponent + self.mantissa)) - 1;
        let overflow = if self.has_infinity { self.largest() + 1 } else { quiet_nan };
        let magnitude = f64::from(value.abs());
        if value.is_nan() {
            return sign | quiet_nan;
        }
        if magnitude == 0.0 {
            return sign;
        }
        if magnitude.is_infinite() {
            return sign | overflow;
        }
        // The exponent of the value, not below that of numbers without a leading one; then the digits as an integer.
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - self.bias());
        let digits = magnitude * power_of_2(self.mantissa as i32 - exponent);
        let rounded = digits.round_ties_even() as u64; // exact: a double has more digits
        // A carry out of the mantissa goes into the exponent, because the bits are adjacent.
        let leading = 1u64 << self.mantissa;
        let bits = if rounded < leading {
            rounded
        } else {
            ((exponent + self.bias()) as u64) * leading + (rounded - leading)
        };
        if bits > u64::from(self.largest()) { sign | overflow } else { sign | bits as u32 }
    }
}

/// Exact, as all formats lie well inside the range of double precision.
fn power_of_2(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

macro_rules! small_floats {
    ($($(#[$doc:meta])* $name:ident: $bits:ty = $exponent:literal, $mantissa:literal, $has_infinity:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name(pub $bits);

        impl $name {
            const FORMAT: Format =
                Format { exponent: $exponent, mantissa: $mantissa, has_infinity: $has_infinity };

            /// Its value.
            pub fn value(self) -> f32 {
                Self::FORMAT.decode(self.0.into())
            }

            /// The nearest to a value.
            pub fn nearest(value: f32) -> Self {
                Self(Self::FORMAT.encode(value) as $bits)
            }
        }

        impl Number for $name {
            type Bits = $bits;

            fn from_bits(bits: $bits) -> Self {
                Self(bits)
            }

            fn to_bits(self) -> $bits {
                self.0
            }

            fn add(self, other: Self) -> Self {
                Self::nearest(self.value() + other.value())
            }

            fn sub(self, other: Self) -> Self {
                Self::nearest(self.value() - other.value())
            }

            fn mul(self, other: Self) -> Self {
                Self::nearest(self.value() * other.value())
            }

            fn is_true(self) -> bool {
                self.value() != 0.0
            }

            fn from_bool(value: bool) -> Self {
                Self::nearest(u8::from(value).into())
            }
        }

        impl Ordered for $name {}

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.value() == other.value()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.value().partial_cmp(&other.value())
            }
        }
    )+};
}

small_floats! {
    /// IEEE 754 half precision.
    F16: u16 = 5, 10, true;
    /// The upper half of single precision.
    Bf16: u16 = 8, 7, true;
    /// FP8 with 4 bits of exponent (OCP 8-bit Floating Point Specification).
    E4m3: u8 = 4, 3, false;
    /// FP8 with 5 bits of exponent.
    E5m2: u8 = 5, 2, true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_the_nearest_to_its_own_value() {
        for bits in 0..=u16::MAX {
            for (value, back) in [
                (F16(bits).value(), F16::nearest(F16(bits).value()).0),
                (Bf16(bits).value(), Bf16::nearest(Bf16(bits).value()).0),
            ] {
                assert!(value.is_nan() || back == bits, "{bits:#x} {value} {back:#x}");
            }
        }
        for bits in 0..=u8::MAX {
            for (value, back) in [
                (E4m3(bits).value(), E4m3::nearest(E4m3(bits).value()).0),
                (E5m2(bits).value(), E5m2::nearest(E5m2(bits).value()).0),
            ] {
                assert!(value.is_nan() || back == bits, "{bits:#x} {value} {back:#x}");
            }
        }
    }

    #[test]
    fn known_values() {
        assert_eq!(
            (F16(0x3C00).value(), F16(0x7BFF).value(), F16(1).value()),
            (1.0, 65504.0, 2f32.powi(-24))
        );
        assert_eq!((F16(0x7C00).value(), F16(0xFC00).value()), (f32::INFINITY, f32::NEG_INFINITY));
        assert_eq!((E4m3(0x7E).value(), E4m3(0x38).value(), E4m3(1).value()), (448.0, 1.0, 2f32.powi(-9)));
        assert!(E4m3(0x7F).value().is_nan() && E4m3(0xFF).value().is_nan() && E5m2(0x7D).value().is_nan());
        assert_eq!((E5m2(0x7B).value(), E5m2(0x7C).value()), (57344.0, f32::INFINITY));
        assert_eq!(Bf16(0x3F80).value(), 1.0);
        assert_eq!(Bf16(0x0001).value(), f32::from_bits(0x0001_0000));
        assert_eq!(F16::nearest(65519.9).0, 0x7BFF);
        assert_eq!(F16::nearest(65520.0).0, 0x7C00);
        assert!(E4m3::nearest(465.0).value().is_nan());
        assert_eq!(E4m3::nearest(-464.0).0, 0xFE, "a tie goes to the even mantissa");
        assert_eq!(F16::nearest(-0.0).0, 0x8000);
    }

    #[test]
    fn ties_go_to_even() {
        // Halfway between two neighbours of each pattern.
        for bits in 0..0x7BFFu16 {
            let half = (f64::from(F16(bits).value()) + f64::from(F16(bits + 1).value())) / 2.0;
            assert_eq!(F16::nearest(half as f32).0, bits + (bits & 1), "{bits:#x}");
        }
    }
}
