//! The locations of functions: in this program by its symbol table, in its process by its mappings.

use std::fs;

use object::{Object, ObjectSymbol, SymbolKind};

use crate::{Error, Result};

/// Addresses in the file `program` of all functions whose name matches `pattern`, in which `*` matches anything.
///
/// # Errors
/// The file is unreadable, or has no such function.
pub fn functions(program: &std::path::Path, pattern: &str) -> Result<Vec<u64>> {
    let what = || program.display().to_string();
    let bytes = fs::read(program).map_err(Error::io(what()))?;
    let unreadable = |wanted, output: String| Error::Unreadable { program: what(), wanted, output };
    let file = object::File::parse(&*bytes)
        .map_err(|error| unreadable("a program with symbols", error.to_string()))?;
    let fits = |name: &str| matches(pattern, &format!("{:#}", rustc_demangle::demangle(name)));
    let text = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
    let found = text.filter(|symbol| symbol.name().is_ok_and(fits)).map(|symbol| symbol.address());
    let mut found: Vec<u64> = found.collect();
    found.sort_unstable();
    found.dedup();
    if found.is_empty() {
        return Err(unreadable("a function", format!("none matches {pattern}")));
    }
    Ok(found)
}

/// Whether `text` matches `pattern`.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after the end.
    pub end: u64,
    /// Offset in the file.
    pub offset: u64,
    /// The mapped file.
    pub name: String,
}

/// The mappings of a process.
///
/// # Errors
/// They are unreadable.
pub fn mappings(pid: u32) -> Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/maps");
    let text = fs::read_to_string(&path).map_err(Error::io(path))?;
    Ok(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Mapping> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let offset = number(words.nth(1)?)?;
    let name = words.nth(2).unwrap_or_default().to_string();
    Some(Mapping { start: number(start)?, end: number(end)?, offset, name })
}

/// The address at which the file `name` is mapped in a process.
pub fn base(mappings: &[Mapping], name: &str) -> Option<u64> {
    let first = mappings.iter().find(|mapping| mapping.name == name && mapping.offset == 0)?;
    Some(first.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_valgrinds() {
        assert!(matches("*paths::*send_and_complete*", "ofi_benches::ours::paths::send_and_complete"));
        assert!(!matches("*paths::*send_and_complete*", "ofi_benches::ours::run::send"));
        assert!(matches("main", "main") && !matches("main", "main2"));
        assert!(matches("a*c", "abc") && !matches("a*c", "abcd"));
    }

    #[test]
    fn a_line_of_maps_is_read() {
        let line = "7f00a000-7f00b000 r-xp 00002000 fe:00 123  /usr/lib/libc.so.6";
        let name = "/usr/lib/libc.so.6".to_string();
        let wanted = Mapping { start: 0x7f00_a000, end: 0x7f00_b000, offset: 0x2000, name };
        assert_eq!(parse(line), Some(wanted));
        assert_eq!(parse("7f00a000-7f00b000 rw-p 00000000 00:00 0").unwrap().name, "");
    }
}
