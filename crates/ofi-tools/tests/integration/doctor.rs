//! `ofi doctor` as an administrator runs it: it detects lowered limits by trying, and reads files below a
//! test root.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

const OFI: &str = env!("CARGO_BIN_EXE_ofi");

/// Runs `ofi doctor` in a shell after `before`.
fn after(before: &str, arguments: &str) -> Output {
    let line = format!("{before} exec {OFI} doctor {arguments}");
    Command::new("sh").args(["-c", &line]).output().expect("sh runs")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("checks");
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check {name}"))
}

/// An empty root.
fn root(name: &str) -> PathBuf {
    let root = std::env::temp_dir().join(format!("ofi-doctor-{}-{name}", std::process::id()));
    fs::create_dir_all(&root).unwrap();
    root
}

fn write(root: &std::path::Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn a_low_limit_of_descriptors_is_found_and_a_high_one_is_good() {
    let low = after("ulimit -n 256;", "--json");
    assert_eq!(low.status.code(), Some(2));
    let report = json(&low);
    let found = check(&report, "open-files");
    assert_eq!(found["state"], "lacking", "{found}");
    assert!(found["found"].as_str().unwrap().starts_with("256 descriptors"), "{found}");
    assert!(report["lacking"].as_u64().unwrap() >= 1);

    let high = after("ulimit -n 16384 || exit 77;", "--json");
    if high.status.code() == Some(77) {
        return println!("NOT RUN: a high limit of descriptors: the hard limit is lower");
    }
    assert_eq!(check(&json(&high), "open-files")["state"], "good");
}

#[test]
fn memory_that_cannot_be_locked_is_found_by_locking() {
    // The limit does not apply to privileged processes, so the capability is dropped, too.
    let before =
        "ulimit -l 64; [ $(id -u) != 0 ] || exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock";
    let line = before.to_string() + &format!(" {OFI} doctor --json; exec {OFI} doctor --json");
    let output = Command::new("sh").args(["-c", &line]).output().expect("sh runs");
    if output.stdout.is_empty() {
        return println!("NOT RUN: locked memory: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let report = json(&output);
    let found = check(&report, "locked-memory");
    assert_eq!(found["state"], "lacking", "{found}");
    assert!(found["change"].as_str().unwrap().contains("ulimit -l"), "{found}");
}

#[test]
fn devices_and_governors_are_read_below_the_root() {
    let root = root("devices");
    let arguments = format!("--json --root {}", root.display());
    let report = json(&after("", &arguments));
    assert_eq!(check(&report, "infiniband")["state"], "unknown");
    assert_eq!(check(&report, "governor")["state"], "unknown");

    write(&root, "sys/class/infiniband/mlx5_0/node_type", "1");
    write(&root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    write(&root, "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n");
    let report = json(&after("", &arguments));
    let found = check(&report, "infiniband");
    assert_eq!(found["state"], "lacking");
    assert!(found["found"].as_str().unwrap().contains("mlx5_0, but no"), "{found}");
    assert_eq!(check(&report, "governor")["found"], "performance, powersave");

    write(&root, "dev/infiniband/uverbs0", "");
    write(&root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    let report = json(&after("", &arguments));
    assert_eq!(check(&report, "infiniband")["state"], "good");
    assert_eq!(check(&report, "governor")["state"], "good");
    fs::remove_dir_all(root).unwrap();
}

/// A pod that has the device, but not the network interface by which others reach it.
#[test]
fn the_interface_of_an_rdma_port_is_looked_for_in_this_namespace() {
    let root = root("interfaces");
    let arguments = format!("--json --root {}", root.display());
    let ports = "sys/class/infiniband/mlx5_0/ports/1";
    write(&root, &format!("{ports}/link_layer"), "InfiniBand\n");
    assert_eq!(check(&json(&after("", &arguments)), "rdma-interfaces")["state"], "unknown");

    write(&root, &format!("{ports}/link_layer"), "Ethernet\n");
    write(&root, &format!("{ports}/gid_attrs/ndevs/0"), "ens1f0np0\n");
    write(&root, &format!("{ports}/gid_attrs/ndevs/1"), "ens1f0np0\n");
    let report = json(&after("", &arguments));
    let found = check(&report, "rdma-interfaces");
    assert_eq!(found["state"], "lacking");
    assert_eq!(found["found"], "in another network namespace: mlx5_0/1 (ens1f0np0)");
    assert!(found["change"].as_str().unwrap().contains("hostNetwork"), "{found}");

    write(&root, "sys/class/net/ens1f0np0/address", "02:00:00:00:00:01\n");
    let report = json(&after("", &arguments));
    assert_eq!(check(&report, "rdma-interfaces")["state"], "good");
    assert_eq!(check(&report, "rdma-interfaces")["found"], "mlx5_0/1 (ens1f0np0)");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn gpu_memory_is_reached_by_dma_buf_or_by_peer_memory() {
    let root = root("gpu");
    let arguments = format!("--json --root {}", root.display());
    let state = || {
        let report = json(&after("", &arguments));
        let found = check(&report, "gpu-direct");
        (found["state"].as_str().unwrap().to_string(), found["found"].as_str().unwrap().to_string())
    };
    let expect = |state_wanted: &str, text: &str| {
        let (state, found) = state();
        assert_eq!(state, state_wanted, "{found}");
        assert!(found.contains(text), "{found}");
    };
    write(&root, "sys/class/infiniband/rdmap0s6/node_type", "1");
    // The bridge and the audio function are no GPUs.
    for (device, vendor, class) in [("00:00.0", "0x8086", "0x060000"), ("01:00.1", "0x10de", "0x040300")] {
        write(&root, &format!("sys/bus/pci/devices/0000:{device}/vendor"), &format!("{vendor}\n"));
        write(&root, &format!("sys/bus/pci/devices/0000:{device}/class"), &format!("{class}\n"));
    }
    expect("unknown", "no NVIDIA GPU");
    write(&root, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    write(&root, "sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
    expect("lacking", "no driver is visible");
    write(&root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1\n");
    write(&root, "dev/nvidiactl", "");
    expect("lacking", "no /dev/nvidia*");
    write(&root, "dev/nvidia0", "");
    expect("lacking", "export no dma-buf");
    write(&root, "sys/module/nvidia_peermem/refcnt", "0\n");
    expect("good", "nvidia_peermem");
    write(
        &root,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1\n",
    );
    expect("good", "dma-bufs");
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_page_for_people_says_what_to_change_in_order_and_what_is_good() {
    let output = after("ulimit -n 256;", "");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("to change, the largest effect first:\n  1. "), "{text}");
    assert!(text.contains("open-files: 256 descriptors") && text.contains("\n     -> "), "{text}");
    assert!(text.contains("\ngood:\n"), "{text}");
}

#[test]
fn a_wrong_option_is_a_usage_error() {
    let output = after("", "--nonsense");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--nonsense"));
}
