//! Atomics of connected endpoints, which the peer's device executes (`ofi-verbs/connected/atomic.rs`).

use ofi_testkit::connect::{connect, event_of};
use ofi_testkit::prelude::*;

use super::ConnectedPair;

const ANY: FiAddr = FiAddr::UNSPEC;
const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
const CAPS: Caps = Caps::MSG.union(Caps::ATOMIC);
const WORD: Datatype = Datatype::Uint64;

fn opening() -> Opening {
    let kit: &dyn Kit = &ConnectedPair;
    kit.opening_for(kit.usual().caps(CAPS))
}

fn pair() -> (TestEndpoint, TestEndpoint) {
    let a = opening().open_disabled().unwrap();
    let b = connect(&a, opening()).unwrap();
    (a, b)
}

fn word(value: u64) -> Memory {
    let memory = Memory::new(8);
    memory.slice(..).put(&value.to_ne_bytes());
    memory
}

fn value_of(memory: &Memory) -> u64 {
    u64::from_ne_bytes(memory.bytes()[..8].try_into().unwrap())
}

/// The outcome of an operation.
#[track_caller]
fn end(a: &TestEndpoint, b: &TestEndpoint) -> Event {
    wait::drive(&[a, b], "the end of an operation", || a.next())
}

#[test]
fn a_device_writes_reads_adds_and_swaps_one_number() {
    let (a, b) = pair();
    let memory = Memory::new(24);
    let region = b.register(&memory, RIGHTS).unwrap();
    memory.slice(..).put(&[0xAA; 24]);
    let there = [remote_at(&region, 8, 8)];
    let around = || memory.bytes().iter().filter(|&&byte| byte == 0xAA).count();
    for datatype in [Datatype::Uint64, Datatype::Int64] {
        let (operand, result) = (word(5), word(0));
        let out = || a.out(ANY, &operand).context(1);
        let done = |direction| {
            let entry = end(&a, &b).done();
            assert_eq!((entry.flags, entry.op_context), (CompletionFlags::ATOMIC | direction, Context(1)));
        };
        out().atomic(FiOp::AtomicWrite, datatype, &there).unwrap();
        done(CompletionFlags::WRITE);
        assert_eq!(value_of_slice(&memory), 5);
        operand.slice(..).put(&u64::MAX.to_ne_bytes()); // or -1
        out().fetch(FiOp::Sum, datatype, &result, &there).unwrap();
        done(CompletionFlags::READ);
        assert_eq!((value_of(&result), value_of_slice(&memory)), (5, 4));
        out().fetch(FiOp::AtomicRead, datatype, &result, &there).unwrap();
        done(CompletionFlags::READ);
        assert_eq!(value_of(&result), 4);
        for (expected, now) in [(3, 4), (4, u64::MAX)] {
            out().compare(FiOp::Cswap, datatype, &word(expected), &result, &there).unwrap();
            done(CompletionFlags::READ);
            assert_eq!((value_of(&result), value_of_slice(&memory)), (4, now));
        }
        assert_eq!(around(), 16, "the number alone");
    }
    assert_eq!(a.statistic("verbs_native_atomics"), 10);
    assert_eq!(b.pending(), 0, "a target is not told");
}

fn value_of_slice(memory: &Memory) -> u64 {
    u64::from_ne_bytes(memory.bytes()[8..16].try_into().unwrap())
}

#[test]
fn an_injected_number_may_change_at_once() {
    let (a, b) = pair();
    let memory = word(0);
    let region = b.register(&memory, RIGHTS).unwrap();
    let operand = word(77);
    a.out(ANY, &operand).inject().atomic(FiOp::AtomicWrite, WORD, &[remote(&region)]).unwrap();
    operand.fill(9);
    let result = word(0);
    a.out(ANY, ()).context(2).fetch(FiOp::AtomicRead, WORD, &result, &[remote(&region)]).unwrap();
    assert_eq!(end(&a, &b).done().op_context, Context(2), "injected, so not reported");
    assert_eq!(value_of(&result), 77);
    let fetched = a.out(ANY, &operand).inject().fetch(FiOp::Sum, WORD, &result, &[remote(&region)]);
    assert_eq!(fetched.unwrap_err().errno(), Errno::EOPNOTSUPP);
}

/// More operations than the connection has room for, from both ends, to one number.
#[test]
fn many_additions_are_made_once_each() {
    const EACH: u64 = 400;
    let (a, b) = pair();
    let memory = word(0);
    let there = [b.register(&memory, RIGHTS).unwrap()].map(|region| (remote(&region), region));
    let (one, result) = (word(1), word(0));
    let mut sum = 0;
    for number in 0..EACH {
        let post =
            || a.out(ANY, &one).context(number as usize).fetch(FiOp::Sum, WORD, &result, &[there[0].0]);
        while let Err(error) = post() {
            assert_eq!(error.errno(), Errno::EAGAIN, "{error}");
            sum += u64::from(wait::drive(&[&a, &b], "room", || a.next()).done().op_context.0 < EACH as usize);
        }
    }
    while sum < EACH {
        end(&a, &b).done();
        sum += 1;
    }
    assert_eq!((value_of(&memory), value_of(&result)), (EACH, EACH - 1));
}

#[test]
fn what_devices_do_not_have_is_refused_by_name() {
    let (a, b) = pair();
    let memory = Memory::new(32);
    let region = b.register(&memory, RIGHTS).unwrap();
    let there = [remote_at(&region, 0, 8)];
    let (operand, result) = (Memory::new(16), Memory::new(16));
    let out = || a.out(ANY, operand.slice(..8));
    let refused = |posted: Result<()>, errno, text: &str| {
        let error = posted.unwrap_err();
        assert_eq!(error.errno(), errno, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    };
    for (kind, op, datatype, count) in [
        (AtomicKind::Base, FiOp::AtomicWrite, WORD, Some(1)),
        (AtomicKind::Fetch, FiOp::Sum, Datatype::Int64, Some(1)),
        (AtomicKind::Fetch, FiOp::AtomicRead, Datatype::Double, Some(1)),
        (AtomicKind::Compare, FiOp::Cswap, WORD, Some(1)),
        (AtomicKind::Base, FiOp::Sum, WORD, None),
        (AtomicKind::Fetch, FiOp::Sum, Datatype::Double, None),
        (AtomicKind::Fetch, FiOp::Sum, Datatype::Uint32, None),
        (AtomicKind::Compare, FiOp::CswapNe, WORD, None),
        (AtomicKind::Base, FiOp::AtomicWrite, Datatype::Float, None),
    ] {
        let valid = a.ep.atomic_valid(kind, op, datatype).map_err(|error| error.errno());
        assert_eq!(valid, count.ok_or(Errno::EOPNOTSUPP), "{op} on {datatype}");
        let attr = a.domain.query_atomic(kind, op, datatype).map_err(|error| error.errno());
        assert_eq!(attr.map(|attr| attr.count), count.ok_or(Errno::EOPNOTSUPP), "{op} on {datatype}");
    }
    refused(out().atomic(FiOp::Sum, WORD, &there), Errno::EOPNOTSUPP, "the peer's device");
    refused(out().fetch(FiOp::Max, WORD, result.slice(..8), &there), Errno::EOPNOTSUPP, "the peer's device");
    let two = [remote_at(&region, 0, 16)];
    refused(a.out(ANY, &operand).atomic(FiOp::AtomicWrite, WORD, &two), Errno::EMSGSIZE, "at most 1");
    let odd = [remote_at(&region, 4, 8)];
    refused(out().fetch(FiOp::Sum, WORD, result.slice(..8), &odd), Errno::EINVAL, "a multiple of 8");
    assert_eq!(a.pending(), 0);
    // The connection is unaffected.
    out().fetch(FiOp::Sum, WORD, result.slice(..8), &there).unwrap();
    end(&a, &b).done();
}

/// The same rules apply to all other accesses.
#[test]
fn an_addition_that_the_peer_s_device_refuses_ends_the_connection() {
    for rights in [MrAccess::REMOTE_READ, MrAccess::REMOTE_WRITE] {
        let (a, b) = pair();
        let memory = word(3);
        let region = b.register(&memory, rights).unwrap();
        a.out(ANY, &word(1)).context(1).fetch(FiOp::Sum, WORD, &word(0), &[remote(&region)]).unwrap();
        let error = end(&a, &b).failed();
        assert_eq!((error.err, error.prov_errno), (Errno::EIO, 10), "IBV_WC_REM_ACCESS_ERR");
        for side in [&a, &b] {
            event_of(side, EventKind::Shutdown, &[&a, &b]);
        }
        assert_eq!(value_of(&memory), 3);
    }
}

#[test]
fn messages_alone_have_no_atomics() {
    let kit: &dyn Kit = &ConnectedPair;
    let info = kit.info(&kit.usual().caps(Caps::MSG | Caps::RMA));
    assert!(!info.caps.contains(Caps::ATOMIC), "only where it is asked for");
    assert_eq!(kit.info(&kit.usual().caps(CAPS)).ep_attr.ep_type, EpType::Msg);
    let side = kit.opening_for(kit.usual().caps(Caps::MSG)).open_disabled().unwrap();
    let error = side.ep.atomic_valid(AtomicKind::Fetch, FiOp::Sum, WORD).unwrap_err();
    assert_eq!(error.errno(), Errno::EOPNOTSUPP, "{error}");
}
