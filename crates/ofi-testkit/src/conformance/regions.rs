//! Registrations (fi_mr(3)): keys, modes, several pieces, and memory that cannot be registered.

use crate::connect::{event, open_eq};
use crate::prelude::*;

const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

/// A pair in this registration mode, if the transport supports it.
fn pair_in(kit: &dyn Kit, mr_mode: MrMode) -> Option<Pair> {
    let infos = kit.getinfo(&kit.usual().mr_mode(mr_mode)).ok()?;
    (infos[0].domain_attr.mr_mode == mr_mode)
        .then(|| kit.pair_with(|opening| opening.hints(|hints| hints.mr_mode(mr_mode))))
}

/// Writes 64 bytes at `offset` and checks that they arrive in `memory`.
fn write_at(pair: &Pair, region: &std::sync::Arc<dyn MemoryRegion>, memory: &Slice, offset: usize, seed: u8) {
    let from = Memory::patterned(64, seed);
    pair.post(|| pair.a.out(pair.to_b, &from).write(&[remote_at(region, offset, 64)]));
    pair.done(&pair.a);
    memory.check(seed);
}

pub fn a_region_tells_its_length_base_and_key(kit: &dyn Kit) {
    let pair = kit.pair();
    let memory = Memory::new(100);
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    assert_eq!(region.len(), 100);
    assert_ne!(region.key(), KEY_NOTAVAIL);
    if pair.b.info.domain_attr.mr_mode.contains(MrMode::VIRT_ADDR) {
        assert_eq!(region.base(), memory.as_ptr().addr() as u64);
    } else {
        assert_eq!(region.base(), 0);
    }
}

pub fn requested_keys_are_used(kit: &dyn Kit) {
    for mode in [MrMode::empty(), MrMode::VIRT_ADDR] {
        let Some(pair) = pair_in(kit, mode) else { continue };
        for key in [0, 1, 0xDEAD_BEEF, u64::MAX - 1] {
            let memory = Memory::new(64);
            let region = pair.b.register_with(&memory, RIGHTS, key, 0).unwrap();
            assert_eq!(region.key(), key);
            write_at(&pair, &region, &memory.slice(..), 0, 9);
        }
    }
}

pub fn a_key_that_is_used_again_opens_the_new_region(kit: &dyn Kit) {
    for mode in [MrMode::empty(), MrMode::VIRT_ADDR] {
        let Some(pair) = pair_in(kit, mode) else { continue };
        // A peer's earlier knowledge of the key does not apply to the next region, which is longer, elsewhere, and has
        // more rights.
        for (len, rights) in [(64, MrAccess::REMOTE_READ), (4_096, RIGHTS), (70_000, RIGHTS)] {
            let memory = Memory::library(&pair.b.domain, len);
            let region = pair.b.register_with(&memory, rights, 9, 0).unwrap();
            let byte = Memory::patterned(1, 77);
            let there = [remote_at(&region, len - 1, 1)];
            if rights.contains(MrAccess::REMOTE_WRITE) {
                pair.post(|| pair.a.out(pair.to_b, &byte).context(1).write(&there));
                pair.done(&pair.a);
                memory.slice(len - 1..len).check(77);
            } else {
                pair.post(|| pair.a.out(pair.to_b, &byte).context(1).read(&there));
                pair.done(&pair.a);
            }
            region.close().unwrap();
        }
    }
}

pub fn a_requested_key_that_is_taken_is_no_key(kit: &dyn Kit) {
    let Some(pair) = pair_in(kit, MrMode::empty()) else { return };
    let memory = Memory::new(64);
    let first = pair.b.register_with(&memory, RIGHTS, 77, 0).unwrap();
    let error = pair.b.register_with(&memory, RIGHTS, 77, 0).err().unwrap();
    assert_eq!(error.errno(), Errno::ENOKEY, "{error}");
    assert!(error.detail().is_some(), "{error}");
    first.close().unwrap();
    pair.b.register_with(&memory, RIGHTS, 77, 0).unwrap();
    // Keys belong to a domain, not to the process.
    pair.a.register_with(&memory, RIGHTS, 77, 0).unwrap();
}

pub fn provider_keys_are_all_different_and_the_request_is_ignored(kit: &dyn Kit) {
    let Some(pair) = pair_in(kit, MrMode::VIRT_ADDR | MrMode::PROV_KEY) else { return };
    let memory = Memory::new(64);
    let regions: Vec<_> = (0..100).map(|_| pair.b.register_with(&memory, RIGHTS, 5, 0).unwrap()).collect();
    let mut keys: Vec<u64> = regions.iter().map(|region| region.key()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), regions.len());
}

pub fn offsets_start_at_zero_or_where_asked(kit: &dyn Kit) {
    let Some(pair) = pair_in(kit, MrMode::empty()) else { return };
    for library in [false, true] {
        let memory = if library { Memory::library(&pair.b.domain, 256) } else { Memory::new(256) };
        let region = pair.b.register_with(&memory, RIGHTS, 1, 0).unwrap();
        assert_eq!(region.base(), 0);
        write_at(&pair, &region, &memory.slice(128..192), 128, 5);
        region.close().unwrap();
        let region = pair.b.register_with(&memory, RIGHTS, 2, 1 << 40).unwrap();
        assert_eq!(region.base(), 1 << 40);
        write_at(&pair, &region, &memory.slice(64..128), 64, 6);
        region.close().unwrap();
    }
}

pub fn several_pieces_form_one_region(kit: &dyn Kit) {
    let Some(pair) = pair_in(kit, MrMode::empty()) else { return };
    if pair.b.info.domain_attr.mr_iov_limit < 3 {
        return;
    }
    let memory = Memory::new(100_000);
    let pieces = vec![memory.slice(50_000..60_000), memory.slice(..1_000), memory.slice(90_000..)];
    let region = pair.b.register_with(pieces.clone(), RIGHTS, 1, 0).unwrap();
    assert_eq!(region.len(), 21_000);
    for len in [12_000, 21_000] {
        let (from, back) = (Memory::patterned(len, 4), Memory::new(len));
        pair.post(|| pair.a.out(pair.to_b, &from).write(&[remote_at(&region, 0, len)]));
        pair.done(&pair.a);
        pair.post(|| pair.a.out(pair.to_b, &back).read(&[remote_at(&region, 0, len)]));
        pair.done(&pair.a);
        back.check(len, 4);
    }
    let mut at = 0;
    for piece in &pieces {
        piece.check_from(4, at);
        at += piece.len();
    }
}

pub fn one_memory_may_be_registered_more_than_once(kit: &dyn Kit) {
    let pair = kit.pair();
    for library in [false, true] {
        let memory = if library { Memory::library(&pair.b.domain, 256) } else { Memory::new(256) };
        let first = pair.b.register_with(&memory, RIGHTS, 1, 0).unwrap();
        let second = pair.b.register_with(memory.slice(64..), RIGHTS, 2, 0).unwrap();
        write_at(&pair, &first, &memory.slice(..64), 0, 1);
        write_at(&pair, &second, &memory.slice(64..128), 0, 2);
        first.close().unwrap();
        write_at(&pair, &second, &memory.slice(192..256), 128, 3);
    }
}

pub fn empty_memory_may_be_registered(kit: &dyn Kit) {
    let pair = kit.pair();
    let memory = Memory::patterned(128, 1);
    let nothing = pair.b.register(memory.slice(..0), RIGHTS).unwrap();
    assert_eq!(nothing.len(), 0);
    let one = Memory::new(1);
    pair.post(|| pair.a.out(pair.to_b, &one).context(1).write(&[remote_at(&nothing, 0, 1)]));
    assert_eq!(pair.failed(&pair.a).op_context, Context(1));
    pair.post(|| pair.a.out(pair.to_b, ()).context(2).write(&[remote_at(&nothing, 0, 0)]));
    assert_eq!(pair.done(&pair.a).op_context, Context(2));
    nothing.close().unwrap();
    if pair.b.info.domain_attr.mr_iov_limit < 3 {
        return;
    }
    // Among pieces with bytes it changes nothing.
    let some = vec![memory.slice(..0), memory.slice(..64), memory.slice(64..64)];
    let region = pair.b.register(some, RIGHTS).unwrap();
    assert_eq!(region.len(), 64);
    write_at(&pair, &region, &memory.slice(..64), 0, 7);
}

pub fn the_whole_address_space_may_be_registered(kit: &dyn Kit) {
    for mode in [MrMode::empty(), MrMode::VIRT_ADDR] {
        let Some(pair) = pair_in(kit, mode) else { continue };
        let access = RIGHTS;
        let everything = [Piece::new(std::ptr::null_mut(), usize::MAX)];
        // SAFETY: all that peers of this test access lives until the registration is closed, and no reference to it is
        // held meanwhile.
        let region = match pair.b.domain.register(&unsafe { MrAttr::new(&everything, access) }) {
            Ok(region) => region,
            Err(error) => {
                assert_eq!(error.errno(), Errno::EOPNOTSUPP, "a device may refuse it, in words: {error}");
                assert!(error.detail().is_some(), "{error}");
                continue;
            }
        };
        for len in [8, 5_000, 300_000] {
            let (from, into, back) = (Memory::patterned(len, 5), Memory::new(len), Memory::new(len));
            let addr = into.slice(..).piece().addr.addr() as u64;
            let there = |addr| [RemotePiece { addr, len, key: region.key() }];
            pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&there(addr)));
            assert_eq!(pair.done(&pair.a).op_context, Context(1), "{len} bytes");
            into.check(len, 5);
            pair.post(|| pair.a.out(pair.to_b, &back).context(2).read(&there(addr)));
            assert_eq!(pair.done(&pair.a).op_context, Context(2), "{len} bytes");
            back.check(len, 5);
            // An access to unmapped memory is an error at the peer, and this end continues.
            for nowhere in [0, 4_096, u64::MAX - (1 << 20)] {
                pair.post(|| pair.a.out(pair.to_b, &from).context(3).write(&there(nowhere)));
                assert_eq!(pair.failed(&pair.a).op_context, Context(3), "{len} bytes at {nowhere:#x}");
                pair.post(|| pair.a.out(pair.to_b, &back).context(4).read(&there(nowhere)));
                assert_eq!(pair.failed(&pair.a).op_context, Context(4), "{len} bytes at {nowhere:#x}");
            }
        }
        // What may only be read is not written.
        static CONSTANT: [u8; 8] = [3; 8];
        let (from, back) = (Memory::patterned(8, 5), Memory::new(8));
        let there = [RemotePiece { addr: CONSTANT.as_ptr().addr() as u64, len: 8, key: region.key() }];
        pair.post(|| pair.a.out(pair.to_b, &from).context(5).write(&there));
        assert_eq!(pair.failed(&pair.a).op_context, Context(5));
        pair.post(|| pair.a.out(pair.to_b, &back).context(6).read(&there));
        assert_eq!(pair.done(&pair.a).op_context, Context(6));
        assert_eq!(back.bytes(), CONSTANT);
        region.close().unwrap();
    }
}

pub fn what_cannot_be_registered_is_refused(kit: &dyn Kit) {
    let side = kit.side();
    let memory = Memory::new(64);
    let none: Vec<Slice> = Vec::new();
    for (what, result) in [
        ("no memory", side.register(none, RIGHTS)),
        (
            "too many pieces",
            side.register(vec![memory.slice(..1); side.info.domain_attr.mr_iov_limit + 1], RIGHTS),
        ),
    ] {
        let error = result.err().unwrap_or_else(|| panic!("{what} was registered"));
        assert_eq!(error.errno(), Errno::EINVAL, "{what}: {error}");
        let detail = error.detail().unwrap_or_else(|| panic!("{what}: {error}"));
        assert!(!detail.wanted.is_empty() && !detail.found.is_empty(), "{what}: {error}");
    }
}

pub fn library_memory_of_no_length_is_refused(kit: &dyn Kit) {
    let side = kit.side();
    let error = side.domain.alloc(0, Placement::default()).err().unwrap();
    assert_eq!(error.errno(), Errno::EINVAL, "{error}");
}

pub fn library_memory_is_zeroed_and_large_enough(kit: &dyn Kit) {
    let side = kit.side();
    for (len, huge) in [(1, false), (4_097, false), (3 << 20, false), (3 << 20, true)] {
        let placement = Placement { huge, ..Placement::default() };
        let allocation = side.domain.alloc(len, placement).unwrap();
        assert_eq!(allocation.len(), len);
        for at in [0, len / 2, len - 1] {
            let byte = allocation.as_ptr().wrapping_add(at);
            // SAFETY: inside the allocation, which lives.
            assert_eq!(unsafe { byte.read_volatile() }, 0);
        }
    }
}

pub fn closing_twice_is_harmless(kit: &dyn Kit) {
    let side = kit.side();
    let region = side.register(&Memory::new(64), RIGHTS).unwrap();
    region.close().unwrap();
    region.close().unwrap();
}

pub fn descriptors_may_be_given_where_none_is_needed(kit: &dyn Kit) {
    // fi_mr(3): without FI_MR_LOCAL a descriptor is optional, and a valid one does no harm.
    let pair = kit.pair();
    for len in [64, 300_000] {
        let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
        let sent = pair.a.register(&from, MrAccess::SEND).unwrap();
        let received = pair.b.register(&into, MrAccess::RECV).unwrap();
        let (from_pieces, into_pieces) = ([from.slice(..).piece()], [into.slice(..).piece()]);
        let (from_descs, into_descs) = ([sent.desc()], [received.desc()]);
        // SAFETY: both memories live to the end of the case, and the case does not access them before the completions.
        let lent = unsafe { Lent::new(&into_pieces, &into_descs) };
        pair.b.ep.receive(&ReceiveOp::new(lent, Context(2))).unwrap();
        // SAFETY: as above.
        let lent = unsafe { Lent::new(&from_pieces, &from_descs) };
        pair.post(|| pair.a.ep.send(&SendOp::new(lent, pair.to_b, Context(1))));
        pair.drive("the receive", || pair.b.next_of(2)).done();
        pair.drive("the send", || pair.a.next_of(1)).done();
        into.check(len, 5);
    }
}

pub fn many_regions_at_once(kit: &dyn Kit) {
    let Some(pair) = pair_in(kit, MrMode::empty()) else { return };
    let memory = Memory::new(64 * 2_000);
    let regions: Vec<_> = (0..2_000)
        .map(|n| pair.b.register_with(memory.slice(64 * n..64 * n + 64), RIGHTS, n as u64, 0).unwrap())
        .collect();
    for number in (0..2_000).step_by(97) {
        let part = memory.slice(64 * number..64 * number + 64);
        write_at(&pair, &regions[number], &part, 0, number as u8);
    }
}

pub fn many_library_regions_come_and_go(kit: &dyn Kit) {
    // More than a transport can have mapped at a peer at the same time.
    let pair = kit.pair();
    for number in 0..1_500_usize {
        let memory = Memory::library(&pair.b.domain, 64);
        let region = pair.b.register_with(&memory, RIGHTS, number as u64, 0).unwrap();
        write_at(&pair, &region, &memory.slice(..), 0, number as u8);
        region.close().unwrap();
    }
}

pub fn registrations_are_reported_to_the_queue_of_their_domain(kit: &dyn Kit) {
    let side = kit.side();
    let memory = Memory::new(64);
    let eq = open_eq(&side.fabric).unwrap();
    let before = side.register(&memory, RIGHTS).unwrap();
    let wrong = side.domain.bind_eq(&eq, BindFlags::RECV).unwrap_err();
    assert_eq!(wrong.errno(), Errno::EBADFLAGS);
    side.domain.bind_eq(&eq, BindFlags::REG_MR).unwrap();
    assert_eq!(side.domain.bind_eq(&eq, BindFlags::REG_MR).unwrap_err().errno(), Errno::EBUSY);
    let region = side.register_with(&memory, RIGHTS, 1, 0).unwrap();
    assert_ne!(region.fid(), before.fid());
    let event = event(&eq, &[]);
    assert_eq!((event.kind, event.fid, event.context), (EventKind::MrComplete, region.fid(), Context(0)));
    // A failed registration causes no event.
    let none: Vec<Slice> = Vec::new();
    assert!(side.register(none, RIGHTS).is_err());
    assert!(eq.read().unwrap_err().is_again());
}
