//! The same machines as hwloc describes them, in XML that is made here from the same descriptions: the results are
//! equal.

use std::fmt::Write;

use multirail::Topology;
use multirail::topology::{DramLimit, NicKind, Rate};
use ofi::Errno;

use super::Machine;

const MACHINES: [(&str, &str); 8] = [
    ("c5n", include_str!("machines/c5n.txt")),
    ("g5", include_str!("machines/g5.txt")),
    ("g6", include_str!("machines/g6.txt")),
    ("p3dn", include_str!("machines/p3dn.txt")),
    ("p4d", include_str!("machines/p4d.txt")),
    ("p5", include_str!("machines/p5.txt")),
    ("p5en", include_str!("machines/p5en.txt")),
    ("p6-b200", include_str!("machines/p6-b200.txt")),
];

/// The output of `lstopo`, as far as the parser reads it. It has a processor for each NUMA node; devices without a node
/// are below the machine.
struct Xml {
    text: String,
    objects: u32,
}

impl Xml {
    fn of(description: &str) -> String {
        let lines: Vec<&str> =
            description.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        let nodes: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("node ")).collect();
        let mut xml = Self { text: String::new(), objects: 0 };
        let sets = xml.sets((1 << nodes.len()) - 1);
        xml.text.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n");
        xml.open(
            "Machine",
            &format!(
                "os_index=\"0\" {sets} allowed_cpuset=\"{0:#x}\" allowed_nodeset=\"{0:#x}\"",
                (1 << nodes.len()) - 1
            ),
        );
        for (nth, node) in nodes.iter().enumerate() {
            let sets = xml.sets(1 << nth);
            xml.open("Package", &format!("os_index=\"{nth}\" {sets}"));
            xml.leaf("NUMANode", &format!("os_index=\"{node}\" {sets} local_memory=\"1073741824\""));
            xml.open("Core", &format!("os_index=\"{nth}\" {sets}"));
            xml.leaf("PU", &format!("os_index=\"{nth}\" {sets}"));
            xml.close();
            xml.hosts(&lines, node);
            xml.close();
        }
        xml.hosts(&lines, "none");
        xml.close();
        xml.text + "</topology>\n"
    }

    fn sets(&self, bits: u32) -> String {
        format!(
            "cpuset=\"{bits:#x}\" complete_cpuset=\"{bits:#x}\" nodeset=\"{bits:#x}\" complete_nodeset=\"{bits:#x}\""
        )
    }

    fn open(&mut self, kind: &str, attributes: &str) {
        self.objects += 1;
        writeln!(self.text, "<object type=\"{kind}\" gp_index=\"{}\" {attributes}>", self.objects).unwrap();
    }

    fn close(&mut self) {
        self.text.push_str("</object>\n");
    }

    fn leaf(&mut self, kind: &str, attributes: &str) {
        self.open(kind, attributes);
        self.close();
    }

    /// The root complexes of a node, with everything below them.
    fn hosts(&mut self, lines: &[&str], node: &str) {
        let mut open = 0;
        let mut is_its = false;
        for line in lines {
            let depth = (line.len() - line.trim_start().len()) / 2;
            let words: Vec<&str> = line.split_whitespace().collect();
            if depth == 0 {
                is_its = words[0] == "host" && words[3] == node;
            }
            if !is_its {
                continue;
            }
            while open > depth {
                self.close();
                open -= 1;
            }
            match words[..] {
                ["host", bus, ..] => {
                    let (domain, bus) = bus.split_once(':').unwrap();
                    let below = format!("bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"{domain}:[{bus}-ff]\"");
                    self.open("Bridge", &below);
                    open += 1;
                }
                ["bridge", pci, link] => {
                    let bus = &pci[5..7];
                    let below = format!(
                        "bridge_type=\"1-1\" depth=\"{depth}\" bridge_pci=\"{}:[{bus}-ff]\"",
                        &pci[..4]
                    );
                    self.open("Bridge", &format!("{below} {}", device(pci, "0604", "1d0f:0200", link)));
                    open += 1;
                }
                ["gpu", pci, id, link] => self.leaf("PCIDev", &device(pci, "0302", id, link)),
                [kind @ ("rdma" | "net"), pci, id, link, name, _] => {
                    self.open("PCIDev", &device(pci, "0200", id, link));
                    // Networks are 2, OpenFabrics devices 3.
                    let number = if kind == "rdma" { 3 } else { 2 };
                    self.leaf("OSDev", &format!("name=\"{name}\" osdev_type=\"{number}\""));
                    self.close();
                }
                _ => panic!("invalid line of a description: {line}"),
            }
        }
        for _ in 0..open {
            self.close();
        }
    }
}

fn device(pci: &str, class: &str, id: &str, link: &str) -> String {
    let speed = link.split_once('x').map_or(0.0, |(speed, lanes)| {
        let lane: f64 = speed.parse().unwrap();
        let coding = if lane > 5.0 { 128.0 / 130.0 } else { 0.8 };
        lane * coding * lanes.parse::<f64>().unwrap() / 8.0
    });
    format!("pci_busid=\"{pci}\" pci_type=\"{class} [{id}] [0000:0000] 00\" pci_link_speed=\"{speed:.6}\"")
}

#[test]
fn hwloc_gives_the_same_answers_for_all_eight_machines() {
    for (name, description) in MACHINES {
        let by_sysfs = Machine::new(description);
        let mut topology = Topology::of_hwloc_xml(&Xml::of(description)).unwrap();
        // hwloc does not know the rates of ports; providers do.
        topology.add_infos(&infos(&by_sysfs.topology));
        let rdma = topology.nics_where(|nic| nic.kind == NicKind::Rdma);
        let by_hwloc = Machine { topology, rdma };
        let names = |machine: &Machine| -> Vec<_> {
            machine
                .topology
                .nics()
                .iter()
                .map(|nic| (nic.name.clone(), nic.kind, nic.pci, nic.numa))
                .collect()
        };
        assert_eq!(names(&by_hwloc), names(&by_sysfs), "{name}");
        assert_eq!(by_hwloc.rdma, by_sysfs.rdma, "{name}");
        assert_eq!(
            by_hwloc.topology.group(&by_hwloc.rdma),
            by_sysfs.topology.group(&by_sysfs.rdma),
            "{name}"
        );
        let places = |machine: &Machine| -> Vec<_> {
            machine
                .topology
                .accelerators()
                .iter()
                .map(|gpu| (gpu.pci, gpu.vendor, gpu.device, gpu.numa))
                .collect()
        };
        assert_eq!(places(&by_hwloc), places(&by_sysfs), "{name}");
        assert_eq!(
            by_hwloc.topology.numa_capacity(&by_hwloc.rdma),
            by_sysfs.topology.numa_capacity(&by_sysfs.rdma),
            "{name}"
        );
        for numa in [0, 1] {
            for turn in 0..5 {
                let limits = [50, 100, 400, 900, 3_200].map(|rate| DramLimit::AtMost(Rate::gbps(rate)));
                for limit in limits.into_iter().chain([DramLimit::Measured]) {
                    let (hwloc, sysfs) =
                        (by_hwloc.rails(numa, limit, turn), by_sysfs.rails(numa, limit, turn));
                    assert_eq!(hwloc, sysfs, "{name}, node {numa}, {limit:?}, turn {turn}");
                }
            }
        }
    }
}

/// The infos of a provider that offers every NIC.
fn infos(topology: &Topology) -> Vec<ofi::Info> {
    let nics = topology.nics().iter().filter(|nic| nic.speed.is_some());
    nics.map(|nic| {
        let mut info = ofi::Info::default();
        info.fabric_attr.prov_name = "efa".into();
        info.domain_attr.name = nic.name.clone();
        let mut attr = ofi::raw::Nic::default();
        attr.device_attr.name = nic.name.clone();
        attr.link_attr.speed = nic.speed.map_or(0, |rate| rate.0 as usize);
        info.nic = Some(attr);
        info
    })
    .collect()
}

#[test]
fn this_host_is_read_and_what_is_no_description_is_refused() {
    let host = Topology::of_host_by_hwloc().unwrap();
    assert!(!host.numa().is_empty(), "{host:?}");
    let sysfs = Topology::of_host().unwrap();
    assert_eq!(host.accelerators().len(), sysfs.accelerators().len());
    let whole = Xml::of(MACHINES[5].1);
    for wrong in ["", "no XML", "<topology version=\"2.0\"></topology>", &whole[..whole.len() / 2], "a\0b"] {
        assert_eq!(Topology::of_hwloc_xml(wrong).unwrap_err(), Errno::EINVAL, "{wrong:?}");
    }
}
