//! Memory: of other processes, in huge pages, locked.

use std::io::IoSliceMut;
use std::process::{Command, Stdio};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::check::Check;
use super::files::Files;
use crate::failure::{Failure, Result};

mod map;

/// The word that the child process reads from this process.
const TOKEN: u64 = 0x6f66_6920_646f_6374;

/// Whether long messages over shared memory need a single copy: a child process reads a word of this one.
pub fn single_copies(files: &Files) -> Check {
    const NAME: &str = "single-copies";
    const EFFECT: &str = "long messages of shm are copied once, from memory to memory (process_vm_readv)";
    match read_by_child() {
        Ok(()) => Check::good(NAME, EFFECT, "another process of this user may read this one's memory"),
        Err(why) => {
            let change = match files.number("/proc/sys/kernel/yama/ptrace_scope") {
                Some(scope @ 1..) => format!("sysctl -w kernel.yama.ptrace_scope=0 (it is {scope})"),
                _ => "in a container, --cap-add SYS_PTRACE or a seccomp profile that allows process_vm_readv"
                    .into(),
            };
            Check::lacking(NAME, EFFECT, why, change)
        }
    }
}

fn read_by_child() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| format!("this program is gone: {error}"))?;
    let token = Box::new(TOKEN);
    let mut command = Command::new(program);
    command.args(["read-memory", &std::process::id().to_string(), &(&raw const *token).addr().to_string()]);
    // The child reads one word and ends, which ends this wait.
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("no child process: {error}"))?;
    // Read after the child, because the word must exist until then.
    if output.status.success() && *std::hint::black_box(token) == TOKEN {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("ofi: ").to_string())
}

/// The command line of the child.
#[derive(Debug, clap::Args)]
pub struct ReadMemory {
    pid: i32,
    address: usize,
}

impl ReadMemory {
    /// Reads the word.
    ///
    /// # Errors
    /// The kernel forbids it, or the word differs.
    pub fn run(&self) -> Result<()> {
        let mut word = [0; size_of::<u64>()];
        let there = RemoteIoVec { base: self.address, len: word.len() };
        let read = process_vm_readv(Pid::from_raw(self.pid), &mut [IoSliceMut::new(&mut word)], &[there]);
        read.map_err(|error| Failure::system("process_vm_readv", error.into()))?;
        if u64::from_ne_bytes(word) == TOKEN {
            return Ok(());
        }
        Err(Failure::Data("process_vm_readv found another word".into()))
    }
}

/// Whether buffers can use huge pages: maps one.
pub fn huge_pages(files: &Files) -> Check {
    const NAME: &str = "huge-pages";
    const EFFECT: &str = "long copies miss the TLB less in huge pages";
    const CHANGE: &str =
        "sysctl -w vm.nr_hugepages=512 (1 GiB), or echo always > /sys/kernel/mm/transparent_hugepage/enabled";
    let transparent = files.text("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let always = transparent.contains("[always]");
    match map::try_huge() {
        Ok(()) => Check::good(NAME, EFFECT, "a reserved huge page was mapped"),
        Err(_) if always => Check::good(NAME, EFFECT, "none reserved; the kernel creates transparent ones"),
        Err(error) => {
            let found = format!(
                "none reserved ({error}), and transparent ones are not enabled for every program: {transparent}"
            );
            Check::lacking(NAME, EFFECT, found, CHANGE)
        }
    }
}

/// Bytes that must be lockable.
const LOCKED: usize = 64 << 20;

/// Whether memory can be locked for devices: locks some.
pub fn locked() -> Check {
    const NAME: &str = "locked-memory";
    const EFFECT: &str = "RDMA devices access memory that is locked; registrations fail beyond the limit";
    match map::try_locked(LOCKED) {
        Ok(()) => Check::good(NAME, EFFECT, format!("{} MiB were locked", LOCKED >> 20)),
        Err(error) => {
            let change = "ulimit -l unlimited; memlock in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd \
                          unit, --ulimit memlock=-1 for a container, or capability IPC_LOCK for a pod (without a user \
                          namespace, in which the kernel ignores it)";
            Check::lacking(NAME, EFFECT, format!("{} MiB cannot be locked: {error}", LOCKED >> 20), change)
        }
    }
}
