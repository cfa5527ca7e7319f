//! The registrations of local memory that an endpoint's requests use.
//!
//! Uses are counted here, under the endpoint's lock, so that another use takes no locked instruction. The last used
//! registration stays until a request uses another, or until the domain removes a registration: then the next request
//! or poll releases it.

use std::ops::Range;

use crate::domain::{Domain, Local};

/// A use of a registration, given back by [`Regions::release`].
#[derive(Debug)]
pub struct InUse(u32);

struct Held {
    region: Option<Local>,
    /// Number of uses, plus one for the last used registration.
    uses: u32,
}

/// See the module.
#[derive(Default)]
pub struct Regions {
    all: Vec<Held>,
    free: Vec<u32>,
    last: Last,
}

/// The last used registration. It saves a lookup in the domain's cache.
#[derive(Default)]
struct Last {
    /// Addresses that it covers. Empty if there is no last registration.
    covers: Range<usize>,
    lkey: u32,
    at: u32,
    /// The cache's count of removals when it was found.
    removals: u64,
}

impl Regions {
    /// The registration of memory that the application has registered. `None` for other memory.
    ///
    /// # Safety
    /// The memory is lent until the operation has ended, which then releases the use.
    #[inline(always)]
    pub unsafe fn find(&mut self, domain: &Domain, addr: *mut u8, len: usize) -> Option<(u32, InUse)> {
        // Read before the lookup.
        let removals = domain.cache.removals();
        let Last { covers, lkey, at, removals: known } = &self.last;
        // An address before the range wraps around to an offset beyond any length.
        let skip = addr.addr().wrapping_sub(covers.start);
        let covered = covers.end - covers.start;
        if *known == removals
            && skip <= covered
            && len <= covered - skip
            && let Some(held) = self.all.get_mut(*at as usize)
        {
            held.uses += 1;
            return Some((*lkey, InUse(*at)));
        }
        // SAFETY: the caller's promise.
        unsafe { self.look_up(domain, addr, len, removals) }
    }

    /// # Safety
    /// As [`Regions::find`].
    #[cold]
    unsafe fn look_up(
        &mut self,
        domain: &Domain,
        addr: *mut u8,
        len: usize,
        removals: u64,
    ) -> Option<(u32, InUse)> {
        // SAFETY: the caller's promise.
        let (covers, region) = unsafe { domain.registered(addr, len) }?;
        let lkey = region.lkey();
        self.forget();
        let InUse(at) = self.hold(region);
        self.all[at as usize].uses += 1;
        self.last = Last { covers, lkey, at, removals };
        Some((lkey, InUse(at)))
    }

    /// Begins to use a registration.
    pub fn hold(&mut self, region: Local) -> InUse {
        let held = Held { region: Some(region), uses: 1 };
        InUse(match self.free.pop() {
            Some(at) => {
                self.all[at as usize] = held;
                at
            }
            None => {
                self.all.push(held);
                (self.all.len() - 1) as u32
            }
        })
    }

    /// Ends a use.
    #[inline]
    pub fn release(&mut self, InUse(at): InUse) {
        let held = &mut self.all[at as usize];
        held.uses -= 1;
        if held.uses == 0 {
            self.give_back(at);
        }
    }

    #[cold]
    fn give_back(&mut self, at: u32) {
        self.all[at as usize].region = None;
        self.free.push(at);
    }

    /// Forgets the last used registration.
    fn forget(&mut self) {
        let Last { covers, at, .. } = std::mem::take(&mut self.last);
        if !covers.is_empty() {
            self.release(InUse(at));
        }
    }

    /// Releases the last used registration if the domain has removed a registration since.
    #[inline]
    pub fn let_go(&mut self, domain: &Domain) {
        if !self.last.covers.is_empty() && self.last.removals != domain.cache.removals() {
            self.forget();
        }
    }
}
