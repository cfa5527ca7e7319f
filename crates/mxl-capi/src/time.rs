//! Time and indices.

use std::time::Duration;

use mxl::time;

use crate::types::Rational;
use mxl_ffi::border::value;

/// `MXL_UNDEFINED_INDEX`.
const UNDEFINED: u64 = u64::MAX;

fn rate(pointer: *const Rational) -> Option<Rational> {
    // SAFETY: the C caller's promise: null, or a rate that does not change during the call.
    unsafe { pointer.as_ref() }.copied()
}

/// `mxlGetTime`.
#[unsafe(no_mangle)]
pub extern "C" fn mxlGetTime() -> u64 {
    time::now()
}

/// `mxlGetCurrentIndex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlGetCurrentIndex(edit_rate: *const Rational) -> u64 {
    value(UNDEFINED, || rate(edit_rate).and_then(time::current_index).unwrap_or(UNDEFINED))
}

/// `mxlTimestampToIndex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlTimestampToIndex(edit_rate: *const Rational, timestamp: u64) -> u64 {
    value(UNDEFINED, || {
        rate(edit_rate).and_then(|rate| time::timestamp_to_index(rate, timestamp)).unwrap_or(UNDEFINED)
    })
}

/// `mxlIndexToTimestamp`. As in C++, only index 0 has a timestamp at an undefined rate: 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlIndexToTimestamp(edit_rate: *const Rational, index: u64) -> u64 {
    value(UNDEFINED, || {
        let Some(rate) = rate(edit_rate) else { return UNDEFINED };
        match time::index_to_timestamp(rate, index).unwrap_or(0) {
            0 if index != 0 => UNDEFINED,
            timestamp => timestamp,
        }
    })
}

/// `mxlGetNsUntilIndex`: 0 for an index that has begun.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlGetNsUntilIndex(index: u64, edit_rate: *const Rational) -> u64 {
    value(UNDEFINED, || {
        let left = rate(edit_rate).and_then(|rate| time::until_index(rate, index));
        left.map_or(UNDEFINED, |left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    })
}

/// `mxlSleepForNs`.
#[unsafe(no_mangle)]
pub extern "C" fn mxlSleepForNs(ns: u64) {
    value((), || std::thread::sleep(Duration::from_nanos(ns)));
}

/// `mxlSleepUntil`, a point in TAI.
#[unsafe(no_mangle)]
pub extern "C" fn mxlSleepUntil(timestamp: u64) {
    value((), || time::sleep_until(timestamp));
}
