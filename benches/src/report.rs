//! Runs the lines and collects the results.

use std::time::Instant;

use serde::Serialize;

use crate::{
    Figures, Result, bounce,
    figures::{Quantity, median, range},
    machine::Machine,
    pairs::{self, Fate, Pair, Policy},
    quiet,
    targets::{Bound, Line},
};

/// Fewer pairs than this are not conclusive.
const ENOUGH: usize = 3;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: Machine,
    /// The measured libraries with versions.
    pub versions: Vec<(&'static str, String)>,
    /// Server's and client's core.
    pub cores: [usize; 2],
    /// One row per line.
    pub rows: Vec<Row>,
}

/// One line, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The line's key.
    pub key: &'static str,
    /// The line's title.
    pub title: &'static str,
    /// The line's quantity.
    pub quantity: Quantity,
    /// The line's bound.
    pub bound: Bound,
    /// The line's goal.
    pub goal: Option<f64>,
    /// The peer.
    pub against: String,
    /// Median of ours, in the unit of the quantity.
    pub ours: Option<f64>,
    /// Median of theirs.
    pub theirs: Option<f64>,
    /// Median of the pairs' ratios, ours over theirs.
    pub ratio: Option<f64>,
    /// Smallest and largest of these ratios.
    pub ratio_range: Option<(f64, f64)>,
    /// Median of the bounces, in nanoseconds one way.
    pub bounce_ns: Option<f64>,
    /// Nanoseconds per operation of ours, divided by the bounce of its pair; the median.
    pub ours_over_bounce: Option<f64>,
    /// The same of theirs.
    pub theirs_over_bounce: Option<f64>,
    /// Every pair in order, including those that do not count.
    pub pairs: Vec<Pair>,
    /// The verdict.
    pub verdict: Verdict,
}

/// The verdict on a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Within its bound.
    Pass,
    /// Outside its bound.
    Fail,
    /// No bound was set.
    Shown,
    /// Too few pairs count.
    Unsteady,
    /// The line could not be measured; the reason.
    Error(String),
}

impl Row {
    /// The number of pairs with this fate.
    pub fn count(&self, fate: Fate) -> usize {
        self.pairs.iter().filter(|pair| pair.fate == fate).count()
    }
}

/// Measures `line`. An error becomes the row's verdict, so that the other lines are still measured.
pub fn measure(line: &Line, policy: &Policy, cores: [usize; 2]) -> Row {
    match take_pairs(line, policy, cores) {
        Ok(pairs) => row(line, pairs),
        Err(error) => Row { verdict: Verdict::Error(error.to_string()), ..row(line, Vec::new()) },
    }
}

fn take_pairs(line: &Line, policy: &Policy, cores: [usize; 2]) -> Result<Vec<Pair>> {
    let mut ours = || line.ours.run(cores);
    let mut theirs = line.against.map(|against| move || against.run(cores));
    let theirs = theirs.as_mut().map(|run| run as pairs::Run<'_>);
    let mut before_each = || wait_for_a_good_moment(policy, cores);
    let crowded = Policy { delayed_share: f64::INFINITY, ..*policy };
    let policy = if line.is_crowded() { &crowded } else { policy };
    pairs::take(policy, &mut ours, theirs, &mut || bounce::measure(cores), &mut before_each)
}

/// Waits until the cores are idle and, if required, near each other; at most for the patience.
fn wait_for_a_good_moment(policy: &Policy, cores: [usize; 2]) -> Result<()> {
    let deadline = Instant::now() + policy.patience;
    loop {
        quiet::wait(cores, deadline.saturating_duration_since(Instant::now()))?;
        let is_near = match policy.longest_bounce_ns {
            Some(longest) => bounce::measure(cores)? <= longest,
            None => true,
        };
        if is_near || Instant::now() > deadline {
            return Ok(());
        }
    }
}

fn row(line: &Line, pairs: Vec<Pair>) -> Row {
    let kept: Vec<&Pair> = pairs.iter().filter(|pair| pair.fate == Fate::Kept).collect();
    let value = |figures: Option<Figures>| figures?.get(line.quantity);
    let ratios = || kept.iter().filter_map(|pair| Some(value(pair.ours)? / value(pair.theirs)?));
    // A share of a core and bytes are not times, and are not related to the bounce.
    let in_bounces = |figures: Option<Figures>, pair: &Pair| {
        let is_time = !matches!(line.quantity, Quantity::CpuShare | Quantity::BytesEach);
        is_time.then(|| Some(figures?.ns_per_op() / pair.bounce_ns())).flatten()
    };
    let mut row = Row {
        key: line.key,
        title: line.title,
        quantity: line.quantity,
        bound: line.bound,
        goal: line.goal,
        against: line.against.map_or_else(|| "-".into(), |against| against.name()),
        ours: median(kept.iter().filter_map(|pair| value(pair.ours))),
        theirs: median(kept.iter().filter_map(|pair| value(pair.theirs))),
        ratio: median(ratios()),
        ratio_range: range(ratios()),
        bounce_ns: median(kept.iter().map(|pair| pair.bounce_ns())),
        ours_over_bounce: median(kept.iter().filter_map(|pair| in_bounces(pair.ours, pair))),
        theirs_over_bounce: median(kept.iter().filter_map(|pair| in_bounces(pair.theirs, pair))),
        verdict: Verdict::Shown,
        pairs: Vec::new(),
    };
    row.pairs = pairs;
    row.verdict = verdict(line, &row);
    row
}

fn verdict(line: &Line, row: &Row) -> Verdict {
    match row.ours {
        Some(ours) if row.count(Fate::Kept) >= ENOUGH => {
            match line.bound.judge(ours, row.theirs, row.ratio) {
                Some(true) => Verdict::Pass,
                Some(false) => Verdict::Fail,
                None => Verdict::Shown,
            }
        }
        _ => Verdict::Unsteady,
    }
}

impl Report {
    /// 0 if every bound was measured and met, 1 if one was missed, 3 if one was not measured.
    pub fn exit_code(&self) -> u8 {
        let asked = || self.rows.iter().filter(|row| row.bound != Bound::None);
        if asked().any(|row| row.verdict == Verdict::Fail) {
            1
        } else if asked().all(|row| row.verdict == Verdict::Pass) {
            0
        } else {
            3
        }
    }
}
