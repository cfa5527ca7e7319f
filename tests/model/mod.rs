//! Two or three endpoints of a provider over a simulated fabric, and a naive model of each operation.
//!
//! Checked throughout: a received message was sent to this endpoint by its stated source, and arrives whole, once, and
//! in the order of posting; a successful access has taken place; operations between untroubled endpoints do not fail.
//! At the end: every operation has completed once, every message between such endpoints has arrived, and nothing is
//! left in progress.

mod life;
mod op;

use ofi::raw::{Address, Datatype, Errno, FiOp, MsgOrder, OpFlags};
use ofi_testkit::net::Random;
use ofi_testkit::{Event, Memory, TestEndpoint};

use life::{Life, MAX_OP_LEN};
use op::{Access, Kind, Op, pattern};

/// Maximum number of polls until everything must have ended.
const BOUND: usize = 60_000;
/// Operations posted in a run.
const OPS: u64 = 60;
/// Number of tags; the tag `TAGS` stands for untagged.
const TAGS: u64 = 3;
/// Marks the message of a failed receive.
const FAILED: usize = usize::MAX;
/// Marks the contexts of receives.
const RECEIVE: usize = 1 << 40;

/// A simulated fabric, and the provider's endpoints on it.
pub trait Fabric {
    /// Starts over with a random plan.
    ///
    /// # Panics
    /// If an object of the previous run is left.
    fn begin(&self, random: &mut Random, seed: u64);

    /// Opens an endpoint. One that follows a closed endpoint may get its resources.
    fn open(&self, after: Option<&Address>) -> TestEndpoint;

    /// Makes an endpoint unusable.
    fn stop(&self, random: &mut Random, name: &Address);

    /// Makes something between two endpoints fail. They continue.
    fn cut(&self, random: &mut Random, from: &Address, to: &Address);

    /// Whether endpoints send again what [`Fabric::cut`] made fail, so that only accesses may fail.
    fn repeats(&self) -> bool {
        false
    }

    /// Whether a write must request that it is in memory when it is reported.
    fn places_late(&self) -> bool {
        false
    }

    /// Whether a registration may be closed while peers access it, which may end their connections.
    fn withdraws(&self) -> bool {
        false
    }

    /// State that an endpoint should have released; `None` if it has released all. `is_good`: no trouble has occurred
    /// anywhere.
    fn left(&self, side: &TestEndpoint, is_good: bool) -> Option<String>;

    /// Whether nothing is in progress.
    fn is_still(&self) -> bool;
}

/// Troubles, each of which occurs once.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// [`Fabric::stop`].
    Stop,
    /// An endpoint closes, and another one opens.
    Restart,
    /// [`Fabric::cut`].
    Cut,
    /// An endpoint closes a registration that others are reading.
    Withdraw,
}

/// Runs the number of seeds in the variable `{name}_SEEDS`, or `usual`, from `{name}_FIRST` on. A failing seed is
/// repeated by `{name}_FIRST=SEED {name}_SEEDS=1`.
///
/// # Panics
/// If one fails.
pub fn run(fabric: &dyn Fabric, name: &str, usual: u64) {
    let number = |what: &str| {
        let value = std::env::var(format!("{name}_{what}")).ok()?;
        Some(value.parse::<u64>().expect("a number of seeds"))
    };
    let (first, seeds) = (number("FIRST").unwrap_or(1), number("SEEDS").unwrap_or(usual));
    let mut bad = Vec::new();
    for seed in first..first + seeds {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Model::run(fabric, seed)));
        if ran.is_err() {
            bad.push(seed);
            eprintln!("seed {seed} failed; again: {name}_FIRST={seed} {name}_SEEDS=1");
            if bad.len() == 3 {
                break;
            }
        }
    }
    assert!(bad.is_empty(), "of seeds {first} to {}: {bad:?}", first + seeds - 1);
}

/// Whether the error is a refusal of an access.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::EACCES | Errno::EINVAL | Errno::EKEYREJECTED | Errno::EPERM)
}

/// A run.
struct Model<'a> {
    fabric: &'a dyn Fabric,
    random: Random,
    lives: Vec<Life>,
    /// The current life of each node.
    nodes: Vec<usize>,
    ops: Vec<Op>,
    /// Pairs of lives whose operations may fail, in addition to those with a stopped one.
    troubled: Vec<(usize, usize)>,
    /// Whether any access may fail.
    is_cut: bool,
}

impl<'a> Model<'a> {
    /// Runs a seed.
    fn run(fabric: &'a dyn Fabric, seed: u64) {
        let mut random = Random(seed);
        fabric.begin(&mut random, seed);
        let (lives, nodes, ops, troubled) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut model = Self { fabric, random, lives, nodes, ops, troubled, is_cut: false };
        model.go();
        // Endpoints close while idle, one after the other.
        model.lives.clear();
        let mut random = model.random;
        fabric.begin(&mut random, 1);
    }

    fn go(&mut self) {
        let count = 2 + self.random.below(2) as usize;
        for _ in 0..count {
            self.begin_life(None);
        }
        let mut troubles = Vec::new();
        while troubles.len() < 2 && self.random.chance(350) {
            let all = [Trouble::Stop, Trouble::Restart, Trouble::Cut, Trouble::Withdraw];
            let kinds = if self.fabric.withdraws() { 4 } else { 3 };
            let what = all[self.random.below(kinds) as usize];
            troubles.push((self.random.below(OPS), what));
        }
        for at in 0..OPS {
            for &(when, what) in &troubles {
                if when == at {
                    self.trouble(what);
                }
            }
            self.begin();
            if self.random.chance(500) {
                self.receive();
            }
            for _ in 0..self.random.below(12) {
                let node = self.pick();
                self.poll(node);
            }
        }
        self.drain();
    }

    /// A random life of a node.
    fn pick(&mut self) -> usize {
        self.nodes[self.random.below(self.nodes.len() as u64) as usize]
    }

    fn begin_life(&mut self, after: Option<&Address>) {
        let new = self.lives.len();
        let life = Life::new(self.fabric.open(after), new);
        self.lives.push(life);
        for &other in &self.nodes {
            for (here, there) in [(other, new), (new, other)] {
                let name = self.lives[there].name.clone();
                let address = self.lives[here].side().insert_address(&name);
                self.lives[here].peers.insert(there, address);
            }
        }
        self.nodes.push(new);
    }

    fn trouble(&mut self, what: Trouble) {
        let life = self.pick();
        match what {
            Trouble::Stop => {
                self.fabric.stop(&mut self.random, &self.lives[life].name);
                self.lives[life].stopped = true;
            }
            Trouble::Restart => {
                self.lives[life].end();
                for op in self.ops.iter_mut().filter(|op| op.from == life) {
                    op.ended.get_or_insert(Err(Errno::ECANCELED));
                }
                self.nodes.retain(|&node| node != life);
                for _ in 0..self.random.below(60) {
                    let node = self.pick();
                    self.poll(node);
                }
                let name = self.lives[life].name.clone();
                self.begin_life(Some(&name));
            }
            Trouble::Cut => {
                let other = loop {
                    let other = self.pick();
                    if other != life {
                        break other;
                    }
                };
                match self.fabric.repeats() {
                    true => self.is_cut = true,
                    false => self.troubled.push((life, other)),
                }
                self.fabric.cut(&mut self.random, &self.lives[life].name, &self.lives[other].name);
            }
            Trouble::Withdraw => self.withdraw(life),
        }
    }

    /// All endpoints read from one, each by its device if that has the key by now, and the registration is closed.
    fn withdraw(&mut self, life: usize) {
        let others: Vec<usize> = self.nodes.iter().copied().filter(|&other| other != life).collect();
        self.troubled.extend(others.iter().map(|&other| (life, other)));
        for reads in [1, 6] {
            for &other in &others {
                for _ in 0..reads {
                    self.post(other, life, Kind::Read { at: 0 }, 2000);
                }
            }
            for _ in 0..if reads == 1 { 100 } else { self.random.below(4) } {
                let node = self.pick();
                self.poll(node);
            }
        }
        if !self.lives[life].stopped {
            self.lives[life].withdraw();
        }
    }

    fn is_troubled(&self, one: usize, other: usize) -> bool {
        self.lives[one].stopped
            || self.lives[other].stopped
            || self.troubled.contains(&(one, other))
            || self.troubled.contains(&(other, one))
    }

    /// Whether a device's access may have been cut.
    fn may_be_cut(&self, op: &Op) -> bool {
        self.is_cut && !matches!(op.kind, Kind::Send { .. } | Kind::Add { .. } | Kind::Count { .. })
    }

    fn length(&mut self) -> usize {
        let random = &mut self.random;
        let below = [1, 65, 1200, 9000, 9000, MAX_OP_LEN as u64 + 1][random.below(6) as usize];
        random.below(below) as usize
    }

    /// Starts an operation between any endpoints that exist or existed.
    fn begin(&mut self) {
        let from = self.pick();
        let known: Vec<usize> = self.lives[from].peers.keys().copied().collect();
        let to = known[self.random.below(known.len() as u64) as usize];
        let len = self.length();
        let drawn = self.random.below(100);
        let kind = match drawn {
            0..60 => Kind::Send { tag: self.random.below(TAGS + 1) },
            60..75 => match self.lives[to].room(len) {
                Some(at) => Kind::Write { at, told: self.random.chance(400) },
                None => return,
            },
            75..84 => Kind::Read { at: self.random.below((MAX_OP_LEN - len + 1) as u64) as usize },
            84..90 => return self.change_behind_a_read(from, to, len),
            90..93 => Kind::Beside([Access::Read, Access::Write, Access::Add][self.random.below(3) as usize]),
            _ => Kind::Add { fetch: self.random.chance(500) },
        };
        let len = match kind {
            Kind::Add { .. } | Kind::Beside(Access::Add) => 8,
            Kind::Beside(_) => len.max(1),
            _ => len,
        };
        self.post(from, to, kind, len);
    }

    /// Reads bytes and changes them at once, by a write or an addition. The read must not see the change.
    fn change_behind_a_read(&mut self, from: usize, to: usize, len: usize) {
        let order = self.lives[from].side().info.tx_attr.msg_order;
        let counts = self.random.chance(500);
        let len = if counts { 8 } else { len };
        let Some(at) = self.lives[to].room(len).filter(|_| order.contains(MsgOrder::WAR)) else { return };
        if self.post(from, to, Kind::Before { at }, len) {
            let told = !counts && self.random.chance(400);
            let kind = if counts { Kind::Count { at } } else { Kind::Write { at, told } };
            self.post(from, to, kind, len);
        }
    }

    /// Posts an operation. Returns whether there was room for it, and a peer.
    fn post(&mut self, from: usize, to: usize, kind: Kind, len: usize) -> bool {
        let id = self.ops.len();
        let memory = Memory::new(len);
        match kind {
            Kind::Send { .. } | Kind::Write { .. } => memory.slice(..).put(&pattern(id, len)),
            Kind::Add { .. } | Kind::Count { .. } => memory.slice(..).put(&1u64.to_ne_bytes()),
            Kind::Read { .. } | Kind::Before { .. } | Kind::Beside(_) => {
                memory.slice(..).put(&pattern(id, len))
            }
        }
        let mut op = Op {
            kind,
            from,
            to,
            len,
            memory,
            ended: None,
            injected: false,
            arrived: 0,
            told: 0,
            result: None,
        };
        let side = self.lives[from].side();
        let mut out = side.out(self.lives[from].peers[&to], &op.memory).context(id + 1);
        let target = &self.lives[to];
        let posted = match kind {
            Kind::Send { tag } => {
                out = out.data(id as u64);
                if tag < TAGS {
                    out = out.tag(tag);
                }
                match self.random.below(6) {
                    0 => out = out.msg(OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE),
                    1 => out = out.msg(OpFlags::COMPLETION | OpFlags::MATCH_COMPLETE),
                    2 if len <= side.info.tx_attr.inject_size => {
                        out = out.inject();
                        (op.ended, op.injected) = (Some(Ok(())), true);
                    }
                    _ => {}
                }
                out.send()
            }
            Kind::Write { at, told } => {
                if told {
                    out = out.data(id as u64);
                }
                if self.fabric.places_late() {
                    out = out.msg(OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE);
                }
                out.write(&[target.target_at(at, len)])
            }
            Kind::Read { at } => out.read(&[target.source_at(at, len)]),
            Kind::Before { at } => out.read(&[target.target_at(at, len)]),
            Kind::Count { at } => out.atomic(FiOp::Sum, Datatype::Uint64, &[target.target_at(at, len)]),
            Kind::Beside(Access::Read) => out.read(&[target.beside(len)]),
            Kind::Beside(Access::Write) => out.write(&[target.beside(len)]),
            Kind::Beside(Access::Add) => out.atomic(FiOp::Sum, Datatype::Uint64, &[target.beside(len)]),
            Kind::Add { fetch: false } => out.atomic(FiOp::Sum, Datatype::Uint64, &[target.counter()]),
            Kind::Add { fetch: true } => {
                let result = Memory::new(8);
                let posted = out.fetch(FiOp::Sum, Datatype::Uint64, &result, &[target.counter()]);
                op.result = Some(result);
                posted
            }
        };
        match posted {
            Ok(()) => {
                if let Kind::Send { tag } = kind {
                    self.lives[to].sent[tag as usize] += 1;
                }
                self.ops.push(op);
                return true;
            }
            Err(error) if error.is_again() => {}
            Err(error) => assert!(self.is_troubled(from, to), "posting {op:?}: {error}"),
        }
        false
    }

    /// Posts a receive at some endpoint.
    fn receive(&mut self) {
        let (life, tag) = (self.pick(), self.random.below(TAGS + 1));
        self.receive_at(life, tag);
    }

    fn receive_at(&mut self, at: usize, tag: u64) {
        let life = &mut self.lives[at];
        let memory = Memory::new(MAX_OP_LEN);
        let number = life.receives.len();
        let mut receive = life.side().receive(&memory).context(RECEIVE + number);
        if tag < TAGS {
            receive = receive.tag(tag);
        }
        match receive.post() {
            Ok(()) => {
                life.posted[tag as usize] += 1;
                life.receives.push((tag, memory, None));
            }
            Err(error) => assert!(error.is_again() || life.stopped, "a receive: {error}"),
        }
    }

    fn poll(&mut self, at: usize) {
        self.lives[at].side().poll();
        while let Some(event) = self.lives[at].side().next() {
            self.take(at, event);
        }
    }

    fn take(&mut self, at: usize, event: Event) {
        if let Event::Done(entry, source) = &event
            && entry.flags.intersects(ofi::raw::CompletionFlags::REMOTE_WRITE)
        {
            let op = &mut self.ops[entry.data as usize];
            assert!(matches!(op.kind, Kind::Write { told: true, .. }), "{op:?}");
            op.told += 1;
            assert_eq!((op.told, op.to), (1, at), "told once, at its target: {op:?}");
            let Kind::Write { at: offset, .. } = op.kind else { return };
            self.lives[at].check_target(offset, entry.data as usize, op.len);
            let _ = source;
            return;
        }
        let context = event.context();
        if context >= RECEIVE {
            return self.received(at, context - RECEIVE, event);
        }
        let id = context - 1;
        let op = &self.ops[id];
        let troubled = self.is_troubled(op.from, op.to) || self.may_be_cut(op);
        // An injected operation is reported as done when it is posted. If it fails later, that is reported too.
        let open = op.ended.is_none() || (op.injected && matches!(event, Event::Failed(_)));
        assert!(op.from == at && open, "one end: {op:?} {event:?}");
        let ended = match event {
            Event::Failed(error) => {
                let refused = matches!(op.kind, Kind::Beside(_)) && is_refusal(error.err);
                assert!(troubled || refused, "{op:?}: {error:?}");
                Err(error.err)
            }
            Event::Done(..) => {
                let target = &self.lives[op.to];
                match op.kind {
                    Kind::Write { at, .. } => target.check_target(at, id, op.len),
                    Kind::Read { at } => {
                        assert_eq!(op.memory.bytes(), target.source_bytes(at, op.len), "{op:?}");
                    }
                    Kind::Before { .. } => {
                        assert!(op.memory.bytes().iter().all(|&byte| byte == 0), "changed behind it: {op:?}");
                    }
                    Kind::Beside(_) => panic!("an access that must be refused: {op:?}"),
                    Kind::Send { .. } | Kind::Add { .. } | Kind::Count { .. } => {}
                }
                Ok(())
            }
        };
        (self.ops[id].ended, self.ops[id].injected) = (Some(ended), false);
    }

    fn received(&mut self, at: usize, number: usize, event: Event) {
        let (tag, memory, done) = &mut self.lives[at].receives[number];
        assert!(done.is_none(), "one end: {event:?}");
        let (entry, source) = match event {
            Event::Done(entry, source) => (entry, source),
            Event::Failed(error) => {
                *done = Some(FAILED);
                let own = (0..self.lives.len()).any(|other| other != at && self.is_troubled(at, other));
                return assert!(own, "a receive of untroubled peers: {error:?}");
            }
        };
        let id = entry.data as usize;
        *done = Some(id);
        let op = &mut self.ops[id];
        op.arrived += 1;
        assert_eq!((op.to, op.arrived), (at, 1), "once, at its target: {op:?}");
        assert!(matches!(op.kind, Kind::Send { tag: sent } if sent == *tag), "{op:?} as {tag}");
        assert_eq!(entry.len, op.len, "{op:?}");
        assert!(memory.slice(..op.len).bytes() == pattern(id, op.len), "the bytes of {op:?}");
        let from = op.from;
        if let Some(&known) = self.lives[at].peers.get(&from) {
            assert_eq!(source, known, "who sent {:?}", self.ops[id]);
        }
    }

    /// An event that the model still waits for; `None` after everything has ended.
    fn lacks(&self) -> Option<String> {
        for (id, op) in self.ops.iter().enumerate() {
            let is_there = self.lives[op.from].side.is_some();
            if is_there && op.ended.is_none() {
                return Some(format!("the end of {id}: {op:?}"));
            }
            let troubled = self.is_troubled(op.from, op.to) || self.may_be_cut(op);
            let missing = match op.kind {
                Kind::Send { .. } => op.arrived == 0,
                Kind::Write { told, .. } => told && op.told == 0,
                _ => false,
            };
            if !troubled && missing {
                return Some(format!("the arrival of {id}: {op:?}"));
            }
        }
        let untroubled = self.troubled.is_empty() && self.lives.iter().all(|life| !life.stopped);
        for &life in &self.nodes {
            let side = self.lives[life].side();
            if let Some(left) = self.fabric.left(side, untroubled && !self.lives[life].stopped) {
                return Some(format!("the end of operations in flight at {life}: {left}"));
            }
        }
        (!self.fabric.is_still()).then(|| "the fabric".to_string())
    }

    fn drain(&mut self) {
        for turn in 0.. {
            for life in self.nodes.clone() {
                for tag in 0..=TAGS {
                    let life_now = &self.lives[life];
                    if !life_now.stopped && life_now.posted[tag as usize] < life_now.sent[tag as usize] {
                        self.receive_at(life, tag);
                    }
                }
                self.poll(life);
            }
            if turn % 64 != 0 {
                continue;
            }
            let Some(what) = self.lacks() else { break };
            if turn > BOUND {
                let nodes = self.nodes.iter().map(|&life| (life, self.lives[life].side().report()));
                let reports: Vec<String> = nodes.map(|(life, report)| format!("{life}: {report}")).collect();
                panic!(
                    "{BOUND} polls were not enough for {what}\ntroubled {:?}\n{}",
                    self.troubled,
                    reports.join("\n")
                );
            }
        }
        self.check_order();
        self.check_sums();
    }

    /// Checks that receives of one kind matched the messages of each sender in posting order.
    fn check_order(&self) {
        for (at, life) in self.lives.iter().enumerate() {
            for tag in 0..=TAGS {
                for from in 0..self.lives.len() {
                    let got = life.receives.iter().filter(|receive| receive.0 == tag);
                    let ids = got.filter_map(|receive| receive.2.filter(|&id| id != FAILED));
                    let ids: Vec<usize> = ids.filter(|&id| self.ops[id].from == from).collect();
                    assert!(ids.is_sorted(), "messages of {from} to {at}, tag {tag}: {ids:?}");
                }
            }
        }
    }

    /// Checks that each addition took place once.
    fn check_sums(&self) {
        for op in self.ops.iter().filter(|op| op.ended == Some(Ok(()))) {
            if let Kind::Count { at } = op.kind {
                assert_eq!(self.lives[op.to].number_at(at), 1, "{op:?}");
            }
        }
        for (at, life) in self.lives.iter().enumerate() {
            let to = |op: &&Op| op.to == at && matches!(op.kind, Kind::Add { .. });
            let all = self.ops.iter().filter(to).count() as u64;
            let good = self.ops.iter().filter(to).filter(|op| op.ended == Some(Ok(()))).count() as u64;
            let sum = life.sum();
            assert!((good..=all).contains(&sum), "{good} of {all} additions to {at} ended well: {sum}");
            let fetched = self.ops.iter().filter(to).filter(|op| op.ended == Some(Ok(())));
            let mut fetched: Vec<u64> = fetched.filter_map(Op::fetched).collect();
            fetched.sort_unstable();
            let many = fetched.len();
            fetched.dedup();
            assert!(fetched.len() == many && fetched.iter().all(|&value| value < sum), "{fetched:?}");
        }
    }
}
