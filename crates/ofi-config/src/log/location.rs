//! Where the log goes: `FI_LOG_LOCATION`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens the destination that `location` names. If that fails, the log goes to standard error, and the second value is
/// the reason.
pub(super) fn open(location: &str, mode: i64) -> (Box<dyn Write + Send>, Option<String>) {
    match location {
        "" | "stderr" => (Box::new(io::stderr()), None),
        "stdout" => (Box::new(io::stdout()), None),
        path => match create(Path::new(path), mode) {
            Ok(file) => (Box::new(file), None),
            Err(error) => {
                let trouble = format!(
                    "FI_LOG_LOCATION={path} cannot be used: {error}; it must be stderr, stdout, a directory \
                     or a file that does not exist; logging to stderr instead"
                );
                (Box::new(io::stderr()), Some(trouble))
            }
        },
    }
}

/// Creates the log file. An existing file is never written to, because it may be anything.
fn create(path: &Path, mode: i64) -> io::Result<File> {
    let file_mode = u32::try_from(mode).map_err(io::Error::other)?;
    let mut options = OpenOptions::new();
    options.append(true).create_new(true).mode(file_mode);
    match path.is_dir() {
        true => options.open(path.join(format!("ofi_{}.log", std::process::id()))),
        false => options.open(path),
    }
}
