//! Notifications that have arrived and that the program has not taken.
//!
//! They lie at their peer, and peers take turns: one that sends much delays no other. A notification is acknowledged
//! when the program takes it, so what is unread is also unacknowledged, and holds back its sender alone: 512
//! notifications, or 8 MiB. A peer that does not keep to that is refused beyond the bounds of the inbox. If the session
//! ends before, the sender is told a failure, and the notification is dropped.
//!
//! With [`Config::acknowledge_taken`](super::Config::acknowledge_taken) off, it is acknowledged as it arrives, as long
//! as the program has not left too much of the peer's unread. The sender does not count it any more, and the inbox does
//! not either.

use std::collections::VecDeque;
use std::sync::Arc;

use ofi_core::slots::SlotId;

use super::budget::ENTRY;
use super::{Core, Notification};

/// Notifications and bytes of one peer that may be unread and acknowledged: half of what its sender may have
/// unacknowledged.
const ACKNOWLEDGED: (usize, usize) = (256, 4 << 20);

/// An unread notification.
struct UnreadEntry {
    session: SlotId,
    id: u64,
    is_acknowledged: bool,
    bytes: Vec<u8>,
}

/// The unread notifications of a peer.
#[derive(Default)]
pub(super) struct Unread {
    entries: VecDeque<UnreadEntry>,
    bytes: usize,
    /// The number and bytes of those that are not acknowledged.
    open: (usize, usize),
    /// The peer is in [`Core::unread`].
    is_listed: bool,
}

impl Unread {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number and bytes of those that are not acknowledged, and, if they have more than `bytes`, the longest.
    pub(super) fn unacknowledged(&self, bytes: usize) -> ((usize, usize), usize) {
        let open = || self.entries.iter().filter(|entry| !entry.is_acknowledged);
        let longest = (self.open.1 > bytes).then(|| open().map(|entry| entry.bytes.len()).max());
        (self.open, longest.flatten().unwrap_or(0))
    }

    fn push(&mut self, entry: UnreadEntry) {
        self.bytes += entry.bytes.len();
        if !entry.is_acknowledged {
            self.open = (self.open.0 + 1, self.open.1 + entry.bytes.len());
        }
        self.entries.push_back(entry);
    }

    fn remove(&mut self, at: usize) -> Option<UnreadEntry> {
        let entry = self.entries.remove(at)?;
        self.bytes -= entry.bytes.len();
        if !entry.is_acknowledged {
            self.open = (self.open.0 - 1, self.open.1 - entry.bytes.len());
        }
        Some(entry)
    }

    /// Drops the notification with this id. Returns its length.
    pub(super) fn void(&mut self, session: SlotId, id: u64) -> Option<usize> {
        let found = self.entries.iter().position(|entry| (entry.session, entry.id) == (session, id));
        found.and_then(|at| self.remove(at)).map(|entry| entry.bytes.len())
    }

    /// The lengths of those that are acknowledged.
    pub(super) fn acknowledged(&self) -> impl Iterator<Item = usize> {
        self.entries.iter().filter(|entry| entry.is_acknowledged).map(|entry| entry.bytes.len())
    }

    /// Drops the notifications of an ended session that were not acknowledged.
    pub(super) fn session_ended(&mut self, session: SlotId) {
        self.entries.retain(|entry| entry.session != session || entry.is_acknowledged);
        self.bytes = self.entries.iter().map(|entry| entry.bytes.len()).sum();
        let open = self.entries.iter().filter(|entry| !entry.is_acknowledged);
        self.open = open.fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.bytes.len()));
    }
}

impl<G> Core<G> {
    /// Keeps a notification for the program. Returns whether it is acknowledged now.
    pub(super) fn keep_unread(&mut self, peer_id: SlotId, session: SlotId, id: u64, bytes: Vec<u8>) -> bool {
        let acknowledge_taken = self.config.acknowledge_taken;
        let Some(peer) = self.peers.get_mut(peer_id) else { return true };
        let unread = peer.unread.get_or_insert_default();
        if !std::mem::replace(&mut unread.is_listed, true) {
            self.unread.push_back(peer_id);
        }
        let (count, kept) = (unread.entries.len(), unread.bytes);
        let is_acknowledged = !acknowledge_taken
            && count < ACKNOWLEDGED.0
            && kept + bytes.len() <= ACKNOWLEDGED.1
            && self.budget.acknowledge(bytes.len());
        if !is_acknowledged && let Some(session) = self.sessions.get_mut(session) {
            session.unread += ENTRY + bytes.len();
        }
        unread.push(UnreadEntry { session, id, is_acknowledged, bytes });
        is_acknowledged
    }

    /// The next notification. [`Core::perform`] sends its acknowledgement.
    pub fn take_notification(&mut self) -> Option<Notification> {
        loop {
            let peer_id = self.unread.pop_front()?;
            let Some(peer) = self.peers.get_mut(peer_id) else { continue };
            let Some(unread) = &mut peer.unread else { continue };
            let Some(UnreadEntry { session, id, is_acknowledged, bytes }) = unread.remove(0) else {
                peer.unread = None;
                continue;
            };
            let name = Arc::clone(&peer.name);
            if unread.is_empty() {
                peer.unread = None;
                self.list_if_idle(peer_id);
            } else {
                self.unread.push_back(peer_id);
            }
            if is_acknowledged {
                self.budget.taken(bytes.len());
            } else if let Some(found) = self.sessions.get_mut(session)
                && found.inbox.was_read(id)
            {
                found.acks.insert(id);
                found.unread -= ENTRY + bytes.len();
                self.wake(session);
                self.charge(session);
            }
            return Some(Notification { peer: name, bytes });
        }
    }
}
