//! Maps the application's numbers of addresses to the endpoint's numbers of peers, and back.
//!
//! Both directions are cached; the address vector's counts tell when the caches are stale.

use std::sync::Arc;

use ofi_api::{Address, Errno, Error, FiAddr, Result};

use crate::av::{Av, CountsOf};
use crate::growth;
use crate::transport::{PeerId, RxName};

/// The endpoint's data of one peer.
struct Known {
    address: Address,
    /// The number by which completions report the peer, if it was in the address vector at the last check.
    source: FiAddr,
    /// The vector's insertion count at the last check.
    looked_at: u32,
    /// Numbers of the vector refer to it.
    used: bool,
}

/// The caches of one endpoint.
#[derive(Default)]
pub struct Peers {
    av: Option<Arc<Av>>,
    counts: CountsOf,
    /// `peer + 1` by address number; 0 before the first lookup.
    forward: Vec<PeerId>,
    known: Vec<Known>,
    removals: u32,
}

impl Peers {
    /// Uses `av` from now on.
    pub fn bind(&mut self, av: Arc<Av>) {
        self.counts = CountsOf::new(&av);
        self.removals = self.counts.get().removals();
        self.av = Some(av);
    }

    /// Whether numbers of the vector can name receive contexts.
    #[inline]
    pub fn names_contexts(&self) -> bool {
        self.av.as_ref().is_some_and(|av| av.names_contexts())
    }

    /// The number of a peer, and the receive context that its upper bits name.
    ///
    /// # Errors
    /// `FI_EINVAL` for a context that no endpoint has.
    pub fn split(&self, address: FiAddr) -> Result<(FiAddr, RxName)> {
        self.av.as_ref().map_or(Ok((address, RxName::ANY)), |av| av.split(address))
    }

    /// Whether this is the vector.
    pub fn is_bound_to(&self, av: &Arc<Av>) -> bool {
        self.av.as_ref().is_some_and(|bound| Arc::ptr_eq(bound, av))
    }

    /// The vector.
    pub fn av(&self) -> Option<&Arc<Av>> {
        self.av.as_ref()
    }

    /// Whether an address vector is bound.
    pub fn is_bound(&self) -> bool {
        self.av.is_some()
    }

    /// The peer at `address`, if it was looked up before.
    #[inline]
    pub fn get(&self, address: FiAddr) -> Option<PeerId> {
        if self.counts.get().removals() != self.removals {
            return None;
        }
        match self.forward.get(address.0 as usize) {
            Some(&peer) if peer != 0 => Some(peer - 1),
            _ => None,
        }
    }

    /// The address behind a number, for [`Peers::learn`]. Drops stale entries.
    ///
    /// # Errors
    /// `FI_EINVAL` if the number is not in the vector.
    #[cold]
    pub fn look_up(&mut self, address: FiAddr) -> Result<Address> {
        self.drop_stale();
        let Some(av) = &self.av else { return Err(Error::new(Errno::ENOAV)) };
        av.address(address)
    }

    /// Drops the cached numbers of peers if the vector has removed any.
    fn drop_stale(&mut self) {
        let removals = self.counts.get().removals();
        if removals != self.removals {
            self.removals = removals;
            self.forward.clear();
            for known in &mut self.known {
                (known.source, known.looked_at, known.used) = (FiAddr::NOTAVAIL, 0, false);
            }
        }
    }

    /// Remembers the peer at `address`.
    pub fn learn(&mut self, address: FiAddr, peer: PeerId) {
        let index = address.0 as usize;
        if index >= self.forward.len() {
            self.forward.resize(index + 1, 0);
        }
        self.forward[index] = peer + 1;
        if let Some(known) = self.known.get_mut(peer as usize) {
            known.used = true;
        }
    }

    /// Whether the application can address a peer by a number of its vector.
    pub fn is_used(&mut self, peer: PeerId) -> bool {
        self.drop_stale();
        self.known.get(peer as usize).is_some_and(|known| known.used)
    }

    /// Records a new peer. Its number may have belonged to another peer before.
    pub fn introduce(&mut self, peer: PeerId, address: &Address) {
        debug_assert!(peer as usize <= self.known.len(), "peers are introduced in order");
        let new = Known { address: address.clone(), source: FiAddr::NOTAVAIL, looked_at: 0, used: false };
        match self.known.get_mut(peer as usize) {
            Some(known) => *known = new,
            None => growth::push(&mut self.known, new),
        }
    }

    /// A peer's address.
    pub fn address(&self, peer: PeerId) -> Option<&Address> {
        self.known.get(peer as usize).map(|known| &known.address)
    }

    /// The number by which completions report a peer: the address vector's, or the application's, or
    /// `FI_ADDR_NOTAVAIL`.
    #[inline]
    pub fn source(&mut self, peer: PeerId) -> FiAddr {
        let Some(known) = self.known.get(peer as usize) else { return FiAddr::NOTAVAIL };
        let counts = self.counts.get();
        if counts.removals() == self.removals
            && (known.source != FiAddr::NOTAVAIL || known.looked_at == counts.insertions())
        {
            return known.source;
        }
        self.find_source(peer)
    }

    #[cold]
    fn find_source(&mut self, peer: PeerId) -> FiAddr {
        let _ = self.look_up(FiAddr::NOTAVAIL); // drops stale entries; this number is never in the vector
        let (Some(av), Some(known)) = (&self.av, self.known.get_mut(peer as usize)) else {
            return FiAddr::NOTAVAIL;
        };
        known.looked_at = self.counts.get().insertions();
        known.source = av.reported(&known.address).unwrap_or(FiAddr::NOTAVAIL);
        known.source
    }
}
