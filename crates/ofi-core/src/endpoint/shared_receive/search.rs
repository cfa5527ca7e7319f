//! Peek, claim and discard in a shared receive context.
//!
//! A message is reported by the endpoint through which it came, as if a receive had taken it. If nothing is found, the
//! first enabled endpoint reports that. The message is looked up under the context's lock and reported afterwards. Its
//! endpoint may close in between: then its messages are gone, and the search starts over.

use std::sync::Arc;

use ofi_api::{Errno, Error, OpFlags, ReceiveOp, Result, TagMatch};

use super::{Content, Settled, Settling, SharedRx, State};
use crate::endpoint::post_receive::check_pieces;
use crate::endpoint::queue::{Kept, SIGNALLED, SILENT};
use crate::endpoint::search::{Search, not_claimed, waiting};
use crate::endpoint::{self, EpCore};
use crate::matching::{Unexpected, Want};
use crate::transport::{Arrived, Transport};

/// The result of a search.
enum Found<T: Transport> {
    /// A message that still waits, or is set aside.
    Waits(Arrived),
    /// One that does not.
    Taken(Unexpected<Kept<T>>),
}

/// The result to report, and the endpoint that reports it.
pub(super) enum Step<T: Transport> {
    Tell(Arc<EpCore<T>>, Arrived),
    Discard(Arc<EpCore<T>>, Arrived, Content<T>),
    Receive(Settled<T>),
}

impl<T: Transport> SharedRx<T> {
    /// `fi_trecvmsg` with `FI_PEEK`, `FI_CLAIM` or `FI_DISCARD`.
    #[cold]
    pub(super) fn search(&self, op: &ReceiveOp<'_>, tag: TagMatch, flags: OpFlags) -> Result<()> {
        let search = Search::of(flags)?;
        if search == Search::ReceiveClaimed {
            check_pieces(op, self.attr.iov_limit)?;
        }
        let _settling = Settling::begin(&self.settling);
        // The message may disappear with its endpoint before the result is reported.
        while !self.search_once(search, op, tag, flags)? {
            std::thread::yield_now();
        }
        self.domain.works.run_if_due();
        Ok(())
    }

    /// Searches. Returns whether the result was reported.
    fn search_once(&self, search: Search, op: &ReceiveOp<'_>, tag: TagMatch, flags: OpFlags) -> Result<bool> {
        // Endpoints are driven first, so that a program that only searches finds its messages.
        let (first, teller) = self.drive().ok_or_else(no_endpoint)?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let want = state.want(&self.attr, op.source, Some(tag))?;
        if state.credits == 0 {
            drop(guard);
            return if self.collect() == 0 { Err(Error::AGAIN) } else { Ok(false) };
        }
        let step = state.search(search, op, &want, flags.contains(OpFlags::COMPLETION));
        if step.is_none() {
            if search == Search::ReceiveClaimed {
                return Err(not_claimed(op.context));
            }
            if !state.is_member(first, &teller) {
                return Ok(false);
            }
            state.take_room(first);
        }
        drop(guard);
        Ok(match step {
            None => teller.if_open(|state| state.found(0, op, &want, None)),
            Some(Step::Tell(core, arrived)) => core.if_open(|state| state.found(0, op, &want, Some(arrived))),
            Some(Step::Discard(core, arrived, content)) => core.discard(op, &want, arrived, content),
            Some(Step::Receive(settled)) => match settled.settle() {
                None => true,
                Some(_) => return Err(not_claimed(op.context)),
            },
        })
    }

    /// Drives the endpoints. Returns the first enabled one.
    fn drive(&self) -> Option<(u32, Arc<EpCore<T>>)> {
        let cores = self.state.lock().cores();
        let open = |(_, core): &(u32, Arc<EpCore<T>>)| core.if_open(endpoint::State::drive);
        cores.into_iter().filter(open).reduce(|first, _| first)
    }
}

impl<T: Transport> State<T> {
    /// Takes the room of one receive, which member `at` returns.
    fn take_room(&mut self, at: u32) {
        self.credits -= 1;
        self.give(at);
    }

    fn is_member(&self, at: u32, core: &Arc<EpCore<T>>) -> bool {
        let member = self.members.get(at as usize).and_then(Option::as_ref);
        member.is_some_and(|member| member.core.as_ptr() == Arc::as_ptr(core))
    }

    /// Looks for a message, and takes the room for reporting it.
    pub(super) fn search(
        &mut self,
        search: Search,
        op: &ReceiveOp<'_>,
        want: &Want,
        asked: bool,
    ) -> Option<Step<T>> {
        let matcher = &mut self.queue.matcher;
        let waits = |message: &Unexpected<Kept<T>>| (message.content.member, Found::Waits(waiting(message)));
        let taken = |message: Unexpected<Kept<T>>| (message.content.member, Found::Taken(message));
        let (member, found) = match search {
            Search::Peek => matcher.peek(want).map(waits),
            Search::Claim => matcher.claim(want, op.context.0).map(waits),
            Search::Discard => matcher.discard(want).map(taken),
            Search::ReceiveClaimed | Search::DiscardClaimed => matcher.take_claimed(op.context.0).map(taken),
        }?;
        let core = self.core(member)?;
        self.take_room(member);
        Some(match found {
            Found::Waits(arrived) => Step::Tell(core, arrived),
            Found::Taken(message) if search == Search::ReceiveClaimed => {
                let mark = if asked { SIGNALLED } else { SILENT };
                let posted = self.queue.posted(op.context, &op.buf, asked, mark);
                let filling = self.queue.fill(posted, &waiting(&message));
                Step::Receive(Settled { core, filling, content: self.hand_over(message.content) })
            }
            Found::Taken(message) => {
                let arrived = waiting(&message);
                Step::Discard(core, arrived, self.hand_over(message.content))
            }
        })
    }
}

impl<T: Transport> EpCore<T> {
    /// Calls a function with the endpoint if it is enabled and not closed. Returns whether it did.
    fn if_open(&self, act: impl FnOnce(&mut endpoint::State<T>)) -> bool {
        let mut guard = self.state.lock();
        let open = guard.transport.is_some();
        if open {
            act(&mut guard);
        }
        open
    }

    /// Discards a message of this endpoint. Returns whether the endpoint is still open.
    pub(super) fn discard(
        &self,
        op: &ReceiveOp<'_>,
        want: &Want,
        arrived: Arrived,
        content: Content<T>,
    ) -> bool {
        self.if_open(|state| {
            let message = state.take_matched(content).map(|held| (arrived, held));
            state.discarded(0, op, want, message);
        })
    }
}

/// The error if there is no endpoint to report the result.
#[cold]
fn no_endpoint() -> Error {
    Error::wanted(
        Errno::EOPBADSTATE,
        "a search of a shared receive context",
        "an enabled endpoint that is bound to it, to report the result",
        "none",
        "bind and enable an endpoint first",
    )
}
