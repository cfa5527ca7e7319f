//! Unknown senders: an error entry reports the sender's address with the message or remote CQ data (`FI_SOURCE_ERR`),
//! and the node inserts it.

use std::collections::HashSet;

use ofi_api::{
    AddrFormat, Address, AddressVector, Caps, CompletionFlags, CqErrorEntry, CqTaggedEntry, Errno, Error,
    FiAddr, Info, Result,
};
use ofi_core::lock::Lock;

/// The configuration from [`NodeBuilder::insert_senders`](super::NodeBuilder::insert_senders).
pub(crate) struct Senders {
    limit: usize,
    format: AddrFormat,
    /// Peers that were inserted here and not removed yet.
    inserted: Lock<HashSet<FiAddr>>,
}

impl Senders {
    /// The capability that reports addresses of strangers.
    pub const NEEDS: Caps = Caps::SOURCE_ERR;

    pub fn new(limit: usize, info: &Info) -> Result<Self> {
        if !info.caps.contains(Self::NEEDS) {
            return Err(Error::wanted(
                Errno::EINVAL,
                "NodeBuilder::insert_senders",
                "a domain with FI_SOURCE_ERR",
                format!("[ {} ]", info.caps),
                "open the node by hints, or the domain with Caps::SOURCE_ERR",
            ));
        }
        Ok(Self { limit, format: info.addr_format, inserted: Lock::new(HashSet::new()) })
    }

    /// Inserts the sender that an error entry reports as unknown. Returns the message's completion, as a success if
    /// that was the only error, and with its source if the message did not fit. `None` for all other errors, and beyond
    /// the limit.
    #[cold]
    pub fn admit(
        &self,
        error: &mut CqErrorEntry,
        vector: &dyn AddressVector,
    ) -> Option<(CqTaggedEntry, FiAddr)> {
        let came = error.flags.intersects(CompletionFlags::RECV | CompletionFlags::REMOTE_WRITE);
        let tells = [Errno::EADDRNOTAVAIL, Errno::ETRUNC].contains(&error.err);
        if !tells || !came || error.err_data.is_empty() {
            return None;
        }
        let source = self.number(&Address::new(self.format, &error.err_data), vector)?;
        if error.err == Errno::ETRUNC {
            error.src_addr = source;
            return None;
        }
        let entry = CqTaggedEntry {
            op_context: error.op_context,
            flags: error.flags,
            len: error.len,
            buf: std::ptr::without_provenance_mut(error.buf), // only used as a number: see the field
            data: error.data,
            tag: error.tag,
        };
        Some((entry, source))
    }

    /// The number of a sender, which may have been inserted since its message arrived.
    fn number(&self, address: &Address, vector: &dyn AddressVector) -> Option<FiAddr> {
        if let Some(known) = vector.reverse_lookup(address) {
            return Some(known);
        }
        let mut inserted = self.inserted.lock();
        if inserted.len() >= self.limit {
            return None;
        }
        let number = vector.insert(std::slice::from_ref(address)).pop()?.ok()?;
        inserted.insert(number);
        Some(number)
    }

    /// Makes room after the program has removed the peer.
    pub fn removed(&self, number: FiAddr) {
        self.inserted.lock().remove(&number);
    }
}
