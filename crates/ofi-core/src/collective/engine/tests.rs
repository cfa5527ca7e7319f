//! Engines that exchange notes in memory: over a wire that is often full, with ranks in any order, and against a peer
//! that sends anything.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use ofi_api::{AtomicKind, CollectiveKind, Datatype, Error, FiOp, Piece, Result};
use proptest::prelude::*;

use super::super::note::{ControlKind, Note};
use super::super::schedule::{Shape, plan};
use super::{CREDITS, Collectives, Report, SELF, Wire};
use crate::atomic::Executor;
use crate::copy;
use crate::transport::{CompletionInfo, CounterTarget, OutNote, PeerId};
use ofi_api::{CompletionFlags, Context, Errno};

/// What one rank has sent: to whom, words, payload.
type Queue = VecDeque<(usize, [u64; 4], Vec<u8>)>;

/// A wire that is full now and then.
struct Full<'a> {
    sent: &'a RefCell<Queue>,
    state: &'a RefCell<u64>,
}

fn next(state: &RefCell<u64>) -> u64 {
    let mut state = state.borrow_mut();
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

impl Wire for Full<'_> {
    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        if next(self.state).is_multiple_of(3) {
            return Err(Error::AGAIN);
        }
        let mut payload = vec![0; out.len];
        // SAFETY: the pieces are memory of the test, and the vector has room.
        unsafe { copy::gather(out.pieces, out.skip, payload.as_mut_ptr(), out.len) };
        self.sent.borrow_mut().push_back((out.peer as usize, out.words, payload));
        Ok(())
    }

    fn await_note(&mut self, _peer: PeerId) {}
}

fn report(context: usize) -> Report {
    let flags = CompletionFlags::COLLECTIVE;
    let route = CounterTarget::ENDPOINT;
    Report::Completion(CompletionInfo {
        context: Context(context),
        flags,
        signal: true,
        len: 0,
        route,
        at: 0,
    })
}

/// The members of a group as rank `me` sees them: peers have the numbers of their ranks.
fn members(ranks: usize, me: usize) -> Vec<PeerId> {
    (0..ranks).map(|rank| if rank == me { SELF } else { rank as PeerId }).collect()
}

/// Runs all-reduces of `counts` elements on `ranks` ranks; checks the sums.
fn run(ranks: usize, counts: &[usize], small: usize, seed: u64) {
    let state = RefCell::new(seed);
    let wires: Vec<RefCell<Queue>> = (0..ranks).map(|_| RefCell::default()).collect();
    let mut engines: Vec<Collectives> = (0..ranks).map(|_| Collectives::new(100)).collect();
    let groups: Vec<u64> =
        engines.iter_mut().enumerate().map(|(me, engine)| engine.open(members(ranks, me), 7)).collect();
    assert!(groups.windows(2).all(|pair| pair[0] == pair[1]), "all find the same number");
    let executor = Executor::find(AtomicKind::Base, FiOp::Sum, Datatype::Uint32).unwrap();
    // Memory that is written through raw pointers while the engines run.
    let mut input: Vec<Vec<Vec<u32>>> = Vec::new();
    let mut output: Vec<Vec<Vec<u32>>> = Vec::new();
    for me in 0..ranks {
        let number = |count: &usize| (0..*count as u32).map(|index| index * 31 + me as u32).collect();
        input.push(counts.iter().map(number).collect());
        output.push(counts.iter().map(|&count| vec![0; count]).collect());
    }
    let mut posted = vec![0; ranks];
    let mut ended = vec![0; ranks];
    let mut rounds = 0;
    while ended.iter().any(|&count| count < counts.len()) {
        rounds += 1;
        assert!(rounds < 200_000, "{ranks} ranks hang: {posted:?} posted, {ended:?} ended");
        let me = next(&state) as usize % ranks;
        if posted[me] < counts.len() && next(&state).is_multiple_of(2) {
            let at = posted[me];
            let count = counts[at];
            let kind = CollectiveKind::Allreduce;
            let shape = Shape { kind, ranks, me, root: 0, count, size: 4, small };
            let from = Piece::new(input[me][at].as_mut_ptr().cast(), 4 * count);
            let to = Piece::new(output[me][at].as_mut_ptr().cast(), 4 * count);
            // SAFETY: the vectors live until all has ended, and are not touched before.
            unsafe {
                engines[me].start(groups[me], &Arc::new(plan(&shape)), [from, to], Some(executor), report(at))
            }
            .unwrap();
            posted[me] += 1;
        }
        // A rank takes what one other has sent it, in order.
        for (other, wire) in wires.iter().enumerate() {
            let mut queue = wire.borrow_mut();
            let Some(at) = queue.iter().position(|(to, ..)| *to == me) else { continue };
            if next(&state).is_multiple_of(2) {
                continue;
            }
            let (_, words, payload) = queue.remove(at).unwrap();
            // SAFETY: the payload is the test's.
            unsafe { engines[me].noted(other as PeerId, words, payload.as_ptr(), payload.len()) }.unwrap();
        }
        let mut finished = Vec::new();
        engines[me].advance(&mut Full { sent: &wires[me], state: &state }, &mut finished);
        for (_, result) in finished {
            result.unwrap();
            ended[me] += 1;
        }
    }
    for (at, &count) in counts.iter().enumerate() {
        for index in 0..count as u32 {
            let sum: u32 = (0..ranks as u32).map(|rank| index * 31 + rank).sum();
            for output in &output {
                assert_eq!(output[at][index as usize], sum, "operation {at}, element {index}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn engines_come_to_the_end_over_a_wire_that_is_often_full(
        ranks in 1usize..10,
        counts in prop::collection::vec(prop_oneof![0usize..30, 0usize..300], 1..12),
        is_small in any::<bool>(),
        seed in any::<u64>(),
    ) {
        run(ranks, &counts, if is_small { usize::MAX } else { 0 }, seed);
    }

    /// Whatever a peer sends, the result is an error for it or for the group: no panic, no access out of bounds, no
    /// unbounded memory.
    #[test]
    fn a_peer_may_say_anything(
        said in prop::collection::vec((0u8..8, 0u64..4, 0u32..4, prop_oneof![0u64..200, any::<u64>()], 0usize..140), 0..300),
        counts in prop::collection::vec(0usize..80, 0..4),
        seed in any::<u64>(),
    ) {
        let (wire, state) = (RefCell::default(), RefCell::new(seed));
        let mut engine = Collectives::new(100);
        let group = engine.open(members(3, 0), 7);
        let executor = Executor::find(AtomicKind::Base, FiOp::Sum, Datatype::Uint32).unwrap();
        let mut memory: Vec<[Vec<u32>; 2]> = counts.iter().map(|&count| [vec![1; count], vec![0; count]]).collect();
        for (at, [input, output]) in memory.iter_mut().enumerate() {
            let count = input.len();
            let shape = Shape {
                kind: CollectiveKind::Allreduce, ranks: 3, me: 0, root: 0, count, size: 4, small: at % 2 * 1_000,
            };
            let pieces = [input, output].map(|memory| Piece::new(memory.as_mut_ptr().cast(), 4 * count));
            // SAFETY: the vectors live until the engine is dropped, and are not touched before.
            unsafe { engine.start(group, &Arc::new(plan(&shape)), pieces, Some(executor), report(at)) }.unwrap();
        }
        let payload = [0xABu8; 140];
        for (kind, operation, round, value, len) in said {
            let words = [
                if operation == 3 { value } else { group },
                operation,
                u64::from(kind) << 56 | u64::from(round) << 32,
                value,
            ];
            // SAFETY: the array has `len` bytes.
            let taken = unsafe { engine.noted(1 + (len % 2) as PeerId, words, payload.as_ptr(), len) };
            engine.advance(&mut Full { sent: &wire, state: &state }, &mut Vec::new());
            if taken.is_err() {
                engine.peer_gone(1 + (len % 2) as PeerId, Errno::EIO);
            }
        }
        engine.leave(group);
        while engine.is_active() {
            engine.advance(&mut Full { sent: &wire, state: &state }, &mut Vec::new());
        }
        drop(engine);
    }
}

/// Rank `me` takes what the others have sent it, one note of each at most, and moves its operations. Returns how many
/// have ended.
fn step(engines: &mut [Collectives], me: usize, wires: &[RefCell<Queue>], state: &RefCell<u64>) -> usize {
    for (other, wire) in wires.iter().enumerate() {
        let mut queue = wire.borrow_mut();
        let Some(at) = queue.iter().position(|(to, ..)| *to == me) else { continue };
        let (_, words, payload) = queue.remove(at).unwrap();
        // SAFETY: the payload is the test's.
        unsafe { engines[me].noted(other as PeerId, words, payload.as_ptr(), payload.len()) }.unwrap();
    }
    let mut finished = Vec::new();
    engines[me].advance(&mut Full { sent: &wires[me], state }, &mut finished);
    finished.into_iter().for_each(|(_, result)| result.unwrap());
    engines[me].running.len()
}

/// An operation with the schedule and the memory of the one before keeps its transfers. Nothing else of it is kept.
#[test]
fn operations_with_the_same_memory_follow_each_other() {
    let executors =
        [FiOp::Sum, FiOp::Max].map(|op| Executor::find(AtomicKind::Base, op, Datatype::Uint32).unwrap());
    for (ranks, count, small) in
        [(2, 2, usize::MAX), (3, 2, usize::MAX), (4, 200, 0), (5, 60, 0), (8, 1, usize::MAX)]
    {
        let state = RefCell::new(ranks as u64);
        let wires: Vec<RefCell<Queue>> = (0..ranks).map(|_| RefCell::default()).collect();
        let mut engines: Vec<Collectives> = (0..ranks).map(|_| Collectives::new(100)).collect();
        let group = |(me, engine): (usize, &mut Collectives)| engine.open(members(ranks, me), 7);
        let groups: Vec<u64> = engines.iter_mut().enumerate().map(group).collect();
        let schedule = |me| {
            let kind = CollectiveKind::Allreduce;
            Arc::new(plan(&Shape { kind, ranks, me, root: 0, count, size: 4, small }))
        };
        let schedules: Vec<_> = (0..ranks).map(schedule).collect();
        // Memory that is written through raw pointers while the engines run.
        let mut memory: Vec<[Vec<u32>; 2]> = (0..ranks).map(|_| [vec![0; count], vec![0; count]]).collect();
        for turn in 0..40_u32 {
            let value = |me: usize, index: usize| turn * 7 + me as u32 * 100 + index as u32;
            for (me, [input, output]) in memory.iter_mut().enumerate() {
                input.iter_mut().enumerate().for_each(|(index, to)| *to = value(me, index));
                let pieces = [input, output].map(|memory| Piece::new(memory.as_mut_ptr().cast(), 4 * count));
                let executor = Some(executors[turn as usize % 2]);
                // SAFETY: the vectors live until all has ended, and are not touched before.
                unsafe { engines[me].start(groups[me], &schedules[me], pieces, executor, report(0)) }
                    .unwrap();
            }
            let mut rounds = 0;
            while (0..ranks).map(|me| step(&mut engines, me, &wires, &state)).sum::<usize>() > 0 {
                rounds += 1;
                assert!(rounds < 10_000, "{ranks} ranks hang in operation {turn}");
            }
            for index in 0..count {
                let all = (0..ranks).map(|me| value(me, index));
                let wanted = if turn % 2 == 0 { all.sum() } else { all.max().unwrap() };
                for [_, output] in &memory {
                    assert_eq!(output[index], wanted, "{ranks} ranks, operation {turn}, element {index}");
                }
            }
        }
    }
}

#[test]
fn a_sender_that_ignores_its_credit_is_given_up() {
    let mut engine = Collectives::new(100);
    let note =
        |operation| Note { kind: ControlKind::Eager, group: 5, operation, round: 0, value: 0 }.to_words();
    for operation in 0..u64::from(CREDITS) {
        // SAFETY: no bytes.
        unsafe { engine.noted(1, note(operation), std::ptr::null(), 0) }.unwrap();
    }
    // SAFETY: no bytes.
    assert!(unsafe { engine.noted(1, note(1_000), std::ptr::null(), 0) }.is_err());
}

#[test]
fn notes_are_words_and_back() {
    for kind in 0..=255u64 {
        let words = [1, 2, kind << 56 | 0x12_3456 << 32, 4];
        match Note::from_words(words) {
            Some(note) => assert_eq!((note.to_words(), note.round), (words, 0x12_3456)),
            None => assert!(kind >= 6),
        }
    }
}
