//! A meeting in a folder. Each process creates a file there under the first free number, which is its rank, and waits
//! for the files of the others.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{ErrorKind, Read};
use std::path::Path;

use ofi_api::{Errno, Error, Result};

use super::wire::{self, ParseResult};
use super::{MAX_CONTRIBUTION_LEN, Meeting, Party};

pub fn meet(party: &Party<'_>, folder: &Path) -> Result<Meeting> {
    let unusable = |error: std::io::Error| {
        Error::wanted(
            error.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
            "the folder of a rendezvous",
            "one that all processes can write to",
            format!("{}: {error}", folder.display()),
            "make it before they start, on a file system that all of them have mounted",
        )
    };
    let others = |found: String| {
        Error::wanted(
            Errno::EINVAL,
            format!("the folder {}", folder.display()),
            format!("files of {} processes that meet here now", party.count),
            found,
            "give each meeting an empty folder of its own, and all processes the same count",
        )
    };
    let rank = take_rank(party, folder).map_err(unusable)?;
    let rank = rank.ok_or_else(|| others(format!("{} files already", party.count)))?;
    let mut said = Vec::with_capacity(party.count);
    while said.len() < party.count {
        let path = folder.join(said.len().to_string());
        let mut bytes = Vec::new();
        match fs::File::open(&path) {
            Ok(file) => {
                file.take(2 * MAX_CONTRIBUTION_LEN as u64).read_to_end(&mut bytes).map_err(unusable)?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                party.pause(|| format!("{}", said.len().max(rank + 1)))?;
                continue;
            }
            Err(error) => return Err(unusable(error)),
        };
        match wire::take_request(&bytes) {
            ParseResult::Whole(request) if request.count == party.count => said.push(request.contribution),
            ParseResult::Whole(request) => {
                return Err(others(format!("{}, of {}", path.display(), request.count)));
            }
            _ => return Err(others(format!("{}, which is something else", path.display()))),
        }
    }
    Ok(Meeting { rank, said })
}

/// Takes the first free number by creating a link, so that the file appears with its whole contents. `None` if all
/// numbers are taken.
fn take_rank(party: &Party<'_>, folder: &Path) -> std::io::Result<Option<usize>> {
    // A unique name: processes of different hosts may have equal numbers, but `RandomState` is seeded from the system's
    // random numbers.
    let own = folder.join(format!(".{:016x}", RandomState::new().build_hasher().finish()));
    fs::write(&own, wire::request(party.count, party.own))?;
    let taken = (0..party.count).find_map(|rank| match fs::hard_link(&own, folder.join(rank.to_string())) {
        Ok(()) => Some(Ok(rank)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
        Err(error) => Some(Err(error)),
    });
    fs::remove_file(&own)?;
    taken.transpose()
}
