//! Atomic operations. An operation runs in place if the peer has granted a mapping and one instruction can do it.
//! Otherwise the owner of the memory executes it, like the remote accesses of `rma/` and in one order with them.
//!
//! An operation is executed only once: the owner reserves room for its answer first, and an initiator that loses a
//! grant halfway fails the operation instead of starting over.

use std::mem::MaybeUninit;

use ofi_api::{Errno, Error, Piece, RemotePiece, Result};
use ofi_core::atomic::Executor;
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{OutAtomic, Payload, Posted, Upcalls};
use ofi_ring::crash_point;

use crate::Shm;
use crate::command::{CommandWriter, RMA_IOV_LIMIT, SHORT_READ, Words, kind};
use crate::common::{Common, accessor, full};
use crate::op::{Op, ReadPath};
use crate::peer::grants::KeyState;
use crate::peer::parked::{AtomicAccess, Parked};
use crate::peer::{Broken, NextStep, Peer};
use crate::rma::AccessPath;

/// Bit offset of the executor in a command's half of the header word.
const EXECUTOR: u32 = 16;

/// The maximum number of bytes of one operation: its results fit into a reply, its operands and comparands into a
/// command after the words.
pub fn size_limit() -> usize {
    const WORDS: usize = 2 + 3 * RMA_IOV_LIMIT;
    let lines = crate::settings::COMMAND_LINES.get().next_power_of_two();
    let command = (ofi_ring::record::max_body(lines) - 8 * WORDS) / 2;
    command.min(MAX_ATOMIC_LEN) / 32 * 32 // whole elements of every type
}

/// The maximum length of one operation, in bytes, with command rings of any size: its results must fit into a reply.
const MAX_ATOMIC_LEN: usize = SHORT_READ;

/// Space for the operands, comparands or results of one operation. Never initialised as a whole.
#[repr(align(16))]
struct Scratch(MaybeUninit<[u8; MAX_ATOMIC_LEN]>);

impl Scratch {
    const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    fn addr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// The address of a single piece, or of a copy of several in `scratch`.
///
/// # Safety
/// The pieces are lent and have at most [`MAX_ATOMIC_LEN`] bytes.
unsafe fn joined(pieces: &[Piece], len: usize, scratch: &mut Scratch) -> *const u8 {
    match pieces {
        [] => std::ptr::null(),
        [one] => one.addr,
        many => {
            // SAFETY: the caller's promise.
            unsafe { copy::gather(many, 0, scratch.addr(), len) };
            scratch.addr()
        }
    }
}

/// Counts an operation that was performed through a mapping.
#[inline]
fn changed_directly(common: &mut Common) {
    crash_point!("atomic.changed");
    common.counts.direct_atomics += 1;
}

/// One operation, borrowed from the call that posts it or from [`AtomicAccess`].
struct Atomic<'a> {
    executor: Executor,
    operands: &'a [Piece],
    comparands: &'a [Piece],
    results: &'a [Piece],
    remote: &'a [RemotePiece],
    len: usize,
}

impl Peer {
    /// Changes the peer's memory.
    pub fn atomic<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutAtomic<'_>,
    ) -> Result<Posted> {
        self.ready_for_access(common, out.flags)?;
        if self.change_one(common, out) {
            return Ok(Posted::Done);
        }
        if self.parked.queue.is_empty() {
            let atomic = Atomic {
                executor: out.executor,
                operands: out.operands,
                comparands: out.comparands,
                results: out.results,
                remote: out.remote,
                len: out.len,
            };
            match self.route_of(common, &atomic) {
                AccessPath::Direct => match self.change_directly(common, &atomic) {
                    Ok(true) => return Ok(Posted::Done),
                    Ok(false) => {} // the grant was withdrawn: ask again
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
                    if let Err(error) = self.send_atomic(common, &atomic, id) {
                        host.abandon(id);
                        return Err(error);
                    }
                    if let Some(slot) = host.op(self.peer, id) {
                        *slot = commanded(out.results.into(), out.len);
                    }
                    (self.initiated.outstanding, self.busy) = (self.initiated.outstanding + 1, true);
                    self.initiated.commanded += 1;
                    return Ok(Posted::Pending);
                }
            }
        }
        let id = host.open(self.peer, out.ticket, Op::Parked);
        (self.initiated.outstanding, self.busy) = (self.initiated.outstanding + 1, true);
        self.parked.queue.push_back(Parked::Atomic { id, access: AtomicAccess::new(out) });
        self.parked.accesses += 1;
        self.move_parked(common, host);
        Ok(Posted::Pending)
    }

    /// The common case: one piece through its mapping, with one check of the grant. `false` means that nothing
    /// happened; the general path then handles it, and finds out why an error occurs.
    #[inline]
    fn change_one(&self, common: &mut Common, out: &OutAtomic<'_>) -> bool {
        let [piece] = out.remote else { return false };
        let Some(KeyState::Mapped(granted)) = self.grants.known.get(&piece.key) else { return false };
        if !self.may_be_direct(common) || !self.parked.queue.is_empty() {
            return false;
        }
        let one = |pieces: &[Piece]| match pieces {
            [] => Some(std::ptr::null_mut()),
            [one] => Some(one.addr),
            _ => None,
        };
        let (Some(operands), Some(comparands)) = (one(out.operands), one(out.comparands)) else {
            return false;
        };
        let (Some(old), Ok(target)) = (one(out.results), granted.resolve(piece.addr, piece.len, true)) else {
            return false;
        };
        let executor = &out.executor;
        if !executor.is_lock_free(target.addr() as u64) {
            return false;
        }
        let changed = self.while_granted(&granted.terms, || {
            // SAFETY: `resolve` checked that the piece's bytes at `target` are granted for reading and writing, and the
            // grant holds now; they are lock-free, so whoever shares them changes them at once. The core checked that
            // operands, comparands and results are as long, where the executor wants them, and they are lent.
            unsafe { executor.execute(target, operands, comparands, old, executor.count(piece.len)) };
        });
        if changed {
            changed_directly(common);
        }
        changed
    }

    /// Chooses the route: in place only if one instruction changes each element.
    fn route_of(&mut self, common: &Common, atomic: &Atomic<'_>) -> AccessPath {
        if atomic.remote.iter().all(|piece| atomic.executor.is_lock_free(self.place_of(piece))) {
            // For reads too, because a mapping for writing is only granted with both rights.
            match self.route(common, atomic.remote, true) {
                // A device's memory is changed by nobody: the owner says so.
                AccessPath::Direct if self.is_of_device(atomic.remote) => AccessPath::Command,
                route => route,
            }
        } else if self.up().is_none() {
            AccessPath::Wait
        } else {
            AccessPath::Command
        }
    }

    /// An address with the same alignment as the element at this remote address: its address in the mapping, if there
    /// is one.
    fn place_of(&self, piece: &RemotePiece) -> u64 {
        match self.grants.known.get(&piece.key) {
            Some(KeyState::Mapped(granted)) => {
                granted.resolve(piece.addr, piece.len, true).map_or(piece.addr, |target| target.addr() as u64)
            }
            _ => piece.addr,
        }
    }

    /// Changes memory through the mappings. Returns `false` if a grant was withdrawn before anything changed.
    ///
    /// # Errors
    /// The owner's answer.
    fn change_directly(&mut self, common: &mut Common, atomic: &Atomic<'_>) -> Result<bool, Errno> {
        let mut targets = [(std::ptr::null_mut::<u8>(), 0usize); RMA_IOV_LIMIT];
        for (target, piece) in targets.iter_mut().zip(atomic.remote) {
            let Some(resolved) = self.resolve(piece, true)? else { return Ok(false) };
            *target = (resolved, piece.len);
        }
        let (mut operands, mut comparands, mut results) = (Scratch::new(), Scratch::new(), Scratch::new());
        let executor = &atomic.executor;
        // SAFETY: the pieces are lent, and as long as the target, whose length is within the limit.
        let operands = unsafe { joined(atomic.operands, atomic.len, &mut operands) };
        // SAFETY: as above.
        let comparands = unsafe { joined(atomic.comparands, atomic.len, &mut comparands) };
        let old = match atomic.results {
            [] => std::ptr::null_mut(),
            [one] => one.addr,
            _ => results.addr(),
        };
        let mut done = 0;
        for (&(target, run), piece) in targets.iter().zip(atomic.remote) {
            let holds = match self.grants.known.get(&piece.key) {
                Some(KeyState::Mapped(granted)) => self.while_granted(&granted.terms, || {
                    let old = if old.is_null() { old } else { old.wrapping_add(done) };
                    let (operands, comparands) = (operands.wrapping_add(done), comparands.wrapping_add(done));
                    // SAFETY: `resolve` checked that `run` bytes at `target` are granted for reading and writing, and
                    // the grant holds now; they are lock-free (`route_of`), so whoever shares them changes them at
                    // once. Operands, comparands and results have `len` bytes, where the executor wants them.
                    unsafe { executor.execute(target, operands, comparands, old, executor.count(run)) };
                }),
                _ => false,
            };
            if !holds {
                self.grants.known.remove(&piece.key);
                // Starting over would change the first pieces twice.
                return if done == 0 { Ok(false) } else { Err(Errno::EKEYREJECTED) };
            }
            done += run;
        }
        if atomic.results.len() > 1 {
            // SAFETY: the executor has filled `len` bytes of the scratch; the pieces are lent.
            unsafe { copy::scatter(old, atomic.len, atomic.results, 0) };
        }
        changed_directly(common);
        Ok(true)
    }

    /// Sends an operation to be executed by the peer.
    fn send_atomic(&mut self, common: &mut Common, atomic: &Atomic<'_>, id: SlotId) -> Result<()> {
        let executor = &atomic.executor;
        let words = 2 + 3 * atomic.remote.len();
        let operands = if executor.takes_operands() { atomic.len } else { 0 };
        let comparands = if executor.compares() { atomic.len } else { 0 };
        let Some(link) = self.link_mut() else { return Err(Error::AGAIN) };
        let mut slot = match link.commands.reserve(words * 8 + operands + comparands) {
            Ok(slot) => slot,
            Err(error) => {
                self.found_no_room(words * 8 + operands + comparands);
                return Err(full(common, error));
            }
        };
        // SAFETY: words and payload were reserved.
        let mut body = unsafe { CommandWriter::new(slot.body()) };
        body.word(id.to_wire());
        body.word(atomic.remote.len() as u64);
        for piece in atomic.remote {
            body.word(piece.addr);
            body.word(piece.len as u64);
            body.word(piece.key);
        }
        // SAFETY: the pieces are lent, and as many bytes were reserved behind the words.
        unsafe { copy::gather(atomic.operands, 0, body.rest(), operands) };
        // SAFETY: as above, behind the operands.
        unsafe { copy::gather(atomic.comparands, 0, body.rest().wrapping_add(operands), comparands) };
        crash_point!("atomic.send");
        slot.publish(kind::ATOMIC | u32::from(executor.to_wire()) << EXECUTOR);
        self.ring(common);
        Ok(())
    }

    /// Starts an operation that waited, or returns it if it must still wait.
    pub fn move_atomic<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        id: SlotId,
        access: AtomicAccess,
    ) -> Option<AtomicAccess> {
        let [operands, comparands] = access.parts();
        let atomic = Atomic {
            executor: access.executor,
            operands: &operands,
            comparands: &comparands,
            results: &access.results,
            remote: &access.remote,
            len: access.len,
        };
        match self.route_of(common, &atomic) {
            AccessPath::Wait => return Some(access),
            AccessPath::Direct => {
                match self.change_directly(common, &atomic) {
                    Ok(true) => self.finish(host, id, Ok(())),
                    Ok(false) => return Some(access),
                    Err(errno) => self.finish(host, id, Err(errno)),
                }
                return None;
            }
            AccessPath::Command => {}
        }
        if self.send_atomic(common, &atomic, id).is_err() {
            return Some(access);
        }
        self.initiated.commanded += 1;
        if let Some(slot) = host.op(self.peer, id) {
            *slot = commanded(access.results, access.len);
        }
        None
    }

    /// Executes an operation of the peer.
    pub fn take_atomic<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        mut words: Words,
    ) -> Result<NextStep, Broken> {
        let executor = Executor::from_wire((high >> EXECUTOR) as u16).ok_or(Broken)?;
        let (op, checked) =
            self.parse_access(common, host, &mut words, ofi_api::Caps::ATOMIC, executor.rights())?;
        let (remote, len) = match checked {
            Ok(checked) => checked,
            Err(errno) => {
                self.done(common, op, Err(errno));
                return Ok(NextStep::Next);
            }
        };
        let (body, payload) = words.rest();
        let arrays = usize::from(executor.takes_operands()) + usize::from(executor.compares());
        if len == 0 || len > MAX_ATOMIC_LEN || payload != arrays * len {
            return Err(Broken);
        }
        // The peer could change the ring's bytes during use: make one copy, which reads each byte once.
        let (mut operands, mut comparands, mut results) = (Scratch::new(), Scratch::new(), Scratch::new());
        if executor.takes_operands() {
            // SAFETY: the record has `len` bytes of operands, and so has the scratch.
            unsafe { copy::bytes(body, operands.addr(), len) };
        }
        if executor.compares() {
            // SAFETY: as above, behind the operands.
            unsafe { copy::bytes(body.wrapping_add(len), comparands.addr(), len) };
        }
        let (operands, comparands) = (operands.addr(), comparands.addr());
        let (regions, peer) = (&common.shared.domain.regions, self.peer);
        if !executor.fetches() {
            let none = std::ptr::null_mut();
            let who = accessor(common, host, peer);
            // SAFETY: operands and comparands were just filled, where the executor wants them.
            let result = unsafe { executor.execute_at(regions, who, &remote, operands, comparands, none) };
            crash_point!("atomic.executed");
            if result.is_ok() {
                host.accessed(regions, executor.rights(), &remote);
            }
            self.done(common, op, result);
            return Ok(NextStep::Next);
        }
        let Some(link) = self.link_mut() else { return Ok(NextStep::Next) };
        // Reserve room for the answer first, so that a lack of it cannot make the operation run again.
        let Ok(mut slot) = link.replies.reserve(8 + len) else { return Ok(NextStep::Stop) };
        let who = accessor(common, host, peer);
        // SAFETY: as above, and the results have room for `len` bytes.
        let executed =
            unsafe { executor.execute_at(regions, who, &remote, operands, comparands, results.addr()) };
        crash_point!("atomic.fetched");
        if let Err(errno) = executed {
            drop(slot);
            self.done(common, op, Err(errno));
            return Ok(NextStep::Next);
        }
        // SAFETY: a word and `len` bytes were reserved.
        let mut reply = unsafe { CommandWriter::new(slot.body()) };
        reply.word(op);
        // SAFETY: the executor has filled `len` bytes, and as many were reserved.
        unsafe { copy::bytes(results.addr(), reply.rest(), len) };
        slot.publish(kind::DATA);
        host.accessed(&common.shared.domain.regions, executor.rights(), &remote);
        self.ring(common);
        Ok(NextStep::Next)
    }
}

/// The state of an operation that the peer executes: the destination of its results, if any.
fn commanded(results: Box<[Piece]>, len: usize) -> Op {
    if results.is_empty() {
        Op::Write(Payload::owned(Box::default()), None)
    } else {
        Op::Read { pieces: results, got: 0, len, coming: ReadPath::Parts(false) }
    }
}
