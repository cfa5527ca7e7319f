//! Processes what a peer has sent, and advances operations in flight.
//!
//! Order: commands are taken in the order in which the peer posted them. While a long read or write of the peer is
//! being served, its later commands wait (`serving`). Reads after a read do not wait: they are served in order, so
//! every order that libfabric defines holds. Replies and parts are always taken, so two endpoints that serve each other
//! cannot deadlock.

use std::sync::atomic::Ordering;

use ofi_api::Errno;
use ofi_core::transport::{Delivery, Upcalls};
use ofi_ring::crash_point;
use ofi_ring::doorbell::Wake;
use ofi_ring::record::{Consumer, Record};

use crate::command::{Words, flag, kind};
use crate::common::Common;
use crate::layout::{pair, wish};
use crate::peer::bulk::{BulkIn, BulkStream};
use crate::peer::link::Link;
use crate::peer::{Broken, NextStep, Peer};
use crate::stores::Reading;
use crate::{Shm, message};

/// The maximum number of commands, and of replies, that one poll takes from a peer. Without a limit, a peer that sends
/// as fast as they are taken would monopolise the caller.
const TURN: usize = 256;

/// Why a run of plain messages ended.
enum Then {
    /// There are no more, or the limit is reached.
    Done,
    /// One was kept because no receive was posted.
    Kept,
    /// The next command is of another kind.
    Others,
}

impl Peer {
    /// Whether a poll would find work: a command, or an operation in flight.
    #[inline(always)]
    pub fn wants_poll(&self) -> bool {
        self.busy || matches!(&self.link, Some(Link { up: Some(up), .. }) if up.commands.has_next())
    }

    /// Processes what has arrived.
    ///
    /// # Errors
    /// [`Broken`] if the peer breaks the protocol.
    #[inline(always)]
    pub fn poll<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) -> Result<(), Broken> {
        let mut left = TURN;
        loop {
            // Most commands are plain messages, which touch no other state of the peer.
            let (then, rest) = match self.next_kind() {
                kind::MESSAGE => self.take_messages::<false, _>(common, host, left)?,
                kind::TAGGED_MESSAGE => self.take_messages::<true, _>(common, host, left)?,
                _ => (Then::Others, left),
            };
            left = rest;
            match then {
                Then::Done => break,
                Then::Kept => self.after_delivery(common, host, Delivery::Kept),
                Then::Others => break self.take_others(common, host, left)?,
            }
        }
        if self.busy {
            self.poll_slow(common, host)?;
        }
        Ok(())
    }

    /// The kind that the next command claims; 0 if none may be taken now.
    #[inline]
    fn next_kind(&self) -> u32 {
        match &self.link {
            Some(Link { up: Some(up), .. }) if self.served.serving == 0 => up.commands.next_high(),
            _ => 0,
        }
    }

    /// Takes plain messages while there are any and the core accepts them, at most `left`. Returns how many more may be
    /// taken.
    #[inline(never)]
    fn take_messages<const TAGGED: bool, H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        mut left: usize,
    ) -> Result<(Then, usize), Broken> {
        let Some(Link { up: Some(up), .. }) = &mut self.link else { return Ok((Then::Done, left)) };
        let mut then = Then::Done;
        while left > 0 && host.hungry() {
            let Some(record) = up.commands.peek()? else { break };
            if record.high != if TAGGED { kind::TAGGED_MESSAGE } else { kind::MESSAGE } {
                then = Then::Others;
                break;
            }
            // SAFETY: the record's body is aligned, and readable until `advance`.
            let words = unsafe { Words::new(record.body, record.body_len) };
            let delivery = message::deliver::<TAGGED, _>(self.peer, host, words)?;
            if delivery == Delivery::Stopped {
                self.back_pressure.stopped = Some(up.commands.position());
                break;
            }
            crash_point!("message.delivered");
            up.commands.advance(&record);
            left -= 1;
            if delivery == Delivery::Kept {
                then = Then::Kept;
                break;
            }
        }
        self.schedule.idle = 0;
        up.commands.flush();
        if up.bell.ring() == Wake::Needed {
            self.ring(common); // the peer sleeps until there is room
        }
        Ok((then, left))
    }

    /// Takes commands of all kinds while there are any and the core and their order permit, at most `left`.
    #[inline(never)]
    fn take_others<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        mut left: usize,
    ) -> Result<(), Broken> {
        let mut taken = false;
        self.gather_dones(common, true);
        while left > 0 && host.hungry() {
            left -= 1;
            let Some(Link { up: Some(up), .. }) = &mut self.link else { break };
            let Some(record) = up.commands.peek()? else { break };
            if !self.may_serve(record.high & kind::MASK) {
                break;
            }
            let reading = Reading::begin(&record);
            match self.take(common, host, &record)? {
                NextStep::Next => reading.end(record.body_len, self.link.as_ref().map(|link| &*link.own)),
                NextStep::Stop => break,
            }
            taken = true;
            if let Some(Link { up: Some(up), .. }) = &mut self.link {
                up.commands.advance(&record);
            }
        }
        self.gather_dones(common, false);
        if taken {
            self.taken(common);
        }
        Ok(())
    }

    /// Tells the peer about the room that has become free.
    fn taken(&mut self, common: &mut Common) {
        self.schedule.idle = 0;
        let Some(Link { up: Some(up), .. }) = &mut self.link else { return };
        up.commands.flush();
        if up.bell.ring() == Wake::Needed {
            self.ring(common); // the peer sleeps until there is room
        }
    }

    /// Whether something is under way.
    fn is_busy(&self) -> bool {
        self.initiated.outstanding != 0
            || self.end.gone
            || self.back_pressure.wished
            || self.served.serving != 0
            || !self.pulls.is_empty()
            || self.copies()
            || !self.replies.backlog.is_empty()
            || !self.bulk.streams.is_empty()
            || !self.parked.queue.is_empty()
            || !self.back_pressure.kept.is_empty()
    }

    /// Whether the peer's next command waits for the application.
    pub fn is_stopped(&self) -> bool {
        self.up().is_some_and(|up| self.back_pressure.stopped == Some(up.commands.position()))
    }

    /// Leaves the next command in the ring, because the application has no room for it.
    #[cold]
    pub fn stop(&mut self) -> NextStep {
        self.back_pressure.stopped = self.up().map(|up| up.commands.position());
        NextStep::Stop
    }

    /// Whether a poll would make progress: the peer has filled a ring, or made room that was waited for.
    pub fn has_input(&mut self) -> bool {
        let is_stopped = self.is_stopped();
        let bulk = self.bulk.input.as_mut().is_some_and(BulkIn::has_input);
        let next = self.bulk.streams.front().map(BulkStream::next_part);
        let room = next.is_some_and(|part| self.bulk.out.as_mut().is_none_or(|out| out.has_room(part)));
        let copies = self.has_copies_to_move();
        let room = room || self.has_room_again();
        let backlog = !self.replies.backlog.is_empty();
        let Some(Link { up: Some(up), replies, .. }) = &mut self.link else { return false };
        let some = |consumer: &mut Consumer| !matches!(consumer.peek(), Ok(None));
        bulk || room
            || copies
            || (!is_stopped && some(&mut up.commands))
            || some(&mut up.replies)
            || up.wish() == wish::CLOSED
            || self.end.gone
            || (backlog && replies.reserve(24).is_ok())
    }

    #[inline(never)]
    fn poll_slow<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) -> Result<(), Broken> {
        // Read this before the replies: the peer's answers from before it closed still count.
        let closed = self.end.gone || (self.is_closed() && self.may_tell_of_end(common));
        std::sync::atomic::fence(Ordering::Acquire); // pairs with the store of `CLOSED`
        self.take_replies(common, host)?;
        self.take_parts(common, host)?;
        while let Some(reply) = self.replies.backlog.front() {
            let (high, words) = (reply.high, reply.words);
            if !self.try_reply(common, high, words) {
                break;
            }
            self.replies.backlog.pop_front();
        }
        self.pump(common, host)?;
        if self.single.is_some() {
            self.move_single(common, host);
        }
        self.move_parked(common, host);
        if self.back_pressure.wished && host.may_hold(self.peer, common.eager) {
            self.wish(wish::NONE);
        }
        if closed {
            self.end(common, host);
            if self.is_drained() {
                return Err(Broken);
            }
        }
        self.busy = self.is_busy();
        Ok(())
    }

    fn wish(&mut self, what: u32) {
        self.back_pressure.wished = what == wish::KEEP;
        self.busy |= self.back_pressure.wished;
        if let Some(link) = &self.link {
            link.own.word32(pair::WISH).store(what, Ordering::Relaxed);
            crash_point!("wish.stored");
        }
    }

    /// Takes one command, of any kind.
    #[inline(never)]
    fn take<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        record: &Record,
    ) -> Result<NextStep, Broken> {
        // SAFETY: the record's body is aligned, and readable until `advance`.
        let words = unsafe { Words::new(record.body, record.body_len) };
        if record.high & kind::MASK != kind::WRITE {
            self.tell_done(common); // replies keep their order
        }
        if record.high & kind::MASK == kind::MESSAGE {
            return self.take_message(common, host, record.high, words);
        }
        match record.high & kind::MASK {
            kind::ANNOUNCE => self.take_announcement(common, host, record.high, words),
            kind::WRITE => self.take_write(common, host, record.high, words),
            kind::WRITE_LONG => self.take_long_write(common, host, record.high, words),
            kind::READ => self.take_read(common, host, words),
            kind::NOTE => self.take_note(host, words),
            kind::ATOMIC => self.take_atomic(common, host, record.high, words),
            kind::NOTICE => self.take_notice(host, record.high, words),
            _ => Err(Broken),
        }
    }

    /// Asks the peer to keep its payloads if there is no more room for them.
    #[inline]
    pub fn after_delivery<H: Upcalls<Shm>>(&mut self, common: &Common, host: &H, delivery: Delivery) {
        if delivery == Delivery::Kept && !self.back_pressure.wished && !host.may_hold(self.peer, common.eager)
        {
            self.wish(wish::KEEP);
        }
    }

    fn take_replies<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) -> Result<(), Broken> {
        let mut taken = false;
        for _ in 0..TURN {
            let Some(Link { up: Some(up), .. }) = &mut self.link else { return Ok(()) };
            let Some(record) = up.replies.peek()? else { break };
            taken = true;
            // SAFETY: as in `take`.
            let mut words = unsafe { Words::new(record.body, record.body_len) };
            let op = words.next().ok_or(Broken)?;
            match record.high & kind::MASK {
                kind::DONES => {
                    crash_point!("dones.taken");
                    let mut next = Some(op);
                    while let Some(op) = next {
                        self.ended(common, host, record.high, op, Ok(()));
                        next = words.next();
                    }
                }
                kind::DONE => {
                    crash_point!("done.taken");
                    let errno = words.next().ok_or(Broken)?;
                    let result = if errno == 0 { Ok(()) } else { Err(Errno::from_raw(errno as i32)) };
                    if record.high & flag::SERVED != 0 {
                        self.take_read_end(common, host, op, result)?;
                    } else {
                        self.ended(common, host, record.high, op, result);
                    }
                }
                kind::SEND => {
                    crash_point!("send.taken");
                    let (into, len) = (words.next().ok_or(Broken)?, words.next().ok_or(Broken)?);
                    self.start_stream(common, host, record.high, op, into, len)?;
                }
                kind::SHARE => self.take_share(common, host, record.high, op, &mut words)?,
                kind::OFFER => {
                    let source = (words.next().ok_or(Broken)?, words.next().ok_or(Broken)?);
                    self.take_offer(common, host, record.high, op, source)?;
                }
                kind::DATA => {
                    crash_point!("data.taken");
                    self.take_read_data(common, host, (op, 0), words)?;
                }
                _ => return Err(Broken),
            }
            crash_point!("reply.taken");
            if let Some(Link { up: Some(up), .. }) = &mut self.link {
                up.replies.advance(&record);
            }
        }
        if taken {
            if let Some(Link { up: Some(up), .. }) = &mut self.link {
                up.replies.flush();
            }
            self.ring(common);
        }
        Ok(())
    }
}
