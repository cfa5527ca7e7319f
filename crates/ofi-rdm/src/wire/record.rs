//! Records: what a stream is made of. This crate cuts streams into records; what they mean is the transport's
//! (`docs/protocol.md`, "Commands").

/// Bytes of a record's head: kind, flags, two reserved bytes, length of the body.
pub const HEAD: usize = 8;

/// A record of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The kind of record; the driver defines them.
    pub kind: u8,
    /// Flags, whose meaning depends on the kind.
    pub flags: u8,
    /// Its fields and payload.
    pub body: &'a [u8],
}

/// The head of a record with a body of `len` bytes.
pub fn head(kind: u8, flags: u8, len: usize) -> [u8; HEAD] {
    let len = (len as u32).to_be_bytes();
    [kind, flags, 0, 0, len[0], len[1], len[2], len[3]]
}

/// Why a stream cannot be read on: its record has a body longer than a window, or reserved bytes that are not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bad;

/// Bytes of the record that `input` begins with; of its head as long as that is not whole.
pub fn whole_len(input: &[u8]) -> usize {
    match input.first_chunk::<HEAD>() {
        Some(&[_, _, _, _, a, b, c, d]) => HEAD.saturating_add(u32::from_be_bytes([a, b, c, d]) as usize),
        None => HEAD,
    }
}

/// Takes one whole record off the front of `input`, and answers its length. `None`: more bytes are needed.
///
/// # Errors
/// [`Bad`].
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
