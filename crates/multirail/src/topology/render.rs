//! A topology as a tree of text, in the manner of `lstopo`.

use std::fmt::Write;

use super::{Accelerator, Grouping, Nic, NicKind, NodeKind, Topology, Vendor};

/// An item to draw below a node: a node, an accelerator or a NIC.
#[derive(Clone, Copy)]
pub(super) enum Below {
    Node(usize),
    Accelerator(usize),
    Nic(usize),
}

impl Topology {
    /// The tree, with a line for each place and device. Places without NICs and accelerators are omitted.
    pub fn to_text(&self, grouping: &Grouping) -> String {
        let mut text = String::from("machine\n");
        let mut prefix = String::new();
        self.write_below(0, grouping, &mut prefix, &mut text);
        text
    }

    fn write_below(&self, node: usize, grouping: &Grouping, prefix: &mut String, text: &mut String) {
        let below = self.below(node);
        for (nth, item) in below.iter().enumerate() {
            let is_last = nth + 1 == below.len();
            let line = match *item {
                Below::Node(node) => self.node_title(node),
                Below::Accelerator(index) => {
                    let names = |&nic: &usize| self.nics[nic].name.clone();
                    let served: Vec<String> =
                        grouping.nics.get(index).into_iter().flatten().map(names).collect();
                    let served = if served.is_empty() { "no NIC".into() } else { served.join(", ") };
                    format!("{} -> {served}", self.accelerators[index].title(index))
                }
                Below::Nic(index) => self.nics[index].title(),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{prefix}{}{line}", if is_last { "└─ " } else { "├─ " });
            if let Below::Node(node) = *item {
                let len = prefix.len();
                prefix.push_str(if is_last { "   " } else { "│  " });
                self.write_below(node, grouping, prefix, text);
                prefix.truncate(len);
            }
        }
    }

    /// The items directly below a node, without places that have no device. A chain of bridges is represented by its
    /// last one.
    pub(super) fn below(&self, node: usize) -> Vec<Below> {
        let mut found = Vec::new();
        for index in 0..self.nodes.len() {
            if self.nodes[index].parent != Some(node) {
                continue;
            }
            let inner = self.below(index);
            match inner[..] {
                [] => {}
                // A bridge over a single bridge or device adds no information.
                [only] if matches!(self.nodes[index].kind, NodeKind::Bridge { .. }) => found.push(only),
                _ => found.push(Below::Node(index)),
            }
        }
        let accelerators = (0..self.accelerators.len()).filter(|&at| self.accelerators[at].parent == node);
        found.extend(accelerators.map(Below::Accelerator));
        found.extend((0..self.nics.len()).filter(|&at| self.nics[at].parent == node).map(Below::Nic));
        found
    }

    pub(super) fn node_title(&self, node: usize) -> String {
        match self.nodes[node].kind {
            NodeKind::Machine => "machine".into(),
            NodeKind::Numa(id) => format!("NUMA node {id}"),
            NodeKind::Host { domain, bus } => format!("root complex {domain:04x}:{bus:02x}"),
            NodeKind::Bridge { pci, link: Some(link) } => format!("switch {pci}, {link}: {}", link.rate()),
            NodeKind::Bridge { pci, link: None } => format!("switch {pci}"),
        }
    }
}

impl Accelerator {
    pub(super) fn title(&self, index: usize) -> String {
        let kind = match self.vendor {
            Vendor::Nvidia => "GPU",
            Vendor::Neuron => "Neuron",
        };
        match self.link {
            Some(link) => format!("{kind} {index} {}, {link}", self.pci),
            None => format!("{kind} {index} {}", self.pci),
        }
    }
}

impl Nic {
    pub(super) fn title(&self) -> String {
        let mut title = match self.kind {
            NicKind::Rdma => format!("RDMA {}", self.name),
            NicKind::Net => format!("net {}", self.name),
            NicKind::Provider => format!("domain {}", self.name),
        };
        // Writing to a string cannot fail.
        if let Some(pci) = self.pci {
            let _ = write!(title, " {pci}");
        }
        if let Some(speed) = self.speed {
            let _ = write!(title, ", {speed}");
        }
        if let Some(link) = self.link {
            let _ = write!(title, ", {link}");
        }
        if !self.providers.is_empty() {
            let names: Vec<&str> = self.providers.iter().map(|offer| offer.provider.as_str()).collect();
            let _ = write!(title, " [{}]", names.join(", "));
        }
        title
    }
}
