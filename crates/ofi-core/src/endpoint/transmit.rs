//! The transmit side: the checks of a call before its operation goes to the transport.

use ofi_api::{Call, CompletionFlags, CqTaggedEntry, Errno, Error, Lent, OpFlags, Result, RmaOp, SendOp};

use super::atomic::AtomicSide;
use super::shared_transmit::Loan;
use crate::slots::Slots;
use crate::transport::{CompletionInfo, CounterTarget, PeerId, Transport};

/// An operation that has not ended.
pub struct TxOp<O> {
    pub peer: PeerId,
    pub ticket: CompletionInfo,
    /// The transport's part.
    pub op: O,
}

/// Statistics of the transmit side.
#[derive(Default)]
pub struct Counts {
    pub messages: u64,
    pub bytes: u64,
    pub writes: u64,
    pub reads: u64,
    pub again: u64,
    pub failed: u64,
    pub dropped: u64,
}

/// Limits on what may be posted.
#[derive(Clone, Debug, Default)]
pub struct PostLimits {
    pub message: usize,
    pub tagged: usize,
    pub rma: usize,
    pub inject_message: usize,
    pub inject_tagged: usize,
    pub inject_rma: usize,
    pub iov: usize,
    pub rma_iov: usize,
    /// The bytes of each message that the limits above do not include ([`Transport::prefix`]).
    pub prefix: usize,
}

impl PostLimits {
    /// Converts a limit of messages to a limit of the length that callers give, which includes the prefix.
    #[inline]
    fn with_prefix(&self, limit: usize) -> usize {
        limit.saturating_add(self.prefix)
    }
}

/// The conditions for a send of one piece without flags to take the fast path: all checks that depend only on the
/// endpoint's settings, evaluated once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quick {
    /// Its length must be below this: for a plain call, and for an injected one.
    pub plain: usize,
    pub inject: usize,
    /// Whether the success of a plain one is reported.
    pub signal: bool,
}

/// The same for a read or a write of one piece at either end without flags.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuickAccess {
    /// Its length is below this.
    pub below: usize,
    /// Whether its success is reported.
    pub signal: bool,
}

/// The transmit side of an endpoint.
pub struct TxSide<T: Transport> {
    pub ops: Slots<TxOp<T::Op>>,
    pub op_flags: OpFlags,
    /// The queue was bound with `FI_SELECTIVE_COMPLETION`.
    pub selective: bool,
    pub bound: bool,
    /// Sends may be flagged with `FI_MATCH_COMPLETE`.
    pub matches: bool,
    /// And with `FI_MULTICAST`.
    pub multicast: bool,
    /// A counter counts sends.
    pub counted: bool,
    /// Addresses name receive contexts, so no send takes the fast path.
    pub names: bool,
    /// Memory may be a device's (`FI_HMEM`), so nothing takes the fast path.
    pub devices: bool,
    /// Its part in a shared transmit context.
    pub loan: Option<Loan<T>>,
    /// The counter of the operation being posted: the endpoint's, except for deferred work.
    pub route: CounterTarget,
    /// Whether the endpoint has these capabilities: untagged and tagged sends, reads, writes.
    pub may_send: [bool; 2],
    pub may_read: bool,
    pub may_write: bool,
    pub atomics: AtomicSide,
    pub limits: PostLimits,
    /// Of untagged and tagged sends; made by [`TxSide::decide`].
    pub quick: [Quick; 2],
    /// Of reads and writes; as `quick`.
    pub quick_access: [QuickAccess; 2],
    pub counts: Counts,
}

/// Completion levels. A level says when an operation completes, not whether a selective queue gets an entry for it.
const LEVELS: OpFlags =
    OpFlags::INJECT_COMPLETE.union(OpFlags::TRANSMIT_COMPLETE).union(OpFlags::DELIVERY_COMPLETE);

/// All levels, including the one that few transports have.
const ALL_LEVELS: OpFlags = LEVELS.union(OpFlags::MATCH_COMPLETE);

/// The flags of a data transfer.
const ALLOWED: OpFlags = LEVELS
    .union(OpFlags::COMPLETION)
    .union(OpFlags::INJECT)
    .union(OpFlags::MORE)
    .union(OpFlags::FENCE)
    .union(OpFlags::REMOTE_CQ_DATA);

impl<T: Transport> TxSide<T> {
    pub fn new() -> Self {
        Self {
            ops: Slots::default(),
            op_flags: OpFlags::empty(),
            selective: false,
            bound: false,
            matches: false,
            multicast: false,
            counted: false,
            names: false,
            devices: false,
            loan: None,
            route: CounterTarget::ENDPOINT,
            may_send: [false; 2],
            may_read: false,
            may_write: false,
            atomics: AtomicSide::default(),
            limits: PostLimits::default(),
            quick: [Quick::default(); 2],
            quick_access: [QuickAccess::default(); 2],
            counts: Counts::default(),
        }
    }

    /// Recomputes [`Quick`] sends and accesses after a change of their conditions.
    pub fn decide(&mut self) {
        let below = |may: bool, limit: usize| if may { limit.saturating_add(1) } else { 0 };
        let [untagged, tagged] = self.may_send;
        let limits = &self.limits;
        let sizes = [
            (untagged, limits.message, limits.inject_message),
            (tagged, limits.tagged, limits.inject_tagged),
        ]
        .map(|(may, max, inject)| (may, limits.with_prefix(max), limits.with_prefix(inject)));
        let quick = self.op_flags.is_empty() && !self.counted && !self.names && !self.devices;
        self.quick = sizes.map(|(may, max, inject)| Quick {
            plain: below(may && quick, max),
            inject: below(may && quick, inject.min(max)),
            signal: !self.selective && self.bound,
        });
        // An access completes when it has been executed, so this level may be the default.
        let plain = OpFlags::COMPLETION | OpFlags::TRANSMIT_COMPLETE;
        let quick = plain.contains(self.op_flags) && !self.names && !self.devices;
        let signal = self.bound && (!self.selective || self.op_flags.contains(OpFlags::COMPLETION));
        self.quick_access = [self.may_read, self.may_write]
            .map(|may| QuickAccess { below: below(may && quick, limits.rma), signal });
    }

    /// The effective flags of a call, and whether its success is reported.
    #[inline]
    pub fn flags(&self, call: Call, given: OpFlags) -> Result<(OpFlags, bool)> {
        let flags = match call {
            Call::Plain => self.op_flags | given,
            Call::Inject => (self.op_flags | given | OpFlags::INJECT) - ALL_LEVELS,
            Call::Msg => given,
        };
        if !ALLOWED.contains(flags) {
            let mut others = flags - ALLOWED;
            others -= if self.matches { OpFlags::MATCH_COMPLETE } else { OpFlags::empty() };
            others -= if self.multicast { OpFlags::MULTICAST } else { OpFlags::empty() };
            if !others.is_empty() {
                return Err(bad_flags(others));
            }
        }
        let wanted = !self.selective || flags.contains(OpFlags::COMPLETION);
        let asked = self.route == CounterTarget::ENDPOINT || flags.contains(OpFlags::COMPLETION);
        Ok((flags, wanted && asked && call != Call::Inject && self.bound))
    }

    /// Checks a send as far as possible before its peer is known. Returns its flags, whether its success is reported,
    /// and its length.
    #[inline]
    pub fn check_send<const TAGGED: bool>(&self, op: &SendOp<'_>) -> Result<(OpFlags, bool, usize)> {
        if !self.may_send[usize::from(TAGGED)] {
            let caps = if TAGGED { "FI_TAGGED and FI_SEND" } else { "FI_MSG and FI_SEND" };
            return Err(not_opened_for(if TAGGED { "fi_tsend" } else { "fi_send" }, caps));
        }
        let (flags, signal) = self.flags(op.call, op.flags)?;
        let len = self.message_len(op, flags, TAGGED)?;
        Ok((flags, signal, len))
    }

    /// Checks a remote access as far as possible before its peer is known. Returns its flags, whether its success is
    /// reported, and its length.
    #[inline]
    pub fn check_rma(&self, op: &RmaOp<'_>, write: bool) -> Result<(OpFlags, bool, usize)> {
        if !(if write { self.may_write } else { self.may_read }) {
            let caps = if write { "FI_RMA and FI_WRITE" } else { "FI_RMA and FI_READ" };
            return Err(not_opened_for(if write { "fi_write" } else { "fi_read" }, caps));
        }
        let (mut flags, signal) = self.flags(op.call, op.flags)?;
        if !write && op.call == Call::Plain {
            flags -= self.op_flags & OpFlags::INJECT; // a default that has no meaning for a read
        }
        if !write && flags.intersects(OpFlags::INJECT | OpFlags::REMOTE_CQ_DATA) {
            return Err(bad_flags(flags & (OpFlags::INJECT | OpFlags::REMOTE_CQ_DATA)));
        }
        let len = self.rma_len(op, flags)?;
        Ok((flags, signal, len))
    }

    /// Checks a message's size and memory. Returns its length.
    #[inline]
    fn message_len(&self, op: &SendOp<'_>, flags: OpFlags, tagged: bool) -> Result<usize> {
        let (max, inject) = if tagged {
            (self.limits.tagged, self.limits.inject_tagged)
        } else {
            (self.limits.message, self.limits.inject_message)
        };
        let (max, inject) = (self.limits.with_prefix(max), self.limits.with_prefix(inject));
        checked_len(&op.buf, self.limits.iov, max, inject, flags)
    }

    /// Checks the sizes and memory of an RMA. Returns its length.
    fn rma_len(&self, op: &RmaOp<'_>, flags: OpFlags) -> Result<usize> {
        let limits = &self.limits;
        let len = checked_len(&op.buf, limits.iov, limits.rma, limits.inject_rma, flags)?;
        if op.remote.is_empty() || op.remote.len() > limits.rma_iov {
            return Err(Error::wanted(
                Errno::EINVAL,
                "rma_iov_count",
                format!("1 to {} (tx_attr.rma_iov_limit)", limits.rma_iov),
                op.remote.len().to_string(),
                "split the operation",
            ));
        }
        let remote = op.remote.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len));
        if remote != len {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the length of the remote memory",
                format!("{len}, as long as the local memory"),
                remote.to_string(),
                "give both the same total",
            ));
        }
        Ok(len)
    }
}

/// A successful transmit completion.
#[inline]
pub fn success(ticket: &CompletionInfo) -> CqTaggedEntry {
    CqTaggedEntry { op_context: ticket.context, flags: ticket.flags, ..CqTaggedEntry::EMPTY }
}

/// The flags of a send's completion.
#[inline]
pub const fn send_flags(tagged: bool) -> CompletionFlags {
    if tagged {
        CompletionFlags::SEND.union(CompletionFlags::TAGGED)
    } else {
        CompletionFlags::SEND.union(CompletionFlags::MSG)
    }
}

#[inline]
fn checked_len(
    lent: &Lent<'_>,
    iov_limit: usize,
    max: usize,
    inject: usize,
    flags: OpFlags,
) -> Result<usize> {
    let len = match lent.pieces() {
        [one] if one.addr.is_null() && one.len > 0 => return Err(null_piece(one.len)),
        [one] => one.len,
        _ => many_len(lent, iov_limit)?,
    };
    let limit = if flags.contains(OpFlags::INJECT) { inject.min(max) } else { max };
    if len > limit {
        return Err(too_long(len, limit, flags));
    }
    Ok(len)
}

/// Checks memory of several pieces, or none.
#[cold]
pub fn many_len(lent: &Lent<'_>, iov_limit: usize) -> Result<usize> {
    if lent.pieces().len() > iov_limit {
        return Err(Error::wanted(
            Errno::EINVAL,
            "iov_count",
            format!("at most {iov_limit} (iov_limit)"),
            lent.pieces().len().to_string(),
            "gather the pieces, or split the operation",
        ));
    }
    if let Some(null) = lent.pieces().iter().find(|piece| piece.addr.is_null() && piece.len > 0) {
        return Err(null_piece(null.len));
    }
    Ok(lent.len())
}

#[cold]
pub fn null_piece(len: usize) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "the buffer's address",
        "memory",
        format!("a null pointer with a length of {len}"),
        "give the buffer, or a length of 0",
    )
}

#[cold]
pub fn not_opened_for(call: &str, caps: &str) -> Error {
    Error::wanted(
        Errno::EOPNOTSUPP,
        call.to_string(),
        format!("an endpoint opened with {caps}"),
        "one without it in fi_info.caps",
        "ask getinfo for the capability",
    )
}

#[cold]
fn too_long(len: usize, limit: usize, flags: OpFlags) -> Error {
    let which = if flags.contains(OpFlags::INJECT) { "tx_attr.inject_size" } else { "ep_attr.max_msg_size" };
    Error::wanted(
        Errno::EMSGSIZE,
        "the message's length in bytes",
        format!("at most {limit} ({which})"),
        len.to_string(),
        "send without FI_INJECT, or split the message",
    )
}

#[cold]
pub fn bad_flags(bad: OpFlags) -> Error {
    Error::wanted(
        Errno::EBADFLAGS,
        "the operation's flags",
        "flags of this operation that the endpoint's info grants",
        format!("{bad}"),
        "leave them out; see fi_msg(3), fi_tagged(3), fi_rma(3)",
    )
}
