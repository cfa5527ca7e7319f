//! Records, the units of a stream. This crate cuts streams into records; their meaning is defined by the transport
//! (`docs/protocol.md`, "Commands").

/// Bytes of a record's head: kind, flags, two reserved bytes, length of the body.
pub const HEAD: usize = 8;

/// A record of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The kind of record; the driver defines them.
    pub kind: u8,
    /// Flags. Their meaning depends on the kind.
    pub flags: u8,
    /// Fields and payload.
    pub body: &'a [u8],
}

/// The head of a record with a body of `len` bytes.
pub fn head(kind: u8, flags: u8, len: usize) -> [u8; HEAD] {
    let len = (len as u32).to_be_bytes();
    [kind, flags, 0, 0, len[0], len[1], len[2], len[3]]
}

/// The stream is unreadable: the body of a record is longer than a window, or reserved bytes are not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad;

/// Bytes of the record at the front of `input`; bytes of its head as long as the head is incomplete.
pub fn whole_len(input: &[u8]) -> usize {
    match input.first_chunk::<HEAD>() {
        Some(&[_, _, _, _, a, b, c, d]) => HEAD.saturating_add(u32::from_be_bytes([a, b, c, d]) as usize),
        None => HEAD,
    }
}

/// Parses one whole record off the front of `input`, and returns its length. `None`: more bytes are needed.
///
/// # Errors
/// [`Bad`] for an invalid head.
pub fn parse(input: &[u8], longest: usize) -> Result<Option<(Record<'_>, usize)>, Bad> {
    let Some((&[kind, flags, r0, r1, a, b, c, d], rest)) = input.split_first_chunk::<HEAD>() else {
        return Ok(None);
    };
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    if len > longest || r0 != 0 || r1 != 0 {
        return Err(Bad);
    }
    Ok(rest.get(..len).map(|body| (Record { kind, flags, body }, HEAD + len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_whole_or_not_there() {
        let mut bytes = std::vec::Vec::from(head(3, 4, 5));
        bytes.extend_from_slice(b"hello, world");
        let record = Record { kind: 3, flags: 4, body: b"hello" };
        assert_eq!(parse(&bytes, 100), Ok(Some((record, 13))));
        assert!((0..13).all(|cut| parse(&bytes[..cut], 100) == Ok(None)));
        assert_eq!(parse(&bytes, 4), Err(Bad));
        bytes[2] = 1;
        assert_eq!(parse(&bytes, 100), Err(Bad));
    }
}
