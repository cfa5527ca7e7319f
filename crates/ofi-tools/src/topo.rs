//! `mr-topo`: `multirail`'s view of the machine, as a tree, a picture or JSON.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use multirail::Topology;
use multirail::topology::{Because, DramLimit, Near, Place};
use ofi::raw::{GetinfoFlags, Version};
use serde_json::json;

use crate::exit;
use crate::failure::{Failure, Result};
use crate::output;

/// Shows where this machine's NICs, accelerators and NUMA nodes are, and which NICs serve which accelerator.
#[derive(Debug, Parser)]
#[command(name = "mr-topo", version)]
pub(crate) struct Options {
    /// Write the picture (SVG) to this file instead of a tree to standard output.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    svg: Option<PathBuf>,
    /// Print all data as JSON.
    #[arg(long)]
    json: bool,
    /// Read this directory instead of /sys, and query no provider.
    #[arg(long, value_name = "DIR")]
    sys: Option<PathBuf>,
}

/// The program.
pub fn main() -> ExitCode {
    ofi::log_from_env();
    match Options::try_parse() {
        Ok(options) => exit::end("mr-topo", run(&options)),
        Err(error) => exit::usage(&error),
    }
}

fn run(options: &Options) -> Result<()> {
    let topology = match &options.sys {
        Some(dir) => {
            let doing = || format!("reading {}", dir.display());
            Topology::read(dir).map_err(|error| Failure::system(doing(), error))?
        }
        None => {
            let mut topology = Topology::of_host().map_err(|error| Failure::system("reading /sys", error))?;
            // If no provider is available, the devices in sysfs are still shown.
            let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), None);
            topology.add_infos(&infos.unwrap_or_default());
            topology
        }
    };
    let nics = topology.usual_nics();
    let grouping = topology.group(&nics);
    let near = near(&topology, &nics);
    if options.json {
        let near: Vec<_> =
            near.iter().map(|(place, near)| json!({ "memory": place, "uses": near })).collect();
        let value = json!({ "topology": topology, "grouping": grouping, "near": near });
        return output::print_json(&value);
    }
    match &options.svg {
        Some(file) => {
            let doing = || format!("writing {}", file.display());
            std::fs::write(file, topology.to_svg(&grouping)).map_err(|error| Failure::system(doing(), error))
        }
        None => output::print(&format!("{}{}", topology.to_text(&grouping), reasons(&topology, &near))),
    }
}

/// The NICs for the memory of each accelerator and NUMA node.
fn near(topology: &Topology, nics: &[usize]) -> Vec<(Place, Near)> {
    let accelerators = topology.accelerators().iter().map(|found| Place::Accelerator(found.pci));
    let nodes = topology.numa().iter().map(|node| Place::Numa(node.id));
    let places = accelerators.chain(nodes);
    places.map(|place| (place, topology.near(nics, place, DramLimit::Measured, 0))).collect()
}

/// A line for each place, which names the rails of a region there and the reason. Without a choice there is none.
fn reasons(topology: &Topology, near: &[(Place, Near)]) -> String {
    let has_choice = near.iter().any(|(_, near)| near.because != Because::OnlyNic);
    let line = |(place, near): &(Place, Near)| {
        let names: Vec<&str> = near.nics.iter().map(|&nic| topology.nics()[nic].name.as_str()).collect();
        let names = if names.is_empty() { "no NIC".to_string() } else { names.join(", ") };
        match place {
            Place::Accelerator(pci) => {
                format!("memory of the accelerator {pci} uses {names}: {}\n", near.because)
            }
            Place::Numa(node) => format!("memory of NUMA node {node} uses {names}: {}\n", near.because),
        }
    };
    if has_choice { near.iter().map(line).collect() } else { String::new() }
}
