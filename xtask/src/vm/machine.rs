//! The machine: its first file system, its boot, and its results.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::cpio::Archive;
use super::kernel::Kernel;
use super::modules::Modules;
use super::{Parts, SHARE, told};
use crate::step::{answers, command};

const QEMU: &str = "qemu-system-x86_64";

/// The modules that the guest needs. The checksum modules are for rxe, which does not list them as dependencies.
const MODULES: [&str; 18] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_console",
    "crc32_generic",
    "crc32_pclmul",
    "crc32c_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "ib_umad",
    "dummy",
    "veth",
    "macvlan",
    "8021q",
    "bridge",
    "sch_netem",
];

/// The first process: it loads the modules, and switches to the host's files.
const INIT: &str = include_str!("init.sh");
/// The second process: it creates the devices, runs the command, and reports how the command ended.
const GUEST: &str = include_str!("guest.sh");

/// Variables that the command inherits from the caller.
const INHERITED: [&str; 8] = ["OFI_", "FI_", "RUST", "CARGO", "PROPTEST_", "NEXTEST", "PATH", "HOME"];

/// A boot takes 4 seconds, or several times that on a busy host. One boot never ended: the emulated processor was stuck
/// in the kernel's self-test of its ciphers (`cryptomgr.notests` disables these).
const BOOT: Duration = Duration::from_secs(90);
/// Maximum boots that are tried.
const BOOTS: usize = 3;

/// Interval of checks of the machine.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Checks that the host has the required programs. Returns the path of busybox.
///
/// # Errors
/// The missing program, and the package that contains it.
pub fn find_tools() -> Result<PathBuf, String> {
    if !answers(QEMU, &["--version"]) {
        return Err(format!("{QEMU} is not installed (apt-get install qemu-system-x86)"));
    }
    for (program, package) in [("ip", "iproute2"), ("rdma", "iproute2")] {
        if !answers(program, &["-V"]) {
            return Err(format!(
                "{program}, which the guest uses, is not installed (apt-get install {package})"
            ));
        }
    }
    let busybox =
        ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.exists());
    let busybox = busybox.ok_or("no busybox (apt-get install busybox-static)")?;
    // A dynamically linked program begins with the name of its loader.
    let content = fs::read(&busybox).map_err(|error| told(&busybox, &error))?;
    if content[..content.len().min(4096)].windows(9).any(|window| window == b"ld-linux-") {
        return Err(
            "busybox needs libraries, which are not there when it runs (apt-get install busybox-static)"
                .into(),
        );
    }
    Ok(busybox)
}

/// The first file system.
///
/// # Errors
/// A part of it cannot be read.
pub fn initramfs(busybox: &Path, kernel: &Kernel) -> Result<Vec<u8>, String> {
    let read = |path: &Path| fs::read(path).map_err(|error| told(path, &error));
    let mut archive = Archive::default();
    for folder in ["bin", "dev", "proc", "modules", "lower", "upper", "root"] {
        archive.folder(folder);
    }
    archive.file("bin/busybox", &read(busybox)?);
    archive.file("init", INIT.as_bytes());
    archive.file("guest.sh", GUEST.as_bytes());
    for (index, path) in Modules::under(&kernel.modules)?.order(&MODULES)?.iter().enumerate() {
        archive.file(&format!("modules/{index:03}.ko"), &read(path)?);
    }
    Ok(archive.finish())
}

/// The result of a command.
pub struct Ended {
    /// Its exit status.
    pub status: i32,
    /// Its output, which also went to this process's output.
    pub printed: String,
}

/// Boots the machine and runs the command in it.
///
/// # Errors
/// The machine does not boot, or takes longer than `limit`; the end of its console follows.
pub fn run(parts: &Parts, arguments: &[String], memory: u64, limit: Duration) -> Result<Ended, String> {
    for _ in 1..BOOTS {
        match boot(parts, arguments, memory, limit) {
            Err(Failure::NotUp(why)) => eprintln!("{why}\nthe machine is booted again"),
            Err(Failure::Other(why)) => return Err(why),
            Ok(ended) => return Ok(ended),
        }
    }
    boot(parts, arguments, memory, limit).map_err(|failure| match failure {
        Failure::NotUp(why) | Failure::Other(why) => why,
    })
}

/// The reason why a command has no result.
enum Failure {
    /// The machine did not boot within [`BOOT`], so that the command did not begin.
    NotUp(String),
    Other(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

/// Boots the machine once, and runs the command in it.
fn boot(parts: &Parts, arguments: &[String], memory: u64, limit: Duration) -> Result<Ended, Failure> {
    let share = Share::new()?;
    share.write("command.sh", &script(arguments, &share.0)?)?;
    let console = share.0.join("console");
    let shared = |path: &str, tag: &str, more: &str| {
        format!("local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}")
    };
    let share_path = share.0.to_string_lossy();
    let mut qemu = command(QEMU);
    qemu.args(["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m"])
        .arg(memory.to_string());
    qemu.arg("-kernel").arg(&parts.kernel).arg("-initrd").arg(&parts.initramfs);
    qemu.args(["-nodefaults", "-display", "none", "-no-reboot"]);
    qemu.arg("-append").arg(format!(
        "console=ttyS0 loglevel=4 panic=-1 mitigations=off cryptomgr.notests ofi_share={share_path}"
    ));
    qemu.arg("-serial").arg(format!("file:{}", console.display()));
    // The command's output has a device of its own, and is transferred byte for byte.
    qemu.args(["-device", "virtio-serial", "-chardev", "file,id=out,path=/dev/stdout"]);
    qemu.args(["-device", "virtserialport,chardev=out,name=out"]);
    qemu.arg("-virtfs").arg(shared("/", "host", ",readonly=on"));
    qemu.arg("-virtfs").arg(shared(&share_path, "share", ""));
    qemu.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = qemu.spawn().map_err(|error| format!("{QEMU} cannot be started: {error}"))?;
    let up = share.0.join("up");
    let ended = wait(&mut child, limit, &up);
    let last = || {
        let text = fs::read(&console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        // Lines after a panic do not show its reason.
        let lines: Vec<&str> = text.lines().take_while(|line| !line.contains("Call Trace")).collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    };
    let status = fs::read_to_string(share.0.join("status")).ok().and_then(|text| text.trim().parse().ok());
    match (ended, status) {
        (Ok(printed), Some(status)) => Ok(Ended { status, printed }),
        (Ok(_), None) => {
            Err(format!("the machine went down before the command ended; its console:\n{}", last()).into())
        }
        (Err(why), _) => {
            let why = format!("{why}; the machine's console:\n{}", last());
            Err(if up.exists() { Failure::Other(why) } else { Failure::NotUp(why) })
        }
    }
}

/// Forwards all of the machine's output until it is down. The machine creates the file `up` when it has booted.
fn wait(child: &mut Child, limit: Duration, up: &Path) -> Result<String, String> {
    let output = child.stdout.take();
    let printer = std::thread::spawn(move || {
        let mut printed = Vec::new();
        let Some(mut output) = output else { return printed };
        let (mut buffer, mut to) = ([0; 1 << 14], std::io::stdout());
        while let Ok(len @ 1..) = output.read(&mut buffer) {
            printed.extend_from_slice(&buffer[..len]);
            let _ = to.write_all(&buffer[..len]).and_then(|()| to.flush());
        }
        printed
    });
    let begin = Instant::now();
    let (booted, end) = (begin + BOOT, begin + limit);
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break Ok(()),
            Ok(Some(status)) => break Err(format!("{QEMU} ended with {status}")),
            Ok(None) if Instant::now() > booted && !up.exists() => {
                break Err(format!("the machine did not come up within {} s", BOOT.as_secs()));
            }
            Ok(None) if Instant::now() < end => std::thread::sleep(POLL_INTERVAL),
            Ok(None) => break Err(format!("not finished within {} s (--seconds)", limit.as_secs())),
            Err(error) => break Err(format!("waiting for {QEMU}: {error}")),
        }
    };
    if ended.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let printed = printer.join().unwrap_or_default();
    ended.map(|()| String::from_utf8_lossy(&printed).into_owned())
}

/// The guest's script: the command as given, in the same folder.
fn script(arguments: &[String], share: &Path) -> Result<String, String> {
    let folder = std::env::current_dir().map_err(|error| format!("the working directory: {error}"))?;
    let mut text = format!("cd {} || exit 126\n", quoted(&folder.to_string_lossy()));
    for (name, value) in std::env::vars() {
        // Cargo's variables for this program must not affect another one.
        if INHERITED.iter().any(|start| name.starts_with(start)) && !name.starts_with("CARGO_PKG") {
            text += &format!("export {name}={}\n", quoted(&value));
        }
    }
    text += &format!("export {SHARE}={}\n", quoted(&share.to_string_lossy()));
    text += "exec";
    for word in arguments {
        text += &format!(" {}", quoted(word));
    }
    text += "\n";
    Ok(text)
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A folder that both sides can write. The files that the command leaves in `results` are kept.
struct Share(PathBuf);

impl Share {
    fn new() -> Result<Self, String> {
        let folder = super::folder();
        let path = folder.join(format!("share-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| told(&path, &error))?;
        // QEMU takes the path verbatim, and commas separate its options.
        if path.to_string_lossy().contains([',', ' ']) {
            return Err(format!("{}: QEMU needs a path without commas and spaces", path.display()));
        }
        Ok(Self(path))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(|error| told(&path, &error))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let results = self.0.join("results");
        if results.exists() {
            let kept = super::folder().join("results");
            let _ = fs::remove_dir_all(&kept);
            let _ = fs::rename(&results, &kept);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_gets_the_words_that_were_given() {
        let words = ["printf", "%s|", "a b", "it's", "$HOME", "*", ""].map(String::from);
        let text = script(&words, Path::new("/tmp")).unwrap();
        let output = std::process::Command::new("sh").arg("-c").arg(&text).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a b|it's|$HOME|*||");
    }
}
