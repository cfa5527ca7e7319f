//! Accesses to this end's memory that it executes for a peer, whose bytes come and go in packets or records. The order
//! is the same on every transport: check, report, copy, count. Where a device or another process moves the bytes, the
//! report follows the copy, and the transport has its own steps.
//!
//! A write is reported (remote CQ data) before its last bytes are copied, because the queue may have no room; then the
//! transport offers the same bytes again later. The application cannot see the report before the bytes: both happen in
//! one poll of its endpoint. The rights are checked before the report, because a reported write must have happened. A
//! device's memory is written before the report, since its driver's copy may fail; bytes that are offered again are
//! then copied again.

use ofi_api::{Caps, Errno, MrAccess, RemotePiece};

use super::record::Broken;
use super::{PeerId, Regions, RemoteData, Transport, Upcalls};
use crate::atomic::{Executor, Sent};
use crate::auth::AuthKey;
use crate::keys::Accessor;

/// Registered memory, as peers may access it through one endpoint.
#[derive(Clone, Copy)]
pub struct Owner<'a> {
    /// The registrations of the endpoint's domain.
    pub regions: &'a Regions,
    /// The endpoint's capabilities. Accesses that they exclude are refused.
    pub caps: Caps,
    /// The authorization key of the endpoint's peers.
    pub auth: &'a AuthKey,
}

/// How far a write was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The bytes are in place, and more follow.
    More,
    /// There is no room for the report: offer the same bytes again.
    Wait,
    /// The write has ended.
    Ended(Result<(), Errno>),
}

/// The length of all pieces together, in bytes.
///
/// # Errors
/// No such length exists: the peer breaks the protocol.
#[inline]
pub fn total_len(remote: &[RemotePiece]) -> Result<usize, Broken> {
    remote.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len)).ok_or(Broken)
}

impl<'a> Owner<'a> {
    /// The peer, as one that accesses memory here.
    #[inline]
    fn accessor<'h, T: Transport, H: Upcalls<T>>(self, host: &'h H, peer: PeerId) -> Accessor<'h>
    where
        'a: 'h,
    {
        Accessor { auth: self.auth, peer: host.address(peer) }
    }

    /// Checks an access of this kind ([`Caps::RMA`], [`Caps::ATOMIC`]) to all of `remote`, and returns its length in
    /// bytes.
    ///
    /// # Errors
    /// The error for the peer.
    pub fn check<T: Transport, H: Upcalls<T>>(
        self,
        host: &H,
        peer: PeerId,
        remote: &[RemotePiece],
        kind: Caps,
        access: MrAccess,
    ) -> Result<usize, Errno> {
        self.regions.check_served(self.caps, self.accessor(host, peer), remote, kind, access)
    }

    /// Executes a write of `len` bytes, which `copy` puts into all of `remote`. `copy` checks each piece again.
    ///
    /// # Errors
    /// `remote` has another length.
    #[inline]
    pub fn write<T: Transport, H: Upcalls<T>>(
        self,
        host: &mut H,
        peer: PeerId,
        (remote, data): (&[RemotePiece], Option<RemoteData>),
        len: usize,
        copy: impl FnOnce(Accessor<'_>) -> Result<(), Errno>,
    ) -> Result<Progress, Broken> {
        if total_len(remote)? != len {
            return Err(Broken);
        }
        // The copy checks a single piece before it changes anything.
        let allowed = if data.is_none() && remote.len() == 1 {
            if self.caps.serves(Caps::RMA, MrAccess::REMOTE_WRITE) { Ok(()) } else { Err(Errno::EACCES) }
        } else {
            self.check(host, peer, remote, Caps::RMA, MrAccess::REMOTE_WRITE).map(drop)
        };
        if let Err(errno) = allowed {
            return Ok(Progress::Ended(Err(errno)));
        }
        let is_late = data.is_some() && self.regions.is_of_device(remote);
        if let Some(data) = data
            && !is_late
            && !host.remote_write(peer, data, len)
        {
            return Ok(Progress::Wait);
        }
        let written = copy(self.accessor(host, peer));
        if written.is_ok() {
            if is_late
                && let Some(data) = data
                && !host.remote_write(peer, data, len)
            {
                return Ok(Progress::Wait);
            }
            host.accessed(self.regions, MrAccess::REMOTE_WRITE, remote);
        }
        Ok(Progress::Ended(written))
    }

    /// Executes an atomic operation with these operands, and returns the old values, if it fetches them.
    ///
    /// # Errors
    /// The error for the peer; `FI_EINVAL` if the operands do not fit to `remote`.
    pub fn atomic<'s, T: Transport, H: Upcalls<T>>(
        self,
        host: &mut H,
        peer: PeerId,
        executor: &Executor,
        (remote, operands): (&[RemotePiece], &[u8]),
        sent: &'s mut Sent,
    ) -> Result<&'s [u8], Errno> {
        self.check(host, peer, remote, Caps::ATOMIC, executor.rights())?;
        let old = sent.execute(executor, self.regions, self.accessor(host, peer), remote, operands)?;
        host.accessed(self.regions, executor.rights(), remote);
        Ok(old)
    }
}

/// A peer's write that arrives in parts.
#[derive(Debug)]
pub struct WriteInParts {
    /// The peer's number of the operation.
    pub op: u64,
    /// Remote CQ data.
    pub data: Option<RemoteData>,
    remote: Box<[RemotePiece]>,
    got: usize,
    len: usize,
    failed: Option<Errno>,
}

impl WriteInParts {
    /// Begins a write that arrives from now on. A refused one consumes its bytes and fails at its end.
    ///
    /// # Errors
    /// It has no bytes, or more than can be counted.
    pub fn begin<T: Transport, H: Upcalls<T>>(
        owner: Owner<'_>,
        host: &H,
        peer: PeerId,
        (op, remote, data): (u64, Box<[RemotePiece]>, Option<RemoteData>),
    ) -> Result<Self, Broken> {
        let len = total_len(&remote)?;
        if len == 0 {
            return Err(Broken);
        }
        let failed = owner.check(host, peer, &remote, Caps::RMA, MrAccess::REMOTE_WRITE).err();
        Ok(Self { op, data, remote, got: 0, len, failed })
    }

    /// The destination.
    pub fn remote(&self) -> &[RemotePiece] {
        &self.remote
    }

    /// Bytes that were consumed so far: where the next part begins.
    pub fn got(&self) -> usize {
        self.got
    }

    /// Bytes that are missing.
    pub fn left(&self) -> usize {
        self.len - self.got
    }

    /// The error for the peer, if it may not write there: its bytes are discarded.
    pub fn refusal(&self) -> Option<Errno> {
        self.failed
    }

    /// Executes the next part, of `part` bytes: `copy` puts them into `remote` from byte `skip` on, and checks their
    /// pieces. Its arguments are the accessor, `remote` and `skip`.
    ///
    /// # Errors
    /// The write has fewer bytes left.
    pub fn part<T: Transport, H: Upcalls<T>>(
        &mut self,
        owner: Owner<'_>,
        host: &mut H,
        peer: PeerId,
        part: usize,
        copy: impl FnOnce(Accessor<'_>, &[RemotePiece], usize) -> Result<(), Errno>,
    ) -> Result<Progress, Broken> {
        if part > self.len - self.got {
            return Err(Broken);
        }
        let is_last = self.got + part == self.len;
        let data = self.data.filter(|_| is_last && self.failed.is_none());
        let is_late = data.is_some() && owner.regions.is_of_device(&self.remote);
        if let Some(data) = data {
            // A region may have been closed since the write began.
            if let Err(errno) = owner.check(host, peer, &self.remote, Caps::RMA, MrAccess::REMOTE_WRITE) {
                self.failed = Some(errno);
            } else if !is_late && !host.remote_write(peer, data, self.len) {
                return Ok(Progress::Wait);
            }
        }
        if self.failed.is_none() {
            self.failed = copy(owner.accessor(host, peer), &self.remote, self.got).err();
        }
        if self.failed.is_none()
            && is_late
            && let Some(data) = data
            && !host.remote_write(peer, data, self.len)
        {
            return Ok(Progress::Wait);
        }
        self.got += part;
        if !is_last {
            return Ok(Progress::More);
        }
        let Some(errno) = self.failed else {
            host.accessed(owner.regions, MrAccess::REMOTE_WRITE, &self.remote);
            return Ok(Progress::Ended(Ok(())));
        };
        Ok(Progress::Ended(Err(errno)))
    }
}

/// A peer's read that is answered in parts.
#[derive(Debug)]
pub struct ReadInParts {
    /// The peer's number of the operation.
    pub op: u64,
    remote: Vec<RemotePiece>,
    done: usize,
    len: usize,
}

impl ReadInParts {
    /// Begins the read. `None` if it has no bytes, and so has ended.
    ///
    /// # Errors
    /// The error for the peer.
    pub fn begin<T: Transport, H: Upcalls<T>>(
        owner: Owner<'_>,
        host: &mut H,
        peer: PeerId,
        (op, remote): (u64, Vec<RemotePiece>),
    ) -> Result<Option<Self>, Errno> {
        let len = owner.check(host, peer, &remote, Caps::RMA, MrAccess::REMOTE_READ)?;
        if len == 0 {
            host.accessed(owner.regions, MrAccess::REMOTE_READ, &remote);
            return Ok(None);
        }
        Ok(Some(Self { op, remote, done: 0, len }))
    }

    /// The source.
    pub fn remote(&self) -> &[RemotePiece] {
        &self.remote
    }

    /// Bytes that were answered so far: where the next part begins.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Bytes that are not answered yet.
    pub fn left(&self) -> usize {
        self.len - self.done
    }

    /// Answers the next part, of at most [`left`](ReadInParts::left) bytes: `answer` sends them from byte `skip` of
    /// `remote` on. Its arguments are the accessor, `remote` and `skip`. Returns whether the read has ended.
    ///
    /// # Errors
    /// The error for the peer, which ends the read: a region was closed since it began.
    pub fn part<T: Transport, H: Upcalls<T>>(
        &mut self,
        owner: Owner<'_>,
        host: &mut H,
        peer: PeerId,
        part: usize,
        answer: impl FnOnce(Accessor<'_>, &[RemotePiece], usize) -> Result<(), Errno>,
    ) -> Result<bool, Errno> {
        owner.check(host, peer, &self.remote, Caps::RMA, MrAccess::REMOTE_READ)?;
        answer(owner.accessor(host, peer), &self.remote, self.done)?;
        self.done += part;
        let is_over = self.done == self.len;
        if is_over {
            host.accessed(owner.regions, MrAccess::REMOTE_READ, &self.remote);
        }
        Ok(is_over)
    }
}
