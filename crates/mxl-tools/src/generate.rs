//! `mxl-generate`: a test pattern or a tone, written at the times of a camera or a microphone.

use std::path::PathBuf;
use std::process::ExitCode;

use mxl::definition::{Audio, Interlace};
use mxl::{BatchHints, Domain, FlowDefinition, Format, GroupHint, Rational, Uuid, time};
use ofi_progress_bar::Progress;

use crate::failure::{self, Failure, Result};
use crate::output::print;
use crate::pattern::{Pattern, tone};
use crate::place;

/// Writes a test pattern with the index burnt in, or a tone, into a flow of the Media eXchange Layer.
#[derive(Debug, clap::Parser)]
#[command(name = "mxl-generate", version)]
struct Options {
    /// The domain's directory.
    #[arg(short, long, value_name = "DIR")]
    domain: PathBuf,
    /// Create the directory if it does not exist.
    #[arg(long)]
    create: bool,
    /// The flow's id [default: random].
    #[arg(short, long, value_name = "ID")]
    flow: Option<Uuid>,
    /// The flow's label.
    #[arg(long, default_value = "mxl-generate")]
    label: String,
    /// End after this many grains, or batches of audio [default: never].
    #[arg(short = 'n', long, value_name = "COUNT")]
    count: Option<u64>,
    /// Write this many grains or batches late, as a slow device would.
    #[arg(long, default_value_t = 0)]
    behind: u64,
    /// Show no progress on standard error, where it is a terminal.
    #[arg(short, long)]
    quiet: bool,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Colour bars, `video/v210`.
    Video {
        /// Pixels of a line.
        #[arg(long, default_value_t = 1920)]
        width: u32,
        /// Lines of a frame.
        #[arg(long, default_value_t = 1080)]
        height: u32,
        /// Frames per second: a number, or a fraction such as 60000/1001.
        #[arg(long, default_value = "60000/1001", value_parser = rate)]
        rate: Rational,
        /// Write fields, at 25 or 30000/1001 frames per second.
        #[arg(long)]
        interlaced: bool,
        /// Add a key plane: `video/v210a`.
        #[arg(long)]
        alpha: bool,
        /// Lines to commit at once [default: the whole grain].
        #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(u16).range(1..))]
        slices: Option<u16>,
    },
    /// A sine in each channel, `audio/float32`: of four channels each is one octave above the previous one, and the
    /// fifth begins again. No tone is above two fifths of the rate.
    Audio {
        /// Channels.
        #[arg(long, default_value_t = 2)]
        channels: u32,
        /// Samples per second.
        #[arg(long, default_value = "48000", value_parser = rate)]
        rate: Rational,
        /// Frequency of the first channel's tone, in hertz.
        #[arg(long, default_value_t = 440.0)]
        hertz: f64,
        /// Level, in decibels below full scale.
        #[arg(long, default_value_t = 18.0)]
        below: f32,
        /// Samples of a batch [default: 10 ms of them].
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        batch: Option<u32>,
    },
}

fn rate(text: &str) -> std::result::Result<Rational, String> {
    let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
    let number = |part: &str| part.parse().map_err(|error| format!("{part}: {error}"));
    let rate = Rational::new(number(numerator)?, number(denominator)?);
    if rate.is_positive() { Ok(rate.reduced()) } else { Err(String::from("a rate must be above 0")) }
}

/// The command line, for its man page and completions.
pub fn command() -> clap::Command {
    <Options as clap::CommandFactory>::command()
}

/// Runs the program.
pub fn main() -> ExitCode {
    failure::main("mxl-generate", run)
}

fn run(options: &Options) -> Result<()> {
    if options.create {
        std::fs::create_dir_all(&options.domain)
            .map_err(Failure::system(format!("create {}", options.domain.display())))?;
    } else if !options.domain.is_dir() {
        let missing = options.domain.display();
        return Err(Failure::Usage(format!(
            "--domain {missing}: no such directory; create it with --create"
        )));
    }
    let domain = place::open("mxl-generate", &options.domain)?;
    match options.what {
        What::Video { width, height, rate, interlaced, alpha, slices } => {
            let mut definition = FlowDefinition::video(&options.label, width, height, rate)?;
            if let Format::Video(video) = &mut definition.format {
                video.interlace = if interlaced { Interlace::TopFirst } else { Interlace::Progressive };
                video.alpha = alpha;
            }
            video(&domain, &named(definition, options, "Video"), slices, options)
        }
        What::Audio { channels, rate, hertz, below, batch } => {
            if !(hertz > 0.0 && hertz.is_finite()) {
                return Err(Failure::Usage(format!("--hertz {hertz}: must be above 0")));
            }
            let definition = FlowDefinition::audio(&options.label, channels, rate)?;
            let amplitude = 10_f32.powf(-below.abs() / 20.0);
            audio(&domain, &named(definition, options, "Audio"), (hertz, amplitude), batch, options)
        }
    }
}

fn named(mut definition: FlowDefinition, options: &Options, role: &str) -> FlowDefinition {
    definition.id = options.flow.unwrap_or(definition.id);
    let group = options.label.replace(':', " ");
    definition.group_hints = vec![GroupHint { group, role: role.into(), scope: None }];
    definition
}

/// The indices to write, each at its start.
fn indices(rate: Rational, step: u64, options: &Options) -> impl Iterator<Item = u64> {
    let now = time::current_index(rate).unwrap_or(0);
    let first = (now / step + 1) * step;
    let behind = options.behind.saturating_mul(step);
    (0..options.count.unwrap_or(u64::MAX)).map(move |at| {
        let index = first + at * step;
        if let Some(when) = time::index_to_timestamp(rate, index) {
            time::sleep_until(when);
        }
        index.saturating_sub(behind)
    })
}

fn video(domain: &Domain, definition: &FlowDefinition, slices: Option<u16>, options: &Options) -> Result<()> {
    let Format::Video(video) = &definition.format else { return Ok(()) };
    definition.check()?;
    let hints =
        slices.map_or_else(BatchHints::default, |slices| BatchHints::new(slices.into(), slices.into()));
    let writer = domain.create_grains(definition, &hints)?.writer;
    print(&format!("{}\n", definition.id))?;
    let pattern = Pattern::new(video.width, video.lines(), video.alpha);
    let mut picture = vec![0; pattern.len()];
    let progress = Progress::steps(options.quiet, options.count);
    progress.begin("grains");
    for index in indices(writer.rate(), 1, options) {
        pattern.draw(index, &mut picture);
        let mut grain = writer.open(index)?;
        grain.write(0, &picture)?;
        let total = grain.info().total_slices;
        if let Some(slices) = slices {
            for valid in (slices..total).step_by(slices.into()) {
                grain.commit_slices(valid)?;
            }
        }
        grain.commit()?;
        progress.done();
    }
    Ok(())
}

fn audio(
    domain: &Domain,
    definition: &FlowDefinition,
    (hertz, amplitude): (f64, f32),
    batch: Option<u32>,
    options: &Options,
) -> Result<()> {
    let Format::Audio(Audio { rate, channels, .. }) = definition.format else { return Ok(()) };
    let per_second = rate.numerator as f64 / rate.denominator as f64;
    let batch = batch.unwrap_or((per_second / 100.0).max(1.0) as u32);
    let mut writer = domain.create_samples(definition, &BatchHints::new(batch, batch))?.writer;
    print(&format!("{}\n", definition.id))?;
    let mut samples = vec![0.0; batch as usize];
    let progress = Progress::steps(options.quiet, options.count);
    progress.begin("batches");
    for index in indices(rate, batch.into(), options) {
        let mut open = writer.open(index, batch.into())?;
        for channel in 0..channels {
            // The limit below keeps the tone under half of the sampling rate.
            let octave = f64::from(channel % 4).exp2();
            let first = index.saturating_sub(batch.into());
            tone((hertz * octave).min(per_second / 2.5), rate, amplitude, first, &mut samples);
            open.write_channel(channel, &samples)?;
        }
        open.commit()?;
        progress.done();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::rate;
    use mxl::Rational;

    #[test]
    fn rates_are_numbers_or_fractions_above_zero() {
        assert_eq!(rate("50"), Ok(Rational::new(50, 1)));
        assert_eq!(rate("120000/2002"), Ok(Rational::new(60000, 1001)));
        for bad in ["0", "-1", "1/0", "", "a", "1/2/3"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
