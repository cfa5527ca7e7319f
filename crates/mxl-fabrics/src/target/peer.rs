//! An initiator from its target's side: how it is accepted, notified and dismissed.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

use ofi::FiAddr;
use ofi_ring::crash_point;

use super::publish::Pending;
use super::{Received, Ring, Target, random};
use crate::Result;
use crate::link::{Happened, Memory, OpId, Window};
use crate::message::{Message, Remote, Why};

/// Most queue reads that fetch completions of an old initiator's writes: messages must not keep a target busy.
const DRAINED: usize = 64;
/// Most messages that an initiator may leave unread beyond those that its provider holds: the target sends a few for
/// each grain.
const UNHEARD: usize = 1024;
/// Most refusals in flight.
const DISMISSED: usize = 16;

/// The connected initiator.
pub(super) struct Peer {
    // Dropped first: then no further writes of this initiator arrive.
    pub(super) windows: HashMap<u64, Window>,
    pub(super) addr: FiAddr,
    pub(super) nonce: u64,
    pub(super) token: u64,
    /// Operations up to this one began before it was accepted.
    pub(super) since: OpId,
    /// Indices whose slots are open.
    pub(super) granted: VecDeque<u64>,
    /// The number of the next commit.
    pub(super) next: u64,
    pub(super) pending: BTreeMap<u64, Pending>,
    /// Time of the last publication for it.
    pub(super) published: Option<Instant>,
    pub(super) outbox: VecDeque<Message>,
    /// Samples up to this index may be written.
    pub(super) until: u64,
    /// Its payloads come in messages: it gets no memory to write.
    pub(super) by_messages: bool,
}

impl Target {
    /// Disconnects the initiator, and withdraws its memory.
    pub(super) fn part(&mut self) {
        if let Some(peer) = self.peer.take() {
            drop(peer.windows);
            self.link.remove(peer.addr);
            self.tell(Received::Disconnected);
        }
    }

    pub(super) fn dismiss(&mut self, addr: FiAddr, nonce: u64, why: Why) {
        self.stats.refused += 1;
        match self.link.send(addr, &Message::Refused { nonce, why }) {
            Ok(Some(op)) => self.dismissed.push((op, addr)),
            _ => self.link.remove(addr),
        }
    }

    pub(super) fn hello(
        &mut self,
        nonce: u64,
        (format, address): (u32, &[u8]),
        messages: bool,
        why: Option<Why>,
    ) -> Result<()> {
        if self.peer.as_ref().is_some_and(|peer| peer.nonce == nonce) {
            return Ok(()); // a repeated greeting
        }
        if self.dismissed.len() >= DISMISSED {
            self.stats.nonsense += 1;
            return Ok(());
        }
        let addr = match self.link.insert(format, address) {
            Ok(addr) => addr,
            Err(error) => {
                tracing::debug!(target: "mxl::fabrics", %error, "an initiator has an unusable address");
                self.stats.nonsense += 1;
                return Ok(());
            }
        };
        if let Some(why) = why {
            self.dismiss(addr, nonce, why);
            return Ok(());
        }
        if let Some(old) = self.peer.take() {
            drop(old.windows);
            if old.addr != addr {
                self.dismiss(old.addr, old.nonce, Why::Replaced);
            }
            self.tell(Received::Disconnected);
        }
        // Completions of the old initiator's writes from before its memory was withdrawn do not belong to the new one.
        let mut happened = Vec::new();
        for _ in 0..DRAINED {
            if !self.link.poll(&mut happened)? {
                break;
            }
        }
        let token = random()?;
        let mut peer = Peer {
            windows: HashMap::new(),
            addr,
            nonce,
            token,
            since: self.link.newest(),
            granted: VecDeque::new(),
            next: 0,
            pending: BTreeMap::new(),
            published: None,
            outbox: VecDeque::new(),
            until: 0,
            by_messages: messages || !self.link.writes,
        };
        let (mut rings, mut length) = (Remote::default(), 0);
        if let Ring::Samples(writer) = &self.ring {
            let (_, base) = writer.begin(0, 0)?;
            let (word, stride) = writer.strides();
            length = (stride / word) as u64;
            if !peer.by_messages {
                let memory = Memory { addr: base, len: stride * writer.channels() as usize };
                // SAFETY: the ring is mapped as long as the writer, which outlives the windows; there are no references
                // to it.
                let window = unsafe { self.link.open_window(memory) }?;
                rings = window.remote();
                peer.windows.insert(0, window);
            }
        }
        let receive = if peer.by_messages { self.link.receive as u64 } else { 0 };
        peer.outbox.push_back(Message::Welcome { nonce, token, rings, length, receive });
        self.peer = Some(peer);
        crash_point!("target.welcome");
        self.stats.taken += 1;
        self.tell(Received::Connected);
        for happened in happened {
            // Writes of the old initiator are dropped; other events count.
            if !matches!(happened, Happened::Arrived(_)) {
                self.handle(happened)?;
            }
        }
        Ok(())
    }

    /// Sends the pending messages, as far as there is room.
    pub(super) fn flush(&mut self) {
        let Some(peer) = &mut self.peer else { return };
        if peer.outbox.len() > UNHEARD {
            tracing::debug!(target: "mxl::fabrics", "an initiator sends requests and reads no answers");
            return self.part();
        }
        while let Some(message) = peer.outbox.front() {
            match self.link.send(peer.addr, message) {
                Ok(Some(_)) => drop(peer.outbox.pop_front()),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(target: "mxl::fabrics", %error, "a message to an initiator failed");
                    return self.part();
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "../../../mxl/tests/common/folder.rs"]
mod folder;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mxl::{BatchHints, FlowDefinition, Rational};
    use ofi::Errno;

    use super::folder::Folder;
    use super::*;
    use crate::{Initiator, Provider};

    #[test]
    fn the_late_failure_of_a_message_to_an_old_initiator_does_not_part_the_new_one() {
        let (near, far) = (Folder::new(), Folder::new());
        let camera = FlowDefinition::video("camera", 192, 40, Rational::new(50, 1)).unwrap();
        let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
        let any = (None, None);
        let mut target = Target::open(&far.domain(), &camera, Provider::Shm, any, None).unwrap();
        let begin = Instant::now();
        let connect = |target: &mut Target| {
            let mut initiator = Initiator::open(&near.domain(), camera.id, Provider::Shm, any).unwrap();
            initiator.add(target.info()).unwrap();
            while !initiator.is_idle() {
                initiator.poll().unwrap();
                target.poll().unwrap();
                assert!(begin.elapsed() < Duration::from_secs(40));
            }
            initiator
        };
        let old = connect(&mut target);
        let of_old = target.link.newest();
        let new = connect(&mut target);
        assert!(target.link.newest() > of_old, "the target has welcomed the new one");
        target.handle(Happened::Ended(of_old, Err(Errno::ECONNABORTED))).unwrap();
        assert!(target.is_connected());
        // A failure of its own messages ends it.
        target.handle(Happened::Ended(target.link.newest(), Err(Errno::ECONNABORTED))).unwrap();
        assert!(!target.is_connected());
        drop((old, new));
    }
}
