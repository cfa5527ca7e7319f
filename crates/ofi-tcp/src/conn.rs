//! One connection: its socket, its establishment, and its operations in flight.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use ofi_api::{Errno, RemotePiece};
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::PeerId;
use rustc_hash::FxHashMap;

use crate::bulk::{Bulk, Role, Stripes, stripe};
use crate::op::Token;
use crate::outgoing::Outgoing;
use crate::stash::Stash;
use crate::stream;
use crate::sys::Interest;
use crate::tls::Session;
use crate::wire::cm::Extras;
use crate::wire::{Order, Packet};

/// The progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The last attempt was refused; the next one begins at this time.
    Resting(Instant),
    /// The kernel connects.
    Connecting,
    /// This end has sent its request.
    Asking,
    /// The peer has connected, and has not sent its request yet.
    Called,
    /// Established.
    Ready,
}

/// What has to happen before more packets of a connection are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// Another poll: this one has found enough.
    Poll,
    /// The application has to post receives, or to read its queue.
    Application,
    /// The peer has to read the answers that it has asked for.
    Peer,
    /// Stripes have to arrive on other connections; on a bulk connection, the packet to which its stripe belongs.
    Stripes,
}

/// The destination of an arriving payload.
#[derive(Clone, Debug)]
pub enum To {
    /// Into a receive.
    Receive(SlotId),
    /// Into a buffer of the library, until a receive is posted.
    Spool(SlotId),
    /// Into registered memory, with data for the application.
    Memory(Vec<RemotePiece>, Option<u64>),
    /// Into the destination of a read.
    Read(SlotId),
    /// Nowhere, because the write is refused, which its sender learns in place of the acknowledgement.
    Refused(Errno),
    /// Nowhere.
    Nowhere,
}

/// A payload that is arriving.
#[derive(Debug)]
pub struct Body {
    pub to: To,
    /// Where its next byte belongs.
    pub at: usize,
    /// Where the bytes of this connection end.
    pub end: usize,
    /// Bytes in all.
    pub len: usize,
    /// The sender wants an acknowledgement.
    pub confirm: bool,
    /// Its other stripes, on the connection of its packet.
    pub stripes: Option<Stripes>,
}

impl Body {
    /// All of a payload.
    pub fn new(to: To, len: usize, confirm: bool) -> Self {
        Self { to, at: 0, end: len, len, confirm, stripes: None }
    }

    /// Bytes that are missing on this connection.
    pub fn left(&self) -> usize {
        self.end - self.at
    }

    /// Whether stripes are missing on other connections.
    pub fn awaits_stripes(&self) -> bool {
        self.stripes.is_some_and(|stripes| !stripes.are_here())
    }

    /// Whether it is received directly to where it belongs, but for what comes with its header.
    pub fn is_long(&self) -> bool {
        self.len > EAGER
    }
}

/// A message that this end has announced.
#[derive(Debug)]
pub struct Announced {
    pub op: SlotId,
    pub len: usize,
    /// It ends with the peer's acknowledgement, which follows the payload.
    pub confirm: bool,
    /// The bytes of an injected message. The application relies on them as on sent ones, so they leave
    /// [unasked](Conn::hand_over) before this end's end.
    pub kept: Option<Box<[u8]>>,
}

/// A message that the peer has announced.
#[derive(Debug)]
pub struct AnnouncedMessage {
    pub len: usize,
    pub confirm: bool,
    /// The destination, once the message was requested.
    pub to: Option<To>,
}

/// An atomic operation of this end.
pub struct Atomic {
    pub op: SlotId,
    pub packet: Packet,
    /// It is answered like a read, otherwise acknowledged.
    pub fetches: bool,
    /// Operands, then comparands.
    pub payload: Vec<u8>,
}

/// The maximum payload, in bytes, of a message that is delivered in one piece.
pub const EAGER: usize = 16 << 10;
/// The least and the most bytes to read before their packets are known.
pub const AHEAD: (usize, usize) = (256, 64 << 10);

/// The state of one connection.
pub struct Conn {
    /// `None` between two attempts.
    pub socket: Option<OwnedFd>,
    /// What encrypts it, if anything does.
    pub tls: Option<Box<Session>>,
    pub phase: Phase,
    /// The peer; `None` until it has identified itself.
    pub peer: Option<PeerId>,
    /// The end of the attempt, or of the wait for the peer's request.
    pub deadline: Instant,
    /// Attempts so far.
    pub attempts: u32,
    /// The error of the last attempt.
    pub failure: Errno,
    pub order: Order,
    /// The peer takes announced messages.
    pub announces: bool,
    /// What the peer takes beyond C's protocol.
    pub extras: Extras,
    /// Atomic operations that wait for the connection, because only then it is known whether the peer takes them. No
    /// other operation passes them.
    pub atomics: Vec<Atomic>,
    /// What it is for.
    pub role: Role,
    /// The stripes of the next packet's payload, if that is striped; on a bulk connection, the stripe that is arriving.
    pub stripes: u8,
    /// Payloads of the peer that were striped; on a bulk connection, those before which its next stripe cannot belong.
    pub striped: u64,
    /// What the peer's requests for bulk connections have to name.
    pub bulk: u32,
    /// The peer's process.
    pub process: u32,
    pub out: Outgoing,
    /// Bytes of messages that this end may still send unasked, once the connection is established. A debt is possible.
    pub credit: i64,
    /// Bytes of messages that it has queued before.
    pub early: u64,
    /// Bytes of messages that the peer has sent unasked, for which it has got no new grant.
    pub taken: u64,
    /// It is listed to get one.
    pub is_listed: bool,
    /// Operations of this end that end with an acknowledgement, in the order in which they are acknowledged.
    pub acks: VecDeque<SlotId>,
    /// Reads of this end, in the order in which they are answered.
    pub reads: VecDeque<SlotId>,
    /// Messages that this end has announced, by number.
    pub announced: FxHashMap<u8, Announced>,
    /// Messages that the peer has announced.
    pub asked: FxHashMap<u8, AnnouncedMessage>,
    /// Bytes that have arrived and could not be processed yet.
    pub stash: Stash,
    pub body: Option<Body>,
    /// The most bytes to read behind what has a place, that is into memory from which they are copied: many while
    /// packets are short, little more than a header while they are long.
    pub ahead: usize,
    /// Bytes of reads that were answered by copies since the last poll.
    pub answered: usize,
    /// The bytes in the stash cannot be processed yet: nothing more is read.
    pub stalled: Option<Stall>,
    /// It has ended and is stalled, so its socket, which would always be ready, is in no epoll set.
    pub away: bool,
    /// The kernel accepts no more for now, or the peer has got its share: goes on when the socket has room, which also
    /// wakes a reader that was asleep when another thread posted.
    pub full: bool,
    /// Nothing more is sent, for this reason. What the peer has sent before is still taken.
    pub broken: Option<Errno>,
    /// Data waits for the next poll to be passed to the kernel.
    pub dirty: bool,
    /// The poll in which it was written last.
    pub wrote: u64,
    /// Operations since that poll that followed the first one.
    pub burst: u8,
    pub interest: Interest,
}

impl Conn {
    /// A connection in its first phase.
    pub fn new(phase: Phase, peer: Option<PeerId>, deadline: Instant) -> Self {
        Self {
            socket: None,
            tls: None,
            phase,
            peer,
            deadline,
            attempts: 0,
            failure: Errno::ETIMEDOUT,
            order: Order::Own,
            announces: false,
            extras: Extras::NONE,
            atomics: Vec::new(),
            role: Role::Alone,
            stripes: 0,
            striped: 0,
            bulk: 0,
            process: 0,
            out: Outgoing::default(),
            credit: 0,
            early: 0,
            taken: 0,
            is_listed: false,
            acks: VecDeque::new(),
            reads: VecDeque::new(),
            announced: FxHashMap::default(),
            asked: FxHashMap::default(),
            stash: Stash::default(),
            body: None,
            ahead: AHEAD.1,
            answered: 0,
            stalled: None,
            away: false,
            full: false,
            broken: None,
            dirty: false,
            wrote: 0,
            burst: 0,
            interest: Interest::default(),
        }
    }

    /// The connection is established.
    pub fn begin_ready(&mut self) {
        self.phase = Phase::Ready;
        let bytes = |count| i64::try_from(count).unwrap_or(i64::MAX);
        self.credit = bytes(self.extras.window) - bytes(self.early);
    }

    /// Whether both ends count the bytes of messages that are sent unasked.
    #[inline]
    pub fn is_counted(&self) -> bool {
        self.extras.window > 0
    }

    /// Whether the peer is to get a new grant as soon as receives have taken enough of its messages.
    pub fn awaits_grant(&self, window: u64) -> bool {
        self.is_counted() && self.taken >= self.enough(window)
    }

    /// The bytes of a grant that is worth a packet: three quarters of the window, or any while the peer announces
    /// messages because it has no credit.
    pub fn enough(&self, window: u64) -> u64 {
        if self.asked.is_empty() { window - window / 4 } else { 1 }
    }

    /// Queues the injected messages that wait for the peer to ask for them, if it takes them unasked: nothing follows
    /// them but this end's end. Returns the operations that need nothing more.
    pub fn hand_over(&mut self) -> Vec<SlotId> {
        if !self.extras.unasked {
            return Vec::new();
        }
        let kept = self.announced.extract_if(|_, own| own.kept.is_some()).collect::<Vec<_>>();
        let over = kept.into_iter().filter_map(|(number, own)| {
            self.begin_announced(number, &own, None);
            (!own.confirm).then_some(own.op)
        });
        over.collect()
    }

    /// Whether injected messages wait for the peer to ask for them.
    pub fn keeps(&self) -> bool {
        self.announced.values().any(|own| own.kept.is_some())
    }

    /// Reads more ahead: all that was asked for has come.
    pub fn read_ahead(&mut self) {
        if !self.body.as_ref().is_some_and(Body::is_long) {
            self.ahead = (4 * self.ahead).min(AHEAD.1);
        }
    }

    /// Whether the peer owes an answer, or this end has something to send.
    pub fn expects(&self) -> bool {
        let owes = !self.acks.is_empty() || !self.reads.is_empty() || !self.announced.is_empty();
        owes || !self.is_sent() || self.role == Role::BulkOut // the main connection has its acknowledgements
    }

    /// Whether the kernel has everything that was queued.
    pub fn is_sent(&self) -> bool {
        self.out.is_empty() && !self.has_sealed()
    }

    /// Whether sealed bytes wait for room in the socket.
    pub fn has_sealed(&self) -> bool {
        self.tls.as_ref().is_some_and(|session| session.has_sealed())
    }

    /// Sends a connection message. See [`stream::send_message`].
    pub fn send_message(&mut self, message: &[u8]) -> Result<(), Errno> {
        let socket = self.socket.as_ref().ok_or(Errno::ECONNRESET)?;
        stream::send_message(socket.as_fd(), self.tls.as_deref_mut(), message)
    }

    /// Receives a little into the stash. See [`stream::receive_into`].
    pub fn receive_into_stash(&mut self) -> Result<usize, Errno> {
        let socket = self.socket.as_ref().ok_or(Errno::ECONNRESET)?;
        stream::receive_into(socket.as_fd(), self.tls.as_deref_mut(), &mut self.stash)
    }

    /// Sends no more. It counts as lost when everything that has arrived was taken.
    pub fn stop_sending(&mut self, errno: Errno) {
        (self.out, self.full, self.broken) = (Outgoing::default(), true, Some(errno));
    }

    /// The events of its socket to wait for.
    pub fn wanted(&self) -> Interest {
        match self.phase {
            Phase::Resting(_) => Interest::default(),
            Phase::Connecting => Interest { read: false, write: true },
            Phase::Asking | Phase::Called => Interest { read: true, write: self.has_sealed() },
            // The next poll goes on by itself: that is not worth two system calls.
            Phase::Ready => {
                let read = matches!(self.stalled, None | Some(Stall::Poll));
                Interest { read, write: self.full && self.broken.is_none() }
            }
        }
    }
}

/// An arriving message for which no receive is posted yet.
pub struct Spool {
    /// The connection that it comes on.
    pub on: SlotId,
    pub bytes: Vec<u8>,
    /// Bytes in all.
    pub len: usize,
}

impl Spool {
    /// Whether all of it is here.
    pub fn is_whole(&self) -> bool {
        self.bytes.len() == self.len
    }
}

/// The state of one peer of an endpoint.
pub struct Peer {
    pub address: SocketAddr,
    /// The connection on which this end sends.
    pub conn: Option<SlotId>,
    /// The other end of that connection, if the peer is the endpoint itself.
    pub beside: Option<SlotId>,
    /// Bulk connections beside that one, if this end opens any, or the peer has.
    pub bulk: Option<Box<Bulk>>,
    /// Operations of this end in flight.
    pub outstanding: usize,
    /// The byte order of the last connection.
    pub order: Order,
    pub spools: Slots<Spool>,
    /// The lengths of the messages in them.
    pub spooled: usize,
    /// Those of announced messages that came unasked, by connection and number.
    pub unasked: FxHashMap<(SlotId, u8), SlotId>,
}

impl Peer {
    /// Without a connection.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            conn: None,
            beside: None,
            bulk: None,
            outstanding: 0,
            order: Order::Own,
            spools: Slots::default(),
            spooled: 0,
            unasked: FxHashMap::default(),
        }
    }

    /// Where the payload that `token` names is, which is asked for now: a message that came unasked is in a spool.
    pub fn resolve(&mut self, token: Token) -> Token {
        match token {
            Token::Announced(on, number) => self.unasked.remove(&(on, number)).map_or(token, Token::Spool),
            Token::Spool(_) => token,
        }
    }

    /// Whether the payload that `token` names is here as a whole.
    pub fn has_whole(&self, token: &Token) -> bool {
        let spool = match token {
            Token::Announced(on, number) => self.unasked.get(&(*on, *number)),
            Token::Spool(id) => Some(id),
        };
        spool.and_then(|&id| self.spools.get(id)).is_some_and(Spool::is_whole)
    }

    /// Takes a message out of its spool.
    pub fn unspool(&mut self, id: SlotId) -> Option<Spool> {
        let spool = self.spools.remove(id)?;
        self.spooled = self.spooled.saturating_sub(spool.len);
        Some(spool)
    }

    /// Whether nothing is kept of the peer.
    pub fn is_idle(&self) -> bool {
        self.conn.is_none() && self.beside.is_none() && self.outstanding == 0 && self.spools.is_empty()
    }
}

impl Conn {
    /// Takes over the operations that wait for another connection to the same peer, which was never established.
    pub fn inherit(&mut self, other: Self) {
        (self.out, self.order, self.early) = (other.out, other.order, other.early);
        (self.acks, self.reads, self.atomics) = (other.acks, other.reads, other.atomics);
    }

    /// Says that the payload of the next packet is striped, if it is long and there are connections for it. Returns the
    /// number of its stripes: 1 if it is not.
    pub fn begin_stripes(&mut self, bulk: Option<&mut Bulk>, len: usize) -> u8 {
        // Not beside a second connection to the same peer.
        let count = bulk.filter(|_| self.role == Role::Main).map_or(1, |bulk| bulk.begin(len));
        if count > 1 {
            self.out.header(&Packet::Striped { count }, self.order);
        }
        count
    }

    /// Queues the payload of an operation, of so many stripes, behind its packet.
    pub fn lend_stripes(&mut self, bulk: Option<&mut Bulk>, op: SlotId, len: usize, count: u8) {
        self.out.lend_range(op, stripe(len, count, 0));
        if let Some(bulk) = bulk.filter(|_| count > 1) {
            bulk.lend(op, len, count);
        }
    }

    /// Queues the answer to a read likewise.
    pub fn answer_stripes(
        &mut self,
        bulk: Option<&mut Bulk>,
        remote: Vec<RemotePiece>,
        len: usize,
        count: u8,
    ) {
        let answer = bulk.filter(|_| count > 1).map(|bulk| bulk.answer(&remote, len, count));
        self.out.read_range(remote, stripe(len, count, 0), answer);
    }

    /// Queues an announced message of this end, on bulk connections too if there are any. Returns the number of its
    /// stripes.
    pub fn begin_announced(&mut self, number: u8, own: &Announced, mut bulk: Option<&mut Bulk>) -> u8 {
        bulk = bulk.filter(|_| own.kept.is_none());
        let count = self.begin_stripes(bulk.as_deref_mut(), own.len);
        self.out.header(&Packet::Data { number, len: own.len as u64 }, self.order);
        match &own.kept {
            Some(bytes) => {
                self.out.append(bytes);
                self.out.mark(own.op);
            }
            None if own.len == 0 => self.out.mark(own.op),
            None => self.lend_stripes(bulk, own.op, own.len, count),
        }
        if own.confirm {
            self.acks.push_back(own.op);
        }
        self.dirty = true;
        count
    }
}
