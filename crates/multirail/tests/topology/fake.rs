//! Writes the description of a machine as a directory laid out as `/sys`, for [`multirail::Topology::read`].
//!
//! The description has one device per line, indented by two spaces below its parent:
//!
//! ```text
//! node ID                                  a NUMA node
//! host DOMAIN:BUS node ID|none             a root complex
//! bridge PCI LINK                          LINK: gigatransfers x lanes, or - where sysfs says "Unknown"
//! rdma PCI VENDOR:DEVICE LINK NAME GBPS    an RDMA device
//! net PCI VENDOR:DEVICE LINK NAME MBPS     an interface
//! gpu PCI VENDOR:DEVICE LINK
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The directory. It is removed when this is dropped.
pub struct FakeSys(PathBuf);

impl FakeSys {
    /// # Panics
    /// If the description is invalid, or the directory cannot be written.
    pub fn new(description: &str) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("multirail-sys-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        for dir in ["devices/system/node", "bus/pci/devices", "class/infiniband", "class/net"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let fake = Self(root);
        fake.fill(description);
        fake
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    fn fill(&self, description: &str) {
        let nodes = description.lines().filter(|line| line.starts_with("node ")).count();
        // The directories of the lines of each depth, and their NUMA node.
        let mut above: Vec<PathBuf> = Vec::new();
        let mut numa = "-1";
        for line in description.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let depth = (line.len() - line.trim_start().len()) / 2;
            let words: Vec<&str> = line.split_whitespace().collect();
            above.truncate(depth);
            match words[..] {
                ["node", id] => {
                    let at: usize = id.parse().unwrap();
                    let distances: Vec<&str> =
                        (0..nodes).map(|other| if other == at { "10" } else { "21" }).collect();
                    let dir = self.0.join(format!("devices/system/node/node{id}"));
                    write(&dir, &[("distance", &distances.join(" "))]);
                }
                ["host", bus, "node", node] => {
                    numa = if node == "none" { "-1" } else { node };
                    above.push(self.0.join(format!("devices/pci{bus}")));
                }
                ["bridge", pci, link] => {
                    above.push(self.device(&above, pci, "1d0f:0200", "0x060400", link, numa));
                }
                ["gpu", pci, id, link] => {
                    self.device(&above, pci, id, "0x030200", link, numa);
                }
                ["rdma", pci, id, link, name, gbps] => {
                    let device = self.device(&above, pci, id, "0x020000", link, numa);
                    let class = self.0.join("class/infiniband").join(name);
                    if gbps != "-" {
                        write(&class.join("ports/1"), &[("rate", &format!("{gbps} Gb/sec (4X EDR)"))]);
                    }
                    fs::create_dir_all(&class).unwrap();
                    symlink(device, class.join("device")).unwrap();
                }
                ["net", pci, id, link, name, mbps] => {
                    let device = self.device(&above, pci, id, "0x020000", link, numa);
                    let class = self.0.join("class/net").join(name);
                    write(&class, &[("speed", if mbps == "-" { "-1" } else { mbps })]);
                    symlink(device, class.join("device")).unwrap();
                }
                _ => panic!("invalid line of a description: {line}"),
            }
        }
    }

    fn device(&self, above: &[PathBuf], pci: &str, id: &str, class: &str, link: &str, numa: &str) -> PathBuf {
        let dir = above.last().expect("a device has a parent").join(pci);
        let (vendor, device) = id.split_once(':').unwrap();
        let (speed, width) = link.split_once('x').unwrap_or(("", "0"));
        let speed = match speed {
            "" => "Unknown".to_string(),
            speed if speed.contains('.') => format!("{speed} GT/s PCIe"),
            speed => format!("{speed}.0 GT/s PCIe"),
        };
        let files = [
            ("class", class),
            ("vendor", &format!("0x{vendor}")),
            ("device", &format!("0x{device}")),
            ("numa_node", numa),
            ("current_link_speed", &speed),
            ("current_link_width", width),
        ];
        write(&dir, &files);
        symlink(&dir, self.0.join("bus/pci/devices").join(pci)).unwrap();
        dir
    }
}

impl Drop for FakeSys {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn write(dir: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(dir).unwrap();
    for (name, text) in files {
        fs::write(dir.join(name), format!("{text}\n")).unwrap();
    }
}
