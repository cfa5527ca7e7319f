//! Plots as SVG, for light and for dark pages.

use std::fmt::Write;

use super::data::{Benches, Series};

/// Colours.
#[derive(Clone, Copy)]
pub struct Theme {
    /// In file names.
    pub name: &'static str,
    text: &'static str,
    grid: &'static str,
    winning: &'static str,
    /// Of bars that are worse than the peer.
    pub losing: &'static str,
    series: [&'static str; 5],
}

/// Both of them. The background is the page's.
pub const THEMES: [Theme; 2] = [
    Theme {
        name: "light",
        text: "#1f2328",
        grid: "#d1d9e0",
        winning: "#1a7f37",
        losing: "#cf222e",
        series: ["#0969da", "#bc4c00", "#8250df", "#1a7f37", "#cf222e"],
    },
    Theme {
        name: "dark",
        text: "#e6edf3",
        grid: "#3d444d",
        winning: "#3fb950",
        losing: "#f85149",
        series: ["#4493f8", "#f0883e", "#ab7df8", "#3fb950", "#f85149"],
    },
];

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn begin(width: f64, height: f64, theme: Theme) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"{}\">\n",
        theme.text
    )
}

/// A bar for each line with a peer, to the right of 1 where ours is better. The scale is logarithmic, from 1/16 to 16.
pub fn ratios(benches: &Benches, theme: Theme) -> String {
    const LABEL: f64 = 430.0;
    const WIDTH: f64 = 900.0;
    const ROW: f64 = 18.0;
    const TOP: f64 = 30.0;
    let rows: Vec<_> = benches
        .rows
        .iter()
        .filter(|row| row.sweep().is_none())
        .filter_map(|row| Some((row, row.advantage()?)))
        .collect();
    let height = TOP + ROW * rows.len() as f64 + 10.0;
    let x = |times: f64| LABEL + (WIDTH - LABEL - 60.0) * (times.log2().clamp(-4.0, 4.0) + 4.0) / 8.0;
    let mut svg = begin(WIDTH, height, theme);
    for times in [0.0625, 0.25, 1.0, 4.0, 16.0] {
        let (at, end) = (x(times), height - 5.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{end:.1}\" stroke=\"{}\"/>",
            theme.grid
        );
        let _ =
            writeln!(svg, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{times}</text>", TOP - 8.0);
    }
    for (place, (row, times)) in rows.iter().enumerate() {
        let y = TOP + ROW * place as f64;
        let (from, to) = (x(1.0).min(x(*times)), x(1.0).max(x(*times)));
        let colour = if *times < 1.0 { theme.losing } else { theme.winning };
        let name = escaped(&format!("{}, {}", row.title, row.against));
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            LABEL - 8.0,
            y + 13.0
        );
        let _ = writeln!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
            y + 3.0,
            (to - from).max(1.0),
            ROW - 5.0
        );
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{times:.2}</text>", to + 5.0, y + 13.0);
    }
    svg + "</svg>\n"
}

/// The powers of `base` around the values, one below and one above.
fn scale(values: impl Iterator<Item = f64>, base: f64) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if high == 0.0 {
        return (1.0, base);
    }
    let low = base.powf(low.log(base).floor());
    (low, base.powf(high.log(base).ceil()).max(low * base))
}

/// What a plot goes over.
#[derive(Clone, Copy)]
pub enum Over {
    /// Bytes of a message.
    Sizes,
    /// How many there are of something, up to thousands.
    Numbers,
    /// How many there are of something, a few.
    Few,
}

/// A line for each series, both scales logarithmic.
pub fn lines(title: &str, series: &[Series], over: Over, theme: Theme) -> String {
    const WIDTH: f64 = 720.0;
    const HEIGHT: f64 = 360.0;
    const LEFT: f64 = 60.0;
    const RIGHT: f64 = 100.0;
    const TOP: f64 = 40.0;
    const BOTTOM: f64 = 40.0;
    let points = || series.iter().flat_map(|(_, points)| points);
    let (base, step, label): (f64, f64, fn(f64) -> String) = match over {
        Over::Sizes => (2.0, 16.0, bytes),
        Over::Numbers => (10.0, 10.0, |value| format!("{value:.0}")),
        Over::Few => (2.0, 2.0, |value| format!("{value:.0}")),
    };
    let (x_low, x_high) = scale(points().map(|point| point.0), base);
    let (y_low, y_high) = scale(points().map(|point| point.1), 10.0);
    let share = |value: f64, low: f64, high: f64| (value / low).ln() / (high / low).ln();
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * share(value, x_low, x_high);
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share(value, y_low, y_high);
    let mut svg = begin(WIDTH, HEIGHT, theme);
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}</text>", escaped(title));
    let mut tick = y_low;
    while tick <= y_high * 1.01 {
        let (at, end) = (y(tick), WIDTH - RIGHT);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{}\"/>",
            theme.grid
        );
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            short(tick)
        );
        tick *= 10.0;
    }
    let mut tick = x_low;
    while tick <= x_high * 1.01 {
        let at = HEIGHT - BOTTOM + 18.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{at}\" text-anchor=\"middle\">{}</text>",
            x(tick),
            label(tick)
        );
        tick *= step;
    }
    for (place, (name, points)) in series.iter().enumerate() {
        let Some(last) = points.last() else { continue };
        let colour = theme.series[place % theme.series.len()];
        let line: Vec<String> =
            points.iter().map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        let (at_x, at_y) = (x(last.0) + 8.0, y(last.1) + 4.0);
        let _ =
            writeln!(svg, "<text x=\"{at_x:.1}\" y=\"{at_y:.1}\" fill=\"{colour}\">{}</text>", escaped(name));
    }
    svg + "</svg>\n"
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
