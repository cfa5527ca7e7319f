//! Plots the rows: bandwidth and latency by block size, with a line for each operation and batch.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::figures::Row;
use crate::failure::{Failure, Result};

/// Size of the whole picture in pixels. The panels are one above the other.
const SIZE: (u32, u32) = (760, 840);
/// Line colours for light and dark pages; the background is the page's.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x09, 0x69, 0xda),
    RGBColor(0xbc, 0x4c, 0x00),
    RGBColor(0x82, 0x50, 0xdf),
    RGBColor(0x1a, 0x7f, 0x37),
    RGBColor(0xcf, 0x22, 0x2e),
    RGBColor(0x9a, 0x67, 0x00),
];
/// A grey for text, axes and grid that is visible on both.
const GREY: RGBColor = RGBColor(0x80, 0x80, 0x80);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// A name, and points in the order of their sizes.
type PlotLine = (String, Vec<(f64, f64)>);

/// Checks that the picture can be written before anything is measured. Leaves no new file behind, because the run may
/// fail or be killed.
///
/// # Errors
/// [`Failure::System`] with the file's name.
pub(super) fn try_out(file: &Path) -> Result<()> {
    let open = |is_new| std::fs::OpenOptions::new().append(true).create(true).create_new(is_new).open(file);
    let tried = match open(true) {
        Ok(_) => std::fs::remove_file(file),
        Err(_) => open(false).map(drop),
    };
    tried.map_err(|error| failed(file, error))
}

/// Writes the picture of `rows` to `file`.
///
/// # Errors
/// [`Failure::System`] with the file's name.
pub(super) fn write(file: &Path, rows: &[Row]) -> Result<()> {
    let picture = svg(rows).map_err(std::io::Error::other);
    picture.and_then(|text| std::fs::write(file, text)).map_err(|error| failed(file, error))
}

fn failed(file: &Path, error: std::io::Error) -> Failure {
    Failure::system(format!("writing the plot to {}", file.display()), error)
}

fn svg(rows: &[Row]) -> std::result::Result<String, String> {
    let mut text = String::new();
    draw(rows, &mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw<'a>(rows: &[Row], text: &'a mut String) -> std::result::Result<(), Failed<'a>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    let (above, below) = root.split_vertically(SIZE.1 / 2);
    panel(&above, "Bandwidth, GB/s, by size of block", &lines(rows, Row::bandwidth))?;
    panel(&below, "Median time of a transfer, us, by size of block", &lines(rows, Row::median))?;
    root.present()
}

/// A line for each operation and batch, in the order of the rows.
fn lines(rows: &[Row], value: fn(&Row) -> f64) -> Vec<PlotLine> {
    let mut lines: Vec<PlotLine> = Vec::new();
    for row in rows {
        let (name, point) = (row.series(), (row.block() as f64, value(row)));
        match lines.iter_mut().find(|line| line.0 == name) {
            Some(line) => line.1.push(point),
            None => lines.push((name, vec![point])),
        }
    }
    for (_, points) in &mut lines {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

/// The range of an axis, with room at both ends. Logarithms need positive values; a clock without progress would
/// produce 0.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) =
        values.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    let low = low.clamp(1e-3, f64::MAX / 4.0).min(high.max(1e-3));
    low / 1.4..high.max(low) * 1.4
}

fn panel<'a>(area: &Area<'a>, title: &str, lines: &[PlotLine]) -> std::result::Result<(), Failed<'a>> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let (across, up) = (range(points().map(|point| point.0)), range(points().map(|point| point.1)));
    let lowest = up.start;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16).into_font().color(&GREY))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(64)
        .build_cartesian_2d(across.log_scale().base(2.0), up.log_scale())?;
    chart
        .configure_mesh()
        .axis_style(GREY)
        .bold_line_style(GREY.mix(0.35))
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 12).into_font().color(&GREY))
        .x_label_formatter(&|size| bytes(*size))
        .draw()?;
    for (nth, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        let points = points.iter().map(|&(size, value)| (size, value.max(lowest)));
        let line = LineSeries::new(points, colour.stroke_width(2)).point_size(3);
        let key = move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], colour.stroke_width(2));
        chart.draw_series(line)?.label(name).legend(key);
    }
    let labels = ("sans-serif", 12).into_font().color(&GREY);
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).label_font(labels).draw()
}

fn bytes(size: f64) -> String {
    match size {
        size if size >= 1_048_576.0 => format!("{:.4} MiB", size / 1_048_576.0).replace(".0000", ""),
        size if size >= 1024.0 => format!("{:.2} KiB", size / 1024.0).replace(".00", ""),
        size => format!("{size:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::figures::Figures;
    use super::*;

    fn row(is_write: bool, size: u64, batch: u64, us: u64) -> Row {
        let mut figures = Figures::default();
        figures.add(Duration::ZERO, Duration::ZERO, Duration::from_micros(us));
        figures.row(is_write, size, batch, 1)
    }

    /// The points of each line, in the order of the picture.
    fn polylines(svg: &str) -> Vec<Vec<(i32, i32)>> {
        let lines = svg.split("<polyline ").skip(1).filter(|line| line.contains("stroke-width=\"2\""));
        let lines = lines.map(|line| line.split("points=\"").nth(1).unwrap().split('"').next().unwrap());
        let number = |text: &str| text.parse().unwrap();
        let point = |text: &str| text.split_once(',').map(|(x, y)| (number(x), number(y))).unwrap();
        lines.map(|line| line.split_whitespace().map(point).collect()).collect()
    }

    #[test]
    fn each_way_and_batch_is_a_line_in_both_panels_from_small_to_large() {
        let rows = [
            row(true, 1 << 20, 1, 100),
            row(true, 4096, 1, 10),
            row(false, 4096, 1, 20),
            row(false, 1 << 20, 1, 20),
        ];
        let svg = svg(&rows).unwrap();
        let lines: Vec<_> = polylines(&svg).into_iter().filter(|line| line[1].0 - line[0].0 > 100).collect();
        assert_eq!(lines.len(), 4, "{svg}");
        let (write, read, write_time, read_time) = (&lines[0], &lines[1], &lines[2], &lines[3]);
        // Pixels count downwards. 4 KiB in 10 us are 0.41 GB/s, 1 MiB in 100 us are 10.5.
        assert!(write[0].0 < write[1].0 && write[0].1 > write[1].1, "{write:?}");
        assert!(read[0].1 > write[0].1 && read[1].1 < write[1].1, "{read:?} {write:?}");
        assert_eq!(read_time[0].1, read_time[1].1);
        assert!(write_time[0].1 > read_time[0].1 && write_time[1].1 < read_time[1].1, "{write_time:?}");
        for text in ["write, 1 block", "read, 1 block", "GB/s", "us, by size", "4 KiB", "1 MiB"] {
            assert!(svg.contains(text), "no {text:?} in {svg}");
        }
    }

    #[test]
    fn one_point_and_a_time_of_zero_are_drawn() {
        let svg = svg(&[row(true, 64, 1, 0)]).unwrap();
        assert!(svg.starts_with("<svg ") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.contains("<circle"), "{svg}");
    }

    #[test]
    fn sizes_are_said_in_the_largest_unit() {
        assert_eq!([64.0, 4096.0, 1536.0, 67_108_864.0].map(bytes), ["64 B", "4 KiB", "1.50 KiB", "64 MiB"]);
    }
}
