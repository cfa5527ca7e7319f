//! Pictures for screens: v210 as 8-bit RGB (ITU-R BT.709, limited range).

use mxl::v210::{self, Line};

/// A picture of RGB or RGBA, 8 bits each.
#[derive(Debug)]
pub struct Picture {
    /// Pixels of a line.
    pub width: u32,
    /// Lines.
    pub lines: u32,
    /// Whether a pixel has four bytes.
    pub alpha: bool,
    /// The bytes, line after line.
    pub bytes: Vec<u8>,
}

impl Picture {
    /// Converts a payload of v210 or v210a. Lines that the payload lacks are black.
    pub fn new(payload: &[u8], width: u32, lines: u32, alpha: bool) -> Self {
        let (fill, key) = (v210::line_bytes(width) as usize, v210::key_line_bytes(width) as usize);
        let pixels = width as usize;
        let mut bytes = Vec::with_capacity(pixels * lines as usize * if alpha { 4 } else { 3 });
        let mut keys = vec![1023; pixels];
        for at in 0..lines as usize {
            let mut line = Line::new(pixels);
            if let Some(from) = payload.get(at * fill..(at + 1) * fill) {
                v210::unpack(from, &mut line);
            }
            let from = fill * lines as usize + at * key;
            if let Some(from) = payload.get(from..from + key).filter(|_| alpha) {
                v210::unpack_keys(from, &mut keys);
            }
            for (pixel, key) in keys.iter().enumerate() {
                bytes.extend(v210::rgb(line.y[pixel], line.cb[pixel / 2], line.cr[pixel / 2]));
                bytes.extend(alpha.then_some((key >> 2) as u8));
            }
        }
        Self { width, lines, alpha, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::Pattern;

    #[test]
    fn bars_have_their_colours() {
        let pattern = Pattern::new(96, 40, true);
        let mut payload = vec![0; pattern.len()];
        pattern.draw(0, &mut payload);
        let picture = Picture::new(&payload, 96, 40, true);
        let pixel = |x: usize| &picture.bytes[(39 * 96 + x) * 4..][..3];
        let near = |x, wanted: [u8; 3]| pixel(x).iter().zip(wanted).all(|(a, b)| a.abs_diff(b) <= 2);
        // Bars of 75 %: 191 of 255.
        assert!(near(6, [191, 191, 191]), "white: {:?}", pixel(6));
        assert!(near(18, [191, 191, 0]), "yellow: {:?}", pixel(18));
        assert!(near(42, [0, 191, 0]), "green: {:?}", pixel(42));
        assert!(near(66, [191, 0, 0]), "red: {:?}", pixel(66));
        assert!(near(78, [0, 0, 191]), "blue: {:?}", pixel(78));
        assert!(near(90, [0, 0, 0]), "black: {:?}", pixel(90));
        assert_eq!((picture.bytes[3], picture.bytes[95 * 4 + 3] > 250), (0, true), "the ramp of keys");
    }

    #[test]
    fn a_payload_that_is_too_short_is_black_below() {
        let picture = Picture::new(&[], 6, 2, false);
        assert_eq!(picture.bytes, [0; 6 * 2 * 3]);
    }
}
