//! What one member does: operations chosen at random, and a check of everything that comes of them.

use std::collections::HashMap;

use testkit::prelude::*;

use crate::{Naming, hints, opening};

/// Longest message.
const LONGEST: usize = 200_000;
/// Lengths of messages and accesses: empty, one line, inside a command, beyond it, several parts.
const LENGTHS: [usize; 9] = [0, 8, 64, 300, 2_000, 8_000, 9_000, 40_000, LONGEST];
/// Most operations at a time.
const WINDOW: usize = 16;
/// Buffers of the library's for them.
const LIBRARY: usize = 3;
/// Receives of each kind.
const RECEIVES: usize = 4;
/// What each member has of each region of each other.
const STRIPE: usize = 80 << 10;
/// Members that can be there at a time, with room so that the stripe of a dead one is not used again soon.
pub const STRIPES: usize = 24;
/// Where remote reads and writes begin in a stripe: two atomic cells lie before.
const CELLS: usize = 64;
/// Longest access.
const ACCESS: usize = 70_000;
/// Memory that is lent for a moment.
const LEASE: usize = 20_000;
const LEASE_SEED: u8 = 77;
/// How long it is lent, unless it comes back before.
const LEASED: Duration = Duration::from_millis(50);
/// The longest that an operation with a living member may take. Generous: dozens of processes share two cores.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long an operation with a dead one may take, and what the scheduler of a busy machine is given on top.
pub const BOUND: Duration = Duration::from_secs(1);
pub const GRACE: Duration = Duration::from_secs(2);

/// Tags: an offer of a lease, its return, and messages that nobody receives but who looks for them.
const OFFER: u64 = 1 << 63;
const RETURN: u64 = 1 << 62;
const TRASH: u64 = 1 << 61;

/// Contexts of receives, of searches for trash, of returns, and, from there on, of operations.
const TAGGED_RECEIVE: usize = 1_000;
const SEARCH: usize = 2_000;
const GIVE_BACK: usize = 3_000;
const FIRST: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    /// Of a region: which, what was written, and how long it is.
    Write {
        region: usize,
        seed: u8,
        len: usize,
    },
    Read {
        region: usize,
        seed: u8,
        len: usize,
    },
    Add {
        region: usize,
        wide: bool,
        /// Whether it says what was there.
        fetches: bool,
    },
    /// Of memory that was lent to this member.
    Borrow {
        id: u64,
    },
}

struct Op {
    peer: usize,
    kind: Kind,
    since: Instant,
    /// Its memory, and where that goes back to.
    memory: Memory,
    library: bool,
}

/// What is known of a stripe of a peer.
#[derive(Clone, Copy, Default)]
struct Stripe {
    busy: bool,
    written: Option<(u8, usize)>,
    /// Of each cell: whether it is being changed, and what is in it.
    adding: [bool; 2],
    cells: [Option<u64>; 2],
}

struct Peer {
    index: usize,
    to: FiAddr,
    target: [RemotePiece; 2],
    stripes: [Stripe; 2],
    outstanding: usize,
    done: u64,
    failed: u64,
    /// The first failure that its death has to explain.
    failure: Option<Instant>,
    /// It is dead, since then, and a send to it has been seen to fail.
    dead: Option<(Instant, bool)>,
}

struct Lease {
    id: u64,
    peer: usize,
    region: std::sync::Arc<dyn MemoryRegion>,
    until: Instant,
}

/// See the module. Fields drop in order: the endpoint is closed before the memory that it uses goes.
pub struct Load {
    side: Side,
    regions: [std::sync::Arc<dyn MemoryRegion>; 2],
    leases: Vec<Lease>,
    index: usize,
    stripe: usize,
    state: u64,
    peers: Vec<Peer>,
    ops: HashMap<usize, Op>,
    next: usize,
    receives: Vec<Memory>,
    /// Receives that are posted later, and when.
    lazy: Vec<(usize, u64)>,
    spare: [Vec<Memory>; 2],
    leased: Memory,
    searching: bool,
    quiet: bool,
    steps: u64,
    done: u64,
    /// Whether somebody has died: only then may a receive fail, or shortly before that is told.
    mourning: bool,
    /// Whether strangers send anything they like: what comes from unknown senders is not believed.
    wary: bool,
    /// The first thing that a death has to explain.
    omen: Option<(Instant, String)>,
    _memory: [Memory; 2],
}

impl Load {
    /// An endpoint with everything that others may use. `stripe`: which part of the others' regions is its own, below
    /// [`STRIPES`].
    pub fn open(index: usize, stripe: usize, naming: Naming) -> Self {
        let caps = hints(naming).info.caps | Caps::ATOMIC;
        let side = opening(naming).hints(|hints| hints.caps(caps)).wait_obj(WaitObj::Fd).open();
        let memory = [Memory::new(STRIPES * STRIPE), Memory::library(&side.domain, STRIPES * STRIPE)];
        let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
        let regions = memory.each_ref().map(|memory| side.register(memory, rights).expect("a region"));
        let leased = Memory::library(&side.domain, LEASE);
        leased.fill(LEASE_SEED);
        // All of it now, and touched, so that resident memory is what it will be.
        let application = std::iter::repeat_with(|| Memory::patterned(LONGEST, 1)).take(WINDOW + 4);
        let library = std::iter::repeat_with(|| Memory::library(&side.domain, LONGEST)).take(LIBRARY);
        let spare = [application.collect(), library.collect()];
        let load = Self {
            regions,
            leases: Vec::new(),
            index,
            stripe,
            state: 0x9E37_79B9_7F4A_7C15 ^ (index as u64 + 1) << 20 ^ u64::from(std::process::id()),
            peers: Vec::new(),
            ops: HashMap::new(),
            next: FIRST,
            receives: (0..2 * RECEIVES).map(|_| Memory::new(LONGEST)).collect(),
            lazy: Vec::new(),
            spare,
            leased,
            searching: false,
            quiet: false,
            steps: 0,
            done: 0,
            mourning: false,
            wary: false,
            omen: None,
            _memory: memory,
            side,
        };
        (0..2 * RECEIVES).for_each(|number| load.receive(number));
        load
    }

    /// There are strangers about who send anything they like.
    pub fn beware(&mut self) {
        (self.wary, self.mourning) = (true, true);
    }

    /// What others have to know: a name and two regions.
    pub fn card(&self) -> String {
        let [application, library] = self.regions.each_ref().map(crate::region_text);
        format!("{}|{application}|{library}", self.side.name())
    }

    /// Meets the member that shows this card, and sends to it at once.
    ///
    /// # Panics
    /// If the card is none.
    pub fn join(&mut self, index: usize, card: &str) {
        let mut parts = card.split('|');
        let mut part = || parts.next().expect("a name and two regions");
        let to = self.side.insert_address(&crate::parse(part()));
        let target = [crate::parse_region(part()), crate::parse_region(part())];
        self.peers.push(Peer {
            index,
            to,
            target,
            stripes: [Stripe::default(); 2],
            outstanding: 0,
            done: 0,
            failed: 0,
            failure: None,
            dead: None,
        });
        self.send(self.peers.len() - 1);
    }

    /// Takes note that a member is dead.
    ///
    /// # Panics
    /// If it was never met.
    pub fn bury(&mut self, index: usize) {
        self.mourning = true;
        let peer = self.peers.iter_mut().find(|peer| peer.index == index).expect("a member that was met");
        peer.dead = Some((Instant::now(), false));
        self.leases.retain(|lease| lease.peer != index);
    }

    /// No more operations of this member's own.
    pub fn calm(&mut self) {
        self.quiet = true;
    }

    /// Whether all of them have ended.
    pub fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.leases.is_empty()
    }

    /// Operations that have ended well.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Failures of operations with members that are not known to be dead.
    pub fn unexplained(&self) -> usize {
        let omens = usize::from(self.omen.is_some() && !self.mourning);
        omens + self.peers.iter().filter(|peer| peer.failure.is_some() && peer.dead.is_none()).count()
    }

    fn random(&mut self, below: usize) -> usize {
        // Xorshift (Marsaglia 2003).
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 20) as usize % below
    }

    /// One turn: takes what there is, begins something. Answers the dead that are settled: every operation with them has
    /// ended, and a new one failed.
    ///
    /// # Panics
    /// For anything that is not as it should be.
    pub fn step(&mut self) -> Vec<(usize, u64, u64)> {
        self.steps += 1;
        self.take_all();
        while let Some(at) = self.lazy.iter().position(|&(_, when)| when <= self.steps) {
            let (number, _) = self.lazy.swap_remove(at);
            self.receive(number);
        }
        self.end_leases();
        if !self.quiet && !self.peers.is_empty() && self.ops.len() < WINDOW {
            self.begin();
        }
        match self.random(64) {
            0..4 => self.search(),
            4 => self.cancel(),
            5 => self.sleep(),
            _ => std::thread::yield_now(),
        }
        if self.steps.is_multiple_of(256) {
            self.check_patience();
        }
        self.settle()
    }

    /// Takes note of something that only a death explains.
    fn doubt(&mut self, what: impl FnOnce() -> String) {
        if !self.mourning && self.omen.is_none() {
            self.omen = Some((Instant::now(), what()));
        }
    }

    fn check_patience(&self) {
        if let Some((at, what)) = &self.omen {
            let explained = self.mourning || at.elapsed() < PATIENCE / 4;
            assert!(explained, "member {}, though nobody died: {what}", self.index);
        }
        for op in self.ops.values() {
            let report = || format!("{:?} to {} stands still\n{}", op.kind, op.peer, self.side.report());
            assert!(op.since.elapsed() < PATIENCE, "member {}: {}", self.index, report());
        }
        for peer in &self.peers {
            let explained = peer.dead.is_some() || peer.failure.is_none_or(|at| at.elapsed() < PATIENCE / 2);
            assert!(explained, "member {}: operations with the living {} fail", self.index, peer.index);
        }
    }

    /// Everything that the queue has.
    fn take_all(&mut self) {
        self.side.poll();
        while let Some(event) = self.side.next() {
            self.take(event);
        }
    }

    fn take(&mut self, event: Event) {
        let context = event.context();
        match event {
            Event::Done(entry, _) if entry.flags.contains(CompletionFlags::REMOTE_WRITE) => {
                assert!(entry.data >> 8 == 0xDA7A || self.wary, "{entry:?}");
            }
            Event::Done(_, FiAddr::NOTAVAIL) if self.wary && context < SEARCH => self.again(context),
            event if context == SEARCH => {
                self.searching = false;
                if let Event::Failed(error) = event {
                    assert_eq!(error.err, Errno::ENOMSG, "{error:?}");
                }
            }
            // An injected message says nothing but that it failed.
            event if context == GIVE_BACK => self.doubt(|| format!("{event:?}")),
            Event::Done(entry, _) if context < FIRST => {
                self.received(context, &entry);
                self.again(context);
            }
            Event::Failed(error) if context < FIRST => {
                if error.err != Errno::ECANCELED {
                    self.doubt(|| format!("a receive failed: {error:?}"));
                }
                assert_ne!(error.err, Errno::ETRUNC, "{error:?}");
                self.again(context);
            }
            event => self.ended(context, event),
        }
    }

    /// Posts a receive again, now or later: what comes meanwhile is unexpected.
    fn again(&mut self, context: usize) {
        let number = if context < TAGGED_RECEIVE { context } else { context - TAGGED_RECEIVE + RECEIVES };
        if self.random(8) == 0 {
            let later = self.steps + self.random(60) as u64;
            self.lazy.push((number, later));
        } else {
            self.receive(number);
        }
    }

    fn receive(&self, number: usize) {
        let memory = &self.receives[number];
        // What an earlier message left must not pass for this one.
        // SAFETY: `LONGEST` bytes of ours, and no receive is posted on them.
        unsafe { memory.as_ptr().write_bytes(0, LONGEST) };
        let pieces = [memory.slice(..).piece()];
        // SAFETY: the memory goes after the endpoint, and is only looked at when the receive has ended.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        let posted = if number < RECEIVES {
            self.side.ep.receive(&ReceiveOp::new(lent, Context(number)))
        } else {
            let context = Context(TAGGED_RECEIVE + number - RECEIVES);
            let all = TagMatch { tag: 0, ignore: !TRASH };
            self.side.ep.receive_tagged(&ReceiveOp::new(lent, context), all)
        };
        posted.expect("a receive");
    }

    /// Checks a message.
    fn received(&mut self, context: usize, entry: &CqTaggedEntry) {
        let tagged = context >= TAGGED_RECEIVE;
        let number = if tagged { context - TAGGED_RECEIVE + RECEIVES } else { context };
        let memory = self.receives[number].clone();
        if tagged && entry.tag & OFFER != 0 {
            return self.borrow(entry.tag, &memory);
        }
        if tagged && entry.tag & RETURN != 0 {
            let id = entry.tag & !RETURN;
            return self.leases.retain(|lease| lease.id != id);
        }
        let seed = if tagged {
            entry.tag as u8
        } else if entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA) {
            entry.data as u8
        } else {
            entry.len as u8 ^ 0x5A
        };
        memory.check(entry.len, seed);
        self.done += 1;
    }

    fn ended(&mut self, context: usize, event: Event) {
        let op =
            self.ops.remove(&context).unwrap_or_else(|| panic!("ended twice, or never begun: {event:?}"));
        let peer = self.peers.iter_mut().find(|peer| peer.index == op.peer).expect("a peer of the operation");
        peer.outstanding -= 1;
        let failure = match event {
            Event::Done(..) => None,
            Event::Failed(error) => Some(error),
        };
        if let Some(error) = &failure {
            // A lease may have been withdrawn; all else fails only with the dead.
            if !matches!(op.kind, Kind::Borrow { .. }) {
                peer.failure.get_or_insert_with(Instant::now);
                peer.failed += 1;
            }
            assert_ne!(error.err, Errno::ETRUNC, "{error:?}");
            if let Some((_, refused)) = &mut peer.dead {
                *refused = true;
            }
        } else {
            peer.done += 1;
            self.done += 1;
        }
        let good = failure.is_none();
        let to = peer.to;
        match op.kind {
            Kind::Send => {}
            Kind::Write { region, seed, len } => {
                let stripe = &mut peer.stripes[region];
                (stripe.busy, stripe.written) = (false, good.then_some((seed, len)));
            }
            Kind::Read { region, seed, len } => {
                peer.stripes[region].busy = false;
                if good {
                    op.memory.check(len, seed);
                }
            }
            Kind::Add { region, wide, fetches } => {
                let stripe = &mut peer.stripes[region];
                stripe.adding[usize::from(wide)] = false;
                if good && !fetches {
                    let cell = &mut stripe.cells[usize::from(wide)];
                    *cell = cell.map(|known| known.wrapping_add(1));
                } else if good {
                    let bytes = op.memory.slice(64..72).bytes();
                    let old = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
                    let cell = &mut stripe.cells[usize::from(wide)];
                    if let Some(known) = *cell {
                        assert_eq!(old, known, "a sum at member {} (wide: {wide})", op.peer);
                    }
                    *cell = Some(old.wrapping_add(1));
                }
            }
            Kind::Borrow { id } => {
                if good {
                    op.memory.check(LEASE, LEASE_SEED);
                }
                self.give_back(to, id);
            }
        }
        self.spare[usize::from(op.library)].push(op.memory);
    }

    /// Memory for an operation, of the library's if wanted and there is some; and which it is.
    fn buffer(&mut self, library: bool) -> (Memory, bool) {
        let library = library && !self.spare[1].is_empty();
        let spare = self.spare[usize::from(library)].pop();
        (spare.unwrap_or_else(|| Memory::new(LONGEST)), library)
    }

    /// Posts an operation with the peer at `at`, unless there is no room.
    fn post(
        &mut self,
        at: usize,
        kind: Kind,
        (memory, library): (Memory, bool),
        post: impl FnOnce(&dyn Endpoint, FiAddr, Context, &Memory) -> Result<()>,
    ) -> bool {
        let (to, index) = (self.peers[at].to, self.peers[at].index);
        let context = self.next;
        match post(&*self.side.ep, to, Context(context), &memory) {
            Ok(()) => {
                self.next += 1;
                self.peers[at].outstanding += 1;
                self.ops.insert(context, Op { peer: index, kind, since: Instant::now(), memory, library });
                true
            }
            Err(error) => {
                assert!(error.is_again(), "posting {kind:?}: {error}");
                self.spare[usize::from(library)].push(memory);
                false
            }
        }
    }

    /// Begins anything with anybody.
    fn begin(&mut self) {
        let at = self.random(self.peers.len());
        let peer = &self.peers[at];
        if peer.dead.is_some() || peer.failure.is_some() {
            return;
        }
        match self.random(16) {
            0..8 => self.send(at),
            8..12 => self.access(at),
            12..15 => self.add(at),
            _ => self.lend(at),
        }
    }

    fn send(&mut self, at: usize) {
        let library = self.random(3) == 0;
        let len = LENGTHS[self.random(LENGTHS.len())];
        let seed = self.random(256) as u8;
        let tag = match self.random(4) {
            0 => None,
            1 if self.random(4) == 0 => Some(TRASH | u64::from(seed)),
            _ => Some((self.index as u64) << 8 | u64::from(seed)),
        };
        let data = self.random(3) == 0;
        let seed = if tag.is_some() || data { seed } else { len as u8 ^ 0x5A };
        let confirm = self.random(4) == 0;
        let (memory, library) = self.buffer(library);
        memory.slice(..len).fill(seed);
        self.post(at, Kind::Send, (memory, library), |ep, dest, context, memory| {
            let pieces = [memory.slice(..len).piece()];
            // SAFETY: the memory is kept with the operation, and nobody looks at it until that has ended.
            let lent = unsafe { Lent::new(&pieces, &[]) };
            let mut op = SendOp::new(lent, dest, context);
            if data {
                op.data = u64::from(seed);
                op.flags |= OpFlags::REMOTE_CQ_DATA;
            }
            if confirm {
                op.flags |= OpFlags::DELIVERY_COMPLETE;
            }
            op.call = Call::Msg;
            match tag {
                Some(tag) => ep.send_tagged(&op, tag),
                None => ep.send(&op),
            }
        });
    }

    /// Writes to this member's stripe of a region, or reads back what it wrote.
    fn access(&mut self, at: usize) {
        let region = self.random(2);
        let (seed, len) = (self.random(256) as u8, 1 + self.random(ACCESS));
        let len = if self.random(2) == 0 { 1 + len % 200 } else { len };
        let stripe = self.peers[at].stripes[region];
        if stripe.busy {
            return;
        }
        let target = self.place(at, region, CELLS, stripe.written.map_or(len, |(_, len)| len));
        let library = self.random(4) == 0;
        let (memory, library) = self.buffer(library);
        let posted = match stripe.written {
            Some((seed, len)) => {
                // SAFETY: as long as said, and no operation uses it.
                unsafe { memory.as_ptr().write_bytes(0, len) };
                let posted = self.post(
                    at,
                    Kind::Read { region, seed, len },
                    (memory, library),
                    |ep, peer, context, memory| {
                        let pieces = [memory.slice(..len).piece()];
                        // SAFETY: as in `send`.
                        let buf = unsafe { Lent::new(&pieces, &[]) };
                        ep.read(&rma(buf, &[target], peer, context))
                    },
                );
                if posted && self.random(2) == 0 {
                    self.peers[at].stripes[region].written = None; // the next is a write
                }
                posted
            }
            None => {
                memory.slice(..len).fill(seed);
                let data = self.random(4) == 0;
                self.post(
                    at,
                    Kind::Write { region, seed, len },
                    (memory, library),
                    |ep, peer, context, memory| {
                        let pieces = [memory.slice(..len).piece()];
                        // SAFETY: as in `send`.
                        let buf = unsafe { Lent::new(&pieces, &[]) };
                        let remote = [target];
                        let mut op = rma(buf, &remote, peer, context);
                        if data {
                            (op.data, op.flags) = (0xDA_7A00 | u64::from(seed), OpFlags::REMOTE_CQ_DATA);
                        }
                        op.call = Call::Msg;
                        ep.write(&op)
                    },
                )
            }
        };
        self.peers[at].stripes[region].busy = posted;
    }

    fn place(&self, at: usize, region: usize, offset: usize, len: usize) -> RemotePiece {
        let target = self.peers[at].target[region];
        let addr = target.addr + (self.stripe * STRIPE + offset) as u64;
        RemotePiece { addr, len, key: target.key }
    }

    /// Adds one to a cell of this member's own, and mostly looks at what was there.
    fn add(&mut self, at: usize) {
        let (region, wide, fetches) = (self.random(2), self.random(3) == 0, self.random(3) > 0);
        if self.peers[at].stripes[region].adding[usize::from(wide)] {
            return;
        }
        let (offset, len, datatype) =
            if wide { (16, 16, Datatype::Uint128) } else { (0, 8, Datatype::Uint64) };
        let target = self.place(at, region, offset, len);
        let (memory, _) = self.buffer(false);
        memory.slice(..16).put(&1_u128.to_ne_bytes());
        let posted = self.post(
            at,
            Kind::Add { region, wide, fetches },
            (memory, false),
            |ep, peer, context, memory| {
                let (one, old) = ([memory.slice(..len).piece()], [memory.slice(64..64 + len).piece()]);
                // SAFETY: as in `send`.
                let operand = unsafe { Lent::new(&one, &[]) };
                // SAFETY: as above.
                let result = unsafe { Lent::new(&old, &[]) };
                let remote = [target];
                let op = AtomicOp::new(FiOp::Sum, datatype, operand, &remote, peer, context);
                ep.atomic(&if fetches { op.fetch(result) } else { op })
            },
        );
        self.peers[at].stripes[region].adding[usize::from(wide)] = posted;
    }

    /// Lends memory to a peer: it reads it and says when it is done, and the registration is closed then, or after a
    /// while whatever the peer does.
    fn lend(&mut self, at: usize) {
        if self.leases.len() >= 2 {
            return;
        }
        let region = self.register_lease();
        let id = (self.steps << 16 | self.index as u64) & (RETURN - 1);
        let (memory, _) = self.buffer(false);
        for (number, word) in [region.base(), region.key(), self.index as u64, id].into_iter().enumerate() {
            memory.slice(number * 8..number * 8 + 8).put(&word.to_ne_bytes());
        }
        let posted = self.post(at, Kind::Send, (memory, false), |ep, dest, context, memory| {
            let pieces = [memory.slice(..32).piece()];
            // SAFETY: as in `send`.
            let lent = unsafe { Lent::new(&pieces, &[]) };
            ep.send_tagged(&SendOp::new(lent, dest, context), OFFER | id)
        });
        if posted {
            let peer = self.peers[at].index;
            self.leases.push(Lease { id, peer, region, until: Instant::now() + LEASED });
        }
    }

    fn register_lease(&self) -> std::sync::Arc<dyn MemoryRegion> {
        let pieces = [self.leased.slice(..).piece()];
        // SAFETY: the memory goes after the endpoint, and nobody ever writes it again.
        let attr = unsafe { MrAttr::new(&pieces, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE) };
        self.side.domain.register(&attr).expect("a lease")
    }

    fn end_leases(&mut self) {
        if self.leases.first().is_some_and(|lease| lease.until < Instant::now()) {
            let lease = self.leases.remove(0);
            if let Err(error) = lease.region.close() {
                // The borrower was killed, or stopped, in the middle of its copy.
                assert_eq!(error.errno(), Errno::EBUSY, "{error}");
                self.doubt(|| error.to_string());
            }
        }
    }

    /// Reads what a peer lends.
    fn borrow(&mut self, tag: u64, offer: &Memory) {
        let bytes = offer.slice(..32).bytes();
        let word = |at: usize| u64::from_ne_bytes(bytes[8 * at..8 * at + 8].try_into().expect("eight bytes"));
        let (addr, key, owner, id) = (word(0), word(1), word(2), word(3));
        assert_eq!(tag & !OFFER, id, "an offer says what its tag says");
        let Some(at) = self.peers.iter().position(|peer| peer.index as u64 == owner && peer.dead.is_none())
        else {
            return; // not met yet, or dead by now
        };
        let (memory, _) = self.buffer(false);
        // SAFETY: as long as said, and no operation uses it.
        unsafe { memory.as_ptr().write_bytes(0, LEASE) };
        let target = RemotePiece { addr, len: LEASE, key };
        self.post(at, Kind::Borrow { id }, (memory, false), |ep, peer, context, memory| {
            let pieces = [memory.slice(..LEASE).piece()];
            // SAFETY: as in `send`.
            let buf = unsafe { Lent::new(&pieces, &[]) };
            ep.read(&rma(buf, &[target], peer, context))
        });
    }

    /// Says that a lease is not needed any more. If there is no room for that, it ends by itself.
    fn give_back(&self, to: FiAddr, id: u64) {
        // SAFETY: no memory.
        let nothing = unsafe { Lent::new(&[], &[]) };
        let mut op = SendOp::new(nothing, to, Context(GIVE_BACK));
        op.call = Call::Inject;
        let _ = self.side.ep.send_tagged(&op, RETURN | id);
    }

    /// Looks for a message that no receive is for, and throws it away.
    fn search(&mut self) {
        if self.searching {
            return;
        }
        // SAFETY: no memory.
        let nothing = unsafe { Lent::new(&[], &[]) };
        let mut op = ReceiveOp::new(nothing, Context(SEARCH));
        (op.call, op.flags) = (Call::Msg, OpFlags::PEEK | OpFlags::DISCARD);
        let tag = TagMatch { tag: TRASH, ignore: !TRASH };
        self.searching = self.side.ep.receive_tagged(&op, tag).is_ok();
    }

    fn cancel(&mut self) {
        let context = TAGGED_RECEIVE + self.random(RECEIVES);
        // Not there: it is about to be posted again, or being filled.
        let _ = self.side.ep.cancel(Context(context));
    }

    fn sleep(&mut self) {
        let mut entry = [CqTaggedEntry::EMPTY];
        let read = self.side.tx.read_wait(&mut CqBuffer::new(&mut entry), Some(Duration::from_millis(2)));
        match read {
            Ok(1) => self.take(Event::Done(entry[0], FiAddr::NOTAVAIL)),
            Ok(_) => {}
            Err(error) if error.is_again() || error.errno() == Errno::EAVAIL => {}
            Err(error) => panic!("sleeping: {error}"),
        }
    }

    /// Sends to the dead until that fails, and forgets those with whom nothing is left. Operations may take as long as
    /// the bound says.
    fn settle(&mut self) -> Vec<(usize, u64, u64)> {
        let mut settled = Vec::new();
        for at in (0..self.peers.len()).rev() {
            let peer = &self.peers[at];
            let Some((since, refused)) = peer.dead else { continue };
            let left: Vec<Kind> =
                self.ops.values().filter(|op| op.peer == peer.index).map(|op| op.kind).collect();
            assert!(
                since.elapsed() < BOUND + GRACE,
                "member {}: {left:?} with the dead {} after {:?} (refused: {refused})\n{}",
                self.index,
                peer.index,
                since.elapsed(),
                self.side.report()
            );
            if !left.is_empty() {
                continue;
            }
            if refused {
                let gone = self.peers.swap_remove(at);
                self.side.av.remove(&[gone.to]).expect("removal of an address");
                settled.push((gone.index, gone.done, gone.failed));
            } else {
                self.send(at);
            }
        }
        settled
    }
}

const fn rma<'a>(buf: Lent<'a>, remote: &'a [RemotePiece], peer: FiAddr, context: Context) -> RmaOp<'a> {
    RmaOp { buf, remote, peer, context, data: 0, flags: OpFlags::empty(), call: Call::Plain }
}
