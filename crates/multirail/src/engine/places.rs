//! The operations that an endpoint takes at a time, and how the peers of a rail share them.
//!
//! An endpoint has one limit for all its peers (`tx_attr.size`). An operation to a peer that does not poll may stay in
//! it for as long as that peer lives, and nothing else can end it. So a path never takes more than half of what it
//! leaves free: one path alone may have a third of the places, and each further silent peer a third of the rest. A path
//! without operations gets a place as long as there is one, and one with few messages under way may send another. All
//! strangers together, whose greetings this agent answers, have a quarter of the places.
//!
//! Work that finds no free place waits in its session. The session is listed here, and looks again when an operation of
//! any peer on the rail has ended.

use std::collections::VecDeque;

use ofi_core::slots::SlotId;

use super::path::Path;
use super::{Core, RailSpec};

/// Messages that a path may have under way whatever its share, as long as there is a free place.
const MESSAGES: u32 = 4;

/// The places of all rails.
pub(super) struct Places {
    rails: Vec<Rail>,
    /// A bit for each rail without a free place.
    full: u64,
    /// A bit for each rail on which a session waits because it has refused too much.
    refusing: u64,
}

struct Rail {
    size: u32,
    used: u32,
    /// Places used by answers to strangers.
    strangers: u32,
    /// Sessions whose work waits for a place.
    waiting: VecDeque<SlotId>,
    /// Answers to strangers that wait for a place. They have a list of their own: no place is of use to them while the
    /// strangers have their quarter.
    answers: VecDeque<SlotId>,
    /// The next place is offered to the answers first.
    answers_first: bool,
}

impl Rail {
    fn new(spec: &RailSpec) -> Self {
        Self {
            size: spec.operations.max(1),
            used: 0,
            strangers: 0,
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
            answers_first: false,
        }
    }

    /// The session that waits longest and may use a free place; the two lists take turns.
    fn next_waiting(&mut self) -> Option<SlotId> {
        let may_answer = self.takes_strangers();
        self.answers_first = !self.answers_first;
        let answer = if may_answer && self.answers_first { self.answers.pop_front() } else { None };
        let next = answer.or_else(|| self.waiting.pop_front());
        if may_answer { next.or_else(|| self.answers.pop_front()) } else { next }
    }

    fn takes_strangers(&self) -> bool {
        self.strangers < self.size.div_ceil(4)
    }
}

impl Places {
    pub(super) fn new(rails: &[RailSpec]) -> Self {
        Self { rails: rails.iter().map(Rail::new).collect(), full: 0, refusing: 0 }
    }

    pub(super) fn add_rail(&mut self, spec: &RailSpec) {
        self.rails.push(Rail::new(spec));
    }

    /// Whether nothing uses a rail.
    pub(super) fn is_idle(&self, rail: usize) -> bool {
        self.rails.get(rail).is_none_or(|rail| rail.used == 0)
    }

    /// A bit for each rail without a free place.
    #[inline]
    pub(super) fn full(&self) -> u64 {
        self.full
    }

    /// The accesses that a path may have under way in addition.
    #[inline]
    pub(super) fn share(&self, path: &Path) -> u32 {
        let Rail { size, used, .. } = self.rails[path.rail];
        let (free, own) = (size.saturating_sub(used), path.places());
        // The largest n with own + n <= (free - n) / 2.
        let share = free.saturating_sub(own.saturating_mul(2)) / 3;
        if own == 0 { share.max(free.min(1)) } else { share }
    }

    /// Whether a path may send another message.
    pub(super) fn takes_message(&self, path: &Path) -> bool {
        let Rail { size, used, .. } = self.rails[path.rail];
        used < size && (path.messages < MESSAGES || self.share(path) > 0)
    }

    /// Whether a path may send a greeting or, to a stranger, an answer to one.
    pub(super) fn takes_greeting(&self, path: &Path, is_stranger: bool) -> bool {
        let rail = &self.rails[path.rail];
        // A stranger that has not read one answer gets no other.
        let most = if is_stranger { 1 } else { MESSAGES };
        rail.used < rail.size && path.messages < most && (!is_stranger || rail.takes_strangers())
    }

    #[inline]
    pub(super) fn take(&mut self, rail: usize, count: u32) {
        let places = &mut self.rails[rail];
        places.used += count;
        if places.used >= places.size {
            self.full |= 1 << rail;
        }
    }

    /// Gives back the places of operations that have ended. Returns whether sessions wait for places.
    #[inline]
    pub(super) fn give_back(&mut self, rail: usize, count: u32) -> bool {
        let places = &mut self.rails[rail];
        places.used -= count;
        if places.used < places.size {
            self.full &= !(1 << rail);
        }
        !places.waiting.is_empty() || !places.answers.is_empty()
    }

    /// Whether sessions wait although the end of no operation may wake them.
    pub(super) fn has_refused(&self) -> bool {
        self.refusing != 0
    }

    pub(super) fn stranger_began(&mut self, rail: usize) {
        self.rails[rail].strangers += 1;
    }

    pub(super) fn stranger_ended(&mut self, rail: usize) {
        self.rails[rail].strangers -= 1;
    }
}

impl<G> Core<G> {
    /// Lists a session whose work is not done, on those of its rails that have no place, or that have refused too much.
    pub(super) fn await_places(&mut self, id: SlotId) {
        let shut = self.places.full | self.stalled.blocked();
        let Some(session) = self.sessions.get_mut(id) else { return };
        let is_answer = session.is_answer();
        if !session.has_work() || (shut == 0 && !is_answer) {
            return;
        }
        for path in &session.paths {
            let (rail, bit) = (path.rail, 1 << path.rail);
            let is_refused = self.stalled.blocked() & bit != 0 && !path.is_stalled;
            // A path with operations looks again when one of its own ends.
            let has_none = path.places() == 0 && self.places.full & bit != 0;
            let is_late = is_answer && path.places() == 0 && !self.places.takes_greeting(path, true);
            if (is_refused || has_none || is_late) && session.awaited & bit == 0 {
                session.awaited |= bit;
                let places = &mut self.places.rails[rail];
                if is_answer { places.answers.push_back(id) } else { places.waiting.push_back(id) }
            }
            if is_refused {
                self.places.refusing |= bit;
            }
        }
    }

    /// Removes a session from the lists of those that wait: it ends, or is no answer to a stranger any more. What it
    /// still has to do is listed again where it belongs, and no list has more entries than there are sessions.
    pub(super) fn await_no_places(&mut self, id: SlotId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let mut awaited = std::mem::take(&mut session.awaited);
        while awaited != 0 {
            let rail = &mut self.places.rails[awaited.trailing_zeros() as usize];
            rail.answers.retain(|&other| other != id);
            rail.waiting.retain(|&other| other != id);
            awaited &= awaited - 1;
        }
    }

    /// Lets up to `count` of the sessions that wait for places on a rail look again, those that wait longest first.
    /// Those that have ended, or that have no work left, do not count: they would use up the turns of those behind
    /// them.
    #[cold]
    pub(super) fn wake_waiting(&mut self, rail: usize, count: u32) {
        let mut left = count;
        while left > 0 {
            let Some(id) = self.places.rails[rail].next_waiting() else { return };
            let Some(session) = self.sessions.get_mut(id) else { continue };
            session.awaited &= !(1 << rail);
            if session.has_work() {
                left -= 1;
                session.woken |= 1 << rail;
                self.wake(id);
            }
        }
    }

    /// As [`Core::pass_on`], for a session that may still exist.
    #[cold]
    pub(super) fn was_woken(&mut self, id: SlotId, woken: u64) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.woken = 0;
        }
        self.pass_on(woken);
    }

    /// A session that was woken for places on these rails has done what it can: where a place is still free, the next
    /// one that waits looks. This ends, because a session is listed again only on a rail that is full or has refused
    /// too much.
    #[cold]
    pub(super) fn pass_on(&mut self, woken: u64) {
        let open = woken & !self.places.full & !self.stalled.blocked();
        for rail in (0..self.places.rails.len()).filter(|rail| open >> rail & 1 == 1) {
            self.wake_waiting(rail, 1);
        }
    }

    /// As [`Core::wake_waiting`], for rails that have refused too much.
    pub(super) fn wake_refused(&mut self, count: u32) {
        for rail in 0..self.places.rails.len() {
            if self.places.refusing >> rail & 1 == 1 {
                self.wake_waiting(rail, count);
                // The end of an operation wakes those that wait for a place of a full rail.
                let places = &self.places.rails[rail];
                let has_waiting =
                    !places.waiting.is_empty() || (places.takes_strangers() && !places.answers.is_empty());
                if !has_waiting || self.places.full >> rail & 1 == 1 {
                    self.places.refusing &= !(1 << rail);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ofi::Errno;

    use super::super::{Access, Config, OpId, Plan, Refused, Sink};
    use super::*;
    use crate::wire::message::Body;
    use crate::wire::{Message, RailInfo};

    const NOW: Duration = Duration::from_secs(1);

    fn spec(size: u32) -> RailSpec {
        let info = RailInfo { provider: "none".into(), format: 0, address: vec![0] };
        RailSpec { info, bandwidth: None, wide_data: true, severs: false, operations: size }
    }

    fn places(size: u32) -> Places {
        Places::new(&[spec(size)])
    }

    /// A rail that takes everything: its messages, with the tags of the welcomes among them.
    #[derive(Default)]
    struct Rail(Vec<(OpId, u64)>);

    impl Sink<()> for Rail {
        fn access(&mut self, _: &Access, _: &Plan<()>, _: bool) -> Result<(), Refused> {
            Ok(())
        }

        fn send(&mut self, op: OpId, _: usize, _: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
            let tag = match Message::parse(&bytes).unwrap().body {
                Body::Welcome { tag, .. } => tag,
                _ => 0,
            };
            self.0.push((op, tag));
            Ok(())
        }

        fn insert(&mut self, _: usize, _: u32, address: &[u8]) -> Result<u64, Errno> {
            Ok(u64::from(address[0]))
        }

        fn remove(&mut self, _: usize, _: u64) {}
    }

    /// An agent whose rail takes four operations, so that one stranger alone is answered.
    fn agent() -> (Core<()>, Rail) {
        let mut next = 0_u64;
        let random = move || {
            next += 1;
            next << 32 | 1
        };
        (Core::new("agent", vec![spec(4)], Config::default(), Box::new(random)), Rail::default())
    }

    /// A greeting arrives.
    fn greet(core: &mut Core<()>, rail: &mut Rail, name: &str, tag: u64) {
        let to = core.metadata(Vec::new()).incarnation;
        let rails = vec![RailInfo { provider: "none".into(), format: 0, address: vec![1] }];
        let hello = Body::Hello { name: name.into(), incarnation: 7, tag, rails };
        core.message(&Message { to, body: hello }.encode(), NOW);
        while core.perform(NOW, rail) {}
    }

    #[test]
    fn a_peer_that_greets_again_and_again_waits_once() {
        let (mut core, mut rail) = agent();
        greet(&mut core, &mut rail, "silent", 1 << 32);
        assert_eq!(rail.0.len(), 1, "the answers' quarter is taken");
        for nth in 0..10_000 {
            greet(&mut core, &mut rail, "eager", nth << 32 | 2);
            let (waiting, sessions) = (core.places.rails[0].answers.len(), core.sessions.len());
            assert!(waiting == 1 && sessions <= 3, "{waiting} of {sessions} sessions wait");
        }
    }

    #[test]
    fn a_session_that_opens_while_its_answer_waits_is_listed_anew() {
        let (mut core, mut rail) = agent();
        greet(&mut core, &mut rail, "bob", 1 << 32);
        let (op, tag) = rail.0.remove(0);
        core.ended(op, Ok(()), NOW);
        greet(&mut core, &mut rail, "silent", 2 << 32);
        greet(&mut core, &mut rail, "bob", 1 << 32); // the welcome was late
        assert_eq!((rail.0.len(), core.places.rails[0].answers.len()), (1, 1));
        // The other places are taken too, and the session owes its peer an answer.
        core.places.take(0, 3);
        core.message(&Message { to: tag, body: Body::Confirm }.encode(), NOW);
        while core.perform(NOW, &mut rail) {}
        let places = &core.places.rails[0];
        assert_eq!((rail.0.len(), places.answers.len(), places.waiting.len()), (1, 0, 1));
        if core.places.give_back(0, 1) {
            core.wake_waiting(0, 1);
        }
        while core.perform(NOW, &mut rail) {}
        assert_eq!(rail.0.len(), 2, "it has the first place, although the strangers have their quarter");
    }

    /// Takes all that a path may have. Returns the number.
    fn fill(places: &mut Places) -> u32 {
        let (mut path, mut all) = (Path::new(0, 0, None), 0);
        loop {
            let share = places.share(&path);
            if share == 0 {
                return all;
            }
            path.posted(share, 0, super::super::Time::ZERO);
            places.take(0, share);
            all += share;
        }
    }

    #[test]
    fn a_path_leaves_twice_its_share_to_the_others() {
        for size in [1, 2, 3, 8, 64, 1024, 1 << 20] {
            let (mut places, mut free, mut paths) = (places(size), size, 0);
            while free > 0 {
                let took = fill(&mut places);
                assert!(took >= 1, "a path without operations gets a place: {free} are free of {size}");
                free -= took;
                assert!(took == 1 || 2 * took <= free, "{took} taken, {free} left of {size}");
                paths += 1;
            }
            assert_eq!(fill(&mut places), 0);
            println!("{paths} silent paths fill {size} places");
        }
    }

    #[test]
    fn strangers_have_a_quarter_together() {
        let mut places = places(1024);
        let path = Path::new(0, 0, None);
        let mut strangers = 0;
        while places.takes_greeting(&path, true) {
            places.take(0, 1);
            places.stranger_began(0);
            strangers += 1;
        }
        assert_eq!(strangers, 256);
        assert!(places.takes_greeting(&path, false) && places.takes_message(&path));
    }
}
