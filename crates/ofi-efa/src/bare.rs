//! Messages to peers with zero-copy receive: endpoints of libfabric 1.22 to 2.5 that were opened only for untagged,
//! unordered messages of one packet, without shared memory, under `FI_MR_LOCAL` (section 4.8 of the protocol).
//!
//! Such a peer names a second queue pair in its handshake (bit 7), and receives messages only there: each is one packet
//! without a header, with remote CQ data as immediate data. An endpoint that was opened in the same manner may have
//! such peers, so it sends no message before the peer's handshake arrives, as C's endpoints do.

use ofi_api::{Caps, Errno, Error, OpFlags, Result};
use ofi_core::transport::{OutMessage, Posted, Upcalls};

use crate::Efa;
use crate::common::Common;
use crate::options::Options;
use crate::peer::Peer;

/// Whether peers that were opened like this endpoint may use zero-copy receive. C has two more conditions, which are
/// unknown here: the order that the application requests, and `FI_MR_LOCAL`.
pub fn meets(caps: Caps, options: &Options, mtu: usize) -> bool {
    let is_short = options.longest.is_some_and(|longest| longest <= mtu);
    is_short && !caps.intersects(Caps::TAGGED | Caps::ATOMIC | Caps::DIRECTED_RECV)
}

fn refused(expected: String, found: String) -> Error {
    Error::wanted(
        Errno::EOPNOTSUPP,
        "a message to an endpoint of libfabric 1.22 to 2.5 that receives in place",
        expected,
        found,
        "open the peer with FI_TAGGED, or for longer messages",
    )
}

impl Peer {
    /// Sends a message to a peer with zero-copy receive, or fails if that is not possible yet. `None`: the peer
    /// receives messages with headers.
    pub fn send_bare<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Option<Result<Posted>> {
        if self.bare.is_none() {
            if !common.meets_bare || self.features.is_some() || self.dead.is_some() {
                return None;
            }
            self.ask(common, out.peer);
            return Some(Err(Error::AGAIN));
        }
        Some(self.send_to_bare(common, host, out))
    }

    fn send_to_bare<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
        if out.tagged {
            return Err(refused("one without a tag".into(), format!("tag {:#x}", out.tag)));
        }
        if out.len > common.adapter.mtu {
            return Err(refused(format!("{} bytes at most", common.adapter.mtu), out.len.to_string()));
        }
        let data = match out.flags.contains(OpFlags::REMOTE_CQ_DATA).then(|| u32::try_from(out.data)) {
            None => None,
            Some(Ok(data)) => Some(data),
            Some(Err(_)) => {
                return Err(refused("remote CQ data of 32 bits".into(), format!("{:#x}", out.data)));
            }
        };
        if !self.may_send_now() {
            return Err(Error::AGAIN);
        }
        self.send_slot(common, host, out, data)
    }
}
