//! In place of the list of a registry's senders: these programs were built without it.

use crate::failure::{Failure, Result};

/// Refuses.
///
/// # Errors
/// [`Failure::Usage`].
pub fn list(_registry: &str, _json: bool) -> Result<()> {
    Err(Failure::Usage("--nmos: this program was built without feature nmos of mxl-tools".into()))
}
