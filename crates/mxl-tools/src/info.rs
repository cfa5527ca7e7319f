//! `mxl-info`: the flows of a domain, the details of some of them, and the removal of flows without writers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use mxl::{Domain, Error, FlowInfo, Format, Rational, Runtime, Uri, Uuid, time, visible};
use serde::{Serialize, Serializer};

use crate::description::Description;
use crate::failure::{self, Failure, Result};
use crate::output::{duration, json, print};
use crate::place::{self, Place};

/// Shows the flows of a domain of the Media eXchange Layer.
#[derive(Debug, clap::Parser)]
#[command(name = "mxl-info", version)]
struct Options {
    /// A domain, or flows of it: mxl:///PATH or mxl:///PATH?id=ID&id=ID, in place of --domain and --flow
    #[arg(value_name = "URI")]
    uri: Option<Uri>,
    /// The domain's directory.
    #[arg(short, long, value_name = "DIR", required_unless_present_any = ["uri", "nmos"])]
    domain: Option<PathBuf>,
    /// List the senders of MXL flows that an NMOS registry knows, at the address of its Query API, http://HOST:PORT, or
    /// auto: DNS-SD finds it.
    #[arg(long, value_name = "URL", conflicts_with_all = ["uri", "domain", "flow", "garbage_collect", "watch"])]
    nmos: Option<String>,
    /// List the flows (the default).
    #[arg(short, long)]
    list: bool,
    /// Show one flow.
    #[arg(short, long, value_name = "ID")]
    flow: Option<Uuid>,
    /// Remove flows without writers, and the remains of flows whose creation was interrupted.
    #[arg(short, long, conflicts_with_all = ["flow", "list"])]
    garbage_collect: bool,
    /// Repeat every MS milliseconds.
    #[arg(short, long, value_name = "MS", num_args = 0..=1, default_missing_value = "1000", conflicts_with = "garbage_collect",
        value_parser = clap::value_parser!(u64).range(1..))]
    watch: Option<u64>,
    /// With `--watch`: stop after this many times [default: never].
    #[arg(short = 'n', long, value_name = "TIMES", requires = "watch")]
    count: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The command line, for its man page and completions.
pub fn command() -> clap::Command {
    <Options as clap::CommandFactory>::command()
}

/// Runs the program.
pub fn main() -> ExitCode {
    failure::main("mxl-info", run)
}

fn run(options: &Options) -> Result<()> {
    if let Some(registry) = &options.nmos {
        return crate::nmos::list(registry, options.json);
    }
    let place = Place::of(options.domain.as_deref(), options.flow, options.uri.as_ref())?;
    let domain = place::open("mxl-info", &place.domain)?;
    // Programs read the file itself: it is JSON.
    if let Some(description) = Description::of(domain.path())?.filter(|_| !options.json) {
        print(&format!("{description}\n"))?;
    }
    if options.garbage_collect {
        let collected = domain.collect()?;
        if options.json {
            return json(
                &serde_json::json!({ "flows": collected.flows, "unfinished": collected.unfinished }),
            );
        }
        return print(&format!(
            "removed {} flows without writers, {} unfinished ones\n",
            collected.flows, collected.unfinished
        ));
    }
    let mut left = if options.watch.is_some() { options.count.unwrap_or(u64::MAX) } else { 1 };
    while left > 0 {
        show(&domain, &place.flows, options)?;
        left -= 1;
        if let Some(every) = options.watch.filter(|_| left > 0) {
            std::thread::sleep(Duration::from_millis(every));
        }
    }
    Ok(())
}

fn show(domain: &Domain, flows: &[Uuid], options: &Options) -> Result<()> {
    if let (&[id], false) = (flows, options.list) {
        let report = Report::new(domain, id)?;
        return if options.json { json(&report) } else { print(&report.details()) };
    }
    if !flows.is_empty() && !options.list {
        let reports = flows.iter().map(|id| Report::new(domain, *id)).collect::<Result<Vec<_>>>()?;
        let details = || reports.iter().map(Report::details).collect::<Vec<_>>().join("\n");
        return if options.json { json(&reports) } else { print(&details()) };
    }
    let mut reports = Vec::new();
    for id in domain.flows()? {
        match Report::new(domain, id) {
            Ok(report) => reports.push(report),
            // The flow was deleted while the list was read.
            Err(Failure::Mxl(Error::NotFound(_))) => {}
            // A broken flow does not hide the others.
            Err(failure) => eprintln!("mxl-info: {}", visible(&failure.to_string())),
        }
    }
    if options.json { json(&reports) } else { print(&(table(&reports) + &groups(domain, &reports))) }
}

/// The properties of a flow.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    #[serde(serialize_with = "text")]
    id: Uuid,
    label: String,
    /// The groups and the flow's roles in them: `<group>:<role>[:<scope>]`.
    groups: Vec<String>,
    /// The name of the first group.
    #[serde(skip)]
    group: String,
    /// Names the flow for programs.
    uri: String,
    /// For example `video/v210`, with its size.
    format: String,
    rate: Rational,
    active: bool,
    /// The ring: grains, or samples of each channel.
    ring: u32,
    max_commit_batch_size_hint: u32,
    max_sync_batch_size_hint: u32,
    head_index: u64,
    /// Indices from the head to the current time; negative if the head is ahead.
    latency: i64,
    /// Nanoseconds of TAI.
    last_write_time: u64,
    /// Nanoseconds of TAI.
    last_read_time: u64,
}

fn text<S: Serializer>(id: &Uuid, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

impl Report {
    fn new(domain: &Domain, id: Uuid) -> Result<Self> {
        let (info, runtime) = domain.info(id)?;
        // A flow with an invalid definition is listed too.
        let (label, hints, format) = match domain.definition(id) {
            Ok(definition) => (definition.label, definition.group_hints, format(&definition.format)),
            Err(error) => (format!("({error})"), Vec::new(), String::from("?")),
        };
        let Runtime { head, last_write, last_read } = runtime;
        let common = info.config.common;
        Ok(Self {
            id,
            label,
            groups: hints.iter().map(ToString::to_string).collect(),
            group: hints.into_iter().next().map(|hint| hint.group).unwrap_or_default(),
            uri: Uri::new(domain.path(), [id]).to_string(),
            format,
            rate: info.rate(),
            active: domain.is_active(id)?,
            ring: ring(&info),
            max_commit_batch_size_hint: common.max_commit_batch,
            max_sync_batch_size_hint: common.max_sync_batch,
            head_index: head,
            latency: time::current_index(info.rate()).unwrap_or(0).wrapping_sub(head).cast_signed(),
            last_write_time: last_write,
            last_read_time: last_read,
        })
    }

    fn details(&self) -> String {
        let ago = |then: u64| duration(time::now().saturating_sub(then));
        let unit = if self.format.starts_with("audio") { "samples" } else { "grains" };
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{name:>12}  {value}");
        };
        line("flow", self.id.to_string());
        line("label", visible(&self.label).into());
        line("groups", visible(&self.groups.join(", ")).into());
        line("uri", self.uri.clone());
        line("format", self.format.clone());
        line("rate", format!("{} {unit} a second", self.rate));
        line("writers", if self.active { "active".into() } else { "none".into() });
        line("ring", format!("{} {unit}", self.ring));
        let (commit, sync) = (self.max_commit_batch_size_hint, self.max_sync_batch_size_hint);
        line("batches", format!("{commit} committed, {sync} announced"));
        line("head", self.head_index.to_string());
        line("latency", format!("{} {unit}", self.latency));
        line("written", format!("{} ago", ago(self.last_write_time)));
        line("read", format!("{} ago", ago(self.last_read_time)));
        text
    }
}

fn ring(info: &FlowInfo) -> u32 {
    if info.is_discrete() {
        info.config.discrete().grain_count
    } else {
        info.config.continuous().buffer_length
    }
}

fn format(format: &Format) -> String {
    match format {
        Format::Video(video) => {
            let kind = if video.alpha { "v210a" } else { "v210" };
            let scan = if video.lines() == video.height { "p" } else { "i" };
            format!("video/{kind} {}x{}{scan}", video.width, video.height)
        }
        Format::Audio(audio) => format!("audio/float{} {} channels", audio.word * 8, audio.channels),
        Format::Data(_) => "video/smpte291".into(),
    }
}

/// The URI of each group: its flows together.
fn groups(domain: &Domain, reports: &[Report]) -> String {
    let mut groups = BTreeMap::<&str, Vec<Uuid>>::new();
    for Report { id, group, .. } in reports.iter().filter(|report| !report.group.is_empty()) {
        groups.entry(group).or_default().push(*id);
    }
    let lines = groups
        .into_iter()
        .map(|(group, flows)| format!("{}: {}\n", visible(group), Uri::new(domain.path(), flows)));
    lines.fold(String::from(if reports.is_empty() { "" } else { "\n" }), |text, line| text + &line)
}

fn table(reports: &[Report]) -> String {
    let mut text = format!(
        "{:36}  {:26}  {:>10}  {:>8}  {:>8}  label\n",
        "flow", "format", "rate", "writers", "latency"
    );
    for report in reports {
        let Report { id, label, format, rate, latency, .. } = report;
        let writers = if report.active { "active" } else { "none" };
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "{id}  {format:26}  {:>10}  {writers:>8}  {latency:>8}  {}",
            rate.to_string(),
            visible(label)
        );
    }
    text
}
