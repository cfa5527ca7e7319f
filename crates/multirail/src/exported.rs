//! The metrics of an agent for `ofi stats`: its counters, and the latencies of accesses and transfers.

use std::time::Duration;

use ofi::Statistic;
use ofi_core::export::{About, Counted, Histogram};

use crate::driver::Shared;
use crate::engine::{Counts, Latencies};

impl Counted for Shared {
    fn counts(&self) -> Vec<Statistic> {
        let Counts { malformed, strays, refused, stale, moved, repeated, fenced, evicted } =
            self.lock().map(|driver| driver.core.counts()).unwrap_or_default();
        let all = [
            ("rails_malformed", malformed, "messages that could not be parsed, or have another version"),
            ("rails_strays", strays, "messages and writes that belong to no session"),
            ("rails_refused", refused, "fragments of notifications that contradict others or the bounds"),
            ("rails_stale", stale, "completions that belong to no operation"),
            ("rails_moved", moved, "parts of transfers that moved to another path"),
            ("rails_repeated", repeated, "messages that were repeated on another path"),
            ("rails_evicted", evicted, "sessions that ended because peers made the agent keep too much"),
            ("rails_fenced", fenced, "paths that were abandoned because no operation completed on them"),
        ];
        all.into_iter().map(|(name, value, help)| Statistic { name, value, help }).collect()
    }

    fn histograms(&self) -> Vec<Histogram> {
        let Ok(driver) = self.lock() else { return Vec::new() };
        let rails = driver.rails.iter().zip(driver.core.latencies()).enumerate();
        let of_rails = rails.flat_map(|(nth, (rail, latencies))| {
            let labels = vec![("rail", nth.to_string()), ("rail_provider", rail.spec.info.provider.clone())];
            named(
                "rail_access_seconds",
                "reads and writes of a rail, from post to completion",
                latencies,
                &labels,
            )
        });
        let help = "successful transfers, from post to end";
        let of_transfers = named("transfer_seconds", help, driver.core.transfer_latencies(), &[]);
        of_rails.chain(of_transfers).collect()
    }

    fn about(&self) -> About {
        About {
            provider: "multirail".into(),
            domain: self.name.to_string(),
            kind: "AGENT".into(),
            address: String::new(),
        }
    }
}

/// One histogram for each class of lengths that has times. Its label is the longest length of the class.
fn named(
    name: &'static str,
    help: &'static str,
    latencies: &Latencies,
    labels: &[(&'static str, String)],
) -> Vec<Histogram> {
    let classes = latencies.classes().filter(|(_, times)| times.count() > 0);
    let classes = classes.map(|(longest, times)| {
        let longest = longest.map_or("inf".to_string(), |bytes| bytes.to_string());
        Histogram {
            name,
            help,
            labels: labels.iter().cloned().chain([("bytes", longest)]).collect(),
            sum_us: times.sum().min(Duration::from_micros(u64::MAX)).as_micros() as u64,
            buckets: times.buckets().to_vec(),
        }
    });
    classes.collect()
}
