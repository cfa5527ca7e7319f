//! Payloads that a peer may read directly.

use std::sync::Arc;

use ofi_ring::ticket;

use crate::layout::pair;
use crate::openings::Opened;
use crate::pair::OwnPair;

/// A payload that the receiver may read until this is dropped.
pub struct Lend {
    own: Arc<OwnPair>,
    slot: usize,
    ticket: u64,
    /// For registered memory: closing the registration ends it too.
    _opened: Option<Opened>,
}

impl Lend {
    /// For the payload whose ticket is in word `slot` of `LENT`.
    pub const fn new(own: Arc<OwnPair>, slot: usize, ticket: u64, opened: Option<Opened>) -> Self {
        Self { own, slot, ticket, _opened: opened }
    }

    /// The name by which the peer knows it.
    pub const fn ticket(&self) -> u64 {
        self.ticket
    }
}

impl Drop for Lend {
    fn drop(&mut self) {
        // Closing a registration may have removed the ticket, and the slot may hold another one by now.
        ticket::void(self.own.word64(pair::LENT + 8 * self.slot), self.ticket);
        ticket::settle(); // later stores of the application are ordered after this
    }
}
