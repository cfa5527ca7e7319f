//! RDMA devices.

use std::fs::OpenOptions;

use super::check::Check;
use super::files::Files;

const NAME: &str = "infiniband";
const EFFECT: &str = "RDMA devices reach other hosts without their processors (providers verbs and efa)";

/// Whether this process can open the devices that the kernel knows.
pub fn infiniband(files: &Files) -> Check {
    let devices = files.names("/sys/class/infiniband");
    if devices.is_empty() {
        return Check::unknown(NAME, EFFECT, "no RDMA device on this host; udp reaches other hosts");
    }
    let listed = devices.join(", ");
    let nodes: Vec<String> =
        files.names("/dev/infiniband").into_iter().filter(|name| name.starts_with("uverbs")).collect();
    if nodes.is_empty() {
        let change = "load ib_uverbs; in a container, pass the devices (--device /dev/infiniband)";
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
