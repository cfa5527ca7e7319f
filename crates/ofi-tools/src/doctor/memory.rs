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

/// The default huge page size in bytes: that of mappings which name none. Besides 2 MiB it may be 16 KiB to 16 GiB, by
/// architecture, page size and `default_hugepagesz=`.
fn huge_page_size(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024).filter(|&len| len > 0)
}

/// A size in bytes, in the largest unit of which it is a multiple.
fn size(len: usize) -> String {
    let (count, unit) = [(30, "GiB"), (20, "MiB"), (10, "KiB")]
        .into_iter()
        .find_map(|(shift, unit)| len.is_multiple_of(1 << shift).then_some((len >> shift, unit)))
        .unwrap_or((len, "bytes"));
    format!("{count} {unit}")
}

/// The memory that the proposed number of huge pages has together, at least one.
const HUGE: usize = 1 << 30;

/// Whether buffers can use huge pages: maps one.
pub fn huge_pages(files: &Files) -> Check {
    const NAME: &str = "huge-pages";
    const EFFECT: &str = "long copies miss the TLB less in huge pages";
    let transparent = files.text("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let always = transparent.contains("[always]");
    let len = files.text("/proc/meminfo").as_deref().and_then(huge_page_size);
    let mapped = len.map(|len| (len, map::try_huge(len)));
    let why = match mapped {
        Some((len, Ok(()))) => {
            return Check::good(NAME, EFFECT, format!("a reserved huge page of {} was mapped", size(len)));
        }
        _ if always => {
            return Check::good(NAME, EFFECT, "none reserved; the kernel creates transparent ones");
        }
        Some((len, Err(error))) => format!("none of {} reserved ({error})", size(len)),
        None => "the kernel has no reserved ones".into(),
    };
    let enable = "echo always > /sys/kernel/mm/transparent_hugepage/enabled";
    let change = match len {
        Some(len) => {
            let count = HUGE.div_ceil(len);
            format!("sysctl -w vm.nr_hugepages={count} ({}), or {enable}", size(count * len))
        }
        None => enable.into(),
    };
    let found = format!("{why}, and transparent ones are not enabled for every program: {transparent}");
    Check::lacking(NAME, EFFECT, found, change)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `/proc/meminfo` of machines with other page sizes than x86-64's usual one.
    #[test]
    fn the_size_of_a_huge_page_is_the_kernel_s() {
        let of = |line: &str| {
            huge_page_size(&format!(
                "MemTotal:       65516432 kB\nHugePages_Total:       0\nHugePages_Free:        0\n{line}\nHugetlb: 0 kB\n"
            ))
        };
        let cases = [
            ("Hugepagesize:       2048 kB", Some(2 << 20)),
            ("Hugepagesize:    1048576 kB", Some(1 << 30)),
            ("Hugepagesize:     524288 kB", Some(512 << 20)), // AArch64 with pages of 64 KiB
            ("Hugepagesize:      32768 kB", Some(32 << 20)),  // and of 16 KiB
            ("Hugepagesize:      16384 kB", Some(16 << 20)),  // POWER with the hash MMU
            ("Hugepagesize:          0 kB", None),
            ("Hugepagesize:       many", None),
            ("DirectMap4k:      308032 kB", None), // a kernel without hugetlbfs
        ];
        for (line, wanted) in cases {
            assert_eq!(of(line), wanted, "{line}");
        }
        let sizes = [16 << 30, 512 << 20, 64 << 10, 1].map(size);
        assert_eq!(sizes, ["16 GiB", "512 MiB", "64 KiB", "1 bytes"]);
    }
}
