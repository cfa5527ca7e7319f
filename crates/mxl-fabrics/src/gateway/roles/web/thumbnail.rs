//! Small pictures of video flows. They are made when somebody asks, at most once a second for each flow.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mxl::definition::Video;
use mxl::v210::{self, Line};
use mxl::{Domain, Format, GrainWindow, Uuid, Wait};

/// Maximum width and height of a thumbnail, in pixels.
const SIZE: (usize, usize) = (192, 144);
/// Minimum time between two thumbnails of a flow.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum flows whose last thumbnail is kept: about 30 kB each.
const MAX_KEPT: usize = 1024;

/// The last thumbnails.
#[derive(Debug, Default)]
pub struct Thumbnails(HashMap<Uuid, (Instant, Result<Vec<u8>, String>)>);

impl Thumbnails {
    /// The newest picture of a flow as PNG.
    ///
    /// # Errors
    /// Why there is none.
    pub fn png(&mut self, domain: &Domain, id: Uuid) -> Result<Vec<u8>, String> {
        let now = Instant::now();
        if let Some((made, picture)) = self.0.get(&id)
            && now - *made < INTERVAL
        {
            return picture.clone();
        }
        if self.0.len() >= MAX_KEPT {
            self.0.retain(|_, (made, _)| now - *made < INTERVAL);
        }
        let picture = make(domain, id);
        if self.0.len() < MAX_KEPT {
            self.0.insert(id, (now, picture.clone()));
        }
        picture
    }
}

fn make(domain: &Domain, id: Uuid) -> Result<Vec<u8>, String> {
    let failed = |error: mxl::Error| error.to_string();
    let definition = domain.definition(id).map_err(failed)?;
    let Format::Video(video) = definition.format else { return Err("it is no video".into()) };
    let mut reader = domain.read_grain_window(id, 1).map_err(failed)?;
    let picture = Picture::read(&mut reader, &video)?;
    picture.to_png().map_err(|error| error.to_string())
}

/// A picture of RGB, 8 bits each.
#[derive(Debug)]
struct Picture {
    width: usize,
    height: usize,
    bytes: Vec<u8>,
}

impl Picture {
    /// The newest whole picture of a flow, scaled down: each pixel is the mean of a part of a line.
    fn read(reader: &mut GrainWindow, video: &Video) -> Result<Self, String> {
        let (from_width, from_lines) = (video.width as usize, video.lines() as usize);
        let scale = from_width.div_ceil(SIZE.0).max((video.height as usize).div_ceil(SIZE.1)).max(1);
        let (width, height) = ((from_width / scale).max(1), (video.height as usize / scale).max(1));
        let head = reader.head();
        // The newest one may have been committed in part.
        let newest = [head, head.saturating_sub(1)]
            .into_iter()
            .find(|index| reader.read(*index, Wait::Not).is_ok_and(|grain| !grain.info().is_invalid()));
        let newest = newest.ok_or("it has no whole and valid picture now")?;
        let grain = reader.read(newest, Wait::Not).map_err(|error| error.to_string())?;
        let mut line = Line::new(from_width);
        let mut packed = vec![0; v210::line_bytes(video.width) as usize];
        let mut bytes = Vec::with_capacity(width * height * 3);
        for row in 0..height {
            let at = (row * 2 + 1) * from_lines / (height * 2);
            grain.read_into(at * packed.len(), &mut packed).map_err(|error| error.to_string())?;
            v210::unpack(&packed, &mut line);
            for column in 0..width {
                let [y, cb, cr] = mean(&line, column * from_width / width, scale);
                bytes.extend(v210::rgb(y, cb, cr));
            }
        }
        if !grain.still_valid() {
            return Err("its picture was overwritten while it was read".into());
        }
        Ok(Self { width, height, bytes })
    }

    fn to_png(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.bytes)?;
        writer.finish()?;
        Ok(file)
    }
}

/// The mean of `count` pixels of a line, at most as many as it has.
fn mean(line: &Line, from: usize, count: usize) -> [u16; 3] {
    let of = |samples: &[u16], from: usize, count: usize| {
        let samples = samples.get(from..).unwrap_or_default();
        let samples = &samples[..count.clamp(1, samples.len().max(1)).min(samples.len())];
        let sum: u32 = samples.iter().map(|sample| u32::from(*sample)).sum();
        (sum / samples.len().max(1) as u32) as u16
    };
    [of(&line.y, from, count), of(&line.cb, from / 2, count / 2), of(&line.cr, from / 2, count / 2)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_taken_of_what_is_there() {
        let mut line = Line::new(12);
        line.y = (0..12).map(|at| at * 10).collect();
        assert_eq!(mean(&line, 2, 4), [35, 512, 512]);
        assert_eq!(mean(&line, 11, 4)[0], 110);
        assert_eq!(mean(&line, 12, 4), [0, 0, 0]);
        assert_eq!(mean(&line, 0, 1), [0, 512, 512]);
    }

    #[test]
    fn a_picture_becomes_a_png() {
        let picture = Picture { width: 3, height: 2, bytes: (0..18).collect() };
        let png = picture.to_png().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        assert_eq!((info.width, info.height, bytes), (3, 2, (0..18).collect()));
    }
}
