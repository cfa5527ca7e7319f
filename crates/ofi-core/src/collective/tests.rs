//! Simulates all ranks of a group in memory, against a naive model.

use std::collections::HashMap;

use ofi_api::CollectiveKind as ControlKind;
use proptest::prelude::*;

use super::schedule::{Local, MemoryRange, RankMemory, Schedule, Shape, plan};

/// One rank's memory.
struct Rank {
    schedule: Schedule,
    memory: [Vec<u8>; 3],
    round: usize,
    has_sent: bool,
}

const ELEMENT: usize = 2;

fn add(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.chunks_mut(ELEMENT).zip(from.chunks(ELEMENT)) {
        let sum = u16::from_le_bytes([to[0], to[1]]).wrapping_add(u16::from_le_bytes([from[0], from[1]]));
        to.copy_from_slice(&sum.to_le_bytes());
    }
}

impl Rank {
    fn part(&mut self, part: &MemoryRange) -> &mut [u8] {
        let memory = &mut self.memory[part.place as usize];
        &mut memory[part.at..part.at + part.len]
    }

    fn local(&mut self, local: &Local) {
        assert_eq!(local.from.len, local.to.len);
        let from = self.part(&local.from).to_vec();
        let to = self.part(&local.to);
        if local.combine { add(to, &from) } else { to.copy_from_slice(&from) }
    }
}

/// Simulates a collective. Returns `buf` and `result` of each rank, and the largest number of rounds.
fn play(shape: Shape, inputs: &[Vec<u8>]) -> (Vec<[Vec<u8>; 2]>, usize) {
    let mut ranks: Vec<Rank> = (0..shape.ranks)
        .map(|me| {
            let shape = Shape { me, ..shape };
            let schedule = plan(&shape);
            let [input, result] = shape.lengths();
            assert_eq!(inputs[me].len(), input);
            let memory = [inputs[me].clone(), vec![0xEE; result], vec![0xDD; schedule.scratch]];
            Rank { schedule, memory, round: 0, has_sent: false }
        })
        .collect();
    for rank in &mut ranks {
        for local in std::mem::take(&mut rank.schedule.first) {
            rank.local(&local);
        }
    }
    let mut mail: HashMap<(usize, usize, usize), Vec<u8>> = HashMap::new();
    loop {
        let mut moved = false;
        for me in 0..shape.ranks {
            let rank = &mut ranks[me];
            let Some(round) = rank.schedule.rounds.get(rank.round).cloned() else { continue };
            if !rank.has_sent {
                for send in &round.sends {
                    assert_ne!(send.rank, me);
                    let bytes: Vec<u8> =
                        send.parts.iter().flat_map(|part| rank.part(part).to_vec()).collect();
                    assert_eq!(bytes.len(), send.bytes());
                    let twice = mail.insert((me, send.rank, rank.round), bytes);
                    assert!(twice.is_none(), "two transfers between one pair in one round");
                }
                rank.has_sent = true;
                moved = true;
            }
            if !round.receives.iter().all(|from| mail.contains_key(&(from.rank, me, rank.round))) {
                continue;
            }
            for receive in &round.receives {
                let bytes = mail.remove(&(receive.rank, me, rank.round)).unwrap();
                assert_eq!(bytes.len(), receive.bytes(), "both ends mean the same");
                let mut done = 0;
                for part in &receive.parts {
                    let (from, to) = (&bytes[done..done + part.len], rank.part(part));
                    if receive.combine {
                        add(to, from)
                    } else {
                        to.copy_from_slice(from)
                    }
                    done += part.len;
                }
            }
            for local in &round.then {
                rank.local(local);
            }
            (rank.round, rank.has_sent) = (rank.round + 1, false);
            moved = true;
        }
        if !moved {
            break;
        }
    }
    assert!(mail.is_empty(), "messages that nobody received");
    for rank in &ranks {
        assert_eq!(rank.round, rank.schedule.rounds.len(), "a rank that waits for ever");
    }
    let rounds = ranks.iter().map(|rank| rank.schedule.rounds.len()).max().unwrap();
    let memory = ranks.into_iter().map(|rank| {
        let [input, result, _] = rank.memory;
        [input, result]
    });
    (memory.collect(), rounds)
}

/// The expected `buf` and `result` of each rank, directly from the definition.
fn model(shape: Shape, inputs: &[Vec<u8>]) -> Vec<[Vec<u8>; 2]> {
    let block = shape.count * shape.size;
    let mut sum = inputs[0].clone();
    if matches!(shape.kind, ControlKind::Allreduce | ControlKind::Reduce | ControlKind::ReduceScatter) {
        inputs[1..].iter().for_each(|input| add(&mut sum, input));
    }
    let slice = |bytes: &[u8], index: usize| bytes[index * block..(index + 1) * block].to_vec();
    (0..shape.ranks)
        .map(|me| {
            let root = me == shape.root;
            let result = match shape.kind {
                ControlKind::Barrier | ControlKind::Broadcast => vec![],
                ControlKind::Alltoall => inputs.iter().flat_map(|input| slice(input, me)).collect(),
                ControlKind::Allreduce => sum.clone(),
                ControlKind::Allgather => inputs.concat(),
                ControlKind::ReduceScatter => slice(&sum, me),
                ControlKind::Reduce if root => sum.clone(),
                ControlKind::Scatter => slice(&inputs[shape.root], me),
                ControlKind::Gather if root => inputs.concat(),
                ControlKind::Reduce | ControlKind::Gather => vec![],
            };
            let input = if shape.kind == ControlKind::Broadcast { &inputs[shape.root] } else { &inputs[me] };
            [input.clone(), result]
        })
        .collect()
}

fn check(shape: Shape, seed: u64) -> usize {
    let mut state = seed | 1;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let inputs: Vec<Vec<u8>> = (0..shape.ranks)
        .map(|me| (0..Shape { me, ..shape }.lengths()[0]).map(|_| byte()).collect())
        .collect();
    let (found, rounds) = play(shape, &inputs);
    assert_eq!(found, model(shape, &inputs), "{shape:?}");
    rounds
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_collective_does_what_its_definition_says(
        kind in prop::sample::select(ControlKind::VALUES),
        ranks in 1usize..10,
        root in any::<prop::sample::Index>(),
        count in prop_oneof![0usize..4, 0usize..40],
        is_small in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let small = if is_small { usize::MAX } else { 0 };
        check(Shape { kind, ranks, me: 0, root: root.index(ranks), count, size: ELEMENT, small }, seed);
    }
}

#[test]
fn small_data_takes_logarithmically_many_rounds() {
    for &kind in ControlKind::VALUES {
        for ranks in [1usize, 2, 3, 8, 9, 64, 100] {
            let shape =
                Shape { kind, ranks, me: 0, root: ranks / 2, count: 1, size: ELEMENT, small: usize::MAX };
            let rounds = check(shape, ranks as u64);
            let logarithm = ranks.next_power_of_two().ilog2() as usize;
            // All-reduce beyond a power of two: two rounds more, for one fewer within.
            assert!(rounds <= logarithm + 1, "{kind} on {ranks}: {rounds} rounds");
        }
    }
}

#[test]
fn large_data_is_sent_little_more_than_once() {
    let ranks = 8;
    for kind in [ControlKind::Broadcast, ControlKind::Allreduce, ControlKind::Reduce] {
        for me in 0..ranks {
            let shape = Shape { kind, ranks, me, root: 0, count: 8_000, size: ELEMENT, small: 0 };
            let sent: usize = plan(&shape)
                .rounds
                .iter()
                .flat_map(|round| &round.sends)
                .map(super::schedule::Transfer::bytes)
                .sum();
            assert!(sent <= 2 * 8_000 * ELEMENT, "{kind} at {me}: {sent} bytes");
        }
    }
    assert_eq!(RankMemory::Scratch as usize, 2);
}
