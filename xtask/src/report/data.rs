//! The figures: the output of `ofi-benches --json`, `ofi-benches veth --json`, and `fi_pingpong --json`.

use serde::Deserialize;

/// The output of `ofi-benches`.
#[derive(Debug, Deserialize)]
pub struct Benches {
    /// The machine.
    pub machine: Machine,
    /// The measured libraries, with versions.
    #[serde(default)]
    pub versions: Vec<(String, String)>,
    /// Server's and client's core.
    pub cores: [usize; 2],
    /// The rows.
    pub rows: Vec<Row>,
}

/// The machine.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct Machine {
    /// Its processor.
    pub cpu: String,
    /// Number of cores.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Whether private memory gets huge pages.
    pub huge_pages: String,
}

/// A line of the comparison.
#[derive(Debug, Deserialize)]
pub struct Row {
    /// Its name for programs.
    pub key: String,
    /// Its name for people.
    pub title: String,
    /// The unit.
    pub quantity: String,
    /// The peer.
    pub against: String,
    /// Our median.
    pub ours: Option<f64>,
    /// Theirs.
    pub theirs: Option<f64>,
    /// Ours over theirs: the median of the pairs.
    pub ratio: Option<f64>,
    /// The smallest and the largest.
    pub ratio_range: Option<(f64, f64)>,
    /// `pass`, `fail`, `shown`, `unsteady`, or an object with an error.
    pub verdict: serde_json::Value,
    /// Every pair that was run.
    #[serde(default)]
    pairs: Vec<Pair>,
}

/// A pair of runs.
#[derive(Debug, Deserialize)]
struct Pair {
    ours: Option<Run>,
    /// `kept` if the pair counts.
    fate: String,
}

/// One run.
#[derive(Debug, Deserialize)]
struct Run {
    percentiles_us: Option<[f64; PERCENTILES.len()]>,
}

/// Shares of rounds in percent, as in `benches/src/figures.rs`; the last one is the slowest round.
pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 100.0];

impl Benches {
    /// Parses the figures.
    ///
    /// # Errors
    /// The text is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("the figures of ofi-benches: {error}"))
    }

    /// Adds the figures of another run. Its rows replace those with the same key.
    ///
    /// # Errors
    /// The run was on another machine, or with other versions.
    pub fn add(&mut self, other: Self) -> Result<(), String> {
        if (&self.machine, &self.versions, self.cores) != (&other.machine, &other.versions, other.cores) {
            return Err("runs on different machines, cores or versions are not one report".into());
        }
        self.rows.retain(|row| other.rows.iter().all(|new| new.key != row.key));
        self.rows.extend(other.rows);
        Ok(())
    }

    /// The distribution of latency: a plot line for each row whose rounds were timed individually. A point is the time
    /// in microseconds that one in a given number of rounds exceeds.
    pub fn tails(&self) -> Vec<Series> {
        let line = |row: &Row| {
            let wire = row.key.strip_prefix("rounds-")?;
            let times = row.percentiles()?.into_iter().zip(PERCENTILES);
            let points = times.filter(|(time, share)| *share < 100.0 && *time > 0.0);
            Some((wire.to_string(), points.map(|(time, share)| (100.0 / (100.0 - share), time)).collect()))
        };
        self.rows.iter().filter_map(line).collect()
    }

    /// The lines of a plot over sizes or numbers: ours, and each peer's. Latencies are in microseconds. Empty for
    /// figures that were measured without `--sweeps`.
    pub fn sweep(&self, plot: &str) -> Vec<Series> {
        let mut all: Vec<Series> = Vec::new();
        let mut add = |name: &str, x: f64, value: Option<f64>| {
            let Some(value) = value.filter(|value| value.is_finite() && *value > 0.0) else { return };
            let at = all.iter().position(|series| series.0 == name).unwrap_or_else(|| {
                all.push((name.into(), Vec::new()));
                all.len() - 1
            });
            let points = &mut all[at].1;
            // Ours was measured beside each peer; the first measurement represents all.
            if points.iter().all(|point| point.0 != x) {
                points.push((x, value));
            }
        };
        for row in &self.rows {
            let Some((of, x)) = row.sweep() else { continue };
            if of == plot {
                let scale = if row.quantity == "latency_ns" { 1e-3 } else { 1.0 };
                add("ofi", x, row.ours.map(|value| value * scale));
                add(&row.against, x, row.theirs.map(|value| value * scale));
            }
        }
        all
    }

    /// Rows without figures, each with the reason.
    pub fn not_run(&self) -> Vec<String> {
        let why = |row: &Row| Some(format!("{}: {}", row.key, row.error()?));
        self.rows.iter().filter_map(why).collect()
    }
}

impl Row {
    /// How many times better ours is; less than 1 is worse. `None` without a peer.
    pub fn advantage(&self) -> Option<f64> {
        let ratio = self.ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0)?;
        Some(if self.less_is_better() { 1.0 / ratio } else { ratio })
    }

    /// The range of [`Row::advantage`] over the pairs.
    pub fn advantages(&self) -> Option<(f64, f64)> {
        let (low, high) = self.ratio_range?;
        Some(if self.less_is_better() { (1.0 / high, 1.0 / low) } else { (low, high) })
    }

    fn less_is_better(&self) -> bool {
        !matches!(self.quantity.as_str(), "rate_m" | "bandwidth")
    }

    /// The time in microseconds within which each share of [`PERCENTILES`] of its rounds ended: medians of the pairs
    /// that count.
    pub fn percentiles(&self) -> Option<[f64; PERCENTILES.len()]> {
        let kept = self.pairs.iter().filter(|pair| pair.fate == "kept");
        let runs: Vec<_> = kept.filter_map(|pair| pair.ours.as_ref()?.percentiles_us).collect();
        let median = |place: usize| {
            let mut times: Vec<f64> = runs.iter().map(|run| run[place]).collect();
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        (!runs.is_empty()).then(|| std::array::from_fn(median))
    }

    /// The plot and the position of the point: `sweep-PLOT-PEER-X` (`benches/src/sweeps.rs`).
    pub fn sweep(&self) -> Option<(&str, f64)> {
        let mut parts = self.key.strip_prefix("sweep-")?.split('-');
        Some((parts.next()?, parts.nth(1)?.parse().ok()?))
    }

    /// The reason why there are no figures.
    pub fn error(&self) -> Option<&str> {
        self.verdict.get("error")?.as_str()
    }

    /// A value with its unit.
    pub fn show(&self, value: Option<f64>) -> String {
        let Some(value) = value else { return "-".into() };
        match self.quantity.as_str() {
            "latency_ns" if value >= 10_000.0 => format!("{:.1} us", value / 1e3),
            "latency_ns" => format!("{value:.0} ns"),
            "rate_m" => format!("{value:.2} M/s"),
            "bandwidth" => format!("{value:.2} GB/s"),
            "cpu_share" => format!("{:.2} %", value * 100.0),
            "bytes_each" => format!("{value:.0} B"),
            other => format!("{value} {other}"),
        }
    }
}

/// The output of `ofi-benches veth`, measured between two network namespaces.
#[derive(Debug, Deserialize)]
pub struct Veth {
    /// Transfers of megabytes in several ways.
    pub bulk: Vec<Bulk>,
    /// A ping-pong under losses.
    pub losses: Vec<Kept>,
}

/// A way to send megabytes.
#[derive(Debug, Deserialize)]
pub struct Bulk {
    /// The sender.
    pub name: String,
    /// 10^9 bytes per second.
    pub rate: f64,
    /// The fraction of the bare sockets' rate.
    pub of_bare: f64,
}

/// The performance of a ping-pong under losses.
#[derive(Debug, Deserialize)]
pub struct Kept {
    /// Percentage of packets lost at either end.
    pub lost_percent: f64,
    /// Microseconds.
    pub one_way_us: f64,
    /// The fraction of the rate without loss.
    pub kept: f64,
    /// The lower bound.
    pub bound: Option<f64>,
}

impl Veth {
    /// Parses the figures.
    ///
    /// # Errors
    /// The text is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("the figures of ofi-benches veth: {error}"))
    }
}

/// The output of `fi_pingpong` by size.
#[derive(Debug, Deserialize)]
pub struct Sizes {
    /// One entry per provider.
    pub transports: Vec<Transport>,
}

/// One provider.
#[derive(Debug, Deserialize)]
pub struct Transport {
    /// Its name.
    pub provider: String,
    /// One entry per size.
    pub rows: Vec<Size>,
}

/// One size.
#[derive(Debug, Deserialize)]
pub struct Size {
    /// Bytes of a message.
    pub bytes: u64,
    /// Microseconds from one side to the other.
    pub latency_us: f64,
    /// 10^9 bytes per second.
    pub bandwidth_gbps: f64,
}

/// A line of a plot: its name, and its points.
pub type Series = (String, Vec<(f64, f64)>);

impl Sizes {
    /// Parses the figures.
    ///
    /// # Errors
    /// The text is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("the figures of fi_pingpong: {error}"))
    }

    /// Latency by size.
    pub fn latency(&self) -> Vec<Series> {
        self.series(|size| size.latency_us)
    }

    /// Bandwidth by size.
    pub fn bandwidth(&self) -> Vec<Series> {
        self.series(|size| size.bandwidth_gbps)
    }

    /// Points that a logarithmic plot can show.
    fn series(&self, value: impl Fn(&Size) -> f64) -> Vec<Series> {
        let points = |transport: &Transport| {
            let all = transport.rows.iter().map(|size| (size.bytes as f64, value(size)));
            all.filter(|(x, y)| *x > 0.0 && y.is_finite() && *y > 0.0).collect()
        };
        self.transports.iter().map(|transport| (transport.provider.clone(), points(transport))).collect()
    }
}
