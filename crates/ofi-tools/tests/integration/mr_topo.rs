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
