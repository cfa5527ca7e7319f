//! Remote reads and writes, executed by the memory's owner, who checks key, bounds and rights whenever bytes are copied.

use ofi_api::{Caps, Errno, MrAccess, RemotePiece, Result};
use ofi_core::auth::AuthKey;
use ofi_core::copy;
use ofi_core::keys::Accessor;
use ofi_core::transport::{Host, OutRma, Peer, Posted, RemoteData, RxName};

use crate::Efa;
use crate::adapter::Mark;
use crate::lane::{Common, Entry, Lane, Op, Stream, Work};
use crate::message::{Broken, Flow};
use crate::payload::Payload;
use crate::settings;
use crate::transfer::{Answering, Incoming, Target, grant};
use crate::wire::{Control, Iov, Iovs, Own, Read, Write, WriteForm};

/// Most remote pieces in one operation (`rma_iov_limit`).
pub const IOV_LIMIT: usize = Iovs::MOST;

/// A write that writes nothing, to hear from a peer.
pub fn nothing() -> Write<'static> {
    let form = WriteForm::Eager(&[]);
    Write { remote: Iovs::default(), data: None, confirm: false, send_id: 0, own: Own::default(), form }
}

/// Remote pieces as they go over the wire.
pub fn iovs(remote: &[RemotePiece]) -> Option<Iovs> {
    Iovs::new(remote.iter().map(|piece| Iov { addr: piece.addr, len: piece.len as u64, key: piece.key }))
}

/// The other way.
pub fn pieces(iovs: &Iovs) -> Vec<RemotePiece> {
    iovs.iter().map(|iov| RemotePiece { addr: iov.addr, len: iov.len as usize, key: iov.key }).collect()
}

impl Lane {
    /// Reads or writes the peer's memory.
    pub fn rma<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutRma<'_>,
    ) -> Result<Posted> {
        self.may_post(out.flags)?;
        let remote = iovs(out.remote).ok_or_else(|| ofi_api::Error::new(Errno::EINVAL))?;
        if out.write { self.write(common, host, out, remote) } else { self.read(common, host, out, remote) }
    }

    fn write<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutRma<'_>,
        remote: Iovs,
    ) -> Result<Posted> {
        let (peer, len) = (out.peer, out.len);
        let told = out.remote_data();
        let own = Own { rx: told.map_or(0, |told| told.rx.to_wire()) };
        let own = if self.is_own() == Some(true) { own } else { Own::default() };
        // Always with a receipt: only then is it known that the bytes are in their place.
        let mut write = Write {
            remote,
            data: told.map(|told| told.value),
            confirm: true,
            send_id: 0,
            own,
            form: WriteForm::Eager(&[]),
        };
        let room = common.adapter.mtu - write.encode(self.origin(common)).bytes().len();
        let short = len <= room;
        let op = match short {
            true => Op::packed(true),
            false => {
                let payload = Payload::new(out.pieces, len, out.flags);
                Op { making: true, work: Work::Out { payload, len, done: 0 }, ..Op::packed(true) }
            }
        };
        let (id, number) = self.open(common, host, peer, out.ticket, op)?;
        write.send_id = number;
        if !short {
            let credits = settings::MIN_CREDITS.get() as u32;
            write.form = WriteForm::LongCts { len, credits, payload: &[] };
        }
        let header = write.encode(self.origin(common));
        let first = len.min(common.adapter.mtu - header.bytes().len());
        if let Some(op) = host.op(peer, id)
            && let Work::Out { done, .. } = &mut op.work
        {
            *done = first;
        }
        self.packet(common, peer, &header, first, Mark::Op(id), |body| {
            // SAFETY: the pieces are lent, and `body` has `first` bytes.
            unsafe { copy::gather(out.pieces, 0, body, first) };
        });
        Ok(Posted::Pending)
    }

    fn read<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutRma<'_>,
        remote: Iovs,
    ) -> Result<Posted> {
        let len = out.len;
        let cleared = grant(common).min(len);
        let work = Work::In { pieces: out.pieces.into(), len, got: 0, cleared, peer_id: None };
        let op = Op { work, ..Op::packed(true) };
        let (id, recv_id) = self.open(common, host, out.peer, out.ticket, op)?;
        // What one packet answers; the largest header before its data has 24 bytes.
        let short = len <= common.adapter.mtu - 24;
        let read = Read { remote, len, recv_id, cleared: (!short).then_some(cleared as u32) };
        self.packet(common, out.peer, &read.encode(self.origin(common)), 0, Mark::Op(id), |_| {});
        Ok(Posted::Pending)
    }

    /// The length of an access, if all of it is allowed.
    pub fn check(
        common: &Common,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        kind: Caps,
        access: MrAccess,
    ) -> Result<usize, Errno> {
        // What the endpoint was not opened for is refused like a right that the region does not have.
        if !common.serves(kind, access) {
            return Err(Errno::EACCES);
        }
        common.domain.regions.check_all_as(who, remote, access)
    }

    /// Executes a write of the peer, or begins to.
    pub fn take_write<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: Peer,
        write: &Write<'_>,
    ) -> Result<Flow, Broken> {
        let remote = pieces(&write.remote);
        let (send_id, receipt) = (write.send_id, write.confirm.then_some(0));
        if remote.is_empty() && write.data.is_none() && !write.confirm {
            return Ok(Flow::Next); // only asks for a handshake
        }
        let who = accessor(host, peer);
        if let Err(errno) = Self::check(common, who, &remote, Caps::RMA, MrAccess::REMOTE_WRITE) {
            self.refuse(common, peer, send_id, errno);
            return Ok(Flow::Next);
        }
        let rx = RxName::from_wire(write.own.rx);
        let data = write.data.map(|value| RemoteData { value, rx });
        match write.form {
            WriteForm::Eager(bytes) => {
                // The report first, as it may have to wait; the application cannot see it before the bytes.
                if let Some(data) = data
                    && !host.remote_write(peer, data, bytes.len())
                {
                    return Ok(Flow::Stop);
                }
                let written = write_here(common, accessor(host, peer), &remote, 0, bytes);
                match written {
                    Ok(()) => {
                        host.accessed(&common.domain.regions, MrAccess::REMOTE_WRITE, &remote);
                        if let Some(msg_id) = receipt {
                            self.control(common, peer, Control::Receipt { send_id, msg_id });
                        }
                    }
                    Err(errno) => self.refuse(common, peer, send_id, errno),
                }
                Ok(Flow::Next)
            }
            WriteForm::LongCts { len, payload, .. } => {
                let target = Target::Region { remote, data };
                let incoming = Incoming { peer, target, len, got: 0, cleared: 0, send_id, receipt };
                self.begin(common, host, incoming, payload);
                Ok(Flow::Next)
            }
            // This end does not say that it can read.
            WriteForm::LongRead { .. } => Err(Broken),
        }
    }

    /// Begins to answer a read of the peer.
    pub fn take_read<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: Peer,
        read: &Read,
    ) -> Result<(), Broken> {
        let remote = pieces(&read.remote);
        let (len, recv_id) = (read.len, read.recv_id);
        let who = accessor(host, peer);
        if let Err(errno) = Self::check(common, who, &remote, Caps::RMA, MrAccess::REMOTE_READ) {
            self.refuse(common, peer, recv_id, errno);
            return Ok(());
        }
        let cleared = read.cleared.map_or(len, |cleared| (cleared as usize).min(len));
        if cleared == 0 && len > 0 {
            return Err(Broken);
        }
        let answering = Answering { peer, remote, len, done: 0, cleared, recv_id, begun: false };
        let Some(id) = common.ids.insert(Entry::Answering(answering)) else {
            self.refuse(common, peer, recv_id, Errno::ENOMEM);
            return Ok(());
        };
        self.streams.push_back(Stream::Answer { id });
        common.hold(&mut self.is_dirty, peer);
        Ok(())
    }
}

/// The runs of remote memory that make up `len` bytes of `remote` from byte `skip` on: address, key, length.
fn runs(
    remote: &[RemotePiece],
    mut skip: usize,
    mut len: usize,
) -> impl Iterator<Item = (u64, u64, usize)> + '_ {
    remote.iter().filter_map(move |piece| {
        if skip >= piece.len {
            skip -= piece.len;
            return None;
        }
        let run = (piece.len - skip).min(len);
        let addr = piece.addr.wrapping_add(skip as u64);
        skip = 0;
        len -= run;
        (run > 0).then_some((addr, piece.key, run))
    })
}

/// A peer of the endpoint, as one that accesses memory here.
pub fn accessor<H: Host<Efa>>(host: &H, peer: Peer) -> Accessor<'_> {
    Accessor { auth: &AuthKey::NONE, peer: host.address(peer) }
}

/// Writes `bytes` to registered memory here, from byte `skip` of `remote` on.
pub fn write_here(
    common: &Common,
    who: Accessor<'_>,
    remote: &[RemotePiece],
    skip: usize,
    bytes: &[u8],
) -> Result<(), Errno> {
    let mut rest = bytes;
    for (addr, key, run) in runs(remote, skip, bytes.len()) {
        let checked = common.domain.regions.check_as(who, key, addr, run as u64, MrAccess::REMOTE_WRITE);
        let granted = checked.map_err(|violation| violation.errno())?;
        for piece in granted.pieces() {
            let (here, behind) = rest.split_at(rest.len().min(piece.len));
            // SAFETY: the grant holds the registered memory while it is written; `here` is no longer than the piece.
            unsafe { copy::bytes(here.as_ptr(), piece.addr, here.len()) };
            rest = behind;
        }
    }
    Ok(())
}

/// Reads registered memory here, from byte `skip` of `remote` on.
pub fn read_here(
    common: &Common,
    who: Accessor<'_>,
    remote: &[RemotePiece],
    skip: usize,
    to: &mut [u8],
) -> Result<(), Errno> {
    let mut done = 0;
    for (addr, key, run) in runs(remote, skip, to.len()) {
        let checked = common.domain.regions.check_as(who, key, addr, run as u64, MrAccess::REMOTE_READ);
        let granted = checked.map_err(|violation| violation.errno())?;
        for piece in granted.pieces() {
            let part = &mut to[done..done + piece.len];
            // SAFETY: the grant holds the registered memory while it is read; `part` is as long.
            unsafe { copy::bytes(piece.addr, part.as_mut_ptr(), piece.len) };
            done += piece.len;
        }
    }
    Ok(())
}
