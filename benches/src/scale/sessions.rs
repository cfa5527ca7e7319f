//! An engine of `multirail` with few and with very many open sessions over eight rails: what a stranger's stale
//! greeting, a completed write and the end of a session cost. The rails keep what they are given.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use multirail::Way;
use multirail::engine::{Access, Config, Core, OpId, PeerId, Piece, Plan, RailSpec, Refused, Sink};
use multirail::wire::message::Body;
use multirail::wire::{Message, RailInfo, RegionInfo, RegionKey};
use ofi::Errno;

use super::{Figure, figure};
use crate::{Error, Result};

/// Rails of each agent.
const RAILS: u8 = 8;
/// Sessions of the two engines that are compared.
const FEW: usize = 10;
const MANY: usize = 65_536;
/// Repetitions, of which the shortest counts.
const TIMES: usize = 300;
const NOW: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(10_000);

/// Rails that keep what they are given.
#[derive(Default)]
struct Kept {
    messages: Vec<(OpId, Vec<u8>)>,
    accesses: Vec<OpId>,
}

impl Sink<()> for Kept {
    fn access(&mut self, access: &Access, _: &Plan<()>, _: bool) -> std::result::Result<(), Refused> {
        self.accesses.push(access.op);
        Ok(())
    }

    fn send(
        &mut self,
        op: OpId,
        _: usize,
        _: u64,
        bytes: Vec<u8>,
    ) -> std::result::Result<(), (Refused, Vec<u8>)> {
        self.messages.push((op, bytes));
        Ok(())
    }

    /// Every address is another one.
    fn insert(&mut self, _: usize, _: u32, _: &[u8]) -> std::result::Result<u64, Errno> {
        static INSERTED: AtomicU64 = AtomicU64::new(0);
        Ok(INSERTED.fetch_add(1, Ordering::Relaxed))
    }

    fn remove(&mut self, _: usize, _: u64) {}
}

/// Pseudorandom numbers from a seed (splitmix64).
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}

fn rail(nth: u8) -> RailInfo {
    RailInfo { provider: "kept".into(), format: 0, address: vec![nth; 32] }
}

fn engine(number: u64) -> Core<()> {
    let spec =
        |nth| RailSpec { info: rail(nth), bandwidth: None, wide_data: true, severs: false, operations: 1024 };
    let name = format!("agent-{number}");
    let random = Box::new(random(number << 20 | 1));
    Core::new(&name, (0..RAILS).map(spec).collect(), Config::default(), random)
}

/// Delivers the messages of `from`. Returns whether there were any.
fn speak(from: &mut Core<()>, to: &mut Core<()>) -> bool {
    let mut kept = Kept::default();
    from.perform(NOW, &mut kept);
    for (op, bytes) in &kept.messages {
        from.ended(*op, Ok(()), NOW);
        to.message(bytes, NOW);
    }
    !kept.messages.is_empty()
}

fn wrong((errno, why): (Errno, &'static str)) -> Error {
    Error::Stack(format!("{errno}: {why}"))
}

/// An engine with open sessions.
pub struct Hub {
    core: Core<()>,
    /// A peer whose region it writes, and its plan.
    peer: PeerId,
    plan: Arc<Plan<()>>,
    /// Number of the next peer.
    next: u64,
    hello: Vec<u8>,
    kept: Kept,
}

impl Hub {
    /// One with `count` sessions, each opened by a real handshake, of which one is written to.
    pub fn open(count: usize) -> Result<Self> {
        let mut core = engine(0);
        let mut peer = engine(1);
        let keys = (0..RAILS).map(|rail| RegionKey { rail, key: 7, base: 0 }).collect();
        let region = RegionInfo { id: 1, len: 1 << 20, keys, is_staged: false, export: None };
        let metadata = peer.metadata(vec![region.clone()]);
        let id = core.load(&metadata).map_err(wrong)?;
        connect(&mut core, &mut peer, id);
        let piece = Piece { region: 0, local: 0, remote_region: 0, remote: 0, len: 64 };
        let plan = Plan {
            way: Way::Read,
            pieces: vec![piece],
            regions: vec![Arc::new(region)],
            near: Vec::new(),
            incarnation: metadata.incarnation,
            total: 64,
            guard: (),
            uses: Default::default(),
        };
        let stranger =
            Body::Hello { name: "stranger".into(), incarnation: 9, tag: 7 << 32, rails: vec![rail(0)] };
        let hello = Message { to: 5, body: stranger }.encode();
        let mut hub = Self { core, peer: id, plan: Arc::new(plan), next: 2, hello, kept: Kept::default() };
        for _ in 1..count {
            hub.meet()?;
        }
        Ok(hub)
    }

    /// Opens a session with another peer.
    fn meet(&mut self) -> Result<PeerId> {
        let mut peer = engine(self.next);
        self.next += 1;
        let id = self.core.load(&peer.metadata(Vec::new())).map_err(wrong)?;
        connect(&mut self.core, &mut peer, id);
        if !self.core.is_up(id) {
            return Err(Error::Stack("a session did not open".into()));
        }
        Ok(id)
    }

    /// Ends everything that was handed to the rails.
    fn settle(&mut self) {
        loop {
            let was_busy = self.core.perform(NOW, &mut self.kept);
            let Kept { messages, accesses } = &mut self.kept;
            let ended = messages.drain(..).map(|(op, _)| op).chain(accesses.drain(..));
            ended.for_each(|op| self.core.ended(op, Ok(()), NOW));
            if !was_busy {
                return;
            }
        }
    }

    /// A greeting for another incarnation comes, and is rejected.
    #[inline(never)]
    pub fn stale_greeting(&mut self) {
        self.core.message(&self.hello, NOW);
        self.settle();
    }

    /// Posts a read of 64 bytes. Returns its operations.
    fn post(&mut self) -> Result<multirail::engine::TransferId> {
        let id = self.core.post(self.peer, Arc::clone(&self.plan), None, LATER, NOW).map_err(wrong)?;
        while self.core.perform(NOW, &mut self.kept) {}
        Ok(id)
    }

    /// The operation of a transfer completes, and with it the transfer.
    #[inline(never)]
    fn completion(&mut self) {
        for op in self.kept.accesses.drain(..) {
            self.core.ended(op, Ok(()), NOW);
        }
        self.core.tick(NOW);
    }

    /// A transfer is posted, completes, and is released.
    pub fn one_completion(&mut self) -> Result<Duration> {
        let id = self.post()?;
        let begin = Instant::now();
        self.completion();
        let took = begin.elapsed();
        if self.core.progress(id).is_none_or(|progress| progress.outcome.is_none()) {
            return Err(Error::Stack("a transfer did not end".into()));
        }
        self.core.release(id);
        Ok(took)
    }

    #[inline(never)]
    fn disconnect(&mut self, peer: PeerId) {
        self.core.disconnect(peer, NOW);
        self.settle();
    }

    /// A session with another peer opens and ends.
    pub fn one_end(&mut self) -> Result<Duration> {
        let peer = self.meet()?;
        let begin = Instant::now();
        self.disconnect(peer);
        let took = begin.elapsed();
        self.core.forget(peer, NOW);
        self.settle();
        Ok(took)
    }

    /// The shortest times of a stale greeting, a completion, and the end of a session.
    fn times(&mut self) -> Result<[Duration; 3]> {
        let mut least = [Duration::MAX; 3];
        for _ in 0..TIMES {
            let begin = Instant::now();
            self.stale_greeting();
            let times = [begin.elapsed(), self.one_completion()?, self.one_end()?];
            least.iter_mut().zip(times).for_each(|(least, time)| *least = time.min(*least));
        }
        Ok(least)
    }
}

fn connect(hub: &mut Core<()>, peer: &mut Core<()>, id: PeerId) {
    hub.connect(id, NOW);
    while speak(hub, peer) || speak(peer, hub) {}
}

/// The cost of each event with many sessions, and how much more it is than with few.
pub(super) fn measure() -> Result<Vec<Figure>> {
    let few = Hub::open(FEW)?.times()?;
    let many = Hub::open(MANY)?.times()?;
    let names = ["a stale greeting", "a completion", "the end of a session"];
    let figures = names.into_iter().zip(few.into_iter().zip(many)).flat_map(|(name, (few, many))| {
        let [few, many] = [few, many].map(|time| time.as_secs_f64() * 1e6);
        [
            figure(format!("{name} with {MANY} sessions over {RAILS} rails, us"), many, None),
            figure(format!("{name}, as a multiple of that with {FEW} sessions"), many / few, Some(2.0)),
        ]
    });
    Ok(figures.collect())
}
