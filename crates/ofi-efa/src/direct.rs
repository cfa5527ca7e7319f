//! Fabric `efa-direct`: one operation is one request of the device, without headers. A message is one packet, and
//! messages are unordered. The device executes reads and writes, under its own keys. Any program that speaks the
//! device's protocol can be a peer.

use std::collections::VecDeque;

use ofi_api::{Errno, Error, OpFlags, Result};
use ofi_core::copy;
use ofi_core::hmem::Dmabufs;
use ofi_core::transport::{Arrived, Delivery, OutMessage, OutRma, PeerId, Posted, RxName, Upcalls};

use crate::Efa;
use crate::adapter::{Mark, Packet};
use crate::common::Common;
use crate::op::Op;
use crate::peer::Peer;

/// The messages that the device reads from dma-bufs of this end.
const ALONE: &str = "a message of one piece, longer than the device's inline data, that is not injected";

/// The error for an operation that the fabric lacks.
pub fn refused(what: &str) -> Error {
    Error::wanted(
        Errno::EOPNOTSUPP,
        "an operation over fabric efa-direct",
        "a message, or a read or write of remote memory",
        what,
        "open an info of fabric efa",
    )
}

/// The error for an access that the device cannot do in one request.
pub fn unfit(common: &Common, out: &OutRma<'_>) -> Error {
    let longest = common.rdma.longest;
    Error::wanted(
        Errno::EINVAL,
        "an access over fabric efa-direct",
        format!(
            "at most {longest} bytes of one piece at either end (injected: {}), under a key of 32 bits",
            common.adapter.mtu
        ),
        format!("{} bytes, {} and {} pieces", out.len, out.pieces.len(), out.remote.len()),
        "split it, or open an info of fabric efa",
    )
}

impl Peer {
    /// Sends a message in one request.
    pub fn send_direct<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
        let (peer, len, most) = (out.peer, out.len, common.adapter.mtu);
        if out.tagged {
            return Err(refused("a tagged message"));
        }
        if len > most {
            let advice = "send less, or open an info of fabric efa";
            return Err(Error::wanted(
                Errno::EMSGSIZE,
                "a message over fabric efa-direct",
                format!("{most} bytes at most"),
                len.to_string(),
                advice,
            ));
        }
        if !self.is_free() {
            return Err(self.dead.map_or(Error::AGAIN, Error::new));
        }
        // The device carries 32 bits, as the domain declares (`cq_data_size`).
        let data = out.flags.contains(OpFlags::REMOTE_CQ_DATA).then_some(out.data as u32);
        let injected = out.flags.contains(OpFlags::INJECT);
        if let [piece] = out.pieces
            && len > common.adapter.inline()
            && !injected
        {
            if self.send_alone(common, host, (peer, out.ticket), piece, data) {
                common.counts.eager += 1;
                return Ok(Posted::Pending);
            }
            // A full queue is no reason to copy.
            if common.domain.transport.dmabufs.touch(out.pieces) {
                let full = !self.has_room(common);
                return Err(if full { common.adapter.full() } else { Dmabufs::refusal(ALONE) });
            }
        }
        self.send_slot(common, host, out, data)
    }

    /// Copies a message into a slot and sends it without a header: on this fabric, or to a peer with zero-copy receive
    /// ([`crate::bare`]).
    pub fn send_slot<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
        data: Option<u32>,
    ) -> Result<Posted> {
        let (peer, len, bare) = (out.peer, out.len, self.bare.is_some());
        let slot = self.take_slot(common).ok_or_else(|| common.adapter.full())?;
        common.counts.eager += 1;
        // SAFETY: the pieces are lent, and a slot has room for a packet.
        unsafe { copy::gather(out.pieces, 0, common.adapter.outgoing(slot), len) };
        let detached = out.flags.intersects(OpFlags::INJECT | OpFlags::INJECT_COMPLETE)
            && !out.flags.contains(OpFlags::TRANSMIT_COMPLETE);
        // A message that may be given up is reported as sent only when its outcome is known.
        let mark = if detached && !common.gives_up && self.dead.is_none() {
            self.detached += 1;
            Mark::Detached
        } else {
            self.outstanding += 1;
            Mark::Op(host.open(peer, out.ticket, Op::packed(false)))
        };
        self.post(common, Packet { peer, slot, len, data, mark, bare, is_former: false, number: 0 });
        Ok(if mark == Mark::Detached { Posted::Done } else { Posted::Pending })
    }
}

/// Maximum number of held payload bytes. Above it, receives are not reposted, so the device answers senders with
/// "receiver not ready".
const MAX_HELD_BYTES: usize = 1 << 20;

/// Messages that the core has no room for, in order of arrival.
#[derive(Default)]
pub struct RxBacklog {
    messages: VecDeque<(PeerId, Box<[u8]>, Option<u32>)>,
    bytes: usize,
    /// Receives that are not reposted.
    slots: Vec<u32>,
}

impl RxBacklog {
    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Passes a message to the core, or holds it.
    pub fn take<H: Upcalls<Efa>>(
        &mut self,
        host: &mut H,
        common: &mut Common,
        peer: PeerId,
        bytes: &[u8],
        data: Option<u32>,
    ) {
        if !self.is_empty() || deliver(host, peer, bytes, data) == Delivery::Stopped {
            common.counts.stalls += 1;
            self.bytes += bytes.len();
            self.messages.push_back((peer, bytes.into(), data));
        }
    }

    /// Reposts a receive, now or when there is room.
    pub fn give_back(&mut self, common: &mut Common, slot: u32) {
        match self.bytes > MAX_HELD_BYTES {
            true => self.slots.push(slot),
            false => common.adapter.receive(slot),
        }
    }

    /// Offers held messages to the core again.
    pub fn offer<H: Upcalls<Efa>>(&mut self, host: &mut H, common: &mut Common) {
        while let Some((peer, bytes, data)) = self.messages.front()
            && host.hungry()
            && deliver(host, *peer, bytes, *data) != Delivery::Stopped
        {
            self.bytes -= bytes.len();
            self.messages.pop_front();
        }
        if self.bytes <= MAX_HELD_BYTES {
            for slot in self.slots.drain(..) {
                common.adapter.receive(slot);
            }
        }
    }
}

fn deliver<H: Upcalls<Efa>>(host: &mut H, peer: PeerId, bytes: &[u8], data: Option<u32>) -> Delivery {
    let arrived = Arrived {
        peer,
        rx: RxName::ANY,
        tagged: false,
        has_data: data.is_some(),
        tag: 0,
        data: data.unwrap_or(0).into(),
        len: bytes.len(),
    };
    // SAFETY: the bytes are readable during the call.
    unsafe { host.deliver(&arrived, bytes.as_ptr()) }
}
