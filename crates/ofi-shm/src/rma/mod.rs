//! Remote reads and writes. They go through a mapping if the peer grants one; otherwise the memory's owner executes
//! them.
//!
//! An owner checks key, bounds and rights at each copy. A direct access waits for those that the peer still has to
//! execute, so that accesses of one endpoint to one peer stay in order on either route.

mod device;
mod owner;

use ofi_api::{Errno, Error, OpFlags, Piece, RemotePiece, Result};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{OutRma, Payload, Posted, RemoteData, Upcalls};
use ofi_ring::crash_point;
use ofi_ring::record::ReserveError;

use crate::Shm;
use crate::command::{CommandWriter, RMA_IOV_LIMIT, Words, before, flag, kind, rx_bits};
use crate::common::{Common, full};
use crate::exposed_buffer::ExposedBuffer;
use crate::layout::wish;
use crate::op::{Op, ReadPath};
use crate::peer::grants::KeyState;
use crate::peer::link::Up;
use crate::peer::parked::{Access, Parked};
use crate::peer::{Broken, Peer};
use crate::stores::LONG;
use crate::token::Sink;

/// An access for the peer to execute, borrowed from the call that posts it or from [`Access`].
struct Command<'a> {
    write: bool,
    pieces: &'a [Piece],
    remote: &'a [RemotePiece],
    len: usize,
    data: Option<RemoteData>,
    /// The pieces stay valid until the operation ends.
    stays: bool,
}

/// The state of a write's bytes.
enum WriteBytes {
    /// They are in the command.
    Inside,
    /// The peer requests them, or reads them directly.
    Named(Option<Box<ExposedBuffer>>),
}

/// A read that the peer executes.
const fn reading(pieces: Box<[Piece]>, len: usize) -> Op {
    Op::Read { pieces, got: 0, len, coming: ReadPath::Asked }
}

/// The route of an access.
pub enum AccessPath {
    /// Directly, through a mapping.
    Direct,
    /// Undecided: the peer has not answered yet.
    Wait,
    /// By a command: the peer executes it.
    Command,
}

impl Peer {
    /// Reads or writes the peer's memory.
    pub fn rma<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutRma<'_>,
    ) -> Result<Posted> {
        self.ready_for_access(common, out.flags)?;
        let data = out.remote_data();
        if self.parked.queue.is_empty() {
            match self.route(common, out.remote, out.write) {
                AccessPath::Direct => match self.direct(common, out.write, out.pieces, out.remote, data) {
                    Ok(true) => return Ok(Posted::Done),
                    Ok(false) => {} // the grant was withdrawn: ask again
                    Err(errno) if errno == Errno::EAGAIN => return Err(Error::AGAIN),
                    Err(errno) => {
                        let id = host.open(self.peer, out.ticket, Op::Parked);
                        (self.initiated.outstanding, self.busy) = (self.initiated.outstanding + 1, true);
                        self.finish(host, id, Err(errno));
                        return Ok(Posted::Pending);
                    }
                },
                AccessPath::Wait => {}
                AccessPath::Command => {
                    let id = host.open(self.peer, out.ticket, Op::Parked);
                    // SAFETY: the core lends the pieces of what it posts.
                    let payload = |flags| unsafe { Payload::new(out.pieces, out.len, flags) };
                    let command = Command {
                        write: out.write,
                        pieces: out.pieces,
                        remote: out.remote,
                        len: out.len,
                        data,
                        stays: !out.flags.contains(OpFlags::INJECT),
                    };
                    let sent = self.send_access(common, &command, id);
                    return match sent {
                        Ok(sent) => {
                            let op = match (out.write, sent) {
                                (true, WriteBytes::Inside) => Op::Write(Payload::owned(Box::default()), None),
                                (true, WriteBytes::Named(lend)) => Op::Write(payload(out.flags), lend),
                                (false, _) => reading(out.pieces.into(), out.len),
                            };
                            if let Some(slot) = host.op(self.peer, id) {
                                *slot = op;
                            }
                            (self.initiated.outstanding, self.busy) = (self.initiated.outstanding + 1, true);
                            self.initiated.commanded += 1;
                            Ok(Posted::Pending)
                        }
                        Err(error) => {
                            host.abandon(id);
                            Err(error)
                        }
                    };
                }
            }
        }
        let access = Access {
            write: out.write,
            // SAFETY: as in `rma`.
            payload: unsafe { Payload::new(out.pieces, out.len, out.flags) },
            remote: out.remote.into(),
            len: out.len,
            data,
        };
        let id = host.open(self.peer, out.ticket, Op::Parked);
        (self.initiated.outstanding, self.busy) = (self.initiated.outstanding + 1, true);
        self.parked.queue.push_back(Parked::Rma { id, access });
        self.parked.accesses += 1;
        self.move_parked(common, host);
        Ok(Posted::Pending)
    }

    /// Whether an access may be posted now. Connects the peer.
    ///
    /// # Errors
    /// `FI_EAGAIN` while it must wait.
    pub fn ready_for_access(&mut self, common: &mut Common, flags: OpFlags) -> Result<()> {
        if self.end.gone || (flags.contains(OpFlags::FENCE) && self.initiated.outstanding > 0) {
            return Err(Error::AGAIN);
        }
        match self.up() {
            None => self.connect(common),
            Some(up) if up.wish() == wish::CLOSED => {
                self.busy = true;
                Err(Error::AGAIN)
            }
            Some(_) => Ok(()),
        }
    }

    /// Whether an access through a mapping would not overtake any that the peer must execute first.
    #[inline]
    pub fn may_be_direct(&self, common: &Common) -> bool {
        let drained = || self.link.as_ref().is_some_and(|link| link.commands.is_drained());
        self.initiated.commanded == 0 && (!common.strict || drained())
    }

    /// Chooses the route of an access to `remote`. Requests unknown grants.
    pub fn route(&mut self, common: &Common, remote: &[RemotePiece], write: bool) -> AccessPath {
        if self.up().is_none() {
            return AccessPath::Wait;
        }
        if !self.may_be_direct(common) {
            return AccessPath::Command;
        }
        let mut route = AccessPath::Direct;
        for piece in remote {
            match self.grant(common, piece.key, write) {
                KeyState::Mapped(_) => {}
                KeyState::Device(_) if common.shared.maps_devices() => {}
                KeyState::Device(_) => return AccessPath::Command,
                KeyState::Asked => route = AccessPath::Wait,
                KeyState::Refused => return AccessPath::Command,
            }
        }
        route
    }

    /// See [`ofi_core::transport::TransportEndpoint::rma_mapped`].
    pub fn rma_mapped(&mut self, common: &mut Common, out: &OutRma<'_>) -> Option<Result<Posted>> {
        if !common.shared.maps_devices()
            || !self.parked.queue.is_empty()
            || self.ready_for_access(common, out.flags).is_err()
            || self.up().is_none()
            || !self.may_be_direct(common)
        {
            return None;
        }
        for piece in out.remote {
            if !matches!(self.grant(common, piece.key, out.write), KeyState::Device(_)) {
                return None;
            }
        }
        match self.direct(common, out.write, out.pieces, out.remote, out.remote_data()) {
            Ok(true) => Some(Ok(Posted::Done)),
            Err(Errno::EAGAIN) => Some(Err(Error::AGAIN)),
            // The driver's copy failed. If it has not ended, a staged one must not be reported meanwhile.
            Err(Errno::EIO) => Some(Err(Errno::EIO.into())),
            // The staged access finds out why.
            Ok(false) | Err(_) => None,
        }
    }

    /// Copies through the mappings. Returns `false` if a grant was withdrawn.
    ///
    /// # Errors
    /// `FI_EAGAIN` if there is no room for the notice of remote CQ data; otherwise the error that the owner would
    /// return.
    fn direct(
        &mut self,
        common: &mut Common,
        write: bool,
        pieces: &[Piece],
        remote: &[RemotePiece],
        data: Option<RemoteData>,
    ) -> Result<bool, Errno> {
        let mut targets = [(std::ptr::null_mut::<u8>(), 0usize); RMA_IOV_LIMIT];
        let mut len = 0;
        for (target, piece) in targets.iter_mut().zip(remote) {
            let Some(resolved) = self.resolve(piece, write)? else { return Ok(false) };
            *target = (resolved, piece.len);
            len += piece.len;
        }
        if data.is_some() {
            // Reserve room for the notice first: it must not be missing once the bytes are there.
            let Some(link) = self.link_mut() else { return Ok(false) };
            drop(link.commands.reserve(16).map_err(|error| full(common, error).errno())?);
        }
        let mut done = 0;
        for (&(target, run), piece) in targets.iter().zip(remote) {
            let granted = match self.grants.known.get(&piece.key) {
                Some(KeyState::Mapped(granted)) => granted,
                Some(KeyState::Device(device)) => {
                    // SAFETY: `resolve` checked that `run` bytes at `target` are granted, and the pieces are lent.
                    if !unsafe { self.copy_device(device, write, pieces, (done, run), target.addr() as u64)? }
                    {
                        self.grants.known.remove(&piece.key);
                        return Ok(false);
                    }
                    common.counts.device_bytes += run as u64;
                    done += run;
                    continue;
                }
                _ => return Ok(false),
            };
            let holds = self.while_granted(&granted.terms, || {
                let mut skip = 0;
                for (local, part) in copy::runs(pieces, done, run) {
                    let (from, to) = if write {
                        (local.cast_const(), target.wrapping_add(skip))
                    } else {
                        (target.cast_const().wrapping_add(skip), local)
                    };
                    // SAFETY: `resolve` checked that `run` bytes at `target` are granted, the grant holds now, and the
                    // local pieces are lent. A mapping of a peer's memory does not overlap private memory; if both are
                    // the same shared memory, the application asked for overlapping copies.
                    unsafe { copy::overlapping(from, to, part) };
                    skip += part;
                }
            });
            if !holds {
                self.grants.known.remove(&piece.key);
                return Ok(false);
            }
            done += run;
        }
        crash_point!("access.copied");
        common.counts.direct_bytes += len as u64;
        if let Some(data) = data {
            let sent = self.command(common, rx_bits(kind::NOTICE, data.rx), &[data.value, len as u64]);
            crash_point!("notice.sent");
            debug_assert!(sent.is_ok(), "room was reserved");
        }
        Ok(true)
    }

    /// Sends an access for the peer to execute. Bytes that find no room in the ring stay where they are, if they may:
    /// the ring holds many more commands without bytes.
    fn send_access(&mut self, common: &mut Common, access: &Command<'_>, id: SlotId) -> Result<WriteBytes> {
        let words = 2 + 3 * access.remote.len() + usize::from(access.data.is_some());
        let is_short = access.write && before(words, access.len) + access.len <= common.eager;
        self.send_access_as(common, access, id, words, is_short)
    }

    /// The same, with or without a write's bytes `inside` the command, which has that many `words`.
    fn send_access_as(
        &mut self,
        common: &mut Common,
        access: &Command<'_>,
        id: SlotId,
        mut words: usize,
        inside: bool,
    ) -> Result<WriteBytes> {
        let &Command { write, pieces, remote, len, data, stays } = access;
        let lent = if write && !inside && stays { self.lend(common, pieces, len) } else { None };
        let (flags, source, lend) = lent.unwrap_or_default();
        words += if lend.is_some() { 2 } else { 0 };
        let Some(link) = &mut self.link else { return Err(Error::AGAIN) };
        let body_len = if inside { before(words, len) + len } else { words * 8 };
        let mut slot = match link.commands.reserve(body_len) {
            Ok(slot) => slot,
            Err(ReserveError::Full) if inside && stays => {
                return self.send_access_as(common, access, id, words, false);
            }
            Err(error) => {
                self.found_no_room(body_len);
                return Err(full(common, error));
            }
        };
        // SAFETY: words and payload were reserved.
        let mut body = unsafe { CommandWriter::new(slot.body()) };
        body.word(id.to_wire());
        body.word(remote.len() as u64);
        for piece in remote {
            body.word(piece.addr);
            body.word(piece.len as u64);
            body.word(piece.key);
        }
        let mut high = match (write, inside) {
            (true, true) => kind::WRITE,
            (true, false) => kind::WRITE_LONG | flags,
            (false, _) => kind::READ,
        };
        if let Some(data) = data {
            body.word(data.value);
            high = rx_bits(high | flag::DATA, data.rx);
        }
        if lend.is_some() {
            source.into_iter().for_each(|word| body.word(word));
        }
        if inside && len >= LONG {
            // SAFETY: the pieces are lent, and `len` bytes were reserved behind the words.
            unsafe {
                self.stores.publish(
                    common,
                    link.up.as_ref().map(Up::pair),
                    slot,
                    pieces,
                    (body.payload(len), len),
                    high,
                )
            };
        } else {
            if inside {
                // SAFETY: as above.
                unsafe { copy::gather(pieces, 0, body.payload(len), len) };
            }
            slot.publish(high);
        }
        crash_point!("access.sent");
        self.ring(common);
        Ok(if inside { WriteBytes::Inside } else { WriteBytes::Named(lend) })
    }

    /// Advances operations that waited for grants.
    pub fn move_parked<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        while let Some(parked) = self.parked.queue.pop_front() {
            match parked {
                Parked::Pull { token, into } => {
                    let before = self.parked.queue.len();
                    self.pull(common, host, token, into);
                    if self.parked.queue.len() > before {
                        // Still waiting: it was appended at the back but belongs at the front.
                        self.parked.queue.rotate_right(1);
                        return;
                    }
                }
                Parked::Rma { id, access } => {
                    if let Some(access) = self.move_access(common, host, id, access) {
                        self.parked.queue.push_front(Parked::Rma { id, access });
                        return;
                    }
                    self.parked.accesses -= 1;
                }
                Parked::Atomic { id, access } => {
                    if let Some(access) = self.move_atomic(common, host, id, access) {
                        self.parked.queue.push_front(Parked::Atomic { id, access });
                        return;
                    }
                    self.parked.accesses -= 1;
                }
            }
        }
    }

    /// Starts a parked access, or returns it.
    fn move_access<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        id: SlotId,
        access: Access,
    ) -> Option<Access> {
        let owned;
        let pieces: &[Piece] = match access.payload.pieces() {
            Ok(pieces) => pieces,
            Err(bytes) => {
                owned = [Piece::new(bytes.as_ptr().cast_mut(), bytes.len())];
                &owned
            }
        };
        match self.route(common, &access.remote, access.write) {
            AccessPath::Wait => return Some(access),
            AccessPath::Direct => {
                match self.direct(common, access.write, pieces, &access.remote, access.data) {
                    Ok(true) => self.finish(host, id, Ok(())),
                    Ok(false) => return Some(access),
                    Err(errno) if errno == Errno::EAGAIN => return Some(access),
                    Err(errno) => self.finish(host, id, Err(errno)),
                }
                return None;
            }
            AccessPath::Command => {}
        }
        let command = Command {
            write: access.write,
            pieces,
            remote: &access.remote,
            len: access.len,
            data: access.data,
            stays: access.payload.pieces().is_ok(),
        };
        let Ok(sent) = self.send_access(common, &command, id) else { return Some(access) };
        self.initiated.commanded += 1;
        if let Some(slot) = host.op(self.peer, id) {
            *slot = match (access.write, sent, access.payload) {
                (true, WriteBytes::Inside, _) => Op::Write(Payload::owned(Box::default()), None),
                (true, WriteBytes::Named(lend), payload) => Op::Write(payload, lend),
                (false, _, payload) => match payload.into_pieces() {
                    Ok(pieces) => reading(pieces, access.len),
                    Err(_) => reading(Box::default(), 0),
                },
            };
        }
        None
    }

    /// Takes the bytes of a read of this end.
    pub fn take_read_data<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (op, offset): (u64, u64),
        words: Words,
    ) -> Result<(), Broken> {
        let (body, part) = words.rest();
        let id = SlotId::from_wire(op);
        let Some(Op::Read { pieces, got, len, coming }) = host.op(self.peer, id) else { return Err(Broken) };
        if offset != *got as u64 || part > *len - *got || *coming == ReadPath::Offered {
            return Err(Broken);
        }
        // SAFETY: the record holds `part` bytes; the pieces are lent until the read ends.
        unsafe { copy::scatter(body, part, pieces, *got) };
        *got += part;
        if got == len {
            let (len, measured) = (*len, *coming == ReadPath::Parts(true));
            self.finish(host, id, Ok(()));
            if measured {
                self.transfer_completed(common, host, Sink::Read(id), len);
            }
        }
        Ok(())
    }
}
