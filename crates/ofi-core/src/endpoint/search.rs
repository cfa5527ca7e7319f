//! Searching the messages that wait: peek, claim, discard.

use ofi_api::{
    CompletionFlags, CqErrorEntry, CqTaggedEntry, Errno, Error, FiAddr, OpFlags, ReceiveOp, Result,
};

use super::State;
use super::queue::{Filling, Held, Kept};
use super::receive;
use super::receiver::Receiver;
use super::transmit::bad_flags;
use crate::cq::Credit;
use crate::matching::{self, Unexpected, Want};
use crate::transport::{Lanes, Transport};

/// What a tagged receive may be flagged with to search.
pub const SEARCH_FLAGS: OpFlags = OpFlags::PEEK.union(OpFlags::CLAIM).union(OpFlags::DISCARD);

impl<T: Transport> State<T> {
    /// Peek, claim, discard, and receiving what was claimed.
    #[cold]
    pub(super) fn search(&mut self, at: u16, op: &ReceiveOp<'_>, want: &Want, flags: OpFlags) -> Result<()> {
        let credit = &mut self.ends.receiver(at).boxes.credits[Credit::Receive as usize];
        if *credit == 0 {
            return Err(self.no_credit());
        }
        *credit -= 1;
        self.drive();
        let has = |flag| flags.contains(flag);
        let context = op.context.0;
        match (has(OpFlags::PEEK), has(OpFlags::CLAIM), has(OpFlags::DISCARD)) {
            (true, true, false) => {
                let found = self
                    .ends
                    .receiver(at)
                    .rx
                    .queue
                    .matcher
                    .claim(want, context)
                    .map(|message| message.envelope);
                self.found(at, op, want, found);
            }
            (true, false, false) => {
                let found =
                    self.ends.receiver(at).rx.queue.matcher.peek(want).map(|message| message.envelope);
                self.found(at, op, want, found);
            }
            (true, false, true) => {
                let message = self.ends.receiver(at).rx.queue.matcher.discard(want);
                self.discarded(at, op, want, message);
            }
            (false, true, true) => {
                let message = self.ends.receiver(at).rx.queue.matcher.take_claimed(context);
                self.discarded(at, op, want, message);
            }
            (false, true, false) => match self.ends.receiver(at).rx.queue.matcher.take_claimed(context) {
                Some(message) => {
                    let rx = self.ends.receiver(at).rx;
                    let posted = rx.posted(op.context, &op.buf, rx.reports(flags));
                    let arrived = receive::arrived(&message.envelope, message.content.peer);
                    let filling = Filling { at, ..rx.queue.fill(posted, &arrived) };
                    self.settle(filling, message.content.held);
                }
                None => {
                    self.ends.receiver(at).boxes.credits[Credit::Receive as usize] += 1;
                    return Err(Error::wanted(
                        Errno::EINVAL,
                        "fi_trecvmsg with FI_CLAIM",
                        "the context of an earlier FI_PEEK | FI_CLAIM that found a message",
                        format!("{context:#x}, for which none is claimed"),
                        "claim first, with the same context",
                    ));
                }
            },
            _ => {
                self.ends.receiver(at).boxes.credits[Credit::Receive as usize] += 1;
                return Err(bad_flags(flags & SEARCH_FLAGS));
            }
        }
        Ok(())
    }

    fn discarded(&mut self, at: u16, op: &ReceiveOp<'_>, want: &Want, message: Option<Unexpected<Kept<T>>>) {
        let found = message.as_ref().map(|message| message.envelope);
        if let Some(Unexpected { content: Kept { held: Held::AtSender(token), peer, .. }, .. }) = message
            && let Some((lanes, _)) = self.split()
        {
            lanes.discard(peer, token);
        }
        self.found(at, op, want, found);
    }

    /// Reports what a search found.
    fn found(&mut self, at: u16, op: &ReceiveOp<'_>, want: &Want, found: Option<matching::Envelope>) {
        let Receiver { rx, boxes, peers, .. } = self.ends.receiver(at);
        let Some(envelope) = found else {
            let flags = CompletionFlags::RECV | CompletionFlags::TAGGED;
            let mut error = CqErrorEntry::new(op.context, flags, Errno::ENOMSG);
            error.tag = want.tag;
            return boxes.not_found(error, Credit::Receive);
        };
        if !rx.bound {
            boxes.credits[Credit::Receive as usize] += 1;
            return;
        }
        let arrived = receive::arrived(&envelope, envelope.peer.0);
        let source = if rx.report_source { peers.source(arrived.peer) } else { FiAddr::NOTAVAIL };
        let body = CqTaggedEntry {
            op_context: op.context,
            flags: receive::arrived_flags(&arrived),
            len: arrived.len,
            buf: std::ptr::null_mut(),
            data: arrived.data,
            tag: arrived.tag,
        };
        boxes.received(body, source, Credit::Receive);
    }
}
