//! One peer of an endpoint: the rings in both directions, and the operations in flight.
//!
//! This file creates the rings and appends commands and replies. `poll.rs` reads the peer's rings, `ending.rs` ends
//! operations and peers, and `message/`, `bulk.rs`, `single/`, `rma/`, `atomic.rs` and `note.rs` implement the
//! operations.

pub mod bulk;
pub mod grants;
pub mod link;
pub mod parked;
pub mod pull;
pub mod replies;
pub mod served;
pub mod single;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ofi_api::{AddrFormat, Errno, Error, Result};
use ofi_core::log::{Limit, Told};
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::{PeerId, record};
use ofi_ring::crash_point;
use ofi_ring::doorbell::{DoorbellSender, Wake};
use ofi_ring::membarrier::Support;
use ofi_ring::record::{Consumer, Corrupt, Producer};
use rustc_hash::FxHashMap;

use self::bulk::Bulk;
use self::grants::Grants;
use self::link::{Link, Up};
use self::parked::ParkedQueue;
use self::pull::Pull;
use self::replies::{DONES, Replies, Reply};
use self::served::Served;
use self::single::Single;
use crate::command::{CommandWriter, kind};
use crate::common::{Common, full};
use crate::layout::{LINE, doorbell, endpoint, pair};
use crate::pair::{self as pairs, OwnPair, PeerParts};
use crate::stores::RingStores;

/// The end of the peer.
#[derive(Default)]
pub struct PeerEnd {
    /// The peer has ended. The records that it sent are still processed; then its state is freed.
    pub gone: bool,
    /// For a connected endpoint: the helper's round in which the end was seen in the peer's memory.
    pub closed_at: Option<u64>,
}

/// Operations of this end.
#[derive(Default)]
pub struct Initiated {
    /// Operations in flight.
    pub outstanding: usize,
    /// Reads and writes among them that the peer executes.
    pub commanded: usize,
    /// Sends that were put into the ring before the peer was known to exist.
    pub unconfirmed: Vec<SlotId>,
    /// One more than the length for which a post found no room in the command ring; 0 once a sleeper was notified that
    /// there is room.
    pub needed_room: u32,
}

/// Payloads that stay with their senders until a receiver has room.
#[derive(Default)]
pub struct BackPressure {
    /// This end has asked the peer to hold its payloads.
    pub wished: bool,
    /// Payloads that this end keeps at the peer's request.
    pub kept: Slots<Box<[u8]>>,
    /// The position of the peer's last command for which the application had no room.
    pub stopped: Option<u64>,
}

/// The peer's membership in the endpoint's lists (`endpoint/`).
#[derive(Default)]
pub struct Schedule {
    /// The peer is not visited by every poll: it sets a hint.
    pub is_cold: bool,
    /// The peer is in the list of lost peers, whose numbers may be reused.
    pub is_spare: bool,
    /// Polls since a command came; `ShmEndpoint::cool_down` uses it.
    pub idle: u32,
}

/// The state of one peer of an endpoint.
#[derive(Default)]
pub struct Peer {
    pub peer: PeerId,
    pub socket: Vec<u8>,
    /// Dropped before `link`, whose memories contain the words.
    pub bulk: Bulk,
    pub link: Option<Link>,
    pub end: PeerEnd,
    /// Work is pending: set when it begins, reset by the poll that finds nothing left.
    pub busy: bool,
    pub initiated: Initiated,
    pub served: Served,
    pub back_pressure: BackPressure,
    pub replies: Replies,
    /// How payloads are written into the rings.
    pub stores: RingStores,
    pub pulls: FxHashMap<u64, Pull>,
    /// Copies from memory to memory.
    pub single: Option<Box<Single>>,
    pub grants: Grants,
    pub parked: ParkedQueue,
    pub schedule: Schedule,
    /// Protocols of messages to the peer that were logged.
    pub told: Told,
}

/// The peer violated the protocol and must be disconnected.
pub struct Broken;

impl From<record::Broken> for Broken {
    fn from(_: record::Broken) -> Self {
        Self
    }
}

impl From<Corrupt> for Broken {
    fn from(_: Corrupt) -> Self {
        Self
    }
}

/// The outcome of a command.
pub enum NextStep {
    /// It is complete.
    Next,
    /// It must wait in the ring.
    Stop,
}

impl Peer {
    pub fn new(peer: PeerId, socket: Vec<u8>) -> Self {
        Self { peer, socket, ..Self::default() }
    }

    /// Creates this end of the pair and greets the peer, unless that has been done.
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
        // Until the peer is attached nothing has been read, so words that stay 0 stand in for the peer's.
        let unread = own.memory.word(pair::BULK_READ);
        // SAFETY: the link keeps `own` beside the producers, which are the only ones.
        let commands = unsafe { own.commands()? };
        // SAFETY: as above.
        let replies = unsafe { own.replies()? };
        // SAFETY: the lines and the word lie in `own`, which the link keeps; this is the pair's only producer.
        let commands = unsafe { Producer::new(commands, unread) };
        // SAFETY: as above.
        let replies = unsafe { Producer::new(replies, unread) };
        Ok(Link { own: Arc::clone(own), commands, replies, up: None })
    }

    /// Attaches the peer's memory.
    ///
    /// # Errors
    /// `FI_EINVAL` for memory of impossible sizes.
    pub fn attach(&mut self, barrier: Support, own: &Arc<OwnPair>, parts: Box<PeerParts>) -> Result<()> {
        let same = self.link.as_ref().is_some_and(|link| Arc::ptr_eq(&link.own, own));
        if !same {
            self.link = Some(Self::rings(own)?);
        }
        let Some(link) = &mut self.link else { return Ok(()) };
        // Fallible steps come first; after them `up` keeps the memory that the producers read.
        // SAFETY: `up` keeps `parts` beside the consumers, which are the only ones.
        let commands = unsafe { pairs::lines(&parts.commands, 0, parts.commands.len() / LINE)? };
        // SAFETY: as above.
        let replies = unsafe { pairs::lines(&parts.pair, pair::REPLIES, pair::REPLY_LINES)? };
        // SAFETY: the word lies in `parts.pair`, which `up` keeps beside the producers; it is the word that the
        // peer stores its position in, 0 at first.
        unsafe { link.commands.attach(parts.pair.word(pair::COMMANDS_READ)) };
        // SAFETY: as above.
        unsafe { link.replies.attach(parts.pair.word(pair::REPLIES_READ)) };
        let hint = parts.hint as usize % doorbell::HINTS;
        // SAFETY: `word` checks place and alignment; mapped while `parts` lives and accessed atomically.
        let fence: &AtomicU32 = unsafe { &*parts.endpoint.word(endpoint::FENCE) };
        let missing = barrier == Support::Missing || fence.load(Ordering::Relaxed) != 0;
        self.back_pressure.stopped = None; // it was a position in another link's ring
        link.up = Some(Up {
            fences: missing,
            // SAFETY: the lines lie in `parts.commands` and the word in `own`, both kept by the link; this is the only
            // consumer, and only it stores the word.
            commands: unsafe { Consumer::new(commands, own.memory.word(pair::COMMANDS_READ)) },
            // SAFETY: as above.
            replies: unsafe { Consumer::new(replies, own.memory.word(pair::REPLIES_READ)) },
            // SAFETY: the words lie in mappings of `parts`; the doorbell memory is mapped writable.
            bell: unsafe {
                DoorbellSender::new(
                    parts.pair.word(pair::ATTENTION),
                    parts.endpoint.word(endpoint::SLEEPING),
                    parts.doorbell.word(hint),
                    barrier,
                )
            },
            wish: parts.pair.word(pair::WISH),
            parts,
        });
        Ok(())
    }

    /// Whether sends to the peer are unrestricted: it is attached, has room and has not closed.
    #[inline]
    pub fn up(&self) -> Option<&Up> {
        self.link.as_ref()?.up.as_ref()
    }

    /// This end's half of the link.
    pub fn link_mut(&mut self) -> Option<&mut Link> {
        self.link.as_mut()
    }

    /// Wakes the peer if it sleeps. Call it after publishing records.
    #[inline]
    pub fn ring(&self, common: &mut Common) {
        match self.up() {
            Some(up) if up.bell.ring() == Wake::Unneeded => {}
            up => self.wake(common, up),
        }
    }

    /// Wakes a peer that sleeps or may sleep. A peer that is not attached at this end may already be attached at its
    /// own end, and may have checked its ring before the record arrived.
    #[cold]
    fn wake(&self, common: &mut Common, up: Option<&Up>) {
        if self.link.is_none() {
            return;
        }
        common.counts.wakes += 1;
        crash_point!("wake.signal");
        if !up.is_some_and(|up| up.parts.signal()) {
            common.helper.post(&common.shared, &self.socket, crate::control::ControlMessage::Wake, None);
        }
        crash_point!("wake.signalled");
    }

    /// Notes that a post found no room for `len` bytes; see [`Peer::has_room_again`].
    #[cold]
    pub fn found_no_room(&mut self, len: usize) {
        static LIMIT: Limit = Limit::new();
        self.initiated.needed_room = u32::try_from(len + 1).unwrap_or(u32::MAX);
        if tracing::enabled!(target: "ofi::shm::ep_data", tracing::Level::DEBUG)
            && let Some(more) = LIMIT.pass()
        {
            tracing::debug!(
                target: "ofi::shm::ep_data",
                peer = %crate::name::shown(&self.socket, AddrFormat::Str), wanted = len,
                outstanding = self.initiated.outstanding, more,
                "the ring of commands to a peer is full (FI_SHM_COMMAND_LINES): posts get FI_EAGAIN until the peer \
                 has taken some"
            );
        }
    }

    /// Whether there is now room for the post that found none.
    pub fn has_room_again(&mut self) -> bool {
        let (wanted, link) = (self.initiated.needed_room, self.link_mut());
        wanted > 0 && link.is_some_and(|link| link.commands.reserve(wanted as usize - 1).is_ok())
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
                self.found_no_room(words.len() * 8);
                return Err(full(common, error));
            }
        };
        // SAFETY: as many words were reserved.
        let mut body = unsafe { CommandWriter::new(slot.body()) };
        words.iter().for_each(|&word| body.word(word));
        slot.publish(high);
        self.ring(common);
        Ok(())
    }

    /// Sends a reply, now or when its ring has room.
    pub fn reply(&mut self, common: &mut Common, high: u32, words: [u64; 3]) {
        if !self.replies.backlog.is_empty() || !self.try_reply(common, high, words) {
            self.replies.backlog.push_back(Reply { high, words });
            self.busy = true;
        }
    }

    /// Sends a reply; `false` if its ring has no room.
    pub fn try_reply(&mut self, common: &mut Common, high: u32, words: [u64; 3]) -> bool {
        let Some(link) = &mut self.link else { return true };
        let Ok(mut slot) = link.replies.reserve(24) else { return false };
        // SAFETY: three words were reserved.
        let mut body = unsafe { CommandWriter::new(slot.body()) };
        words.into_iter().for_each(|word| body.word(word));
        slot.publish(high);
        self.ring(common);
        true
    }

    /// Reports the result of the peer's operation: at once, or together with the results of others being executed.
    pub fn done(&mut self, common: &mut Common, op: u64, result: Result<(), Errno>) {
        crash_point!("done.send");
        if self.replies.dones.gathers && result.is_ok() {
            self.replies.dones.ops[self.replies.dones.count] = op;
            self.replies.dones.count += 1;
            if self.replies.dones.count == DONES {
                self.tell_done(common);
            }
            return;
        }
        let errno = result.err().map_or(0, |errno| errno.get() as u64);
        self.reply(common, kind::DONE, [op, errno, 0]);
    }
}

impl Peer {
    /// Starts to collect results of operations, or reports those collected.
    #[inline]
    pub fn gather_dones(&mut self, common: &mut Common, gather: bool) {
        self.replies.dones.gathers = gather;
        self.tell_done(common);
    }

    /// Reports the collected results.
    #[inline]
    pub fn tell_done(&mut self, common: &mut Common) {
        let count = std::mem::take(&mut self.replies.dones.count);
        if count > 0 {
            self.tell_of(common, count);
        }
    }

    fn tell_of(&mut self, common: &mut Common, count: usize) {
        let ops = self.replies.dones.ops;
        if count > 1
            && self.replies.backlog.is_empty()
            && let Some(link) = &mut self.link
            && let Ok(mut slot) = link.replies.reserve(count * 8)
        {
            // SAFETY: `count` words were reserved.
            let mut body = unsafe { CommandWriter::new(slot.body()) };
            ops[..count].iter().for_each(|&op| body.word(op));
            slot.publish(kind::DONES);
            return self.ring(common);
        }
        for &op in &ops[..count] {
            self.reply(common, kind::DONE, [op, 0, 0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use ofi_ring::record::ReserveError;

    use super::*;
    use crate::control::Introduction;
    use crate::sys::{self, Writers};

    fn parts(command_lines: u32) -> Box<PeerParts> {
        let memory = |size, writers| {
            let fd = sys::memfd(c"test", size).unwrap();
            sys::Mapping::new(fd.as_fd(), size, true).unwrap();
            sys::seal(&fd, writers).unwrap();
            fd
        };
        let mut fds = vec![
            memory(pair::SIZE, Writers::Present),
            memory(endpoint::SIZE, Writers::Present),
            memory(doorbell::SIZE, Writers::Any),
            memory(command_lines as usize * LINE, Writers::Any),
        ];
        let who = Introduction {
            incarnation: 1,
            command_lines,
            hint: 0,
            wakes: false,
            proof: Default::default(),
            token: Default::default(),
        };
        Box::new(PeerParts::map(&who, &mut fds, 0).unwrap())
    }

    /// A producer that looked for room in the memory of a rejected peer would read unmapped memory.
    #[test]
    fn a_peer_with_an_impossible_ring_leaves_nothing_behind() {
        let own = Arc::new(OwnPair::new(64, 0, false).unwrap());
        let mut state = Peer::new(0, Vec::new());
        assert!(state.attach(Support::Missing, &own, parts(1)).is_err());
        let link = state.link.as_mut().unwrap();
        let room = (0..1000).take_while(|_| match link.commands.reserve(8) {
            Ok(slot) => {
                slot.publish(kind::NOTICE);
                true
            }
            Err(error) => {
                assert!(matches!(error, ReserveError::Full));
                false
            }
        });
        assert!(room.count() < 64);
        assert!(state.attach(Support::Missing, &own, parts(64)).is_ok());
    }
}
