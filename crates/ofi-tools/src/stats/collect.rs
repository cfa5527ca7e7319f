//! Queries all processes that export statistics.

use std::fs;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Process;
use super::parse::parse;
use crate::failure::{Failure, Result};

/// Maximum length of one process's text, in bytes.
const MAX_TEXT_LEN: u64 = 64 << 20;
/// Time limit for one process to answer.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(3);

/// The collected statistics.
#[derive(Debug, Default)]
pub struct Collected {
    /// Sorted by process id.
    pub processes: Vec<Process>,
    /// Sockets with an invalid answer.
    pub problems: Vec<String>,
}

/// The directory of the sockets of this user's processes.
///
/// # Errors
/// The directory cannot be created, or other users may enter it.
pub fn directory() -> Result<PathBuf> {
    ofi_core::export::directory().map_err(|error| Failure::system("the directory of sockets", error))
}

/// Queries every process that has a socket in `directory`, one after the other.
pub fn collect(directory: &Path) -> Collected {
    let mut collected = Collected::default();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "sock") {
            continue;
        }
        match ask(&path) {
            Ok(process) => collected.processes.push(process),
            // Its process has ended.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {}
            Err(error) => collected.problems.push(format!("{}: {error}", path.display())),
        }
    }
    collected.processes.sort_by_key(|process| process.pid);
    collected
}

fn ask(path: &Path) -> io::Result<Process> {
    let end = Instant::now() + PROCESS_TIMEOUT;
    let mut socket = UnixStream::connect(path)?;
    let mut text = Vec::new();
    let mut part = [0; 64 << 10];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut part)? {
            0 => break,
            len => text.extend_from_slice(&part[..len]),
        }
        if text.len() as u64 > MAX_TEXT_LEN {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("more than {MAX_TEXT_LEN} bytes"),
            ));
        }
    }
    let text = String::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    parse(&text).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_process_that_answers_nonsense_is_a_problem_and_not_the_others() {
        let folder = std::env::temp_dir().join(format!("ofi-collect-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let answer = |name: &str, text: &'static [u8]| {
            let listener = UnixListener::bind(folder.join(name)).unwrap();
            std::thread::spawn(move || listener.accept().unwrap().0.write_all(text).unwrap());
        };
        answer("1.sock", b"ofi-statistics\t1\t1\tgood\nend\n");
        answer("2.sock", b"\xff\xfe");
        answer("3.sock", b"ofi-statistics\t1\t3\tcut\n");
        drop(UnixListener::bind(folder.join("4.sock")).unwrap());
        let collected = collect(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(collected.processes.len(), 1);
        assert_eq!(collected.processes[0].program, "good");
        assert_eq!(collected.problems.len(), 2, "{:?}", collected.problems);
    }
}
