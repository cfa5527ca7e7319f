//! `mxl-fabrics-info`: prints the addresses and providers of this host.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Parser;
use serde_json::{Value, json};

use crate::interfaces::{Interface, interfaces, reasons};
use crate::{Error, Result, program};

/// Lists the addresses and providers that reach this host.
#[derive(Debug, Parser)]
#[command(name = "mxl-fabrics-info", version)]
struct Options {
    /// A domain's directory. It must exist, but is not used: for compatibility with the C++ SDK.
    #[arg(short, long, value_name = "DIR")]
    domain: Option<std::path::PathBuf>,
    /// Provider: any, tcp, verbs, efa, shm or udp.
    #[arg(short, long, default_value = "any")]
    provider: String,
    /// Only this node, for example an IP address.
    #[arg(short, long)]
    node: Option<String>,
    /// Print every attribute.
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// The command line, for its man page and completions.
pub fn command() -> clap::Command {
    <Options as clap::CommandFactory>::command()
}

/// Runs the program.
pub fn main() -> ExitCode {
    program::run("mxl-fabrics-info", run)
}

fn run(options: &Options) -> Result<()> {
    if let Some(domain) = options.domain.as_ref().filter(|domain| !domain.is_dir()) {
        return Err(Error::Argument(format!("{}: not a directory", domain.display())));
    }
    let provider = match &*options.provider {
        "any" => None,
        name => Some(name.parse()?),
    };
    let found = interfaces(provider, options.node.as_deref());
    if options.json {
        let entry = |entry: &Interface| {
            json!({
                "provider": entry.provider.name(),
                "node": entry.node,
                "max_message_size": entry.max_message,
                "attributes": entry.attributes,
            })
        };
        println!("{}", Value::Array(found.iter().map(entry).collect()));
    } else {
        print!("{}", text(&found, options.verbose));
    }
    if found.is_empty() {
        return Err(Error::NoInterface(reasons(provider, options.node.as_deref())));
    }
    Ok(())
}

/// The text output, in the format of the C++ SDK's program.
fn text(found: &[Interface], verbose: bool) -> String {
    let mut text = String::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for Interface { provider, node, max_message, attributes } in found {
        let count = counts.entry(provider.name()).or_default();
        let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        // Writing to a `String` cannot fail.
        let _ = if verbose {
            let attributes: String =
                attributes.iter().map(|(name, value)| format!("    {name}: {}\n", shown(value))).collect();
            write!(
                text,
                "interface {provider}-{count}\n  provider:      {provider}\n  node:          {node}\n  \
                 max message:   {max_message} bytes\n  capabilities:  BLOCKING_OPERATIONS|REMOTE_WRITE|SEND_RECEIVE\n  \
                 info:\n{attributes}"
            )
        } else {
            let device = attributes.get("device_name").map_or_else(|| "<none>".into(), shown);
            writeln!(text, "interface {provider}-{count} node {node} dev {device}")
        };
        *count += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Provider;

    #[test]
    fn a_line_for_each_interface_and_more_if_asked_for() {
        let attributes = BTreeMap::from([("device_name", json!("eth0")), ("link_speed", json!(5))]);
        let entry =
            Interface { provider: Provider::Tcp, node: "192.0.2.1".into(), max_message: 8, attributes };
        let found = [entry.clone(), Interface { attributes: BTreeMap::new(), ..entry }];
        assert_eq!(
            text(&found, false),
            "interface tcp-0 node 192.0.2.1 dev eth0\ninterface tcp-1 node 192.0.2.1 dev <none>\n"
        );
        let long = text(&found, true);
        assert!(
            long.contains("  max message:   8 bytes\n") && long.contains("    link_speed: 5\n"),
            "{long}"
        );
    }
}
