//! Self-describing pictures: colour bars, a moving line, and the index burnt in.

use mxl::Rational;
use mxl::v210::{self, Line};

/// Bars of 75 % (ITU-R BT.709, 10 bits): Y, Cb, Cr.
const BARS: [[u16; 3]; 8] = [
    [720, 512, 512],
    [672, 176, 544],
    [580, 588, 176],
    [532, 252, 208],
    [252, 772, 816],
    [204, 436, 848],
    [112, 848, 480],
    [64, 512, 512],
];
const BLACK: u16 = 64;
const WHITE: u16 = 940;
const GREY: u16 = 512;
/// Digits of five rows of three pixels, a bit each, the leftmost highest.
const DIGITS: [[u8; 5]; 10] = [
    [7, 5, 5, 5, 7],
    [2, 6, 2, 2, 7],
    [7, 1, 7, 4, 7],
    [7, 1, 7, 1, 7],
    [5, 5, 7, 1, 1],
    [7, 4, 7, 1, 7],
    [7, 4, 7, 5, 7],
    [7, 1, 1, 2, 2],
    [7, 5, 7, 5, 7],
    [7, 5, 7, 1, 7],
];

/// Test pictures of one size.
#[derive(Debug)]
pub struct Pattern {
    width: usize,
    lines: usize,
    alpha: bool,
    bars: Line,
    fill: usize,
    key: usize,
}

impl Pattern {
    /// Creates a pattern of `width` pixels and `lines` lines; with a key plane if `alpha`.
    pub fn new(width: u32, lines: u32, alpha: bool) -> Self {
        let pixels = width as usize;
        // The line extends to the end of its bytes, and is black past the picture.
        let mut bars = Line::new(pixels.next_multiple_of(48));
        for at in 0..pixels {
            let [y, cb, cr] = BARS[at * BARS.len() / pixels];
            bars.y[at] = y;
            if at % 2 == 0 {
                (bars.cb[at / 2], bars.cr[at / 2]) = (cb, cr);
            }
        }
        let fill = v210::line_bytes(width) as usize;
        let key = if alpha { v210::key_line_bytes(width) as usize } else { 0 };
        Self { width: pixels, lines: lines as usize, alpha, bars, fill, key }
    }

    /// Bytes of a picture.
    pub fn len(&self) -> usize {
        (self.fill + self.key) * self.lines
    }

    /// The picture of `index`.
    pub fn draw(&self, index: u64, picture: &mut [u8]) {
        let (fill, keys) = picture.split_at_mut(self.fill * self.lines);
        let mut bars = vec![0; self.fill];
        v210::pack(&self.bars, &mut bars);
        let text: Vec<u8> = index.to_string().bytes().map(|digit| digit - b'0').collect();
        // A character cell is four dots wide, and the text as wide as the picture permits.
        let dot = (self.width / (text.len() * 4 + 2)).min(self.lines / 9).max(1);
        let (top, left) = (dot * 2, dot);
        let moving = (index % self.lines.max(1) as u64) as usize;
        for (at, to) in fill.chunks_exact_mut(self.fill.max(1)).enumerate() {
            let row = at.checked_sub(top).map(|below| below / dot).filter(|row| *row < 5);
            if row.is_none() && at != moving {
                to.copy_from_slice(&bars);
                continue;
            }
            let mut line = self.bars.clone();
            if at == moving {
                line.y[..self.width].fill(WHITE);
            }
            if let Some(row) = row {
                self.write(&mut line, &text, row, dot, left);
            }
            v210::pack(&line, to);
        }
        if self.alpha {
            self.ramp(keys);
        }
    }

    /// One row of the digits, white on black.
    fn write(&self, line: &mut Line, text: &[u8], row: usize, dot: usize, left: usize) {
        let end = (left + text.len() * 4 * dot).min(self.width);
        for at in left..end {
            let cell = (at - left) / dot;
            let bits = DIGITS[usize::from(text[cell / 4])][row];
            let is_lit = cell % 4 < 3 && bits >> (2 - cell % 4) & 1 == 1;
            line.y[at] = if is_lit { WHITE } else { BLACK };
            (line.cb[at / 2], line.cr[at / 2]) = (GREY, GREY);
        }
    }

    /// Keys from transparent at the left to opaque at the right.
    fn ramp(&self, keys: &mut [u8]) {
        let ramp: Vec<u16> = (0..self.width).map(|at| (at * 1023 / self.width.max(1)) as u16).collect();
        for line in keys.chunks_exact_mut(self.key.max(1)) {
            v210::pack_keys(&ramp, line);
        }
    }
}

/// Parts of a hertz in which a tone's frequency is counted.
const HERTZ_PARTS: f64 = 65_536.0;

/// A sine at `hertz` with `rate` samples per second, from sample `first` on: the same values in every call.
pub fn tone(hertz: f64, rate: Rational, amplitude: f32, first: u64, samples: &mut [f32]) {
    // Each sample is `step` of `turn` parts of a turn further. Floating-point numbers have no room for the phase of an
    // index of today.
    let turn = (u128::from(rate.numerator.unsigned_abs()) * HERTZ_PARTS as u128).max(1);
    let step = times(rate.denominator.unsigned_abs().into(), (hertz * HERTZ_PARTS) as u128, turn);
    let mut phase = times(first.into(), step, turn);
    for sample in samples {
        *sample = (phase as f64 / turn as f64 * std::f64::consts::TAU).sin() as f32 * amplitude;
        phase = (phase + step) % turn;
    }
}

/// `one * other % modulus`, of a modulus below 2^127. The product may be longer than 128 bits.
fn times(mut one: u128, other: u128, modulus: u128) -> u128 {
    let (mut sum, mut power) = (0, other % modulus);
    while one > 0 {
        if one & 1 == 1 {
            sum = (sum + power) % modulus;
        }
        power = power * 2 % modulus;
        one >>= 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_of_any_size_are_filled() {
        for (width, lines, alpha) in [(2, 1, true), (7, 3, false), (96, 54, true), (1920, 10, false)] {
            let pattern = Pattern::new(width, lines, alpha);
            let mut one = vec![0xaa; pattern.len()];
            let mut other = vec![0x55; pattern.len()];
            pattern.draw(u64::MAX, &mut one);
            pattern.draw(u64::MAX, &mut other);
            assert_eq!(one, other, "{width}x{lines}: every byte is written");
        }
    }

    #[test]
    fn pictures_differ_by_their_index() {
        let pattern = Pattern::new(96, 54, false);
        let (mut one, mut other) = (vec![0; pattern.len()], vec![0; pattern.len()]);
        pattern.draw(1000, &mut one);
        pattern.draw(1054, &mut other);
        assert_ne!(one, other, "the moving line is at the same place, and the digits are not");
    }

    #[test]
    fn a_tone_goes_on_where_it_was() {
        let (mut whole, mut part) = ([0.0; 96], [0.0; 48]);
        let rate = Rational::new(48_000, 1);
        tone(1000.0, rate, 0.5, 48_000 * 1_000_000_000, &mut whole);
        tone(1000.0, rate, 0.5, 48_000 * 1_000_000_000 + 48, &mut part);
        assert_eq!(whole[48..], part);
        assert!((whole[12] - 0.5).abs() < 1e-6 && whole[0].abs() < 1e-6, "{whole:?}");
    }

    /// The phase jumped after each whole number of samples below the rate, such as 47,952 of 47,952.05.
    #[test]
    fn a_tone_has_no_jumps_at_fractional_rates_and_frequencies() {
        for (numerator, denominator) in [(48_000_000, 1001), (48_000, 1), (44_100_000, 1001), (7, 3)] {
            let rate = Rational::new(numerator, denominator);
            let per_second = numerator as f64 / denominator as f64;
            for hertz in [440.0, 997.25, 1000.0].map(|hertz: f64| hertz.min(per_second / 2.5)) {
                let first = 47_000 + 48_000 * 1_800_000_000;
                let mut samples = vec![0.0; 100_000];
                // In batches, as they are written.
                for (at, batch) in samples.chunks_mut(480).enumerate() {
                    tone(hertz, rate, 1.0, first + at as u64 * 480, batch);
                }
                // Of a sine, each sample follows from the two before it.
                let factor = 2.0 * (std::f64::consts::TAU * hertz / per_second).cos();
                for (at, three) in samples.windows(3).enumerate() {
                    let next = factor * f64::from(three[1]) - f64::from(three[0]);
                    let error = (next - f64::from(three[2])).abs();
                    assert!(error < 2e-4, "{hertz} Hz at {rate}: sample {at} is {error} off");
                }
            }
        }
    }

    #[test]
    fn a_tone_at_any_rate_is_inside_its_level() {
        for (numerator, denominator) in [(1, i64::MAX), (i64::MAX, 1), (i64::MAX, i64::MAX - 1)] {
            let mut samples = [2.0; 16];
            tone(1e9, Rational::new(numerator, denominator), 0.5, u64::MAX, &mut samples);
            assert!(samples.iter().all(|sample| sample.abs() <= 0.5), "{samples:?}");
        }
    }
}
