//! RDMA devices.

use std::fs::OpenOptions;

use super::check::Check;
use super::files::Files;

/// The kernel's folder of RDMA devices.
pub const DEVICES: &str = "/sys/class/infiniband";

/// Whether this process can open the devices that the kernel knows.
pub fn infiniband(files: &Files) -> Check {
    const NAME: &str = "infiniband";
    const EFFECT: &str = "RDMA devices reach other hosts without their processors (providers verbs and efa)";
    let devices = files.names(DEVICES);
    if devices.is_empty() {
        return Check::unknown(NAME, EFFECT, "no RDMA device on this host; udp reaches other hosts");
    }
    let listed = devices.join(", ");
    let nodes: Vec<String> =
        files.names("/dev/infiniband").into_iter().filter(|name| name.starts_with("uverbs")).collect();
    if nodes.is_empty() {
        let change = "load ib_uverbs; in a container, pass the devices (--device /dev/infiniband); in a pod, request the \
                      resource of their device plug-in (vpc.amazonaws.com/efa for EFA)";
        return Check::lacking(NAME, EFFECT, format!("{listed}, but no /dev/infiniband/uverbs*"), change);
    }
    for node in &nodes {
        let path = files.path("/dev/infiniband").join(node);
        if let Err(error) = OpenOptions::new().read(true).write(true).open(&path) {
            let change = "give this user access to it (udev rule, or group rdma)";
            return Check::lacking(
                NAME,
                EFFECT,
                format!("{listed}, but {}: {error}", path.display()),
                change,
            );
        }
    }
    Check::good(NAME, EFFECT, listed)
}

/// Whether the network interfaces of the devices are in this network namespace. Ports of InfiniBand and EFA have
/// addresses of their own; the addresses of a RoCE port are those of its interfaces.
pub fn interfaces(files: &Files) -> Check {
    const NAME: &str = "rdma-interfaces";
    const EFFECT: &str =
        "a RoCE or iWARP device is reached by the addresses of its network interfaces (provider verbs)";
    let ports = ethernet_ports(files);
    let (here, elsewhere): (Vec<_>, Vec<_>) = ports
        .into_iter()
        .filter(|(_, interfaces)| !interfaces.is_empty())
        .partition(|(_, interfaces)| interfaces.iter().any(|name| is_here(files, name)));
    let listed = |ports: &[(String, Vec<String>)]| {
        let ports = ports.iter().map(|(port, interfaces)| format!("{port} ({})", interfaces.join(", ")));
        ports.collect::<Vec<_>>().join(", ")
    };
    match (&here[..], &elsewhere[..]) {
        ([], []) => Check::unknown(NAME, EFFECT, "no RDMA port with a network interface"),
        (here, []) => Check::good(NAME, EFFECT, listed(here)),
        ([], elsewhere) => {
            let found = format!("in another network namespace: {}", listed(elsewhere));
            let change = "move the interface into this namespace (SR-IOV or macvlan by a CNI plug-in), or use the host's \
                          network (hostNetwork: true in a pod, --network host for a container)";
            Check::lacking(NAME, EFFECT, found, change)
        }
        // A pod has the devices that it was given; the rest of the host's may be listed beside them.
        (here, elsewhere) => {
            let found = format!("{}; in another network namespace: {}", listed(here), listed(elsewhere));
            Check::good(NAME, EFFECT, found)
        }
    }
}

fn is_here(files: &Files, interface: &str) -> bool {
    files.path("/sys/class/net").join(interface).exists()
}

/// Ports whose link layer is Ethernet, with the network interfaces of their GIDs.
fn ethernet_ports(files: &Files) -> Vec<(String, Vec<String>)> {
    let mut ports = Vec::new();
    for device in files.names(DEVICES) {
        for port in files.names(&format!("{DEVICES}/{device}/ports")) {
            let folder = format!("{DEVICES}/{device}/ports/{port}");
            if files.text(&format!("{folder}/link_layer")).as_deref() != Some("Ethernet") {
                continue;
            }
            // An entry without a GID cannot be read.
            let table = format!("{folder}/gid_attrs/ndevs");
            let mut interfaces: Vec<String> = files
                .names(&table)
                .iter()
                .filter_map(|index| files.text(&format!("{table}/{index}")))
                .filter(|name| !name.is_empty())
                .collect();
            interfaces.sort();
            interfaces.dedup();
            ports.push((format!("{device}/{port}"), interfaces));
        }
    }
    ports
}
