//! Ranges that callers pass.

use std::ops::{Bound, Range, RangeBounds};

use ofi::{Errno, Error, Result};

/// The bounds of a range in an object of length `len`. The range must be within the object and not empty.
pub(crate) fn resolve(range: &impl RangeBounds<u64>, len: u64, what: &'static str) -> Result<Range<u64>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    let (start, end) = match (start, end) {
        (Some(start), Some(end)) if start < end && end <= len => return Ok(start..end),
        bounds => bounds,
    };
    let shown = |bound: Option<u64>| bound.map_or("2^64".into(), |bound| bound.to_string());
    let wanted = format!("at least one byte inside {len}");
    Err(Error::wanted(
        Errno::EINVAL,
        what,
        wanted,
        format!("{}..{}", shown(start), shown(end)),
        "give a range that lies inside",
    ))
}
