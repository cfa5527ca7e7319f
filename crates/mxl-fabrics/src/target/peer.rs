//! An initiator from its target's side: how it is accepted, notified and dismissed.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use ofi::FiAddr;
use ofi_ring::crash_point;

use super::publish::Pending;
use super::{Received, Ring, Target, random};
use crate::Result;
use crate::driven::sealed::Polled as _;
use crate::link::{Happened, Memory, OpId, Window};
use crate::message::{Message, Remote, Why};
use crate::rest::Sleeper;

/// Maximum queue reads for completions of an old initiator's writes, so that messages do not keep a target busy.
const DRAINED: usize = 64;
/// Maximum messages that an initiator may leave unread, beyond those that its provider buffers. The target sends a few
/// per grain.
const UNHEARD: usize = 1024;
/// Maximum refusals and farewells whose completion the target awaits. A newer one displaces the oldest.
const DISMISSED: usize = 16;
/// Maximum messages in flight that the target no longer awaits: each occupies an operation of the endpoint. Beyond it
/// the target answers no invalid greeting, but still accepts valid ones.
const GIVEN_UP: usize = 256;
/// Time that a refusal or a farewell waits for room.
const ROOM_WITHIN: Duration = Duration::from_secs(1);
/// Time that a closing target waits for its farewell to arrive.
const LINGER: Duration = Duration::from_millis(50);
/// Shortest and longest pause between attempts to close memory that is still being written.
const STUCK_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(16));
/// Maximum queued greetings.
const GREETINGS: usize = 16;
/// Maximum replaced attempts whose late greetings are recognised.
const REPLACED: usize = 16;

/// A dismissed initiator: a refusal or a farewell is on its way to it.
pub(super) struct Dismissed {
    addr: FiAddr,
    nonce: u64,
    why: Why,
    since: Instant,
    /// The message's operation, once there was room for it.
    op: Option<OpId>,
}

/// The dismissed initiators.
#[derive(Default)]
pub(super) struct Dismissals {
    awaited: Vec<Dismissed>,
    /// Messages in flight that the target no longer awaits. Over shared memory they end when their receiver reads or
    /// dies.
    given_up: HashSet<OpId>,
}

/// Memory of former initiators in which an access is still running, seconds after it was withdrawn. No initiator is
/// accepted until it has ended: it could write into what the next one sends (I2).
#[derive(Default)]
pub(super) struct Stuck {
    windows: Vec<Window>,
    /// The time of the next attempt to close them, and the pause after it: each may take a second.
    next: Option<(Instant, Duration)>,
}

impl Stuck {
    /// Closes windows; keeps those in which an access is running.
    fn revoke(&mut self, windows: impl IntoIterator<Item = Window>) {
        self.windows.extend(windows.into_iter().filter_map(|window| window.close().err()));
    }

    /// Whether all are closed. Tries again, unless it did so just now.
    fn is_over(&mut self) -> bool {
        let now = Instant::now();
        let (due, pause) = self.next.unwrap_or((now, STUCK_PAUSE.0));
        if !self.windows.is_empty() && now >= due {
            while let Some(window) = self.windows.pop() {
                if let Err(window) = window.close() {
                    self.windows.push(window);
                    break;
                }
            }
            self.next = Some((Instant::now() + pause, STUCK_PAUSE.1.min(pause * 2)));
        }
        if self.windows.is_empty() {
            self.next = None;
        }
        self.windows.is_empty()
    }
}

/// The connected initiator.
pub(super) struct InitiatorPeer {
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
    /// The number up to which the initiator was told what is published, and when.
    pub(super) told: u64,
    pub(super) told_at: Instant,
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
    /// Disconnects the initiator, sends it the reason unless it has left by itself, and withdraws its memory.
    pub(super) fn part(&mut self, why: Option<Why>) {
        if let Some(peer) = self.peer.take() {
            match why {
                // Sent before its writes fail, so that it knows why they do.
                Some(why) => {
                    self.stats.parted += 1;
                    if self.dismissed.given_up.len() < GIVEN_UP {
                        self.dismiss(peer.addr, peer.nonce, why);
                    } else {
                        self.link.remove(peer.addr);
                    }
                }
                None => self.link.remove(peer.addr),
            }
            self.stuck.revoke(peer.windows.into_values());
            self.tell(Received::Disconnected);
        }
    }

    /// Sends an initiator the reason for its refusal or the end of its connection, and then removes its address. The
    /// message may be lost.
    fn dismiss(&mut self, addr: FiAddr, nonce: u64, why: Why) {
        if self.dismissed.awaited.len() >= DISMISSED {
            self.give_up();
        }
        self.dismissed.awaited.push(Dismissed { addr, nonce, why, since: Instant::now(), op: None });
        self.send_dismissals();
    }

    /// Stops awaiting the oldest refusal or farewell. If it was sent, it can still be read.
    fn give_up(&mut self) {
        let Dismissals { awaited, given_up } = &mut self.dismissed;
        let oldest = awaited.iter().enumerate().min_by_key(|(_, there)| (there.op.is_none(), there.since));
        if let Some(at) = oldest.map(|(at, _)| at) {
            let there = awaited.swap_remove(at);
            given_up.extend(there.op);
            self.link.remove(there.addr);
        }
    }

    /// Sends the refusals and farewells that had no room before.
    fn send_dismissals(&mut self) {
        let Self { dismissed, link, .. } = self;
        dismissed.awaited.retain_mut(|Dismissed { addr, nonce, why, since, op }| {
            if op.is_some() {
                return true;
            }
            let sent = link.send(*addr, &Message::Refused { nonce: *nonce, why: *why });
            match sent {
                Ok(there) if there.is_some() || since.elapsed() < ROOM_WITHIN => *op = there,
                Ok(_) | Err(_) => {
                    link.remove(*addr);
                    return false;
                }
            }
            true
        });
    }

    /// Whether an ended operation was a refusal or a farewell.
    pub(super) fn dismissed(&mut self, op: OpId) -> bool {
        let Dismissals { awaited, given_up } = &mut self.dismissed;
        let Some(at) = awaited.iter().position(|there| there.op == Some(op)) else {
            return given_up.remove(&op);
        };
        let there = awaited.swap_remove(at);
        self.link.remove(there.addr);
        true
    }

    /// Whether a refusal or a farewell waits for room.
    pub(super) fn has_dismissals(&self) -> bool {
        self.dismissed.awaited.iter().any(|there| there.op.is_none())
    }

    /// Tells the initiator that the target closes. Afterwards the target may only be dropped.
    pub(crate) fn leave(&mut self) {
        if !self.link.is_here() {
            return; // only the parent closes it
        }
        self.part(Some(Why::Closed));
        self.left.get_or_insert_with(Instant::now);
    }

    /// Waits until the message of [`leave`](Self::leave) has arrived, for a limited time.
    fn linger(&mut self) {
        let since = *self.left.get_or_insert_with(Instant::now);
        let (mut happened, mut sleeper) = (Vec::new(), Sleeper::default());
        while !self.is_broken && !self.dismissed.awaited.is_empty() && since.elapsed() < LINGER {
            let Ok(was_busy) = self.link.poll(&mut happened) else { return };
            for happened in happened.drain(..) {
                match happened {
                    Happened::Ended(op, _) => drop(self.dismissed(op)),
                    Happened::Piece(receive) => self.link.release(receive),
                    Happened::Message(_) | Happened::Arrived(_) | Happened::Nonsense => {}
                }
            }
            self.send_dismissals();
            if !was_busy {
                sleeper.wait(&self.queues(), self.rest(), LINGER.saturating_sub(since.elapsed()));
            }
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
        // A repeated greeting may come after the one that replaced it.
        let why = why.or_else(|| self.replaced.contains(&nonce).then_some(Why::Replaced));
        if why.is_some() && self.dismissed.given_up.len() >= GIVEN_UP {
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
            if why != Why::Replaced {
                self.stats.refused += 1;
            }
            self.dismiss(addr, nonce, why);
            return Ok(());
        }
        if let Some(old) = &self.peer {
            if self.replaced.len() == REPLACED {
                self.replaced.pop_front();
            }
            self.replaced.push_back(old.nonce);
            // At the same address it is the same initiator, or the next one in its place.
            let is_other = old.addr != addr;
            self.part(is_other.then_some(Why::Replaced));
        }
        if !self.stuck.is_over() {
            // It greets again.
            self.stats.refused += 1;
            self.link.remove(addr);
            return Ok(());
        }
        self.leave_foreign();
        // Completions of the old initiator's writes from before its memory was withdrawn do not belong to the new one.
        let mut ended = Vec::new();
        self.drain(&mut ended)?;
        let token = random()?;
        let mut peer = InitiatorPeer {
            windows: HashMap::new(),
            addr,
            nonce,
            token,
            since: self.link.newest(),
            granted: VecDeque::new(),
            next: 0,
            told: 0,
            told_at: Instant::now(),
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
        ended.into_iter().try_for_each(|ended| self.handle(ended))
    }

    /// Drains the queue before a greeting is accepted. None of the drained events concerns the new initiator, so only
    /// completions of this target's own messages and further greetings are kept. They are handled later, because
    /// handling a greeting here would recurse.
    fn drain(&mut self, ended: &mut Vec<Happened>) -> Result<()> {
        let mut happened = Vec::new();
        for _ in 0..DRAINED {
            if !self.link.poll(&mut happened)? {
                break;
            }
            for happened in happened.drain(..) {
                match happened {
                    Happened::Ended(..) => ended.push(happened),
                    // A dropped greeting is repeated.
                    Happened::Message(greeting @ Message::Hello { .. })
                        if self.greetings.len() < GREETINGS =>
                    {
                        self.greetings.push_back(greeting);
                    }
                    Happened::Piece(receive) => {
                        self.link.release(receive);
                        self.stats.nonsense += 1;
                    }
                    Happened::Arrived(_) => {}
                    Happened::Message(_) | Happened::Nonsense => self.stats.nonsense += 1,
                }
            }
        }
        Ok(())
    }

    /// Sends the pending messages, as far as there is room.
    pub(super) fn flush(&mut self) {
        self.send_dismissals();
        let Some(peer) = &mut self.peer else { return };
        peer.report();
        if peer.outbox.len() > UNHEARD {
            tracing::debug!(target: "mxl::fabrics", "an initiator sends requests and reads no answers");
            return self.part(Some(Why::Unheard));
        }
        while let Some(message) = peer.outbox.front() {
            match self.link.send(peer.addr, message) {
                Ok(Some(_)) => drop(peer.outbox.pop_front()),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(target: "mxl::fabrics", %error, "a message to an initiator failed");
                    return self.part(Some(Why::Failed));
                }
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.leave();
        if self.link.is_here() {
            self.linger();
        }
    }
}

#[cfg(test)]
#[path = "../../../mxl/tests/common/folder.rs"]
mod folder;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use mxl::{BatchHints, FlowDefinition, Rational};
    use ofi::Errno;
    use ofi::raw::{BindFlags, Counter, Desc, Endpoint, Fid, MemoryRegion, Piece};

    use super::folder::Folder;
    use super::*;
    use crate::link::{Link, LinkEnd};
    use crate::message::VERSION;
    use crate::{Initiator, Options, PeerState, Provider};

    /// Memory in which an access does not end.
    struct Busy(Arc<AtomicBool>);

    impl MemoryRegion for Busy {
        fn fid(&self) -> Fid {
            unreachable!("no event names it")
        }
        fn key(&self) -> u64 {
            1
        }
        fn desc(&self) -> Desc {
            unreachable!("no operation uses it")
        }
        fn base(&self) -> u64 {
            0
        }
        fn len(&self) -> usize {
            4096
        }
        fn bind_counter(&self, _: &Arc<dyn Counter>, _: BindFlags) -> ofi::Result<()> {
            Ok(())
        }
        fn bind_endpoint(&self, _: &Arc<dyn Endpoint>) -> ofi::Result<()> {
            Ok(())
        }
        fn enable(&self) -> ofi::Result<()> {
            Ok(())
        }
        fn refresh(&self, _: &[Piece]) -> ofi::Result<()> {
            Ok(())
        }
        fn close(&self) -> ofi::Result<()> {
            if self.0.load(Ordering::Relaxed) { Err(ofi::Error::new(Errno::EBUSY)) } else { Ok(()) }
        }
    }

    /// Regression test: memory of an old initiator in which a write was still running was only reported, and the next
    /// initiator accepted: the late write could land in its data.
    #[test]
    fn no_initiator_is_accepted_while_an_access_of_the_last_one_is_running() {
        let (near, far) = (Folder::new(), Folder::new());
        let camera = camera();
        let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
        let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
        let id = target.info().id;
        let _old = connect(&near, &camera, &mut target);
        let is_busy = Arc::new(AtomicBool::new(true));
        let window = Window(Arc::new(Busy(is_busy.clone())));
        target.peer.as_mut().unwrap().windows.insert(7, window);
        let mut new = Initiator::open(&near.domain(), camera.id, Provider::Shm, ANY).unwrap();
        new.add(target.info()).unwrap();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(800) {
            new.poll().unwrap();
            target.poll().unwrap();
        }
        assert!(!target.is_connected() && target.stats().taken == 1 && target.stats().refused > 0);
        assert_ne!(new.target(id).unwrap().0, PeerState::Connected);
        is_busy.store(false, Ordering::Relaxed);
        until(&mut new, &mut target, |new, _| new.is_idle());
        assert_eq!(target.stats().taken, 2);
    }

    const ANY: (Option<&str>, Option<&str>) = (None, None);
    /// Enough for one greeting in a build for debugging, and for few that nest.
    const STACK: usize = 256 << 10;
    /// Longer than any operation takes on a loaded machine.
    const LONG: Duration = Duration::from_secs(40);

    fn camera() -> FlowDefinition {
        FlowDefinition::video("camera", 192, 40, Rational::new(50, 1)).unwrap()
    }

    fn until(initiator: &mut Initiator, target: &mut Target, is_done: impl Fn(&Initiator, &Target) -> bool) {
        let begin = Instant::now();
        while !is_done(initiator, target) {
            initiator.poll().unwrap();
            target.poll().unwrap();
            assert!(begin.elapsed() < LONG, "timeout: {:?}", target.stats());
        }
    }

    /// A new initiator, which is connected.
    fn connect(near: &Folder, definition: &FlowDefinition, target: &mut Target) -> Initiator {
        let mut initiator = Initiator::open(&near.domain(), definition.id, Provider::Shm, ANY).unwrap();
        initiator.add(target.info()).unwrap();
        until(&mut initiator, target, |initiator, _| initiator.is_idle());
        initiator
    }

    #[test]
    fn the_late_failure_of_a_message_to_an_old_initiator_does_not_part_the_new_one() {
        let (near, far) = (Folder::new(), Folder::new());
        let camera = camera();
        let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
        let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
        let id = target.info().id;
        let old = connect(&near, &camera, &mut target);
        let of_old = target.link.newest();
        let mut new = connect(&near, &camera, &mut target);
        assert!(target.link.newest() > of_old, "the target has welcomed the new one");
        target.handle(Happened::Ended(of_old, Err(Errno::ECONNABORTED))).unwrap();
        assert!(target.is_connected());
        // A failure of its own messages ends it, and it is told: it sends nothing that could fail.
        target.handle(Happened::Ended(target.link.newest(), Err(Errno::ECONNABORTED))).unwrap();
        assert!(!target.is_connected());
        assert_eq!(target.stats().parted, 2);
        until(&mut new, &mut target, |new, _| new.target(id).unwrap().1.parted == 1);
        assert_eq!(new.target(id).unwrap().0, PeerState::Parted(Why::Failed));
        until(&mut new, &mut target, |new, target| new.is_idle() && target.is_connected());
        let stats = new.target(id).unwrap().1;
        assert_eq!((stats.connected, stats.failed, new.nonsense()), (2, 0, 0));
        drop(old);
    }

    /// Repeated greetings may arrive after the one of the initiator that replaced theirs: each would replace the other
    /// again, and neither would write.
    #[test]
    fn a_repeated_greeting_of_a_replaced_initiator_does_not_replace_the_new_one() {
        let (near, far) = (Folder::new(), Folder::new());
        let camera = camera();
        let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
        let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
        let stranger = Link::open(Provider::Shm, ANY, LinkEnd::Initiator, &Options::default()).unwrap();
        let (format, address) = stranger.name.clone();
        target.hello(77, (format, &address), false, None).unwrap();
        assert_eq!(target.stats().taken, 1);
        let mut new = connect(&near, &camera, &mut target);
        let nonce = target.peer.as_ref().unwrap().nonce;
        for _ in 0..3 {
            target.hello(77, (format, &address), false, None).unwrap();
        }
        assert_eq!((target.stats().taken, target.peer.as_ref().unwrap().nonce), (2, nonce));
        for _ in 0..100 {
            new.poll().unwrap();
            target.poll().unwrap();
        }
        assert!(new.check().is_ok() && new.is_idle());
        // Another attempt of it counts.
        target.hello(78, (format, &address), false, None).unwrap();
        assert_eq!(target.stats().taken, 3);
    }

    /// A stranger that reads nothing and greets without end costs a limited number of operations, and keeps nobody out.
    #[test]
    fn greetings_without_end_are_answered_a_limited_number_of_times() {
        let (near, far) = (Folder::new(), Folder::new());
        let camera = camera();
        let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
        let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
        let open = || Link::open(Provider::Shm, ANY, LinkEnd::Initiator, &Options::default()).unwrap();
        let strangers = [open(), open()];
        let wrong = 2 * (GIVEN_UP + DISMISSED) as u64;
        for nonce in 1..=wrong {
            let (format, address) = strangers[nonce as usize % 2].name.clone();
            target.hello(nonce, (format, &address), false, Some(Why::Target)).unwrap();
            assert!(target.dismissed.awaited.len() <= DISMISSED);
            assert!(target.dismissed.given_up.len() <= GIVEN_UP);
        }
        let stats = target.stats();
        assert_eq!(target.dismissed.given_up.len(), GIVEN_UP, "{stats:?}");
        assert_eq!(stats.refused + stats.nonsense, wrong);
        assert!(stats.nonsense > 0, "{stats:?}");
        let initiator = connect(&near, &camera, &mut target);
        assert!(target.is_connected());
        // The end of a message that nobody awaits is no end of the initiator.
        let given_up = *target.dismissed.given_up.iter().next().unwrap();
        target.handle(Happened::Ended(given_up, Err(Errno::ECONNABORTED))).unwrap();
        assert!(target.is_connected() && target.dismissed.given_up.len() == GIVEN_UP - 1);
        drop((initiator, strangers));
        // What the strangers did not read has failed.
        let begin = Instant::now();
        while !(target.dismissed.given_up.is_empty() && target.dismissed.awaited.is_empty()) {
            target.poll().unwrap();
            assert!(begin.elapsed() < LONG, "{} left", target.dismissed.given_up.len());
        }
    }

    /// Regression test: the next initiator got the number of the one before it in the address vector, and with it the
    /// operations that this one had left under way. With no place left for its welcome, it waited for ever.
    #[test]
    fn an_initiator_is_welcomed_after_one_that_read_nothing() {
        let (near, far) = (Folder::new(), Folder::new());
        let camera = camera();
        let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
        let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
        let silent = Link::open(Provider::Shm, ANY, LinkEnd::Initiator, &Options::default()).unwrap();
        let (format, address) = silent.name.clone();
        target.hello(77, (format, &address), false, None).unwrap();
        let owe = |peer: &mut InitiatorPeer| {
            let token = peer.token;
            let unread = (1..UNHEARD as u64).map(|number| Message::Published { token, number });
            peer.outbox.extend(unread);
        };
        owe(target.peer.as_mut().unwrap());
        target.poll().unwrap();
        let peer = target.peer.as_mut().expect("no more wait than may");
        assert!(!peer.outbox.is_empty(), "it has its whole share of the endpoint");
        let number = peer.addr;
        owe(peer);
        owe(peer);
        let begin = Instant::now();
        while target.peer.is_some() || !target.dismissed.awaited.is_empty() {
            target.poll().unwrap();
            assert!(begin.elapsed() < LONG, "it is not parted: {:?}", target.stats());
        }
        assert_eq!(target.stats().parted, 1);
        let next = connect(&near, &camera, &mut target);
        assert_eq!(target.peer.as_ref().map(|peer| peer.addr), Some(number), "the number is used again");
        assert!(target.link.is_sending(), "the messages to the first one are still under way");
        drop((next, silent));
    }

    /// Regression test: an accepted greeting led to the next one that waited within its own call, so strangers could
    /// make a target use any amount of stack.
    #[test]
    fn greetings_that_wait_are_handled_one_after_the_other() {
        let (near, far) = (Folder::new(), Folder::new());
        let camera = camera();
        let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
        let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
        let mut stranger = Link::open(Provider::Shm, ANY, LinkEnd::Initiator, &Options::default()).unwrap();
        let (format, address) = stranger.name.clone();
        let to = stranger.insert(target.info().format, &target.info().address).unwrap();
        let (id, geometry) = (target.info().id, crate::shape::numbers(&camera.geometry()));
        let stop = AtomicBool::new(false);
        let mut target = std::thread::scope(|scope| {
            let flood = scope.spawn(|| {
                let (mut nonce, mut answers) = (1, Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let address = address.clone();
                    let version = VERSION;
                    let hello =
                        Message::Hello { version, target: id, nonce, geometry, messages: 0, format, address };
                    nonce += u64::from(stranger.send(to, &hello).unwrap().is_some());
                    stranger.poll(&mut answers).unwrap();
                    answers.clear();
                }
            });
            let small = std::thread::Builder::new().stack_size(STACK);
            let turns = small.spawn_scoped(scope, || {
                let begin = Instant::now();
                while target.stats().taken < 2000 {
                    target.poll().unwrap();
                    assert!(target.greetings.len() <= GREETINGS, "{} wait", target.greetings.len());
                    assert!(begin.elapsed() < LONG, "{:?}", target.stats());
                }
                target
            });
            let target = turns.unwrap().join();
            stop.store(true, Ordering::Relaxed);
            flood.join().unwrap();
            target.unwrap()
        });
        // A greeting that comes then is heard.
        drop(stranger);
        let initiator = connect(&near, &camera, &mut target);
        assert!(initiator.is_idle() && target.is_connected());
    }

    /// Regression test: when a target parted an initiator that sends payloads in messages, and its farewell was lost,
    /// the initiator stood still for ever once the window of commits was full, since nothing of it failed.
    #[test]
    fn an_initiator_whose_window_stays_full_connects_again() {
        let (near, far) = (Folder::new(), Folder::new());
        let sound = FlowDefinition::audio("microphone", 2, Rational::new(48_000, 1)).unwrap();
        let mut source = near.domain().create_samples(&sound, &BatchHints::default()).unwrap().writer;
        let options = Options { messages_only: true, ..Options::default() };
        let mut target =
            Target::open_with(&far.domain(), &sound, Provider::Shm, ANY, None, &options).unwrap();
        let id = target.info().id;
        let mut initiator = connect(&near, &sound, &mut target);
        let mut index = 48_000;
        let mut send = |initiator: &mut Initiator| {
            index += 48;
            source.open(index, 48).unwrap().commit().unwrap();
            initiator.send_samples(index, 48).unwrap();
        };
        send(&mut initiator);
        until(&mut initiator, &mut target, |_, target| target.stats().published == 1);
        // The farewell is lost.
        let peer = target.peer.take().unwrap();
        target.link.remove(peer.addr);
        for _ in 0..crate::message::WINDOW + 6 {
            send(&mut initiator);
        }
        until(&mut initiator, &mut target, |initiator, _| initiator.target(id).unwrap().1.connected == 2);
    }
}
