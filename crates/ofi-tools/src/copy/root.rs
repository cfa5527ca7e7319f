//! The files that a server hands out: regular ones below its directory, whatever a client calls them.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use super::wire::{FileId, HEAD, LONGEST_FILE, seal};

/// The directory.
pub struct Root(File);

/// A file of it.
pub struct Served {
    file: File,
    id: FileId,
}

impl Root {
    /// Opens it.
    ///
    /// # Errors
    /// What the system answers.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let file = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::empty())?;
        Ok(Self(file.into()))
    }

    /// Opens a regular file below it. The kernel keeps the search below the directory, links included.
    ///
    /// # Errors
    /// Why a client does not get it.
    pub fn file(&self, name: &str) -> Result<Served, String> {
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if name.is_empty() || !Path::new(name).components().all(plain) {
            return Err(format!("{name:?}: wanted a path below the directory, without .. and not from /"));
        }
        let why = |error: &dyn std::fmt::Display| format!("{name:?}: {error}");
        // A pipe that nobody writes would hang a blocking open.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&self.0, name, flags, Mode::empty(), resolve).map_err(|error| why(&error))?;
        let file = File::from(file);
        let found = file.metadata().map_err(|error| why(&error))?;
        if !found.is_file() {
            return Err(why(&"it is not a regular file"));
        }
        if found.len() > LONGEST_FILE {
            return Err(why(&format!("it is longer than {LONGEST_FILE} bytes")));
        }
        Ok(Served { id: identity(&found), file })
    }
}

impl Served {
    /// Which file it is, as it was opened.
    pub fn id(&self) -> &FileId {
        &self.id
    }

    /// Makes the message with a block, in `message`.
    ///
    /// # Errors
    /// When there is no such block, it cannot be read, or the file has changed since it was opened.
    pub fn block(&self, number: u64, message: &mut Vec<u8>) -> Result<(), String> {
        if number >= self.id.blocks() {
            return Err(format!("block {number} does not exist; the file has {}", self.id.blocks()));
        }
        message.resize(HEAD + self.id.block_len(number), 0);
        let read = self.file.read_exact_at(&mut message[HEAD..], number * super::wire::BLOCK as u64);
        // Asked after reading: then what was read is of this version.
        let now = self.file.metadata().map_err(|error| error.to_string())?;
        if identity(&now) != self.id {
            return Err("the file has changed since the copy began".into());
        }
        read.map_err(|error| error.to_string())?;
        seal(message, number);
        Ok(())
    }
}

/// What changes when the content does, and says nothing else.
fn identity(found: &Metadata) -> FileId {
    let mut hasher = blake3::Hasher::new();
    for number in [found.dev(), found.ino(), found.len()] {
        hasher.update(&number.to_le_bytes());
    }
    for number in [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()] {
        hasher.update(&number.to_le_bytes());
    }
    FileId { len: found.len(), version: hasher.finalize().to_hex().to_string() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_below_the_directory_are_opened() {
        let base = std::env::temp_dir().join(format!("ofi-cp-root-{}", std::process::id()));
        let dir = base.join("served");
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::write(base.join("secret"), "secret").unwrap();
        fs::write(dir.join("sub/file"), "hello").unwrap();
        symlink("sub/file", dir.join("inside")).unwrap();
        symlink("../secret", dir.join("outside")).unwrap();
        symlink(base.join("secret"), dir.join("absolute")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(dir.join("pipe")).status();
        assert!(pipe.unwrap().success());
        let root = Root::open(&dir).unwrap();
        for good in ["sub/file", "inside"] {
            assert_eq!(root.file(good).unwrap_or_else(|why| panic!("{why}")).id().len, 5);
        }
        for bad in [
            "",
            ".",
            "..",
            "../secret",
            "sub/../../secret",
            "/etc/passwd",
            "outside",
            "absolute",
            "sub",
            "pipe",
            "nothing",
            "a\0b",
            "/proc/self/fd/0",
        ] {
            assert!(root.file(bad).is_err(), "{bad:?}");
        }
        let file = root.file("sub/file").unwrap();
        let mut message = Vec::new();
        file.block(0, &mut message).unwrap();
        assert_eq!(&message[HEAD..], b"hello");
        assert!(file.block(1, &mut message).is_err() && file.block(u64::MAX, &mut message).is_err());
        fs::write(dir.join("sub/file"), "other, longer").unwrap();
        assert!(file.block(0, &mut message).unwrap_err().contains("changed"));
        fs::remove_dir_all(base).unwrap();
    }
}
