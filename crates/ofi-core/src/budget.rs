//! What peers may hold of a resource that all of them share, and how much of it one peer may have.
//!
//! A [`Budget`] is the one rule for every such resource: operations of an endpoint ([`Places`]), bytes and envelopes
//! of unexpected messages (`matching/budget.rs`), notifications that a program has not taken (`multirail`). What a peer
//! holds it may hold for as long as it lives, and nobody can take it back. So a peer never has more than a fixed
//! multiple of what it leaves free: one peer alone has a part of the budget, each further one the same part of the
//! rest, and a later one finds something whatever the others did.
//!
//! What one peer holds is in its *account* ([`Accounts`]), which its owner finds by what proves who the peer is: the
//! address whose endpoint alone decides whether an operation ends.
//!
//! Operations: an endpoint has one limit for all its peers (`tx_attr.size`). The core leaves their shares to those who
//! know what one peer may take: layers that serve peers who do not know each other (`multirail`, `mxl-fabrics`), and
//! transports whose peers share a queue of a device (`ofi-efa`, where a post beyond a peer's share may get
//! `FI_EAGAIN`). Over other transports, a program of libfabric's interface may use all of `tx_attr.size` for one peer.

mod accounts;

pub use accounts::{AccountId, Accounts};

/// A budget of which a holder has at most `TIMES / PARTS` of what is free.
#[derive(Clone, Copy, Debug)]
pub struct Budget<const TIMES: usize, const PARTS: usize> {
    size: usize,
    used: usize,
}

/// The operations that an endpoint takes at a time: a peer has no more than half of what it leaves free. One peer alone
/// may have a third of the places, and each further silent peer a third of the rest. A peer without operations gets a
/// place as long as there is one.
pub type Places = Budget<1, 2>;

impl<const TIMES: usize, const PARTS: usize> Budget<TIMES, PARTS> {
    /// A budget of `size` units, of which none is used.
    pub const fn new(size: usize) -> Self {
        Self { size, used: 0 }
    }

    /// All of it.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// What is used.
    #[inline]
    pub const fn used(&self) -> usize {
        self.used
    }

    /// What is free. Nothing, if more is used than there is.
    #[inline]
    pub const fn free(&self) -> usize {
        self.size.saturating_sub(self.used)
    }

    /// Whether nothing is free.
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.used >= self.size
    }

    /// What must be free so that a holder of `own` units may take `amount` more.
    #[inline(always)]
    pub const fn needed(own: usize, amount: usize) -> usize {
        let held = own.saturating_add(amount);
        amount.saturating_add(held.saturating_mul(PARTS).div_ceil(TIMES))
    }

    /// Whether a holder of `own` units may take `amount` more: afterwards it has no more than its part of what is free
    /// then.
    #[inline]
    pub const fn may_take(&self, own: usize, amount: usize) -> bool {
        self.free() >= Self::needed(own, amount)
    }

    /// What each holder may hold, by what is free now. For those that are asked before it is known how much they take,
    /// and for amounts of which a single one may be longer than a share.
    #[inline]
    pub const fn allowance(&self) -> usize {
        self.free().saturating_mul(TIMES) / PARTS
    }

    /// The units that a holder of `own` may take in addition: the first one as long as one is free.
    #[inline]
    pub fn share(&self, own: usize) -> usize {
        let free = self.free();
        // The largest n with (own + n) * PARTS <= (free - n) * TIMES.
        let share = free.saturating_mul(TIMES).saturating_sub(own.saturating_mul(PARTS)) / (TIMES + PARTS);
        if own == 0 { share.max(free.min(1)) } else { share }
    }

    /// Whether a holder of `own` units may take one of `free` ones: the first one as long as one is free.
    #[inline(always)]
    pub const fn has_one(free: usize, own: usize) -> bool {
        free >= Self::needed(own, 1) || (own == 0 && free > 0)
    }

    /// Whether a holder of `own` units may take another one.
    #[inline]
    pub const fn has_place(&self, own: usize) -> bool {
        Self::has_one(self.free(), own)
    }

    /// Records that `amount` units are used.
    #[inline]
    pub const fn take(&mut self, amount: usize) {
        self.used += amount;
    }

    /// Records that `amount` units are used no longer.
    #[inline]
    pub const fn give_back(&mut self, amount: usize) {
        self.used -= amount;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all that a peer may have. Returns the number.
    fn fill<const TIMES: usize, const PARTS: usize>(budget: &mut Budget<TIMES, PARTS>) -> usize {
        let mut own = 0;
        loop {
            let share = budget.share(own);
            assert_eq!(budget.has_place(own), share > 0);
            if share == 0 {
                return own;
            }
            budget.take(share);
            own += share;
        }
    }

    #[test]
    fn a_peer_leaves_twice_its_share_to_the_others() {
        for size in [1, 2, 3, 8, 64, 1024, 1 << 20] {
            let (mut places, mut free, mut peers) = (Places::new(size), size, 0);
            while free > 0 {
                assert!(!places.is_full());
                let took = fill(&mut places);
                assert!(took >= 1, "a peer without operations gets a place: {free} are free of {size}");
                free -= took;
                assert!(took == 1 || 2 * took <= free, "{took} taken, {free} left of {size}");
                peers += 1;
            }
            assert!(places.is_full() && fill(&mut places) == 0);
            println!("{peers} silent peers fill {size} places");
        }
    }

    #[test]
    fn a_place_that_is_given_back_is_free_for_a_peer_without_any() {
        let mut places = Places::new(3);
        places.take(3);
        assert_eq!(places.share(0), 0);
        places.give_back(1);
        assert_eq!((places.share(0), places.share(1)), (1, 0));
    }

    #[test]
    fn one_unit_after_the_other_is_as_much_as_a_share() {
        fn check<const TIMES: usize, const PARTS: usize>() {
            for size in 1..200 {
                let (mut at_once, mut one_by_one) = (Budget::<TIMES, PARTS>::new(size), 0);
                let all = fill(&mut at_once);
                let mut budget = Budget::<TIMES, PARTS>::new(size);
                while budget.has_place(one_by_one) {
                    budget.take(1);
                    one_by_one += 1;
                }
                assert_eq!(all, one_by_one, "{TIMES}/{PARTS} of {size}");
                assert!(one_by_one == 1 || one_by_one * PARTS <= budget.free() * TIMES);
            }
        }
        check::<1, 2>();
        check::<2, 1>();
        check::<1, 1>();
        check::<3, 2>();
    }

    #[test]
    fn no_amount_overflows() {
        let mut budget = Budget::<2, 1>::new(usize::MAX - 1);
        assert!(!budget.may_take(usize::MAX, usize::MAX) && budget.may_take(0, 1 << 40));
        budget.take(usize::MAX - 1);
        assert!(!budget.may_take(0, 1) && budget.allowance() == 0);
        assert!(!Budget::<1, 2>::new(8).may_take(usize::MAX, 1));
    }
}
