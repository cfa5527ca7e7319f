//! Standard output, which may be closed at any time.

use std::io::Write;

use crate::failure::{Failure, Result};

/// Prints a text unchanged.
///
/// # Errors
/// [`Failure::Closed`] when standard output is closed.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|_| Failure::Closed)
}

/// Prints a value as JSON, for programs. Characters that a terminal obeys are escaped, also those that JSON need not
/// escape.
///
/// # Errors
/// [`Failure::Closed`] when standard output is closed.
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    // The call cannot fail: all keys are strings.
    print(&format!("{}\n", escaped(&serde_json::to_string_pretty(value).unwrap_or_default())))
}

/// Escapes what a terminal obeys. Such characters are only in strings, where JSON permits the escapes; the line ends
/// between them stay.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        let mut bytes = [0; 4];
        if char == '\n' || mxl::visible(char.encode_utf8(&mut bytes)).len() == char.len_utf8() {
            text.push(char);
        } else {
            // All of them are in the Basic Multilingual Plane, so four digits suffice.
            text.push_str(&format!("\\u{:04x}", u32::from(char)));
        }
    }
    text
}

/// Nanoseconds in readable form.
pub fn duration(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1_000),
        10_000_000..10_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::{duration, escaped};

    #[test]
    fn json_has_nothing_that_a_terminal_obeys_and_means_the_same() {
        let label = "a\u{1b}[2J\u{9b}1m\u{7f}\u{202e}\n\u{e9}\u{1f3a5}\"";
        let json = escaped(&serde_json::to_string_pretty(&[label]).unwrap());
        assert!(json.chars().all(|char| char == '\n' || mxl::visible(&char.to_string()) == char.to_string()));
        assert!(json.contains("\\u009b1m\\u007f\\u202e") && json.contains('\u{1f3a5}'), "{json}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [label]);
    }

    #[test]
    fn durations_have_a_unit_of_their_size() {
        assert_eq!([5, 50_000, 20_000_000, 90_000_000_000].map(duration), ["5 ns", "50 us", "20 ms", "90 s"]);
    }
}
