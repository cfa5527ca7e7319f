//! The destination of a client's writes: an open folder and a name in it. The kernel opens a tree's folders below its
//! root (`openat2`) and follows no links, so that a server cannot cause a write outside the root.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, Stat, mkdirat, openat, openat2, renameat_with,
    statat, unlinkat,
};

use super::keep::Keep;
use super::wire::Kept;
use crate::failure::{Failure, Result};

/// The suffix of a partly received file's name.
pub const PART: &str = ".ofi-part";
/// The suffix of a journal's name.
pub const JOURNAL: &str = ".ofi-journal";

/// The destination of a file.
pub struct FileDestination {
    folder: OwnedFd,
    name: OsString,
    shown: PathBuf,
}

/// The folder that a tree is copied into.
pub struct Trunk {
    folder: OwnedFd,
    shown: PathBuf,
}

fn failed(path: &Path, error: rustix::io::Errno) -> Failure {
    Failure::system(path.display(), error.into())
}

/// Whether a server's name is valid in a folder and not reserved for our own files.
pub fn is_plain(name: &str) -> bool {
    let is_path = name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']);
    !is_path && name.len() <= 255 && !is_ours(name)
}

/// Whether the name is reserved for files of a running copy.
pub fn is_ours(name: &str) -> bool {
    name.ends_with(PART) || name.ends_with(JOURNAL)
}

impl FileDestination {
    /// The place at a user's path.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub fn at(path: &Path) -> Result<Self> {
        let Some(name) = path.file_name() else {
            return Err(Failure::Usage(format!("{}: wanted the name of a file", path.display())));
        };
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let opened = openat(CWD, folder, flags, Mode::empty()).map_err(|error| failed(folder, error))?;
        Ok(Self { folder: opened, name: name.into(), shown: path.into() })
    }

    /// The path as shown to users.
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    fn beside(&self, more: &str) -> OsString {
        let mut name = self.name.clone();
        name.push(more);
        name
    }

    /// The existing file, if any: a link itself, not its target.
    pub fn found(&self) -> Option<Stat> {
        statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Opens or creates the file whose name ends in `more`; refuses links.
    ///
    /// # Errors
    /// The system's error.
    pub fn open_beside(&self, more: &str) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let name = self.beside(more);
        // Other users must not read the file before its mode is set.
        let opened = openat(&self.folder, &name, flags, Mode::from_raw_mode(0o600));
        let shown = || match self.name.is_empty() {
            true => self.shown.join(&name),
            false => self.shown.with_file_name(&name),
        };
        opened.map(File::from).map_err(|error| failed(&shown(), error))
    }

    /// Renames the file whose name ends in `more` to the plain name. `replace` permits replacing another file.
    ///
    /// # Errors
    /// The system's error; `EEXIST` if a file of that name exists and may not be replaced.
    pub fn put(&self, more: &str, replace: bool) -> Result<()> {
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let renamed = renameat_with(&self.folder, self.beside(more), &self.folder, &self.name, flags);
        renamed.map_err(|error| failed(&self.shown, error))
    }

    /// Removes the file whose name ends in `more`, if it exists.
    pub fn remove_beside(&self, more: &str) {
        let _ = unlinkat(&self.folder, self.beside(more), AtFlags::empty());
    }
}

impl Trunk {
    /// Opens the folder, or creates it.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path) -> Result<Self> {
        let doing = |error: io::Error| Failure::system(path.display(), error);
        std::fs::create_dir_all(path).map_err(doing)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let folder = openat(CWD, path, flags, Mode::empty()).map_err(|error| failed(path, error))?;
        Ok(Self { folder, shown: path.into() })
    }

    /// Opens a subfolder; no part of the path may be a link.
    fn below(&self, path: &Path) -> Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(&self.folder, path, flags, Mode::empty(), resolve).map_err(|error| {
            let doing = format!("{} (no link on the way is followed)", self.shown.join(path).display());
            Failure::system(doing, error.into())
        })
    }

    /// The place of the file at this path below the folder. Its parent must exist.
    ///
    /// # Errors
    /// The parent cannot be opened, or is behind a link.
    pub fn place(&self, path: &str) -> Result<FileDestination> {
        let path = Path::new(path);
        let folder = self.below(path.parent().unwrap_or(Path::new("")))?;
        Ok(FileDestination {
            folder,
            name: path.file_name().unwrap_or_default().into(),
            shown: self.shown.join(path),
        })
    }

    /// The place of the tree's own journal: the folder, with an empty name.
    ///
    /// # Errors
    /// The system's error.
    pub fn journal(&self) -> Result<FileDestination> {
        let folder = self.below(Path::new(""))?;
        Ok(FileDestination { folder, name: OsString::new(), shown: self.shown.clone() })
    }

    /// Creates a subfolder, whose parent must exist. An existing one is kept. Files can be created in it, regardless of
    /// its mode at the server.
    ///
    /// # Errors
    /// A file or a link is in its place.
    pub fn make(&self, path: &str, kept: &Kept) -> Result<()> {
        let FileDestination { folder, name, shown } = self.place(path)?;
        match mkdirat(&folder, &name, Mode::from_raw_mode(kept.mode & 0o777 | 0o700)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => self.below(Path::new(path)).map(drop),
            Err(error) => Err(failed(&shown, error)),
        }
    }

    /// Sets the mode and time of a subfolder as at the server.
    ///
    /// # Errors
    /// The system's error.
    pub fn keep(&self, path: &str, keep: Keep, kept: &Kept) -> Result<()> {
        let folder = self.below(Path::new(path))?;
        keep.put_on(folder, kept).map_err(|error| Failure::system(self.shown.join(path).display(), error))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_not_plain() {
        assert!(["a", "a b", "...", "-f", "å"].into_iter().all(is_plain));
        let long = "x".repeat(256);
        for bad in ["", ".", "..", "/", "a/b", "../a", "/etc", "a\0", "a.ofi-part", ".ofi-journal", &long] {
            assert!(!is_plain(bad), "{bad:?}");
        }
    }

    #[test]
    fn no_link_in_the_destination_leads_out_of_it() {
        let base = std::env::temp_dir().join(format!("ofi-cp-place-{}", std::process::id()));
        fs::create_dir_all(base.join("outside")).unwrap();
        let trunk = Trunk::open(&base.join("tree/new")).unwrap();
        let kept = Kept { mode: 0o511, modified: 1_000_000_000, nanos: 0 };
        trunk.make("sub", &kept).unwrap();
        trunk.make("sub", &kept).unwrap();
        trunk.make("sub/deep", &kept).unwrap();
        trunk.keep("sub/deep", Keep { all: true, umask: 0 }, &kept).unwrap();
        let found = fs::metadata(base.join("tree/new/sub/deep")).unwrap();
        assert_eq!((found.mode() & 0o7777, found.mtime()), (0o511, 1_000_000_000));
        symlink(base.join("outside"), base.join("tree/new/link")).unwrap();
        symlink("sub", base.join("tree/new/inner")).unwrap();
        for bad in ["link/file", "inner/file", "../file", "missing/file"] {
            assert!(trunk.place(bad).is_err(), "{bad}");
        }
        for bad in ["link", "inner", "link/sub", "../sub"] {
            assert!(
                trunk.make(bad, &kept).is_err()
                    && trunk.keep(bad, Keep { all: true, umask: 0 }, &kept).is_err(),
                "{bad}"
            );
        }
        // A link in place of a partly received file is not followed either.
        symlink(base.join("outside/victim"), base.join("tree/new/sub/file.ofi-part")).unwrap();
        assert!(trunk.place("sub/file").unwrap().open_beside(PART).is_err());
        assert_eq!(fs::read_dir(base.join("outside")).unwrap().count(), 0);
        fs::remove_dir_all(base).unwrap();
    }
}
