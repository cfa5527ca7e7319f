//! Handles events of the helper thread: peers that answered, refused or ended, and memory that they grant.

use ofi_api::Errno;
use ofi_core::transport::Upcalls;
use ofi_ring::crash_point;

use super::ShmEndpoint;
use crate::Shm;
use crate::event::HelperEvent;

impl ShmEndpoint {
    /// Processes the helper's events.
    #[cold]
    pub(super) fn take_events<H: Upcalls<Shm>>(&mut self, host: &mut H) {
        let mut events = std::mem::take(&mut self.postponed);
        while let Some(event) = self.inbox.pop() {
            events.push(event);
        }
        self.common.shared.hand_over_late(); // the next poll takes these
        for event in events {
            match event {
                HelperEvent::Attached { socket, own, parts } => {
                    let Some(peer) = self.meet(host, &socket) else { continue };
                    let state = &mut self.peers[peer as usize];
                    if state.end.gone && state.has_commands() {
                        // The successor of an ended peer waits until everything that its predecessor sent has been
                        // processed.
                        self.postponed.push(HelperEvent::Attached { socket, own, parts });
                        continue;
                    }
                    if state.up().is_some() {
                        tracing::info!(
                            target: "ofi::shm::ep_ctrl",
                            peer = %crate::name::shown(&socket, self.format), "a peer has restarted"
                        );
                        state.lose(&mut self.common, host, Errno::ECONNRESET);
                        self.drop_from_lists(peer);
                    }
                    let state = &mut self.peers[peer as usize];
                    let hint = own.hint as usize;
                    crash_point!("attach.begin");
                    if state.attach(self.common.shared.barrier, &own, parts).is_err() {
                        state.lose(&mut self.common, host, Errno::EINVAL);
                        self.spare(peer);
                        continue;
                    }
                    // Records sent before the peer was attached rang no bell, and the peer may have checked and gone to
                    // sleep since.
                    if let Some(up) = state.up() {
                        tracing::info!(
                            target: "ofi::shm::ep_ctrl",
                            peer = %crate::name::shown(&socket, self.format), pid = up.parts.process.pid,
                            "attached to a peer's shared memory"
                        );
                        tracing::debug!(
                            target: "ofi::shm::ep_data",
                            peer = %crate::name::shown(&socket, self.format), protocol = "eager",
                            up_to = self.common.eager,
                            "chose the protocol of short messages to a peer; longer ones are announced (rendezvous)"
                        );
                    }
                    crash_point!("attach.rings");
                    state.ring(&mut self.common);
                    state.confirm(host);
                    crash_point!("attach.confirmed");
                    state.move_parked(&mut self.common, host);
                    let mut hinted = std::mem::take(&mut self.hinted);
                    hinted.assign(hint, peer, |other| self.is_hinted(other, hint));
                    self.hinted = hinted;
                    self.hot.push(peer);
                }
                HelperEvent::Refused { socket, errno } => {
                    if let Some(&peer) = self.by_socket.get(&socket)
                        && self.peers[peer as usize].up().is_none()
                    {
                        tracing::info!(
                            target: "ofi::shm::ep_ctrl",
                            peer = %crate::name::shown(&socket, self.format), error = errno.name(),
                            "a peer could not be attached"
                        );
                        self.peers[peer as usize].refuse(&mut self.common, host, errno);
                        self.spare(peer);
                    }
                }
                HelperEvent::Gone { socket, incarnation } => {
                    if let Some(peer) = self.known(&socket, incarnation) {
                        self.mark_gone(peer);
                    }
                }
                HelperEvent::Bulk { socket, incarnation, lines, memory } => {
                    if let Some(peer) = self.known(&socket, incarnation)
                        && self.peers[peer as usize].attach_bulk(memory, lines).is_err()
                    {
                        self.give_up(host, peer, Errno::EINVAL);
                    }
                }
                HelperEvent::Grant { socket, incarnation, key, terms, memory } => {
                    if let Some(peer) = self.known(&socket, incarnation) {
                        let state = &mut self.peers[peer as usize];
                        state.granted(key, terms, memory);
                        crash_point!("grant.taken");
                        state.move_parked(&mut self.common, host);
                    }
                }
                HelperEvent::Device { socket, incarnation, key, device } => {
                    if let Some(peer) = self.known(&socket, incarnation) {
                        let state = &mut self.peers[peer as usize];
                        state.granted_device(&self.common, key, device.0, &device.1);
                        state.move_parked(&mut self.common, host);
                    }
                }
                HelperEvent::Withdrawn { socket, incarnation, key } => {
                    if let Some(peer) = self.known(&socket, incarnation) {
                        self.peers[peer as usize].unmap_device(key);
                    }
                }
                HelperEvent::Packet { socket, packet } => self.take_packet(host, &socket, &packet),
                HelperEvent::PacketLost { socket, errno } => self.packet_lost(host, &socket, errno),
            }
        }
    }
}
