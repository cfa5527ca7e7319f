//! Ranges that callers pass.

use std::ops::{Bound, Range, RangeBounds};

use ofi::{Errno, Error, Result};

/// The bounds of a range in an object of length `len`. The range must be within the object and not empty.
pub(crate) fn resolve(range: &impl RangeBounds<u64>, len: u64, what: &'static str) -> Result<Range<u64>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    if start < end && end <= len {
        return Ok(start..end);
    }
    let wanted = format!("at least one byte inside {len}");
    Err(Error::wanted(
        Errno::EINVAL,
        what,
        wanted,
        format!("{start}..{end}"),
        "give a range that lies inside",
    ))
}
