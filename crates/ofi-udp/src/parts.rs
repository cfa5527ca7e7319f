//! Parts of one payload that arrived together: records of one kind and name, each starting where the previous one ends.

use ofi_api::Piece;
use ofi_core::copy;
use ofi_rdm::wire::Record;

use ofi_core::transport::record::{Broken, Words};

/// Bytes of a part's record before the payload: its name and its offset.
const FIELDS: usize = 16;

/// Consecutive parts of one payload that arrived together.
pub struct Parts<'a> {
    /// The name of the payload, from each record.
    pub id: u64,
    /// Offset of the first part in the payload.
    pub at: u64,
    /// Total payload bytes.
    pub len: usize,
    /// Payload bytes of the first part.
    pub first: usize,
    /// The bytes are in place, not in the records.
    pub placed: bool,
    records: &'a [Record<'a>],
}

impl<'a> Parts<'a> {
    /// Collects the first of `records` and the following records that continue its payload.
    ///
    /// # Errors
    /// [`Broken`] if the first is not a part.
    pub fn of(records: &'a [Record<'a>], placed: bool) -> Result<Self, Broken> {
        let first = records.first().ok_or(Broken)?;
        let (id, at, first_len) = fields(first)?;
        let mut len = first_len;
        let goes_on = |record: &&Record<'_>| {
            let Ok((next_id, next_at, next_len)) = fields(record) else { return false };
            let next = at.checked_add(len as u64) == Some(next_at);
            if record.kind != first.kind || next_id != id || !next {
                return false;
            }
            len += next_len;
            true
        };
        let count = 1 + records[1..].iter().take_while(goes_on).count();
        Ok(Self { id, at, len, first: first_len, placed, records: &records[..count] })
    }

    /// Their number: at least one.
    pub fn count(&self) -> usize {
        self.records.len()
    }

    /// The payload bytes, part by part, that must still be copied.
    pub fn bytes(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let records = if self.placed { &[] } else { self.records };
        records.iter().map(|record| &record.body[FIELDS..])
    }

    /// Copies these bytes to their place in `pieces`, without those from byte `wanted` of the payload on.
    ///
    /// # Safety
    /// The pieces are writable, and have `wanted` bytes.
    pub unsafe fn scatter(&self, pieces: &[Piece], wanted: usize) {
        let mut at = self.at as usize;
        for bytes in self.bytes() {
            let bytes = &bytes[..bytes.len().min(wanted.saturating_sub(at))];
            // SAFETY: `bytes` is readable, and ends below `wanted`; the rest is the caller's promise.
            unsafe { copy::scatter(bytes.as_ptr(), bytes.len(), pieces, at) };
            at += bytes.len();
        }
    }
}

/// The name of the payload, the offset of the part, and its bytes.
fn fields(record: &Record<'_>) -> Result<(u64, u64, usize), Broken> {
    let mut words = Words(record.body);
    Ok((words.word()?, words.word()?, words.0.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::kind;
    use ofi_core::transport::record::Fields;

    fn part(kind: u8, id: u64, at: u64, bytes: &[u8]) -> (u8, Vec<u8>) {
        (kind, [Fields::new().word(id).word(at).bytes(), bytes].concat())
    }

    #[test]
    fn parts_end_where_another_payload_begins_or_bytes_are_missing() {
        let first = part(kind::WRITE_PART, 7, 100, b"abc");
        for (next, count) in [
            (part(kind::WRITE_PART, 7, 103, b"de"), 2),
            (part(kind::WRITE_PART, 7, 104, b"de"), 1),
            (part(kind::WRITE_PART, 8, 103, b"de"), 1),
            (part(kind::MESSAGE_PART, 7, 103, b"de"), 1),
            ((kind::WRITE_PART, vec![0; FIELDS - 1]), 1),
        ] {
            let records = [&first, &next].map(|(kind, body)| Record { kind: *kind, flags: 0, body });
            let parts = Parts::of(&records, false).unwrap();
            assert_eq!((parts.id, parts.at, parts.first, parts.count()), (7, 100, 3, count));
            let bytes: Vec<u8> = parts.bytes().flatten().copied().collect();
            assert_eq!((bytes.len(), &bytes[..3]), (parts.len, &b"abc"[..]));
            let placed = Parts::of(&records, true).unwrap();
            assert_eq!((placed.len, placed.count(), placed.bytes().count()), (parts.len, count, 0));
        }
        let short = Record { kind: kind::WRITE_PART, flags: 0, body: &[0; FIELDS - 1] };
        assert!(Parts::of(&[short], false).is_err() && Parts::of(&[], false).is_err());
    }
}
