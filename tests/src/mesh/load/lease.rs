//! Memory that a peer may read for a short time: lent, borrowed, and returned or withdrawn.

use ofi_testkit::prelude::*;

use super::begin::rma;
use super::{GIVE_BACK, Kind, LEASE, LEASED, Lease, Load, OFFER, RETURN};

impl Load {
    /// Lends memory to a peer, which reads it and reports when it is done. The registration is closed then, or after a
    /// while in any case.
    pub(super) fn lend(&mut self, at: usize) {
        if self.leases.len() >= 2 {
            return;
        }
        let region = self.register_lease();
        let id = (self.steps << 16 | self.index as u64) & (RETURN - 1);
        let (memory, _) = self.buffer(false);
        for (number, word) in [region.base(), region.key(), self.index as u64, id].into_iter().enumerate() {
            memory.slice(number * 8..number * 8 + 8).put(&word.to_ne_bytes());
        }
        let posted = self.post(at, Kind::Send, (memory, false), |ep, dest, context, memory| {
            let pieces = [memory.slice(..32).piece()];
            // SAFETY: as in `send`.
            let lent = unsafe { Lent::new(&pieces, &[]) };
            ep.send_tagged(&SendOp::new(lent, dest, context), OFFER | id)
        });
        if posted {
            let peer = self.peers[at].index;
            self.leases.push(Lease { id, peer, region, until: Instant::now() + LEASED });
        }
    }

    fn register_lease(&self) -> std::sync::Arc<dyn MemoryRegion> {
        let pieces = [self.leased.slice(..).piece()];
        // SAFETY: the memory is freed after the endpoint, and is never written again.
        let attr = unsafe { MrAttr::new(&pieces, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE) };
        self.side.domain.register(&attr).expect("a lease")
    }

    pub(super) fn end_leases(&mut self) {
        if self.leases.first().is_some_and(|lease| lease.until < Instant::now()) {
            let lease = self.leases.remove(0);
            if let Err(error) = lease.region.close() {
                // The borrower was killed, or stopped, in the middle of its copy.
                assert_eq!(error.errno(), Errno::EBUSY, "{error}");
                self.doubt(|| error.to_string());
            }
        }
    }

    /// Reads memory that a peer lends.
    pub(super) fn borrow(&mut self, tag: u64, offer: &Memory) {
        let bytes = offer.slice(..32).bytes();
        let word = |at: usize| u64::from_ne_bytes(bytes[8 * at..8 * at + 8].try_into().expect("eight bytes"));
        let (addr, key, owner, id) = (word(0), word(1), word(2), word(3));
        assert_eq!(tag & !OFFER, id, "an offer says what its tag says");
        let Some(at) = self.peers.iter().position(|peer| peer.index as u64 == owner && peer.dead.is_none())
        else {
            return; // not met yet, or dead by now
        };
        let (memory, _) = self.buffer(false);
        // SAFETY: as long as said, and no operation uses it.
        unsafe { memory.as_ptr().write_bytes(0, LEASE) };
        let target = RemotePiece { addr, len: LEASE, key };
        self.post(at, Kind::Borrow { id }, (memory, false), |ep, peer, context, memory| {
            let pieces = [memory.slice(..LEASE).piece()];
            // SAFETY: as in `send`.
            let buf = unsafe { Lent::new(&pieces, &[]) };
            ep.read(&rma(buf, &[target], peer, context))
        });
    }

    /// Reports that a lease is no longer needed. If there is no room for the report, the lease ends by itself.
    pub(super) fn give_back(&self, to: FiAddr, id: u64) {
        // SAFETY: no memory.
        let nothing = unsafe { Lent::new(&[], &[]) };
        let mut op = SendOp::new(nothing, to, Context(GIVE_BACK));
        op.call = Call::Inject;
        let _ = self.side.ep.send_tagged(&op, RETURN | id);
    }
}
