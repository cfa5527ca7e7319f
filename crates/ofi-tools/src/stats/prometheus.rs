//! Prometheus's text format.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Endpoint, Process, Statistic};

/// One metric for each name, one sample for each endpoint.
pub fn text(processes: &[Process]) -> String {
    let mut metrics: BTreeMap<&str, (&Statistic, Vec<String>)> = BTreeMap::new();
    for process in processes {
        for (place, endpoint) in process.endpoints.iter().enumerate() {
            let labels = labels(process, place, endpoint);
            for one in &endpoint.statistics {
                let (_, samples) = metrics.entry(&one.name).or_insert((one, Vec::new()));
                samples.push(format!("ofi_{}{labels} {}\n", one.name, one.value));
            }
        }
    }
    let mut text = String::new();
    for (name, (one, samples)) in metrics {
        // Counters and gauges are not told apart where they are counted.
        let _ = write!(text, "# HELP ofi_{name} {}\n# TYPE ofi_{name} untyped\n", escaped(&one.help));
        samples.iter().for_each(|sample| text.push_str(sample));
    }
    text
}

/// Endpoints of a process have a number each, as not all have an address.
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
    format!("{{{}}}", all.join(","))
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_metric_stand_together_and_labels_are_escaped() {
        let endpoint = |value| Endpoint {
            provider: "udp".into(),
            domain: "lo".into(),
            kind: "RDM".into(),
            address: "a\\\"b".into(),
            statistics: vec![Statistic { name: "tx_messages".into(), value, help: "messages sent".into() }],
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
}
