//! Limits the messages of peers that wait for receives, so that they never stop what comes behind them.
//!
//! Ends of this library tell each other in their connection messages how many bytes of messages they keep without
//! receives, and count what they send unasked. Without credit a message is announced, whatever its length: then only
//! its header waits. When receives have taken messages, their receiver grants as many bytes again: three quarters
//! of the window at a time, or at once if the sender is out of credit. A host that has closed its end answers a grant
//! by a reset, so a grant is late rather than early, and none is sent to a peer that has said its end.

use std::os::fd::AsFd;

use ofi_core::transport::Upcalls;

use super::TcpEndpoint;
use crate::wire::{Packet, charge};
use crate::{Tcp, sys};

impl TcpEndpoint {
    /// Grants anew what receives have taken.
    pub(super) fn grant<H: Upcalls<Tcp>>(&mut self, host: &mut H) {
        let window = self.common.window;
        for id in std::mem::take(&mut self.ungranted) {
            let Some(conn) = self.conns.get_mut(id).and_then(Option::as_deref_mut) else { continue };
            let Some(peer) = conn.peer else { continue };
            let Some(entry) = self.peers.get(peer as usize) else { continue };
            // What the core keeps, among it headers of announced messages, and what is here.
            let (bytes, messages) = host.held(peer);
            let kept = (bytes as u64)
                .saturating_add(charge(0).saturating_mul(messages as u64))
                .saturating_add(entry.spooled as u64);
            let free = conn.taken.saturating_sub(kept);
            if free >= conn.enough(window) {
                if !conn.socket.as_ref().is_some_and(|socket| sys::is_open(socket.as_fd())) {
                    conn.is_listed = false;
                    continue;
                }
                conn.taken -= free;
                conn.out.header(&Packet::Grant { bytes: free }, conn.order);
                if !std::mem::replace(&mut conn.dirty, true) {
                    self.dirty.push(id);
                }
            }
            conn.is_listed = conn.awaits_grant(window);
            if conn.is_listed {
                self.ungranted.push(id);
            }
        }
    }
}
