//! The operations under way to each address of each rail, in whatever sessions they began.
//!
//! Whether an operation ends is up to the endpoint at its address alone. So the share of a peer is counted by address
//! ([`ofi_core::budget`]), and not by session: a peer that opens session after session, under one name or
//! under many, and reads nothing in any of them, has one share of a rail. A name proves nothing, but a session is open
//! only once an endpoint at one of its addresses has read its tag. One address is enough: who greets with an address of
//! its own and that of another peer opens the session through its own, and then has a path that draws on the share of
//! that peer. The peer's own work waits in the same list, and each session there has its turn.
//!
//! Invariants:
//! - An account is open while a path leads to its address. A path leads there until its session is forgotten, which is
//!   after the end of its last operation; so an account that is closed has none.
//! - A session that waits here is listed under the number in its path's `turn`. One that was woken, and has sent
//!   nothing since, is listed again under the same number, which is in its path's `rank` until then.

use std::collections::BTreeMap;

use ofi_core::budget::{AccountId, Accounts};
use ofi_core::slots::SlotId;

use super::path::Path;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Access,
    Message,
    /// A message that answers the greeting of a stranger.
    Answer,
    /// The notice that a session has ended. It waits for no other message.
    Farewell,
}

/// What a session waits for. Each line is served by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Line {
    /// A share of the places, for a session that is open.
    Share,
    /// The end of a message, for a greeting.
    Greeting,
    /// The end of an answer to a stranger, for another one.
    Answer,
}

/// Operations to one address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Own {
    /// All of them, including abandoned ones.
    pub(super) operations: u32,
    /// The messages among them, without farewells.
    pub(super) messages: u32,
    /// The answers to strangers among those.
    pub(super) answers: u32,
    /// The farewells.
    pub(super) farewells: u32,
}

#[derive(Default)]
struct RailAccount {
    own: Own,
    /// The free places of the rail with which the account has a share again, if it is listed for that. 0: it is not.
    needed: u32,
    /// Sessions that wait until an operation of the account ends, line by line, those that wait longest first.
    waiting: BTreeMap<u64, SlotId>,
}

/// A rail and an address, as words of 32 bits: there is one for each account, and a u64 would pad it to 16 bytes.
type Place = [u32; 3];

/// The bits of a session's number that are not its line.
const TURN_BITS: u32 = 62;

const fn place(rail: u32, addr: u64) -> Place {
    [rail, (addr >> 32) as u32, addr as u32]
}

/// The accounts of all rails.
#[derive(Default)]
pub(super) struct RailAccounts {
    table: Accounts<Place, RailAccount>,
    /// The last number of a listed session.
    turn: u64,
}

impl RailAccounts {
    /// Opens the account of a path whose address was inserted, or joins it.
    pub(super) fn join(&mut self, path: &mut Path, addr: u64) {
        path.account = Some(self.table.join(place(path.rail as u32, addr)));
    }

    /// The session of a path, none of whose operations is under way, is forgotten. Returns what the account is listed
    /// for, if it closes.
    pub(super) fn leave(&mut self, path: &Path) -> Option<(u32, AccountId)> {
        let id = path.account?;
        let closed = self.table.leave(id)?;
        debug_assert_eq!(closed.own, Own::default(), "operations to an address that no path leads to");
        Some((closed.needed, id))
    }

    /// The operations under way to the address of a path.
    #[inline]
    pub(super) fn own(&self, path: &Path) -> Own {
        path.account.map_or(Own::default(), |id| self.table.get(id).own)
    }

    /// Records that `count` operations have begun on a path.
    #[inline]
    pub(super) fn begin(&mut self, path: &Path, kind: Kind, count: u32) {
        let Some(id) = path.account else { return };
        let own = &mut self.table.get_mut(id).own;
        own.operations += count;
        own.messages += if matches!(kind, Kind::Message | Kind::Answer) { count } else { 0 };
        own.answers += if kind == Kind::Answer { count } else { 0 };
        own.farewells += if kind == Kind::Farewell { count } else { 0 };
    }

    /// Records that `count` operations of a path have ended. Returns whether sessions wait for that.
    #[inline]
    pub(super) fn end(&mut self, path: &Path, kind: Kind, count: u32) -> bool {
        let Some(id) = path.account else { return false };
        let account = self.table.get_mut(id);
        account.own.operations -= count;
        account.own.messages -= if matches!(kind, Kind::Message | Kind::Answer) { count } else { 0 };
        account.own.answers -= if kind == Kind::Answer { count } else { 0 };
        account.own.farewells -= if kind == Kind::Farewell { count } else { 0 };
        !account.waiting.is_empty()
    }

    /// Lists a session that waits for the end of an operation to the address of one of its paths.
    pub(super) fn wait(&mut self, path: &mut Path, line: Line, session: SlotId) {
        if let (Some(id), 0) = (path.account, path.turn) {
            path.turn = std::mem::take(&mut path.rank);
            if path.turn == 0 {
                self.turn += 1;
                path.turn = (line as u64) << TURN_BITS | self.turn;
            }
            self.table.get_mut(id).waiting.insert(path.turn, session);
        }
    }

    /// Records the free places of the rail with which an account has a share again. Returns those recorded before.
    pub(super) fn need(&mut self, account: AccountId, places: u32) -> u32 {
        std::mem::replace(&mut self.table.get_mut(account).needed, places)
    }

    /// Takes a path's session out of the list.
    pub(super) fn wait_no_more(&mut self, path: &mut Path) {
        let turn = std::mem::take(&mut path.turn);
        path.rank = 0;
        if let Some(id) = path.account.filter(|_| turn != 0) {
            self.table.get_mut(id).waiting.remove(&turn);
        }
    }

    /// Takes the session that waits longest in a line of an account out of it, with the number under which it is
    /// listed.
    pub(super) fn next(&mut self, account: AccountId, line: Line) -> Option<(u64, SlotId)> {
        let waiting = &mut self.table.get_mut(account).waiting;
        let first = (line as u64) << TURN_BITS;
        let (&turn, _) = waiting.range(first..first + (1 << TURN_BITS)).next()?;
        Some((turn, waiting.remove(&turn)?))
    }

    /// The operations under way of an account.
    pub(super) fn own_of(&self, account: AccountId) -> Own {
        self.table.get(account).own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(accounts: &mut RailAccounts, rail: usize, addr: u64) -> Path {
        let mut path = Path::new(rail, 0, None);
        accounts.join(&mut path, addr);
        path
    }

    #[test]
    fn paths_to_one_address_of_a_rail_have_one_account() {
        let mut accounts = RailAccounts::default();
        let [one, two] = [(0, 7), (0, 7)].map(|(rail, addr)| path(&mut accounts, rail, addr));
        let [other_rail, other] = [(1, 7), (0, 8)].map(|(rail, addr)| path(&mut accounts, rail, addr));
        accounts.begin(&one, Kind::Access, 5);
        accounts.begin(&two, Kind::Answer, 1);
        let both = Own { operations: 6, messages: 1, answers: 1, farewells: 0 };
        assert_eq!((accounts.own(&one), accounts.own(&two)), (both, both));
        assert_eq!((accounts.own(&other_rail), accounts.own(&other)), (Own::default(), Own::default()));
        accounts.end(&one, Kind::Access, 5);
        accounts.leave(&one);
        assert_eq!(accounts.own(&two), Own { operations: 1, messages: 1, answers: 1, farewells: 0 });
        accounts.end(&two, Kind::Answer, 1);
        accounts.leave(&two);
        // The address is inserted again, and no operation is under way to it.
        let again = path(&mut accounts, 0, 7);
        assert_eq!((accounts.own(&again), accounts.table.len()), (Own::default(), 3));
    }

    #[test]
    fn sessions_wait_in_order_and_once() {
        let mut accounts = RailAccounts::default();
        let mut paths: Vec<Path> = (0..3).map(|_| path(&mut accounts, 0, 7)).collect();
        let ids = [1, 2, 3].map(SlotId::from_wire);
        for _ in 0..2 {
            for (path, id) in paths.iter_mut().zip(ids) {
                accounts.wait(path, Line::Share, id);
            }
        }
        accounts.wait_no_more(&mut paths[1]);
        accounts.begin(&paths[0], Kind::Message, 2);
        assert!(accounts.end(&paths[0], Kind::Message, 1));
        let account = paths[0].account.unwrap();
        let next: Vec<_> = std::iter::from_fn(|| accounts.next(account, Line::Share)).collect();
        assert_eq!(next, [(paths[0].turn, ids[0]), (paths[2].turn, ids[2])]);
        assert!(!accounts.end(&paths[0], Kind::Message, 1), "nobody waits");
    }

    #[test]
    fn a_session_that_was_not_served_keeps_its_turn() {
        let mut accounts = RailAccounts::default();
        let mut paths: Vec<Path> = (0..3).map(|_| path(&mut accounts, 0, 7)).collect();
        let ids = [1, 2, 3].map(SlotId::from_wire);
        for (path, id) in paths.iter_mut().zip(ids) {
            accounts.wait(path, Line::Share, id);
        }
        let account = paths[0].account.unwrap();
        for path in &mut paths[..2] {
            let (turn, _) = accounts.next(account, Line::Share).unwrap();
            assert_eq!(turn, path.turn);
            path.was_called();
        }
        paths[0].sent(std::time::Duration::ZERO);
        for (path, id) in paths.iter_mut().zip(ids) {
            accounts.wait(path, Line::Share, id);
        }
        let next: Vec<_> =
            std::iter::from_fn(|| accounts.next(account, Line::Share)).map(|next| next.1).collect();
        assert_eq!(next, [ids[1], ids[2], ids[0]], "the one that was served is last");
    }
}
