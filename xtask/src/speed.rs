//! The README's figure: the ratios of its table as bars, so that table and figure agree. The table's rows are lines of
//! the performance report.

use std::fmt::Write;

/// The table's place in the README.
const TABLE: [&str; 2] = ["<!-- speed:begin -->", "<!-- speed:end -->"];

const WIDTH: f64 = 840.0;
const LABEL: f64 = 430.0;
const TOP: f64 = 44.0;
const ROW: f64 = 26.0;
/// The scale is logarithmic, from a quarter of the speed to sixteen times.
const SCALE: (f64, f64) = (0.25, 16.0);

/// Light and dark; the background is part of the picture, because a viewer's page may have the other theme.
const STYLE: &str = "\
    text { font: 13px system-ui, \"DejaVu Sans\", sans-serif; fill: #1f2328 }
    .card { fill: #ffffff } .grid { stroke: #d1d9e0 } .even { stroke: #57606a }
    .faster { fill: #1a7f37 } .slower { fill: #cf222e }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .card { fill: #0d1117 } .grid { stroke: #3d444d } .even { stroke: #9198a1 }
      .faster { fill: #3fb950 } .slower { fill: #f85149 }
    }
";

/// The figure as SVG.
///
/// # Errors
/// The README has no such table, or a row has no ratio.
pub fn figure(readme: &str) -> Result<String, String> {
    let rows = rows(readme)?;
    let height = TOP + ROW * rows.len() as f64 + 14.0;
    let (low, high) = SCALE;
    let x = |ratio: f64| {
        let share = (ratio.clamp(low, high) / low).ln() / (high / low).ln();
        LABEL + (WIDTH - LABEL - 60.0) * share
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"title\">\n  \
         <title id=\"title\">Speed relative to libfabric and UCX</title>\n  <style>\n{STYLE}  </style>\n  \
         <rect class=\"card\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n  \
         <text x=\"16\" y=\"24\">Times as fast as libfabric and UCX</text>\n"
    );
    let mut tick = low;
    while tick <= high {
        let (at, end) = (x(tick), height - 10.0);
        let class = if tick == 1.0 { "even" } else { "grid" };
        let _ = writeln!(svg, "  <path class=\"{class}\" d=\"M{at:.1} {:.1}V{end:.1}\"/>", TOP - 8.0);
        let _ = writeln!(svg, "  <text x=\"{at:.1}\" y=\"24\" text-anchor=\"middle\">{tick}</text>");
        tick *= 2.0;
    }
    for (place, (test, ratio)) in rows.iter().enumerate() {
        let y = TOP + ROW * place as f64;
        let (from, to) = (x(1.0).min(x(*ratio)), x(1.0).max(x(*ratio)));
        let class = if *ratio < 1.0 { "slower" } else { "faster" };
        let test = test.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(svg, "  <text x=\"16\" y=\"{:.1}\">{test}</text>", y + 15.0);
        let _ = writeln!(
            svg,
            "  <rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\" rx=\"2\"/>",
            y + 2.0,
            to - from
        );
        let _ = writeln!(svg, "  <text x=\"{:.1}\" y=\"{:.1}\">{ratio}</text>", to + 6.0, y + 15.0);
    }
    Ok(svg + "</svg>\n")
}

/// The tests with their peers, and the ratios: the first two columns and the last one.
fn rows(readme: &str) -> Result<Vec<(String, f64)>, String> {
    let table = readme.split_once(TABLE[0]).and_then(|(_, rest)| rest.split_once(TABLE[1]));
    let (table, _) = table.ok_or_else(|| format!("README.md has no {} and {}", TABLE[0], TABLE[1]))?;
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    if rows.is_empty() {
        return Err("the table of speeds in README.md has no rows".into());
    }
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let test = format!("{}: {}", cells.next()?, cells.next()?).replace('`', "");
        let ratio: f64 = cells.next_back()?.parse().ok()?;
        (ratio.is_finite() && ratio > 0.0).then_some((test, ratio))
    };
    rows.iter().map(|line| row(line).ok_or_else(|| format!("README.md: no ratio in {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readme(rows: &str) -> String {
        format!(
            "a\n{}\n\n| test | against | theirs | ours | ratio |\n|---|---|---|---|---|\n{rows}\n{}\nb",
            TABLE[0], TABLE[1]
        )
    }

    #[test]
    fn each_row_is_a_bar_and_slower_ones_look_different() {
        let svg = figure(&readme("| `a -S 64` | C | 1 us | 2 us | 0.5 |\n| b < c | C | 2 us | 1 us | 2 |"))
            .unwrap();
        assert_eq!((svg.matches("\"faster\"").count(), svg.matches("\"slower\"").count()), (1, 1), "{svg}");
        assert!(
            svg.contains(">a -S 64: C<") && svg.contains(">b &lt; c: C<") && svg.contains(">0.5<"),
            "{svg}"
        );
    }

    #[test]
    fn every_row_of_the_readme_is_a_line_of_the_report() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
        let (readme, report) = (read("README.md"), read("docs/performance.md"));
        let table = readme.split_once(TABLE[0]).unwrap().1.split_once(TABLE[1]).unwrap().0;
        let rows: Vec<_> = table.lines().filter(|line| line.starts_with('|')).skip(2).collect();
        assert!(rows.len() > 5, "{rows:?}");
        for row in rows {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [test, peer, theirs, ours, ratio] = cells[..] else { panic!("{row}") };
            let line = format!("\n| {test} | {ours} | {peer} | {theirs} | {ratio} (");
            assert!(report.contains(&line), "docs/performance.md has no line {line}");
        }
    }

    #[test]
    fn a_row_without_a_ratio_and_a_missing_table_are_refused() {
        assert!(figure(&readme("| a | C | 1 | 2 | much |")).unwrap_err().contains("| a |"));
        assert!(figure(&readme("")).unwrap_err().contains("no rows"));
        assert!(figure("no table").unwrap_err().contains(TABLE[0]));
    }
}
