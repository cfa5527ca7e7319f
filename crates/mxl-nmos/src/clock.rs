//! The time in TAI, and its form in IS-04 and IS-05.

use std::time::{SystemTime, UNIX_EPOCH};

use mxl::time;

const SECOND: u64 = 1_000_000_000;
/// TAI minus UTC since 2017, for kernels that nobody has told. No further leap second is announced.
const LEAP_SECONDS: u64 = 37;

/// Nanoseconds of TAI. A kernel whose TAI equals UTC was not told the leap seconds; a controller's clock has them.
pub fn now() -> u64 {
    let utc = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    corrected(time::now(), u64::try_from(utc.as_nanos()).unwrap_or(u64::MAX))
}

/// The time in TAI, from what the kernel says of TAI and UTC.
fn corrected(tai: u64, utc: u64) -> u64 {
    if tai.abs_diff(utc) < SECOND { tai.saturating_add(LEAP_SECONDS * SECOND) } else { tai }
}

/// Nanoseconds as `seconds:nanoseconds`.
pub fn text(ns: u64) -> String {
    format!("{}:{}", ns / SECOND, ns % SECOND)
}

/// Reads `seconds:nanoseconds`. `None` for anything else. Times beyond the range of nanoseconds are the last one.
pub fn parse(text: &str) -> Option<u64> {
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().unwrap_or(u64::MAX))
    };
    let (seconds, ns) = text.split_once(':')?;
    let (seconds, ns) = (number(seconds)?, number(ns).filter(|ns| *ns < SECOND)?);
    Some(seconds.saturating_mul(SECOND).saturating_add(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_leap_seconds_is_corrected() {
        assert_eq!(corrected(5 * SECOND, 5 * SECOND + 1000), 42 * SECOND);
        assert_eq!(corrected(42 * SECOND, 5 * SECOND), 42 * SECOND);
    }

    #[test]
    fn times_are_seconds_and_nanoseconds() {
        assert_eq!(parse("1439299836:10"), Some(1_439_299_836 * SECOND + 10));
        assert_eq!(parse(&text(7 * SECOND + 9)), Some(7 * SECOND + 9));
        assert_eq!(parse("99999999999999999999:0"), Some(u64::MAX));
        for wrong in ["", ":", "1", "1:", ":1", "1.5", "-1:0", "+1:0", "1:1000000000", "1:0:0", " 1:0", "١:0"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
