//! The types of settings, and the parsing of their text.
//!
//! Numbers are read as C's `strtol` reads them with base 0 (`0x` is hexadecimal, a leading `0` octal), so that a
//! variable means the same here as in C libfabric. Unlike there, text after the number must make sense, and a number
//! that does not fit is an error.

use std::time::Duration;

/// Type of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueKind {
    /// Any text.
    Text,
    /// A signed number.
    Integer,
    /// 0/1, no/yes, off/on, false/true.
    Boolean,
    /// A number of bytes or items; takes the suffixes `K`, `M`, `G` and `T` (powers of 1024).
    Size,
    /// A time with a unit (`20us`, `1.5s`); a bare number is in milliseconds.
    Time,
}

impl ValueKind {
    /// The number in C's `enum fi_param_type`. It has no type for times, which are strings there.
    pub const fn as_c(self) -> u32 {
        match self {
            ValueKind::Text | ValueKind::Time => 0,
            ValueKind::Integer => 1,
            ValueKind::Boolean => 2,
            ValueKind::Size => 3,
        }
    }

    /// One word for people.
    pub const fn name(self) -> &'static str {
        match self {
            ValueKind::Text => "string",
            ValueKind::Integer => "integer",
            ValueKind::Boolean => "boolean",
            ValueKind::Size => "size",
            ValueKind::Time => "duration",
        }
    }
}

impl std::fmt::Display for ValueKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A type of settings, as stored in a `static`.
pub trait Value: Copy + Send + Sync + 'static {
    /// The type of the value read: `String` for `&'static str`, and the type itself otherwise.
    type Read: PartialOrd;
    /// How it is listed.
    const KIND: ValueKind;
    /// This value as the read type.
    fn read(self) -> Self::Read;
    /// Reads text.
    ///
    /// # Errors
    /// Why it failed, as the end of a sentence about the text.
    fn parse(text: &str) -> Result<Self::Read, String>;
    /// A value as text that `parse` takes.
    fn show_read(value: &Self::Read) -> String;
    /// This value as text.
    fn show(self) -> String {
        Self::show_read(&self.read())
    }
}

impl Value for bool {
    type Read = bool;
    const KIND: ValueKind = ValueKind::Boolean;

    fn read(self) -> bool {
        self
    }

    fn parse(text: &str) -> Result<bool, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            _ => Err("it must be one of 0, 1, false, true, no, yes, off, on".into()),
        }
    }

    fn show_read(value: &bool) -> String {
        value.to_string()
    }
}

impl Value for i64 {
    type Read = i64;
    const KIND: ValueKind = ValueKind::Integer;

    fn read(self) -> i64 {
        self
    }

    fn parse(text: &str) -> Result<i64, String> {
        let text = text.trim();
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let magnitude = i128::from(unsigned(digits).ok_or("it must be an integer of 64 bits")?);
        i64::try_from(if negative { -magnitude } else { magnitude })
            .map_err(|_| "it does not fit an integer of 64 bits".into())
    }

    fn show_read(value: &i64) -> String {
        value.to_string()
    }
}

impl Value for usize {
    type Read = usize;
    const KIND: ValueKind = ValueKind::Size;

    fn read(self) -> usize {
        self
    }

    fn parse(text: &str) -> Result<usize, String> {
        let text = text.trim();
        let (digits, shift) = split_suffix(text);
        let number = unsigned(digits).ok_or("it must be a number such as 4096, 64K, 16M or 2G")?;
        number
            .checked_mul(1 << shift)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(|| "it is too large for this machine".into())
    }

    fn show_read(value: &usize) -> String {
        value.to_string()
    }
}

impl Value for &'static str {
    type Read = String;
    const KIND: ValueKind = ValueKind::Text;

    fn read(self) -> String {
        self.to_owned()
    }

    fn parse(text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }

    fn show_read(value: &String) -> String {
        value.clone()
    }
}

impl Value for Duration {
    type Read = Duration;
    const KIND: ValueKind = ValueKind::Time;

    fn read(self) -> Duration {
        self
    }

    fn parse(text: &str) -> Result<Duration, String> {
        let text = text.trim();
        let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_at);
        let unit_ns: u64 = match unit.trim() {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" | "" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => {
                return Err(
                    "it must be a time such as 20us, 1.5s or 2min, in one of ns, us, ms, s, min, h".into()
                );
            }
        };
        nanoseconds(number, unit_ns)
            .map(Duration::from_nanos)
            .ok_or_else(|| "it must be a time such as 20us, 1.5s or 2min, and less than 584 years".into())
    }

    fn show_read(value: &Duration) -> String {
        let ns = value.as_nanos();
        match [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")]
            .into_iter()
            .find(|(unit_ns, _)| ns.is_multiple_of(*unit_ns))
        {
            Some((unit_ns, unit)) => format!("{}{unit}", ns / unit_ns),
            None => format!("{ns}ns"),
        }
    }
}

/// Parses all of `text` as a number without a sign, as `strtoul` does with base 0.
fn unsigned(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    // `from_str_radix` would accept another sign.
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// Removes `K`, `KB`, `KiB` (and so on) from the end. Returns the power of two that it stands for.
fn split_suffix(text: &str) -> (&str, u32) {
    if text.starts_with("0x") || text.starts_with("0X") {
        return (text, 0); // a `B` at the end is a digit there
    }
    let stem = text.strip_suffix(['b', 'B']).unwrap_or(text);
    let stem = stem.strip_suffix('i').unwrap_or(stem);
    let shift = match stem.bytes().last().map(|byte| byte.to_ascii_uppercase()) {
        Some(b'K') => 10,
        Some(b'M') => 20,
        Some(b'G') => 30,
        Some(b'T') => 40,
        _ if text.ends_with(['b', 'B']) && !text.ends_with("iB") => return (stem, 0),
        _ => return (text, 0),
    };
    (stem[..stem.len() - 1].trim_end(), shift)
}

/// `number` (digits and at most one point) times `unit_ns`, rounded down to whole nanoseconds.
fn nanoseconds(number: &str, unit_ns: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut ns = whole.checked_mul(unit_ns)?;
    let mut place = unit_ns; // reaches 0 below a nanosecond, from where on digits add nothing
    for digit in fraction.bytes() {
        ns = ns.checked_add(u64::from(digit - b'0') * place / 10)?;
        place /= 10;
    }
    Some(ns)
}
