//! What only ends of this library exchange: atomic operations, which the owner of the memory executes in the order of
//! the stream, and notes between cores, from which collectives are built.
//!
//! A peer says in its connection message whether it takes them. So an atomic operation that is posted earlier waits for
//! the connection, and fails if the peer does not.

use ofi_api::{Caps, Errno, Error, OpFlags, Result};
use ofi_core::atomic::{Executor, MAX_PACKET_ATOMIC_LEN, Sent};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{OutAtomic, OutNote, PeerId, Posted, Upcalls};

use super::TcpEndpoint;
use crate::Tcp;
use crate::conn::{Atomic, Conn, Phase};
use crate::op::TcpOp;
use crate::taking::{At, Broken, named_pieces};
use crate::wire::{MAX_SHORT_LEN, Order, Packet};

/// Atomic operations that may wait for a connection.
const EARLY: usize = 64;

/// Operations that may wait for their answers, which are copies of up to [`MAX_PACKET_ATOMIC_LEN`] bytes at the peer.
/// Two ends of which each owes the other too many copies would both stop to process packets.
const FETCHES: usize = 1024;

const _: () = assert!(2 * MAX_PACKET_ATOMIC_LEN <= MAX_SHORT_LEN, "operands and comparands fit a packet");

/// The error of what C libfabric's end does not take.
#[cold]
fn not_ours(what: &str) -> Error {
    Error::with(
        Errno::EOPNOTSUPP,
        format!(
            "{what} over tcp works between ends of this library that have it (FI_TCP_ATOMICS=1) and one byte order: the \
             peer does not say so, as those of C libfabric"
        ),
    )
}

impl TcpEndpoint {
    /// See [`ofi_core::transport::TransportEndpoint::atomic`].
    pub(crate) fn atomic<H: Upcalls<Tcp>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        // The core has checked `rma_iov_limit`.
        let remote = named_pieces(out.remote).ok_or(Error::new(Errno::EINVAL))?;
        let id = self.connection(out.peer)?;
        let Some(conn) = self.conn(id) else { return Err(Error::AGAIN) };
        if out.executor.fetches() && conn.reads.len() + conn.atomics.len() >= FETCHES {
            return Err(Error::AGAIN);
        }
        let is_open = conn.phase == Phase::Ready;
        if is_open && !conn.takes_atomics() {
            return Err(not_ours("an atomic operation"));
        }
        let joins_others = !is_open && !conn.atomics.is_empty() && conn.atomics.len() < EARLY;
        let is_fenced = out.flags.contains(OpFlags::FENCE) && self.peers[out.peer as usize].outstanding > 0;
        if (!joins_others || is_fenced) && !self.may_post(out.peer, out.flags, id) {
            return Err(Error::AGAIN);
        }
        let executor = &out.executor;
        let operands = if executor.takes_operands() { out.len } else { 0 };
        let comparands = if executor.compares() { out.len } else { 0 };
        let mut payload = vec![0; operands + comparands];
        let to = payload.as_mut_ptr();
        // SAFETY: the pieces are lent during the call, and there is room for both.
        unsafe { copy::gather(out.operands, 0, to, operands) };
        // SAFETY: as above, behind the operands.
        unsafe { copy::gather(out.comparands, 0, to.wrapping_add(operands), comparands) };
        let fetches = executor.fetches();
        let op =
            if fetches { TcpOp::Read { pieces: out.results.into(), len: out.len } } else { TcpOp::Confirm };
        let op = host.open(out.peer, out.ticket, op);
        self.peers[out.peer as usize].outstanding += 1;
        let packet = Packet::Atomic { what: executor.to_wire(), remote, len: payload.len() as u64 };
        let Some(conn) = self.conn(id) else { return Ok(Posted::Pending) };
        let atomic = Atomic { op, packet, fetches, payload };
        if !is_open {
            conn.atomics.push(atomic);
            return Ok(Posted::Pending);
        }
        conn.begin(atomic);
        self.leave(host, id, &out.ticket, out.flags);
        Ok(Posted::Pending)
    }

    /// Starts the operations that have waited for the connection, or fails them.
    pub(super) fn begin_atomics<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId) {
        let Some(conn) = self.conn(id) else { return };
        let (takes, waiting) = (conn.takes_atomics(), std::mem::take(&mut conn.atomics));
        let Some(peer) = conn.peer else { return };
        for atomic in waiting {
            if !takes {
                if host.finish(peer, atomic.op, Err(Errno::EOPNOTSUPP)).is_some() {
                    let entry = &mut self.peers[peer as usize];
                    entry.outstanding = entry.outstanding.saturating_sub(1);
                }
            } else if let Some(conn) = self.conn(id) {
                conn.begin(atomic);
            }
        }
    }

    /// See [`ofi_core::transport::TransportEndpoint::note`].
    pub(crate) fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let id = self.connection(out.peer)?;
        let Some(conn) = self.conn(id).filter(|conn| conn.phase == Phase::Ready) else {
            return Err(Error::AGAIN);
        };
        if !conn.takes_notes() {
            return Err(not_ours("a collective"));
        }
        if !self.may_post(out.peer, OpFlags::empty(), id) {
            return Err(Error::AGAIN);
        }
        let Some(conn) = self.conn(id) else { return Err(Error::AGAIN) };
        conn.out.header(&Packet::Note { words: out.words, len: out.len as u64 }, conn.order);
        let filled = conn.out.fill(out.len, |to| {
            // SAFETY: the pieces are lent during the call, and `to` has `len` bytes.
            unsafe { copy::gather(out.pieces, out.skip, to.as_mut_ptr(), out.len) };
            Ok::<(), Error>(())
        });
        if !std::mem::replace(&mut conn.dirty, true) {
            self.dirty.push(id);
        }
        filled
    }

    /// See [`ofi_core::transport::TransportEndpoint::await_note`]. The end of a peer shows by the end of its
    /// connection.
    pub(crate) fn await_note(&mut self, peer: PeerId) {
        let Ok(id) = self.connection(peer) else { return };
        let is_theirs = self.conn(id).is_some_and(|conn| conn.phase == Phase::Ready && !conn.takes_notes());
        if is_theirs && !self.silent.contains(&peer) {
            self.silent.push(peer);
        }
    }

    /// Tells the core which peers will never send the notes that it waits for.
    pub(super) fn report_silent<H: Upcalls<Tcp>>(&mut self, host: &mut H) {
        for peer in std::mem::take(&mut self.silent) {
            host.notes_gone(peer, Errno::EOPNOTSUPP);
        }
    }
}

impl Conn {
    /// Whether the peer takes atomic operations. The operands have this host's byte order.
    pub(super) fn takes_atomics(&self) -> bool {
        self.extras.atomics && self.order == Order::Own
    }

    /// Whether the peer takes notes. What collectives add up has this host's byte order.
    fn takes_notes(&self) -> bool {
        self.extras.notes && self.order == Order::Own
    }

    /// Queues an operation of this end.
    pub(super) fn begin(&mut self, atomic: Atomic) {
        self.out.header(&atomic.packet, self.order);
        let copied = self.out.fill(atomic.payload.len(), |to| {
            to.copy_from_slice(&atomic.payload);
            Ok::<(), std::convert::Infallible>(())
        });
        let Ok(()) = copied;
        if atomic.fetches { self.reads.push_back(atomic.op) } else { self.acks.push_back(atomic.op) }
    }

    /// Executes an operation of the peer.
    ///
    /// # Errors
    /// A remote piece that is none.
    #[inline(never)]
    pub(crate) fn take_atomic<H: Upcalls<Tcp>>(
        &mut self,
        at: &mut At<'_, H>,
        what: u16,
        remote: &[ofi_api::RemotePiece],
        payload: &[u8],
    ) -> Result<(), Broken> {
        let regions = &at.common.domain.regions;
        let Some(executor) = Executor::from_wire(what) else {
            // The peer's processor can do what this one cannot. The number's kind says which answer it waits for.
            self.refuse(what >> 10 != 0, Errno::EOPNOTSUPP);
            return Ok(());
        };
        let mut sent = Sent::default();
        let allowed = regions.check_served(at.common.caps, at.who(), remote, Caps::ATOMIC, executor.rights());
        let executed = allowed.and_then(|_| sent.execute(&executor, regions, at.who(), remote, payload));
        match executed {
            Err(errno) => self.refuse(executor.fetches(), errno),
            Ok(old) => {
                if executor.fetches() {
                    self.out.header(&Packet::ReadAnswer { len: old.len() as u64 }, self.order);
                    self.out.fill(old.len(), |to| {
                        to.copy_from_slice(old);
                        Ok::<(), Broken>(())
                    })?;
                    self.dirty = true;
                } else {
                    self.acknowledge();
                }
                at.host.accessed(regions, executor.rights(), remote);
            }
        }
        Ok(())
    }
}
