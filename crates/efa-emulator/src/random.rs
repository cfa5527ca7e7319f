//! Pseudo-random numbers that decide which faults occur: the same for the same seed.

/// xorshift64* (Vigna 2016).
pub struct Random(u64);

impl Random {
    /// A generator with a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn fresh(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// `true` in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        percent > 0 && (self.fresh() >> 33) % 100 < u64::from(percent)
    }
}
