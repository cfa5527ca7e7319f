//! Memory of GPUs that RDMA devices reach.

use super::check::Check;
use super::devices::DEVICES;
use super::files::Files;

/// The PCI vendor of NVIDIA, as sysfs writes it.
const NVIDIA: &str = "0x10de";
/// The PCI class of display controllers, as sysfs writes its first byte.
const DISPLAY: &str = "0x03";

/// Whether RDMA devices can read and write the memory of this host's GPUs: by a dma-buf, which needs the open kernel
/// modules, or by address, which needs `nvidia_peermem`. Neither needs a privileged container.
pub fn direct(files: &Files) -> Check {
    const NAME: &str = "gpu-direct";
    const EFFECT: &str =
        "RDMA devices read and write GPU memory themselves; otherwise it is copied through the host";
    let gpus = gpus(files);
    if gpus == 0 || files.names(DEVICES).is_empty() {
        return Check::unknown(NAME, EFFECT, "no NVIDIA GPU beside an RDMA device on this host");
    }
    let Some(version) = files.text("/proc/driver/nvidia/version") else {
        let change = "load NVIDIA's driver on the host; in a container, use its runtime (--gpus all); in a pod, request \
                      nvidia.com/gpu";
        return Check::lacking(NAME, EFFECT, format!("{gpus} GPUs, but no driver is visible"), change);
    };
    if !files.names("/dev").iter().any(|name| is_device(name)) {
        let change = "in a container, use NVIDIA's runtime (--gpus all); in a pod, request nvidia.com/gpu";
        return Check::lacking(NAME, EFFECT, format!("{gpus} GPUs, but no /dev/nvidia*"), change);
    }
    let is_open = version.contains("Open Kernel Module");
    let has_peer_memory = files.path("/sys/module/nvidia_peermem").exists();
    match (is_open, has_peer_memory) {
        (true, _) => {
            Check::good(NAME, EFFECT, format!("{gpus} GPUs; the open kernel modules export dma-bufs"))
        }
        (false, true) => Check::good(NAME, EFFECT, format!("{gpus} GPUs; nvidia_peermem is loaded")),
        (false, false) => {
            let change =
                "install the open kernel modules on the host (dma-buf), or modprobe nvidia_peermem there";
            Check::lacking(
                NAME,
                EFFECT,
                format!("{gpus} GPUs, whose kernel modules export no dma-buf"),
                change,
            )
        }
    }
}

/// Number of NVIDIA's GPUs on the PCI bus.
fn gpus(files: &Files) -> usize {
    const BUS: &str = "/sys/bus/pci/devices";
    let is_gpu = |device: &&String| {
        let read = |file| files.text(&format!("{BUS}/{device}/{file}")).unwrap_or_default();
        read("vendor") == NVIDIA && read("class").starts_with(DISPLAY)
    };
    files.names(BUS).iter().filter(is_gpu).count()
}

/// Whether this is the node of a GPU, such as `nvidia0`.
fn is_device(name: &str) -> bool {
    name.strip_prefix("nvidia")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}
