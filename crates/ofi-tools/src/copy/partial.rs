//! A partly received file: `FILE.ofi-part`, and `FILE.ofi-journal` with a line that identifies the file and a record
//! for each written block: its number and its hash.
//!
//! A resumed copy checks every block in the journal against its hash, so that neither an interruption nor a system
//! crash can leave a block that was never written. An incomplete record is ignored.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::keep::Keep;
use super::place::{FileDestination, JOURNAL, PART};
use super::wire::{BLOCK, FileId, Kept};
use crate::failure::{Failure, Result};

/// Bytes of a record.
const RECORD: usize = 8 + 32;

/// The journal's first line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    ofi_cp: u32,
    block: usize,
    name: String,
    file: FileId,
}

/// A partly received file.
pub struct Partial {
    data: File,
    journal: Mutex<File>,
    place: FileDestination,
}

fn failed(path: &Path, error: io::Error) -> Failure {
    Failure::system(path.display(), error)
}

impl Partial {
    /// Begins to write the file at a place, or resumes. Also returns the missing blocks. The server calls the file
    /// `name`.
    ///
    /// # Errors
    /// Another process writes the file, or the system's error.
    pub fn open(place: FileDestination, name: &str, file: &FileId) -> Result<(Self, Vec<u64>)> {
        let shown = place.shown();
        let data = place.open_beside(PART)?;
        match data.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::Usage(format!("{}: another copy writes it", shown.display())));
            }
            Err(TryLockError::Error(error)) => return Err(failed(shown, error)),
        }
        let mut journal = place.open_beside(JOURNAL)?;
        let header = Header { ofi_cp: 1, block: BLOCK, name: name.into(), file: file.clone() };
        let done = arrived(&mut journal, &header, &data).map_err(|error| failed(shown, error))?;
        let missing = match done {
            Some(done) => (0..file.blocks()).filter(|block| done.binary_search(block).is_err()).collect(),
            // The journal belongs to another file, or there is none.
            None => {
                let begun = begin(&mut journal, &header).and_then(|()| data.set_len(0));
                begun.map_err(|error| failed(shown, error))?;
                (0..file.blocks()).collect()
            }
        };
        data.set_len(file.len).map_err(|error| failed(shown, error))?;
        Ok((Self { data, journal: Mutex::new(journal), place }, missing))
    }

    /// Writes a block, then its record.
    ///
    /// # Errors
    /// The system's error, for example a full disk.
    pub fn write(&self, number: u64, hash: &[u8; 32], payload: &[u8]) -> Result<()> {
        let failed = |error| failed(self.place.shown(), error);
        self.data.write_all_at(payload, number * BLOCK as u64).map_err(failed)?;
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&number.to_le_bytes());
        record[8..].copy_from_slice(hash);
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.write_all(&record).map_err(failed)
    }

    /// The file's inode number, which it keeps when it is put in place.
    ///
    /// # Errors
    /// The system's error.
    pub fn inode(&self) -> Result<u64> {
        self.data.metadata().map(|found| found.ino()).map_err(|error| failed(self.place.shown(), error))
    }

    /// Puts a completely written file in place, with mode and time. `replace` permits replacing another file.
    ///
    /// # Errors
    /// The system's error; `EEXIST` if a file of that name exists by now.
    pub fn finish(&self, replace: bool, keep: Keep, kept: &Kept) -> Result<()> {
        keep.put_on(&self.data, kept).map_err(|error| failed(self.place.shown(), error))?;
        self.data.sync_all().map_err(|error| failed(self.place.shown(), error))?;
        self.place.put(PART, replace)?;
        // The journal is no longer valid; a later copy starts over.
        self.place.remove_beside(JOURNAL);
        Ok(())
    }
}

/// Starts a journal that has only its header.
fn begin(journal: &mut File, header: &Header) -> io::Result<()> {
    journal.set_len(0)?;
    journal.rewind()?;
    let mut line = serde_json::to_vec(header)?;
    line.push(b'\n');
    journal.write_all(&line)
}

/// The written blocks, sorted; `None` if the journal belongs to another file. Leaves the journal's position where the
/// next record goes.
fn arrived(journal: &mut File, header: &Header, data: &File) -> io::Result<Option<Vec<u64>>> {
    let most = (header.file.blocks() + 1).saturating_mul(2 * RECORD as u64) + (64 << 10);
    let mut bytes = Vec::new();
    Read::by_ref(journal).take(most).read_to_end(&mut bytes)?;
    let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else { return Ok(None) };
    if serde_json::from_slice::<Header>(&bytes[..end]).ok().as_ref() != Some(header) {
        return Ok(None);
    }
    let records = bytes[end + 1..].chunks_exact(RECORD);
    let whole = end + 1 + records.len() * RECORD;
    let mut done = Vec::new();
    let mut block = vec![0; BLOCK];
    for record in records {
        let mut number = [0; 8];
        number.copy_from_slice(&record[..8]);
        let number = u64::from_le_bytes(number);
        let payload = &mut block[..header.file.block_len(number)];
        if number >= header.file.blocks() || data.read_exact_at(payload, number * BLOCK as u64).is_err() {
            continue;
        }
        if blake3::hash(payload).as_bytes()[..] == record[8..] {
            done.push(number);
        }
    }
    journal.set_len(whole as u64)?;
    journal.seek(SeekFrom::End(0))?;
    done.sort_unstable();
    done.dedup();
    Ok(Some(done))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use super::*;

    #[test]
    fn a_copy_goes_on_where_it_was_and_only_with_what_is_really_there() {
        let folder = std::env::temp_dir().join(format!("ofi-cp-partial-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let destination = folder.join("file");
        let content: Vec<u8> = (0..2 * BLOCK + 5).map(|place| (place / 7) as u8).collect();
        let place = || FileDestination::at(&destination).unwrap();
        let kept = Kept { mode: 0o640, modified: 1_000_000_000, nanos: 5 };
        let keep = Keep { all: true, umask: 0o077 };
        let id = FileId { len: content.len() as u64, version: "a".into(), kept };
        let write = |partial: &Partial, number: u64| {
            let at = number as usize * BLOCK;
            let payload = &content[at..at + id.block_len(number)];
            partial.write(number, blake3::hash(payload).as_bytes(), payload).unwrap();
        };
        let (partial, missing) = Partial::open(place(), "file", &id).unwrap();
        assert_eq!(missing, [0, 1, 2]);
        assert!(Partial::open(place(), "file", &id).is_err(), "one at a time");
        write(&partial, 2);
        write(&partial, 0);
        drop(partial);

        // An incomplete record, and a block that differs from its record.
        let journal = folder.join("file.ofi-journal");
        OpenOptions::new().append(true).open(&journal).unwrap().write_all(&[1; 17]).unwrap();
        let (partial, missing) = Partial::open(place(), "file", &id).unwrap();
        assert_eq!(missing, [1]);
        partial.data.write_all_at(b"damage", 3).unwrap();
        drop(partial);
        let (partial, missing) = Partial::open(place(), "file", &id).unwrap();
        assert_eq!(missing, [0, 1]);
        write(&partial, 0);
        write(&partial, 1);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&folder.join("file.ofi-part")), 0o600, "nobody else reads it before it has its mode");
        partial.finish(false, keep, &kept).unwrap();
        drop(partial);
        assert!(fs::read(&destination).unwrap() == content && !journal.exists());
        let found = fs::metadata(&destination).unwrap();
        assert_eq!((mode(&destination), found.mtime(), found.mtime_nsec()), (0o640, 1_000_000_000, 5));

        // Another version starts over, and an existing file is kept unless it may be replaced.
        let (partial, _) = Partial::open(place(), "file", &id).unwrap();
        write(&partial, 0);
        drop(partial);
        let other = FileId { version: "b".into(), ..id.clone() };
        let (partial, missing) = Partial::open(place(), "file", &other).unwrap();
        assert_eq!(missing.len(), 3);
        assert!(partial.finish(false, keep, &kept).is_err());
        assert!(fs::read(&destination).unwrap() == content);
        fs::remove_dir_all(folder).unwrap();
    }
}
