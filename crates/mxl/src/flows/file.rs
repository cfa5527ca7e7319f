//! Files of a flow: opened, checked, mapped. Their content is untrusted.

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::{FromBytes, IntoBytes};

use super::Error;
use super::copy::Shared;
use super::sigbus::{Listed, Note};

/// A mapped file. Its bytes may change at any time, so they are accessed as atomic words and by copies, never through
/// references to bytes.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// The entry for the handling of truncation; `None` only during drop.
    listed: Option<Listed>,
}

// SAFETY: only a range of addresses that stays mapped; every access through it is atomic, or a copy that tolerates
// concurrent accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file that is at least that long. If the file is truncated later, an access
    /// stores the mapping's number in the flow's note.
    pub fn new(
        file: BorrowedFd<'_>,
        path: &Path,
        len: usize,
        write: bool,
        (note, number): (&Arc<Note>, u32),
    ) -> Result<Self, Error> {
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, write);
        // SAFETY: a new mapping at an address that the kernel chooses; nothing else knows the address.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) };
        let base = base.map_err(|error| Error::os("mmap", path, error))?;
        let base: NonNull<u8> =
            NonNull::new(base.cast()).ok_or_else(|| Error::os("mmap", path, Errno::FAULT))?;
        let listed = Listed::new(base.as_ptr().addr(), len, write, note.clone(), number);
        Ok(Self { base, len, listed: Some(listed) })
    }

    fn word(&self, offset: usize, size: usize) -> *mut u8 {
        assert!(offset.is_multiple_of(size) && offset + size <= self.len, "word {offset} of {}", self.len);
        self.base.as_ptr().wrapping_add(offset)
    }

    /// The word at `offset`.
    ///
    /// # Panics
    /// If the word is outside the mapping or not aligned. The offsets are constants of this crate, and
    /// lengths were checked.
    pub fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: aligned and inside, as just checked; mapped as long as `self`. This process uses it only atomically;
        // other processes use it too.
        unsafe { AtomicU64::from_ptr(self.word(offset, 8).cast()) }
    }

    /// The word at `offset`, like [`u64_at`](Self::u64_at).
    pub fn u32_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.word(offset, 4).cast()) }
    }

    /// The bytes from `offset` on; empty if it lies past the end.
    pub fn from(&self, offset: usize) -> Shared {
        let offset = offset.min(self.len);
        let base = NonNull::new(self.base.as_ptr().wrapping_add(offset)).unwrap_or(self.base);
        // SAFETY: inside the mapping; callers keep `self` as long as they use the result.
        unsafe { Shared::new(base, self.len - offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Must come first: another mapping may get this address.
        self.listed = None;
        // SAFETY: mapped by `new` with this length, and nothing that points into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A folder of a flow.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    const FLAGS: OFlags =
        OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

    /// Opens a folder. A link is not followed.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::try_open(path).map_err(|error| Error::os("open", path, error))
    }

    fn try_open(path: &Path) -> Result<Self, Errno> {
        rustix::fs::open(path, Self::FLAGS, Mode::empty()).map(Self)
    }

    /// Opens a folder in this one, as [`open`](Self::open) does. `path` is its whole path.
    pub fn folder(&self, path: &Path) -> Result<Self, Error> {
        let opened = rustix::fs::openat(&self.0, name(path), Self::FLAGS, Mode::empty());
        opened.map(Self).map_err(|error| Error::os("open", path, error))
    }

    /// Opens an existing file in this folder, as [`open()`] does. `path` is its whole path.
    pub fn file(&self, path: &Path, write: bool) -> Result<OwnedFd, Error> {
        let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
        match self.try_file(path, flags) {
            Ok(Some(file)) => Ok(file),
            Ok(None) => Err(Error::file(path, "is not a file")),
            Err(error) => Err(Error::os("open", path, error)),
        }
    }

    /// Bytes of a file in this folder, as [`size()`] says them, without opening it. `path` is its whole path.
    pub fn size(&self, path: &Path) -> Result<u64, Error> {
        let stat = rustix::fs::statat(&self.0, name(path), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| Error::os("stat", path, error))?;
        file_size(&stat, path)
    }

    /// `None` if it is not a regular file. A FIFO would block the opener until another process opens it.
    fn try_file(&self, path: &Path, flags: OFlags) -> Result<Option<OwnedFd>, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.0, name(path), flags, Mode::empty())?;
        Ok(is_file(&file)?.then_some(file))
    }
}

/// The last part of a path.
fn name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

fn is_file(file: &OwnedFd) -> Result<bool, Errno> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode);
    Ok(kind == FileType::RegularFile)
}

/// Opens an existing file of a flow. Links instead of the file or its folder are not followed. Anything but a regular
/// file is refused without blocking.
pub fn open(path: &Path, write: bool) -> Result<OwnedFd, Error> {
    let folder = path.parent().unwrap_or(path);
    let folder = Folder::try_open(folder).map_err(|error| Error::os("open", path, error))?;
    folder.file(path, write)
}

/// Opens an existing file like [`open()`], without updating its access time, which would count as a read of the flow.
pub fn open_unnoticed(path: &Path) -> Result<OwnedFd, Errno> {
    let folder = Folder::try_open(path.parent().unwrap_or(path))?;
    let file = match folder.try_file(path, OFlags::RDONLY | OFlags::NOATIME) {
        // Only the owner of a file may use `O_NOATIME`.
        Err(Errno::PERM) => folder.try_file(path, OFlags::RDONLY)?,
        other => other?,
    };
    file.ok_or(Errno::INVAL)
}

/// Reads a whole file of a flow, opened by [`open()`].
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    whole(open(path, false)?, path)
}

/// Reads a whole file that the domain's owner supplied, which may be a link. Anything but a regular file is refused
/// without blocking.
pub fn read_linked(path: &Path) -> Result<Vec<u8>, Error> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let os = |error| Error::os("open", path, error);
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(os)?;
    if !is_file(&file).map_err(os)? {
        return Err(Error::file(path, "is not a file"));
    }
    whole(file, path)
}

fn whole(file: OwnedFd, path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    fs::File::from(file).read_to_end(&mut bytes).map_err(|error| Error::os("read", path, error))?;
    Ok(bytes)
}

/// Creates a file whose `len` bytes are allocated: a full disk is an error now, not a signal later.
pub fn create(path: &Path, len: u64) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o664))
        .map_err(|error| Error::os("create", path, error))?;
    if len == 0 {
        return Ok(file);
    }
    match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
        Ok(()) => Ok(file),
        Err(Errno::OPNOTSUPP) => {
            fill(&file, len).map(|()| file).map_err(|error| Error::os("write", path, error))
        }
        Err(error) => Err(Error::os("allocate", path, error)),
    }
}

/// Replaces `fallocate` on a file system that does not support it.
fn fill(file: &OwnedFd, len: u64) -> Result<(), Errno> {
    let zeros = vec![0; 1 << 20];
    let mut at = 0;
    while at < len {
        let part = (len - at).min(zeros.len() as u64) as usize;
        at += rustix::io::pwrite(file, &zeros[..part], at)? as u64;
    }
    Ok(())
}

/// Size of a file in bytes, and its inode. `None` if it is not a file.
pub fn size(file: impl AsFd, path: &Path) -> Result<(u64, u64), Error> {
    let stat = rustix::fs::fstat(file).map_err(|error| Error::os("stat", path, error))?;
    Ok((file_size(&stat, path)?, stat.st_ino))
}

fn file_size(stat: &rustix::fs::Stat, path: &Path) -> Result<u64, Error> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::file(path, "is not a file"));
    }
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Reads the start of a file. Unlike an access to a mapping, this returns an error if the file shrinks meanwhile.
pub fn header<T: FromBytes + IntoBytes>(file: impl AsFd, path: &Path) -> Result<T, Error> {
    let mut header = T::new_zeroed();
    let bytes = header.as_mut_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match rustix::io::pread(&file, &mut bytes[at..], at as u64) {
            Ok(0) => {
                return Err(Error::file(path, format!("{at} bytes; {} are needed", bytes.len())));
            }
            Ok(read) => at += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::os("read", path, error)),
        }
    }
    Ok(header)
}

/// How long a process may hold the exclusive lock. It deletes the files of a ring under the lock, which takes tens of
/// milliseconds for each GiB, or checks whether there are writers, which takes microseconds.
const LOCKED_FOR: Duration = Duration::from_secs(10);

/// Takes the writers' shared lock. Waits while another process holds the exclusive lock, to delete the flow or to check
/// whether it has writers. Returns false if `path` no longer names the file: it is being deleted.
pub fn lock_shared(file: &OwnedFd, path: &Path) -> Result<bool, Error> {
    let begin = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(Error::os("lock", path, error)),
        }
        let (_, inode) = size(file, path)?;
        if !rustix::fs::stat(path).is_ok_and(|named| named.st_ino == inode) {
            return Ok(false);
        }
        if begin.elapsed() > LOCKED_FOR {
            return Err(Error::file(
                path,
                format!(
                    "another process had the exclusive lock for {LOCKED_FOR:?}: it does not finish deleting the flow, \
                     or locks a file that it only reads"
                ),
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes the exclusive lock, if the file is not locked.
pub fn lock_alone(file: &OwnedFd) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}
