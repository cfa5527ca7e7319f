//! The operations of agents, and the checks on them.

use std::sync::Arc;
use std::time::Duration;

use multirail::engine::{Core, PeerId, Piece, Plan};
use multirail::{Outcome, Way};

use super::world::{AGENTS, Cut, Posted, RAILS, SLOT, World, agent, byte};

/// What programs write into memory that is theirs again.
const SCRIBBLE: u8 = 0x77;

impl World {
    pub fn post(&mut self) {
        let patience = Duration::from_millis(500 + self.random.bits() % 8000);
        self.post_for(patience);
    }

    pub fn post_for(&mut self, patience: Duration) {
        let from = self.random.bits() as usize % AGENTS;
        let to = (from + 1 + self.random.bits() as usize % (AGENTS - 1)) % AGENTS;
        let way = if self.random.chance(300) { Way::Read } else { Way::Write };
        self.post_between(from, to, way, patience);
    }

    pub fn post_between(&mut self, from: usize, to: usize, way: Way, patience: Duration) {
        let slot = self.posted.len();
        let len = if self.random.chance(100) { 0 } else { 1 + self.random.bits() as usize % SLOT };
        let peer: PeerId = self.agents[from].core.find(&format!("agent-{to}")).unwrap();
        let Some((region, incarnation)) = self.agents[from].core.region(peer, 1) else {
            return; // the peer has greeted with a new incarnation, and its metadata has not arrived
        };
        // Descriptors of one length are posted in rows, which must be taken apart after a failure in them.
        let even = self.random.chance(500).then(|| 1 + self.random.bits() as usize % 600);
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < len {
            let most = if self.random.chance(500) { 600 } else { SLOT };
            let size = even.unwrap_or_else(|| 1 + self.random.bits() as usize % most).min(len - at);
            let place = (slot * SLOT + at) as u64;
            pieces.push(Piece { region: 0, local: place, remote_region: 0, remote: place, len: size as u64 });
            at += size;
        }
        let plan = Plan {
            way,
            pieces,
            regions: vec![region],
            near: vec![self.agents[from].near],
            incarnation,
            total: len as u64,
            guard: (),
            uses: Default::default(),
        };
        let notice = len == 0 || self.random.chance(700);
        let size = if self.random.chance(100) { 20_000 } else { 8 };
        let bytes = format!("{slot:8}{}", " ".repeat(size - 8)).into_bytes();
        let deadline = self.now + patience;
        let core = &mut self.agents[from].core;
        let posted = core.post(peer, Arc::new(plan), notice.then_some(bytes), deadline, self.now);
        let id = posted.expect("a plan of this incarnation");
        let (life, to_life) = (self.agents[from].life, region_life(&self.agents[from].core, peer));
        self.posted.push(Posted {
            from,
            life,
            to,
            to_life,
            id,
            way,
            slot,
            len,
            notice,
            deadline,
            ended: None,
        });
    }

    pub fn step(&mut self) {
        let trouble = self.trouble;
        let random = &mut self.random;
        let (a, b, rail) = (
            random.bits() as usize % AGENTS,
            random.bits() as usize % AGENTS,
            random.bits() as usize % RAILS,
        );
        if random.chance(trouble.cut) && a != b {
            let until = self.now + Duration::from_millis(random.bits() % 3000);
            let cut = match random.chance(trouble.mute) {
                true if random.chance(500) => Cut::Unanswered,
                true => Cut::Mute,
                false => Cut::Broken,
            };
            self.cuts.insert((a.min(b), a.max(b), rail), (until, cut));
        }
        if self.random.chance(trouble.kill) {
            let life = self.agents[a].life + 1;
            self.agents[a] = agent(a, life);
            for posted in self.posted.iter_mut().filter(|posted| posted.from == a && posted.ended.is_none()) {
                posted.ended = Some(Outcome::Cancelled); // ended with its process
            }
            // The agent loads the others' metadata again, and the others load its metadata after some steps.
            for other in (0..AGENTS).filter(|&other| other != a) {
                self.publish(other);
            }
            let published = self.random.chance(500);
            if published {
                self.publish(a);
            }
        }
        if self.random.chance(trouble.cancel)
            && let Some(posted) = self.posted.last()
            && posted.life == self.agents[posted.from].life
        {
            self.agents[posted.from].core.cancel(posted.id);
        }
        if self.random.chance(trouble.disconnect) && a != b {
            let peer = self.agents[a].core.find(&format!("agent-{b}")).unwrap();
            self.agents[a].core.disconnect(peer, self.now);
        }
    }

    /// Checks the current outcomes and notifications of an agent. Returns whether there were notifications.
    pub fn check(&mut self, index: usize) -> bool {
        let mut was_told = false;
        while let Some(notification) = self.agents[index].core.take_notification() {
            was_told = true;
            let at: usize = std::str::from_utf8(&notification.bytes[..8]).unwrap().trim().parse().unwrap();
            assert!(notification.bytes.len() == 8 || notification.bytes.len() == 20_000);
            let posted = &self.posted[at];
            self.notified[posted.slot] += 1;
            assert_eq!(self.notified[posted.slot], 1, "a notification is handed out once");
            assert_eq!(&*notification.peer, format!("agent-{}", posted.from));
            if posted.way == Way::Write {
                self.assert_written(posted, "a notification comes after its data");
                self.scribble(at);
            }
        }
        for at in 0..self.posted.len() {
            let posted = &self.posted[at];
            if posted.from != index || posted.ended.is_some() || posted.life != self.agents[index].life {
                continue;
            }
            let progress =
                self.agents[index].core.progress(posted.id).expect("a transfer that was not released");
            let Some(outcome) = progress.outcome else {
                assert!(self.now <= posted.deadline, "a transfer has its end by its deadline");
                continue;
            };
            if outcome == Outcome::Done {
                assert_eq!(progress.moved, posted.len as u64);
                match posted.way {
                    Way::Write if !self.scribbled[at] => self.assert_written(posted, "done means written"),
                    Way::Write => {}
                    Way::Read => {
                        let range = posted.slot * SLOT..posted.slot * SLOT + posted.len;
                        let read = &self.agents[index].local[range];
                        assert!(read.iter().all(|&byte| byte == 0xEE), "done means read");
                    }
                }
            }
            self.posted[at].ended = Some(outcome);
            if outcome == Outcome::Done {
                self.scribble(at);
            }
        }
        was_told
    }

    /// A program changes the memory that the end of a transfer, or its notification, has given back.
    fn scribble(&mut self, at: usize) {
        let Posted { from, to, way, slot, len, .. } = self.posted[at];
        if self.scribbles && !std::mem::replace(&mut self.scribbled[slot], true) {
            let range = slot * SLOT..slot * SLOT + len;
            match way {
                Way::Write => self.agents[to].shared[range].fill(SCRIBBLE),
                Way::Read => self.agents[from].local[range].fill(SCRIBBLE),
            }
        }
    }

    /// Checks that nothing came late to memory that programs have changed.
    pub fn assert_scribbles(&self) {
        for &Posted { from, to, way, slot, len, .. } in
            self.posted.iter().filter(|it| self.scribbled[it.slot])
        {
            let range = slot * SLOT..slot * SLOT + len;
            let memory = match way {
                Way::Write => &self.agents[to].shared[range],
                Way::Read => &self.agents[from].local[range],
            };
            assert!(memory.iter().all(|&byte| byte == SCRIBBLE), "something late in slot {slot}");
        }
    }

    pub fn assert_written(&self, posted: &Posted, why: &str) {
        if self.agents[posted.to].life != posted.to_life {
            return; // its memory is gone
        }
        let range = posted.slot * SLOT..posted.slot * SLOT + posted.len;
        let shared = &self.agents[posted.to].shared[range];
        assert!(shared.iter().enumerate().all(|(at, &found)| found == byte(posted.slot, at)), "{why}");
    }
}

/// The life of the peer to which the agent's metadata belongs: the key.
fn region_life(core: &Core<()>, peer: PeerId) -> u32 {
    core.region(peer, 1).map_or(0, |(region, _)| region.keys[0].key as u32)
}
