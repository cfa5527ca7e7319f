//! v210: 4:2:2 pictures with 10 bits per sample: three samples in a little-endian 32-bit word, six pixels in four
//! words.
//!
//! A line begins on a multiple of 128 bytes (48 pixels). A key plane (`v210a`) has three keys in each word.

/// Bytes of a line of fill.
pub const fn line_bytes(width: u32) -> u32 {
    width.div_ceil(48) * 128
}

/// Bytes of a line of keys.
pub const fn key_line_bytes(width: u32) -> u32 {
    width.div_ceil(3) * 4
}

/// Pixels of a group, which is 16 bytes.
const GROUP: usize = 6;
const MASK: u32 = 0x3ff;

/// Samples of a line: one `y` for each pixel, one `cb` and one `cr` for each two pixels. 10 bits each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Luma.
    pub y: Vec<u16>,
    /// Blue difference.
    pub cb: Vec<u16>,
    /// Red difference.
    pub cr: Vec<u16>,
}

impl Line {
    /// A black line, with room for whole groups.
    pub fn new(width: usize) -> Self {
        let room = width.div_ceil(GROUP) * GROUP;
        Self { y: vec![64; room], cb: vec![512; room / 2], cr: vec![512; room / 2] }
    }

    fn groups(&self) -> usize {
        (self.y.len() / GROUP).min(self.cb.len() / 3).min(self.cr.len() / 3)
    }
}

/// Unpacks whole groups of `bytes`, as many as fit into both buffers, with the fastest code for this processor.
pub fn unpack(bytes: &[u8], line: &mut Line) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("ssse3") && std::arch::is_x86_feature_detected!("sse4.1") {
        // SAFETY: the processor has SSSE3 and SSE4.1, as just checked.
        return unsafe { simd::unpack(bytes, line) };
    }
    unpack_scalar(bytes, line, 0);
}

/// Packs whole groups of `line`, as many as fit into both buffers. Only the lower 10 bits of a sample are kept.
pub fn pack(line: &Line, bytes: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("ssse3") && std::arch::is_x86_feature_detected!("sse4.1") {
        // SAFETY: the processor has SSSE3 and SSE4.1, as just checked.
        return unsafe { simd::pack(line, bytes) };
    }
    pack_scalar(line, bytes, 0);
}

/// [`unpack`] for any processor, from group `from` on.
fn unpack_scalar(bytes: &[u8], line: &mut Line, from: usize) {
    let groups = line.groups().min(bytes.len() / 16);
    for group in from..groups {
        let word = |at: usize| {
            let at = group * 16 + at * 4;
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let part = |word: u32, at: u32| (word >> (10 * at) & MASK) as u16;
        let words = [word(0), word(1), word(2), word(3)];
        // Cb0 Y0 Cr0 | Y1 Cb1 Y2 | Cr1 Y3 Cb2 | Y4 Cr2 Y5
        let s: [u16; 12] = std::array::from_fn(|at| part(words[at / 3], (at % 3) as u32));
        line.y[group * 6..group * 6 + 6].copy_from_slice(&[s[1], s[3], s[5], s[7], s[9], s[11]]);
        line.cb[group * 3..group * 3 + 3].copy_from_slice(&[s[0], s[4], s[8]]);
        line.cr[group * 3..group * 3 + 3].copy_from_slice(&[s[2], s[6], s[10]]);
    }
}

/// [`pack`] for any processor, from group `from` on.
fn pack_scalar(line: &Line, bytes: &mut [u8], from: usize) {
    let groups = line.groups().min(bytes.len() / 16);
    for group in from..groups {
        let (y, cb, cr) = (&line.y[group * 6..], &line.cb[group * 3..], &line.cr[group * 3..]);
        let join = |a: u16, b: u16, c: u16| {
            (u32::from(a) & MASK) | (u32::from(b) & MASK) << 10 | (u32::from(c) & MASK) << 20
        };
        let words = [
            join(cb[0], y[0], cr[0]),
            join(y[1], cb[1], y[2]),
            join(cr[1], y[3], cb[2]),
            join(y[4], cr[2], y[5]),
        ];
        for (to, word) in bytes[group * 16..group * 16 + 16].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// A pixel as 8-bit RGB, from luma and differences of 10 bits in limited range (ITU-R BT.709-6, 3.2 and 3.4: black is
/// at 64, white at 940, and the differences span 896).
pub fn rgb(y: u16, cb: u16, cr: u16) -> [u8; 3] {
    let y = (f32::from(y) - 64.0) / 876.0;
    let (cb, cr) = ((f32::from(cb) - 512.0) / 896.0, (f32::from(cr) - 512.0) / 896.0);
    // A cast saturates at 0 and 255.
    let byte = |value: f32| (value * 255.0).round() as u8;
    [byte(y + 1.5748 * cr), byte(y - 0.1873 * cb - 0.4681 * cr), byte(y + 1.8556 * cb)]
}

/// Unpacks a line of keys: at most `width` of them, limited by the bytes available.
pub fn unpack_keys(bytes: &[u8], keys: &mut [u16]) {
    for (word, keys) in bytes.chunks_exact(4).zip(keys.chunks_mut(3)) {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        for (at, key) in keys.iter_mut().enumerate() {
            *key = (word >> (10 * at) & MASK) as u16;
        }
    }
}

/// Packs a line of keys.
pub fn pack_keys(keys: &[u16], bytes: &mut [u8]) {
    for (keys, word) in keys.chunks(3).zip(bytes.chunks_exact_mut(4)) {
        let joined =
            keys.iter().enumerate().fold(0, |word, (at, key)| word | (u32::from(*key) & MASK) << (10 * at));
        word.copy_from_slice(&joined.to_le_bytes());
    }
}

#[cfg(target_arch = "x86_64")]
mod simd {
    //! One group in one register of 128 bits.

    use super::{Line, pack_scalar, unpack_scalar};
    use std::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_loadu_si128, _mm_mullo_epi16, _mm_or_si128, _mm_set1_epi32,
        _mm_setr_epi8, _mm_setr_epi16, _mm_shuffle_epi8, _mm_slli_epi32, _mm_srli_epi16, _mm_srli_epi32,
        _mm_storeu_si128,
    };

    #[target_feature(enable = "ssse3,sse4.1")]
    pub fn unpack(bytes: &[u8], line: &mut Line) {
        let ten = _mm_set1_epi32(0x3ff);
        let groups = line.groups().min(bytes.len() / 16);
        for group in 0..groups {
            let at = group * 16;
            let Some(from) = bytes.get(at..at + 16) else { break };
            // SAFETY: sixteen bytes are valid for a read, at any alignment.
            let words = unsafe { _mm_loadu_si128(from.as_ptr().cast::<__m128i>()) };
            let low = _mm_and_si128(words, ten); // Cb0 Y1 Cr1 Y4
            let mid = _mm_and_si128(_mm_srli_epi32(words, 10), ten); // Y0 Cb1 Y3 Cr2
            let high = _mm_and_si128(_mm_srli_epi32(words, 20), ten); // Cr0 Y2 Cb2 Y5
            // Y0 Y1 Y2 Y3 Y4 Y5
            let y = _mm_or_si128(
                _mm_or_si128(
                    _mm_shuffle_epi8(
                        mid,
                        _mm_setr_epi8(0, 1, -1, -1, -1, -1, 8, 9, -1, -1, -1, -1, -1, -1, -1, -1),
                    ),
                    _mm_shuffle_epi8(
                        low,
                        _mm_setr_epi8(-1, -1, 4, 5, -1, -1, -1, -1, 12, 13, -1, -1, -1, -1, -1, -1),
                    ),
                ),
                _mm_shuffle_epi8(
                    high,
                    _mm_setr_epi8(-1, -1, -1, -1, 4, 5, -1, -1, -1, -1, 12, 13, -1, -1, -1, -1),
                ),
            );
            // Cb0 Cb1 Cb2 - Cr0 Cr1 Cr2
            let c = _mm_or_si128(
                _mm_or_si128(
                    _mm_shuffle_epi8(
                        low,
                        _mm_setr_epi8(0, 1, -1, -1, -1, -1, -1, -1, -1, -1, 8, 9, -1, -1, -1, -1),
                    ),
                    _mm_shuffle_epi8(
                        mid,
                        _mm_setr_epi8(-1, -1, 4, 5, -1, -1, -1, -1, -1, -1, -1, -1, 12, 13, -1, -1),
                    ),
                ),
                _mm_shuffle_epi8(
                    high,
                    _mm_setr_epi8(-1, -1, -1, -1, 8, 9, -1, -1, 0, 1, -1, -1, -1, -1, -1, -1),
                ),
            );
            let (mut luma, mut chroma) = ([0_u16; 8], [0_u16; 8]);
            // SAFETY: sixteen bytes are valid for a write, at any alignment.
            unsafe { _mm_storeu_si128(luma.as_mut_ptr().cast::<__m128i>(), y) };
            // SAFETY: as above.
            unsafe { _mm_storeu_si128(chroma.as_mut_ptr().cast::<__m128i>(), c) };
            line.y[group * 6..group * 6 + 6].copy_from_slice(&luma[..6]);
            line.cb[group * 3..group * 3 + 3].copy_from_slice(&chroma[..3]);
            line.cr[group * 3..group * 3 + 3].copy_from_slice(&chroma[4..7]);
        }
        unpack_scalar(bytes, line, groups);
    }

    #[target_feature(enable = "ssse3,sse4.1")]
    pub fn pack(line: &Line, bytes: &mut [u8]) {
        let groups = line.groups().min(bytes.len() / 16);
        // Six luma samples in one register, six chroma samples in another: the shuffles are the inverse of those in
        // `unpack`.
        for group in 0..groups {
            let (mut luma, mut chroma) = ([0_u16; 8], [0_u16; 8]);
            luma[..6].copy_from_slice(&line.y[group * 6..group * 6 + 6]);
            chroma[..3].copy_from_slice(&line.cb[group * 3..group * 3 + 3]);
            chroma[4..7].copy_from_slice(&line.cr[group * 3..group * 3 + 3]);
            // SAFETY: sixteen bytes are valid for a read, at any alignment.
            let y = unsafe { _mm_loadu_si128(luma.as_ptr().cast::<__m128i>()) };
            // SAFETY: as above.
            let c = unsafe { _mm_loadu_si128(chroma.as_ptr().cast::<__m128i>()) };
            // Keep ten bits of each: shift the others out and back.
            let cut = |v: __m128i| {
                _mm_srli_epi16(_mm_mullo_epi16(v, _mm_setr_epi16(64, 64, 64, 64, 64, 64, 64, 64)), 6)
            };
            let (y, c) = (cut(y), cut(c));
            let low = _mm_or_si128(
                _mm_shuffle_epi8(
                    c,
                    _mm_setr_epi8(0, 1, -1, -1, -1, -1, -1, -1, 10, 11, -1, -1, -1, -1, -1, -1),
                ),
                _mm_shuffle_epi8(
                    y,
                    _mm_setr_epi8(-1, -1, -1, -1, 2, 3, -1, -1, -1, -1, -1, -1, 8, 9, -1, -1),
                ),
            );
            let mid = _mm_or_si128(
                _mm_shuffle_epi8(
                    y,
                    _mm_setr_epi8(0, 1, -1, -1, -1, -1, -1, -1, 6, 7, -1, -1, -1, -1, -1, -1),
                ),
                _mm_shuffle_epi8(
                    c,
                    _mm_setr_epi8(-1, -1, -1, -1, 2, 3, -1, -1, -1, -1, -1, -1, 12, 13, -1, -1),
                ),
            );
            let high = _mm_or_si128(
                _mm_shuffle_epi8(
                    c,
                    _mm_setr_epi8(8, 9, -1, -1, -1, -1, -1, -1, 4, 5, -1, -1, -1, -1, -1, -1),
                ),
                _mm_shuffle_epi8(
                    y,
                    _mm_setr_epi8(-1, -1, -1, -1, 4, 5, -1, -1, -1, -1, -1, -1, 10, 11, -1, -1),
                ),
            );
            let words = _mm_or_si128(low, _mm_or_si128(_mm_slli_epi32(mid, 10), _mm_slli_epi32(high, 20)));
            let at = group * 16;
            let Some(to) = bytes.get_mut(at..at + 16) else { break };
            // SAFETY: sixteen bytes are valid for a write, at any alignment.
            unsafe { _mm_storeu_si128(to.as_mut_ptr().cast::<__m128i>(), words) };
        }
        pack_scalar(line, bytes, groups);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Line, key_line_bytes, line_bytes, pack, pack_keys, pack_scalar, unpack, unpack_keys, unpack_scalar,
    };
    use proptest::prelude::*;

    #[test]
    fn a_group_is_packed_as_the_format_says() {
        let mut line = Line::new(6);
        line.y.copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        line.cb.copy_from_slice(&[0x101, 0x102, 0x103]);
        line.cr.copy_from_slice(&[0x201, 0x202, 0x203]);
        let mut bytes = [0; 16];
        pack(&line, &mut bytes);
        let words: Vec<u32> =
            bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        let join = |a: u32, b: u32, c: u32| a | b << 10 | c << 20;
        let expected = [join(0x101, 1, 0x201), join(2, 0x102, 3), join(0x202, 4, 0x103), join(5, 0x203, 6)];
        assert_eq!(words, expected);
    }

    #[test]
    fn lines_are_padded() {
        assert_eq!((line_bytes(1920), line_bytes(1), line_bytes(49)), (5120, 128, 256));
        assert_eq!((key_line_bytes(1920), key_line_bytes(1), key_line_bytes(4)), (2560, 4, 8));
    }

    proptest! {
        #[test]
        fn both_ways_of_unpacking_agree(bytes in proptest::collection::vec(any::<u8>(), 0..400), width in 0_usize..200) {
            let (mut fast, mut slow) = (Line::new(width), Line::new(width));
            unpack(&bytes, &mut fast);
            unpack_scalar(&bytes, &mut slow, 0);
            prop_assert_eq!(&fast, &slow);
        }

        #[test]
        fn both_ways_of_packing_agree(samples in proptest::collection::vec(any::<u16>(), 0..400), room in 0_usize..400) {
            let groups = samples.len() / 12;
            let (y, c) = samples.split_at(groups * 6);
            let line = Line { y: y.to_vec(), cb: c[..groups * 3].to_vec(), cr: c[groups * 3..groups * 6].to_vec() };
            let (mut fast, mut slow) = (vec![7; room], vec![7; room]);
            pack(&line, &mut fast);
            pack_scalar(&line, &mut slow, 0);
            prop_assert_eq!(&fast, &slow);
            let mut again = Line { y: vec![0; groups * 6], cb: vec![0; groups * 3], cr: vec![0; groups * 3] };
            unpack(&fast, &mut again);
            let whole = groups.min(room / 16);
            for at in 0..whole * 6 {
                prop_assert_eq!(again.y[at], line.y[at] & 0x3ff);
            }
        }

        #[test]
        fn keys_survive(keys in proptest::collection::vec(0_u16..1024, 0..100)) {
            let mut bytes = vec![0; key_line_bytes(keys.len() as u32) as usize];
            pack_keys(&keys, &mut bytes);
            let mut again = vec![0; keys.len()];
            unpack_keys(&bytes, &mut again);
            prop_assert_eq!(again, keys);
        }
    }
}
