//! How the programs of this crate begin and end, and what several of them read.

use std::ops::RangeInclusive;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use mxl::Rational;

use crate::{Error, Key, Result};

/// Lengths of a key that are accepted: shorter ones can be guessed, and no provider takes longer ones.
const KEYS: RangeInclusive<usize> = 16..=64;

/// Runs `body` with the options of the command line. Wrong options and errors go to standard error, the latter behind
/// the program's name; both end with status 1.
pub fn run<O: Parser>(name: &str, body: impl FnOnce(&O) -> Result<()>) -> ExitCode {
    let options = match O::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // A closed standard output is ignored.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS };
        }
    };
    match body(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {}", mxl::visible(&error.to_string()));
            ExitCode::from(1)
        }
    }
}

/// Samples of ten milliseconds, as the C++ SDK's batches; at least one. A definition may have any rate above 0.
pub fn batch(rate: Rational) -> u64 {
    let samples = i128::from(rate.numerator) / (i128::from(rate.denominator) * 100).max(1);
    u64::try_from(samples.max(1)).unwrap_or(u64::MAX)
}

/// The key in a file. White space around it, such as an editor's last line end, does not count.
///
/// # Errors
/// [`Error::Argument`] for a file that cannot be read, and for a key of another length.
pub fn key(path: &Path) -> Result<Key> {
    let failed = |what: String| Error::Argument(format!("--key {}: {what}", path.display()));
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    match text.trim_ascii() {
        key if KEYS.contains(&key.len()) => Ok(Key::new(key)),
        key => Err(failed(format!(
            "a key has {} to {} bytes, this one {}: `openssl rand -hex 16` makes one",
            KEYS.start(),
            KEYS.end(),
            key.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_any_rate_have_samples() {
        for (numerator, denominator, samples) in [
            (48_000, 1, 480),
            (44_100, 1, 441),
            (1, 1, 1),
            // A hundred times as much is 0 in 64 bits.
            (1, 1 << 62, 1),
            (i64::MAX, 1, i64::MAX as u64 / 100),
            (0, 0, 1),
        ] {
            assert_eq!(batch(Rational::new(numerator, denominator)), samples, "{numerator}/{denominator}");
        }
    }
}
