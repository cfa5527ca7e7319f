//! The senders of MXL flows that an NMOS registry knows.

use std::fmt::Write as _;

use mxl::visible;
use mxl_nmos::{AUTO, Discovery, Query, RemoteSender};
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::output;

/// Prints the senders that a registry knows, as a table or as JSON. Registry `auto` is the one that DNS-SD finds.
///
/// # Errors
/// [`Failure::Usage`] for a registry that cannot be asked.
pub fn list(registry: &str, json: bool) -> Result<()> {
    let failed = |error: mxl_nmos::Error| Failure::Usage(error.to_string());
    let mut log = |note: &str| eprintln!("mxl-info: {}", visible(note));
    let query = match registry {
        AUTO => Query::find(&Discovery::default(), &|| false, &mut log),
        url => Query::open(url),
    };
    let senders = query.and_then(|query| query.senders()).map_err(failed)?;
    if json {
        return output::json(&senders.iter().map(to_json).collect::<Vec<_>>());
    }
    output::print(&table(&senders))
}

fn to_json(sender: &RemoteSender) -> Value {
    json!({
        "id": sender.id.to_string(),
        "label": sender.label,
        "mediaType": sender.media_type,
        "rate": sender.rate.map(|(numerator, denominator)| json!({ "numerator": numerator, "denominator": denominator })),
        "node": sender.node,
        "active": sender.is_active,
        "mxlDomainId": sender.domain.map(|id| id.to_string()),
        "mxlFlowId": sender.flow.map(|id| id.to_string()),
    })
}

fn table(senders: &[RemoteSender]) -> String {
    let mut text =
        format!("{:36}  {:14}  {:>10}  {:8}  {:24}  label\n", "flow", "format", "rate", "state", "node");
    for sender in senders {
        let flow = sender.flow.map_or_else(|| String::from("(unknown)"), |id| id.to_string());
        let rate = sender.rate.map_or_else(String::new, |(numerator, denominator)| match denominator {
            1 => numerator.to_string(),
            _ => format!("{numerator}/{denominator}"),
        });
        let (format, node, label) =
            (visible(&sender.media_type), visible(&sender.node), visible(&sender.label));
        let state = if sender.is_active { "active" } else { "off" };
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{flow:36}  {format:14}  {rate:>10}  {state:8}  {node:24}  {label}");
    }
    text
}
