//! Payloads that a peer may read directly.

use std::sync::Arc;

use ofi_ring::access_token;

use crate::layout::pair;
use crate::openings::OpenedRegion;
use crate::pair::OwnPair;

/// A payload that the receiver may read until this is dropped.
pub struct ExposedBuffer {
    own: Arc<OwnPair>,
    slot: usize,
    ticket: u64,
    /// For registered memory, so that closing the registration also ends the access.
    _opened: Option<OpenedRegion>,
}

impl ExposedBuffer {
    /// For the payload whose ticket is in word `slot` of `LENT`.
    pub const fn new(own: Arc<OwnPair>, slot: usize, ticket: u64, opened: Option<OpenedRegion>) -> Self {
        Self { own, slot, ticket, _opened: opened }
    }

    /// The name by which the peer knows it.
    pub const fn ticket(&self) -> u64 {
        self.ticket
    }
}

impl Drop for ExposedBuffer {
    fn drop(&mut self) {
        // Closing a registration may have removed the ticket, and the slot may hold another one by now.
        access_token::void(self.own.word64(pair::LENT + 8 * self.slot), self.ticket);
        access_token::settle(); // later stores of the application are ordered after this
    }
}
