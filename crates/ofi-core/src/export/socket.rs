//! The socket: `PID.sock` in `$XDG_RUNTIME_DIR/ofi`, `/run/user/UID/ofi` or, if neither parent exists, `/tmp/ofi-UID`.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::sys;

/// The directory of this user's sockets, which is created if necessary.
///
/// # Errors
/// An error if it cannot be created, or if others could enter or replace it.
pub fn directory() -> io::Result<PathBuf> {
    let user = sys::effective_user();
    let chosen = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{user}"));
    let directory = match chosen.or_else(|| usual.is_dir().then_some(usual)) {
        Some(runtime) => runtime.join("ofi"),
        None => PathBuf::from(format!("/tmp/ofi-{user}")),
    };
    prepare(&directory, user)?;
    Ok(directory)
}

/// Creates it, accessible to this user alone, unless it exists and is.
pub(super) fn prepare(directory: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io::Error::new(error.kind(), format!("{}: {error}", directory.display())));
        }
        _ => {}
    }
    // The target of a link is not used: another user may have created the link.
    let found = fs::symlink_metadata(directory)?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let problem = format!(
        "{} must be a directory of user {user} that nobody else may enter; found user {}, mode {:o}: remove it, or chmod 700 it",
        directory.display(),
        found.uid(),
        found.mode()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

/// Listens at this process's socket there. Removes sockets that other processes left behind.
///
/// # Errors
/// The system's error, for example for a path of more than 107 bytes.
pub fn listen(directory: &Path) -> io::Result<UnixListener> {
    sweep(directory);
    let pid = std::process::id();
    let (beside, path) = (directory.join(format!(".{pid}")), directory.join(format!("{pid}.sock")));
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    // The previous process with this pid is gone.
    let _ = fs::remove_file(&beside);
    let listener = UnixListener::bind(&beside).map_err(named)?;
    // Listen before giving it its name, so that a socket that refuses connections is known to be stale.
    fs::rename(&beside, &path).map_err(named)?;
    Ok(listener)
}

/// Removes sockets without a listener.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "sock")
            && UnixStream::connect(&path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Writes all of `text` within `patience`.
///
/// # Errors
/// An error if the reader disconnects, or is too slow.
pub fn send(mut reader: &UnixStream, mut text: &[u8], patience: Duration) -> io::Result<()> {
    let end = Instant::now() + patience;
    while !text.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        reader.set_write_timeout(Some(left))?;
        let written = reader.write(text)?;
        text = &text[written..];
    }
    Ok(())
}
