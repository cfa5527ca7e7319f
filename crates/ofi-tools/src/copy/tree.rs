//! A directory at a server: its contents, level by level, and which of its files are already copied.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::link::{End, Link};
use super::place::{FileDestination, JOURNAL, is_ours, is_plain};
use super::wire::{Answer, CopyRequest, FileId, Kept, MAX_MESSAGE_LEN, Message, parse};
use crate::failure::{Failure, Result};

/// Maximum files and directories of a tree. It bounds the client's memory, whatever the server lists.
const MAX_ENTRIES: usize = 1 << 20;
/// Maximum depth of a directory, in levels.
const MAX_DEPTH: usize = 64;
/// Maximum length of a path, in bytes. It fits into a request, whatever its characters.
const MAX_PATH_LEN: usize = 1024;

/// The properties of a directory for which the server reports none.
const COMMON: Kept = Kept { mode: 0o777, modified: 0, nanos: 0 };

/// The contents of a directory, by relative path.
#[derive(Debug, Default)]
pub struct Tree {
    /// Directories, parents first.
    pub folders: Vec<(String, Kept)>,
    /// Regular files.
    pub files: Vec<String>,
    /// Entries that the server does not serve, and names that are reserved for a running copy.
    pub skipped: u64,
}

/// A path at the server.
pub fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() || dir == "." { name.into() } else { format!("{}/{name}", dir.trim_end_matches('/')) }
}

impl Tree {
    /// Lists everything below `top`.
    ///
    /// # Errors
    /// The server refuses or is lost; a name would lead out of the directory; or there are too many entries.
    pub fn ask(link: &mut Link, top: &str, limit: Duration) -> std::result::Result<Self, End> {
        let mut tree = Self::default();
        let mut todo = vec![(String::new(), 0)];
        while let Some((folder, depth)) = todo.pop() {
            let mut after = String::new();
            loop {
                let dir = if folder.is_empty() { top.to_string() } else { join(top, &folder) };
                let answer = list(link, dir, after.clone(), limit)?;
                let Answer::Listed { entries, more, skipped } = answer else {
                    return Err(bad("an answer without a request"));
                };
                tree.skipped += if after.is_empty() { skipped } else { 0 };
                if more && entries.is_empty() {
                    return Err(bad("an endless list"));
                }
                for entry in entries {
                    if entry.name <= after {
                        return Err(bad("a list that is not sorted"));
                    }
                    after.clone_from(&entry.name);
                    if is_ours(&entry.name) {
                        tree.skipped += 1;
                        continue;
                    }
                    let kept = entry.dir.then(|| entry.kept.unwrap_or(COMMON));
                    tree.take(&folder, depth, &entry.name, kept, &mut todo).map_err(End::Final)?;
                }
                if !more {
                    break;
                }
            }
        }
        Ok(tree)
    }

    fn take(
        &mut self,
        folder: &str,
        depth: usize,
        name: &str,
        dir: Option<Kept>,
        todo: &mut Vec<(String, usize)>,
    ) -> Result<()> {
        if !is_plain(name) {
            return Err(Failure::Data(format!("the server lists {name:?}, which is not a valid file name")));
        }
        let path = join(folder, name);
        if depth >= MAX_DEPTH || path.len() > MAX_PATH_LEN {
            let most = format!("at most {MAX_DEPTH} levels and paths of {MAX_PATH_LEN} bytes are copied");
            return Err(Failure::Data(format!("{path:?}: {most}")));
        }
        if self.files.len() + self.folders.len() >= MAX_ENTRIES {
            return Err(Failure::Data(format!("more than {MAX_ENTRIES} files and directories")));
        }
        if let Some(kept) = dir {
            self.folders.push((path.clone(), kept));
            todo.push((path, depth + 1));
        } else {
            self.files.push(path);
        }
        Ok(())
    }
}

/// An error that another connection would not avoid.
fn bad(what: &str) -> End {
    End::Final(Failure::Data(what.into()))
}

fn list(link: &mut Link, dir: String, after: String, limit: Duration) -> std::result::Result<Answer, End> {
    let request = CopyRequest::List { dir, after };
    let message = serde_json::to_vec(&request).map_err(|error| bad(&error.to_string()))?;
    if message.len() > MAX_MESSAGE_LEN {
        return Err(bad("a path that is too long for a request"));
    }
    link.send(message, 1, limit)?;
    let (buffer, len) = link.next("listing a directory", limit)?;
    let answer = match parse(&buffer[..len.min(buffer.len())]) {
        Ok(Message::Answer(Answer::Refused(why))) => return Err(End::Final(super::told(&why))),
        Ok(Message::Answer(answer)) => answer,
        Ok(Message::Block { .. }) => return Err(bad("a block before any request")),
        Err(why) => return Err(bad(&why)),
    };
    link.receive(buffer, limit)?;
    Ok(answer)
}

/// A file of an incomplete tree that is in place.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    name: String,
    file: FileId,
    inode: u64,
}

/// The files of a tree that are in place: the journal `.ofi-journal` in its folder. A record is written before its file
/// gets its name, and holds the file's inode number. So a record whose file was never renamed is recognized.
pub struct Finished {
    journal: Mutex<File>,
    known: HashMap<String, (FileId, u64)>,
    place: FileDestination,
}

impl Finished {
    /// Opens or creates the journal at `place`, whose name is empty.
    ///
    /// # Errors
    /// Another process copies into the folder, or the system's error.
    pub fn open(place: FileDestination) -> Result<Self> {
        let failed = |error| Failure::system(place.shown().display(), error);
        let mut file = place.open_beside(JOURNAL)?;
        if file.try_lock().is_err() {
            return Err(Failure::Usage(format!("{}: another copy writes there", place.shown().display())));
        }
        let (mut known, mut whole) = (HashMap::new(), 0);
        let mut lines = BufReader::new(&file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = lines.by_ref().take(64 << 10).read_until(b'\n', &mut line).map_err(failed)?;
            // An incomplete record is ignored.
            let Ok(Record { name, file, inode }) = serde_json::from_slice(&line) else { break };
            if !line.ends_with(b"\n") {
                break;
            }
            whole += read as u64;
            known.insert(name, (file, inode));
        }
        drop(lines);
        file.set_len(whole).and_then(|()| file.seek(SeekFrom::End(0))).map_err(failed)?;
        Ok(Self { journal: Mutex::new(file), known, place })
    }

    /// Whether an earlier run has recorded the file.
    pub fn knows(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// The recorded identity of the file in its place, if it was not replaced or truncated since.
    pub fn here(&self, name: &str, place: &FileDestination) -> Option<&FileId> {
        let (file, inode) = self.known.get(name)?;
        let found = place.found()?;
        (found.st_ino == *inode && u64::try_from(found.st_size) == Ok(file.len)).then_some(file)
    }

    /// Records that the file is about to be renamed into place.
    ///
    /// # Errors
    /// The system's error.
    pub fn record(&self, name: &str, file: &FileId, inode: u64) -> Result<()> {
        let failed = |error| Failure::system(self.place.shown().display(), error);
        let record = Record { name: name.into(), file: file.clone(), inode };
        let mut line = serde_json::to_vec(&record).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.write_all(&line).map_err(failed)
    }

    /// Removes the journal: the tree is complete.
    pub fn end(self) {
        self.place.remove_beside(JOURNAL);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::place::{PART, Trunk};
    use super::*;

    #[test]
    fn names_from_a_server_stay_in_the_directory() {
        let mut todo = Vec::new();
        for bad in ["..", ".", "", "/etc/passwd", "a/../../b", "a\0"] {
            for dir in [Some(COMMON), None] {
                let taken = Tree::default().take("sub", 1, bad, dir, &mut todo);
                assert!(matches!(taken, Err(Failure::Data(_))), "{bad:?}");
            }
        }
        let mut tree = Tree::default();
        tree.take("sub", 1, "deep", Some(COMMON), &mut todo).unwrap();
        tree.take("", 0, "file", None, &mut todo).unwrap();
        assert_eq!(
            (tree.folders, tree.files),
            (vec![("sub/deep".to_string(), COMMON)], vec!["file".to_string()])
        );
        assert_eq!(todo, [("sub/deep".to_string(), 2)]);
        assert!(Tree::default().take("sub", MAX_DEPTH, "deep", Some(COMMON), &mut todo).is_err());
    }

    #[test]
    fn a_file_is_here_if_it_is_the_one_that_was_put_there() {
        let base = std::env::temp_dir().join(format!("ofi-cp-finished-{}", std::process::id()));
        let trunk = Trunk::open(&base).unwrap();
        let id = FileId { len: 5, version: "a".into(), kept: Kept::default() };
        let put = |name: &str, finished: &Finished, put: bool| {
            let place = trunk.place(name).unwrap();
            let mut part = place.open_beside(PART).unwrap();
            part.write_all(b"hello").unwrap();
            let inode = place_inode(&part);
            finished.record(name, &id, inode).unwrap();
            if put {
                place.put(PART, true).unwrap();
            }
        };
        let finished = Finished::open(trunk.journal().unwrap()).unwrap();
        assert!(Finished::open(trunk.journal().unwrap()).is_err(), "one at a time");
        put("whole", &finished, true);
        put("replaced", &finished, true);
        put("cut", &finished, false);
        drop(finished);
        fs::write(base.join("other"), "hello").unwrap();
        fs::rename(base.join("other"), base.join("replaced")).unwrap();
        let journal = base.join(JOURNAL);
        fs::OpenOptions::new().append(true).open(&journal).unwrap().write_all(b"{\"name\":\"wh").unwrap();
        let finished = Finished::open(trunk.journal().unwrap()).unwrap();
        let here = |name: &str| finished.here(name, &trunk.place(name).unwrap()).is_some();
        assert_eq!(["whole", "replaced", "cut", "other"].map(here), [true, false, false, false]);
        finished.end();
        assert!(!journal.exists());
        fs::remove_dir_all(base).unwrap();
    }

    fn place_inode(file: &File) -> u64 {
        std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap())
    }
}
