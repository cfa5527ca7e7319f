//! `cargo xtask vm -- COMMAND ARGS`: runs a command on a kernel that has soft-RoCE, which the host's kernel may lack.
//!
//! QEMU boots Debian's kernel in emulation over the host's own files. Absolute paths mean the same inside, the working
//! directory is kept, and nothing that the command writes is kept, except in [`SHARE`]. Its output and exit status are
//! passed on. Nothing is installed on the host, and no privileges are needed there; inside, the command is root.
//!
//! Emulated time says nothing about speed: no measurement belongs here.

mod cpio;
mod kernel;
mod machine;
mod modules;
pub mod suite;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::step::{NOT_RUN, target_dir};

/// The variable that names a folder with one path in host and guest, where the command may leave files for the host.
pub const SHARE: &str = "OFI_VM_SHARE";

/// Options of one run of the machine.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Time limit in seconds, including the boot.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Memory of the machine, in MiB.
    #[arg(long, default_value_t = 2048)]
    memory: u64,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

/// The folder of everything that belongs to the machine.
fn folder() -> PathBuf {
    target_dir("vm")
}

/// Runs the command, and exits as it did. Requirements that this host lacks are named.
pub fn run(options: &Options) -> ExitCode {
    let limit = Duration::from_secs(options.seconds);
    let ended = match prepare() {
        Ok(parts) => machine::run(&parts, &options.command, options.memory, limit),
        Err(why) => {
            println!("NOT RUN: {} in a virtual machine: {why}", options.command[0]);
            return NOT_RUN.into();
        }
    };
    match ended {
        Ok(ended) => u8::try_from(ended.status).unwrap_or(1).into(),
        Err(why) => {
            println!("FAILED: {} in a virtual machine: {why}", options.command[0]);
            ExitCode::FAILURE
        }
    }
}

/// The components of the machine.
struct Parts {
    kernel: PathBuf,
    initramfs: PathBuf,
}

/// Fetches and builds the missing components.
///
/// # Errors
/// The missing requirement, and how to get it.
fn prepare() -> Result<Parts, String> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(
            "the machine is x86_64, and runs this host's programs only if the host is x86_64 too".into()
        );
    }
    let busybox = machine::find_tools()?;
    let folder = folder();
    std::fs::create_dir_all(&folder).map_err(|error| told(&folder, &error))?;
    let kernel = kernel::kernel(&folder)?;
    let initramfs = kernel.folder.join("initramfs");
    let image = machine::initramfs(&busybox, &kernel)?;
    // Completely or not at all: another run may be reading it.
    let fresh = initramfs.with_extension(std::process::id().to_string());
    std::fs::write(&fresh, image).map_err(|error| told(&fresh, &error))?;
    std::fs::rename(&fresh, &initramfs).map_err(|error| told(&initramfs, &error))?;
    Ok(Parts { kernel: kernel.image, initramfs })
}

fn told(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
