//! The registrations of local memory that an endpoint's requests use.
//!
//! The endpoint's lock protects the use counts, so another use takes no atomic instruction. The last used registration
//! is held until a request uses another one, or the domain removes a registration: then the next request or poll
//! releases it.

use std::ops::Range;
use std::sync::Arc;

use crate::domain::{Domain, Local};

/// A use of a registration, which [`Regions::release`] ends.
#[derive(Debug)]
pub struct InUse(u32);

struct HeldRegion {
    region: Option<Local>,
    /// Number of uses, plus one for the last used registration.
    uses: u32,
    /// Number of uses by operations that were given up.
    leaving: u32,
    /// Whether one of those operations was a read.
    fills: bool,
}

/// The registrations of local memory that an endpoint's requests use, with their use counts.
#[derive(Default)]
pub struct Regions {
    all: Vec<HeldRegion>,
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
    /// The cache's removal count at the lookup.
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
        // For an address before the range, the offset wraps around to more than any length.
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
        let held = HeldRegion { region: Some(region), uses: 1, leaving: 0, fills: false };
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

    /// Records that the operation of a use was given up; a read if `fills`.
    pub fn leaves(&mut self, InUse(at): &InUse, fills: bool) {
        let held = &mut self.all[*at as usize];
        held.leaving += 1;
        held.fills |= fills;
    }

    /// Called before the use of such an operation ends.
    pub fn stays(&mut self, InUse(at): &InUse) {
        self.all[*at as usize].leaving -= 1;
    }

    /// Deregisters the registration of a use, if all operations that use it were given up and one of them is a read.
    /// Returns whether it was deregistered: then no device accesses the memory through it.
    pub fn revoke(&mut self, InUse(at): &InUse, domain: &Domain) -> bool {
        if !self.last.covers.is_empty() && self.last.at == *at {
            self.forget();
        }
        let held = &mut self.all[*at as usize];
        let Some(region) = &held.region else { return true };
        if held.leaving < held.uses || !held.fills {
            return false;
        }
        domain.cache.retire(region);
        // Another endpoint of the domain may use it, which releases it when it polls.
        let is_alone = Arc::strong_count(region) == 1;
        if is_alone {
            held.region = None;
        }
        is_alone
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

    /// Clears the last used registration.
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
