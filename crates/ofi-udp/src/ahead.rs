//! Payloads that are sent directly after their announcement, before the peer requests them.
//!
//! The announcement, the request and the payload take three one-way trips. If a receive was posted when the
//! announcement arrived, the receiver sets [`READY`](crate::command::READY) in its request. The sender then sends its
//! next lone message as a whole. If a receive matches, the parts go there as they arrive, and the receiver confirms the
//! message. Otherwise the receiver drops the parts, which then take no memory, and requests the payload once a receive
//! matches. That request has no [`READY`](crate::command::READY), so the sender waits for a request again.

use ofi_core::slots::SlotId;
use ofi_core::transport::record::{Broken, flag};
use ofi_core::transport::{Announced, Arrived, OutMessage, PeerId, Upcalls};
use ofi_rdm::{Flow, Sender};

use crate::Udp;
use crate::command::READY;
use crate::op::Token;
use crate::parts::Parts;
use crate::peer::Peer;
use crate::peer::ahead::Ahead;
use crate::peer::common::Common;

/// Maximum length in bytes of a message that leaves ahead of its request.
pub const MAX_AHEAD_LEN: usize = 256 << 10;
/// Distinguishes the token of a payload that leaves ahead from that of the same payload when it is requested. No table
/// of operations is that large.
const MARK: u64 = 1 << 30;

/// The token of operation `op`'s payload, ahead of its request.
pub fn token(op: u64) -> u64 {
    op | MARK
}

/// The operation that a token names, and whether the payload is ahead of its request.
pub fn operation(token: u64) -> (SlotId, bool) {
    (SlotId::from_wire(token & !MARK), token & MARK != 0)
}

impl Peer {
    /// Whether a long message is sent ahead of its request. With several messages in flight the round trips overlap,
    /// and requested parts are received in place, so they wait.
    pub fn goes_ahead(&self, out: &OutMessage<'_>) -> bool {
        self.peer_is_ready && !self.keeps && self.outstanding == 0 && out.len <= MAX_AHEAD_LEN
    }

    /// Takes the announcement of a message whose payload follows at once.
    pub fn expect_ahead<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        arrived: &Arrived,
        token: Token,
    ) -> Result<Flow, Broken> {
        if arrived.len == 0 || token.flags & flag::KEPT != 0 {
            return Err(Broken);
        }
        let into = match host.announce(arrived, token) {
            Announced::Pull(into) => host.receiving(into).map(|receiving| (into, receiving.len)),
            Announced::Kept => None,
            Announced::Stopped(_) => return Ok(Flow::Stop),
            Announced::Unwanted(token) => {
                Self::discard(sender, token);
                None
            }
        };
        if !self.expects() {
            common.changed.push(arrived.peer);
        }
        self.long().ahead = Some(Ahead { token, got: 0, len: arrived.len, into });
        Ok(Flow::Next)
    }

    /// Takes parts of such a payload. Returns whether it is complete.
    pub fn take_parts_ahead<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
        parts: &Parts<'_>,
    ) -> Result<bool, Broken> {
        let ahead = self.long().ahead.as_mut().ok_or(Broken)?;
        let is_next = ahead.is(parts.id) && parts.at == ahead.got as u64;
        if !is_next || parts.len > ahead.len - ahead.got {
            return Err(Broken);
        }
        if let Some((into, wanted)) = ahead.into
            && let Some(receiving) = host.receiving(into)
        {
            // SAFETY: the pieces are lent for this receive, and have the bytes that it takes.
            unsafe { parts.scatter(receiving.pieces, wanted) };
        }
        ahead.got += parts.len;
        if ahead.got < ahead.len {
            return Ok(false);
        }
        let (token, into) = (ahead.token, ahead.into);
        self.long().ahead = None;
        if !self.expects() {
            common.changed.push(peer);
        }
        if let Some((into, _)) = into {
            host.received(into, Ok(()));
            Self::done(sender, 0, token.op, Ok(()));
            common.may_answer = true;
        }
        Ok(true)
    }

    /// Records whether a request for a payload says that the peer had a receive when the announcement arrived.
    pub fn note_request(&mut self, flags: u8) {
        self.peer_is_ready = flags & READY != 0;
    }
}
