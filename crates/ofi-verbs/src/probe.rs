//! Detecting peers that have disappeared without a message.
//!
//! A posted request fails when the peer's device does not acknowledge it. But operations may wait for a peer without a
//! posted request: for an announced message, an access that its owner executes, or credits. Then the device probes the
//! peer from time to time with a zero-byte write. The peer's device acknowledges it without the peer's program, and it
//! consumes no receive, so a peer may stay unpolled for a long time.
//!
//! The core reports notes that a collective waits for ([`TransportEndpoint::await_note`]).
//!
//! [`TransportEndpoint::await_note`]: ofi_core::transport::TransportEndpoint::await_note

use std::time::{Duration, Instant};

use ofi_api::Errno;
use ofi_core::transport::PeerId;

use crate::adapter::Posted;
use crate::peer::{Common, Peer};
use crate::rc::{Post, Remote};
use crate::settings;

/// The time between probes.
pub fn interval() -> Duration {
    Duration::from_millis(settings::KEEPALIVE_MS.get() as u64)
}

impl Peer {
    /// Whether the peer owes an answer, credits or a note, and no request is in flight that would fail if it were gone.
    pub fn awaits_word(&self, turn: u64) -> bool {
        let owes = self.outstanding > 0 || !self.kept.is_empty() || self.waits() || self.retiring.is_some();
        (owes || self.is_wanted(turn)) && self.is_connected() && self.requests == self.quiet.len()
    }

    /// Probes the peer's device if a probe is due.
    pub fn probe(&mut self, common: &mut Common, peer: PeerId, now: Instant) {
        if !self.awaits_word(common.turn) || !common.adapter.has_room() {
            self.probe = None;
            return;
        }
        let at = *self.probe.get_or_insert_with(|| now + interval());
        if now < at {
            return;
        }
        self.probe = None;
        let Some(connection) = self.link.open() else { return };
        let number = self.quiet.number();
        let posted = Posted::Send { peer, slot: None, number, quiet: false, mark: None, marks: Vec::new() };
        let wr = common.adapter.begin_send(posted);
        let nothing = common.adapter.scratch(0);
        // SAFETY: the write has no bytes, so it accesses no memory.
        let sent =
            unsafe { connection.write(wr.to_wire(), nothing, Remote { addr: 0, rkey: 0 }, Post::default()) };
        match sent {
            Ok(()) => {
                self.requests += 1;
                common.counts.probes += 1;
            }
            Err(error) => {
                tracing::warn!(target: "ofi::verbs::ep_data", %error, "a probe cannot be posted");
                common.adapter.posted.remove(wr);
                self.ending.get_or_insert(Errno::EIO);
                common.hold(&mut self.is_dirty, peer);
            }
        }
    }
}
