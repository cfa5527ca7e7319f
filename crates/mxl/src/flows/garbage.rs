//! Removes flows without writers, and unfinished flows.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

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

/// Age from which an unfinished flow counts as abandoned. The creator of a younger one may not have locked it yet.
const UNFINISHED: Duration = Duration::from_secs(5);

pub fn is_active(dir: &Path, id: Uuid) -> Result<bool, Error> {
    let path = dir.join("data");
    match file::open_unnoticed(&path) {
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
        // A link's target does not belong to the domain.
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
    file::open_unnoticed(&dir.join("data")).is_ok_and(|file| remove_locked(&file, dir))
}

fn remove_unfinished(dir: &Path) -> bool {
    match file::open_unnoticed(&dir.join("data")) {
        Ok(file) => remove_locked(&file, dir),
        Err(Errno::NOENT) => remove(dir),
        Err(_) => false,
    }
}

/// Removes a flow that no other process has locked. The lock prevents other processes from opening or deleting it
/// meanwhile. If the flow was deleted and created again before the lock was taken, the name belongs to another flow,
/// and nothing is removed.
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
