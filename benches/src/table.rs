//! The side-by-side table.

use std::fmt::{self, Write};

use crate::{
    pairs::Fate,
    report::{Report, Row, Verdict},
};

const HEAD: [&str; 9] = [
    "measurement",
    "ours",
    "against",
    "theirs",
    "ratio (range)",
    "bound",
    "ours/theirs in bounces",
    "pairs",
    "verdict",
];

/// `report` as text.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, report);
    text
}

fn write(text: &mut String, report: &Report) -> fmt::Result {
    let machine = &report.machine;
    let [server, client] = report.cores;
    writeln!(text, "{}, {} cores, Linux {}", machine.cpu, machine.cores, machine.kernel)?;
    writeln!(
        text,
        "server on core {server}, client on core {client}; huge pages: private {}, shared {}",
        machine.huge_pages, machine.shared_huge_pages
    )?;
    let bounces = || report.rows.iter().filter_map(|row| row.bounce_ns);
    if let Some((near, far)) = crate::figures::range(bounces()) {
        writeln!(text, "bare cache-line bounce, one way: {near:.0} to {far:.0} ns")?;
    }
    writeln!(text)?;
    let cells: Vec<[String; 9]> = report.rows.iter().map(cells).collect();
    let width = |column: usize| {
        let longest = cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        longest.max(HEAD[column].len())
    };
    let widths: [usize; 9] = std::array::from_fn(width);
    let mut print = |row: [&str; 9]| {
        let padded = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(text, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    print(HEAD)?;
    for row in &cells {
        print(row.each_ref().map(String::as_str))?;
    }
    Ok(())
}

fn cells(row: &Row) -> [String; 9] {
    let show = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| row.quantity.show(value));
    let ratio = match (row.ratio, row.ratio_range) {
        (Some(ratio), Some((low, high))) => format!("{ratio:.2} ({low:.2} - {high:.2})"),
        _ => "-".into(),
    };
    let bounces = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.1}"));
    let dropped = match (row.count(Fate::Moved), row.count(Fate::Disturbed)) {
        (0, 0) => String::new(),
        (moved, 0) => format!(" ({moved} moved)"),
        (0, disturbed) => format!(" ({disturbed} disturbed)"),
        (moved, disturbed) => format!(" ({moved} moved, {disturbed} disturbed)"),
    };
    let goal = row.goal.map_or_else(String::new, |goal| format!(", goal {}", row.quantity.show(goal)));
    [
        row.title.to_owned(),
        show(row.ours),
        row.against.clone(),
        show(row.theirs),
        ratio,
        row.bound.show(row.quantity) + &goal,
        format!("{} / {}", bounces(row.ours_over_bounce), bounces(row.theirs_over_bounce)),
        format!("{}{dropped}", row.count(Fate::Kept)),
        match &row.verdict {
            Verdict::Pass => "pass".into(),
            Verdict::Fail => "FAIL".into(),
            Verdict::Shown => "-".into(),
            Verdict::Unsteady => "unsteady".into(),
            Verdict::Error(why) => format!("error: {why}"),
        },
    ]
}
