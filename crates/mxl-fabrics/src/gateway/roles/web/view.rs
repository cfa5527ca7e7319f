//! The flows as clients see them: the reports of the roles, and what the domain says of each flow. As JSON, and as
//! metrics in Prometheus's text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use mxl::{Domain, FlowDefinition, Format, Uuid, time};
use serde_json::{Value, json};

use super::status::{Counts, FlowState, FlowStatus};
use crate::Provider;
use crate::gateway::wire::Description;

/// What a gateway says of itself.
#[derive(Clone, Debug)]
pub struct About {
    /// The role's name on the command line.
    pub role: &'static str,
    /// The provider of its flows.
    pub provider: Provider,
    /// The domain.
    pub domain: Domain,
}

/// A flow, for clients.
#[derive(Clone, Debug)]
pub struct FlowView {
    status: FlowStatus,
    /// `None` if the domain has no such flow, or no valid definition of it.
    definition: Option<FlowDefinition>,
    /// Seconds since the flow was last written here; `None` if it never was.
    age: Option<f64>,
}

impl FlowView {
    /// Joins a report and the domain's flow.
    pub fn new(domain: &Domain, status: FlowStatus) -> Self {
        let definition = domain.definition(status.id).ok().filter(|definition| definition.id == status.id);
        let written = domain.info(status.id).map(|(_, runtime)| runtime.last_write).unwrap_or_default();
        let age = time::now().saturating_sub(written) as f64 / 1e9;
        Self { status, definition, age: (written > 0).then_some(age) }
    }

    fn id(&self) -> Uuid {
        self.status.id
    }

    /// The unit of its counts, if the domain has its definition.
    fn unit(&self) -> Option<&'static str> {
        let is_audio = matches!(self.definition.as_ref()?.format, Format::Audio(_));
        Some(if is_audio { "samples" } else { "grains" })
    }

    fn is_video(&self) -> bool {
        self.definition.as_ref().is_some_and(|definition| matches!(definition.format, Format::Video(_)))
    }

    fn to_json(&self) -> Value {
        let FlowStatus { id, state, why, peers, counts, counted } = &self.status;
        let Counts { forwarded, late, lost, bytes, reconnections } = counts;
        let described = self.definition.as_ref().map(|definition| Description::new(definition, true));
        json!({
            "id": id.to_string(),
            "label": described.as_ref().map(|described| &described.label),
            "format": described.as_ref().map(|described| &described.format),
            "rate": described.as_ref().map(|described| described.rate),
            "groups": described.as_ref().map(|described| &described.groups),
            "state": state.name(),
            "why": why,
            "peers": peers,
            "unit": self.unit(),
            "forwarded": forwarded,
            "late": late,
            "lost": lost,
            "bytes": bytes,
            "reconnections": reconnections,
            "counted_seconds": *counted as f64 / 1e9,
            "age_seconds": self.age,
            "thumbnail": self.is_video().then(|| format!("/thumbnails/{id}.png")),
        })
    }
}

/// All flows as JSON. Clients compute rates from counts, and from the times (`counted_seconds`) when they were read.
pub fn to_json(about: &About, flows: &[FlowView]) -> Value {
    json!({
        "role": about.role,
        "provider": about.provider.to_string(),
        "domain": about.domain.path().display().to_string(),
        "version": env!("CARGO_PKG_VERSION"),
        "flows": flows.iter().map(FlowView::to_json).collect::<Vec<_>>(),
    })
}

/// A value of a label: backslashes, quotation marks and line ends are escaped.
fn label(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

/// Appends a metric and its samples.
fn metric(
    to: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    samples: impl Iterator<Item = (String, String)>,
) {
    // Writing to a `String` cannot fail.
    let _ = writeln!(to, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(to, "{name}{{{labels}}} {value}");
    }
}

type Count = fn(&Counts) -> u64;

/// The counters that are in the flow's unit: a name, and what it counts.
const OF_UNIT: [(&str, &str, Count); 3] = [
    ("forwarded", "that were passed on", |counts| counts.forwarded),
    ("late", "that were passed on late", |counts| counts.late),
    ("lost", "that could not be passed on", |counts| counts.lost),
];

/// All flows as metrics.
pub fn to_metrics(about: &About, flows: &[FlowView]) -> String {
    let mut text = String::new();
    let (role, provider) = (about.role, about.provider);
    let info = format!("role=\"{role}\",provider=\"{provider}\",version=\"{}\"", env!("CARGO_PKG_VERSION"));
    let help = "The gateway's role, provider and version.";
    metric(&mut text, "mxl_gateway_info", "gauge", help, std::iter::once((info, "1".into())));
    let mut states: BTreeMap<&str, u32> = FlowState::ALL.iter().map(|state| (state.name(), 0)).collect();
    for flow in flows {
        *states.entry(flow.status.state.name()).or_default() += 1;
    }
    let samples = states.iter().map(|(state, count)| (format!("state=\"{state}\""), count.to_string()));
    metric(&mut text, "mxl_gateway_flows", "gauge", "Flows by their state.", samples);
    let named = flows.iter().filter_map(|flow| {
        let described = Description::new(flow.definition.as_ref()?, true);
        let (name, format) = (label(&described.label), label(&described.format));
        Some((format!("flow=\"{}\",label=\"{name}\",format=\"{format}\"", flow.id()), "1".into()))
    });
    metric(&mut text, "mxl_gateway_flow_info", "gauge", "A flow's label and format.", named);
    let of = |flow: &FlowView| format!("flow=\"{}\"", flow.id());
    let connected = |flow: &FlowView| u8::from(flow.status.state == FlowState::Connected).to_string();
    let samples = flows.iter().map(|flow| (of(flow), connected(flow)));
    metric(&mut text, "mxl_gateway_connected", "gauge", "Whether a connection carries the flow.", samples);
    for unit in ["grains", "samples"] {
        for (name, what, count) in OF_UNIT {
            let samples = flows.iter().filter(|flow| flow.unit() == Some(unit));
            let samples = samples.map(|flow| (of(flow), count(&flow.status.counts).to_string()));
            let mut help = format!("{unit} {what}.");
            help[..1].make_ascii_uppercase();
            metric(&mut text, &format!("mxl_gateway_{name}_{unit}_total"), "counter", &help, samples);
        }
    }
    let others: [(&str, &str, Count); 2] = [
        ("forwarded_bytes", "Bytes of payload that were passed on.", |counts| counts.bytes),
        ("reconnections", "Connections of the flow after its first one.", |counts| counts.reconnections),
    ];
    for (name, help, count) in others {
        let samples = flows.iter().map(|flow| (of(flow), count(&flow.status.counts).to_string()));
        metric(&mut text, &format!("mxl_gateway_{name}_total"), "counter", help, samples);
    }
    let samples = flows.iter().filter_map(|flow| Some((of(flow), flow.age?.to_string())));
    let help = "Time since the flow was last written in this host's domain.";
    metric(&mut text, "mxl_gateway_last_write_age_seconds", "gauge", help, samples);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows() -> [FlowView; 2] {
        let label = "camera \"1\"\\\n";
        let audio = FlowDefinition::audio("tone", 2, mxl::Rational::new(48_000, 1)).unwrap();
        let video = FlowDefinition::video(label, 192, 40, mxl::Rational::new(50, 1)).unwrap();
        [(audio, FlowState::Offered, None), (video, FlowState::Connected, Some(0.25))].map(
            |(definition, state, age)| {
                let counts = Counts { forwarded: 7, late: 2, lost: 1, bytes: 99, reconnections: 3 };
                let (why, peers) = (String::new(), Vec::new());
                let status = FlowStatus { id: definition.id, state, why, peers, counts, counted: 1 };
                FlowView { status, definition: Some(definition), age }
            },
        )
    }

    fn about() -> About {
        About { role: "serve", provider: Provider::Tcp, domain: Domain::open(std::env::temp_dir()).unwrap() }
    }

    #[test]
    fn metrics_are_lines_that_prometheus_reads() {
        let flows = flows();
        let text = to_metrics(&about(), &flows);
        let (audio, video) = (flows[0].id(), flows[1].id());
        for line in [
            format!("mxl_gateway_forwarded_samples_total{{flow=\"{audio}\"}} 7"),
            format!("mxl_gateway_late_grains_total{{flow=\"{video}\"}} 2"),
            format!("mxl_gateway_last_write_age_seconds{{flow=\"{video}\"}} 0.25"),
            format!("mxl_gateway_connected{{flow=\"{audio}\"}} 0"),
            "mxl_gateway_flows{state=\"connected\"} 1".into(),
            "# TYPE mxl_gateway_forwarded_bytes_total counter".into(),
            format!(
                "mxl_gateway_flow_info{{flow=\"{video}\",label=\"camera \\\"1\\\"\\\\\\n\",format=\"video/v210\"}} 1"
            ),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        // Each line is a comment, or a name with labels and a number; each metric is described before its samples.
        let mut described = "";
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# TYPE ") {
                described = comment.split(' ').next().unwrap();
            } else if !line.starts_with("# HELP ") {
                let (name, rest) = line.split_once('{').unwrap();
                assert_eq!(name, described);
                assert!(rest.rsplit_once("} ").unwrap().1.parse::<f64>().is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn counts_without_a_unit_are_in_no_metric() {
        let mut flows = flows();
        flows[0].definition = None;
        let (text, id) = (to_metrics(&about(), &flows), flows[0].id());
        let counted = text.lines().filter(|line| line.contains("_total{") && line.contains(&id.to_string()));
        assert!(counted.clone().all(|line| !line.contains("grains") && !line.contains("samples")), "{text}");
        assert_eq!((counted.count(), &to_json(&about(), &flows)["flows"][0]["unit"]), (2, &Value::Null));
    }

    #[test]
    fn only_video_has_a_thumbnail() {
        let flows = flows();
        let json = to_json(&about(), &flows);
        assert_eq!(json["flows"][0]["thumbnail"], Value::Null);
        assert_eq!(json["flows"][1]["thumbnail"], format!("/thumbnails/{}.png", flows[1].id()));
        assert_eq!(json["flows"][0]["unit"], "samples");
    }
}
