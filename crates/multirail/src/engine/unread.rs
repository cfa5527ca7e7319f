//! Notifications that have arrived and that the program has not taken.
//!
//! They lie at their peer, and peers take turns: one that sends much delays no other. A notification is acknowledged
//! when the program takes it, so what is unread is also unacknowledged, and holds back its sender alone: 512
//! notifications, or 8 MiB. A peer that does not keep to that is refused beyond the bounds of the inbox. If the session
//! ends before, the sender is told a failure, and the notification is dropped.
//!
//! With [`Config::acknowledge_taken`](super::Config::acknowledge_taken) off, the sender is told as soon as a
//! notification has arrived ([`Body::Arrived`](crate::wire::message::Body)), and its transfer is done. It still counts
//! as unacknowledged. It is kept when the session ends, so what a peer was told is bounded over all of its sessions
//! ([`TOLD`]), and for all peers by the budget. Beyond, nothing is said before the program takes it.

use std::collections::VecDeque;
use std::sync::Arc;

use ofi_core::slots::SlotId;

use super::budget::ENTRY;
use super::receipts::{Receipt, UNACKED, UNACKED_BYTES};
use super::{Core, Notification};

/// Maximum notifications and bytes of one peer that are unread, and of which it was told that they have arrived: all
/// that its sender may have unacknowledged.
const TOLD: (usize, usize) = (UNACKED as usize, UNACKED_BYTES);

/// An unread notification.
struct UnreadEntry {
    session: SlotId,
    id: u64,
    /// Its sender was told that it has arrived.
    is_told: bool,
    /// Its session is open, and its sender counts it as unacknowledged.
    is_open: bool,
    bytes: Vec<u8>,
}

/// A number of notifications, and their bytes.
type Amount = (usize, usize);

/// The unread notifications of a peer.
#[derive(Default)]
pub(super) struct Unread {
    entries: VecDeque<UnreadEntry>,
    /// Those that the peer was told about.
    told: Amount,
    /// Those of its open session.
    open: Amount,
    /// The peer is in [`Core::unread`].
    is_listed: bool,
}

impl Unread {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number and bytes of those that their sender counts as unacknowledged, and, if they have more than `bytes`,
    /// the longest.
    pub(super) fn open(&self, bytes: usize) -> (Amount, usize) {
        let open = || self.entries.iter().filter(|entry| entry.is_open);
        let longest = (self.open.1 > bytes).then(|| open().map(|entry| entry.bytes.len()).max());
        (self.open, longest.flatten().unwrap_or(0))
    }

    fn push(&mut self, entry: UnreadEntry) {
        count(&mut self.told, &entry, entry.is_told);
        count(&mut self.open, &entry, entry.is_open);
        self.entries.push_back(entry);
    }

    fn remove(&mut self, at: usize) -> Option<UnreadEntry> {
        let entry = self.entries.remove(at)?;
        for (amount, is_counted) in [(&mut self.told, entry.is_told), (&mut self.open, entry.is_open)] {
            if is_counted {
                *amount = (amount.0 - 1, amount.1 - entry.bytes.len());
            }
        }
        Some(entry)
    }

    /// Drops the notification with this id. Returns its length, and whether its sender was told about it.
    pub(super) fn void(&mut self, session: SlotId, id: u64) -> Option<(usize, bool)> {
        let found = self.entries.iter().position(|entry| (entry.session, entry.id) == (session, id));
        found.and_then(|at| self.remove(at)).map(|entry| (entry.bytes.len(), entry.is_told))
    }

    /// The lengths of those that the peer was told about.
    pub(super) fn told(&self) -> impl Iterator<Item = usize> {
        self.entries.iter().filter(|entry| entry.is_told).map(|entry| entry.bytes.len())
    }

    /// Drops the notifications of an ended session whose sender was not told about them. The others remain.
    pub(super) fn session_ended(&mut self, session: SlotId) {
        self.entries.retain(|entry| entry.session != session || entry.is_told);
        self.open = (0, 0);
        for entry in &mut self.entries {
            entry.is_open &= entry.session != session;
            count(&mut self.open, entry, entry.is_open);
        }
    }
}

/// Adds an entry to an amount.
fn count(amount: &mut Amount, entry: &UnreadEntry, is_counted: bool) {
    if is_counted {
        *amount = (amount.0 + 1, amount.1 + entry.bytes.len());
    }
}

impl<G> Core<G> {
    /// Keeps a notification for the program. Returns what its sender is to be told now.
    pub(super) fn keep_unread(
        &mut self,
        peer_id: SlotId,
        session: SlotId,
        id: u64,
        bytes: Vec<u8>,
    ) -> Option<Receipt> {
        let tells = !self.config.acknowledge_taken;
        let Some(peer) = self.peers.get_mut(peer_id) else { return Some(Receipt::Taken) };
        let unread = peer.unread.get_or_insert_default();
        if !std::mem::replace(&mut unread.is_listed, true) {
            self.unread.push_back(peer_id);
        }
        let (count, kept) = unread.told;
        let has_room = count < TOLD.0 && kept + bytes.len() <= TOLD.1;
        let is_told = tells && has_room && self.budget.tell(unread.told, bytes.len());
        if !is_told && let Some(session) = self.sessions.get_mut(session) {
            session.unread += ENTRY + bytes.len();
        }
        unread.push(UnreadEntry { session, id, is_told, is_open: true, bytes });
        is_told.then_some(Receipt::Arrived)
    }

    /// The next notification. [`Core::perform`] sends its acknowledgement.
    pub fn take_notification(&mut self) -> Option<Notification> {
        loop {
            let peer_id = self.unread.pop_front()?;
            let Some(peer) = self.peers.get_mut(peer_id) else { continue };
            let Some(unread) = &mut peer.unread else { continue };
            let Some(UnreadEntry { session, id, is_told, bytes, .. }) = unread.remove(0) else {
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
            if is_told {
                self.budget.taken(bytes.len());
            }
            if let Some(found) = self.sessions.get_mut(session)
                && found.inbox.was_read(id)
            {
                found.acks.insert(id, Receipt::Taken);
                found.unread -= if is_told { 0 } else { ENTRY + bytes.len() };
                self.wake(session);
                self.charge(session);
            }
            return Some(Notification { peer: name, bytes });
        }
    }
}
