//! Prometheus's text format.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Endpoint, Histogram, Process};

/// One metric per name, with one sample per endpoint, or for a histogram one per bound.
pub fn text(processes: &[Process]) -> String {
    let mut metrics: BTreeMap<&str, Metric<'_>> = BTreeMap::new();
    for process in processes {
        for (place, endpoint) in process.endpoints.iter().enumerate() {
            let labels = labels(process, place, endpoint);
            for one in &endpoint.statistics {
                // The exported text does not distinguish counters from gauges.
                let metric = metrics.entry(&one.name).or_insert_with(|| Metric::new("untyped", &one.help));
                metric.samples.push(format!("ofi_{}{{{labels}}} {}\n", one.name, one.value));
            }
            for one in &endpoint.histograms {
                let metric = metrics.entry(&one.name).or_insert_with(|| Metric::new("histogram", &one.help));
                metric.samples.extend(samples(one, &labels));
            }
        }
    }
    let mut text = String::new();
    for (name, Metric { kind, help, samples }) in metrics {
        let _ = write!(text, "# HELP ofi_{name} {}\n# TYPE ofi_{name} {kind}\n", escaped(help));
        samples.iter().for_each(|sample| text.push_str(sample));
    }
    text
}

struct Metric<'a> {
    kind: &'static str,
    help: &'a str,
    samples: Vec<String>,
}

impl<'a> Metric<'a> {
    fn new(kind: &'static str, help: &'a str) -> Self {
        Self { kind, help, samples: Vec::new() }
    }
}

/// The labels of an endpoint and of a bucket. A duplicate label in a metric makes the whole text unreadable.
const LABELS: [&str; 8] = ["pid", "program", "endpoint", "provider", "domain", "kind", "address", "le"];

/// The samples of a histogram.
fn samples(one: &Histogram, labels: &str) -> Vec<String> {
    let own = one.labels.iter().filter(|(name, _)| !LABELS.contains(&name.as_str()));
    let own = own.map(|(name, value)| format!(",{name}=\"{}\"", escaped(value)));
    let (name, labels) = (&one.name, format!("{labels}{}", own.collect::<String>()));
    let below = one.below().map(|(bound, count)| {
        let bound = bound.map_or("+Inf".to_string(), |seconds| seconds.to_string());
        format!("ofi_{name}_bucket{{{labels},le=\"{bound}\"}} {count}\n")
    });
    let sum = format!("ofi_{name}_sum{{{labels}}} {}\n", one.sum_us as f64 / 1e6);
    below.chain([sum, format!("ofi_{name}_count{{{labels}}} {}\n", one.count())]).collect()
}

/// Each endpoint of a process is numbered, since not all have an address.
fn labels(process: &Process, place: usize, endpoint: &Endpoint) -> String {
    let Endpoint { provider, domain, kind, address, .. } = endpoint;
    let (pid, place) = (process.pid.to_string(), place.to_string());
    let all = [
        ("pid", &pid),
        ("program", &process.program),
        ("endpoint", &place),
        ("provider", provider),
        ("domain", domain),
        ("kind", kind),
        ("address", address),
    ];
    let all: Vec<String> = all.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    all.join(",")
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::Statistic;
    use super::*;

    #[test]
    fn samples_of_one_metric_stand_together_and_labels_are_escaped() {
        let endpoint = |value| Endpoint {
            provider: "udp".into(),
            domain: "lo".into(),
            kind: "RDM".into(),
            address: "a\\\"b".into(),
            statistics: vec![Statistic { name: "tx_messages".into(), value, help: "messages sent".into() }],
            histograms: Vec::new(),
        };
        let process = Process { pid: 4, program: "p".into(), endpoints: vec![endpoint(7), endpoint(8)] };
        let tail = r#"provider="udp",domain="lo",kind="RDM",address="a\\\"b"}"#;
        let wanted = format!(
            "# HELP ofi_tx_messages messages sent\n# TYPE ofi_tx_messages untyped\n\
             ofi_tx_messages{{pid=\"4\",program=\"p\",endpoint=\"0\",{tail} 7\n\
             ofi_tx_messages{{pid=\"4\",program=\"p\",endpoint=\"1\",{tail} 8\n"
        );
        assert_eq!(text(&[process]), wanted);
    }
    #[test]
    fn a_histogram_has_its_bounds_its_sum_and_its_count() {
        let histogram =
            Histogram::parse("access_seconds", "rail=0;provider=shm;le=1", "2500000", "1,0,2,1", "accesses")
                .unwrap();
        let endpoint = Endpoint {
            provider: "multirail".into(),
            domain: "a".into(),
            kind: "AGENT".into(),
            address: String::new(),
            statistics: Vec::new(),
            histograms: vec![histogram],
        };
        let process = Process { pid: 4, program: "p".into(), endpoints: vec![endpoint] };
        let text = text(&[process]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["# HELP ofi_access_seconds accesses", "# TYPE ofi_access_seconds histogram"]);
        let labels = r#"pid="4",program="p",endpoint="0",provider="multirail",domain="a",kind="AGENT",address="",rail="0""#;
        let bucket =
            |bound: &str, count| format!("ofi_access_seconds_bucket{{{labels},le=\"{bound}\"}} {count}");
        let bounds = [("0.000001", 1), ("0.000002", 1), ("0.000004", 3), ("+Inf", 4)];
        assert_eq!(lines[2..6], bounds.map(|(bound, count)| bucket(bound, count)));
        assert_eq!(lines[6], format!("ofi_access_seconds_sum{{{labels}}} 2.5"));
        assert_eq!(lines[7..], [format!("ofi_access_seconds_count{{{labels}}} 4")]);
    }
}
