//! Connection management (`FI_EP_MSG`) for every transport. The transport carries small packets between endpoints and
//! passive endpoints, and pairs two endpoints; this module defines the packets and their handling.
//!
//! ```text
//! connecting endpoint                passive endpoint            accepting endpoint
//!   connect      ── Request ────────────▶ FI_CONNREQ
//!                                         application opens ───────▶ accept
//!                ◀── Granted ──────────── may close from here on
//!   FI_CONNECTED ◀───────────────────────────────────── Accept ──
//!   joins        ── Confirm ─────────────────────────────────────▶ FI_CONNECTED
//!        or      ◀── Reject ───────────── reject, or backlog full
//!   either end   ── Shutdown ──▶ the other: what was sent before, then FI_SHUTDOWN
//! ```
//!
//! A cookie of 64 random bits, chosen by the connecting endpoint, is in every packet of one connection. Packets of an
//! earlier connection, or with a guessed cookie, are dropped.

mod connection;
pub mod keeper;
mod listener;
pub mod packet;
#[cfg(test)]
mod tests;

use ofi_api::{Errno, Error, Result};

use crate::transport::DATA_SIZE;

pub use connection::{Connection, Ended};
pub use listener::{ConnectionRequest, open_passive};

/// The part of `data` that is sent (fi_cm(3): the rest is silently truncated).
fn cut(data: &[u8]) -> &[u8] {
    &data[..data.len().min(DATA_SIZE)]
}

/// A random cookie that cannot be guessed.
fn cookie() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::with(Errno::EIO, format!("no random numbers for a connection: {error}")))?;
    Ok(u64::from_ne_bytes(bytes))
}
