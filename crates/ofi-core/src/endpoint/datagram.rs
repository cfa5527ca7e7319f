//! How endpoints of type `FI_EP_DGRAM` differ: a message for which there is no room, at either end, is dropped and
//! counted, without waiting or a report.

use ofi_api::{CompletionFlags, EpType, Errno, Info};

use super::endpoint_core::EndpointCore;
use super::transmit::{TxOp, success};
use crate::cq::Credit;
use crate::matching::MatcherConfig;
use crate::transport::{CompletionInfo, Transport};

/// Bytes that datagrams hold before a receive is posted for them, as a socket's buffer does.
const WAITING_BYTES: usize = 1 << 20;

/// Whether an info's endpoints may lose messages.
pub fn is_lossy(info: &Info) -> bool {
    info.ep_attr.ep_type == EpType::Dgram
}

/// The budget for messages without a posted receive.
pub fn budget(info: &Info) -> MatcherConfig {
    let (bytes, envelopes) = if is_lossy(info) {
        (WAITING_BYTES, info.rx_attr.size.max(1))
    } else {
        (crate::settings::unexpected_bytes(), crate::settings::unexpected_messages())
    };
    MatcherConfig { bytes, envelopes, hash_seed: None }
}

impl<T: Transport> EndpointCore<T> {
    /// Whether an operation may be lost: messages may, but accesses to remote memory fail or wait as with other types.
    fn may_lose(&self, ticket: &CompletionInfo) -> bool {
        self.rx.lossy && !ticket.flags.intersects(CompletionFlags::RMA | CompletionFlags::ATOMIC)
    }

    /// Handles an operation for which the transport had no room. Returns whether it may be dropped.
    #[cold]
    pub fn drop_outgoing(&mut self, ticket: &CompletionInfo) -> bool {
        let lost = self.may_lose(ticket);
        if lost {
            let (tx, staging) = self.sender(ticket.at);
            tx.counts.dropped += 1;
            if ticket.signal {
                staging.credits[Credit::Transmit as usize] -= 1;
                staging.transmitted(success(ticket));
            }
        }
        lost
    }

    /// Handles a failed operation. Returns whether the failure is left unreported.
    #[cold]
    pub fn forgive(&mut self, op: &TxOp<T::Op>, errno: Errno) -> bool {
        let lost = self.may_lose(&op.ticket);
        if lost {
            tracing::debug!(target: "ofi::core::ep_data", %errno, "a datagram was lost");
            let (tx, staging) = self.sender(op.ticket.at);
            tx.counts.dropped += 1;
            match op.ticket.signal {
                true => staging.transmitted(success(&op.ticket)),
                false => staging.credits[Credit::Transmit as usize] += 1,
            }
        }
        lost
    }
}
