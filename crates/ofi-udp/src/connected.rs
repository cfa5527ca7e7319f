//! The additional state of a connected endpoint (`FI_EP_MSG`): connection management packets, which are ordinary
//! records, and the restriction to one peer.

use ofi_api::Info;
use ofi_core::transport::MAX_PACKET;
use ofi_core::transport::record::Broken;
use ofi_rdm::{Flow, Instant, Lost};

use crate::command::kind;
use crate::probe::Probe;

/// Maximum number of unprocessed packets. Only a hostile peer sends more.
const PACKETS: usize = 64;
/// The mark of packets of connection management.
pub const CONNECTION: u64 = u64::MAX - 1;

/// The state of a connected endpoint beyond that of its peers. Peers are identified by their numbers in the protocol.
#[derive(Default)]
pub struct Connected {
    /// Peer 0 is the one peer.
    pub joined: bool,
    /// The connection is over.
    pub parted: bool,
    /// When this end stops resending the packets that it sent before the shutdown.
    pub closing: Option<Instant>,
    pub packets: Vec<(u32, Vec<u8>)>,
    /// The receiver of each packet of this end that is not acknowledged.
    pub sent: Vec<u32>,
    pub lost: Vec<(u32, Lost)>,
    /// Checks whether the other end exists.
    pub probe: Option<Probe>,
}

impl Connected {
    /// Processes a command; `None` if it is not specific to connections.
    pub fn take(&mut self, peer: u32, command: u8, body: &[u8]) -> Option<Result<Flow, Broken>> {
        if command == kind::CONNECTION {
            if body.len() > MAX_PACKET || self.packets.len() >= PACKETS {
                return Some(Err(Broken));
            }
            self.packets.push((peer, body.to_vec()));
            return Some(Ok(Flow::Next));
        }
        if self.is_open_to(peer) {
            return None;
        }
        Some(if self.parted && peer == 0 { Ok(Flow::Next) } else { Err(Broken) })
    }

    /// Whether messages may come from `peer`.
    pub fn is_open_to(&self, peer: u32) -> bool {
        self.joined && !self.parted && peer == 0
    }

    /// A session is over.
    pub fn lost(&mut self, peer: u32, reason: Lost) {
        self.sent.retain(|&other| other != peer);
        self.lost.push((peer, reason));
    }

    /// A packet has arrived at the peer.
    pub fn arrived(&mut self, peer: u32) {
        if let Some(at) = self.sent.iter().position(|&other| other == peer) {
            self.sent.swap_remove(at);
        }
    }

    /// Whether all packets have arrived, or are lost.
    pub fn is_settled(&self) -> bool {
        self.sent.is_empty() && self.closing.is_none()
    }

    /// The time of the next check.
    pub fn due(&self) -> Option<Instant> {
        let waits = (!self.packets.is_empty() || !self.lost.is_empty()).then(Instant::default);
        let probe = self.probe.as_ref().map(|probe| probe.next);
        [waits, probe, self.closing].into_iter().flatten().min()
    }
}

/// Whether an info's endpoints are connected.
pub fn is_connected(info: &Info) -> bool {
    info.ep_attr.ep_type == ofi_api::EpType::Msg
}
