//! Plots as SVG, for light and for dark pages.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::data::{Benches, Series};

/// Colours.
#[derive(Clone, Copy)]
pub struct Theme {
    /// The name in file names.
    pub name: &'static str,
    text: RGBColor,
    grid: RGBColor,
    winning: RGBColor,
    /// The colour of bars that are worse than the peer.
    pub losing: RGBColor,
    series: [RGBColor; 5],
}

/// Both themes. The background is the page's.
pub const THEMES: [Theme; 2] = [
    Theme {
        name: "light",
        text: RGBColor(0x1f, 0x23, 0x28),
        grid: RGBColor(0xd1, 0xd9, 0xe0),
        winning: RGBColor(0x1a, 0x7f, 0x37),
        losing: RGBColor(0xcf, 0x22, 0x2e),
        series: [
            RGBColor(0x09, 0x69, 0xda),
            RGBColor(0xbc, 0x4c, 0x00),
            RGBColor(0x82, 0x50, 0xdf),
            RGBColor(0x1a, 0x7f, 0x37),
            RGBColor(0xcf, 0x22, 0x2e),
        ],
    },
    Theme {
        name: "dark",
        text: RGBColor(0xe6, 0xed, 0xf3),
        grid: RGBColor(0x3d, 0x44, 0x4d),
        winning: RGBColor(0x3f, 0xb9, 0x50),
        losing: RGBColor(0xf8, 0x51, 0x49),
        series: [
            RGBColor(0x44, 0x93, 0xf8),
            RGBColor(0xf0, 0x88, 0x3e),
            RGBColor(0xab, 0x7d, 0xf8),
            RGBColor(0x3f, 0xb9, 0x50),
            RGBColor(0xf8, 0x51, 0x49),
        ],
    },
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn told(error: impl std::fmt::Display) -> String {
    format!("a plot: {error}")
}

fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Result<(), String>) -> Result<String, String> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    draw(&area)?;
    area.present().map_err(told)?;
    drop(area);
    Ok(text)
}

/// A bar for each row with a peer, to the right of 1 if ours is better. The scale is logarithmic, from 1/16 to 16.
///
/// # Errors
/// The error of `plotters`.
pub fn ratios(benches: &Benches, theme: Theme) -> Result<String, String> {
    const LABEL: i32 = 430;
    const WIDTH: i32 = 900;
    const ROW: i32 = 18;
    const TOP: i32 = 30;
    let rows = benches.rows.iter().filter(|row| row.sweep().is_none());
    let rows: Vec<_> = rows.filter_map(|row| Some((row, row.advantage()?))).collect();
    let height = TOP + ROW * rows.len() as i32 + 10;
    let x = |times: f64| {
        LABEL + (f64::from(WIDTH - LABEL - 60) * (times.log2().clamp(-4.0, 4.0) + 4.0) / 8.0).round() as i32
    };
    let font = |across| ("sans-serif", 12).into_font().color(&theme.text).pos(Pos::new(across, VPos::Center));
    svg((WIDTH as u32, height as u32), |area| {
        for times in [0.0625, 0.25, 1.0, 4.0, 16.0] {
            let at = x(times);
            area.draw(&PathElement::new(vec![(at, TOP), (at, height - 5)], theme.grid)).map_err(told)?;
            area.draw(&Text::new(times.to_string(), (at, TOP - 12), font(HPos::Center))).map_err(told)?;
        }
        for (place, (row, times)) in rows.iter().enumerate() {
            let (top, middle) = (TOP + ROW * place as i32, TOP + ROW * place as i32 + ROW / 2);
            let (from, to) = (x(1.0).min(x(*times)), x(1.0).max(x(*times)));
            let colour = if *times < 1.0 { theme.losing } else { theme.winning };
            let name = format!("{}, {}", row.title, row.against);
            area.draw(&Text::new(name, (LABEL - 8, middle), font(HPos::Right))).map_err(told)?;
            let bar = [(from, top + 3), (to.max(from + 1), top + ROW - 2)];
            area.draw(&Rectangle::new(bar, colour.filled())).map_err(told)?;
            area.draw(&Text::new(format!("{times:.2}"), (to + 5, middle), font(HPos::Left))).map_err(told)?;
        }
        Ok(())
    })
}

/// The horizontal axis of a plot.
#[derive(Clone, Copy)]
pub enum Over {
    /// Bytes of a message.
    Sizes,
    /// Numbers of something, up to thousands.
    Numbers,
    /// Small numbers of something.
    Few,
}

/// The range of an axis, with room at both ends.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) =
        values.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if high == 0.0 { 0.5..2.0 } else { low / 1.3..high * 1.3 }
}

/// A line for each series, both scales logarithmic.
///
/// # Errors
/// The error of `plotters`.
pub fn lines(title: &str, series: &[Series], over: Over, theme: Theme) -> Result<String, String> {
    let points = || series.iter().flat_map(|(_, points)| points);
    let (across, up) = (range(points().map(|point| point.0)), range(points().map(|point| point.1)));
    let (base, label): (f64, fn(f64) -> String) = match over {
        Over::Sizes => (2.0, bytes),
        Over::Numbers => (10.0, |value| format!("{value:.0}")),
        Over::Few => (2.0, |value| format!("{value:.0}")),
    };
    let font = |size: i32| ("sans-serif", size).into_font().color(&theme.text);
    svg((720, 360), |area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, font(14))
            .margin(12)
            .x_label_area_size(28)
            .y_label_area_size(60)
            .build_cartesian_2d(across.log_scale().base(base), up.log_scale())
            .map_err(told)?;
        chart
            .configure_mesh()
            .axis_style(theme.grid)
            .bold_line_style(theme.grid)
            .light_line_style(TRANSPARENT)
            .label_style(font(12))
            .x_label_formatter(&|value| label(*value))
            .y_label_formatter(&|value| short(*value))
            .draw()
            .map_err(told)?;
        for (nth, (name, points)) in series.iter().enumerate() {
            let style = theme.series[nth % theme.series.len()].stroke_width(2);
            let line = chart.draw_series(LineSeries::new(points.iter().copied(), style)).map_err(told)?;
            line.label(name).legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font(font(12))
            .draw()
            .map_err(told)
    })
}

fn short(value: f64) -> String {
    if value >= 1.0 { format!("{value:.0}") } else { format!("{value:.4}").trim_end_matches('0').to_string() }
}

fn bytes(value: f64) -> String {
    match value {
        value if value >= 1_048_576.0 => format!("{:.0} MiB", value / 1_048_576.0),
        value if value >= 1024.0 => format!("{:.0} KiB", value / 1024.0),
        value => format!("{value:.0} B"),
    }
}
