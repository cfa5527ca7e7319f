//! Levels of audio, as bars of text and as a plot.

use std::fmt::Write as _;

use plotters::prelude::*;
use serde::Serialize;

/// The lowest level that is drawn, in decibels of full scale.
const FLOOR: f64 = -60.0;

/// The level of a channel, in decibels of full scale; `None` for silence.
#[derive(Debug, Serialize)]
pub struct Level {
    /// The channel's number.
    pub channel: u32,
    /// The largest sample.
    pub peak: Option<f64>,
    /// The root of the mean square.
    pub rms: Option<f64>,
}

impl Level {
    /// The level of these samples.
    pub fn of<T: Copy + Into<f64>>(channel: u32, samples: &[T]) -> Self {
        let values = || samples.iter().map(|&sample| sample.into());
        let peak = values().fold(0.0, |peak: f64, value: f64| peak.max(value.abs()));
        let square: f64 = values().map(|value| value * value).sum::<f64>() / samples.len().max(1) as f64;
        let decibels = |amplitude: f64| (amplitude > 0.0).then(|| 20.0 * amplitude.log10());
        Self { channel, peak: decibels(peak), rms: decibels(square.sqrt()) }
    }
}

/// A bar for each channel, of -60 to 0 dB.
pub fn bars(levels: &[Level]) -> String {
    const WIDTH: f64 = 40.0;
    let mut text = String::new();
    for Level { channel, peak, rms } in levels {
        let filled = rms.map_or(0.0, |rms| ((rms - FLOOR) / -FLOOR * WIDTH).clamp(0.0, WIDTH)) as usize;
        let number = |level: &Option<f64>| level.map_or("silent".into(), |level| format!("{level:.1} dB"));
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "{channel:>3}  {:<40}  {:>9}  peak {:>9}",
            "#".repeat(filled),
            number(rms),
            number(peak)
        );
    }
    text
}

/// An SVG with a bar from -60 dB to the RMS level of each channel, and a line at its peak. Readable on light and dark
/// pages.
///
/// # Errors
/// The drawing library's error.
pub fn plot(levels: &[Level]) -> Result<String, String> {
    let mut text = String::new();
    draw(levels, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw<'a>(
    levels: &[Level],
    text: &'a mut String,
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
    /// Pixels of a channel, and the minimum for all channels.
    const CHANNEL: u32 = 24;
    const LEAST: u32 = 240;
    const GREY: RGBColor = RGBColor(0x80, 0x80, 0x80);
    const GREEN: RGBColor = RGBColor(0x1a, 0x7f, 0x37);
    const RED: RGBColor = RGBColor(0xcf, 0x22, 0x2e);
    let count = levels.len() as u32;
    let width = 90 + count.saturating_mul(CHANNEL).max(LEAST);
    let root = SVGBackend::with_string(text, (width, 320)).into_drawing_area();
    let mut chart = ChartBuilder::on(&root)
        .caption(
            "Level, dB of full scale: RMS, and the peak as a line",
            ("sans-serif", 13).into_font().color(&GREY),
        )
        .margin(10)
        .x_label_area_size(28)
        .y_label_area_size(40)
        .build_cartesian_2d(0.0..f64::from(count.max(1)), FLOOR..6.0)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .axis_style(GREY)
        .bold_line_style(GREY.mix(0.35))
        .light_line_style(TRANSPARENT)
        .x_labels(count.clamp(1, 16) as usize + 1)
        .x_label_formatter(&|at| format!("{at:.0}"))
        .label_style(("sans-serif", 12).into_font().color(&GREY))
        .x_desc("channel")
        .draw()?;
    for (at, Level { peak, rms, .. }) in levels.iter().enumerate() {
        let (left, right) = (at as f64 + 0.15, at as f64 + 0.85);
        let clamped = |level: f64| level.clamp(FLOOR, 6.0);
        if let Some(rms) = rms.map(clamped) {
            chart.draw_series([Rectangle::new([(left, FLOOR), (right, rms)], GREEN.filled())])?;
        }
        if let Some(peak) = peak.map(clamped) {
            chart.draw_series([PathElement::new(vec![(left, peak), (right, peak)], RED.stroke_width(2))])?;
        }
    }
    root.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sine() -> Vec<f64> {
        (0..4800).map(|at| (f64::from(at) / 48.0 * std::f64::consts::TAU).sin()).collect()
    }

    #[test]
    fn a_full_sine_is_three_decibels_below_its_peak() {
        let found = Level::of(0, &sine());
        assert!(found.peak.unwrap().abs() < 0.01 && (found.rms.unwrap() + 3.01).abs() < 0.01, "{found:?}");
        assert_eq!(Level::of(0, &[0.0_f32; 4]).peak, None);
        assert!(bars(&[found, Level::of(1, &[0.0_f32])]).contains("silent"));
    }

    #[test]
    fn the_plot_has_a_bar_and_a_line_for_each_channel_that_is_not_silent() {
        let bars_of = |levels: &[Level]| {
            let svg = plot(levels).unwrap();
            (svg.matches("#1A7F37").count(), svg.matches("#CF222E").count())
        };
        assert_eq!(bars_of(&[]), (0, 0));
        assert_eq!(bars_of(&[Level::of(0, &sine()), Level::of(1, &[0.0]), Level::of(2, &[0.5])]), (2, 2));
        // Louder than full scale, and the maximum number of channels.
        let many: Vec<Level> = (0..64).map(|channel| Level::of(channel, &[100.0])).collect();
        assert_eq!(bars_of(&many), (64, 64));
    }
}
