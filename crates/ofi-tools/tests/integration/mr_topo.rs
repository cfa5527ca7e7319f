//! `mr-topo` on directories with the layout of `/sys`, and on this host.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

fn mr_topo(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mr-topo")).args(arguments).output().expect("mr-topo runs")
}

/// A machine with one PCI interface whose name contains markup.
fn machine(name: &str) -> PathBuf {
    let root = std::env::temp_dir().join(format!("mr-topo-{}-{name}", std::process::id()));
    let device = root.join("devices/pci0000:00/0000:00:03.0");
    fs::create_dir_all(&device).unwrap();
    fs::write(device.join("numa_node"), "-1\n").unwrap();
    let class = root.join("class/net/a<b");
    fs::create_dir_all(&class).unwrap();
    fs::write(class.join("speed"), "25000\n").unwrap();
    std::os::unix::fs::symlink(&device, class.join("device")).unwrap();
    root
}

#[test]
fn a_machine_is_a_tree_a_picture_and_json() {
    let root = machine("forms");
    let sys = root.to_str().unwrap();
    let tree = mr_topo(&["--sys", sys]);
    assert!(tree.status.success(), "{tree:?}");
    let text = String::from_utf8(tree.stdout).unwrap();
    assert_eq!(text, "machine\n└─ root complex 0000:00\n   └─ net a<b 0000:00:03.0, 25 Gb/s\n");

    let picture = root.join("topo.svg");
    assert!(mr_topo(&["--sys", sys, "--svg", picture.to_str().unwrap()]).status.success());
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("net a&lt;b") && !svg.contains("a<b"), "{svg}");

    let json: serde_json::Value = serde_json::from_slice(&mr_topo(&["--sys", sys, "--json"]).stdout).unwrap();
    assert_eq!(json["topology"]["nics"][0]["speed"], 25_000_000_000_u64);
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn the_rails_of_memory_are_told_with_the_reason() {
    let root = std::env::temp_dir().join(format!("mr-topo-{}-near", std::process::id()));
    fs::create_dir_all(root.join("devices/system/node/node0")).unwrap();
    fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
    for (bus, name) in [("10", "mlx5_0"), ("20", "mlx5_1")] {
        let host = root.join(format!("devices/pci0000:{bus}"));
        let [nic, gpu] = [0, 1].map(|device| host.join(format!("0000:{bus}:0{device}.0")));
        for (at, class, vendor, product) in
            [(&nic, "0x020000", "0x15b3", "0x101b"), (&gpu, "0x030200", "0x10de", "0x20b0")]
        {
            fs::create_dir_all(at).unwrap();
            for (file, text) in
                [("class", class), ("vendor", vendor), ("device", product), ("numa_node", "0")]
            {
                fs::write(at.join(file), text).unwrap();
            }
            let name = at.file_name().unwrap();
            std::os::unix::fs::symlink(at, root.join("bus/pci/devices").join(name)).unwrap();
        }
        let class = root.join("class/infiniband").join(name);
        fs::create_dir_all(&class).unwrap();
        std::os::unix::fs::symlink(&nic, class.join("device")).unwrap();
    }
    let sys = root.to_str().unwrap();
    let text = String::from_utf8(mr_topo(&["--sys", sys]).stdout).unwrap();
    let wanted = "\
        memory of the accelerator 0000:10:01.0 uses mlx5_0: they are the nearest, and no other accelerator has them\n\
        memory of the accelerator 0000:20:01.0 uses mlx5_1: they are the nearest, and no other accelerator has them\n\
        memory of NUMA node 0 uses mlx5_0, mlx5_1: the system does not tell the links and NUMA nodes of all\n";
    assert!(text.ends_with(wanted), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&mr_topo(&["--sys", sys, "--json"]).stdout).unwrap();
    assert_eq!(json["near"][1]["memory"]["accelerator"], "0000:20:01.0");
    assert_eq!(json["near"][1]["uses"]["nics"], serde_json::json!([1]));
    assert_eq!(json["near"][1]["uses"]["because"], "nearest");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_directory_that_is_none_and_a_wrong_option_are_errors_with_a_reason() {
    let missing = mr_topo(&["--sys", "/nonexistent"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/nonexistent"));
    assert_eq!(mr_topo(&["--json", "--svg", "x"]).status.code(), Some(1));
}

#[test]
fn this_host_has_the_domain_of_shared_memory() {
    let json: serde_json::Value = serde_json::from_slice(&mr_topo(&["--json"]).stdout).unwrap();
    let nics = json["topology"]["nics"].as_array().unwrap();
    let offers = nics.iter().flat_map(|nic| nic["providers"].as_array().unwrap());
    assert!(offers.clone().any(|offer| offer["provider"] == "shm"), "{json}");
}
