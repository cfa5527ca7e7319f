//! Flows whose writers are gone, and flows that were never finished.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use uuid::Uuid;

use super::{Error, domain, file, scaffold};

/// The numbers of removed files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Flows without writers.
    pub flows: usize,
    /// Flows whose creation was interrupted.
    pub unfinished: usize,
}

/// How old an unfinished flow is before it counts as left behind: its maker may be about to lock it.
const UNFINISHED: Duration = Duration::from_secs(5);

/// The file, opened so that the read is not noticed as one of the flow.
fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::open(path, flags | OFlags::NOATIME, Mode::empty()) {
        // Only owners may say so.
        Err(Errno::PERM) => rustix::fs::open(path, flags, Mode::empty()),
        other => other,
    }
}

pub fn is_active(dir: &Path, id: Uuid) -> Result<bool, Error> {
    let path = dir.join("data");
    match open(&path) {
        Ok(file) => Ok(!file::lock_alone(&file)),
        Err(Errno::NOENT) => Err(Error::NotFound(id)),
        Err(error) => Err(Error::os("open", &path, error)),
    }
}

pub fn collect(domain: &Path) -> Result<Collected, Error> {
    let os = |error| Error::os("list", domain, error);
    let mut collected = Collected::default();
    for entry in fs::read_dir(domain).map_err(os)? {
        let entry = entry.map_err(os)?;
        // What follows a link is not ours.
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.strip_suffix(domain::SUFFIX).is_some_and(|id| Uuid::try_parse(id).is_ok()) {
            collected.flows += usize::from(remove_dead(&path));
        } else if name.starts_with(scaffold::PREFIX) && is_old(&path) {
            collected.unfinished += usize::from(remove_unfinished(&path));
        }
    }
    Ok(collected)
}

/// Removes a flow without writers.
pub fn remove_dead(dir: &Path) -> bool {
    open(&dir.join("data")).is_ok_and(|file| remove_locked(&file, dir))
}

fn remove_unfinished(dir: &Path) -> bool {
    match open(&dir.join("data")) {
        Ok(file) => remove_locked(&file, dir),
        Err(Errno::NOENT) => remove(dir),
        Err(_) => false,
    }
}

/// Removes what nobody has locked. The lock is held meanwhile, so that nobody opens or deletes it; but before we had
/// it, the flow may have been deleted and made anew, and then the name is another's.
fn remove_locked(file: &OwnedFd, dir: &Path) -> bool {
    if !file::lock_alone(file) {
        return false;
    }
    let named = rustix::fs::stat(dir.join("data")).map(|stat| (stat.st_dev, stat.st_ino));
    let locked = rustix::fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino));
    named.is_ok() && named == locked && remove(dir)
}

fn is_old(dir: &Path) -> bool {
    let modified = fs::metadata(dir).and_then(|data| data.modified());
    modified.is_ok_and(|then| SystemTime::now().duration_since(then).is_ok_and(|age| age > UNFINISHED))
}

fn remove(dir: &Path) -> bool {
    match scaffold::remove(dir) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, dir = %dir.display(), "a flow without writers could not be removed");
            false
        }
    }
}
