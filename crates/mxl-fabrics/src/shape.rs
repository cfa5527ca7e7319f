//! The properties that flows at both ends must agree on.

use mxl::{Geometry, Rational};

/// Pieces of one remote write, at either end.
pub const PIECES: usize = 8;
/// Maximum writes of one batch of samples: the range of the CQ data.
pub const PARTS: usize = 1 << 8;
/// Maximum writes of one commit of slices: the range of the CQ data.
pub const GRAIN_PARTS: usize = 1 << 16;

/// A part of a transfer: its position in the source, and in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset in the source's memory.
    pub from: u64,
    /// Offset in the target's memory.
    pub to: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The location of slices `start..end` in a payload: planes lie one after the other, each with all slices.
pub fn slices(geometry: &Geometry, start: u16, end: u16) -> Vec<Span> {
    let Geometry::Grains { slices, slice_sizes, .. } = *geometry else { return Vec::new() };
    let (start, end) = (u64::from(start.min(slices)), u64::from(end.min(slices)));
    let mut base = 0;
    let mut spans = Vec::new();
    for size in slice_sizes.into_iter().map(u64::from).filter(|size| *size > 0) {
        let at = base + start * size;
        if end > start {
            spans.push(Span { from: at, to: at, len: (end - start) * size });
        }
        base += u64::from(slices) * size;
    }
    // Adjacent planes are one piece.
    spans.dedup_by(|next, last| {
        let is_next = last.from + last.len == next.from;
        last.len += if is_next { next.len } else { 0 };
        is_next
    });
    spans
}

/// A ring of samples for each channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Length of a channel's ring, in samples.
    pub length: u64,
    /// Bytes of a sample.
    pub word: u64,
}

/// The location of the `count` samples before `index` in both rings, channel after channel.
pub fn samples(channels: u32, index: u64, count: u64, source: Rings, target: Rings) -> Vec<Span> {
    let windows =
        (mxl::ring::window(index, count, source.length), mxl::ring::window(index, count, target.length));
    let (Some(from), Some(to)) = windows else { return Vec::new() };
    let mut spans = Vec::new();
    for channel in 0..u64::from(channels) {
        let mut done = 0;
        while done < count {
            // Up to the end of either ring.
            let at = |window: mxl::ring::Window, length: u64| {
                if done < window.first {
                    (window.start + done + channel * length, window.first - done)
                } else {
                    (done - window.first + channel * length, count - done)
                }
            };
            let ((from, left), (to, room)) = (at(from, source.length), at(to, target.length));
            let len = left.min(room);
            spans.push(Span { from: from * source.word, to: to * target.word, len: len * source.word });
            done += len;
        }
    }
    spans
}

/// The limits of one write or one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pieces: at least one.
    pub pieces: usize,
    /// Bytes of all pieces: at least one.
    pub bytes: u64,
}

/// Cuts a transfer into parts that fit, in order.
pub fn parts(spans: &[Span], limits: Limits) -> Vec<Vec<Span>> {
    let (pieces, most) = (limits.pieces.max(1), limits.bytes.max(1));
    let mut parts: Vec<Vec<Span>> = Vec::new();
    let mut room = 0;
    for &span in spans {
        let mut rest = span;
        while rest.len > 0 {
            if room == 0 || parts.last().is_none_or(|last| last.len() == pieces) {
                parts.push(Vec::new());
                room = most;
            }
            let len = rest.len.min(room);
            if let Some(last) = parts.last_mut() {
                last.push(Span { len, ..rest });
            }
            rest = Span { from: rest.from + len, to: rest.to + len, len: rest.len - len };
            room -= len;
        }
    }
    parts
}

/// The maximum number of parts for this many spans with this many bytes in total.
pub fn most_parts(spans: usize, bytes: u64, limits: Limits) -> usize {
    // Each part but the last is full of pieces or of bytes.
    let full = spans / limits.pieces.max(1) + 1;
    usize::try_from(bytes / limits.bytes.max(1)).map_or(usize::MAX, |by_bytes| full.saturating_add(by_bytes))
}

/// Whether a span of the target's rings lies in the window of the `count` samples before `index`, of one channel.
pub fn is_in_window(channels: u32, index: u64, count: u64, rings: Rings, to: u64, len: u64) -> bool {
    let stride = rings.length.saturating_mul(rings.word);
    let (Some(window), true) = (mxl::ring::window(index, count, rings.length), stride > 0) else {
        return false;
    };
    let (channel, at) = (to / stride, to % stride);
    let Some(end) = at.checked_add(len) else { return false };
    let (start, first, second) =
        (window.start * rings.word, window.first * rings.word, window.second * rings.word);
    channel < channels.into() && ((at >= start && end <= start + first) || end <= second)
}

/// A geometry as numbers, for messages: equal if and only if the flows match.
pub fn numbers(geometry: &Geometry) -> [u64; 8] {
    let rate = |rate: Rational| [rate.numerator as u64, rate.denominator as u64];
    match *geometry {
        Geometry::Grains { rate: of, payload, slices, slice_sizes: [a, b, c, d] } => {
            let ([numerator, denominator], pair) =
                (rate(of), |a: u32, b: u32| u64::from(a) << 32 | u64::from(b));
            [1, numerator, denominator, payload.into(), slices.into(), pair(a, b), pair(c, d), 0]
        }
        Geometry::Samples { rate: of, channels, word } => {
            let [numerator, denominator] = rate(of);
            [2, numerator, denominator, channels.into(), word.into(), 0, 0, 0]
        }
    }
}

/// Describes the properties in which our geometry and the other end's, which may be any numbers, differ.
pub fn difference(here: &[u64; 8], there: &[u64; 8]) -> Option<String> {
    if here == there {
        return None;
    }
    let kind = |numbers: &[u64; 8]| match numbers[0] {
        1 => "grains",
        2 => "samples",
        _ => "something unknown",
    };
    Some(if here[0] != there[0] {
        format!("{} there, {} here", kind(there), kind(here))
    } else if here[1..3] != there[1..3] {
        format!("a rate of {}/{} there, {}/{} here", there[1], there[2], here[1], here[2])
    } else if here[3] != there[3] {
        let what = if here[0] == 1 { "bytes" } else { "channels" };
        format!("{} {what} there, {} here", there[3], here[3])
    } else if here[4] != there[4] {
        let what = if here[0] == 1 { "slices" } else { "bytes for a sample" };
        format!("{} {what} there, {} here", there[4], here[4])
    } else {
        "other slice sizes".to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v210a() -> Geometry {
        Geometry::Grains {
            rate: Rational::new(50, 1),
            payload: 3200,
            slices: 20,
            slice_sizes: [128, 32, 0, 0],
        }
    }

    #[test]
    fn all_slices_are_one_piece_and_some_are_one_for_each_plane() {
        assert_eq!(slices(&v210a(), 0, 20), [Span { from: 0, to: 0, len: 3200 }]);
        assert_eq!(
            slices(&v210a(), 5, 7),
            [Span { from: 640, to: 640, len: 256 }, Span { from: 2560 + 160, to: 2560 + 160, len: 64 }]
        );
        assert_eq!(slices(&v210a(), 7, 7), []);
        assert_eq!(slices(&v210a(), 19, 99).iter().map(|span| span.len).sum::<u64>(), 160);
    }

    #[test]
    fn geometries_differ_by_any_number() {
        let other = Geometry::Samples { rate: Rational::new(48000, 1), channels: 2, word: 4 };
        assert_ne!(numbers(&v210a()), numbers(&other));
    }

    proptest! {
        #[test]
        fn parts_are_the_whole_in_order(
            lens in proptest::collection::vec(1_u64..40, 0..12), pieces in 1_usize..9, bytes in 1_u64..50,
        ) {
            let mut at = 0;
            let spans: Vec<Span> = lens.iter().map(|&len| {
                at += len + 3;
                Span { from: at, to: at * 2, len }
            }).collect();
            let bytes_of = |spans: &[Span]| -> Vec<(u64, u64)> {
                spans.iter().flat_map(|span| (0..span.len).map(|at| (span.from + at, span.to + at))).collect()
            };
            let limits = Limits { pieces, bytes };
            let parts = parts(&spans, limits);
            prop_assert!(parts.len() <= most_parts(spans.len(), lens.iter().sum(), limits));
            for part in &parts {
                prop_assert!(!part.is_empty() && part.len() <= pieces);
                prop_assert!(part.iter().map(|span| span.len).sum::<u64>() <= bytes);
            }
            prop_assert_eq!(bytes_of(&parts.concat()), bytes_of(&spans));
        }

        #[test]
        fn only_the_batchs_own_samples_are_in_its_window(
            index in 0_u64..300, count in 0_u64..60, length in 1_u64..50, to in 0_u64..700, len in 1_u64..100,
        ) {
            let (channels, word) = (3, 4);
            // Samples of one channel that belong to the batch, without wrapping in the middle of the span.
            let naive = (to..to + len).all(|byte| {
                let (channel, slot) = (byte / (length * word), byte % (length * word) / word);
                channel == to / (length * word)
                    && channel < channels
                    && count <= length
                    && (0..count).any(|back| (index as i64 - 1 - back as i64).rem_euclid(length as i64) as u64 == slot)
            });
            let rings = Rings { length, word };
            let is_in = is_in_window(channels as u32, index, count, rings, to, len);
            // A span across the end of a full ring is two spans in the window's order: the strict check may
            // refuse it.
            prop_assert!(!is_in || naive);
            prop_assert!(is_in || !naive || count == length);
        }

        #[test]
        fn samples_go_where_both_rings_have_them(
            channels in 1_u32..4, index in 0_u64..500, count in 0_u64..40, source in 40_u64..100, target in 40_u64..100,
        ) {
            let word = 4;
            let (from, to) = (Rings { length: source, word }, Rings { length: target, word });
            let spans = samples(channels, index, count, from, to);
            let mut pairs = Vec::new();
            for span in &spans {
                prop_assert!(span.len > 0 && span.len % word == 0);
                pairs.extend((0..span.len / word).map(|at| (span.from / word + at, span.to / word + at)));
            }
            let slot = |sample: i64, length: u64| sample.rem_euclid(length as i64) as u64;
            let mut wanted = Vec::new();
            for channel in 0..u64::from(channels) {
                for sample in index as i64 - count as i64..index as i64 {
                    wanted.push((channel * source + slot(sample, source), channel * target + slot(sample, target)));
                }
            }
            prop_assert_eq!(pairs, wanted);
        }
    }
}
