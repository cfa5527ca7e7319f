//! Peek, claim and discard of unexpected messages.

use ofi_api::{
    CompletionFlags, Context, CqErrorEntry, CqTaggedEntry, Errno, Error, FiAddr, OpFlags, ReceiveOp, Result,
};

use super::State;
use super::post_receive::check_pieces;
use super::queue::{Filling, Kept, UnexpectedPayload};
use super::receive;
use super::receiver::Receiver;
use super::transmit::bad_flags;
use crate::cq::Credit;
use crate::matching::{Unexpected, Want};
use crate::transport::{Arrived, Transport, TransportEndpoint};

/// The flags of a searching tagged receive.
pub const SEARCH_FLAGS: OpFlags = OpFlags::PEEK.union(OpFlags::CLAIM).union(OpFlags::DISCARD);

/// A waiting message, as its endpoint would report it.
pub(super) fn waiting<T: Transport>(message: &Unexpected<Kept<T>>) -> Arrived {
    receive::arrived(&message.envelope, message.content.peer)
}

/// A discarded message, and its stored content.
fn told<T: Transport>(message: Unexpected<Kept<T>>) -> (Arrived, UnexpectedPayload<T>) {
    (waiting(&message), message.content.held)
}

/// The kinds of searches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// Reports a message and leaves it.
    Peek,
    /// Sets a message aside for the search's context.
    Claim,
    /// Discards a message.
    Discard,
    /// Receives the message that was set aside.
    ReceiveClaimed,
    /// Discards the message that was set aside.
    DiscardClaimed,
}

impl Search {
    /// The search that these flags request.
    ///
    /// # Errors
    /// `FI_EBADFLAGS` for contradictory flags.
    pub(super) fn of(flags: OpFlags) -> Result<Self> {
        let has = |flag| flags.contains(flag);
        Ok(match (has(OpFlags::PEEK), has(OpFlags::CLAIM), has(OpFlags::DISCARD)) {
            (true, false, false) => Self::Peek,
            (true, true, false) => Self::Claim,
            (true, false, true) => Self::Discard,
            (false, true, false) => Self::ReceiveClaimed,
            (false, true, true) => Self::DiscardClaimed,
            _ => return Err(bad_flags(flags & SEARCH_FLAGS)),
        })
    }
}

/// The error for a context without a claimed message.
#[cold]
pub(super) fn not_claimed(context: Context) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "fi_trecvmsg with FI_CLAIM",
        "the context of an earlier FI_PEEK | FI_CLAIM that found a message",
        format!("{:#x}, for which none is claimed", context.0),
        "claim first, with the same context",
    )
}

impl<T: Transport> State<T> {
    /// Peeks, claims, discards, or receives a claimed message.
    #[cold]
    pub(super) fn search(&mut self, at: u16, op: &ReceiveOp<'_>, want: &Want, flags: OpFlags) -> Result<()> {
        let search = Search::of(flags)?;
        if search == Search::ReceiveClaimed {
            check_pieces(op, self.ends.receiver(at).rx.iov_limit)?;
        }
        let device = match self.device_parts(op.buf.pieces()) {
            Some(memory) if search == Search::ReceiveClaimed => self.receive_device(at, op, flags, memory)?,
            _ => None,
        };
        let credit = &mut self.ends.receiver(at).staging.credits[Credit::Receive as usize];
        if *credit == 0 {
            return Err(self.no_credit());
        }
        *credit -= 1;
        let context = op.context.0;
        let matcher = &mut self.ends.receiver(at).rx.queue.matcher;
        match search {
            Search::Claim => {
                let found = matcher.claim(want, context).map(waiting);
                self.found(at, op, want, found);
            }
            Search::Peek => {
                let found = matcher.peek(want).map(waiting);
                self.found(at, op, want, found);
            }
            Search::Discard => {
                let message = matcher.discard(want).map(told);
                self.discarded(at, op, want, message);
            }
            Search::DiscardClaimed => {
                let message = matcher.take_claimed(context).map(told);
                self.discarded(at, op, want, message);
            }
            Search::ReceiveClaimed => match matcher.take_claimed(context) {
                Some(message) => {
                    let rx = self.ends.receiver(at).rx;
                    let posted = match device {
                        None => rx.posted(op.context, &op.buf, rx.reports(flags)),
                        Some(special) => rx.queue.posted_special(op.context, special),
                    };
                    let filling = Filling { at, ..rx.queue.fill(posted, &waiting(&message)) };
                    self.settle(filling, message.content.held);
                }
                None => {
                    self.ends.receiver(at).staging.credits[Credit::Receive as usize] += 1;
                    return Err(not_claimed(op.context));
                }
            },
        }
        Ok(())
    }

    /// Tells the sender that its message was discarded, and reports to the application which message it was.
    pub(super) fn discarded(
        &mut self,
        at: u16,
        op: &ReceiveOp<'_>,
        want: &Want,
        message: Option<(Arrived, UnexpectedPayload<T>)>,
    ) {
        let found = message.as_ref().map(|(arrived, _)| *arrived);
        if let Some((Arrived { peer, .. }, UnexpectedPayload::AtSender(token))) = message
            && let Some((transport, _)) = self.split()
        {
            transport.discard(peer, token);
        }
        self.found(at, op, want, found);
    }

    /// Reports the result of a search.
    pub(super) fn found(&mut self, at: u16, op: &ReceiveOp<'_>, want: &Want, found: Option<Arrived>) {
        let Receiver { rx, staging, peers, .. } = self.ends.receiver(at);
        let Some(arrived) = found else {
            let flags = CompletionFlags::RECV | CompletionFlags::TAGGED;
            let mut error = CqErrorEntry::new(op.context, flags, Errno::ENOMSG);
            error.tag = want.tag;
            return staging.not_found(error, Credit::Receive);
        };
        if !rx.bound {
            staging.credits[Credit::Receive as usize] += 1;
            return;
        }
        let source = if rx.report_source { peers.source(arrived.peer) } else { FiAddr::NOTAVAIL };
        let body = CqTaggedEntry {
            op_context: op.context,
            flags: receive::arrived_flags(&arrived),
            len: arrived.len,
            buf: std::ptr::null_mut(),
            data: arrived.data,
            tag: arrived.tag,
        };
        staging.received(body, source, Credit::Receive);
    }
}
