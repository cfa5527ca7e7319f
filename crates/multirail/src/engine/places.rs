//! The operations that an endpoint takes at a time, and how the peers of a rail share them.
//!
//! A peer has its share of the places ([`ofi_core::budget`]): never more than half of what it leaves free. A peer
//! without operations gets a place as long as there is one, and one with few messages under way may send another. All
//! strangers together, whose greetings this agent answers, have a quarter of the places. A peer is what has one address
//! of the rail, whatever its sessions (`accounts.rs`).
//!
//! Work that finds no free place waits in its session. The session is listed here, and looks again when an operation of
//! any peer on the rail has ended. Work of a peer that has used up its share waits in the list of the peer's account,
//! and looks again when an operation of this account has ended. The share also depends on what other peers hold: the
//! rail lists the account with the number of free places at which it has a share again.

use std::collections::{BTreeMap, BTreeSet};

use ofi_core::budget::{AccountId, Places};
use ofi_core::slots::SlotId;

use super::accounts::{Kind, Line, RailAccounts};
use super::path::Path;
use super::session::{Session, State};
use super::{Core, RailSpec};

/// Messages that a peer may have under way whatever its share, as long as there is a free place. It may have as many
/// farewells in addition.
const MESSAGES: u32 = 4;

/// The places of all rails.
pub(super) struct RailPlaces {
    rails: Vec<Rail>,
    pub(super) accounts: RailAccounts,
    /// A bit for each rail without a free place.
    full: u64,
    /// A bit for each rail on which a session waits because it has refused too much.
    refusing: u64,
    /// The last number of a listed session.
    turn: u64,
}

struct Rail {
    places: Places,
    /// Places used by answers to strangers.
    strangers: u32,
    /// Sessions whose work waits for a place, those that wait longest first.
    waiting: BTreeMap<u64, SlotId>,
    /// Answers to strangers that wait for a place. They have a list of their own: no place is of use to them while the
    /// strangers have their quarter.
    answers: BTreeMap<u64, SlotId>,
    /// The next place is offered to the answers first.
    answers_first: bool,
    /// Accounts without a share for which sessions wait, after the number of free places at which they have one.
    short: BTreeSet<(u32, AccountId)>,
}

impl Rail {
    fn new(spec: &RailSpec) -> Self {
        Self {
            places: Places::new(spec.operations.max(1) as usize),
            strangers: 0,
            waiting: BTreeMap::new(),
            answers: BTreeMap::new(),
            answers_first: false,
            short: BTreeSet::new(),
        }
    }

    /// The session that waits longest and may use a free place; the two lists take turns.
    fn next_waiting(&mut self) -> Option<(u64, SlotId)> {
        let may_answer = self.takes_strangers();
        self.answers_first = !self.answers_first;
        let answer = if may_answer && self.answers_first { self.answers.pop_first() } else { None };
        let next = answer.or_else(|| self.waiting.pop_first());
        if may_answer { next.or_else(|| self.answers.pop_first()) } else { next }
    }

    fn takes_strangers(&self) -> bool {
        (self.strangers as usize) < self.places.size().div_ceil(4)
    }
}

impl RailPlaces {
    pub(super) fn new(rails: &[RailSpec]) -> Self {
        let (rails, accounts) = (rails.iter().map(Rail::new).collect(), RailAccounts::default());
        Self { rails, accounts, full: 0, refusing: 0, turn: 0 }
    }

    pub(super) fn add_rail(&mut self, spec: &RailSpec) {
        self.rails.push(Rail::new(spec));
    }

    /// The accesses that a path may have under way in addition.
    #[inline]
    pub(super) fn share(&self, path: &Path) -> u32 {
        self.rails[path.rail].places.share(self.accounts.own(path).operations as usize) as u32
    }

    /// Whether a path may send another message.
    pub(super) fn takes_message(&self, path: &Path) -> bool {
        !self.rails[path.rail].places.is_full() && (self.has_few_messages(path) || self.share(path) > 0)
    }

    /// Whether few messages are under way to the peer at the end of a path.
    pub(super) fn has_few_messages(&self, path: &Path) -> bool {
        self.accounts.own(path).messages < MESSAGES
    }

    /// Whether a path may send a farewell.
    pub(super) fn takes_farewell(&self, path: &Path) -> bool {
        self.accounts.own(path).farewells < MESSAGES
    }

    /// The session of a path, none of whose operations is under way, is forgotten.
    pub(super) fn leave(&mut self, path: &Path) {
        if let Some(listed) = self.accounts.leave(path) {
            self.rails[path.rail].short.remove(&listed);
        }
    }

    /// Lists the account of a path, if it has no share, for the time when other peers have left it one.
    fn await_share(&mut self, path: &Path) {
        let Some(account) = path.account.filter(|_| self.share(path) == 0) else { return };
        let own = self.accounts.own_of(account).operations as usize;
        let needed = Places::needed(own, 1) as u32;
        let before = self.accounts.need(account, needed);
        if before != needed {
            let short = &mut self.rails[path.rail].short;
            short.remove(&(before, account));
            short.insert((needed, account));
        }
    }

    /// Takes an account out of the list that now has a share on a rail.
    fn next_with_share(&mut self, rail: usize) -> Option<AccountId> {
        let rail = &mut self.rails[rail];
        let &(needed, account) = rail.short.first()?;
        if needed as usize > rail.places.free() {
            return None;
        }
        rail.short.pop_first();
        self.accounts.need(account, 0);
        Some(account)
    }

    /// Whether a path may send a greeting or, to a stranger, an answer to one.
    pub(super) fn takes_greeting(&self, path: &Path, is_stranger: bool) -> bool {
        let rail = &self.rails[path.rail];
        !rail.places.is_full()
            && match is_stranger {
                // A greeting proves no address. If one answer were the limit, whoever names another's address would
                // delay the answers to that one by the time that it takes to read each.
                true => self.accounts.own(path).answers < MESSAGES && rail.takes_strangers(),
                false => self.has_few_messages(path),
            }
    }

    /// Records that `count` operations of a path have begun. The last of them has no place yet if the rail has refused
    /// it.
    #[inline]
    pub(super) fn begin(&mut self, path: &Path, kind: Kind, count: u32, is_refused: bool) {
        self.accounts.begin(path, kind, count);
        self.rails[path.rail].strangers += if kind == Kind::Answer { count } else { 0 };
        self.take(path.rail, count - u32::from(is_refused));
    }

    /// Gives back the places of operations of a path that have ended. Returns whether sessions wait for places.
    #[inline]
    pub(super) fn end(&mut self, path: &Path, kind: Kind, count: u32) -> bool {
        let is_awaited = self.accounts.end(path, kind, count);
        self.rails[path.rail].strangers -= if kind == Kind::Answer { count } else { 0 };
        self.give_back(path.rail, count) || is_awaited
    }

    #[inline]
    pub(super) fn take(&mut self, rail: usize, count: u32) {
        let places = &mut self.rails[rail].places;
        places.take(count as usize);
        if places.is_full() {
            self.full |= 1 << rail;
        }
    }

    /// Gives back the places of operations that have ended. Returns whether sessions wait for places.
    #[inline]
    pub(super) fn give_back(&mut self, rail: usize, count: u32) -> bool {
        let found = &mut self.rails[rail];
        found.places.give_back(count as usize);
        if !found.places.is_full() {
            self.full &= !(1 << rail);
        }
        let has_share =
            found.short.first().is_some_and(|&(needed, _)| needed as usize <= found.places.free());
        has_share || !found.waiting.is_empty() || !found.answers.is_empty()
    }

    /// Whether sessions wait although the end of no operation may wake them.
    pub(super) fn has_refused(&self) -> bool {
        self.refusing != 0
    }

    /// The line of its account in which a session waits on a path: because of the operations that its peer has in other
    /// sessions, or those of other peers. It looks again by itself when one of its own ends.
    fn held_up(&self, session: &Session, path: &Path) -> Option<Line> {
        let own = self.accounts.own(path);
        let places = &self.rails[path.rail].places;
        if own.operations == 0 || places.used() <= path.places() as usize {
            return None;
        }
        // With a greeting, what other peers hold matters only if the rail is full.
        let by_peer = own.operations > path.places() && !places.is_full();
        let (line, waits) = match session.state {
            State::Up => {
                let waits = (session.has_messages() && !self.takes_message(path))
                    || (!session.transfers.is_empty() && self.share(path) == 0);
                (Line::Share, waits)
            }
            State::Over => return None,
            _ if session.is_answer() => (Line::Answer, by_peer && own.answers >= MESSAGES),
            _ => (Line::Greeting, by_peer && !self.has_few_messages(path)),
        };
        waits.then_some(line)
    }
}

impl<G> Core<G> {
    /// Lists a session whose work is not done, on those of its rails that have no place, or that have refused too much,
    /// and with its peer, if that has used up its share.
    pub(super) fn await_places(&mut self, id: SlotId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let is_answer = session.is_answer();
        if !session.has_work() {
            return;
        }
        for index in 0..session.paths.len() {
            if let Some(line) = self.places.held_up(session, &session.paths[index]) {
                self.places.accounts.wait(&mut session.paths[index], line, id);
                if line == Line::Share {
                    self.places.await_share(&session.paths[index]);
                }
            }
            let path = &session.paths[index];
            let (rail, bit) = (path.rail, 1 << path.rail);
            let is_refused = self.stalled.blocked() & bit != 0 && !path.is_stalled;
            // A path with operations looks again when one of its own ends.
            let has_none = path.places() == 0 && self.places.full & bit != 0;
            let found = &self.places.rails[rail];
            let has_no_turn = found.places.is_full() || !found.takes_strangers();
            let is_late = is_answer && path.places() == 0 && has_no_turn;
            if (is_refused || has_none || is_late) && !session.awaits_place(rail) {
                self.places.turn += 1;
                session.paths[index].place_turn = self.places.turn;
                let places = &mut self.places.rails[rail];
                let list = if is_answer { &mut places.answers } else { &mut places.waiting };
                list.insert(self.places.turn, id);
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
        for path in &mut session.paths {
            self.places.accounts.wait_no_more(path);
            let turn = std::mem::take(&mut path.place_turn);
            if turn != 0 {
                let rail = &mut self.places.rails[path.rail];
                rail.answers.remove(&turn);
                rail.waiting.remove(&turn);
            }
        }
    }

    /// Lets up to `count` of the sessions that wait for places on a rail look again, those that wait longest first.
    /// Those that have ended, or that have no work left, do not count: they would use up the turns of those behind
    /// them.
    #[cold]
    pub(super) fn wake_waiting(&mut self, rail: usize, count: u32) {
        let mut left = count;
        while left > 0 {
            let Some((turn, id)) = self.places.rails[rail].next_waiting() else { return };
            let Some(session) = self.sessions.get_mut(id) else { continue };
            if let Some(path) = session.paths.iter_mut().find(|path| path.place_turn == turn) {
                path.place_turn = 0;
            }
            if session.has_work() {
                left -= 1;
                session.woken |= 1 << rail;
                self.wake(id);
            }
        }
    }

    /// Lets up to `count` of the sessions look again that wait for their peer's operations in each line that moves,
    /// those that wait longest first.
    #[cold]
    fn wake_account(&mut self, account: AccountId, count: u32) {
        let own = self.places.accounts.own_of(account);
        self.wake_line(account, Line::Share, count);
        self.wake_line(account, Line::Greeting, count.min(MESSAGES.saturating_sub(own.messages)));
        self.wake_line(account, Line::Answer, count.min(MESSAGES.saturating_sub(own.answers)));
    }

    fn wake_line(&mut self, account: AccountId, line: Line, count: u32) {
        let mut left = count;
        while left > 0 {
            let Some((turn, id)) = self.places.accounts.next(account, line) else { return };
            let Some(session) = self.sessions.get_mut(id) else { continue };
            let Some(path) = session.paths.iter_mut().find(|path| path.turn == turn) else { continue };
            path.was_called();
            let bit = 1 << path.rail;
            if session.has_work() {
                left -= 1;
                session.woken |= bit;
                self.wake(id);
            }
        }
    }

    /// Lets sessions look again that wait for a place of a rail, or for the end of an operation of an account.
    #[cold]
    pub(super) fn wake_after_end(&mut self, rail: usize, account: Option<AccountId>, count: u32) {
        self.wake_waiting(rail, count);
        if let Some(account) = account {
            // Some may wait for more than this end. They keep their turns.
            self.wake_account(account, count.max(MESSAGES));
        }
        // This ends: an account is listed again only while it has no share.
        while let Some(account) = self.places.next_with_share(rail) {
            self.wake_account(account, 1);
        }
    }

    /// As [`Core::pass_on`], for a session that may still exist.
    #[cold]
    pub(super) fn was_woken(&mut self, id: SlotId, woken: u64) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.woken = 0;
            for path in session.paths.iter_mut().filter(|path| path.turn == 0) {
                path.rank = 0;
            }
        }
        self.pass_on(id, woken);
    }

    /// A session that was woken for places on these rails has done what it can: where a place is still free, the next
    /// one that waits looks. This ends, because a session is listed again only on a rail that is full or has refused
    /// too much, and with its peer only if that has no share left: then it passes nothing on there.
    #[cold]
    pub(super) fn pass_on(&mut self, id: SlotId, woken: u64) {
        let paths = self.sessions.get(id).map_or(0, |session| session.paths.len());
        for index in 0..paths {
            let path = self.sessions.get(id).and_then(|session| session.paths.get(index));
            let free = path.filter(|path| woken >> path.rail & 1 == 1 && path.turn == 0);
            if let Some(account) = free.and_then(|path| path.account) {
                self.wake_account(account, 1);
            }
        }
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
    use crate::wire::{Message, Metadata, RailInfo};

    const NOW: Duration = Duration::from_secs(1);

    fn spec(size: u32) -> RailSpec {
        let info = RailInfo { provider: "none".into(), format: 0, address: vec![0] };
        RailSpec { info, bandwidth: None, wide_data: true, severs: false, operations: size }
    }

    fn places(size: u32) -> RailPlaces {
        RailPlaces::new(&[spec(size)])
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

    fn rails(address: u8) -> Vec<RailInfo> {
        vec![RailInfo { provider: "none".into(), format: 0, address: vec![address] }]
    }

    /// A greeting arrives.
    fn greet(core: &mut Core<()>, rail: &mut Rail, name: &str, tag: u64) {
        greet_from(core, rail, name, 1, tag);
    }

    /// A greeting arrives from this address.
    fn greet_from(core: &mut Core<()>, rail: &mut Rail, name: &str, address: u8, tag: u64) {
        let (to, rails) = (core.metadata(Vec::new()).incarnation, rails(address));
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

    /// The answer to a peer that the program had loaded waited behind those to strangers that read nothing.
    #[test]
    fn a_loaded_peer_is_answered_before_strangers() {
        let (mut core, mut rail) = agent();
        for (name, address, incarnation) in [("bob", 2, 7), ("carol", 3, 7), ("dave", 5, 6)] {
            let metadata =
                Metadata { name: name.into(), incarnation, rails: rails(address), regions: Vec::new() };
            core.load(&metadata).unwrap();
        }
        // A stranger takes a loaded peer's name and place.
        greet_from(&mut core, &mut rail, "dave", 6, 4 << 40);
        let tag = rail.0[0].1;
        core.message(&Message { to: tag, body: Body::Confirm }.encode(), NOW);
        assert!(core.is_up(core.find("dave").unwrap()));
        while core.perform(NOW, &mut rail) || !rail.0.is_empty() {
            rail.0.drain(..).for_each(|(op, _)| core.ended(op, Ok(()), NOW));
        }
        for nth in 0..10 {
            greet(&mut core, &mut rail, &format!("stranger-{nth}"), nth << 32 | 2);
        }
        assert_eq!(rail.0.len(), 1, "the answers' quarter is taken");
        greet_from(&mut core, &mut rail, "bob", 2, 1 << 40);
        assert_eq!(rail.0.len(), 2, "the loaded peer is answered");
        // Whoever takes its name is a stranger, unless the answer goes to the peer itself.
        greet_from(&mut core, &mut rail, "carol", 4, 2 << 40);
        assert_eq!(rail.0.len(), 2);
        greet_from(&mut core, &mut rail, "carol", 3, 3 << 40);
        assert_eq!(rail.0.len(), 3);
        // So is whoever has taken it before.
        greet_from(&mut core, &mut rail, "dave", 6, 5 << 40);
        assert_eq!(rail.0.len(), 3);
        greet_from(&mut core, &mut rail, "dave", 5, 6 << 40);
        assert_eq!(rail.0.len(), 4);
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

    #[test]
    fn strangers_have_a_quarter_together() {
        let mut places = places(1024);
        let path = Path::new(0, 0, None);
        let mut strangers = 0;
        while places.takes_greeting(&path, true) {
            places.begin(&path, Kind::Answer, 1, false);
            strangers += 1;
        }
        assert_eq!(strangers, 256);
        assert!(places.takes_greeting(&path, false) && places.takes_message(&path));
    }
}
