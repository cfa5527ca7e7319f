//! Message sizes: the sets that are measured, and their notation.

/// The sizes to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A list of sizes.
    These(Vec<usize>),
    /// C's "all": powers of two, and one and a half times these.
    All,
}

/// The default of a run of both sides.
pub const DEFAULT: [usize; 12] =
    [0, 1, 8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// The default of a client, as in C (fi_pingpong(1), "Defaults").
pub const DEFAULT_OF_C: [usize; 6] = [64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20];

/// Maximum size that may be requested. Both sides allocate it at least twice.
pub const MAX: usize = 1 << 30;

/// The largest of C's "all".
const MAX_OF_ALL: usize = 8 << 20;

impl Choice {
    /// The sizes without those above `limit`.
    pub fn up_to(&self, limit: usize) -> Vec<usize> {
        let all = match self {
            Choice::These(sizes) => sizes.clone(),
            Choice::All => {
                let powers = std::iter::successors(Some(2_usize), |size| size.checked_mul(2));
                let powers = powers.take_while(|&size| size <= MAX_OF_ALL);
                [0, 1].into_iter().chain(powers.flat_map(|size| [size, size + size / 2])).collect()
            }
        };
        all.into_iter().filter(|&size| size <= limit).collect()
    }
}

/// Parses `64,4K,1M`.
///
/// # Errors
/// The reason, as the end of a sentence about the text.
pub fn list(text: &str) -> Result<Choice, String> {
    text.split(',').map(one).collect::<Result<Vec<_>, _>>().map(Choice::These)
}

/// Parses `64`, `4K` or `all`.
///
/// # Errors
/// As [`list`].
pub fn one_or_all(text: &str) -> Result<Choice, String> {
    if text.trim().eq_ignore_ascii_case("all") {
        return Ok(Choice::All);
    }
    one(text).map(|size| Choice::These(vec![size]))
}

/// Parses `64` or `4K`.
///
/// # Errors
/// As [`list`].
pub fn one(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches("ib").trim_end_matches('i');
    let (digits, unit) = match digits.as_bytes().last() {
        Some(b'k') => (&digits[..digits.len() - 1], 1 << 10),
        Some(b'm') => (&digits[..digits.len() - 1], 1 << 20),
        Some(b'g') => (&digits[..digits.len() - 1], 1 << 30),
        _ => (digits, 1),
    };
    let size = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(unit));
    match size {
        Some(size) if size <= MAX => Ok(size),
        Some(size) => Err(format!("wanted at most {MAX} bytes, found {size}")),
        None => Err(format!("wanted a number of bytes, such as 64, 4K or 1M, found {text:?}")),
    }
}

/// `size` in people's notation: `64`, `4 KiB`, `1 MiB`.
pub fn text(size: usize) -> String {
    match size {
        mega if mega >= 1 << 20 && mega % (1 << 20) == 0 => format!("{} MiB", mega >> 20),
        kilo if kilo >= 1 << 10 && kilo % (1 << 10) == 0 => format!("{} KiB", kilo >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_units() {
        assert_eq!(list("0,64, 4k,4Ki,1MiB").unwrap(), Choice::These(vec![0, 64, 4096, 4096, 1 << 20]));
        for bad in ["", "-1", "4X", "1.5K", "64,", "é", "99999999999999999999"] {
            assert!(list(bad).is_err(), "{bad:?}");
        }
        assert!(list("2G").unwrap_err().contains("at most"));
    }

    #[test]
    fn all_is_what_c_calls_all() {
        let sizes = one_or_all("ALL").unwrap().up_to(usize::MAX);
        assert_eq!(sizes[..6], [0, 1, 2, 3, 4, 6]);
        assert_eq!(Choice::All.up_to(4), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn sizes_are_written_in_the_unit_that_divides_them() {
        assert_eq!([text(64), text(4096), text(4 << 20), text(1500)], ["64", "4 KiB", "4 MiB", "1500"]);
    }
}
