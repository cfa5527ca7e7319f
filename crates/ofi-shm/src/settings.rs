//! The provider's settings.

use ofi_core::config::{AnySetting, Setting};

/// Lines of 64 bytes in the ring of commands for each peer and direction. 512 (32 KiB) hold a window of 64 messages of
/// 320 bytes, and keep the ring inside the first-level cache (`benches/`, message rate).
pub static COMMAND_LINES: Setting<usize> = Setting::new(
    "shm",
    "command_lines",
    512,
    "Cache lines of the command ring to each peer; also bounds the messages that travel inside it (a quarter)",
)
.range(FEWEST_COMMAND_LINES, 1 << 16);

/// The minimum of [`COMMAND_LINES`].
pub const FEWEST_COMMAND_LINES: usize = 64;

/// Lines of the ring that large payloads go through. 8,192 lines (512 KiB): 17 GB/s for 1 MiB messages on a Zen 3,
/// against 12 with 64 KiB (`docs/design-choices.md`).
pub static BULK_LINES: Setting<usize> = Setting::new(
    "shm",
    "bulk_lines",
    8192,
    "Cache lines of the ring for large payloads to each peer, created at the first large payload",
)
.range(1024, 1 << 20);

/// Payload bytes that one endpoint keeps for receivers that are out of room.
pub static KEPT_BYTES: Setting<usize> = Setting::new(
    "shm",
    "kept_bytes",
    256 << 20,
    "Bytes of small messages that a sender keeps for peers whose budget for unexpected messages is exhausted",
);

/// Programs that could run on several hosts request `FI_REMOTE_COMM` even when they run on one (Open MPI does).
pub static REMOTE_COMM: Setting<bool> = Setting::new(
    "shm",
    "remote_comm",
    false,
    "Offer shm to programs that require FI_REMOTE_COMM: for programs whose processes are all on one host",
);

/// Whether large messages, reads and writes are copied directly from memory to memory where the system permits it.
static SINGLE_COPY: Setting<&str> = Setting::new(
    "shm",
    "single_copy",
    "auto",
    "How large messages, reads and writes of application memory are copied: straight from memory to memory (process_vm_readv, process_vm_writev) always or never, or by what is faster for each peer and size (auto). Where the system forbids it, or a peer says never: through the bulk ring",
)
.one_of(&["auto", "always", "never"]);

/// Below this a system call costs more than the second copy, whatever the pages and the machine
/// (`docs/design-choices.md`).
pub static SINGLE_COPY_SIZE: Setting<usize> = Setting::new(
    "shm",
    "single_copy_size",
    64 << 10,
    "Shortest message, read or write for which FI_SHM_SINGLE_COPY holds, in bytes",
)
.range(1, 1 << 40);

/// Whether long payloads are written into the rings by streaming stores (`stores.rs`).
static STREAMING_STORES: Setting<&str> = Setting::new(
    "shm",
    "streaming_stores",
    "auto",
    "Whether payloads of 1 KiB and more are written into the rings past the caches (streaming stores): always, never, or by what is faster for each peer and size (auto). x86-64 only",
)
.one_of(&["auto", "always", "never"]);

/// What `FI_SHM_STREAMING_STORES` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamingStores {
    Auto,
    Always,
    Never,
}

impl StreamingStores {
    /// As it stands now.
    pub fn get() -> Self {
        match STREAMING_STORES.get().as_str() {
            "always" => Self::Always,
            "never" => Self::Never,
            _ => Self::Auto,
        }
    }
}

/// What `FI_SHM_SINGLE_COPY` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SingleCopy {
    Auto,
    Always,
    Never,
}

impl SingleCopy {
    /// As it stands now.
    pub fn get() -> Self {
        match SINGLE_COPY.get().as_str() {
            "always" => Self::Always,
            "never" => Self::Never,
            _ => Self::Auto,
        }
    }
}

/// All settings of this provider.
pub static SETTINGS: &[&dyn AnySetting] = &[
    &REMOTE_COMM,
    &COMMAND_LINES,
    &BULK_LINES,
    &KEPT_BYTES,
    &SINGLE_COPY,
    &SINGLE_COPY_SIZE,
    &STREAMING_STORES,
];
