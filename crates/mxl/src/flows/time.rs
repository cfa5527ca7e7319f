//! Time and indices. An index counts grains or samples since the epoch of SMPTE ST 2059-1, on TAI.
//!
//! Rounding matches the C++ SDK, bit for bit: to the nearest, halves up.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A rate, in grains or samples per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rational {
    /// Grains or samples in `denominator` seconds.
    pub numerator: i64,
    /// The denominator; 1 if the definition omits it.
    #[serde(default = "one")]
    pub denominator: i64,
}

const fn one() -> i64 {
    1
}

impl Rational {
    /// A rate without reduction, such as 60000/1001.
    pub const fn new(numerator: i64, denominator: i64) -> Self {
        Self { numerator, denominator }
    }

    /// The same rate in lowest terms.
    pub const fn reduced(self) -> Self {
        let (mut a, mut b) = (self.numerator.unsigned_abs(), self.denominator.unsigned_abs());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        if a == 0 || a > i64::MAX as u64 {
            return self;
        }
        Self { numerator: self.numerator / a as i64, denominator: self.denominator / a as i64 }
    }

    /// Whether both parts of the rate are above 0.
    pub const fn is_positive(self) -> bool {
        self.numerator > 0 && self.denominator > 0
    }

    const fn is_usable(self) -> bool {
        self.numerator != 0 && self.denominator != 0
    }
}

impl std::fmt::Display for Rational {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            denominator => write!(f, "{}/{denominator}", self.numerator),
        }
    }
}

/// Nanoseconds in a second.
const SECOND: i128 = 1_000_000_000;

/// The current time, in nanoseconds of TAI since 1970. TAI is ahead of UTC by the leap seconds, if the host knows them.
pub fn now() -> u64 {
    clock(libc::CLOCK_TAI)
}

/// A cheap clock with a resolution of some milliseconds, in nanoseconds since an arbitrary start.
pub(crate) fn coarse() -> u64 {
    clock(libc::CLOCK_MONOTONIC_COARSE)
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for a write; an unknown clock leaves it unchanged.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// The index nearest to `timestamp`, in nanoseconds of TAI. `None` if a part of the rate is 0.
pub fn timestamp_to_index(rate: Rational, timestamp: u64) -> Option<u64> {
    if !rate.is_usable() {
        return None;
    }
    let (numerator, denominator) = (i128::from(rate.numerator), i128::from(rate.denominator));
    // As in C++, where a timestamp is signed.
    let timestamp = i128::from(timestamp as i64);
    Some(((timestamp * numerator + SECOND / 2 * denominator) / (SECOND * denominator)) as u64)
}

/// The start of `index`, in nanoseconds of TAI. `None` if a part of the rate is 0.
pub fn index_to_timestamp(rate: Rational, index: u64) -> Option<u64> {
    if !rate.is_usable() {
        return None;
    }
    let (numerator, denominator) = (i128::from(rate.numerator), i128::from(rate.denominator));
    // C++ computes in 128 bits, which wrap for absurd rates.
    let scaled = i128::from(index).wrapping_mul(denominator).wrapping_mul(SECOND);
    Some((scaled.wrapping_add(numerator / 2).wrapping_div(numerator)) as u64)
}

/// The index at the current time. `None` if a part of the rate is 0.
pub fn current_index(rate: Rational) -> Option<u64> {
    timestamp_to_index(rate, now())
}

/// Time until `index` begins; zero if it has begun. `None` if a part of the rate is 0.
pub fn until_index(rate: Rational, index: u64) -> Option<Duration> {
    Some(Duration::from_nanos(index_to_timestamp(rate, index)?.saturating_sub(now())))
}

/// Sleeps until `timestamp`, in nanoseconds of TAI.
pub fn sleep_until(timestamp: u64) {
    let time = libc::timespec {
        tv_sec: (timestamp / 1_000_000_000) as libc::time_t,
        tv_nsec: (timestamp % 1_000_000_000) as libc::c_long,
    };
    loop {
        // SAFETY: `time` is only read: a sleep until an absolute time writes nothing back.
        let status = unsafe {
            libc::clock_nanosleep(libc::CLOCK_TAI, libc::TIMER_ABSTIME, &raw const time, std::ptr::null_mut())
        };
        if status != libc::EINTR {
            break;
        }
    }
    // A kernel that cannot sleep on TAI: sleep for the difference.
    let left = timestamp.saturating_sub(now());
    if left > 0 {
        std::thread::sleep(Duration::from_nanos(left));
    }
}

#[cfg(test)]
mod tests {
    use super::{Rational, SECOND, index_to_timestamp, now, timestamp_to_index};
    use proptest::prelude::*;

    const RATES: [Rational; 6] = [
        Rational::new(25, 1),
        Rational::new(30000, 1001),
        Rational::new(60000, 1001),
        Rational::new(48000, 1),
        Rational::new(120000, 1001),
        Rational::new(1, 1),
    ];

    #[test]
    fn a_rate_with_a_zero_has_no_indices() {
        for rate in [Rational::new(0, 1001), Rational::new(30000, 0), Rational::new(0, 0)] {
            assert_eq!((timestamp_to_index(rate, 1), index_to_timestamp(rate, 1)), (None, None));
        }
    }

    #[test]
    fn the_epoch_is_index_zero_and_halves_round_up() {
        let rate = Rational::new(30000, 1001);
        assert_eq!(timestamp_to_index(rate, 0), Some(0));
        assert_eq!(index_to_timestamp(rate, 0), Some(0));
        let second = (1001 * SECOND / 30000) as u64;
        assert_eq!(index_to_timestamp(rate, 1), Some(second + 1)); // 33,366,666.67 ns
        assert_eq!(timestamp_to_index(Rational::new(2, 1), 249_999_999), Some(0));
        assert_eq!(timestamp_to_index(Rational::new(2, 1), 250_000_000), Some(1));
    }

    proptest! {
        #[test]
        fn an_index_survives_its_timestamp(which in 0..RATES.len(), back in 0_u64..1_000_000_000_000) {
            let (rate, timestamp) = (RATES[which], now() - back);
            let index = timestamp_to_index(rate, timestamp).unwrap();
            let begin = index_to_timestamp(rate, index).unwrap();
            prop_assert_eq!(timestamp_to_index(rate, begin), Some(index));
            let frame = (SECOND * i128::from(rate.denominator) / i128::from(rate.numerator)) as u64;
            prop_assert!(begin.abs_diff(timestamp) <= frame / 2 + 1);
        }

        #[test]
        fn no_input_panics(numerator: i64, denominator: i64, value: u64) {
            let rate = Rational::new(numerator, denominator);
            let _ = (timestamp_to_index(rate, value), index_to_timestamp(rate, value), rate.reduced());
        }

        #[test]
        fn a_reduced_rate_is_the_same_rate(a in 1_i64..1_000_000, b in 1_i64..1_000_000, by in 1_i64..1000) {
            let reduced = Rational::new(a * by, b * by).reduced();
            prop_assert_eq!(i128::from(reduced.numerator) * i128::from(b), i128::from(reduced.denominator) * i128::from(a));
            prop_assert_eq!(reduced.reduced(), reduced);
        }
    }
}
