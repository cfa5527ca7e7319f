//! Registered memory that a peer copies to or from directly, and how closing the registration stops it.
//!
//! A peer copies only while a word of this end's pair memory holds its ticket: `TARGET` for writes (S1), a word of
//! `LENT` for reads (S2). Each registration has a list of such words. Closing it removes the tickets and waits until
//! nobody writes. An opening is added to the list under its lock, after a check that the registration still exists.
//! Closing removes the key first, so either it finds the opening in the list, or the check sees that the registration
//! is closed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ofi_api::{Errno, MrAccess, RemotePiece};
use ofi_core::domain::{DomainPart, RegionData};
use ofi_core::keys::{Accessor, Grant};
use ofi_ring::access_token;

use crate::Shm;
use crate::cma;
use crate::layout::pair;
use crate::pair::OwnPair;
use crate::sys::{self, Mapping};

/// The parts of a registration that are open to peers.
#[derive(Default)]
pub struct Openings(Mutex<Vec<Arc<Opening>>>);

/// A word with a ticket.
pub struct Opening {
    pub own: Arc<OwnPair>,
    /// The offset of the ticket in `own`.
    pub word: usize,
    pub ticket: u64,
    /// The writer, while the ticket is there: the word in which it announces writes, and its process.
    pub writer: Option<(Arc<Mapping>, i32)>,
}

impl Opening {
    /// Removes the ticket, if it is still there.
    fn void(&self) {
        access_token::void(self.own.word64(self.word), self.ticket);
    }

    /// Whether the peer may be writing.
    fn is_written(&self) -> bool {
        self.writer.as_ref().is_some_and(|(memory, pid)| {
            access_token::is_writing(cma::word(memory, pair::WRITING), self.ticket) && !sys::has_ended(*pid)
        })
    }
}

impl Openings {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<Opening>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all tickets and waits for writers, at the latest until `deadline`. Returns whether no peer writes.
    pub fn void(&self, deadline: Instant) -> bool {
        let open = self.list().clone();
        open.iter().for_each(|opening| opening.void());
        access_token::settle();
        while open.iter().any(|opening| opening.is_written()) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        true
    }
}

/// Keeps an opening.
pub struct OpenedRegion {
    openings: Arc<Openings>,
    opening: Arc<Opening>,
}

impl Drop for OpenedRegion {
    fn drop(&mut self) {
        self.opening.void();
        self.openings.list().retain(|other| !Arc::ptr_eq(other, &self.opening));
    }
}

/// Contiguous registered memory, kept registered.
pub struct RegisteredMemory {
    pub addr: *mut u8,
    pub grant: Grant<RegionData>,
}

impl RegisteredMemory {
    /// The memory of `len` bytes from byte `skip` of `piece` on; `None` if it is in several pieces, or device memory.
    ///
    /// # Errors
    /// Why the peer may not access it.
    pub fn find(
        domain: &DomainPart<Shm>,
        who: Accessor<'_>,
        piece: RemotePiece,
        (skip, len): (usize, usize),
        access: MrAccess,
    ) -> Result<Option<Self>, Errno> {
        if domain.regions.is_of_device(&[piece]) {
            return Ok(None);
        }
        let addr = piece.addr.wrapping_add(skip as u64);
        let checked = domain.regions.check_as(who, piece.key, addr, len as u64, access);
        let grant = checked.map_err(|violation| violation.errno())?;
        let first = grant.pieces().next();
        Ok(first.filter(|first| first.len == len).map(|first| Self { addr: first.addr, grant }))
    }

    /// Stores the ticket and keeps it until the returned value is dropped or the registration is closed. `None` if it
    /// is closed.
    pub fn open(&self, domain: &DomainPart<Shm>, key: u64, opening: Opening) -> Option<OpenedRegion> {
        let region = self.grant.region();
        let openings = Arc::clone(&domain.data(region)?.openings);
        let mut list = openings.list();
        if !domain.regions.remote(key).is_some_and(|found| std::ptr::eq(found.region(), region)) {
            return None;
        }
        opening.own.word64(opening.word).store(opening.ticket, Ordering::Release);
        let opening = Arc::new(opening);
        list.push(Arc::clone(&opening));
        drop(list);
        Some(OpenedRegion { openings, opening })
    }
}
