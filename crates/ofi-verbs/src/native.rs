//! Accesses to a peer's memory that the device executes without the owner's program.
//!
//! The owner executes the first access to a registration (`rma.rs`) and checks key, bounds and rights. It then sends
//! the device's key of the whole registration, under these conditions: the library chose the key, the region has no
//! counter and is open to all peers, the endpoint does not report accesses (`FI_RMA_EVENT`), and it serves every right
//! of the region. From then on the accessing end checks bounds and rights, and its device reads and writes. An access
//! that fails the check is sent to the owner, which reports the reason.
//!
//! When a registration is closed, the device deregisters it, and the owner notifies every peer that has its key. If an
//! access was already in flight, or is posted before the notice, the device refuses it and the connection fails. The
//! access is sent to the owner over the next connection (`refused.rs`); all other operations in flight end with
//! `FI_ECONNRESET`.
//!
//! Order: a queue pair executes in order, and the owner confirms accesses that it executes. So the device is used only
//! while nothing is queued and the owner executes no access, and never if accesses must follow messages
//! (`FI_ORDER_WAS`, `FI_ORDER_RAS`). A request after an unfinished read waits for it at the device (a fence), because
//! the read's answer may be sent twice. An access with `FI_FENCE` is sent to the owner: it raises earlier messages to
//! its completion level, which only the owner can confirm.

use std::collections::VecDeque;

use ibv::transfer::{MAX_REQUEST_LEN, Source, Step, plan};
use ofi_api::{Caps, Error, MrAccess, OpFlags, RemotePiece, Result};
use ofi_core::copy;
use ofi_core::transport::record::{Broken, Fields, Words};
use ofi_core::transport::{OutRma, PeerId, Posted, Upcalls};

use crate::Verbs;
use crate::op::{AccessMemory, Native, Op};
use crate::peer::{Common, Key, NextStep, Peer, READ, WRITE};
use crate::rc::{Remote, Segment};
use crate::transfer::{End, Transfer};
use crate::wire::{PAYLOAD, kind};

/// Maximum number of keys of one peer that this end stores. Further keys are ignored.
const MAX_PEER_KEYS: usize = 1 << 16;

impl Peer {
    /// Posts an access to the device, if the device can execute it.
    pub fn native<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutRma<'_>,
    ) -> Result<Option<Posted>> {
        let injected = out.flags.contains(OpFlags::INJECT);
        let short = out.len <= PAYLOAD;
        if self.keys.is_empty()
            || !self.may_go_native(common)
            || out.len == 0
            || out.flags.contains(OpFlags::FENCE)
            || (injected && !short)
        {
            return Ok(None);
        }
        let right = if out.write { WRITE } else { READ };
        let mut witness = None;
        let mut source = |piece: &RemotePiece| {
            let key = self.keys.get(&piece.key)?;
            witness = Some(key.witness);
            key.source(piece, right)
        };
        let Some(sources) = out.remote.iter().map(&mut source).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let (mut runs, mut regions, mut slot) = (Vec::new(), Vec::new(), None);
        if short {
            let taken = common.adapter.take_slot().ok_or(Error::AGAIN)?;
            let at = common.adapter.outgoing(taken);
            if out.write {
                // SAFETY: the pieces are lent during the call; a slot has room for a payload.
                unsafe { copy::gather(out.pieces, 0, at, out.len) };
            }
            runs.push((at, out.len, common.adapter.segment(taken, out.len).lkey));
            slot = Some(taken);
        } else {
            for (addr, len) in copy::runs(out.pieces, 0, out.len) {
                // SAFETY: the memory is lent until the operation ends; `settle_receives` stops the device if a read
                // ends before.
                match unsafe { common.domain.transport.local(addr, len) } {
                    Ok(region) => {
                        runs.push((addr, len, region.lkey()));
                        regions.push(region);
                    }
                    Err(error) => {
                        tracing::debug!(target: "ofi::verbs::ep_data", %error, "an access goes through the peer");
                        return Ok(None);
                    }
                }
            }
        }
        let mut todo = plan(out.write, &runs, &sources, MAX_REQUEST_LEN);
        let data = out.remote_data();
        if out.write && data.is_none() && out.flags.contains(OpFlags::DELIVERY_COMPLETE) {
            push_witness(&mut todo, common, witness);
        }
        self.outstanding += 1;
        self.natives += 1;
        let place = if short { AccessMemory::Slot } else { AccessMemory::Memory };
        let id = host.open(out.peer, out.ticket, Op::Native(Native::new(out, self.natives, place)));
        let end = if data.is_some() { End::Told(id, None) } else { End::Access(id) };
        self.transfer(common, out.peer, Transfer { todo, slot, regions, ..Transfer::of(end) });
        if data.is_some() {
            let mut fields = Fields::new();
            fields.word(id.to_wire()).pieces(out.remote);
            let flags = fields.remote_data(data);
            self.record(common, out.peer, (kind::WRITTEN, flags), fields.bytes(), 0, None, |_| {});
        }
        Ok(Some(Posted::Pending))
    }

    pub fn may_go_native(&self, common: &Common) -> bool {
        self.is_open() && !self.has_commands() && self.executed == 0 && !common.orders_messages
    }

    /// Processes the record with the remote CQ data of a write by the peer's device. The written bytes arrived before
    /// it.
    pub fn take_written<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<NextStep, Broken> {
        let mut words = Words(body);
        let (op, remote) = (words.word()?, words.pieces()?);
        let data = words.remote_data(flags)?.ok_or(Broken)?;
        let checked = common.owner().check(host, peer, &remote, Caps::RMA, MrAccess::REMOTE_WRITE);
        let result = match checked {
            Ok(total) if !host.remote_write(peer, data, total) => return Ok(NextStep::Stop),
            result => result.map(|_| ()),
        };
        self.done(common, peer, 0, op, result);
        Ok(NextStep::Next)
    }

    /// Stores a key of the peer's device.
    pub fn take_key(&mut self, body: &[u8]) -> Result<(), Broken> {
        let (key, known) = Key::parse(&mut Words(body))?;
        if self.keys.len() < MAX_PEER_KEYS {
            self.keys.insert(key, known);
        }
        Ok(())
    }

    /// Sends the peer the device's keys of the memory that it has just accessed, if that is allowed.
    pub fn give_keys(&mut self, common: &mut Common, peer: PeerId, remote: &[RemotePiece]) {
        if !common.domain.transport.native || common.caps.contains(Caps::RMA_EVENT) {
            return;
        }
        for piece in remote {
            if self.given.contains_key(&piece.key) || self.given.len() >= MAX_PEER_KEYS {
                continue;
            }
            let Some(granted) = common.domain.regions.remote(piece.key) else { continue };
            let region = granted.region();
            let (access, both) = (region.access(), MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE);
            let [memory] = region.pieces() else { continue };
            if region.only().is_some()
                || !region.is_enabled()
                || !common.caps.serves(Caps::RMA, access & both)
            {
                continue;
            }
            let Some(data) = common.domain.data(region) else { continue };
            let remote = data.remote();
            // While the guard is held, binding a counter and closing the region cannot withdraw the device's
            // registration.
            let Some(device) = remote.as_ref().filter(|_| !region.is_counted()) else { continue };
            let rkey = device.rkey();
            let right = |right, word| if access.contains(right) { word } else { 0 };
            let rights = right(MrAccess::REMOTE_READ, READ) | right(MrAccess::REMOTE_WRITE, WRITE);
            let (addr, len, base) = (memory.addr.addr() as u64, region.len() as u64, region.base_address());
            drop(remote);
            let witness = common.adapter.witness();
            let mut fields = Fields::new();
            fields.word(piece.key).word(base).word(len).word(rights).word(addr).word(rkey.into());
            fields.word(witness.addr).word(witness.rkey.into());
            self.record(common, peer, (kind::KEY, 0), fields.bytes(), 0, None, |_| {});
            self.given.insert(piece.key, rkey);
            common.counts.given += 1;
        }
    }

    /// Notifies the peer of its withdrawn keys.
    pub fn tell_withdrawn(&mut self, common: &mut Common, peer: PeerId) {
        let regions = &common.domain.regions;
        let is_gone = |key: u64, rkey: u32| {
            let granted = regions.remote(key);
            let data = granted.as_ref().and_then(|granted| common.domain.data(granted.region()));
            data.is_none_or(|data| data.remote().as_ref().map(|device| device.rkey()) != Some(rkey))
        };
        let gone = self.given.iter().filter(|(key, rkey)| is_gone(**key, **rkey));
        let gone: Vec<u64> = gone.map(|(key, _)| *key).collect();
        for key in gone {
            self.given.remove(&key);
            let mut fields = Fields::new();
            fields.word(key);
            self.record(common, peer, (kind::KEY_GONE, 0), fields.bytes(), 0, None, |_| {});
        }
    }
}

/// Adds a read after writes: its answer forces them into memory (`FI_DELIVERY_COMPLETE`).
fn push_witness(todo: &mut VecDeque<Step>, common: &Common, witness: Option<Source>) {
    let Some(witness) = witness else { return };
    let local: Segment = common.adapter.scratch(witness.len);
    todo.push_back(Step { write: false, local, remote: Remote { addr: witness.addr, rkey: witness.rkey } });
}
