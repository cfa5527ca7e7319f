//! Random keys that peers cannot guess.

use ofi_api::{Errno, Error, KEY_NOTAVAIL, Result};

/// The number of keys drawn by one system call.
const BATCH: usize = 32;

/// A supply of random keys.
#[derive(Default)]
pub(super) struct KeySupply {
    drawn: Vec<u64>,
}

impl KeySupply {
    /// 64 random bits, but never 0, which programs take for "none", and never `FI_KEY_NOTAVAIL`.
    ///
    /// # Errors
    /// `FI_EIO` if the system has no random numbers.
    pub fn draw(&mut self) -> Result<u64> {
        loop {
            match self.drawn.pop() {
                None => self.refill()?,
                Some(0 | KEY_NOTAVAIL) => {}
                Some(key) => return Ok(key),
            }
        }
    }

    fn refill(&mut self) -> Result<()> {
        let mut bytes = [0; BATCH * 8];
        getrandom::fill(&mut bytes).map_err(|error| {
            Error::with(Errno::EIO, format!("the kernel gives no random numbers for a memory key: {error}"))
        })?;
        self.drawn.extend(bytes.as_chunks().0.iter().map(|&key| u64::from_ne_bytes(key)));
        Ok(())
    }
}
