//! Metrics in Prometheus's text format.

use std::fmt::Write as _;

use crate::{Histogram, Initiator, Merge, PeerState, Target, TargetStats, TargetTimes};

/// Appends a metric with several samples.
fn metric(to: &mut String, name: &str, kind: &str, help: &str, samples: impl Iterator<Item = (String, u64)>) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(to, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(to, "{name}{{{labels}}} {value}");
    }
}

/// Appends a histogram with several sources.
fn histogram<'a>(
    to: &mut String,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (String, &'a Histogram)>,
) {
    metric(to, name, "histogram", help, std::iter::empty());
    for (labels, histogram) in samples {
        histogram.samples(name, &labels, to);
    }
}

impl Initiator {
    /// The statistics of each target, and a histogram of the time from submission of a transfer to its arrival in the
    /// target's ring, in Prometheus's text format. Labels are the flow and the target's id.
    pub fn metrics(&self) -> String {
        let all: Vec<_> = self.targets().collect();
        let flow = self.flow();
        let labels = |id: u64| format!("flow=\"{flow}\",target=\"{id}\"");
        let mut text = String::new();
        let connected = |state| u64::from(state == PeerState::Connected);
        let samples = all.iter().map(|(id, state, _)| (labels(*id), connected(*state)));
        metric(&mut text, "mxl_initiator_connected", "gauge", "Whether the target is connected.", samples);
        type Count = fn(&crate::PeerStats) -> u64;
        let counters: [(&str, &str, Count); 9] = [
            ("done", "Transfers that arrived.", |stats| stats.done),
            ("published", "Transfers that arrived, and that the target has published.", |stats| {
                stats.published
            }),
            (
                "unconfirmed",
                "Transfers that arrived before the connection ended, published or not.",
                |stats| stats.unconfirmed,
            ),
            ("lost", "Transfers that did not arrive.", |stats| stats.lost),
            ("torn", "Transfers whose source was overwritten meanwhile.", |stats| stats.torn),
            ("bytes", "Bytes that arrived.", |stats| stats.bytes),
            ("connects", "Times that the target was connected.", |stats| stats.connected),
            ("failed", "Writes and messages that failed.", |stats| stats.failed),
            ("parted", "Connections that the target ended with a reason.", |stats| stats.parted),
        ];
        for (name, help, count) in counters {
            let samples = all.iter().map(|(id, _, stats)| (labels(*id), count(stats)));
            metric(&mut text, &format!("mxl_initiator_{name}_total"), "counter", help, samples);
        }
        let samples = std::iter::once((format!("flow=\"{flow}\""), self.nonsense()));
        let help = "Messages that were invalid, or from nobody that is a target.";
        metric(&mut text, "mxl_initiator_nonsense_total", "counter", help, samples);
        let help = "From the submission of a transfer to its arrival in the target's ring.";
        let samples = all.iter().filter_map(|(id, ..)| Some((labels(*id), self.latency(*id)?)));
        histogram(&mut text, "mxl_initiator_transfer_seconds", help, samples);
        text
    }
}

type TargetCount = fn(&TargetStats) -> u64;

/// The counters of a target.
const OF_TARGET: [(&str, &str, TargetCount); 10] = [
    ("published", "Commits that were published.", |stats| stats.published),
    ("lost", "Grains or samples that did not arrive.", |stats| stats.lost),
    ("late", "Grains or samples that were published late, by this host's clock.", |stats| stats.late),
    ("invalid", "Grains without a valid payload.", |stats| stats.invalid),
    ("taken", "Initiators that were accepted.", |stats| stats.taken),
    ("refused", "Initiators that were refused.", |stats| stats.refused),
    ("parted", "Initiators whose connection the target ended.", |stats| stats.parted),
    ("nonsense", "Messages and writes that were invalid.", |stats| stats.nonsense),
    ("overwritten", "Writes that the initiator overwrote before they were read.", |stats| stats.overwritten),
    ("missed", "Events that the program did not read.", |stats| stats.missed),
];

type TargetTime = fn(&TargetTimes) -> &Histogram;

/// The histograms of a target.
const TIMES_OF_TARGET: [(&str, &str, TargetTime); 2] = [
    ("arrival", "From seeing the first part of a commit to its publication.", |times| &times.arrival),
    ("interval", "From one publication to the next of the same initiator.", |times| &times.interval),
];

impl Target {
    /// The statistics and times in Prometheus's text format. Labels are the flow and the target's id.
    pub fn metrics(&self) -> String {
        let labels = format!("flow=\"{}\",target=\"{}\"", self.flow(), self.info().id);
        let mut text = String::new();
        for (name, help, count) in OF_TARGET {
            let samples = std::iter::once((labels.clone(), count(&self.stats())));
            metric(&mut text, &format!("mxl_target_{name}_total"), "counter", help, samples);
        }
        for (name, help, time) in TIMES_OF_TARGET {
            let samples = std::iter::once((labels.clone(), time(self.times())));
            histogram(&mut text, &format!("mxl_target_{name}_seconds"), help, samples);
        }
        text
    }
}

impl Merge {
    /// The statistics of the merge, and those of the target of each path, in Prometheus's text format. Labels are the
    /// merged flow, and for a path its number and its target's id.
    pub fn metrics(&self) -> String {
        let flow = self.flow();
        let stats = self.stats();
        let mut text = String::new();
        for (name, help, count) in [
            ("published", "Grains that were published whole, or samples.", stats.published),
            ("duplicates", "Copies without new data.", stats.duplicates),
            ("late", "Copies that came too late.", stats.late),
            ("strange", "Copies of indices far from all others.", stats.strange),
            ("lost", "Grains or samples that arrived on no path.", stats.lost),
            ("invalid", "Grains that were published as invalid.", stats.invalid),
            ("mended", "Invalid grains that another path replaced.", stats.mended),
            ("missed", "Events that the program did not read.", stats.missed),
        ] {
            let samples = std::iter::once((format!("flow=\"{flow}\""), count));
            metric(&mut text, &format!("mxl_merge_{name}_total"), "counter", help, samples);
        }
        let paths: Vec<_> = (0..self.paths()).map(|at| (at, self.path(at))).collect();
        let there = paths.iter().filter_map(|(at, target)| {
            target.map(|target| {
                (format!("flow=\"{flow}\",path=\"{at}\",target=\"{}\"", target.info().id), target)
            })
        });
        let there: Vec<_> = there.collect();
        let connected =
            there.iter().map(|(labels, target)| (labels.clone(), u64::from(target.is_connected())));
        let help = "Whether a path has an initiator. Absent if its endpoint broke.";
        metric(&mut text, "mxl_merge_path_connected", "gauge", help, connected);
        for (name, help, count) in OF_TARGET {
            let samples = there.iter().map(|(labels, target)| (labels.clone(), count(&target.stats())));
            metric(&mut text, &format!("mxl_merge_path_{name}_total"), "counter", help, samples);
        }
        for (name, help, time) in TIMES_OF_TARGET {
            let samples = there.iter().map(|(labels, target)| (labels.clone(), time(target.times())));
            histogram(&mut text, &format!("mxl_merge_path_{name}_seconds"), help, samples);
        }
        text
    }
}
