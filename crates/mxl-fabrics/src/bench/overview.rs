//! The default measurement of `mxl-bench`: a commit to its readers, the calls, and copies to another process.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use mxl::{Domain, FlowDefinition, Geometry};
use ofi_progress_bar::Progress;
use serde_json::json;

use super::figures::Figures;
use super::local::{self, Local, Plan, nanoseconds};
use super::pair::Places;
use super::{Options, copies};
use crate::{Provider, Result};

/// The results between processes for one provider.
struct Copied {
    provider: Provider,
    grains: Figures,
}

pub fn measure(options: &Options, definition: &FlowDefinition, places: Places<'_>) -> Result<()> {
    let plan = Plan {
        domain: Domain::open(places.near)?,
        definition: definition.clone(),
        cores: places.cores,
        readers: options.readers.into(),
        count: options.count,
        interval: Duration::from_micros(options.interval),
    };
    // Copies over two providers, and those of memory.
    let progress = Progress::steps(options.quiet, Some(local::STEPS + 3));
    let local = plan.run(&progress)?;
    let Geometry::Grains { payload, .. } = definition.geometry() else { return Ok(()) };
    let mut copied = Vec::new();
    for provider in [Provider::Shm, Provider::Udp] {
        progress.begin(format!("grains to another process over {provider}"));
        copied.push(Copied { provider, grains: copies::measure(provider, places)? });
        progress.done();
    }
    progress.begin("copies of memory");
    let memcpy = [1, RING].map(|pictures| memcpy(payload, pictures));
    drop(progress);
    let cores = places.cores;
    let report = Report { cores, payload, readers: options.readers, memcpy, local, copied };
    if options.json {
        println!("{}", report.to_json());
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

/// Number of pictures in a ring that exceeds all caches: 88 MB of 1080p.
const RING: usize = 16;

/// Bytes per second that one core copies, from each picture of a ring of `pictures` to the same picture of another
/// ring.
fn memcpy(payload: u32, pictures: usize) -> f64 {
    let picture = payload as usize;
    let (from, mut to) = (vec![1_u8; picture * pictures], vec![2_u8; picture * pictures]);
    let times = (0..100).map(|index| {
        let at = index % pictures * picture;
        let begin = Instant::now();
        to[at..at + picture].copy_from_slice(std::hint::black_box(&from[at..at + picture]));
        std::hint::black_box(&mut to);
        nanoseconds(begin.elapsed())
    });
    f64::from(payload) * 1e9 / Figures::new(times.collect()).at(500).max(1) as f64
}

struct Report {
    cores: (usize, usize),
    payload: u32,
    readers: u16,
    /// Bytes per second: within caches, and from ring to ring.
    memcpy: [f64; 2],
    local: Local,
    copied: Vec<Copied>,
}

impl Report {
    fn rows(&self) -> [(&'static str, &'static str, &Figures); 6] {
        let Local { futex, blocked, polling, commit, commit_filled, read, missed: _ } = &self.local;
        [
            ("futex", "bare futex to its waiter's return", futex),
            ("blocked", "commit to a blocked reader's return", blocked),
            ("polling", "commit to a polling reader's return", polling),
            ("commit", "open and commit", commit),
            ("commit_filled", "open, fill and commit", commit_filled),
            ("read", "read of an available grain", read),
        ]
    }

    fn to_json(&self) -> String {
        let times: serde_json::Map<_, _> =
            self.rows().into_iter().map(|(key, _, figures)| (key.into(), figures.to_json())).collect();
        let copied = |Copied { provider, grains }: &Copied| {
            let rate = grains.rate();
            let value = json!({ "grains_per_s": rate, "bytes_per_s": rate * f64::from(self.payload), "ns": grains.to_json() });
            (provider.name().to_owned(), value)
        };
        let copies: serde_json::Map<_, _> = self.copied.iter().map(copied).collect();
        json!({
            "cores": [self.cores.0, self.cores.1],
            "readers": self.readers,
            "grain_bytes": self.payload,
            "ns": times,
            "missed": self.local.missed,
            "memcpy_bytes_per_s": self.memcpy[0],
            "memcpy_ring_bytes_per_s": self.memcpy[1],
            "one_in_flight": copies,
        })
        .to_string()
    }

    fn table(&self) -> String {
        let mut text = format!(
            "grains of {} bytes, cores {} and {}, reader processes: {}\n\n{:40} {:>10} {:>10} {:>10} {:>10}\n",
            self.payload, self.cores.0, self.cores.1, self.readers, "us", "p50", "p99", "p99.9", "max"
        );
        let mut line = |name: &str, figures: &Figures| {
            let [a, b, c, d] = figures.shown().map(|time| time as f64 / 1e3);
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{name:40} {a:>10.2} {b:>10.2} {c:>10.2} {d:>10.2}");
        };
        self.rows().iter().for_each(|(_, name, figures)| line(name, figures));
        for Copied { provider, grains } in &self.copied {
            line(&format!("a grain to another process over {provider}"), grains);
        }
        text.push('\n');
        let gigabytes = |rate: f64| rate * f64::from(self.payload) / 1e9;
        for Copied { provider, grains } in &self.copied {
            let rate = grains.rate();
            let _ = writeln!(text, "{provider}: {rate:.0} grains a second, {:.2} GB/s", gigabytes(rate));
        }
        let [hot, ring] = self.memcpy.map(|rate| rate / 1e9);
        let _ = writeln!(
            text,
            "memcpy: {ring:.2} GB/s from ring to ring, {hot:.2} GB/s of one picture again and again"
        );
        if self.local.missed > 0 {
            let _ = writeln!(
                text,
                "{} grains were overwritten before a reader reached them: avoid other load, or use fewer readers",
                self.local.missed
            );
        }
        text
    }
}
