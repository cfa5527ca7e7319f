//! The operations that an endpoint takes at a time, and how many of them one peer may have.
//!
//! An endpoint has one limit for all its peers (`tx_attr.size`). An operation to a peer that does not poll may stay in
//! it for as long as that peer lives, and nothing else can end it. So a peer never takes more than half of what it
//! leaves free: one peer alone may have a third of the places, and each further silent peer a third of the rest. A peer
//! without operations gets a place as long as there is one.
//!
//! The core leaves this to those who know what one peer may take: layers that serve peers who do not know each other
//! (`multirail`, `mxl-fabrics`), and transports whose peers share a queue of a device (`ofi-efa`, where a post beyond a
//! peer's share may get `FI_EAGAIN`). Over other transports, a program of libfabric's interface may use all of
//! `tx_attr.size` for one peer.

/// The free places with which a peer that has `own` places, at least one, may take another.
#[inline(always)]
pub const fn needed(own: usize) -> usize {
    3 + 2 * own // afterwards it has no more than half of what is free
}

/// Whether a peer that has `own` places may take one of `free` places.
#[inline(always)]
pub fn may_take(free: usize, own: usize) -> bool {
    free >= needed(own) || (own == 0 && free > 0)
}

/// The places of one endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    size: u32,
    used: u32,
}

impl Places {
    /// The places of an endpoint that takes `size` operations: at least one.
    pub fn new(size: u32) -> Self {
        Self { size: size.max(1), used: 0 }
    }

    /// All of them.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Those that operations have.
    #[inline]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Those that no operation has.
    #[inline]
    pub fn free(&self) -> u32 {
        self.size.saturating_sub(self.used)
    }

    /// Whether none is free.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.used >= self.size
    }

    /// Whether a peer with `own` operations may take another place.
    pub fn has_place(&self, own: u32) -> bool {
        may_take(self.free() as usize, own as usize)
    }

    /// The places that a peer with `own` operations may take in addition.
    #[inline]
    pub fn share(&self, own: u32) -> u32 {
        let free = self.free();
        // The largest n with own + n <= (free - n) / 2.
        let share = free.saturating_sub(own.saturating_mul(2)) / 3;
        if own == 0 { share.max(free.min(1)) } else { share }
    }

    /// Records that `count` operations have begun.
    #[inline]
    pub fn take(&mut self, count: u32) {
        self.used += count;
    }

    /// Records that `count` operations have ended.
    #[inline]
    pub fn give_back(&mut self, count: u32) {
        self.used -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all that a peer may have. Returns the number.
    fn fill(places: &mut Places) -> u32 {
        let mut own = 0;
        loop {
            let share = places.share(own);
            assert_eq!(places.has_place(own), share > 0);
            if share == 0 {
                return own;
            }
            places.take(share);
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
}
