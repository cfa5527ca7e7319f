//! Formats of the C++ SDK's fabrics protocol: CQ data, headers of grains, entries of samples. All numbers are
//! little-endian.

use std::mem::offset_of;

use mxl::Geometry;
use mxl::layout::{GRAIN_VERSION, GrainHeader, PAYLOAD_OFFSET};

use crate::shape::{self, Span};

/// Bytes before the payload in a slot.
pub const GRAIN_HEADER: usize = PAYLOAD_OFFSET;
/// Bytes before the samples in an entry: the index after them, and their count.
pub const ENTRY_HEADER: usize = 16;
/// Bytes that a grain's header says it has.
const STRUCTURE: u32 = size_of::<GrainHeader>() as u32;
/// The flag of a grain without a valid payload.
pub const INVALID: u32 = 1;
/// Maximum entries of a bounce buffer. The C++ SDK's have a few dozen.
pub const MAX_ENTRIES: u64 = 65_536;

/// CQ data of a grain's last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The slot in the target's ring.
    pub slot: u16,
    /// Valid slices from the first on.
    pub end: u16,
}

impl Mark {
    /// The CQ data.
    pub const fn encode(self) -> u32 {
        self.slot as u32 | (self.end as u32) << 16
    }

    /// Parses CQ data. `None` if it has more than 32 bits.
    pub fn parse(data: u64) -> Option<Self> {
        let data = u32::try_from(data).ok()?;
        Some(Self { slot: data as u16, end: (data >> 16) as u16 })
    }
}

/// A grain's header, as it lies before the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The grain's index.
    pub index: u64,
    /// [`INVALID`], or 0.
    pub flags: u32,
    /// Bytes of the payload.
    pub size: u32,
    /// Slices of the whole grain.
    pub total: u16,
    /// Valid slices.
    pub valid: u16,
}

impl Header {
    /// The bytes before the payload: [`GRAIN_HEADER`] of them.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; GRAIN_HEADER];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(offset_of!(GrainHeader, version), &GRAIN_VERSION.to_le_bytes());
        put(offset_of!(GrainHeader, size), &STRUCTURE.to_le_bytes());
        put(offset_of!(GrainHeader, index), &self.index.to_le_bytes());
        put(offset_of!(GrainHeader, flags), &self.flags.to_le_bytes());
        put(offset_of!(GrainHeader, grain_size), &self.size.to_le_bytes());
        put(offset_of!(GrainHeader, total_slices), &self.total.to_le_bytes());
        put(offset_of!(GrainHeader, valid_slices), &self.valid.to_le_bytes());
        bytes
    }

    /// Parses the first [`Header::LEN`] bytes. `None` if the version or the structure is another one.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let u16_at = |at: usize| u16::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let what = (u32_at(offset_of!(GrainHeader, version)), u32_at(offset_of!(GrainHeader, size)));
        let index = offset_of!(GrainHeader, index);
        (what == (GRAIN_VERSION, STRUCTURE)).then(|| Self {
            index: u64::from_le_bytes(std::array::from_fn(|byte| bytes[index + byte])),
            flags: u32_at(offset_of!(GrainHeader, flags)),
            size: u32_at(offset_of!(GrainHeader, grain_size)),
            total: u16_at(offset_of!(GrainHeader, total_slices)),
            valid: u16_at(offset_of!(GrainHeader, valid_slices)),
        })
    }

    /// Bytes that [`parse`](Self::parse) reads.
    pub const LEN: usize = offset_of!(GrainHeader, reserved);
}

/// The header of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryHeader {
    /// The index after the last sample.
    pub index: u64,
    /// Samples of each channel.
    pub count: u64,
}

impl EntryHeader {
    /// Its bytes.
    pub fn encode(self) -> [u8; ENTRY_HEADER] {
        let (index, count) = (self.index.to_le_bytes(), self.count.to_le_bytes());
        std::array::from_fn(|at| if at < 8 { index[at] } else { count[at - 8] })
    }

    /// Parses them.
    pub fn parse(bytes: &[u8; ENTRY_HEADER]) -> Self {
        let at = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        Self { index: at(0), count: at(8) }
    }
}

/// The entries of a bounce buffer: their number, and bytes of each with its header. `None` if they are too many or too
/// long. `length` is that of the ring, `batch` the flow's hint on batches, both in samples.
pub fn entries(length: u64, batch: u64, channels: u32, word: u64) -> Option<(u64, u64)> {
    let batch = batch.clamp(1, length.max(1));
    let count = length.div_ceil(batch);
    let bytes =
        u64::from(channels).checked_mul(word)?.checked_mul(batch)?.checked_add(ENTRY_HEADER as u64)?;
    (count > 0 && count <= MAX_ENTRIES && bytes <= u32::MAX.into()).then_some((count, bytes))
}

/// Samples that an entry has room for; 0 for too short entries.
pub fn samples_of(entry: u64, channels: u32, word: u64) -> u64 {
    let frame = u64::from(channels) * word;
    entry.saturating_sub(ENTRY_HEADER as u64).checked_div(frame).unwrap_or(0)
}

/// The writes of slices `start..end`: pieces of the source's payload with their place in the slot, one write for each
/// plane. `0..0` is the header alone. The header belongs to the first write if that is at 0.
pub fn grain_writes(geometry: &Geometry, start: u16, end: u16) -> Vec<Write> {
    let offset = GRAIN_HEADER as u64;
    let write = |span: &Span| Write { to: offset + span.to, header: false, spans: vec![*span] };
    let mut writes: Vec<Write> = shape::slices(geometry, start, end).iter().map(write).collect();
    if start == 0 {
        match writes.first_mut() {
            Some(first) => (first.to, first.header) = (0, true),
            None => writes.push(Write { to: 0, header: true, spans: Vec::new() }),
        }
    }
    writes
}

/// One write: its place in the remote region, whether the header comes first, and pieces of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Offset in the remote region.
    pub to: u64,
    /// The header lies at its start.
    pub header: bool,
    /// Pieces that follow, of which `from` counts.
    pub spans: Vec<Span>,
}

/// Cuts writes to a provider's limits, in order. `header` is the header's length.
pub fn cut(writes: Vec<Write>, header: u64, limits: shape::Limits) -> Vec<Write> {
    let (pieces, most) = (limits.pieces.max(1), limits.bytes.max(header + 1));
    let mut parts: Vec<Write> = Vec::new();
    for Write { mut to, header: first, spans } in writes {
        let mut part = Write { to, header: first, spans: Vec::new() };
        let mut room = most - if first { header } else { 0 };
        to += if first { header } else { 0 };
        for span in spans {
            let mut rest = span;
            while rest.len > 0 {
                if room == 0 || part.spans.len() + usize::from(part.header) == pieces {
                    parts.push(std::mem::replace(&mut part, Write { to, header: false, spans: Vec::new() }));
                    room = most;
                }
                let len = rest.len.min(room);
                part.spans.push(Span { len, ..rest });
                rest = Span { from: rest.from + len, to: rest.to + len, len: rest.len - len };
                (room, to) = (room - len, to + len);
            }
        }
        parts.push(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use mxl::Rational;
    use proptest::prelude::*;

    use super::*;
    use crate::shape::Limits;

    /// Bytes as the C++ SDK's `bit_cast` gives them.
    #[test]
    fn a_mark_has_the_slot_below_and_the_end_above() {
        let mark = Mark { slot: 7, end: 1080 };
        assert_eq!(mark.encode(), 0x0438_0007);
        assert_eq!(Mark::parse(0x0438_0007), Some(mark));
        assert_eq!(Mark::parse(0x1_0438_0007), None);
    }

    /// The sizes that the C++ SDK printed for 48 kHz stereo.
    #[test]
    fn a_stereo_pair_has_41_entries_of_3856_bytes() {
        assert_eq!(entries(19_456, 480, 2, 4), Some((41, 3856)));
        assert_eq!(samples_of(3856, 2, 4), 480);
        assert_eq!((samples_of(15, 2, 4), samples_of(23, 2, 4)), (0, 0));
        assert_eq!(entries(u64::MAX, 1, 2, 4), None);
        assert_eq!(entries(0, 0, 2, 4), None);
    }

    fn v210a() -> Geometry {
        Geometry::Grains {
            rate: Rational::new(50, 1),
            payload: 3200,
            slices: 20,
            slice_sizes: [128, 32, 0, 0],
        }
    }

    #[test]
    fn a_grain_is_one_write_and_slices_are_one_for_each_plane() {
        let whole = grain_writes(&v210a(), 0, 20);
        assert_eq!(whole, [Write { to: 0, header: true, spans: vec![Span { from: 0, to: 0, len: 3200 }] }]);
        let first = grain_writes(&v210a(), 0, 2);
        let key = Span { from: 2560, to: 2560, len: 64 };
        assert_eq!(
            first,
            [
                Write { to: 0, header: true, spans: vec![Span { from: 0, to: 0, len: 256 }] },
                Write { to: 8192 + 2560, header: false, spans: vec![key] },
            ]
        );
        assert!(!grain_writes(&v210a(), 2, 4)[0].header && grain_writes(&v210a(), 2, 4)[0].to == 8192 + 256);
        assert_eq!(grain_writes(&v210a(), 0, 0), [Write { to: 0, header: true, spans: Vec::new() }]);
    }

    #[test]
    fn a_header_is_what_a_writer_of_the_sdk_stores() {
        let header = Header { index: 0x0102_0304_0506_0708, flags: 1, size: 3200, total: 20, valid: 5 };
        let bytes = header.encode();
        let used: [u8; Header::LEN] = std::array::from_fn(|at| bytes[at]);
        let wanted =
            [1, 0, 0, 0, 0, 16, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 1, 0, 0, 0, 128, 12, 0, 0, 20, 0, 5, 0];
        assert_eq!(used, wanted);
        assert_eq!((bytes.len(), Header::parse(&used)), (8192, Some(header)));
        assert_eq!(Header::parse(&[0; Header::LEN]), None);
        let entry = EntryHeader { index: 258, count: 48 };
        assert_eq!(entry.encode(), [2, 1, 0, 0, 0, 0, 0, 0, 48, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(EntryHeader::parse(&entry.encode()), entry);
    }

    proptest! {
        #[test]
        fn cut_writes_are_the_same_bytes_in_order(
            start in 0_u16..20, len in 0_u16..20, pieces in 1_usize..6, bytes in 1_u64..9000,
        ) {
            let end = (start + len).min(20);
            let writes = grain_writes(&v210a(), start, end);
            // Each byte of the source with its place.
            let list = |writes: &[Write]| -> Vec<(u64, u64)> {
                let mut all = Vec::new();
                for write in writes {
                    let mut to = write.to + if write.header { GRAIN_HEADER as u64 } else { 0 };
                    for span in &write.spans {
                        all.extend((0..span.len).map(|at| (to + at, span.from + at)));
                        to += span.len;
                    }
                }
                all
            };
            let parts = cut(writes.clone(), GRAIN_HEADER as u64, Limits { pieces, bytes });
            prop_assert_eq!(list(&parts), list(&writes));
            prop_assert_eq!(parts.iter().filter(|part| part.header).count(), usize::from(start == 0));
            for part in &parts {
                let header = if part.header { GRAIN_HEADER as u64 } else { 0 };
                let sum = header + part.spans.iter().map(|span| span.len).sum::<u64>();
                prop_assert!(sum <= bytes.max(GRAIN_HEADER as u64 + 1));
                prop_assert!(part.spans.len() + usize::from(part.header) <= pieces.max(1));
            }
        }
    }
}
