//! The defaults of connected endpoints, from the settings. Hints may request more.

use ofi_core::config::Problem;

use crate::settings::{INLINE_SIZE, MAX_INLINE, RX_IOV_LIMIT, RX_SIZE, TX_IOV_LIMIT, TX_SIZE};
use crate::timers::Timers;

/// The values of the settings of connected endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of operations, and of receives.
    pub sizes: [usize; 2],
    /// Maximum number of memory pieces in each.
    pub pieces: [usize; 2],
    /// Inline bytes of a request.
    pub inline: usize,
    /// Timeouts and retries of the connection.
    pub timers: Timers,
}

impl Config {
    /// Reads the settings.
    ///
    /// # Errors
    /// The first setting with an unusable value.
    pub fn read() -> Result<Self, Problem> {
        let inline = INLINE_SIZE.checked()?;
        Ok(Self {
            sizes: [TX_SIZE.checked()?, RX_SIZE.checked()?],
            pieces: [TX_IOV_LIMIT.checked()?, RX_IOV_LIMIT.checked()?],
            inline: if inline == 0 { MAX_INLINE } else { inline },
            timers: Timers::read()?,
        })
    }
}
