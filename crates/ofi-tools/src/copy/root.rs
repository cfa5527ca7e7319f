//! The served files: regular files below a directory, whatever path a client requests, and listings of its
//! subdirectories.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};

use super::wire::{Answer, Entry, FileId, HEAD, Kept, MAX_FILE_LEN, MAX_MESSAGE_LEN, seal};

/// The served directory.
pub struct Root(File);

/// Maximum entries of a directory that is listed. The server keeps them in memory for the client.
const MAX_ENTRIES: usize = 1 << 20;

/// The contents of a subdirectory at one moment.
pub struct Listing {
    name: String,
    entries: Vec<Entry>,
    skipped: u64,
}

/// A served file.
pub struct Served {
    file: File,
    id: FileId,
}

impl Root {
    /// Opens the directory.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let file = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::empty())?;
        Ok(Self(file.into()))
    }

    /// Reads a subdirectory, or the directory itself (`.`). Links are neither followed nor listed.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn listing(&self, name: &str) -> Result<Listing, String> {
        if name != "." {
            check(name)?;
        }
        let why = |error: &dyn std::fmt::Display| format!("{name:?}: {error}");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let folder = openat2(&self.0, name, flags, Mode::empty(), resolve).map_err(|error| why(&error))?;
        let (mut entries, mut skipped) = (Vec::new(), 0);
        for entry in Dir::read_from(&folder).map_err(|error| why(&error))? {
            let entry = entry.map_err(|error| why(&error))?;
            if [c".", c".."].contains(&entry.file_name()) {
                continue;
            }
            let look = || statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            let kind = match entry.file_type() {
                // Some file systems do not report the type.
                FileType::Unknown => {
                    look().map_or(FileType::Unknown, |found| FileType::from_raw_mode(found.st_mode))
                }
                kind => kind,
            };
            let is_dir = kind == FileType::Directory;
            match entry.file_name().to_str() {
                Ok(name) if is_dir => {
                    // An entry that has disappeared since is refused when it is listed.
                    let kept =
                        look().ok().map(|found| kept(found.st_mode, found.st_mtime, found.st_mtime_nsec));
                    entries.push(Entry { name: name.into(), dir: true, kept });
                }
                Ok(name) if kind == FileType::RegularFile => {
                    entries.push(Entry { name: name.into(), dir: false, kept: None });
                }
                _ => skipped += 1,
            }
            if entries.len() > MAX_ENTRIES {
                return Err(why(&format!("it has more than {MAX_ENTRIES} entries")));
            }
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(Listing { name: name.into(), entries, skipped })
    }

    /// Opens a regular file below the directory. The kernel confines the lookup, including links, to the directory.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn file(&self, name: &str) -> Result<Served, String> {
        check(name)?;
        let why = |error: &dyn std::fmt::Display| format!("{name:?}: {error}");
        // A blocking open of a pipe without a writer would hang.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = openat2(&self.0, name, flags, Mode::empty(), resolve).map_err(|error| why(&error))?;
        let file = File::from(file);
        let found = file.metadata().map_err(|error| why(&error))?;
        if !found.is_file() {
            return Err(why(&"it is not a regular file"));
        }
        if found.len() > MAX_FILE_LEN {
            return Err(why(&format!("it is longer than {MAX_FILE_LEN} bytes")));
        }
        Ok(Served { id: identity(&found), file })
    }
}

fn check(name: &str) -> Result<(), String> {
    let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if name.is_empty() || !Path::new(name).components().all(plain) {
        return Err(format!("{name:?}: wanted a path below the directory, without .. and not from /"));
    }
    Ok(())
}

impl Listing {
    /// The subdirectory's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The entries after a name, as many as fit into an answer.
    pub fn behind(&self, after: &str) -> Answer {
        let from = self.entries.partition_point(|entry| entry.name.as_str() <= after);
        let (mut entries, mut room) = (Vec::new(), MAX_MESSAGE_LEN - 128);
        for entry in &self.entries[from..] {
            let len = serde_json::to_vec(entry).map_or(usize::MAX, |json| json.len() + 1);
            if len > room {
                break;
            }
            room -= len;
            entries.push(entry.clone());
        }
        let more = from + entries.len() < self.entries.len();
        Answer::Listed { entries, more, skipped: self.skipped }
    }
}

impl Served {
    /// The identity of the file when it was opened.
    pub fn id(&self) -> &FileId {
        &self.id
    }

    /// Writes the message with a block to `message`.
    ///
    /// # Errors
    /// The block does not exist, cannot be read, or the file has changed since it was opened.
    pub fn block(&self, number: u64, message: &mut Vec<u8>) -> Result<(), String> {
        if number >= self.id.blocks() {
            return Err(format!("block {number} does not exist; the file has {}", self.id.blocks()));
        }
        // A buffer that held a block keeps its length, because clearing it would write every byte once more.
        message.resize(HEAD + self.id.block_len(number), 0);
        let read = self.file.read_exact_at(&mut message[HEAD..], number * super::wire::BLOCK as u64);
        // Check after reading, so that the bytes read belong to this version.
        let now = self.file.metadata().map_err(|error| error.to_string())?;
        if identity(&now) != self.id {
            return Err("the file has changed since the copy began".into());
        }
        read.map_err(|error| error.to_string())?;
        seal(message, number);
        Ok(())
    }
}

/// The permission bits without those that change a program's user, and the time.
fn kept(mode: u32, modified: i64, nanos: impl TryInto<u32>) -> Kept {
    Kept { mode: mode & 0o777, modified, nanos: nanos.try_into().unwrap_or_default() }
}

/// A version string that changes with the content and reveals nothing else.
fn identity(found: &Metadata) -> FileId {
    let mut hasher = blake3::Hasher::new();
    for number in [found.dev(), found.ino(), found.len()] {
        hasher.update(&number.to_le_bytes());
    }
    for number in [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()] {
        hasher.update(&number.to_le_bytes());
    }
    FileId {
        len: found.len(),
        version: hasher.finalize().to_hex().to_string(),
        kept: kept(found.mode(), found.mtime(), found.mtime_nsec()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_is_listed_in_parts_without_links() {
        let dir = std::env::temp_dir().join(format!("ofi-cp-list-{}", std::process::id()));
        fs::create_dir_all(dir.join("sub")).unwrap();
        // Each is 1,200 bytes of JSON.
        let name = |number: u32| format!("{number:02}{}", "\u{1}".repeat(200));
        (0..40).for_each(|number| fs::write(dir.join(name(number)), "").unwrap());
        symlink("/etc", dir.join("link")).unwrap();
        let root = Root::open(&dir).unwrap();
        let listing = root.listing(".").unwrap();
        let (mut after, mut names, mut parts) = (String::new(), Vec::new(), 0);
        loop {
            let answer = listing.behind(&after);
            assert!(serde_json::to_vec(&answer).unwrap().len() <= MAX_MESSAGE_LEN);
            let Answer::Listed { entries, more, skipped } = answer else { panic!("{answer:?}") };
            assert_eq!(skipped, 1, "the link");
            after = entries.last().expect("more were announced").name.clone();
            names.extend(entries.into_iter().map(|entry| (entry.name, entry.dir)));
            parts += 1;
            if !more {
                break;
            }
        }
        let expected: Vec<_> =
            (0..40).map(|number| (name(number), false)).chain([("sub".into(), true)]).collect();
        assert_eq!((names, parts > 3), (expected, true));
        for bad in ["..", "/", "link", "sub/..", "nothing", ""] {
            assert!(root.listing(bad).is_err(), "{bad:?}");
        }
        fs::remove_dir_all(dir).unwrap();
    }

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
