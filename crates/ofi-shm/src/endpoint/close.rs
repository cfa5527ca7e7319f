//! The end of an endpoint.

use std::sync::atomic::Ordering;

use ofi_ring::crash_point;

use super::ShmEndpoint;
use crate::control::ControlMessage;
use crate::layout::{pair, wish};

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        // When this returns, the application owns its memory again, so no other access may follow.
        let deadline = crate::single::deadline();
        self.peers.iter_mut().for_each(|state| state.close_copies(deadline));
        let shared = &self.common.shared;
        // Peers see it in their mappings; sleeping ones also get a datagram.
        shared.close_pairs();
        for state in &self.peers {
            if let Some(link) = &state.link {
                link.own.word32(pair::WISH).store(wish::CLOSED, Ordering::Release);
            }
        }
        let notice = ControlMessage::Close { incarnation: shared.incarnation }.encode();
        shared.notify_admitted();
        for socket in shared.peers() {
            // A full socket belongs to a process that is not running; it will see the word.
            crash_point!("close.bye");
            let _ = shared.socket.send(&socket, &notice, &[]);
        }
        crash_point!("close.removed");
        self.common.helper.remove(shared);
    }
}
