//! Sends a flow at its own rate to another process: arrivals, delays, and the CPU time of both ends.

mod content;
mod ends;

use std::collections::HashMap;
use std::time::Duration;

use clap::Args;
use mxl::{Domain, FlowDefinition, Geometry, Rational};
use ofi_progress_bar::Progress;
use serde_json::{Value, json};

use super::beat::Schedule;
use super::figures::Figures;
use super::pair::{self, Places, Role, Said};
use crate::{Error, Provider, Result};

#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Duration in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Providers, one after the other: shm, udp.
    #[arg(long, value_name = "PROVIDERS", value_delimiter = ',', default_value = "shm,udp")]
    over: Vec<Provider>,
    /// Number of parts, spread over the period, in which to commit and send a grain.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    parts: u16,
    /// Send audio at 48 kHz with this many channels, instead of pictures.
    #[arg(long, value_name = "CHANNELS")]
    audio: Option<u32>,
    /// Samples of a batch.
    #[arg(long, default_value_t = 48, requires = "audio", value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Busy-poll at both ends, instead of sleeping.
    #[arg(long)]
    busy: bool,
}

/// A stream over one provider.
struct Report {
    provider: Provider,
    /// Grains, or batches of samples.
    committed: usize,
    published: usize,
    /// Published more than a period after the commit.
    late: usize,
    /// Published with a content that differs from the sent one.
    wrong: u64,
    invalid: u64,
    torn: u64,
    /// Nanoseconds from a commit to its publication in the target's flow.
    latency: Figures,
    bytes_per_s: f64,
    rate: f64,
    /// Shares of a core used by the initiator and by the target.
    cores: [f64; 2],
}

impl Options {
    fn beat(&self, definition: &FlowDefinition) -> Result<Schedule> {
        let geometry = definition.geometry();
        let units = match geometry {
            Geometry::Grains { .. } => 1,
            Geometry::Samples { .. } => self.batch.into(),
        };
        Schedule::new(geometry.rate(), units, self.seconds)
    }

    /// The flow of both processes.
    fn definition(&self, video: &FlowDefinition) -> Result<FlowDefinition> {
        let Some(channels) = self.audio else { return Ok(video.clone()) };
        let audio = FlowDefinition::audio(&video.label, channels, Rational::new(48_000, 1))?;
        Ok(FlowDefinition { id: video.id, ..audio })
    }

    /// The part of one of the two processes.
    ///
    /// # Errors
    /// A flow that cannot be created, an end that does not answer.
    pub fn take_part(
        &self,
        role: Role,
        domain: &Domain,
        video: &FlowDefinition,
        provider: Provider,
        core: usize,
    ) -> Result<()> {
        let definition = self.definition(video)?;
        if role == Role::Target {
            return ends::receive(self, domain, &definition, provider, core);
        }
        ends::send(self, domain, &definition, provider, core)
    }

    /// Number of providers, one after the other.
    pub fn runs(&self) -> u64 {
        self.over.len() as u64
    }

    /// Measures over one provider after the other.
    ///
    /// # Errors
    /// The errors of either process; also a payload that differs from the sent one, after everything was printed.
    pub fn measure(
        &self,
        video: &FlowDefinition,
        places: Places<'_>,
        as_json: bool,
        progress: &Progress,
    ) -> Result<()> {
        let definition = self.definition(video)?;
        let beat = self.beat(&definition)?;
        let bytes = match definition.geometry() {
            Geometry::Grains { payload, .. } => u64::from(payload),
            Geometry::Samples { channels, word, .. } => {
                u64::from(channels) * u64::from(word) * u64::from(self.batch)
            }
        };
        let mut reports = Vec::new();
        for &provider in &self.over {
            progress.begin(format!("{} s over {provider}", self.seconds));
            let said = pair::run(provider, places)?;
            progress.done();
            let report = Report::new(provider, &said, bytes, beat.period())?;
            if !as_json {
                progress.aside(|| report.print(bytes));
            }
            reports.push(report);
        }
        if as_json {
            let values: serde_json::Map<_, _> =
                reports.iter().map(|report| (report.provider.name().to_owned(), report.to_json())).collect();
            println!("{}", Value::from(values));
        }
        match reports.iter().find(|report| report.wrong > 0) {
            Some(report) => {
                let (wrong, provider) = (report.wrong, report.provider);
                Err(Error::Argument(format!("{wrong} payloads over {provider} differ from the sent ones")))
            }
            None => Ok(()),
        }
    }
}

/// Pairs of an index and a time.
fn times(value: &Value) -> impl Iterator<Item = (u64, u64)> {
    let pairs = value.as_array().map(Vec::as_slice).unwrap_or_default();
    pairs.iter().filter_map(|pair| Some((pair.get(0)?.as_u64()?, pair.get(1)?.as_u64()?)))
}

impl Report {
    fn new(provider: Provider, said: &Said, bytes: u64, period: Duration) -> Result<Self> {
        let Said { initiator, target } = said;
        let number = |value: &Value, key: &str| {
            let missing = || Error::Argument(format!("a process over {provider} did not report \"{key}\""));
            value[key].as_f64().ok_or_else(missing)
        };
        let published: HashMap<u64, u64> = times(&target["published"]).collect();
        let committed: Vec<(u64, u64)> = times(&initiator["committed"]).collect();
        let latency =
            committed.iter().filter_map(|(index, since)| Some(published.get(index)?.saturating_sub(*since)));
        let latency: Vec<u64> = latency.collect();
        let late = latency.iter().filter(|time| u128::from(**time) > period.as_nanos()).count();
        let seconds = number(initiator, "seconds")?;
        Ok(Self {
            provider,
            committed: committed.len(),
            published: latency.len(),
            late,
            wrong: number(target, "wrong")? as u64,
            invalid: number(target, "invalid")? as u64,
            torn: number(initiator, "torn")? as u64,
            bytes_per_s: latency.len() as f64 * bytes as f64 / seconds,
            rate: committed.len() as f64 / seconds,
            latency: Figures::new(latency),
            cores: [number(initiator, "core")?, number(target, "core")?],
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "committed": self.committed,
            "published": self.published,
            "late": self.late,
            "wrong": self.wrong,
            "invalid": self.invalid,
            "torn": self.torn,
            "per_s": self.rate,
            "bytes_per_s": self.bytes_per_s,
            "ns": self.latency.to_json(),
            "cores": self.cores,
        })
    }

    fn print(&self, bytes: u64) {
        let Self { provider, committed, published, late, wrong, invalid, torn, .. } = self;
        let lost = committed.saturating_sub(*published);
        println!(
            "{provider}: {published} of {committed} of {bytes} bytes arrived whole at {:.2} a second, {:.3} GB/s",
            self.rate,
            self.bytes_per_s / 1e9
        );
        println!(
            "  {lost} missing ({torn} overwritten while they were sent, {invalid} flagged invalid, {wrong} wrong), {late} later than a period"
        );
        let [p50, p99, p999, max] = self.latency.shown().map(|time| time as f64 / 1e3);
        println!("  commit to publication, us: p50 {p50:.1}, p99 {p99:.1}, p99.9 {p999:.1}, max {max:.1}");
        let [near, far] = self.cores.map(|core| core * 100.0);
        println!("  CPU use: initiator {near:.1} % of a core, target {far:.1} %");
    }
}
