//! The activity of one member: random operations, and checks of all their results.

mod begin;
mod check;
mod lease;

use std::collections::HashMap;

use ofi_testkit::prelude::*;

use crate::{Naming, hints, opening};

/// Maximum length of a message in bytes.
const MAX_MESSAGE_LEN: usize = 200_000;
/// Lengths of messages and accesses: empty, one line, inside a command, beyond it, several parts.
const LENGTHS: [usize; 9] = [0, 8, 64, 300, 2_000, 8_000, 9_000, 40_000, MAX_MESSAGE_LEN];
/// Maximum number of concurrent operations.
const WINDOW: usize = 16;
/// Number of library buffers for them.
const LIBRARY: usize = 3;
/// Number of receives of each kind.
const RECEIVES: usize = 4;
/// Each member's share of each region of each other.
const STRIPE: usize = 80 << 10;
/// Maximum number of concurrent members, with a reserve so that the stripe of a dead one is not reused soon.
pub const STRIPES: usize = 24;
/// Where remote reads and writes begin in a stripe: two atomic cells precede them.
const CELLS: usize = 64;
/// Maximum length of an access in bytes.
const ACCESS: usize = 70_000;
/// Length of a lease's memory in bytes.
const LEASE: usize = 20_000;
const LEASE_SEED: u8 = 77;
/// How long memory is lent, unless it is returned before.
const LEASED: Duration = Duration::from_millis(50);
/// Timeout of an operation with a living member. It is generous, because dozens of processes share two cores.
const OP_TIMEOUT: Duration = Duration::from_secs(40);
/// Timeout of an operation with a dead member, and the additional allowance for a busy machine's scheduler.
pub const BOUND: Duration = Duration::from_secs(1);
pub const GRACE: Duration = Duration::from_secs(2);

/// Tags: an offer of a lease, its return, and messages that only searches look for.
const OFFER: u64 = 1 << 63;
const RETURN: u64 = 1 << 62;
const TRASH: u64 = 1 << 61;

/// Contexts of receives, of searches for trash, of returns, and, from there on, of operations.
const TAGGED_RECEIVE: usize = 1_000;
const SEARCH: usize = 2_000;
const GIVE_BACK: usize = 3_000;
const FIRST: usize = 10_000;

/// An operation that a member does more often than usual, so that a victim reaches a rare step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Favour {
    /// Memory that is lent, copied by the borrower, and closed.
    Leases,
    /// Writes to library memory that are reported to the owner.
    CqArm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    /// A write to a region: the region, the written value, and its length.
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
        /// Whether it fetches the old value.
        fetches: bool,
    },
    /// A read of memory that was lent to this member.
    Borrow {
        id: u64,
    },
}

struct Op {
    peer: usize,
    kind: Kind,
    since: Instant,
    /// Its memory, and the pool to which that returns.
    memory: Memory,
    library: bool,
}

/// The state of a stripe of a peer.
#[derive(Clone, Copy, Default)]
struct Stripe {
    busy: bool,
    written: Option<(u8, usize)>,
    /// For each cell: whether it is being changed, and its value.
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
    /// The first failure that only its death can explain.
    failure: Option<Instant>,
    /// The time of its death, if it is dead, and whether a send to it has failed.
    dead: Option<(Instant, bool)>,
}

struct Lease {
    id: u64,
    peer: usize,
    region: std::sync::Arc<dyn MemoryRegion>,
    until: Instant,
}

/// The load of one member: its endpoint, peers and operations in flight. Fields drop in order: the endpoint is
/// closed before its memory is freed.
pub struct Load {
    side: TestEndpoint,
    regions: [std::sync::Arc<dyn MemoryRegion>; 2],
    leases: Vec<Lease>,
    index: usize,
    stripe: usize,
    state: u64,
    peers: Vec<Peer>,
    ops: HashMap<usize, Op>,
    next: usize,
    receives: Vec<Memory>,
    /// Receives to be posted later, and when.
    lazy: Vec<(usize, u64)>,
    spare: [Vec<Memory>; 2],
    leased: Memory,
    searching: bool,
    quiet: bool,
    steps: u64,
    done: u64,
    /// Whether a member has died: only then, or shortly before it is announced, may a receive fail.
    mourning: bool,
    /// Whether strangers send arbitrary data: messages from unknown senders are ignored.
    wary: bool,
    favour: Option<Favour>,
    /// The first failure that only a death can explain.
    omen: Option<(Instant, String)>,
    _memory: [Memory; 2],
}

impl Load {
    /// An endpoint with everything that others may use. `stripe`: its own part of the others' regions, below
    /// [`STRIPES`].
    pub fn open(index: usize, stripe: usize, naming: Naming) -> Self {
        let caps = hints(naming).info.caps | Caps::ATOMIC;
        let side = opening(naming).hints(|hints| hints.caps(caps)).wait_obj(WaitObj::Fd).open();
        let memory = [Memory::new(STRIPES * STRIPE), Memory::library(&side.domain, STRIPES * STRIPE)];
        let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
        let regions = memory.each_ref().map(|memory| side.register(memory, rights).expect("a region"));
        let leased = Memory::library(&side.domain, LEASE);
        leased.fill(LEASE_SEED);
        // Allocate and touch all of it now, so that resident memory stays constant.
        let application = std::iter::repeat_with(|| Memory::patterned(MAX_MESSAGE_LEN, 1)).take(WINDOW + 4);
        let library = std::iter::repeat_with(|| Memory::library(&side.domain, MAX_MESSAGE_LEN)).take(LIBRARY);
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
            receives: (0..2 * RECEIVES).map(|_| Memory::new(MAX_MESSAGE_LEN)).collect(),
            lazy: Vec::new(),
            spare,
            leased,
            searching: false,
            quiet: false,
            steps: 0,
            done: 0,
            mourning: false,
            wary: false,
            favour: None,
            omen: None,
            _memory: memory,
            side,
        };
        (0..2 * RECEIVES).for_each(|number| load.receive(number));
        load
    }

    /// Announces strangers that send arbitrary data.
    pub fn beware(&mut self) {
        (self.wary, self.mourning) = (true, true);
    }

    /// Makes every second operation one of this kind: `leases`, `notices`, or none in particular.
    pub fn favour(&mut self, what: &str) {
        self.favour = match what {
            "leases" => Some(Favour::Leases),
            "notices" => Some(Favour::CqArm),
            _ => None,
        };
    }

    /// The information for others: a name and two regions.
    pub fn card(&self) -> String {
        let [application, library] = self.regions.each_ref().map(crate::region_text);
        format!("{}|{application}|{library}", self.side.name())
    }

    /// Meets the member with this card, and sends to it at once.
    ///
    /// # Panics
    /// If the card is invalid.
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

    /// Records that a member is dead.
    ///
    /// # Panics
    /// If it was never met.
    pub fn bury(&mut self, index: usize) {
        self.mourning = true;
        let peer = self.peers.iter_mut().find(|peer| peer.index == index).expect("a member that was met");
        peer.dead = Some((Instant::now(), false));
        self.leases.retain(|lease| lease.peer != index);
    }

    /// Stops this member's own operations.
    pub fn calm(&mut self) {
        self.quiet = true;
    }

    /// Whether all operations have ended.
    pub fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.leases.is_empty()
    }

    /// Successful operations.
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

    /// One turn: processes events and starts an operation. Returns the dead members that are settled: every operation
    /// with them has ended, and a new one has failed.
    ///
    /// # Panics
    /// If a result is wrong.
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

    /// Looks for a message that no receive matches, and discards it.
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
        // Not posted: it is about to be posted again, or being filled.
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
}
