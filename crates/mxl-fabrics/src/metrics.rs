//! Metrics in Prometheus's text format.

use std::fmt::Write as _;

use crate::{Initiator, PeerState, Target};

/// A metric of several samples.
fn metric(to: &mut String, name: &str, kind: &str, help: &str, samples: impl Iterator<Item = (String, u64)>) {
    // A `String` takes everything.
    let _ = writeln!(to, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(to, "{name}{{{labels}}} {value}");
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
        metric(&mut text, "mxl_initiator_connected", "gauge", "Whether the target takes transfers.", samples);
        type Count = fn(&crate::PeerStats) -> u64;
        let counters: [(&str, &str, Count); 6] = [
            ("done", "Transfers that arrived.", |stats| stats.done),
            ("lost", "Transfers that did not arrive.", |stats| stats.lost),
            ("torn", "Transfers whose source was overwritten meanwhile.", |stats| stats.torn),
            ("bytes", "Bytes that arrived.", |stats| stats.bytes),
            ("connects", "Times that the target was connected.", |stats| stats.connected),
            ("failed", "Writes and messages that failed.", |stats| stats.failed),
        ];
        for (name, help, count) in counters {
            let samples = all.iter().map(|(id, _, stats)| (labels(*id), count(stats)));
            metric(&mut text, &format!("mxl_initiator_{name}_total"), "counter", help, samples);
        }
        let name = "mxl_initiator_transfer_seconds";
        let help = "From handing a transfer over to its being in the target's ring.";
        metric(&mut text, name, "histogram", help, std::iter::empty());
        for (id, ..) in &all {
            if let Some(latency) = self.latency(*id) {
                latency.samples(name, &labels(*id), &mut text);
            }
        }
        text
    }
}

impl Target {
    /// The statistics in Prometheus's text format. Labels are the flow and the target's id.
    pub fn metrics(&self) -> String {
        let labels = format!("flow=\"{}\",target=\"{}\"", self.flow(), self.info().id);
        let stats = self.stats();
        let mut text = String::new();
        for (name, help, count) in [
            ("published", "Commits that were published.", stats.published),
            ("lost", "Grains or samples that did not come.", stats.lost),
            ("invalid", "Grains without a valid payload.", stats.invalid),
            ("taken", "Initiators that were taken.", stats.taken),
            ("refused", "Initiators that were refused.", stats.refused),
            ("nonsense", "Messages and writes that made no sense.", stats.nonsense),
            ("missed", "Events that nobody fetched.", stats.missed),
        ] {
            let samples = std::iter::once((labels.clone(), count));
            metric(&mut text, &format!("mxl_target_{name}_total"), "counter", help, samples);
        }
        text
    }
}
