//! System calls and limits other than those of memory and sockets.

use io_uring::IoUring;
use nix::sys::resource::{Resource, getrlimit};
use ofi_ring::membarrier;

use super::check::Check;

/// Whether senders can omit a fence.
pub fn membarrier() -> Check {
    const NAME: &str = "membarrier";
    const EFFECT: &str = "without it every message over shared memory, and every lock, pays a full fence";
    let shared = membarrier::register() == membarrier::Support::Expedited && membarrier::heavy().is_ok();
    let private = membarrier::register_private() == membarrier::Support::Expedited
        && membarrier::heavy_private().is_ok();
    match (shared, private) {
        (true, true) => Check::good(NAME, EFFECT, "expedited barriers work, within and between processes"),
        _ => {
            let found = if private { "none between processes" } else { "none" };
            Check::lacking(
                NAME,
                EFFECT,
                found,
                "allow membarrier(2) in the container's seccomp profile; Linux 4.16 or newer",
            )
        }
    }
}

/// The limit of open descriptors.
pub fn open_files() -> Check {
    const NAME: &str = "open-files";
    const EFFECT: &str =
        "shm keeps descriptors of peers, up to a quarter of the limit; it wakes others by a datagram";
    const WANTED: u64 = 16_384;
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) if soft >= WANTED => Check::good(NAME, EFFECT, format!("{soft} descriptors")),
        Ok((soft, hard)) => {
            let found = format!("{soft} descriptors (at most {hard})");
            let change = if hard >= WANTED {
                format!("ulimit -n {WANTED}")
            } else {
                format!(
                    "nofile {WANTED} in /etc/security/limits.conf, LimitNOFILE={WANTED} in a systemd unit, or --ulimit nofile={WANTED} for a container"
                )
            };
            Check::lacking(NAME, EFFECT, found, change)
        }
        Err(error) => Check::unknown(NAME, EFFECT, format!("the system does not say: {error}")),
    }
}

/// Whether an io_uring can be created.
pub fn io_uring() -> Check {
    const NAME: &str = "io_uring";
    const EFFECT: &str = "only FI_UDP_DRIVER=ring needs it; the default receives by recvmmsg";
    match IoUring::new(8) {
        Ok(_) => Check::good(NAME, EFFECT, "a ring was made"),
        Err(error) => {
            let change = "sysctl -w kernel.io_uring_disabled=0; in a container, allow io_uring_setup in the seccomp profile";
            Check::lacking(NAME, EFFECT, format!("io_uring_setup: {error}"), change)
        }
    }
}
