//! Transfers between real processes under random kills (`kill -9`) of either side, cut rails, restarts, cancels and
//! disconnects.
//!
//! Each transfer ends in success with the right bytes or in one error, by its deadline; no notification comes before
//! its data or twice; afterwards the two processes still work together, and the tables are empty. `OFI_RAILS_RUNS` sets
//! the number of runs, `OFI_RAILS_SEED` the seed of the first; both are printed, with the events.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use multirail::{Agent, Config, Local, Region, Remote, Transfer, Way};
use ofi::{Errno, Hints};
use ofi_testkit::net::Random;
use ofi_testkit::process::{Child, Line};

use super::support::{self, hex, ports, shell, unhex};

/// Bytes that belong to one transfer, at both ends.
const SLOT: usize = 96 << 10;
const SLOTS: usize = 40;
/// Transfers of one life of the scribbler, after the others' slots.
const SCRIBBLES: usize = 16;
const LIVES: usize = 4;
const LEN: usize = SLOT * (SLOTS + SCRIBBLES * LIVES);
/// How late an end may be observed on a busy machine.
const LATE: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(30);

fn agent(name: &str, rails: &str) -> Agent {
    let config = Config {
        connect_timeout: Duration::from_secs(4),
        stall_timeout: Duration::from_secs(1),
        ..Config::default()
    };
    let builder = Agent::builder(name).config(config).shared_memory(false);
    let builder = rails.split(',').fold(builder, |builder, rail| builder.rail(Hints::new().provider(rail)));
    builder.open().unwrap()
}

/// The bytes that are written at `offset`.
fn written(seed: u64, offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|at| (at / 5) as u8 ^ (seed as u8).wrapping_mul(29) ^ 0x55).collect()
}

/// The bytes that a life of the owner has there before.
fn held(life: u64, offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(|at| (at / 3) as u8 ^ (life as u8).wrapping_mul(83)).collect()
}

/// Owns a region, and reports for every notification whether its data is in place.
pub fn owner(line: &mut Line, arguments: &[String]) {
    let agent = agent("storm_owner", &arguments[0]);
    let region = agent.register(held(arguments[1].parse().unwrap(), 0, LEN)).unwrap();
    line.say(hex(&agent.metadata().unwrap()));
    let mut last = None;
    while last.is_none_or(|last| Instant::now() < last) {
        if let Some(notification) = agent.wait_notification(Duration::from_millis(2)).unwrap() {
            let text = String::from_utf8(notification.bytes).unwrap();
            let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
            let (offset, mut bytes) = (numbers[0] as usize, vec![0; numbers[1] as usize]);
            region.read_into(offset, &mut bytes).unwrap();
            let is_good = bytes == written(numbers[2], offset, bytes.len());
            line.try_say(format!("{} {offset}", if is_good { "good" } else { "bad" }));
        }
        if last.is_none() && line.has_news() {
            match line.try_hear().as_deref() {
                None => return,
                Some("end") => last = Some(Instant::now() + Duration::from_millis(100)),
                Some(metadata) => drop(agent.load(&unhex(metadata)).unwrap()),
            }
        }
    }
    line.try_say("over");
}

/// Writes to the owner until it is killed.
pub fn scribbler(line: &mut Line, arguments: &[String]) {
    let agent = agent("scribbler", &arguments[0]);
    let (seed, life): (u64, usize) = (arguments[1].parse().unwrap(), arguments[2].parse().unwrap());
    let begin = (SLOTS + life * SCRIBBLES) * SLOT;
    let source = agent.register(written(seed, begin, SCRIBBLES * SLOT)).unwrap();
    agent.load(&unhex(&line.hear())).unwrap();
    let region = agent.regions("storm_owner").unwrap()[0].0;
    for nth in 0..SCRIBBLES {
        let (at, len) = (nth * SLOT, SLOT - nth);
        let local = source.slice(at as u64..(at + len) as u64).unwrap();
        let remote = Remote { region, offset: (begin + at) as u64, len: len as u64 };
        let text = format!("{} {len} {seed}", begin + at);
        // The owner may be killed at any time too: then the transfer ends with any outcome.
        if let Ok(plan) = agent.prepare("storm_owner", Way::Write, &[local], &[remote])
            && let Ok(transfer) = plan.post_notify(text.as_bytes(), Duration::from_secs(3))
        {
            let _ = transfer.wait();
        }
    }
    line.try_say("done");
    line.try_hear();
}

struct Posted {
    transfer: Transfer,
    way: Way,
    offset: usize,
    len: usize,
    is_notified: bool,
    life: u64,
    deadline: Instant,
}

#[derive(Debug, Default)]
struct Tally {
    done: u32,
    failed: u32,
    cancelled: u32,
    kills: u32,
    cuts: u32,
    disconnects: u32,
}

struct Storm {
    random: Random,
    seed: u64,
    rails: String,
    agent: Agent,
    memory: Region<Vec<u8>>,
    owner: Child,
    life: u64,
    metadata: String,
    scribbler: Option<Child>,
    scribbles: usize,
    posted: Vec<Posted>,
    next: usize,
    /// Notifications that the owner of this life has received.
    told: HashSet<usize>,
    tally: Tally,
}

fn start_owner(rails: &str, life: u64, agent: &Agent) -> (Child, String) {
    let mut child = Child::start("storm_owner", &[rails, &life.to_string()]);
    let metadata = child.line.hear();
    agent.load(&unhex(&metadata)).unwrap();
    (child, metadata)
}

impl Storm {
    fn new(seed: u64, rails: &str) -> Self {
        let agent = agent("writer", rails);
        let memory = agent.register(written(seed, 0, SLOTS * SLOT)).unwrap();
        let (owner, metadata) = start_owner(rails, 1, &agent);
        let random = Random(seed);
        Self {
            random,
            seed,
            rails: rails.into(),
            agent,
            memory,
            owner,
            life: 1,
            metadata,
            scribbler: None,
            scribbles: 0,
            posted: Vec::new(),
            next: 0,
            told: HashSet::new(),
            tally: Tally::default(),
        }
    }

    fn post(&mut self, patience: Duration) {
        let offset = self.next * SLOT;
        self.next += 1;
        let len = 1 + self.random.below(SLOT as u64) as usize;
        let way = if self.random.chance(300) { Way::Read } else { Way::Write };
        let is_notified = way == Way::Write && self.random.chance(750);
        let region = self.agent.regions("storm_owner").unwrap()[0].0;
        let most = if self.random.chance(500) { 4000 } else { SLOT as u64 };
        let (mut local, mut remote, mut at) = (Vec::<Local>::new(), Vec::new(), 0);
        while at < len {
            let size = (1 + self.random.below(most) as usize).min(len - at);
            let begin = (offset + at) as u64;
            local.push(self.memory.slice(begin..begin + size as u64).unwrap());
            remote.push(Remote { region, offset: begin, len: size as u64 });
            at += size;
        }
        let plan = self.agent.prepare("storm_owner", way, &local, &remote).unwrap();
        let text = format!("{offset} {len} {}", self.seed);
        let transfer = match is_notified {
            true => plan.post_notify(text.as_bytes(), patience).unwrap(),
            false => plan.post(patience).unwrap(),
        };
        let (life, deadline) = (self.life, Instant::now() + patience);
        self.posted.push(Posted { transfer, way, offset, len, is_notified, life, deadline });
    }

    /// Handles the owner's report of a notification.
    fn hear(&mut self, text: &str) {
        let (verdict, offset) = text.split_once(' ').unwrap();
        assert_eq!(verdict, "good", "a notification comes after its data: {text}");
        assert!(self.told.insert(offset.parse().unwrap()), "a notification comes once: {text}");
    }

    fn kill_owner(&mut self) {
        self.tally.kills += 1;
        self.owner.kill();
        while let Some(text) = self.owner.line.try_hear() {
            self.hear(&text);
        }
        self.told.clear();
        for _ in 0..self.random.below(2000) {
            self.agent.progress().unwrap();
        }
        self.life += 1;
        (self.owner, self.metadata) = start_owner(&self.rails, self.life, &self.agent);
        if self.random.chance(500) {
            self.owner.line.say(hex(&self.agent.metadata().unwrap()));
        }
    }

    fn kill_scribbler(&mut self) {
        if let Some(mut child) = self.scribbler.take() {
            self.tally.kills += 1;
            child.kill();
        } else if self.scribbles < LIVES {
            let arguments = [&*self.rails, &self.seed.to_string(), &self.scribbles.to_string()];
            let mut child = Child::start("scribbler", &arguments);
            child.line.say(&self.metadata);
            self.scribbler = Some(child);
            self.scribbles += 1;
        }
    }

    /// Cuts a rail of sockets at both ends, or heals all rails.
    fn cut(&mut self) {
        if self.random.chance(400) {
            return shell("nft flush chain ip cut in").unwrap();
        }
        let rail = self.random.below(2) as usize;
        let ends = [ports(&self.agent.metadata().unwrap()), ports(&unhex(&self.metadata))];
        let rails: Vec<&str> = self.rails.split(',').collect();
        if rails.get(rail) == Some(&"udp") {
            self.tally.cuts += 1;
            for port in ends.map(|ports| ports[rail]) {
                shell(&format!("nft add rule ip cut in udp dport {port} drop")).unwrap();
            }
        }
    }

    fn step(&mut self, may_cut: bool) {
        for _ in 0..1 + self.random.below(3) {
            if self.next < SLOTS {
                let patience = Duration::from_millis(200 + self.random.below(4000));
                self.post(patience);
            }
        }
        if self.random.chance(150)
            && let Some(posted) = self.posted.last()
        {
            posted.transfer.cancel();
        }
        for _ in 0..self.random.below(300) {
            self.agent.progress().unwrap();
        }
        match self.random.below(10) {
            0 => self.kill_owner(),
            1 | 2 => self.kill_scribbler(),
            3 | 4 if may_cut => self.cut(),
            5 => {
                self.tally.disconnects += 1;
                self.agent.disconnect("storm_owner").unwrap();
            }
            _ => {}
        }
        while self.owner.line.has_news() {
            let text = self.owner.line.hear();
            self.hear(&text);
        }
    }

    /// Every transfer ends by its deadline, with the right bytes.
    fn end(&mut self) -> HashMap<usize, bool> {
        let mut done = HashMap::new();
        let posted = std::mem::take(&mut self.posted);
        for posted in &posted {
            // Nothing drives the agent but this program's calls: an end is seen only where one looks for it, and a busy
            // machine may have kept this process away from here.
            let due = posted.deadline.max(Instant::now());
            let result = posted.transfer.wait();
            let late = Instant::now().saturating_duration_since(due);
            assert!(late < LATE, "a transfer ended {late:?} after its deadline: {result:?}");
            match result {
                Ok(()) => {
                    self.tally.done += 1;
                    if posted.way == Way::Read {
                        let mut bytes = vec![0; posted.len];
                        self.memory.read_into(posted.offset, &mut bytes).unwrap();
                        assert!(bytes == held(posted.life, posted.offset, posted.len), "done means read");
                    } else if posted.life == self.life {
                        done.insert(posted.offset, posted.is_notified);
                    }
                }
                Err(error) if error.errno() == Errno::ECANCELED => self.tally.cancelled += 1,
                Err(error) => {
                    let known = [
                        Errno::ETIMEDOUT,
                        Errno::ECONNRESET,
                        Errno::ECONNABORTED,
                        Errno::ECONNREFUSED,
                        Errno::ESHUTDOWN,
                        Errno::ENOTCONN,
                        Errno::EHOSTUNREACH,
                        Errno::EHOSTDOWN,
                    ];
                    assert!(known.contains(&error.errno()), "{error}");
                    self.tally.failed += 1;
                }
            }
        }
        // The time until memory is returned must not count as lateness of the next end.
        for posted in posted {
            assert!(posted.transfer.wait_quiet(LONG).unwrap(), "memory is given back");
        }
        done
    }

    fn finish(mut self, may_cut: bool) -> Tally {
        if may_cut {
            shell("nft flush chain ip cut in").unwrap();
        }
        let mut done = self.end();
        // Whatever the outcome, the two work together afterwards.
        let begin = Instant::now();
        self.next = SLOTS - 1;
        while !done.contains_key(&((SLOTS - 1) * SLOT)) {
            assert!(begin.elapsed() < LONG, "no transfer works: {:?}", self.agent.paths("storm_owner"));
            self.next = SLOTS - 1;
            self.memory.write_from(self.next * SLOT, &written(self.seed, self.next * SLOT, SLOT)).unwrap();
            self.last();
            done.extend(self.end());
        }
        self.owner.line.say("end");
        loop {
            match self.owner.line.hear() {
                text if text == "over" => break,
                text => self.hear(&text),
            }
        }
        for (offset, is_notified) in done {
            assert!(!is_notified || self.told.contains(&offset), "done means told: {offset}");
        }
        let begin = Instant::now();
        while self.agent.under_way() != (0, 0) {
            self.agent.progress().unwrap();
            assert!(begin.elapsed() < LONG, "{:?} are left", self.agent.under_way());
        }
        self.owner.finish();
        self.tally
    }

    /// One more write of the last slot, which only this one uses, without notification: it may be repeated.
    fn last(&mut self) {
        let (offset, region) = ((SLOTS - 1) * SLOT, self.agent.regions("storm_owner").unwrap()[0].0);
        let local = self.memory.slice(offset as u64..(offset + SLOT) as u64).unwrap();
        let remote = Remote { region, offset: offset as u64, len: SLOT as u64 };
        let plan = self.agent.prepare("storm_owner", Way::Write, &[local], &[remote]).unwrap();
        let patience = Duration::from_secs(5);
        let transfer = plan.post(patience).unwrap();
        let (way, len, is_notified, life) = (Way::Write, SLOT, false, self.life);
        let deadline = Instant::now() + patience;
        self.posted.push(Posted { transfer, way, offset, len, is_notified, life, deadline });
    }
}

/// One run.
pub fn storm(line: &mut Line, arguments: &[String]) {
    let (seed, rails, may_cut) = (arguments[0].parse().unwrap(), &arguments[1], arguments[2] == "cuts");
    if may_cut {
        shell(support::TABLE).unwrap();
    }
    let mut storm = Storm::new(seed, rails);
    // The last slot is for the end of the run.
    while storm.next < SLOTS - 3 {
        storm.step(may_cut);
    }
    let tally = storm.finish(may_cut);
    line.say(format!("{tally:?}"));
}

#[test]
fn whatever_happens_to_real_processes_each_transfer_has_one_end() {
    let wanted = |name: &str, or: u64| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")),
        Err(_) => or,
    };
    let (runs, first) = (wanted("OFI_RAILS_RUNS", 6), wanted("OFI_RAILS_SEED", 1));
    let may_cut = match shell(&format!("unshare -Urn sh -ec \"{}\"", support::TABLE)) {
        Ok(()) => true,
        Err(why) => {
            println!("NOT RUN: cuts of rails under random kills: {why}");
            false
        }
    };
    println!("{runs} runs, seeds from {first} (OFI_RAILS_SEED)");
    for seed in first..first + runs {
        let rails = ["udp,udp", "shm", "shm,udp"][(seed % 3) as usize];
        let cuts = if may_cut { "cuts" } else { "none" };
        let wrapper: &[&str] = if may_cut { &["unshare", "-Urn"] } else { &[] };
        println!("seed {seed} over {rails}");
        let mut child = Child::start_under(wrapper, "storm", &[&seed.to_string(), rails, cuts], &[]);
        let said = child.line.try_hear();
        println!("  {}", said.unwrap_or_else(|| panic!("seed {seed} over {rails} failed: see above")));
        child.finish();
    }
}
