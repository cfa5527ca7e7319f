//! Accesses to a peer's memory that the devices execute without the owner's program.
//!
//! In a domain with `FI_MR_PROV_KEY` and `FI_MR_VIRT_ADDR`, the key of a registration is the device's 32-bit key, as
//! with C libfabric. The device accesses the memory of a peer that announces support (bits 0 and 5 of its handshake)
//! and, if it is of this library, device keys for its registrations (`Features::OWN_KEYS`). All other accesses go
//! through the owner (`rma.rs`).
//!
//! An access that the device refuses is sent to the owner if it is an endpoint of this library, which knows the reason,
//! or counts the access.
//!
//! The memory of an access belongs to the device until it has completed each request, even if the peer is lost. So a
//! peer's state waits for that before its operations end (`Peer::is_busy`).

use ibv::transfer::{Source, plan};
use ofi_api::{Errno, OpFlags, Piece, Result};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{OutRma, Payload, PeerId, Posted, RemoteData, RxName, Upcalls};

use crate::Efa;
use crate::adapter::RdmaRequest;
use crate::common::Common;
use crate::moving::{End, Incoming, Target, Transfer, iovs};
use crate::op::{Native, Op, Work};
use crate::peer::{Accesses, Broken, Peer};
use crate::srd::{Status, To};
use crate::wire::{Features, Handshake};

impl Peer {
    /// Processes the peer's handshake.
    ///
    /// # Errors
    /// If the peer names an impossible queue pair for messages, or none.
    pub fn learn(&mut self, common: &mut Common, peer: PeerId, shake: &Handshake) -> Result<(), Broken> {
        if self.features.is_none() {
            self.features = Some(shake.features);
            self.resolve(common, peer);
            self.decide(common);
            let by = |device| if device { "the device" } else { "the peer's process (in messages)" };
            tracing::info!(
                target: "ofi::efa::ep_ctrl",
                peer = %crate::address::named(&self.address),
                reads_by = by(self.native.read), writes_by = by(self.native.write),
                own_protocol = shake.features.has(Features::OWN),
                "met a peer"
            );
            tracing::debug!(
                target: "ofi::efa::ep_data",
                peer = %crate::address::named(&self.address), protocol = "eager", packet = common.adapter.mtu,
                medium_up_to = common.settings.max_medium,
                "chose the protocol of messages to a peer that fit into a packet; longer ones take several packets or \
                 a rendezvous"
            );
            if shake.features.has(Features::USER_RECV_QP) {
                let (qpn, qkey) = shake.user_recv_qp.ok_or(Broken)?;
                let qpn = u16::try_from(qpn).map_err(|_| Broken)?;
                self.bare = Some(To { qpn, qkey, ..self.to });
            }
        }
        Ok(())
    }

    /// Decides which accesses to the peer's memory this end's device executes.
    pub fn decide(&mut self, common: &Common) {
        let (read, write) = (common.rdma.read, common.rdma.write);
        let lets = |bit| {
            let keys = |features: Features| !features.has(Features::OWN) || features.has(Features::OWN_KEYS);
            common.direct || self.features.is_some_and(|features| features.has(bit) && keys(features))
        };
        let (read, write) = (read && lets(Features::RDMA_READ), write && lets(Features::RDMA_WRITE));
        self.native = Accesses { read, write };
    }

    /// Posts an access to the device, if the device can execute it.
    pub fn native<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutRma<'_>,
    ) -> Result<Option<Posted>> {
        let short = out.len <= common.adapter.mtu;
        let injected = out.flags.contains(OpFlags::INJECT);
        // A fence raises the completion level of earlier messages, which only the owner can report.
        let fenced = out.flags.contains(OpFlags::FENCE);
        let nothing = out.len == 0 && !common.direct;
        let can = if out.write { self.native.write } else { self.native.read };
        if nothing || fenced || (injected && !short) || !can {
            return Ok(None);
        }
        let told = out.remote_data();
        let data = match told.map(|told| u32::try_from(told.value)) {
            None => None,
            // Requests arrive in any order, so only one may carry data.
            Some(Ok(data)) if self.tells(common, out) => Some(data),
            Some(_) => return Ok(None),
        };
        if let ([piece], [remote]) = (out.pieces, out.remote)
            && out.len <= common.rdma.longest
        {
            return self.access_alone(common, host, out, (piece, remote), data);
        }
        if let ([], [remote]) = (out.pieces, out.remote) {
            return self.access_alone(
                common,
                host,
                out,
                (&Piece::new(std::ptr::null_mut(), 0), remote),
                data,
            );
        }
        let sources = out.remote.iter().map(|piece| {
            let rkey = u32::try_from(piece.key).ok()?;
            piece.addr.checked_add(piece.len as u64)?;
            Some(Source { addr: piece.addr, len: piece.len, rkey })
        });
        let Some(sources) = sources.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let (mut runs, mut regions, mut slot) = (Vec::new(), Vec::new(), None);
        if short {
            common.domain.transport.refuse_dmabufs(out.pieces)?;
            let taken = self.borrow_slot(common)?;
            let segment = common.adapter.lend(taken, out.len);
            if out.write {
                // SAFETY: the pieces are lent during the call; a slot has room for a packet.
                unsafe { copy::gather(out.pieces, 0, segment.addr, out.len) };
            }
            runs.push((segment.addr, out.len, segment.lkey));
            slot = Some(taken);
        } else {
            for (addr, len) in copy::runs(out.pieces, 0, out.len) {
                // SAFETY: the memory is lent until the operation ends, which it does after the device's requests
                // (`Peer::is_busy`, `settle_receives`).
                match unsafe { common.domain.transport.local(addr, len) } {
                    Ok(region) => {
                        runs.push((addr, len, region.lkey()));
                        regions.push(region);
                    }
                    Err(error) => {
                        tracing::debug!(target: "ofi::efa::ep_data", %error, "an access goes through the peer");
                        return Ok(None);
                    }
                }
            }
        }
        let todo = plan(out.write, &runs, &sources, common.rdma.longest);
        let native = Native {
            write: out.write,
            pieces: if injected { Box::default() } else { out.pieces.into() },
            remote: out.remote.into(),
            len: out.len,
            told,
        };
        let op = Op { work: Work::Native(native), unacked: 0, making: false, awaits: true, id: 0 };
        self.outstanding += 1;
        let end = End::Access(host.open(out.peer, out.ticket, op));
        let (peer, grants) = (out.peer, Vec::new());
        self.transfer(
            common,
            Transfer { peer, end, todo, posted: 0, failed: None, data, slot, regions, grants },
        );
        Ok(Some(Posted::Pending))
    }

    /// Whether a write can carry data to the peer: in one request, and with the same limits at both ends.
    fn tells(&self, common: &Common, out: &OutRma<'_>) -> bool {
        let alike = common.direct
            || self.features.is_some_and(|features| {
                features.has(Features::UNSOLICITED_WRITE_RECV) == common.rdma.unsolicited
            });
        let short = out.len <= common.adapter.mtu;
        let one = out.remote.len() == 1 && (short || out.pieces.len() == 1) && out.len <= common.rdma.longest;
        alike && one && out.rx == RxName::ANY
    }

    /// Begins a transfer.
    pub fn transfer(&mut self, common: &mut Common, transfer: Transfer) {
        let peer = transfer.peer;
        let id = common.transfers.insert(transfer);
        self.transfers += 1;
        self.accessing.push_back(id);
        if !self.flush_accesses(common) {
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Whether the device uses memory for this peer.
    pub fn is_busy(&self) -> bool {
        self.transfers > 0
    }

    /// Posts requests while there is room. `false`: requests are still queued that wait neither for the peer nor for
    /// the end of one of its requests.
    pub fn flush_accesses(&mut self, common: &mut Common) -> bool {
        if !self.may_flush() {
            return true;
        }
        if !self.flush_singles(common) {
            return self.requests > 0;
        }
        while let Some(&id) = self.accessing.front() {
            let Some(transfer) = common.transfers.get_mut(id) else {
                self.accessing.pop_front();
                continue;
            };
            while let Some(&step) = transfer.todo.front() {
                if !common.adapter.has_room(self.requests) {
                    return self.requests > 0;
                }
                self.requests += 1;
                let data = transfer.data.filter(|_| transfer.todo.len() == 1);
                let request = RdmaRequest { peer: transfer.peer, transfer: id, step, data };
                // SAFETY: the memory is registered, because the transfer holds the registration, and lent until the
                // request has ended.
                unsafe { common.adapter.access(self.to, request) };
                transfer.todo.pop_front();
                transfer.posted += 1;
                match step.write {
                    true => common.counts.native_writes += 1,
                    false => common.counts.native_reads += 1,
                }
            }
            self.accessing.pop_front();
        }
        true
    }

    /// Handles the completion of a request.
    pub fn accessed<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        request: RdmaRequest,
        status: Status,
    ) {
        let (peer, id) = (request.peer, request.transfer);
        self.requests = self.requests.saturating_sub(1);
        let Some(transfer) = common.transfers.get_mut(id) else { return };
        transfer.posted -= 1;
        let is_stopped = transfer.failed.is_some();
        let again = status == Status::NotReady && !is_stopped && self.ending.is_none() && self.dead.is_none();
        match status {
            Status::Done => {}
            Status::NotReady if is_stopped => {}
            // On some devices a write with data consumes a receive.
            Status::NotReady if again => {
                transfer.todo.push_back(request.step);
                self.accessing.push_back(id);
            }
            status => {
                transfer.failed.get_or_insert(status);
                // This end's queue pair has failed, and nothing reaches any peer.
                if status == Status::Flushed && !common.direct {
                    self.lost();
                }
            }
        }
        if transfer.failed.is_some() || self.ending.is_some() || self.dead.is_some() {
            transfer.todo.clear();
        }
        if transfer.posted == 0
            && transfer.todo.is_empty()
            && let Some(transfer) = common.transfers.remove(id)
        {
            self.transfers -= 1;
            self.transferred(common, host, transfer);
        }
        if again {
            self.rest(common, peer);
        }
        let waits = !self.singles.is_empty() || !self.accessing.is_empty();
        if self.ending.is_some() || self.dead.is_some() || waits {
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Discards the unposted requests of all transfers: the peer is lost.
    pub fn stop_accesses<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId) {
        self.accessing.clear();
        self.stop_singles(common, host, peer);
        for id in common.transfers.ids(|transfer| transfer.peer == peer) {
            self.stop_transfer(common, host, id);
        }
    }

    /// Ends all transfers and accesses of the peer: the device is lost, and completes no request.
    pub fn drop_transfers<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId) {
        self.stop_accesses(common, host, peer);
        for id in common.transfers.ids(|transfer| transfer.peer == peer) {
            if let Some(transfer) = common.transfers.remove(id) {
                self.transferred(common, host, transfer);
            }
        }
        // The operations that are one request end with the peer.
        (self.transfers, self.requests) = (0, 0);
    }

    /// Discards the unposted requests of a transfer. It ends at once if the device has none of its requests.
    pub fn stop_transfer<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, id: SlotId) {
        let Some(transfer) = common.transfers.get_mut(id) else { return };
        transfer.failed.get_or_insert(Status::Flushed);
        transfer.todo.clear();
        if transfer.posted == 0
            && let Some(transfer) = common.transfers.remove(id)
        {
            self.transfers -= 1;
            self.transferred(common, host, transfer);
        }
    }

    /// Ends a transfer whose requests have all completed.
    fn transferred<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, transfer: Transfer) {
        let Transfer { peer, end, failed, slot, regions, grants, .. } = transfer;
        // Before the application gets its memory back.
        drop((regions, grants));
        match end {
            End::Payload(incoming) => self.fetched(common, host, incoming, failed),
            End::Access(id) => self.access_ended(common, host, peer, id, failed, slot),
        }
        if let Some(slot) = slot {
            self.return_slot(common, slot);
        }
    }

    fn access_ended<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        id: SlotId,
        failed: Option<Status>,
        slot: Option<u32>,
    ) {
        let Some(Op { work: Work::Native(native), .. }) = host.op(peer, id) else {
            // The context of the operation was closed.
            self.outstanding = self.outstanding.saturating_sub(1);
            return;
        };
        let len = native.len;
        let from = slot.map(|slot| common.adapter.outgoing(slot));
        let errno = match failed {
            None => {
                if let Some(from) = from
                    && !native.write
                {
                    // SAFETY: the device has read `len` bytes into the slot; the pieces are lent until the read ends.
                    unsafe { copy::scatter(from, len, &native.pieces, 0) };
                }
                return self.finish(common, host, peer, id, Ok(()));
            }
            Some(Status::BadAddress) if self.ending.is_none() && self.is_own() == Some(true) => {
                let bytes = from.filter(|_| native.write).map(|from| {
                    let mut bytes = vec![0u8; len];
                    // SAFETY: both have `len` bytes; the slot belongs to this access.
                    unsafe { copy::bytes(from, bytes.as_mut_ptr(), len) };
                    Payload::owned(bytes.into())
                });
                let native = Native {
                    pieces: std::mem::take(&mut native.pieces),
                    remote: native.remote.clone(),
                    ..*native
                };
                return self.ask_owner(common, host, peer, id, native, bytes);
            }
            Some(status) => self.failure(status),
        };
        self.finish(common, host, peer, id, Err(errno));
    }

    /// The error of an operation whose request ended with this status.
    pub fn failure(&self, status: Status) -> Errno {
        match status {
            Status::BadAddress => Errno::EKEYREJECTED,
            Status::UnknownPeer => Errno::ENOTCONN, // as C's provider reports it
            Status::Refused(errno) => errno,
            Status::NoDestination => Errno::ECONNREFUSED,
            Status::Unresponsive | Status::Flushed => Errno::ECONNRESET,
            _ if self.ending.is_some() || self.dead.is_some() => Errno::ECONNRESET,
            _ => Errno::EIO,
        }
    }

    /// Sends the owner an access that its device refused.
    pub fn ask_owner<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        id: SlotId,
        native: Native,
        bytes: Option<Payload>,
    ) {
        let Native { write, pieces, remote, len, told } = native;
        common.counts.native_refused += 1;
        if let Err(error) = common.domain.transport.refuse_dmabufs(&pieces) {
            return self.finish(common, host, peer, id, Err(error.errno()));
        }
        let asked = match iovs(&remote) {
            Some(remote) if write => {
                // SAFETY: the core lends the pieces of the operations that it posts, and this one has not ended.
                let payload = bytes.unwrap_or_else(|| unsafe { Payload::lent(pieces) });
                self.ask_write(common, host, (peer, id), payload, len, remote, told)
            }
            Some(remote) => self.ask_read(common, host, (peer, id), pieces, len, remote),
            None => Err(Errno::EINVAL),
        };
        if let Err(errno) = asked {
            self.finish(common, host, peer, id, Err(errno));
        }
    }

    /// Handles a write with data by the peer's device.
    pub fn told<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        data: u32,
        len: usize,
    ) {
        let data = RemoteData { value: data.into(), rx: RxName::ANY };
        if !host.remote_write(peer, data, len) {
            let target = Target::Region { remote: Vec::new(), data: Some(data) };
            self.finishing.push(Incoming { target, got: len, ..Incoming::new(peer, len, 0) });
            common.hold(&mut self.is_dirty, peer);
        }
    }
}

/// A payload's memory at its sender, from byte `skip` on. `None` for keys and addresses that no device has.
pub fn sources(iovs: &crate::wire::Iovs, mut skip: usize) -> Option<Vec<Source>> {
    let mut all = Vec::new();
    for iov in iovs.iter() {
        let (len, rkey) = (iov.len as usize, u32::try_from(iov.key).ok()?);
        let here = skip.min(len);
        skip -= here;
        iov.addr.checked_add(iov.len)?;
        all.push(Source { addr: iov.addr + here as u64, len: len - here, rkey });
    }
    Some(all)
}
