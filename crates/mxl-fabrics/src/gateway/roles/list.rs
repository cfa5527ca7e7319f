//! `mxl-gateway list`: the flows that a host offers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use mxl::Uri;
use serde_json::Value;

use super::remote::Remote;
use crate::gateway::wire::{ControlReply, ControlRequest, Description, MAX_LISTED};
use crate::{Error, Result};

/// Maximum wait for the whole list.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// The command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The host, as mxl://HOST[:PORT]/, with ?id=ID for single flows
    uri: Uri,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

/// The command.
///
/// # Errors
/// [`Error::Argument`] if the host cannot be reached, and for a flow that it does not offer.
pub fn run(options: &Options) -> Result<()> {
    let remote = Remote::of(&options.uri)?;
    let failed = |error: std::io::Error| Error::Argument(format!("{remote}: {error}"));
    let (mut flows, more) = listed(&remote).map_err(failed)?;
    for id in &remote.ids {
        if !flows.iter().any(|flow| flow.id == *id) {
            return Err(Error::Argument(format!("{remote} offers no flow {id}")));
        }
    }
    if !remote.ids.is_empty() {
        flows.retain(|flow| remote.ids.contains(&flow.id));
    }
    let text = if options.json {
        format!("{}\n", Value::Array(flows.iter().map(Description::to_json).collect()))
    } else {
        table(&flows)
    };
    // A closed standard output is ignored.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if more {
        return Err(Error::Argument(format!("{remote} offers more flows than one list has")));
    }
    Ok(())
}

fn listed(remote: &Remote) -> std::io::Result<(Vec<Description>, bool)> {
    let begin = Instant::now();
    let mut control = remote.connect()?;
    control.ask(&ControlRequest::List)?;
    let mut flows = Vec::new();
    while begin.elapsed() < LIST_TIMEOUT {
        match control.reply()? {
            Some(ControlReply::Flow(_)) if flows.len() >= MAX_LISTED => {
                return Err(std::io::Error::other("more flows than a list has"));
            }
            Some(ControlReply::Flow(flow)) => flows.push(flow),
            Some(ControlReply::Listed { more }) => return Ok((flows, more)),
            Some(ControlReply::Refused { why, .. }) => return Err(std::io::Error::other(why)),
            _ => {}
        }
    }
    Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "no list within ten seconds"))
}

fn table(flows: &[Description]) -> String {
    let mut text = format!("{:36}  {:14}  {:>10}  {:8}  label\n", "flow", "format", "rate", "writers");
    for flow in flows {
        let writers = if flow.is_active { "yes" } else { "no" };
        let (format, rate, label) =
            (mxl::visible(&flow.format), flow.rate.to_string(), mxl::visible(&flow.label));
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{:36}  {format:14}  {rate:>10}  {writers:8}  {label}", flow.id);
    }
    text
}
