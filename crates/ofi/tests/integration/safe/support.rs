//! Pairs of nodes, and waiting for both.

use std::time::{Duration, Instant};

use ofi::threading::Level;
use ofi::{Completion, FiAddr, Hints, Node, Op};

/// Longer than any step takes: only a failure waits this long.
pub const LONG: Duration = Duration::from_secs(20);

/// Hints without capabilities, so that all of `shm` are granted.
pub fn hints() -> Hints {
    Hints::new().provider("shm")
}

/// Two nodes that know each other.
pub struct Pair {
    pub a: Node,
    pub b: Node,
    pub to_a: FiAddr,
    pub to_b: FiAddr,
}

pub fn pair() -> Pair {
    pair_with(&hints())
}

pub fn pair_with(hints: &Hints) -> Pair {
    let (a, b) = (Node::open(hints).unwrap(), Node::open(hints).unwrap());
    let to_b = a.insert(&b.name().unwrap()).unwrap();
    let to_a = b.insert(&a.name().unwrap()).unwrap();
    Pair { a, b, to_a, to_b }
}

impl Pair {
    /// The next completion of each: of `a`, then of `b`.
    pub fn both(&self) -> (Completion, Completion) {
        both(&self.a, &self.b)
    }

    /// The next completion of `a`, while `b` makes progress too.
    pub fn of_a(&self) -> Completion {
        next(&self.a, &self.b)
    }

    /// The next completion of `b`, while `a` makes progress too.
    pub fn of_b(&self) -> Completion {
        next(&self.b, &self.a)
    }
}

/// The next completion of each, in any order.
pub fn both<L: Level>(first: &Node<L>, second: &Node<L>) -> (Completion, Completion) {
    let (mut a, mut b) = (None, None);
    let until = Instant::now() + LONG;
    while a.is_none() || b.is_none() {
        for (node, found) in [(first, &mut a), (second, &mut b)] {
            match found {
                None => *found = node.poll().unwrap(),
                Some(_) => assert_eq!(node.poll_many(&mut Vec::new(), 0).unwrap(), 0), // only drives progress
            }
        }
        assert!(Instant::now() < until, "first: {a:?}, second: {b:?}");
    }
    (a.unwrap(), b.unwrap())
}

/// The next completion of `node`, while `other`, which must have none, makes progress too.
pub fn next<L: Level, M: Level>(node: &Node<L>, other: &Node<M>) -> Completion {
    let until = Instant::now() + LONG;
    loop {
        if let Some(completion) = node.poll().unwrap() {
            return completion;
        }
        assert!(other.poll().unwrap().is_none(), "only one side completes");
        assert!(Instant::now() < until, "no completion");
    }
}

/// Drives both until `done`.
pub fn until(pair: &Pair, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !done() {
        assert!(pair.a.poll().unwrap().is_none() && pair.b.poll().unwrap().is_none());
        assert!(Instant::now() < until, "timed out");
    }
}

/// Checks that a completion belongs to `op` and succeeded.
pub fn well(completion: Completion, op: Op) -> Completion {
    assert_eq!(completion.op, Some(op));
    completion.into_result().unwrap()
}

/// Bytes that differ at every position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}
