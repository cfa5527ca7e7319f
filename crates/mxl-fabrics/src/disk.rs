//! The programs' warning of a domain on a disk.

use std::path::Path;

/// Warns on standard error if the directory is on a disk: the library only logs it, and the programs have no log.
pub fn warn(program: &str, path: &Path) {
    if let Ok(false) = mxl::is_tmpfs(path) {
        eprintln!("{program}: {} is not on a tmpfs: pictures may go to a disk", path.display());
    }
}
