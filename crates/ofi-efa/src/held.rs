//! The registrations of local memory that an endpoint's requests use.
//!
//! Uses are counted here, under the endpoint's lock, so that one more takes no locked instruction. The registration
//! that was used last stays until another one is, or until one of the domain's is removed: then the next request, or
//! the next poll, lets it go.

use std::ops::Range;

use crate::domain::{Domain, Local};

/// A use of a registration, given back by [`Regions::release`].
#[derive(Debug)]
pub struct InUse(u32);

struct Held {
    region: Option<Local>,
    /// Uses, and one for being the last.
    uses: u32,
}

/// See the module.
#[derive(Default)]
pub struct Regions {
    all: Vec<Held>,
    free: Vec<u32>,
    last: Last,
}

/// What stands in for a look into the domain's cache.
#[derive(Default)]
struct Last {
    /// Addresses that it covers: none, if there is none.
    covers: Range<usize>,
    lkey: u32,
    at: u32,
    /// Removals from the cache that had been when it was found.
    removals: u64,
}

impl Regions {
    /// A registration of memory that the application has registered. `None` for any other.
    ///
    /// # Safety
    /// The memory is lent until the operation has ended, which gives the use back.
    #[inline(always)]
    pub unsafe fn find(&mut self, domain: &Domain, addr: *mut u8, len: usize) -> Option<(u32, InUse)> {
        // Before anything is found.
        let removals = domain.cache.removals();
        let Last { covers, lkey, at, removals: known } = &self.last;
        // Before the range this is beyond any length.
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

    /// Uses a registration.
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

    /// The last one stands in for nothing any more.
    fn forget(&mut self) {
        let Last { covers, at, .. } = std::mem::take(&mut self.last);
        if !covers.is_empty() {
            self.release(InUse(at));
        }
    }

    /// Lets the last one go if a registration of the domain was removed since.
    #[inline]
    pub fn let_go(&mut self, domain: &Domain) {
        if !self.last.covers.is_empty() && self.last.removals != domain.cache.removals() {
            self.forget();
        }
    }
}
