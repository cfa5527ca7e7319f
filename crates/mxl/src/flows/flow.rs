//! The file `data` of a flow: its description, its words, and whether the flow was deleted or replaced.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use uuid::Uuid;

use super::file::{self, Mapping};
use super::layout::{self, Config, Data, at};
use super::sigbus::Note;
use super::time::{self, Rational};
use super::{Error, futex, scaffold};
use crate::protocol::{FlowWords, JumpWords};

/// A flow's description, as stored in its file.
#[derive(Clone, Copy, Debug)]
pub struct FlowInfo {
    /// The file's bytes.
    pub config: Config,
}

impl FlowInfo {
    /// The flow's id.
    pub fn id(&self) -> Uuid {
        Uuid::from_bytes(self.config.common.id)
    }

    /// Grains or samples per second.
    pub fn rate(&self) -> Rational {
        Rational::new(self.config.common.rate_numerator, self.config.common.rate_denominator)
    }

    /// Whether it is a ring of grains.
    pub fn is_discrete(&self) -> bool {
        [layout::format::VIDEO, layout::format::DATA].contains(&self.config.common.format)
    }
}

/// The parts of a flow that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// The newest committed index.
    pub head: u64,
    /// Nanoseconds of TAI.
    pub last_write: u64,
    /// Nanoseconds of TAI, for grains only; the writer's process records it.
    pub last_read: u64,
}

/// Numbers of mappings in a flow's [`Note`]: the data file, and the first file of the ring.
const DATA: u32 = 1;
const RING: u32 = 2;

/// Interval at which a waiting reader checks in the file system that the flow still exists, in nanoseconds.
const CHECK_EVERY: u64 = 1_000_000;

/// An open `data` file.
#[derive(Debug)]
pub struct Flow {
    pub info: FlowInfo,
    dir: PathBuf,
    path: PathBuf,
    words: Mapping,
    /// Whether one of its files was truncated.
    note: Arc<Note>,
    /// The writer's descriptor, which carries the lock.
    file: Option<OwnedFd>,
    inode: u64,
    checked: AtomicU64,
    /// Set if the opener turned out not to be a writer: the drop then deletes nothing.
    keep: AtomicBool,
    /// The process that opened it. A forked child shares the lock, which only the parent may release.
    process: u32,
}

/// Why a flow cannot be written. [`Gone`](Self::Gone) may be temporary.
#[derive(Debug)]
pub enum Refused {
    /// The flow does not exist, or no longer exists: create it.
    Gone,
    /// Any other error.
    Error(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Flow {
    /// Opens the flow in `dir` to read it.
    pub fn read(dir: &Path, id: Uuid) -> Result<Self, Error> {
        let path = dir.join("data");
        let file = file::open(&path, false).map_err(|error| not_found(error, id))?;
        let info = check(&file, &path, id)?;
        let (_, inode) = file::size(&file, &path)?;
        let note = Arc::new(Note::default());
        let words = Mapping::new(file.as_fd(), &path, size_of::<Data>(), false, (&note, DATA))?;
        Ok(Self {
            info,
            dir: dir.to_path_buf(),
            path,
            words,
            note,
            file: None,
            inode,
            checked: AtomicU64::new(0),
            keep: AtomicBool::new(false),
            process: std::process::id(),
        })
    }

    /// Opens the flow in `dir` to write it, and protects it from garbage collection.
    pub fn write(dir: &Path, id: Uuid) -> Result<Self, Refused> {
        let path = dir.join("data");
        let file = file::open(&path, true).map_err(|error| gone(error, id))?;
        if !file::lock_shared(&file, &path)? {
            return Err(Refused::Gone);
        }
        let flow = Self::locked(file, dir, id)?;
        // Its last writer may have deleted it between this open and this lock.
        if flow.is_current() { Ok(flow) } else { Err(Refused::Gone) }
    }

    /// The flow of a file that this process has locked.
    pub fn locked(file: OwnedFd, dir: &Path, id: Uuid) -> Result<Self, Error> {
        let path = dir.join("data");
        let info = check(&file, &path, id)?;
        let (_, inode) = file::size(&file, &path)?;
        let note = Arc::new(Note::default());
        let words = Mapping::new(file.as_fd(), &path, size_of::<Data>(), true, (&note, DATA))?;
        let dir = dir.to_path_buf();
        Ok(Self {
            info,
            dir,
            path,
            words,
            note,
            file: Some(file),
            inode,
            checked: AtomicU64::new(0),
            keep: AtomicBool::new(false),
            process: std::process::id(),
        })
    }

    /// Records that the flow's directory was renamed to its public name.
    pub fn renamed(&mut self, dir: &Path) {
        self.dir = dir.to_path_buf();
        self.path = dir.join("data");
    }

    /// The flow's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The changing words.
    pub fn words(&self) -> FlowWords<'_> {
        FlowWords {
            head: self.words.u64_at(at::HEAD),
            last_write: self.words.u64_at(at::LAST_WRITE),
            counter: self.words.u32_at(at::COUNTER),
        }
    }

    /// The words that announce a jump.
    pub fn jump(&self) -> JumpWords<'_> {
        JumpWords { from: self.words.u64_at(at::JUMP_FROM), to: self.words.u64_at(at::JUMP_TO) }
    }

    /// The time of the last read.
    pub fn last_read(&self) -> &AtomicU64 {
        self.words.u64_at(at::LAST_READ)
    }

    pub fn runtime(&self) -> Runtime {
        let words = self.words();
        Runtime {
            head: words.head.load(Ordering::Acquire),
            last_write: words.last_write.load(Ordering::Relaxed),
            last_read: self.last_read().load(Ordering::Relaxed),
        }
    }

    /// Wakes threads that sleep on the counter.
    pub fn wake(&self) {
        futex::wake(self.words().counter);
    }

    /// Whether this implementation deleted the flow.
    fn is_deleted(&self) -> bool {
        self.words.u64_at(at::INODE).load(Ordering::Relaxed) == 0
    }

    /// The inode of the data file. No other file has it while this one is open.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The note that records a truncated file of this flow, and the number under which it records this mapping: `ring`
    /// is the slot of a grain, or 0 for the file of the channels.
    pub fn note(&self, ring: u32) -> (&Arc<Note>, u32) {
        (&self.note, ring.saturating_add(RING))
    }

    /// Returns an error if a file of the flow was found truncated. Call it after accesses whose results would be wrong
    /// if they read zeros.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    #[inline]
    pub fn intact(&self) -> Result<(), Error> {
        match self.note.broken() {
            None => Ok(()),
            Some(number) => Err(self.truncated(number)),
        }
    }

    /// Why the flow can no longer be used: [`Error::Truncated`] or [`Error::FlowInvalid`].
    pub fn invalid(&self) -> Error {
        self.intact().err().unwrap_or(Error::FlowInvalid)
    }

    #[cold]
    fn truncated(&self, number: u32) -> Error {
        let path = match number.checked_sub(RING) {
            None => self.path.clone(),
            Some(slot) if self.info.is_discrete() => scaffold::grain_path(&self.dir, slot),
            Some(_) => self.dir.join("channels"),
        };
        Error::Truncated { path }
    }

    /// The size of the data file, if the path still names that file.
    fn named(&self) -> Option<u64> {
        let stat = rustix::fs::stat(&self.path).ok().filter(|stat| stat.st_ino == self.inode)?;
        u64::try_from(stat.st_size).ok()
    }

    /// Whether the flow's name still refers to this flow, and no file of it was found truncated.
    pub fn is_current(&self) -> bool {
        // A truncation within the last page raises no signal, but shows in the size.
        let is_whole = |size| size >= size_of::<Data>() as u64;
        !self.is_deleted() && self.named().is_some_and(is_whole) && self.note.broken().is_none()
    }

    /// Like [`is_current`](Self::is_current), but asks the file system at most once in a millisecond.
    pub fn seems_current(&self) -> bool {
        if self.is_deleted() || self.note.broken().is_some() {
            return false;
        }
        let now = time::coarse();
        if now.wrapping_sub(self.checked.load(Ordering::Relaxed)) < CHECK_EVERY {
            return true;
        }
        let current = self.is_current();
        // The result for a deleted flow is not cached, so that every later call reports it too.
        if current {
            self.checked.store(now, Ordering::Relaxed);
        }
        current
    }

    /// Makes the drop leave the flow in place, because its opener is not a writer.
    pub fn keep(&self) {
        self.keep.store(true, Ordering::Relaxed);
    }

    /// Releases the flow for a writer; the last writer deletes it. A copy in a forked child does not count as a writer.
    pub fn release(&self) {
        if self.process != std::process::id() {
            return;
        }
        let Some(file) = self.file.as_ref().filter(|_| !self.keep.load(Ordering::Relaxed)) else { return };
        if !file::lock_alone(file) {
            return;
        }
        // The inode identifies the flow, since no other file gets it while this one is open. A truncation may
        // have wiped the flow's words.
        if self.named().is_some() {
            self.delete();
        }
    }

    /// Deletes the flow, and wakes its readers.
    fn delete(&self) {
        if let Err(error) = scaffold::remove(&self.dir) {
            tracing::warn!(%error, dir = %self.dir.display(), "a flow without writers could not be deleted");
            return;
        }
        self.words.u64_at(at::INODE).store(0, Ordering::Relaxed);
        self.words().counter.fetch_add(1, Ordering::Release);
        self.wake();
    }
}

fn not_found(error: Error, id: Uuid) -> Error {
    match error {
        Error::Os { source, .. } if source.kind() == io::ErrorKind::NotFound => Error::NotFound(id),
        other => other,
    }
}

fn gone(error: Error, id: Uuid) -> Refused {
    match not_found(error, id) {
        Error::NotFound(_) => Refused::Gone,
        other => Refused::Error(other),
    }
}

/// Reads and validates the description in a file.
fn check(file: &OwnedFd, path: &Path, id: Uuid) -> Result<FlowInfo, Error> {
    let data: Data = file::header(file, path)?;
    let Data { info, .. } = data;
    let broken = |what: String| Err(Error::file(path, what));
    if info.version != layout::DATA_VERSION {
        return broken(format!("version {}, not {}", info.version, layout::DATA_VERSION));
    }
    let common = info.config.common;
    if common.id != *id.as_bytes() {
        return broken(format!("belongs to flow {}", Uuid::from_bytes(common.id)));
    }
    if common.payload_location != 0 {
        return broken(format!("its payload is in memory of device {}", common.device_index));
    }
    let found = FlowInfo { config: info.config };
    if !found.rate().is_positive() {
        return broken(format!("invalid rate {}", found.rate()));
    }
    match common.format {
        layout::format::VIDEO | layout::format::DATA if info.config.discrete().grain_count == 0 => {
            broken("a ring without grains".into())
        }
        layout::format::VIDEO | layout::format::DATA => Ok(found),
        layout::format::AUDIO => {
            let continuous = info.config.continuous();
            if continuous.channel_count == 0 || continuous.buffer_length < 2 {
                return broken("a ring without samples".into());
            }
            Ok(found)
        }
        format => broken(format!("format {format} is not supported")),
    }
}

/// Methods that readers and writers of both grains and samples have. Each type has a field `flow`.
macro_rules! describes_flow {
    ($($handle:ident),*) => { $(
        impl $handle {
            /// The flow's id.
            pub fn id(&self) -> uuid::Uuid {
                self.flow.info.id()
            }

            /// The flow's description.
            pub fn info(&self) -> &$crate::FlowInfo {
                &self.flow.info
            }

            /// The flow's head and times.
            pub fn runtime(&self) -> $crate::Runtime {
                self.flow.runtime()
            }

            /// Grains or samples per second.
            pub fn rate(&self) -> $crate::Rational {
                self.flow.info.rate()
            }

            /// The newest committed index.
            pub fn head(&self) -> u64 {
                self.flow.words().head.load(std::sync::atomic::Ordering::Acquire)
            }

            /// Whether the flow's name still refers to this flow: it was not deleted, replaced or truncated.
            pub fn is_current(&self) -> bool {
                self.flow.is_current()
            }

            /// Checks that no file of the flow was found truncated while it was in use here. Reads and commits check
            /// this themselves; a program that accesses the memory by address must call this afterwards.
            ///
            /// # Errors
            /// [`Error::Truncated`](crate::Error::Truncated).
            #[inline]
            pub fn intact(&self) -> Result<(), $crate::Error> {
                self.flow.intact()
            }

            /// The flow's current state, for [`wait_any`](crate::wait_any).
            pub fn watch(&self) -> $crate::Watch<'_> {
                $crate::Watch::new(&self.flow)
            }
        }
    )* };
}
pub(super) use describes_flow;
