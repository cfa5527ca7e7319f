//! `mxl-view`: a grain as PNG, or the levels of audio as bars or as a plot.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use mxl::{FlowDefinition, Format, GrainReader, SampleReader, Uri, Uuid, Wait};

use crate::failure::{self, Failure, Result};
use crate::levels::{self, Level};
use crate::output::{json, print};
use crate::picture::Picture;
use crate::place::{self, Place};

/// Shows a grain of a flow as a PNG, its ancillary data in hexadecimal, or the levels of audio as bars or as an SVG.
#[derive(Debug, clap::Parser)]
#[command(name = "mxl-view", version)]
struct Options {
    /// The flow: mxl:///PATH?id=ID, in place of --domain and --flow
    #[arg(value_name = "URI")]
    uri: Option<Uri>,
    /// The domain's directory.
    #[arg(short, long, value_name = "DIR", required_unless_present = "uri")]
    domain: Option<PathBuf>,
    /// The flow's id.
    #[arg(short, long, value_name = "ID", required_unless_present = "uri")]
    flow: Option<Uuid>,
    /// Index of the grain, or of the sample after the audio to show [default: the newest].
    #[arg(short, long)]
    index: Option<u64>,
    /// File for the picture [default: grain.png for video; the levels of audio are printed].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Longest wait for the grain or samples, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    wait: u64,
    /// Length of the audio, in milliseconds.
    #[arg(long, default_value_t = 50)]
    span: u64,
    /// Print the levels as JSON.
    #[arg(long)]
    json: bool,
}

/// The command line, for its man page and completions.
pub fn command() -> clap::Command {
    <Options as clap::CommandFactory>::command()
}

/// Runs the program.
pub fn main() -> ExitCode {
    failure::main("mxl-view", run)
}

fn run(options: &Options) -> Result<()> {
    let place = Place::of(options.domain.as_deref(), options.flow, options.uri.as_ref())?;
    let flow = place.flow()?;
    let domain = place::open("mxl-view", &place.domain)?;
    let definition = domain.definition(flow)?;
    match &definition.format {
        Format::Audio(audio) => {
            let reader = domain.read_samples(flow)?;
            let channels = if audio.word == 4 {
                read_levels::<f32>(&reader, options)?
            } else {
                read_levels::<f64>(&reader, options)?
            };
            if let Some(path) = &options.output {
                let svg = levels::plot(&channels).map_err(std::io::Error::other);
                let doing = format!("write {}", path.display());
                svg.and_then(|svg| std::fs::write(path, svg)).map_err(Failure::system(doing))?;
            }
            match (options.json, &options.output) {
                (true, _) => json(&channels),
                (false, None) => print(&levels::bars(&channels)),
                (false, Some(path)) => {
                    print(&format!("levels of {} channels in {}\n", channels.len(), path.display()))
                }
            }
        }
        Format::Video(_) | Format::Data(_) => grain(&domain.read_grains(flow)?, &definition, options),
    }
}

/// The newest available index, once there is one.
fn newest(head: impl Fn() -> u64, wait: Duration) -> u64 {
    let begin = std::time::Instant::now();
    while head() == 0 && begin.elapsed() < wait {
        std::thread::sleep(Duration::from_millis(1));
    }
    head()
}

fn grain(reader: &GrainReader, definition: &FlowDefinition, options: &Options) -> Result<()> {
    let wait = Duration::from_millis(options.wait);
    let index = options.index.unwrap_or_else(|| newest(|| reader.head(), wait));
    let grain = reader.read(index, Wait::For(wait))?;
    let (info, payload) = (grain.info(), grain.to_vec()?);
    let invalid = if info.is_invalid() { ", flagged invalid" } else { "" };
    let Format::Video(video) = &definition.format else {
        return print(&format!("grain {index}{invalid}\n{}", hexadecimal(&payload)));
    };
    let picture = Picture::new(&payload, video.width, video.lines(), video.alpha);
    let path = options.output.as_deref().unwrap_or(Path::new("grain.png"));
    write_png(path, &picture)?;
    let what = if video.lines() == video.height { "frame" } else { "field" };
    print(&format!(
        "grain {index}{invalid}: {what} of {}x{} in {}\n",
        picture.width,
        picture.lines,
        path.display()
    ))
}

fn write_png(path: &Path, picture: &Picture) -> Result<()> {
    let doing = format!("write {}", path.display());
    let file = File::create(path).map_err(Failure::system(doing.clone()))?;
    let mut file = BufWriter::new(file);
    let mut encoder = png::Encoder::new(&mut file, picture.width, picture.lines);
    encoder.set_color(if picture.alpha { png::ColorType::Rgba } else { png::ColorType::Rgb });
    encoder.set_depth(png::BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(&picture.bytes)?;
        writer.finish()
    });
    written.map_err(std::io::Error::other).and_then(|()| file.flush()).map_err(Failure::system(doing))
}

/// Lines of sixteen bytes; trailing zeros are omitted.
fn hexadecimal(bytes: &[u8]) -> String {
    let len = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let mut text = String::new();
    for (at, line) in bytes[..len].chunks(16).enumerate() {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{:04x} ", at * 16);
        for byte in line {
            let _ = write!(text, " {byte:02x}");
        }
        text.push('\n');
    }
    text
}

fn read_levels<T: mxl::Sample + Into<f64>>(reader: &SampleReader, options: &Options) -> Result<Vec<Level>> {
    let rate = reader.rate();
    let count = rate.numerator as u128 * u128::from(options.span) / (1000 * rate.denominator as u128);
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    let wait = Duration::from_millis(options.wait);
    let index = options.index.unwrap_or_else(|| newest(|| reader.head(), wait));
    let count = count.clamp(1, reader.max_read()).min(index.max(1));
    let samples = reader.read(index, count, Wait::For(wait))?;
    let mut buffer = vec![T::default(); samples.len()];
    let mut levels = Vec::new();
    for channel in 0..reader.channels() {
        samples.read_channel(channel, &mut buffer)?;
        levels.push(Level::of(channel, &buffer));
    }
    if !samples.still_valid() {
        return Err(Failure::Usage(
            "the samples were overwritten while they were read: use a shorter --span".into(),
        ));
    }
    Ok(levels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_shown_up_to_its_last_byte() {
        assert_eq!(hexadecimal(&[1, 0, 0xff, 0, 0]), "0000  01 00 ff\n");
        assert_eq!(hexadecimal(&[0; 32]), "");
    }
}
