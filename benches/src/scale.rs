//! What thousands cost: regions, flows, idle ends, sessions, streams, peers, and the work of a stopped peer. Each row
//! is measured in a process of its own, beside an earlier build of this program if one is given (`ofi-benches scale
//! --beside PATH`), by turns.

mod agents;
mod media;
mod peers;
mod peers_in_c;
mod sessions;
mod sockets;
mod stopped;

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

pub use sessions::Hub;

/// A measured number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What it is, with its unit.
    pub what: String,
    /// The number.
    pub value: f64,
    /// The most that it should be.
    pub bound: Option<f64>,
}

fn figure(what: impl Into<String>, value: f64, bound: Option<f64>) -> Figure {
    Figure { what: what.into(), value, bound }
}

/// A row: its key, and what measures it.
type Row = (&'static str, fn() -> Result<Vec<Figure>>);

const ROWS: [Row; 15] = [
    ("prepare", agents::prepare),
    ("post", agents::post_beside_prepare),
    ("revoke", agents::revoke),
    ("sessions", sessions::measure),
    ("flows", media::flows),
    ("ends", media::idle_ends),
    ("streams", media::streams),
    ("peers-shm", peers::over_shm),
    ("peers-udp", peers::over_udp),
    ("peers-tcp", peers::over_tcp),
    ("peers-beside-c", peers_in_c::measure),
    ("tcp-peers", sockets::peers),
    ("stopped-shm", stopped::over_shm),
    ("stopped-udp", stopped::over_udp),
    ("stopped-tcp", stopped::over_tcp),
];

/// Runs of each build. The one whose last figure is the least counts, whole: other work of the machine only adds.
const RUNS: usize = 3;

/// Measures the rows whose key contains `only`. Returns whether all figures are within their bounds.
pub fn main(only: Option<&str>, beside: Option<&Path>) -> Result<bool> {
    let mut are_within = true;
    let own = std::env::current_exe().map_err(Error::io("finding this program"))?;
    for (key, _) in ROWS.iter().filter(|(key, _)| only.is_none_or(|only| key.contains(only))) {
        let mut best: [Option<Vec<Figure>>; 2] = [None, None];
        for _ in 0..RUNS {
            for (best, program) in best.iter_mut().zip([Some(&*own), beside]) {
                let Some(program) = program else { continue };
                let figures = run(program, key)?;
                let last = |figures: &Vec<Figure>| figures.last().map(|figure| figure.value);
                if best.as_ref().is_none_or(|best| last(&figures) < last(best)) {
                    *best = Some(figures);
                }
            }
        }
        let [own, earlier] = best;
        for (at, Figure { what, value, bound }) in own.into_iter().flatten().enumerate() {
            let earlier = earlier.as_ref().and_then(|figures| figures.get(at));
            let earlier = earlier.map_or(String::new(), |earlier| format!(", earlier {:.2}", earlier.value));
            let verdict = match bound {
                None => String::new(),
                Some(bound) if value <= bound => format!(" (at most {bound}: pass)"),
                Some(bound) => format!(" (at most {bound}: MORE)"),
            };
            println!("{key}: {what}: {value:.2}{earlier}{verdict}");
            are_within &= bound.is_none_or(|bound| value <= bound);
        }
    }
    Ok(are_within)
}

/// Measures a row in another process of a build.
fn run(program: &Path, key: &str) -> Result<Vec<Figure>> {
    let output = Command::new(program).args(["scale", "--row", key]).output();
    let output = output.map_err(Error::io(program.display().to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).map_err(|error| {
        let why = String::from_utf8_lossy(&output.stderr);
        Error::Stack(format!("{key} by {}: {error}: {text}{why}", program.display()))
    })
}

/// Measures a row in this process, and prints its figures as JSON.
pub fn row(key: &str) -> Result<()> {
    if let Some(provider) = key.strip_prefix(peers::SERVER) {
        return peers::serve(provider);
    }
    if let Some(provider) = key.strip_prefix(stopped::SERVER) {
        return stopped::serve(provider);
    }
    let (_, measure) = ROWS
        .iter()
        .find(|(found, _)| *found == key)
        .ok_or_else(|| Error::NotReady(format!("row {key:?}")))?;
    let figures = measure()?;
    println!("{}", serde_json::to_string(&figures).map_err(|error| Error::Link(error.to_string()))?);
    Ok(())
}
