//! Timeouts and retries of a connection at its peer's device, from the settings.

use ofi_core::config::Problem;

use crate::rc::{self, ConnParam};
use crate::settings::{ACK_TIMEOUT, MIN_RNR_TIMER, RETRY_COUNT, RNR_RETRY_COUNT};

/// The values of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// Resends of an unacknowledged packet, if they are set. The connecting end decides for both.
    retries: Option<u8>,
    /// Retries of a peer's send that finds no receive; 7: without limit, because the receiver may poll later.
    rnr_retries: u8,
    /// The code of the wait for an acknowledgement; `None`: the kernel chooses.
    ack_timeout: Option<u8>,
    /// The code of a peer's pause before it retries.
    rnr_timer: u8,
}

impl Timers {
    /// Reads the settings.
    ///
    /// # Errors
    /// The first setting with an unusable value.
    pub fn read() -> Result<Self, Problem> {
        // The ranges of the settings are those of the fields, which have 3 and 5 bits.
        RETRY_COUNT.checked()?;
        Ok(Self {
            retries: RETRY_COUNT.explicit().map(|count| count as u8),
            rnr_retries: RNR_RETRY_COUNT.checked()? as u8,
            ack_timeout: Some(ACK_TIMEOUT.checked()? as u8).filter(|&code| code != 0),
            rnr_timer: MIN_RNR_TIMER.checked()? as u8,
        })
    }

    /// The parameters of a connection that resends `usual` times unless the setting says otherwise.
    pub fn param<'a>(&self, private_data: &'a [u8], reads: u8, usual: u8) -> ConnParam<'a> {
        let retries = self.retries.unwrap_or(usual);
        ConnParam { private_data, reads, retries, rnr_retries: self.rnr_retries }
    }

    /// Sets the acknowledgement timeout of a connection that is about to be requested or accepted. If that fails, the
    /// kernel's default remains.
    pub fn before(&self, set_ack_timeout: impl FnOnce(u8) -> rc::Result<()>) {
        let Some(code) = self.ack_timeout else { return };
        if let Err(error) = set_ack_timeout(code) {
            tracing::warn!(target: "ofi::verbs::ep_ctrl", %error, "FI_VERBS_ACK_TIMEOUT={code} has no effect: the kernel's own time stays");
        }
    }

    /// Sets the RNR timer of an established connection. If that fails, a peer that finds no receive waits longer.
    pub fn after(&self, set_rnr_timer: impl FnOnce(u8) -> rc::Result<()>) {
        if let Err(error) = set_rnr_timer(self.rnr_timer) {
            tracing::debug!(target: "ofi::verbs::ep_ctrl", %error, "cannot set the RNR timer: peers that find no receive wait longer");
        }
    }
}
