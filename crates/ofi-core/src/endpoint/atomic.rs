//! Posting atomic operations.

use ofi_api::{
    AtomicKind, AtomicOp, Call, Caps, CompletionFlags, Datatype, EpType, Errno, Error, FiOp, Lent, OpFlags,
    Result,
};

use super::post::not_enabled;
use super::transmit::{TxSide, bad_flags, many_len, not_opened_for};
use super::{EpCore, State};
use crate::atomic::Executor;
use crate::transport::{CompletionInfo, OutAtomic, Transport, TransportEndpoint};

/// The operations and limits of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtomicSide {
    may_read: bool,
    may_write: bool,
    /// The endpoint type, which determines the operations that exist ([`Transport::has_atomic`]).
    ep: EpType,
    /// The maximum number of bytes of one operation, and of an injected one.
    pub size: usize,
    pub inject: usize,
    pub posted: u64,
}

impl AtomicSide {
    /// The most elements of one call.
    pub fn valid<T: Transport>(&self, kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<usize> {
        self.check(kind, op)?;
        Ok(self.size / find::<T>(self.ep, kind, op, datatype)?.size())
    }

    /// The side of an endpoint of this type, with these capabilities.
    pub fn new<T: Transport>(caps: Caps, ep: EpType, inject: usize) -> Self {
        let size = T::atomic_size(ep);
        let named = caps & Caps::RMA_DIRECTIONS;
        let may = |way| caps.contains(Caps::ATOMIC) && (named.is_empty() || named.contains(way));
        Self {
            may_read: may(Caps::READ),
            may_write: may(Caps::WRITE),
            ep,
            size,
            inject: inject.min(size),
            posted: 0,
        }
    }

    /// Refuses operations that the endpoint was not opened for.
    fn check(&self, kind: AtomicKind, op: FiOp) -> Result<()> {
        let (reads, writes) = (kind != AtomicKind::Base, op != FiOp::AtomicRead);
        if (reads && !self.may_read) || (writes && !self.may_write) {
            let (call, caps) = match kind {
                AtomicKind::Base => ("fi_atomic", "FI_ATOMIC and FI_WRITE"),
                AtomicKind::Fetch => ("fi_fetch_atomic", "FI_ATOMIC, FI_READ and FI_WRITE"),
                AtomicKind::Compare => ("fi_compare_atomic", "FI_ATOMIC, FI_READ and FI_WRITE"),
            };
            return Err(not_opened_for(call, caps));
        }
        Ok(())
    }
}

/// Checks memory that must be as long as the target.
#[inline]
fn same_len(what: &str, lent: &Lent<'_>, iov_limit: usize, len: usize) -> Result<()> {
    match lent.pieces() {
        [one] if one.len == len && !one.addr.is_null() && iov_limit > 0 => Ok(()),
        _ => same_len_of_many(what, lent, iov_limit, len),
    }
}

/// As `same_len`, for any number of pieces; the error says what is wrong with them.
#[inline(never)]
fn same_len_of_many(what: &str, lent: &Lent<'_>, iov_limit: usize, len: usize) -> Result<()> {
    let found = many_len(lent, iov_limit)?;
    if found != len {
        return Err(Error::wanted(
            Errno::EINVAL,
            format!("the length of the {what} in bytes"),
            format!("{len}, as long as the remote memory"),
            found.to_string(),
            "give all buffers the same number of elements",
        ));
    }
    Ok(())
}

/// The executor of an operation for endpoints of a type.
///
/// # Errors
/// `FI_EOPNOTSUPP` for meaningless or unsupported combinations.
#[inline]
pub fn find<T: Transport>(ep: EpType, kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<Executor> {
    let executor = Executor::find(kind, op, datatype)?;
    if T::has_atomic(ep, kind, op, datatype) { Ok(executor) } else { Err(not_of_these(ep, op, datatype)) }
}

impl<T: Transport> EpCore<T> {
    /// See [`ofi_api::Endpoint::atomic_valid`].
    pub(super) fn atomic_valid(&self, kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<usize> {
        self.state.lock().ends.tx.atomics.valid::<T>(kind, op, datatype)
    }

    /// See [`ofi_api::Endpoint::atomic`].
    pub(super) fn atomic(&self, op: &AtomicOp<'_>) -> Result<()> {
        let mut guard = self.state.lock();
        let outcome = guard.atomic(0, op);
        self.posted(guard, outcome)
    }
}

impl<T: Transport> TxSide<T> {
    /// Checks an atomic as far as possible before its peer is known. Returns its executor, its flags, whether its
    /// success is reported, and its length.
    pub fn check_atomic(&self, op: &AtomicOp<'_>) -> Result<(Executor, OpFlags, bool, usize)> {
        let side = self.atomics;
        side.check(op.kind, op.op)?;
        let executor = find::<T>(side.ep, op.kind, op.op, op.datatype)?;
        let (flags, signal) = self.flags(op.call, op.flags)?;
        if flags.contains(OpFlags::REMOTE_CQ_DATA) {
            return Err(bad_flags(OpFlags::REMOTE_CQ_DATA));
        }
        if op.call == Call::Inject && op.kind != AtomicKind::Base {
            return Err(no_inject());
        }
        let limits = &self.limits;
        let len = remote_len(op, &executor, limits.rma_iov)?;
        let size = if flags.contains(OpFlags::INJECT) { side.inject } else { side.size };
        if len > size {
            return Err(too_many(len, size, &executor));
        }
        if executor.takes_operands() {
            same_len("operands", &op.buf, limits.iov, len)?;
        }
        if executor.compares() {
            same_len("comparands", &op.compare, limits.iov, len)?;
        }
        if executor.fetches() {
            same_len("room for results", &op.result, limits.iov, len)?;
        }
        Ok((executor, flags, signal, len))
    }
}

impl<T: Transport> State<T> {
    /// Posts an atomic of transmit context `at`.
    pub(super) fn atomic(&mut self, at: u16, op: &AtomicOp<'_>) -> Result<()> {
        let tx = self.ends.sender(at).0;
        let (executor, flags, signal, len) = tx.check_atomic(op)?;
        let route = tx.route;
        if tx.devices {
            let pieces = [op.buf.pieces(), op.compare.pieces(), op.result.pieces()];
            self.ends.only_host("an atomic operation", &pieces)?;
        }
        let (peer, _) = self.dest(op.peer)?;
        if self.ends.no_transmit_credit(at) {
            return Err(self.no_credit());
        }
        let kind = if executor.fetches() { CompletionFlags::READ } else { CompletionFlags::WRITE };
        let ticket = CompletionInfo {
            context: op.context,
            flags: CompletionFlags::ATOMIC | kind,
            signal,
            len,
            route,
            at,
        };
        let out = OutAtomic {
            executor,
            operands: if executor.takes_operands() { op.buf.pieces() } else { &[] },
            comparands: if executor.compares() { op.compare.pieces() } else { &[] },
            results: if executor.fetches() { op.result.pieces() } else { &[] },
            remote: op.remote,
            len,
            peer,
            flags,
            ticket,
        };
        let (transport, host) = self.split().ok_or_else(not_enabled)?;
        let outcome = transport.atomic(host, &out);
        self.ends.sender(at).0.atomics.posted += u64::from(outcome.is_ok());
        self.posted(outcome, &ticket)
    }
}

/// The length of the remote memory: elements, at least one.
#[inline]
fn remote_len(op: &AtomicOp<'_>, executor: &Executor, limit: usize) -> Result<usize> {
    match op.remote {
        [one] if one.len > 0 && executor.divides(one.len) && limit > 0 => Ok(one.len),
        _ => remote_len_of_many(op, executor, limit),
    }
}

/// As `remote_len`, for any number of pieces; the error says what is wrong with them.
#[inline(never)]
fn remote_len_of_many(op: &AtomicOp<'_>, executor: &Executor, limit: usize) -> Result<usize> {
    let wrong = |what: &str, wanted: String, found: String| {
        Err(Error::wanted(Errno::EINVAL, what, wanted, found, "see fi_atomic(3)"))
    };
    if op.remote.is_empty() || op.remote.len() > limit {
        let wanted = format!("1 to {limit} (tx_attr.rma_iov_limit)");
        return wrong("rma_iov_count", wanted, op.remote.len().to_string());
    }
    if let Some(piece) = op.remote.iter().find(|piece| !executor.divides(piece.len)) {
        let wanted = format!("a multiple of {}, the size of an element", executor.size());
        return wrong("the length of a remote piece in bytes", wanted, piece.len.to_string());
    }
    let len = op.remote.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len));
    if len == 0 {
        return wrong("the number of elements", "at least one".into(), "0".into());
    }
    Ok(len)
}

#[cold]
fn too_many(len: usize, size: usize, executor: &Executor) -> Error {
    Error::wanted(
        Errno::EMSGSIZE,
        "the number of elements",
        format!("at most {}", size / executor.size()),
        (len / executor.size()).to_string(),
        "ask fi_atomicvalid for the limit, and split the operation",
    )
}

#[cold]
fn not_of_these(ep: EpType, op: FiOp, datatype: Datatype) -> Error {
    Error::wanted(
        Errno::EOPNOTSUPP,
        format!("an atomic operation of {ep}"),
        "one that the peer's device executes",
        format!("{op} on {datatype}"),
        "ask fi_query_atomic first, and do the others with messages",
    )
}

#[cold]
fn no_inject() -> Error {
    Error::wanted(
        Errno::EOPNOTSUPP,
        "fi_inject_atomic",
        "an operation without results",
        "one that fetches",
        "fetch with a completion, which says when the results are there",
    )
}
