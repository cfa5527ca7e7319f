//! The end of an endpoint: what was injected arrives, and the device releases memory.

use std::time::Duration;

use ofi_core::transport::{PeerId, Upcalls};

use super::{EfaEndpoint, RELEASE};
use crate::adapter::DeviceCompletion;
use crate::moving::End;
use crate::op::SingleWr;
use crate::peer::Peer;
use crate::{Efa, settings};

/// How long the device may use memory of ended operations before its queue pair is stopped.
const SETTLE: Duration = Duration::from_secs(5);

impl EfaEndpoint {
    /// Waits until the device has released the memory of receives and accesses that have ended.
    pub fn settle_receives<H: Upcalls<Efa>>(&mut self, host: &mut H) {
        let common = &mut self.common;
        for (peer, state) in self.peers.iter_mut().enumerate() {
            state.drop_singles(common, host, peer as PeerId);
        }
        let mut gone = common.transfers.ids(|_| true);
        gone.retain(|&id| match common.transfers.get(id).map(|transfer| (transfer.peer, &transfer.end)) {
            Some((_, End::Payload(incoming))) => {
                incoming.receive().is_some_and(|into| host.receiving(into).is_none())
            }
            Some((peer, &End::Access(op))) => host.op(peer, op).is_none(),
            None => false,
        });
        for &id in &gone {
            if let Some(peer) = common.transfers.get(id).map(|transfer| transfer.peer) {
                self.peers[peer as usize].stop_transfer(common, host, id);
            }
        }
        // A lost device touches nothing any more after the time for its release.
        let end = common.adapter.now() + if self.lost.is_some() { RELEASE } else { SETTLE };
        let mut stopped = false;
        loop {
            gone.retain(|&id| self.common.transfers.get(id).is_some_and(|transfer| transfer.posted > 0));
            if gone.is_empty() && !self.common.orphans.values().any(SingleWr::is_lent) {
                return;
            }
            self.common.adapter.refill();
            while let Some(ended) = self.common.adapter.next_accessed() {
                self.take(host, ended);
            }
            let common = &mut self.common;
            if stopped && common.adapter.is_lost() {
                return common.orphans.clear();
            }
            // The device finally completes every request: after a peer's silence, or when its queue pair is stopped.
            if common.adapter.now() >= end && !std::mem::replace(&mut stopped, true) {
                tracing::error!(target: "ofi::efa::ep_ctrl", "the device has not released memory in time: its queue pair is stopped");
                common.adapter.stop();
            }
            std::thread::yield_now();
        }
    }

    /// Waits briefly for the arrival of fire-and-forget messages, and of answers to operations that this end executed.
    fn close(&mut self) {
        let end = self.common.adapter.now() + Duration::from_millis(settings::LINGER_MS.get() as u64);
        let mut told = false;
        loop {
            for (peer, state) in self.peers.iter_mut().enumerate() {
                state.flush_frames(&mut self.common, peer as PeerId);
            }
            let awaited = self.peers.iter().any(Peer::is_awaited);
            if (!awaited && told) || self.common.adapter.now() >= end {
                // The device may be closed at once, but the queued requests must be posted first.
                return self.common.adapter.tell();
            }
            if !awaited {
                told = true;
                for (peer, state) in self.peers.iter_mut().enumerate() {
                    state.part(&mut self.common, peer as PeerId);
                }
            }
            if self.common.adapter.refill() == 0 {
                std::thread::sleep(Duration::from_micros(50));
            }
            while let Some(ended) = self.common.adapter.next() {
                if let DeviceCompletion::Sent { packet, status } = ended {
                    self.peers[packet.peer as usize].sent_last(&mut self.common, packet, status);
                }
            }
        }
    }
}

impl Drop for EfaEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}
