//! One peer of an endpoint: the rings to it and from it, and what is under way.
//!
//! `message.rs`, `bulk.rs` and `rma.rs` say what goes over the rings; this file makes them and reads them.
//!
//! Order: commands are taken in the order in which the peer posted them. While a long read or write of the peer is
//! being served, its later commands wait (`serving`), so that every order of libfabric holds between them. Replies and
//! parts are always taken, so two endpoints that serve each other cannot block.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ofi_api::{Errno, Error, Result};
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::{Delivery, Host, Peer};
use ofi_ring::crash_point;
use ofi_ring::doorbell::{Bell, Wake};
use ofi_ring::record::{Consumer, Corrupt, Producer, Record, ReserveError};
use rustc_hash::FxHashMap;

use crate::Shm;
use crate::bulk::{BulkIn, BulkOut, Stream};
use crate::command::{Words, Writer, flag, kind};
use crate::grants::{self, Grant};
use crate::helper::Helper;
use crate::layout::{doorbell, endpoint, pair, wish};
use crate::message::{self, Pull};
use crate::pair::{self as pairs, OwnPair, PeerParts};
use crate::rma::{Parked, ServedWrite};
use crate::shared::Shared;

/// What all lanes of an endpoint have in common.
pub struct Common {
    pub shared: Arc<Shared>,
    pub helper: Arc<Helper>,
    /// Longest payload that travels inside a command.
    pub eager: usize,
    /// Bytes kept for receivers that are out of room, and how many may be.
    pub kept: usize,
    pub kept_limit: usize,
    /// A remote access must not overtake a message sent before it (`FI_ORDER_WAS`, `FI_ORDER_RAS`).
    pub strict: bool,
    pub counts: Counts,
}

/// Longest payload that travels inside a command.
pub fn eager() -> usize {
    ofi_ring::record::max_body(crate::settings::COMMAND_LINES.get().next_power_of_two()) - 24
}

/// What people may read about the lanes.
#[derive(Default)]
pub struct Counts {
    pub eager: u64,
    pub announced: u64,
    pub kept: u64,
    pub bulk_bytes: u64,
    pub direct_bytes: u64,
    pub direct_atomics: u64,
    pub wakes: u64,
    pub corrupt: u64,
    pub lost: u64,
    pub ring_full: u64,
}

/// This end's rings to the peer, usable before the peer has seen them.
pub struct Link {
    pub own: Arc<OwnPair>,
    pub commands: Producer,
    pub replies: Producer,
    pub up: Option<Up>,
}

/// What there is once both ends have each other's memory.
pub struct Up {
    pub parts: Box<PeerParts>,
    pub commands: Consumer,
    pub replies: Consumer,
    pub bell: Bell,
    wish: *const AtomicU32,
}

// SAFETY: the pointer leads into `parts.pair`, which moves along.
unsafe impl Send for Up {}

impl Up {
    /// What the peer asks of this end.
    #[inline]
    pub fn wish(&self) -> u32 {
        // SAFETY: aligned and mapped while `parts` lives; accessed atomically.
        unsafe { &*self.wish }.load(Ordering::Relaxed)
    }
}

/// A reply that found its ring full.
struct Reply {
    high: u32,
    words: [u64; 3],
}

/// See the module.
pub struct Lane {
    pub peer: Peer,
    pub socket: Vec<u8>,
    pub link: Option<Link>,
    /// The peer has ended. What it sent is still taken; then the lane is given up.
    pub gone: bool,
    /// A post found the ring of commands full.
    pub starved: bool,
    /// Something is under way: set when it begins, reset by the poll that finds nothing left.
    pub busy: bool,
    /// Operations of this lane that have not ended.
    pub outstanding: usize,
    /// Long reads and writes of the peer being served here: its commands wait.
    pub serving: usize,
    /// This end has asked the peer to keep its payloads.
    wished: bool,
    /// Sends that are in the ring before the peer is known to exist.
    pub unconfirmed: Vec<SlotId>,
    backlog: VecDeque<Reply>,
    pub streams: VecDeque<Stream>,
    pub bulk_out: Option<BulkOut>,
    pub bulk_in: Option<BulkIn>,
    pub pulls: FxHashMap<u64, Pull>,
    pub kept: Slots<Box<[u8]>>,
    pub writes: Slots<ServedWrite>,
    pub grants: FxHashMap<u64, Grant>,
    /// How many of them there may be before void ones are looked for.
    pub grants_limit: usize,
    pub parked: VecDeque<Parked>,
    /// How many of them are accesses of this end: later operations must not overtake them.
    pub parked_accesses: usize,
    /// Reads and writes of this end that the peer serves.
    pub commanded: usize,
    /// Not polled each time: its peer rings.
    pub is_cold: bool,
    /// Polls since a command came; the endpoint's `cold.rs` uses it.
    pub idle: u32,
}

/// Why a lane has to be given up.
pub struct Broken;

impl From<Corrupt> for Broken {
    fn from(_: Corrupt) -> Self {
        Self
    }
}

/// What became of a command.
pub enum Flow {
    /// It is done with.
    Next,
    /// It has to wait in the ring.
    Stop,
}

/// Why the plain messages ended.
enum Then {
    /// There are no more, or no more are taken now.
    Done,
    /// One was kept for want of a receive.
    Kept,
    /// Another command is next.
    Others,
}

impl Lane {
    pub fn new(peer: Peer, socket: Vec<u8>) -> Self {
        Self {
            peer,
            socket,
            link: None,
            gone: false,
            starved: false,
            busy: false,
            outstanding: 0,
            serving: 0,
            wished: false,
            unconfirmed: Vec::new(),
            backlog: VecDeque::new(),
            streams: VecDeque::new(),
            bulk_out: None,
            bulk_in: None,
            pulls: FxHashMap::default(),
            kept: Slots::default(),
            writes: Slots::default(),
            grants: FxHashMap::default(),
            grants_limit: grants::FEW,
            parked: VecDeque::new(),
            parked_accesses: 0,
            commanded: 0,
            is_cold: false,
            idle: 0,
        }
    }

    /// Makes this end of the pair and greets the peer, unless that has been done.
    ///
    /// # Errors
    /// `FI_ENOMEM`, `FI_EMFILE`.
    #[cold]
    pub fn connect(&mut self, common: &Common) -> Result<()> {
        if self.link.is_none() {
            let (own, greet) = common.shared.pair_for(&self.socket)?;
            self.link = Some(Self::rings(&own)?);
            if greet {
                common.helper.greet(&common.shared, &self.socket, own);
            }
        }
        Ok(())
    }

    fn rings(own: &Arc<OwnPair>) -> Result<Link> {
        // Until the peer is there, nothing has been read: the peer's words are stood for by words that stay 0.
        let unread = own.memory.word(pair::BULK_READ);
        // SAFETY: the lines and the word lie in `own`, which the link keeps; this is the pair's only producer.
        let commands = unsafe { Producer::new(own.commands()?, unread) };
        // SAFETY: as above.
        let replies = unsafe { Producer::new(own.replies()?, unread) };
        Ok(Link { own: Arc::clone(own), commands, replies, up: None })
    }

    /// Takes the peer's memory into use.
    ///
    /// # Errors
    /// `FI_EINVAL` for memory of impossible sizes.
    pub fn attach(&mut self, common: &Common, own: &Arc<OwnPair>, parts: Box<PeerParts>) -> Result<()> {
        let same = self.link.as_ref().is_some_and(|link| Arc::ptr_eq(&link.own, own));
        if !same {
            self.link = Some(Self::rings(own)?);
        }
        let Some(link) = &mut self.link else { return Ok(()) };
        // SAFETY: the word lies in `parts.pair`, which `up` keeps beside the producers; it is the word that the
        // peer stores its position in, 0 at first.
        unsafe { link.commands.attach(parts.pair.word(pair::COMMANDS_READ)) };
        // SAFETY: as above.
        unsafe { link.replies.attach(parts.pair.word(pair::REPLIES_READ)) };
        let commands = pairs::lines(&parts.pair, pair::COMMANDS, parts.command_lines)?;
        let replies = pairs::lines(&parts.pair, pair::REPLIES, pair::REPLY_LINES)?;
        let hint = parts.hint as usize % doorbell::HINTS;
        link.up = Some(Up {
            // SAFETY: the lines lie in `parts.pair` and the word in `own`, both kept by the link; this is the only
            // consumer, and only it stores the word.
            commands: unsafe { Consumer::new(commands, own.memory.word(pair::COMMANDS_READ)) },
            // SAFETY: as above.
            replies: unsafe { Consumer::new(replies, own.memory.word(pair::REPLIES_READ)) },
            // SAFETY: the words lie in mappings of `parts`; the doorbell memory is mapped writable.
            bell: unsafe {
                Bell::new(
                    parts.pair.word(pair::ATTENTION),
                    parts.endpoint.word(endpoint::SLEEPING),
                    parts.doorbell.word(hint),
                    common.shared.barrier,
                )
            },
            wish: parts.pair.word(pair::WISH),
            parts,
        });
        Ok(())
    }

    /// Whether the peer may be sent to as one likes: it is there, has room and has not closed.
    #[inline]
    pub fn up(&self) -> Option<&Up> {
        self.link.as_ref()?.up.as_ref()
    }

    /// Wakes the peer if it sleeps. To be called after records were published.
    #[inline]
    pub fn ring(&self, common: &mut Common) {
        match self.up() {
            Some(up) if up.bell.ring() == Wake::Unneeded => {}
            up => self.wake(common, up),
        }
    }

    /// Wakes a peer that sleeps, or may: one that this end does not know yet may know it already, and have looked
    /// before the record was there.
    #[cold]
    fn wake(&self, common: &mut Common, up: Option<&Up>) {
        if self.link.is_none() {
            return;
        }
        common.counts.wakes += 1;
        crash_point!("wake.signal");
        if !up.is_some_and(|up| up.parts.signal()) {
            common.helper.post(&common.shared, &self.socket, crate::control::Message::Wake, None);
        }
        crash_point!("wake.signalled");
    }

    /// Appends a command of words.
    ///
    /// # Errors
    /// `FI_EAGAIN` if the ring is full.
    pub fn command(&mut self, common: &mut Common, high: u32, words: &[u64]) -> Result<()> {
        let Some(link) = &mut self.link else { return Err(Error::AGAIN) };
        let mut slot = match link.commands.reserve(words.len() * 8) {
            Ok(slot) => slot,
            Err(error) => {
                self.starved = true;
                return Err(full(common, error));
            }
        };
        self.starved = false;
        // SAFETY: as many words were reserved.
        let mut body = unsafe { Writer::new(slot.body()) };
        words.iter().for_each(|&word| body.word(word));
        slot.publish(high);
        self.ring(common);
        Ok(())
    }

    /// Sends a reply, now or when its ring has room.
    pub fn reply(&mut self, common: &mut Common, high: u32, words: [u64; 3]) {
        if !self.backlog.is_empty() || !self.try_reply(common, high, words) {
            self.backlog.push_back(Reply { high, words });
            self.busy = true;
        }
    }

    fn try_reply(&mut self, common: &mut Common, high: u32, words: [u64; 3]) -> bool {
        let Some(link) = &mut self.link else { return true };
        let Ok(mut slot) = link.replies.reserve(24) else { return false };
        // SAFETY: three words were reserved.
        let mut body = unsafe { Writer::new(slot.body()) };
        words.into_iter().for_each(|word| body.word(word));
        slot.publish(high);
        self.ring(common);
        true
    }

    /// Tells the peer how its operation ended.
    pub fn done(&mut self, common: &mut Common, op: u64, result: Result<(), Errno>) {
        crash_point!("done.send");
        let errno = result.err().map_or(0, |errno| errno.get() as u64);
        self.reply(common, kind::DONE, [op, errno, 0]);
    }

    /// Whether a poll would find something to do: a command, or something under way.
    #[inline(always)]
    pub fn wants_poll(&self) -> bool {
        self.busy || matches!(&self.link, Some(Link { up: Some(up), .. }) if up.commands.has_next())
    }

    /// Takes in what has arrived.
    ///
    /// # Errors
    /// [`Broken`] if the peer breaks the protocol.
    #[inline(always)]
    pub fn poll<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) -> Result<(), Broken> {
        loop {
            // Most commands are plain messages, and those concern nothing else of the lane.
            let then = match self.next_kind() {
                kind::MESSAGE => self.take_messages::<false, _>(common, host)?,
                kind::TAGGED_MESSAGE => self.take_messages::<true, _>(common, host)?,
                _ => Then::Others,
            };
            match then {
                Then::Done => break,
                Then::Kept => self.after_delivery(common, host, Delivery::Kept),
                Then::Others => break self.take_others(common, host)?,
            }
        }
        if self.busy {
            self.poll_slow(common, host)?;
        }
        Ok(())
    }

    /// What the next command claims to be; 0 for none that may be taken now.
    #[inline]
    fn next_kind(&self) -> u32 {
        match &self.link {
            Some(Link { up: Some(up), .. }) if self.serving == 0 => up.commands.next_high(),
            _ => 0,
        }
    }

    /// Takes plain messages, as many as there are and as the core takes.
    #[inline(never)]
    fn take_messages<const TAGGED: bool, H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
    ) -> Result<Then, Broken> {
        let Some(Link { up: Some(up), .. }) = &mut self.link else { return Ok(Then::Done) };
        let mut then = Then::Done;
        while host.hungry() {
            let Some(record) = up.commands.peek()? else { break };
            if record.high != if TAGGED { kind::TAGGED_MESSAGE } else { kind::MESSAGE } {
                then = Then::Others;
                break;
            }
            // SAFETY: the record's body is aligned, and readable until `advance`.
            let words = unsafe { Words::new(record.body, record.body_len) };
            let delivery = message::deliver::<TAGGED, _>(self.peer, host, words)?;
            if delivery == Delivery::Stopped {
                break;
            }
            crash_point!("message.delivered");
            up.commands.advance(&record);
            if delivery == Delivery::Kept {
                then = Then::Kept;
                break;
            }
        }
        self.idle = 0;
        up.commands.flush();
        if up.bell.ring() == Wake::Needed {
            self.ring(common); // it sleeps until there is room
        }
        Ok(then)
    }

    /// Takes commands of all kinds, as many as there are and as the core and their order allow.
    #[inline(never)]
    fn take_others<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) -> Result<(), Broken> {
        let mut taken = false;
        while self.serving == 0 && host.hungry() {
            let Some(Link { up: Some(up), .. }) = &mut self.link else { return Ok(()) };
            let Some(record) = up.commands.peek()? else { break };
            match self.take(common, host, &record)? {
                Flow::Next => {}
                Flow::Stop => break,
            }
            taken = true;
            if let Some(Link { up: Some(up), .. }) = &mut self.link {
                up.commands.advance(&record);
            }
        }
        if taken {
            self.taken(common);
        }
        Ok(())
    }

    /// Tells the peer of the room that there is now.
    fn taken(&mut self, common: &mut Common) {
        self.idle = 0;
        let Some(Link { up: Some(up), .. }) = &mut self.link else { return };
        up.commands.flush();
        if up.bell.ring() == Wake::Needed {
            self.ring(common); // it sleeps until there is room
        }
    }

    /// Whether something is under way.
    fn is_busy(&self) -> bool {
        self.outstanding != 0
            || self.gone
            || self.wished
            || self.serving != 0
            || !self.pulls.is_empty()
            || !self.backlog.is_empty()
            || !self.streams.is_empty()
            || !self.parked.is_empty()
            || !self.kept.is_empty()
    }

    /// Whether a poll would move something: the peer has put something into a ring, or made room that was waited for.
    pub fn has_input(&mut self) -> bool {
        let bulk = self.bulk_in.as_mut().is_some_and(BulkIn::has_input);
        let room = !self.streams.is_empty() && self.bulk_out.as_mut().is_none_or(BulkOut::has_room);
        let (starved, backlog) = (self.starved, !self.backlog.is_empty());
        let Some(Link { up: Some(up), commands, replies, .. }) = &mut self.link else { return false };
        let some = |consumer: &mut Consumer| !matches!(consumer.peek(), Ok(None));
        bulk || room
            || some(&mut up.commands)
            || some(&mut up.replies)
            || up.wish() == wish::CLOSED
            || self.gone
            || (starved && commands.reserve(0).is_ok())
            || (backlog && replies.reserve(24).is_ok())
    }

    #[inline(never)]
    fn poll_slow<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) -> Result<(), Broken> {
        // Looked at before the replies are taken: what the peer answered before it closed still counts.
        let closed = self.gone || self.up().is_some_and(|up| up.wish() == wish::CLOSED);
        std::sync::atomic::fence(Ordering::Acquire); // with the store of `CLOSED`
        self.take_replies(common, host)?;
        self.take_parts(common, host)?;
        while let Some(reply) = self.backlog.front() {
            let (high, words) = (reply.high, reply.words);
            if !self.try_reply(common, high, words) {
                break;
            }
            self.backlog.pop_front();
        }
        self.pump(common, host)?;
        self.move_parked(common, host);
        if self.wished && host.may_hold(self.peer, common.eager) {
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

    /// The peer has ended, and knows nothing of what this end still wants of it. What it sent before is another matter.
    fn end<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        self.gone = true;
        if self.outstanding > 0 {
            host.fail_outgoing(self.peer, Errno::ECONNRESET);
        }
        (self.outstanding, self.commanded, self.parked_accesses) = (0, 0, 0);
        self.unconfirmed.clear();
        self.streams.clear();
        self.parked.clear();
        self.backlog.clear();
        for id in self.kept.ids(|_| true) {
            common.kept -= self.kept.remove(id).map_or(0, |bytes| bytes.len());
        }
        if !self.bulk_in.as_mut().is_some_and(BulkIn::has_input) {
            // What it was writing when it ended stays unfinished, and holds up nothing behind it.
            self.writes = Slots::default();
            self.serving = 0;
        }
    }

    /// Whether everything that an ended peer sent has been taken.
    fn is_drained(&mut self) -> bool {
        !self.has_commands() && !self.bulk_in.as_mut().is_some_and(BulkIn::has_input)
    }

    /// Whether commands wait that were sent before the peer closed.
    pub fn has_commands(&mut self) -> bool {
        let Some(Link { up: Some(up), .. }) = &mut self.link else { return false };
        matches!(up.commands.peek(), Ok(Some(_)))
    }

    fn wish(&mut self, what: u32) {
        self.wished = what == wish::KEEP;
        self.busy |= self.wished;
        if let Some(link) = &self.link {
            link.own.word32(pair::WISH).store(what, Ordering::Relaxed);
            crash_point!("wish.stored");
        }
    }

    /// Takes one command, of any kind.
    #[inline(never)]
    fn take<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        record: &Record,
    ) -> Result<Flow, Broken> {
        // SAFETY: the record's body is aligned, and readable until `advance`.
        let words = unsafe { Words::new(record.body, record.body_len) };
        if record.high & kind::MASK == kind::MESSAGE {
            return self.take_message(common, host, record.high, words);
        }
        match record.high & kind::MASK {
            kind::ANNOUNCE => self.take_announcement(common, host, record.high, words),
            kind::WRITE => self.take_write(common, host, record.high, words),
            kind::WRITE_LONG => self.take_long_write(common, record.high, words),
            kind::READ => self.take_read(common, host, words),
            kind::NOTE => self.take_note(host, words),
            kind::ATOMIC => self.take_atomic(common, host, record.high, words),
            kind::NOTICE => self.take_notice(host, record.high, words),
            _ => Err(Broken),
        }
    }

    /// Asks the peer to keep its payloads, if there is no more room for them.
    #[inline]
    pub fn after_delivery<H: Host<Shm>>(&mut self, common: &Common, host: &H, delivery: Delivery) {
        if delivery == Delivery::Kept && !self.wished && !host.may_hold(self.peer, common.eager) {
            self.wish(wish::KEEP);
        }
    }

    fn take_replies<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) -> Result<(), Broken> {
        let mut taken = false;
        loop {
            let Some(Link { up: Some(up), .. }) = &mut self.link else { return Ok(()) };
            let Some(record) = up.replies.peek()? else { break };
            taken = true;
            // SAFETY: as in `take`.
            let mut words = unsafe { Words::new(record.body, record.body_len) };
            let op = words.next().ok_or(Broken)?;
            match record.high & kind::MASK {
                kind::DONE => {
                    crash_point!("done.taken");
                    let errno = words.next().ok_or(Broken)?;
                    let result = if errno == 0 { Ok(()) } else { Err(Errno::from_raw(errno as i32)) };
                    self.ended(common, host, record.high, op, result);
                }
                kind::SEND => {
                    crash_point!("send.taken");
                    let (into, len) = (words.next().ok_or(Broken)?, words.next().ok_or(Broken)?);
                    self.start_stream(common, host, record.high, op, into, len)?;
                }
                kind::DATA => {
                    crash_point!("data.taken");
                    self.take_read_data(host, op, 0, words.rest())?;
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

    /// An operation of this end has ended at the peer.
    fn ended<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        op: u64,
        result: Result<(), Errno>,
    ) {
        let id = SlotId::from_wire(op);
        if high & flag::KEPT != 0 {
            if let Some(bytes) = self.kept.remove(id) {
                common.kept -= bytes.len();
            }
        } else if let Some(op) = host.finish(self.peer, id, result) {
            self.outstanding -= 1;
            self.commanded -= usize::from(op.is_commanded());
        }
    }

    /// An operation of this end has ended here.
    pub fn finish<H: Host<Shm>>(&mut self, host: &mut H, id: SlotId, result: Result<(), Errno>) {
        if let Some(op) = host.finish(self.peer, id, result) {
            self.outstanding -= 1;
            self.commanded -= usize::from(op.is_commanded());
        }
    }

    /// Gives everything up: the peer is gone, or not to be talked to any more.
    pub fn lose<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H, errno: Errno) {
        common.counts.lost += 1;
        for id in self.kept.ids(|_| true) {
            if let Some(bytes) = self.kept.remove(id) {
                common.kept -= bytes.len();
            }
        }
        *self = Self::new(self.peer, std::mem::take(&mut self.socket));
        host.fail_peer(self.peer, errno);
    }
}

/// Counts and translates a reservation that failed.
#[cold]
pub fn full(common: &mut Common, error: ReserveError) -> Error {
    match error {
        ReserveError::Full => {
            common.counts.ring_full += 1;
            Error::AGAIN
        }
        ReserveError::TooBig => Error::with(Errno::EMSGSIZE, "a command longer than a quarter of its ring"),
        // The peer claims to have read what was never written. The lane is given up at the next poll.
        ReserveError::Corrupt => Error::AGAIN,
    }
}
