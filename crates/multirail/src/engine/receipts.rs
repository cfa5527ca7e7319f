//! Notifications between sending and receipt: how many of ours the peer may have, and what it is told about its own.
//!
//! A notification has arrived when the peer keeps it for its program, which completes its transfer, and is acknowledged
//! when the program has taken it, which makes room for the next.

use ofi_core::slots::SlotId;

use super::Audience;
use super::session::Session;
use crate::wire::message::{ACKED, Body};

/// Maximum unacknowledged notifications, and maximum transfers whose writes the peer counts. An inbox takes more.
pub(super) const UNACKED: u64 = 512;
/// Maximum bytes of unacknowledged notifications. A single notification may be longer.
pub(super) const UNACKED_BYTES: usize = 8 << 20;
/// Maximum unacknowledged orders for device memory beside [`UNACKED`] notifications, and their bytes beside
/// [`UNACKED_BYTES`]: programs that take no notifications while they wait for device memory need the orders to go on.
const ORDERS: u64 = 256;
pub(super) const ORDER_BYTES: usize = 64 << 10;

/// Maximum notifications that a session has yet to tell its peer about. A peer has fewer of them unacknowledged; more
/// are repetitions.
const ACKS: usize = 2048;

/// Whether a notification is an order for device memory.
pub(super) fn is_order(bytes: &[u8]) -> bool {
    bytes.last() == Some(&Audience::Memory.byte())
}

/// What a peer is told about one of its notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receipt {
    /// It has arrived, and is kept for the program: its transfer is done.
    Arrived,
    /// The program has it, or it was cancelled: the sender may send another.
    Taken,
}

/// An unacknowledged notification.
#[derive(Debug)]
pub(super) struct Unacked {
    len: usize,
    is_order: bool,
    /// The number of its transfer, if the peer counts writes.
    number: Option<u64>,
    transfer: SlotId,
}

impl Session {
    /// Takes a number for a transfer whose writes are to be counted, if the peer's window has room.
    pub(super) fn take_number(&mut self) -> Option<u64> {
        let oldest = self.numbers.first().copied().unwrap_or(self.next_number);
        if self.next_number - oldest >= UNACKED {
            return None;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(number);
        Some(number)
    }

    /// Takes an id for a notification, if the peer's window has room.
    pub(super) fn take_notification(
        &mut self,
        bytes: &[u8],
        number: Option<u64>,
        transfer: SlotId,
    ) -> Option<u64> {
        let (len, is_order) = (bytes.len(), is_order(bytes));
        let others = self.unacked.len() as u64 - self.orders;
        let has_room = if is_order { self.orders < ORDERS } else { others < UNACKED };
        let has_bytes = self.unacked_bytes == 0
            || self.unacked_bytes + len <= UNACKED_BYTES
            || (is_order && self.order_bytes + len <= ORDER_BYTES);
        if !has_room || !has_bytes {
            return None;
        }
        let id = self.next_notification;
        self.next_notification += 1;
        self.unacked.insert(id, Unacked { len, is_order, number, transfer });
        self.unacked_bytes += len;
        self.orders += u64::from(is_order);
        self.order_bytes += if is_order { len } else { 0 };
        Some(id)
    }

    /// Acknowledges a notification of the peer. Returns whether there was room.
    pub(super) fn acknowledge(&mut self, id: u64) -> bool {
        let has_room = self.acks.len() < ACKS;
        if has_room {
            self.acks.insert(id, Receipt::Taken);
        }
        has_room
    }

    /// Tells the peer that a notification has arrived. Nothing is lost without room: it is acknowledged when the
    /// program takes it.
    pub(super) fn has_arrived(&mut self, id: u64) {
        if self.acks.len() < ACKS {
            self.acks.entry(id).or_insert(Receipt::Arrived);
        }
    }

    /// The next notifications to tell the peer about, all of one kind.
    pub(super) fn take_receipts(&mut self) -> Option<Body> {
        let (_, &kind) = self.acks.first_key_value()?;
        let ids = (0..ACKED).map_while(|_| {
            let next = self.acks.first_entry().filter(|next| *next.get() == kind)?;
            Some(next.remove_entry().0)
        });
        let ids = ids.collect();
        Some(match kind {
            Receipt::Arrived => Body::Arrived(ids),
            Receipt::Taken => Body::Ack(ids),
        })
    }

    /// Records that a notification is kept at the peer for its program. Returns its transfer.
    pub(super) fn arrived(&mut self, id: u64) -> Option<SlotId> {
        let unacked = self.unacked.get_mut(&id)?;
        if let Some(number) = unacked.number.take() {
            self.numbers.remove(&number);
        }
        Some(unacked.transfer)
    }

    /// Records the acknowledgement of a notification. Returns its transfer.
    pub(super) fn acknowledged(&mut self, id: u64) -> Option<SlotId> {
        let Unacked { len, is_order, number, transfer } = self.unacked.remove(&id)?;
        self.unacked_bytes -= len;
        self.orders -= u64::from(is_order);
        self.order_bytes -= if is_order { len } else { 0 };
        if let Some(number) = number {
            self.numbers.remove(&number);
        }
        Some(transfer)
    }
}
