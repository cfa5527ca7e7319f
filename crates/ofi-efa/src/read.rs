//! Payloads that the receiver reads: long-read and runt-read messages, long-read writes, and READ_NACK if it cannot
//! read them (sections 4.1, 4.5 and 4.7 of the protocol).

use ibv::transfer::plan;
use ofi_api::{Errno, MrAccess};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{OutMessage, PeerId, Upcalls};

use crate::Efa;
use crate::adapter::Mark;
use crate::common::{Common, Entry, accessor};
use crate::domain::Local;
use crate::moving::{End, Incoming, Target, Transfer};
use crate::native::sources;
use crate::op::{Lent, Work};
use crate::peer::{Broken, Peer};
use crate::srd::Status;
use crate::wire::{Abandoned, Control, Features, Form, Iov, Iovs, Message};

impl Peer {
    /// Exposes a message's memory for the receiver to read, if the receiver can and the message is long enough.
    pub fn lend(&self, common: &Common, out: &OutMessage<'_>, injected: bool) -> Option<(Iovs, Vec<Local>)> {
        let can = self.features.is_some_and(|features| features.has(Features::RDMA_READ));
        if !can || !common.rdma.read || injected || out.len < common.settings.min_read_message.max(1) {
            return None;
        }
        let mut regions = Vec::new();
        let mut lent = Vec::new();
        for (addr, len) in copy::runs(out.pieces, 0, out.len) {
            if lent.len() == Iovs::MAX_PIECES {
                return None;
            }
            // SAFETY: the memory is lent until the operation ends, and the registration is released before that.
            match unsafe { common.domain.transport.exposed(addr, len) } {
                Ok(region) => {
                    lent.push(Iov { addr: addr as u64, len: len as u64, key: region.rkey().into() });
                    regions.push(region);
                }
                Err(error) => {
                    tracing::debug!(target: "ofi::efa::ep_data", %error, "a message is sent in packets");
                    return None;
                }
            }
        }
        Iovs::new(lent).map(|iovs| (iovs, regions))
    }

    /// Number of runt bytes of such a message, which are sent ahead: as many as the limit of runt bytes in flight to
    /// the peer allows, if the peer understands them. C's endpoints report the end of their read, which may be before
    /// the packets arrive, so a message that must be confirmed is read from its first byte on.
    pub fn runt(&self, common: &Common, len: usize, confirm: bool) -> usize {
        let understands = self.features.is_some_and(|features| features.has(Features::RUNT));
        let early = confirm && self.is_own() != Some(true);
        let most = if understands && !early { common.settings.runt_size } else { 0 };
        // Leaves at least one byte to read.
        most.saturating_sub(self.runts).min(len - 1)
    }

    /// Reads the part of a payload that has not arrived.
    pub fn fetch<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        mut incoming: Incoming,
        from: &Iovs,
    ) {
        let peer = incoming.peer;
        incoming.is_read = true;
        let got = incoming.got;
        let mut grants = Vec::new();
        let mut pieces = Vec::new();
        match &incoming.target {
            Target::Receive(into) => {
                // A receive that is shorter, or has ended, receives less.
                if let Some(receiving) = host.receiving(*into) {
                    pieces.extend(copy::runs(receiving.pieces, got, receiving.len.saturating_sub(got)));
                }
            }
            Target::Region { remote, .. } => {
                let rest = (got, incoming.len - got);
                let regions = &common.domain.regions;
                if regions.is_of_device(remote) {
                    // Packets are copied by its driver.
                    return self.nack(common, host, incoming);
                }
                match regions.grants_as(accessor(host, peer), remote, rest, MrAccess::REMOTE_WRITE) {
                    Ok(granted) => grants = granted,
                    Err(errno) => return self.refuse(common, peer, incoming.send_id, errno),
                }
                let granted = grants.iter().flat_map(|grant| grant.pieces());
                pieces.extend(granted.map(|piece| (piece.addr, piece.len)));
            }
            Target::Nowhere => {}
        }
        if pieces.is_empty() {
            incoming.got = incoming.len;
            return self.complete(common, host, incoming);
        }
        let (mut local, mut regions) = (Vec::new(), Vec::new());
        for (addr, len) in pieces {
            // SAFETY: the memory is lent until the receive ends, which it does after the device's requests
            // (`Peer::is_busy`, `settle_receives`); the grants hold registered memory.
            match unsafe { common.domain.transport.local(addr, len) } {
                Ok(region) => {
                    local.push((addr, len, region.lkey()));
                    regions.push(region);
                }
                Err(error) => {
                    tracing::debug!(target: "ofi::efa::ep_data", %error, "a payload cannot be read");
                    return self.nack(common, host, incoming);
                }
            }
        }
        let Some(sources) = sources(from, got).filter(|_| common.rdma.read) else {
            return self.nack(common, host, incoming);
        };
        let todo = plan(false, &local, &sources, common.rdma.longest);
        let end = End::Payload(incoming);
        let transfer =
            Transfer { peer, end, todo, posted: 0, failed: None, data: None, slot: None, regions, grants };
        self.transfer(common, transfer);
    }

    /// Handles the end of the device's read of a payload, or its failure.
    pub fn fetched<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        mut incoming: Incoming,
        failed: Option<Status>,
    ) {
        match failed {
            None => {
                incoming.got = incoming.len;
                common.counts.fetched += 1;
                self.complete(common, host, incoming);
            }
            Some(_) if self.ending.is_some() || self.dead.is_some() => {
                if let Some(into) = incoming.receive() {
                    host.received(into, Err(self.ending.or(self.dead).unwrap_or(Errno::ECONNRESET)));
                }
            }
            // The receive was discarded with its context, so the payload is unwanted.
            Some(_) if incoming.receive().is_some_and(|into| host.receiving(into).is_none()) => {
                let send_id = incoming.send_id;
                self.control(common, incoming.peer, Control::EndOfRead { send_id, recv_id: 0 });
            }
            Some(status) => {
                tracing::debug!(target: "ofi::efa::ep_data", ?status, "a payload could not be read");
                self.nack(common, host, incoming);
            }
        }
    }

    /// Asks the sender of an unreadable payload to send it.
    fn nack<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, incoming: Incoming) {
        let (peer, send_id) = (incoming.peer, incoming.send_id);
        let understands =
            |features: Features| features.has(Features::READ_NACK) || features.has(Features::OWN);
        // A peer that is still unknown is recent enough to understand the request.
        if !self.features.is_none_or(understands) {
            // It would take the end of the read for the end of its write.
            if let Target::Region { .. } = incoming.target {
                return self.refuse(common, peer, send_id, Errno::EIO);
            }
            if let Some(into) = incoming.receive() {
                host.received(into, Err(Errno::EIO));
            }
            return self.control(common, peer, Control::EndOfRead { send_id, recv_id: 0 });
        }
        common.counts.nacks += 1;
        let mut recv_id = 0;
        // The sender repeats the destination of a write.
        if let Target::Receive(_) | Target::Nowhere = incoming.target {
            let msg_id = incoming.msg_id;
            let Some(id) = common.ids.insert(Entry::Incoming(incoming)) else {
                self.ending.get_or_insert(Errno::ENOMEM);
                return common.hold(&mut self.is_dirty, peer);
            };
            recv_id = id;
            self.nacked.insert(msg_id, id);
        }
        self.control(common, peer, Control::ReadNack { send_id, recv_id });
    }

    /// Processes the request of a message that this end could not read, and that its sender now sends. `false`: there
    /// is no such message.
    pub fn take_nacked(
        &mut self,
        common: &mut Common,
        message: &Message<'_>,
        len: usize,
    ) -> Result<bool, Broken> {
        let Some(id) = self.nacked.remove(&message.msg_id) else { return Ok(false) };
        let Some(Entry::Incoming(mut incoming)) = common.ids.remove(id) else { return Ok(false) };
        let fits = incoming.len == len && message.form.payload().is_empty();
        incoming.is_read = false;
        incoming.send_id = message.send_id;
        incoming.receipt = message.confirm.then_some(message.msg_id);
        self.clear_new(common, incoming);
        if fits { Ok(true) } else { Err(Broken) }
    }

    /// Handles the peer's report that it has read a payload.
    pub fn take_end_of_read<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        send_id: u32,
    ) -> Result<(), Broken> {
        let Some(id) = self.operation(common, peer, send_id) else { return Ok(()) };
        let Some(op) = host.op(peer, id) else { return Ok(()) };
        if !matches!(op.work, Work::Lent(_)) {
            // A repeated report, or a wrong one.
            common.counts.stale += 1;
            return Ok(());
        }
        let Work::Lent(lent) = std::mem::replace(&mut op.work, Work::Packed) else { return Err(Broken) };
        let Lent { payload, runt, regions, .. } = *lent;
        self.runts = self.runts.saturating_sub(runt);
        // Before the application gets its memory back.
        drop(regions);
        // C's endpoints read when the first packet has arrived: the remaining runt packets still follow.
        op.work = Work::Out { payload, len: runt, done: runt };
        op.awaits = false;
        self.settle(common, host, peer, id);
        Ok(())
    }

    /// Handles the peer's report that it cannot read a payload: this end sends it.
    pub fn take_nack<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        (send_id, recv_id): (u32, u32),
    ) -> Result<(), Broken> {
        let found = self.operation(common, peer, send_id);
        let op = found.and_then(|id| host.op(peer, id).map(|op| (id, op)));
        let Some((id, op)) = op else {
            // The operation has ended meanwhile.
            if self.features.is_some_and(|features| features.has(Features::PEER_ERROR)) && recv_id != 0 {
                let what = Abandoned::Operation(recv_id);
                let errno = Errno::ECANCELED.get() as u32;
                self.control(common, peer, Control::PeerError { what, errno });
            }
            return Ok(());
        };
        if !matches!(op.work, Work::Lent(_)) {
            // A repeated request, or a wrong one.
            common.counts.stale += 1;
            return Ok(());
        }
        let Work::Lent(lent) = std::mem::replace(&mut op.work, Work::Packed) else { return Err(Broken) };
        let Lent { payload, len, runt, mut message, regions } = *lent;
        tracing::debug!(target: "ofi::efa::ep_data", len, "the peer cannot read a payload, which is sent");
        drop(regions);
        self.runts = self.runts.saturating_sub(runt);
        op.work = Work::Out { payload, len, done: runt };
        (op.making, op.awaits) = (true, message.confirm);
        op.unacked += 1;
        let credits = common.settings.min_credits as u32;
        message.form = Form::LongCts { len, credits, payload: &[], nacked: true };
        let header = message.encode(self.origin(common));
        self.packet(common, peer, &header, 0, Mark::Op(id), |_| {});
        Ok(())
    }

    /// Stores the state of a message that its receiver reads in its operation.
    pub fn keep_lent<H: Upcalls<Efa>>(host: &mut H, peer: PeerId, id: SlotId, lent: Lent) {
        if let Some(op) = host.op(peer, id) {
            let runt = lent.runt;
            op.work = Work::Lent(Box::new(lent));
            (op.unacked, op.making, op.awaits) = (u32::from(runt == 0), runt > 0, true);
        }
    }
}
