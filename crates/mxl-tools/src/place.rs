//! The domain that a program was given.

use std::path::Path;

use mxl::Domain;

use crate::failure::Result;

/// Opens a domain, and warns on standard error of one on a disk: the library only logs that, and the programs have no
/// log.
///
/// # Errors
/// Those of [`Domain::open`].
pub fn open(program: &str, path: &Path) -> Result<Domain> {
    let domain = Domain::open(path)?;
    if let Ok(false) = mxl::is_tmpfs(domain.path()) {
        eprintln!("{program}: {} is not on a tmpfs: pictures may go to a disk", path.display());
    }
    Ok(domain)
}
