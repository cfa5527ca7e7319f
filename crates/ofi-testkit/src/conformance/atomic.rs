//! Atomic operations (fi_atomic(3)): every operation and type, on both kinds of memory, and every refusal. A model in
//! `ofi-core/atomic` checks the result of each operation; here both ways of executing it must agree, and one type is
//! checked in full.

use std::sync::Arc;

use crate::prelude::*;

const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
const CAPS: Caps = Caps::MSG.union(Caps::RMA).union(Caps::ATOMIC);

/// Two endpoints with atomics; `None` if the provider has none.
fn pair(kit: &dyn Kit) -> Option<Pair> {
    kit.getinfo(&kit.usual().caps(CAPS)).ok()?;
    Some(kit.pair_with(|opening| opening.hints(|hints| hints.caps(CAPS))))
}

fn target(pair: &Pair, len: usize, library: bool) -> (Memory, Arc<dyn MemoryRegion>) {
    let memory = if library { Memory::library(&pair.b.domain, len) } else { Memory::new(len) };
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    (memory, region)
}

fn memory_of(bytes: &[u8]) -> Memory {
    let memory = Memory::new(bytes.len());
    memory.slice(..).put(bytes);
    memory
}

fn word(value: u64) -> Memory {
    memory_of(&value.to_ne_bytes())
}

fn value_of(memory: &Memory) -> u64 {
    u64::from_ne_bytes(memory.bytes()[..8].try_into().unwrap())
}

/// All types that support arithmetic.
fn types() -> impl Iterator<Item = Datatype> {
    Datatype::VALUES.iter().copied().filter(|&datatype| datatype != Datatype::Void)
}

pub fn every_operation_gives_the_same_in_any_memory(kit: &dyn Kit) {
    let Some(pair) = pair(kit) else { return };
    let mut combinations = 0;
    let (application, first) = target(&pair, 96, false);
    let (library, second) = target(&pair, 96, true);
    for datatype in types() {
        // 1, 2, 3 … in each byte would be NaN in small formats. These bytes are ordinary numbers in every format.
        let len = 2 * datatype.size();
        let bytes =
            |seed: u8| -> Vec<u8> { (0..len).map(|at| (at as u8 * 3 + seed) & 0x3F | 0x10).collect() };
        let (old, operand, compare) = (bytes(1), memory_of(&bytes(6)), memory_of(&bytes(1)));
        for &op in FiOp::VALUES {
            for kind in AtomicKind::ALL {
                if pair.a.ep.atomic_valid(kind, op, datatype).is_err() {
                    continue;
                }
                combinations += 1;
                let mut answers = Vec::new();
                for (memory, region) in [(&application, &first), (&library, &second)] {
                    memory.slice(..).put(&[0xAA; 96]);
                    memory.slice(32..).put(&old);
                    let there = [remote_at(region, 32, len)];
                    let result = memory_of(&vec![0xEE; len]);
                    let out = pair.a.out(pair.to_b, &operand).context(1);
                    pair.post(|| match kind {
                        AtomicKind::Base => out.atomic(op, datatype, &there),
                        AtomicKind::Fetch => out.fetch(op, datatype, &result, &there),
                        AtomicKind::Compare => out.compare(op, datatype, &compare, &result, &there),
                    });
                    let entry = pair.done(&pair.a);
                    let direction = match kind {
                        AtomicKind::Base => CompletionFlags::WRITE,
                        _ => CompletionFlags::READ,
                    };
                    assert_eq!(entry.flags, CompletionFlags::ATOMIC | direction);
                    assert_eq!(entry.op_context, Context(1));
                    if kind != AtomicKind::Base {
                        assert_eq!(result.bytes(), old, "{op} on {datatype} fetches what was there");
                    }
                    let now = memory.bytes();
                    let around = now[..32].iter().chain(&now[32 + len..]);
                    assert!(around.copied().all(|byte| byte == 0xAA), "{op} on {datatype}: around");
                    answers.push(now[32..32 + len].to_vec());
                }
                // The contents of a long double's padding are unspecified.
                let meaning = |bytes: &Vec<u8>| -> Vec<u8> {
                    let long = matches!(datatype, Datatype::LongDouble | Datatype::LongDoubleComplex);
                    let meant = |&(at, _): &(usize, &u8)| !long || at % 16 < 10;
                    bytes.iter().enumerate().filter(meant).map(|(_, &byte)| byte).collect()
                };
                assert_eq!(meaning(&answers[0]), meaning(&answers[1]), "{kind:?} {op} on {datatype}");
            }
        }
    }
    assert!(combinations > 300, "only {combinations} combinations");
    assert_eq!((pair.a.pending(), pair.b.pending()), (0, 0), "targets are not told");
}

pub fn operations_on_unsigned_words_calculate_as_the_man_page_says(kit: &dyn Kit) {
    let Some(pair) = pair(kit) else { return };
    for library in [false, true] {
        let (memory, region) = target(&pair, 8, library);
        let there = [remote(&region)];
        for (op, target, operand, compare, expected) in [
            (FiOp::Min, 7, 5, 0, 5),
            (FiOp::Min, 5, 7, 0, 5),
            (FiOp::Max, 5, u64::MAX, 0, u64::MAX),
            (FiOp::Sum, u64::MAX, 3, 0, 2),
            (FiOp::Diff, 2, 3, 0, u64::MAX),
            (FiOp::Prod, 1 << 63 | 3, 5, 0, 1 << 63 | 15),
            (FiOp::Lor, 0, 8, 0, 1),
            (FiOp::Lor, 0, 0, 0, 0),
            (FiOp::Land, 4, 8, 0, 1),
            (FiOp::Land, 4, 0, 0, 0),
            (FiOp::Lxor, 4, 8, 0, 0),
            (FiOp::Lxor, 0, 8, 0, 1),
            (FiOp::Bor, 4, 9, 0, 13),
            (FiOp::Band, 12, 9, 0, 8),
            (FiOp::Bxor, 12, 9, 0, 5),
            (FiOp::AtomicRead, 12, 9, 0, 12),
            (FiOp::AtomicWrite, 12, 9, 0, 9),
            (FiOp::Cswap, 12, 9, 12, 9),
            (FiOp::Cswap, 12, 9, 11, 12),
            (FiOp::CswapNe, 12, 9, 12, 12),
            (FiOp::CswapNe, 12, 9, 11, 9),
            (FiOp::CswapLe, 12, 9, 12, 9),
            (FiOp::CswapLe, 12, 9, 13, 12),
            (FiOp::CswapLt, 12, 9, 12, 12),
            (FiOp::CswapLt, 12, 9, 11, 9),
            (FiOp::CswapGe, 12, 9, 12, 9),
            (FiOp::CswapGe, 12, 9, 11, 12),
            (FiOp::CswapGt, 12, 9, 12, 12),
            (FiOp::CswapGt, 12, 9, 13, 9),
            (FiOp::Mswap, 0b1100, 0b0011, 0b0110, 0b1010),
        ] {
            memory.slice(..).put(&u64::to_ne_bytes(target));
            let (operand, compare, result) = (word(operand), word(compare), word(0));
            let out = pair.a.out(pair.to_b, &operand);
            let compares = pair.a.ep.atomic_valid(AtomicKind::Compare, op, Datatype::Uint64).is_ok();
            pair.post(|| match compares {
                true => out.compare(op, Datatype::Uint64, &compare, &result, &there),
                false => out.fetch(op, Datatype::Uint64, &result, &there),
            });
            pair.done(&pair.a);
            assert_eq!((value_of(&memory), value_of(&result)), (expected, target), "{op}");
        }
    }
}

pub fn the_count_limit_is_told_and_kept(kit: &dyn Kit) {
    let Some(pair) = pair(kit) else { return };
    for datatype in [Datatype::Uint8, Datatype::Uint32, Datatype::Double, Datatype::LongDoubleComplex] {
        for kind in [AtomicKind::Base, AtomicKind::Fetch, AtomicKind::Compare] {
            let op = if kind == AtomicKind::Compare { FiOp::Cswap } else { FiOp::AtomicWrite };
            let count = pair.a.ep.atomic_valid(kind, op, datatype).unwrap();
            let attr = pair.a.domain.query_atomic(kind, op, datatype).unwrap();
            assert_eq!((attr.count, attr.size), (count, datatype.size()));
            assert!(count > 0);
            for library in [false, true] {
                for (count, fits) in [(count, true), (count + 1, false)] {
                    let len = count * datatype.size();
                    let (memory, region) = target(&pair, len, library);
                    // The existing zeroes equal the zeroes of the comparand.
                    let (operand, compare, result) =
                        (Memory::new(len), Memory::new(len), memory_of(&vec![9; len]));
                    operand.slice(..).put(&vec![1; len]);
                    let out = pair.a.out(pair.to_b, &operand);
                    let there = [remote(&region)];
                    let post = || match kind {
                        AtomicKind::Base => out.atomic(op, datatype, &there),
                        AtomicKind::Fetch => out.fetch(op, datatype, &result, &there),
                        AtomicKind::Compare => out.compare(op, datatype, &compare, &result, &there),
                    };
                    if fits {
                        pair.post(post);
                        pair.done(&pair.a);
                        assert_eq!(memory.bytes(), operand.bytes());
                        let old = if kind == AtomicKind::Base { 9 } else { 0 };
                        assert!(result.bytes().iter().all(|&byte| byte == old));
                    } else {
                        assert_eq!(post().unwrap_err().errno(), Errno::EMSGSIZE);
                        assert!(memory.bytes().iter().all(|&byte| byte == 0));
                    }
                }
            }
        }
    }
}

pub fn what_has_no_meaning_is_refused_with_the_reason(kit: &dyn Kit) {
    let Some(pair) = pair(kit) else { return };
    let (_memory, region) = target(&pair, 64, false);
    let there = [remote_at(&region, 0, 16)];
    let operand = Memory::new(16);
    let out = pair.a.out(pair.to_b, &operand);
    for (kind, op, datatype) in [
        (AtomicKind::Base, FiOp::AtomicRead, Datatype::Int32),
        (AtomicKind::Base, FiOp::Cswap, Datatype::Int32),
        (AtomicKind::Fetch, FiOp::Mswap, Datatype::Int32),
        (AtomicKind::Compare, FiOp::Sum, Datatype::Int32),
        (AtomicKind::Base, FiOp::Bor, Datatype::Float),
        (AtomicKind::Base, FiOp::Min, Datatype::DoubleComplex),
        (AtomicKind::Base, FiOp::Noop, Datatype::Int32),
        (AtomicKind::Base, FiOp::Sum, Datatype::Void),
    ] {
        for error in [
            pair.a.ep.atomic_valid(kind, op, datatype).unwrap_err(),
            pair.a.domain.query_atomic(kind, op, datatype).unwrap_err(),
            match kind {
                AtomicKind::Base => out.atomic(op, datatype, &there),
                AtomicKind::Fetch => out.fetch(op, datatype, &operand, &there),
                AtomicKind::Compare => out.compare(op, datatype, &operand, &operand, &there),
            }
            .unwrap_err(),
        ] {
            assert_eq!(error.errno(), Errno::EOPNOTSUPP, "{error}");
            assert!(error.to_string().contains(op.c_name()), "{error}");
        }
    }
    // Lengths that do not match each other, or the type.
    let short = Memory::new(8);
    let uint = Datatype::Uint64;
    let sum = FiOp::Sum;
    for error in [
        pair.a.out(pair.to_b, &short).atomic(sum, uint, &there),
        out.fetch(sum, uint, &short, &there),
        out.compare(FiOp::Cswap, uint, &short, &operand, &there),
        out.compare(FiOp::Cswap, uint, &operand, &short, &there),
        out.atomic(sum, uint, &[]),
        out.atomic(sum, uint, &[remote_at(&region, 0, 12), remote_at(&region, 16, 4)]),
        pair.a.out(pair.to_b, ()).atomic(sum, uint, &[remote_at(&region, 0, 0)]),
    ] {
        assert_eq!(error.unwrap_err().errno(), Errno::EINVAL);
    }
    let flags = OpFlags::REMOTE_CQ_DATA;
    assert_eq!(out.msg(flags).atomic(sum, uint, &there).unwrap_err().errno(), Errno::EBADFLAGS);
    pair.quiet(Duration::from_millis(20));
}

pub fn an_endpoint_without_the_capability_has_no_atomics(kit: &dyn Kit) {
    let Some(target_pair) = pair(kit) else { return };
    let (_memory, region) = target(&target_pair, 8, false);
    for caps in
        [Caps::MSG | Caps::RMA, CAPS | Caps::SEND | Caps::RECV | Caps::READ, CAPS | Caps::SEND | Caps::RECV]
    {
        let side = kit.opening().hints(|hints| hints.caps(caps)).open();
        let to = side.insert(&target_pair.b);
        let operand = word(1);
        let post = side.out(to, &operand).atomic(FiOp::Sum, Datatype::Uint64, &[remote(&region)]);
        let may = caps.contains(Caps::ATOMIC) && !caps.intersects(Caps::READ);
        match may {
            // Without a direction of remote access, all directions are meant.
            true => assert!(post.is_ok() || post.unwrap_err().is_again()),
            false => assert_eq!(post.unwrap_err().errno(), Errno::EOPNOTSUPP),
        }
        let valid = side.ep.atomic_valid(AtomicKind::Base, FiOp::Sum, Datatype::Uint64);
        assert_eq!(valid.is_ok(), may);
        let reads = side.ep.atomic_valid(AtomicKind::Fetch, FiOp::AtomicRead, Datatype::Uint64);
        assert_eq!(reads.is_ok(), caps.contains(Caps::ATOMIC));
    }
}

/// The possible errors of a refused access.
const REFUSED: &[Errno] =
    &[Errno::EKEYREJECTED, Errno::ENOKEY, Errno::EACCES, Errno::EREMOTEIO, Errno::EINVAL];

#[track_caller]
fn refused(pair: &Pair, op: FiOp, there: RemotePiece) {
    let (operand, result) = (memory_of(&vec![1; there.len]), Memory::new(there.len));
    let out = pair.a.out(pair.to_b, &operand).context(6);
    for fetches in [false, true] {
        if op == FiOp::AtomicRead && !fetches {
            continue;
        }
        pair.post(|| match fetches {
            true => out.fetch(op, Datatype::Uint64, &result, &[there]),
            false => out.atomic(op, Datatype::Uint64, &[there]),
        });
        let error = pair.failed(&pair.a);
        assert!(REFUSED.contains(&error.err), "{:?}", error.err);
        assert_eq!(error.op_context, Context(6));
        assert!(error.flags.contains(CompletionFlags::ATOMIC), "{:?}", error.flags);
    }
    assert!(result.bytes().iter().all(|&byte| byte == 0), "results of what was refused");
    assert_eq!(pair.b.pending(), 0, "the target is not told");
}

pub fn a_wrong_key_or_range_is_refused_and_the_endpoint_goes_on(kit: &dyn Kit) {
    let Some(pair) = pair(kit) else { return };
    for library in [false, true] {
        let (memory, region) = target(&pair, 4_096, library);
        let base = region.base();
        refused(&pair, FiOp::Sum, RemotePiece { key: region.key() ^ 0x5555, ..remote_at(&region, 0, 8) });
        for addr in [
            base.wrapping_add(4_096),
            base.wrapping_add(4_096 - 8),
            base.wrapping_sub(8),
            base.wrapping_add(4_096 - 4),
            u64::MAX - 7,
            base.wrapping_add(1 << 63),
        ] {
            refused(&pair, FiOp::Sum, RemotePiece { addr, len: 16, key: region.key() });
        }
        assert!(memory.bytes().iter().all(|&byte| byte == 0));
        pair.post(|| {
            pair.a.out(pair.to_b, &word(3)).atomic(
                FiOp::Sum,
                Datatype::Uint64,
                &[remote_at(&region, 4_096 - 8, 8)],
            )
        });
        pair.done(&pair.a);
        assert_eq!(memory.bytes()[4_088..], 3u64.to_ne_bytes());
        region.close().unwrap();
        refused(&pair, FiOp::Sum, remote_at(&region, 0, 8));
        assert_eq!(memory.bytes()[..8], [0; 8]);
    }
}

pub fn rights_follow_what_the_operation_does(kit: &dyn Kit) {
    let Some(pair) = pair(kit) else { return };
    for library in [false, true] {
        for rights in [MrAccess::REMOTE_READ, MrAccess::REMOTE_WRITE] {
            let memory = if library { Memory::library(&pair.b.domain, 8) } else { Memory::new(8) };
            let region = pair.b.register(&memory, rights).unwrap();
            let there = [remote(&region)];
            let (operand, result) = (word(5), word(0));
            let out = pair.a.out(pair.to_b, &operand).context(1);
            if rights == MrAccess::REMOTE_READ {
                memory.slice(..).put(&9u64.to_ne_bytes());
                pair.post(|| out.fetch(FiOp::AtomicRead, Datatype::Uint64, &result, &there));
                pair.done(&pair.a);
                assert_eq!(value_of(&result), 9);
                refused(&pair, FiOp::Sum, there[0]);
                assert_eq!(value_of(&memory), 9);
            } else {
                pair.post(|| out.atomic(FiOp::Sum, Datatype::Uint64, &there));
                pair.done(&pair.a);
                assert_eq!(value_of(&memory), 5);
                refused(&pair, FiOp::AtomicRead, there[0]);
                pair.post(|| out.fetch(FiOp::Sum, Datatype::Uint64, &result, &there));
                pair.failed(&pair.a);
                assert_eq!((value_of(&memory), value_of(&result)), (5, 0));
            }
        }
    }
}

pub fn misaligned_elements_are_changed_all_the_same(kit: &dyn Kit) {
    let Some(pair) = pair(kit) else { return };
    for library in [false, true] {
        for datatype in [Datatype::Uint16, Datatype::Uint64, Datatype::FloatComplex, Datatype::Uint128] {
            for skip in [1, 4, 8] {
                let size = datatype.size();
                let (memory, region) = target(&pair, 64, library);
                let there = [remote_at(&region, 16 + skip, size)];
                let operand: Vec<u8> = (1..=size as u8).collect();
                let (operand, result) = (memory_of(&operand), memory_of(&vec![7; size]));
                for _ in 0..2 {
                    let out = pair.a.out(pair.to_b, &operand);
                    pair.post(|| out.fetch(FiOp::AtomicWrite, datatype, &result, &there));
                    pair.done(&pair.a);
                }
                assert_eq!(result.bytes(), operand.bytes(), "what the first put there");
                let mut expected = vec![0; 64];
                expected[16 + skip..][..size].copy_from_slice(&operand.bytes());
                assert_eq!(memory.bytes(), expected, "{datatype} at {skip}");
            }
        }
    }
}

pub fn pieces_here_and_there_need_not_match(kit: &dyn Kit) {
    let Some(pair) = pair(kit) else { return };
    let tx = &pair.a.info.tx_attr;
    if tx.iov_limit < 2 || tx.rma_iov_limit < 2 {
        return;
    }
    for (first, second) in [(false, false), (true, true), (false, true)] {
        let ((one, first), (two, second)) = (target(&pair, 64, first), target(&pair, 64, second));
        let there = [remote_at(&first, 40, 24), remote_at(&second, 8, 8)];
        let numbers: Vec<u8> = (1..=4u64).flat_map(u64::to_ne_bytes).collect();
        let (operand, compare, result) = (memory_of(&numbers), Memory::new(32), memory_of(&[9; 32]));
        // Cuts in the middle of elements too.
        let cut = |memory: &Memory, at: usize| vec![memory.slice(..at), memory.slice(at..)];
        let out = pair.a.out(pair.to_b, cut(&operand, 12));
        let (compare, fetched) = (cut(&compare, 16), cut(&result, 20));
        pair.post(|| out.compare(FiOp::Cswap, Datatype::Uint64, compare.clone(), fetched.clone(), &there));
        pair.done(&pair.a);
        assert_eq!(one.bytes()[40..], numbers[..24]);
        assert_eq!(two.bytes()[8..16], numbers[24..]);
        assert_eq!(result.bytes(), [0; 32]);
        let none = pair.a.out(pair.to_b, ());
        pair.post(|| none.fetch(FiOp::AtomicRead, Datatype::Uint64, fetched.clone(), &there));
        pair.done(&pair.a);
        assert_eq!(result.bytes(), numbers, "reads take no operands");
    }
}

pub fn an_injected_atomic_never_completes(kit: &dyn Kit) {
    let Some(pair) = pair(kit) else { return };
    for library in [false, true] {
        let (memory, region) = target(&pair, 8, library);
        let operand = word(0);
        for number in 1..=100u64 {
            operand.slice(..).put(&number.to_ne_bytes());
            let out = pair.a.out(pair.to_b, &operand).inject();
            pair.post(|| out.atomic(FiOp::Sum, Datatype::Uint64, &[remote(&region)]));
            // The caller may use the buffer again at once.
            operand.slice(..).put(&u64::MAX.to_ne_bytes());
        }
        pair.drive("the sum", || (value_of(&memory) == 5_050).then_some(()));
        pair.quiet(Duration::from_millis(10));
        let out = pair.a.out(pair.to_b, &operand).inject();
        let error = out.fetch(FiOp::Sum, Datatype::Uint64, &word(0), &[remote(&region)]).unwrap_err();
        assert_eq!(error.errno(), Errno::EOPNOTSUPP);
    }
}

pub fn selective_atomics_complete_only_on_request(kit: &dyn Kit) {
    if pair(kit).is_none() {
        return;
    }
    let pair = kit.pair_with(|opening| {
        opening.hints(|hints| hints.caps(CAPS)).selective(BindFlags::TRANSMIT | BindFlags::RECV)
    });
    let (memory, region) = target(&pair, 8, false);
    let (operand, result) = (word(1), word(0));
    let there = [remote(&region)];
    pair.post(|| pair.a.out(pair.to_b, &operand).context(1).atomic(FiOp::Sum, Datatype::Uint64, &there));
    let silent = OpFlags::DELIVERY_COMPLETE;
    let out = pair.a.out(pair.to_b, &operand).context(1).msg(silent);
    pair.post(|| out.atomic(FiOp::Sum, Datatype::Uint64, &there));
    let asking = [silent | OpFlags::COMPLETION, OpFlags::COMPLETION, OpFlags::COMPLETION | OpFlags::INJECT];
    for (number, flags) in asking.into_iter().enumerate() {
        let out = pair.a.out(pair.to_b, &operand).context(2).msg(flags);
        pair.post(|| out.fetch(FiOp::Sum, Datatype::Uint64, &result, &there));
        assert_eq!(pair.done(&pair.a).op_context, Context(2));
        assert_eq!(value_of(&result), number as u64 + 2);
    }
    assert_eq!(value_of(&memory), 5);
    pair.quiet(Duration::from_millis(10));
}

pub fn accesses_and_atomics_stay_in_order(kit: &dyn Kit) {
    let order = MsgOrder::RAW | MsgOrder::WAW | MsgOrder::WAR | MsgOrder::RAR;
    let hints = kit.usual().caps(CAPS).msg_order(order);
    if kit.getinfo(&hints).is_err() {
        return;
    }
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.caps(CAPS).msg_order(order)));
    for library in [false, true] {
        for (datatype, misaligned) in [(Datatype::Uint64, 0), (Datatype::Uint64, 4), (Datatype::Uint128, 0)] {
            let (_memory, region) = target(&pair, 4_096, library);
            let size = datatype.size();
            let there = [remote_at(&region, 32 + misaligned, size)];
            let number = |value: u128| memory_of(&value.to_ne_bytes()[..size]);
            let one = number(1);
            for round in 0..50u128 {
                // A write, a sum, a fetching sum and a read, all posted at once.
                let (start, before, after) = (number(round * 100), number(0), number(0));
                pair.post(|| pair.a.out(pair.to_b, &start).context(1).write(&there));
                let out = pair.a.out(pair.to_b, &one).context(1);
                pair.post(|| out.atomic(FiOp::Sum, datatype, &there));
                pair.post(|| out.fetch(FiOp::Sum, datatype, &before, &there));
                pair.post(|| pair.a.out(pair.to_b, &after).context(1).read(&there));
                pair.all_done(&pair.a, 1, 4);
                assert_eq!(before.bytes(), number(round * 100 + 1).bytes());
                assert_eq!(after.bytes(), number(round * 100 + 2).bytes());
            }
        }
    }
}

pub fn a_message_does_not_overtake_an_atomic(kit: &dyn Kit) {
    let order = MsgOrder::SAW | MsgOrder::SAS;
    let hints = kit.usual().caps(CAPS).msg_order(order);
    if kit.getinfo(&hints).is_err() {
        return;
    }
    for library in [false, true] {
        let pair = kit.pair_with(|opening| opening.hints(|hints| hints.caps(CAPS).msg_order(order)));
        let (memory, region) = target(&pair, 8, library);
        let operand = word(1);
        for round in 1..=200u64 {
            pair.b.receive(()).context(2).post().unwrap();
            let out = pair.a.out(pair.to_b, &operand).context(1);
            pair.post(|| out.atomic(FiOp::Sum, Datatype::Uint64, &[remote(&region)]));
            pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
            pair.drive("the message", || pair.b.next_of(2)).done();
            assert_eq!(value_of(&memory), round);
        }
        pair.all_done(&pair.a, 1, 200);
    }
}

pub fn many_atomics_at_once_are_executed_once_each(kit: &dyn Kit) {
    let Some(pair) = pair(kit) else { return };
    const COUNT: u64 = 3_000;
    for (library, datatype) in
        [(false, Datatype::Uint64), (true, Datatype::Uint64), (true, Datatype::LongDoubleComplex)]
    {
        let (memory, region) = target(&pair, 32, library);
        let size = datatype.size();
        let there = [remote_at(&region, 0, size)];
        // All ones in the bits of a long double would not be a number: such types are only written.
        let op = if size == 8 { FiOp::Sum } else { FiOp::AtomicWrite };
        let operand = memory_of(&[&1u64.to_ne_bytes()[..], &[0; 24]].concat()[..size]);
        let (mut posted, mut seen, mut done) = (0, Vec::new(), 0);
        let mut results: Vec<Memory> = Vec::new();
        pair.drive("all of them", || {
            while posted < COUNT {
                let result = Memory::new(size);
                let out = pair.a.out(pair.to_b, &operand).context(posted as usize);
                match out.fetch(op, datatype, &result, &there) {
                    Ok(()) => results.push(result),
                    Err(error) if error.is_again() => break,
                    Err(error) => panic!("{error}"),
                }
                posted += 1;
            }
            while let Some(event) = pair.a.next() {
                seen.push(value_of(&results[event.context()]));
                event.done();
                done += 1;
            }
            (done == COUNT).then_some(())
        });
        if op == FiOp::Sum {
            assert_eq!(value_of(&memory), COUNT);
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..COUNT), "each saw another value");
        } else {
            assert_eq!(seen.iter().filter(|&&value| value == 0).count(), 1, "only the first saw nothing");
        }
    }
}

pub fn both_sides_and_the_owner_count_together(kit: &dyn Kit) {
    let Some(pair) = pair(kit) else { return };
    const EACH: u64 = 1_000;
    for library in [false, true] {
        let (memory, region) = target(&pair, 8, library);
        let there = [remote(&region)];
        let to_itself = pair.b.insert(&pair.b);
        let operand = word(1);
        // SAFETY: aligned memory that lives until the end; all changes to it are atomic instructions.
        let counter = unsafe { std::sync::atomic::AtomicU64::from_ptr(memory.as_ptr().cast()) };
        let (mut posted, mut done) = ([0; 2], 0);
        let mut here = 0;
        pair.drive("all of them", || {
            for (index, (side, to)) in [(&pair.a, pair.to_b), (&pair.b, to_itself)].into_iter().enumerate() {
                if posted[index] < EACH
                    && side.out(to, &operand).context(1).atomic(FiOp::Sum, Datatype::Uint64, &there).is_ok()
                {
                    posted[index] += 1;
                }
                while let Some(event) = side.next() {
                    event.done();
                    done += 1;
                }
            }
            if here < EACH {
                counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                here += 1;
            }
            (done == 2 * EACH && here == EACH).then_some(())
        });
        assert_eq!(value_of(&memory), 3 * EACH);
    }
}
