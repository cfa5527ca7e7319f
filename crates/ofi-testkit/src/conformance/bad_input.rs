//! Wrong arguments, wrong order, missing objects: each returns the error number of the man page and a text with the
//! expected and the actual value, and the endpoint keeps working (fi_endpoint(3), fi_msg(3), fi_getinfo(3)).

use std::sync::Arc;

use crate::prelude::*;

/// Fails unless `result` is an error with one of `errnos` and a text.
#[track_caller]
fn refused<T>(result: Result<T>, errnos: &[Errno]) {
    let Err(error) = result else { panic!("it was accepted") };
    assert!(errnos.contains(&error.errno()), "{error}, wanted one of {errnos:?}");
    let detail = error.detail().unwrap_or_else(|| panic!("{error}: only a number"));
    assert!(!detail.subject.is_empty(), "{error}");
    assert!(!detail.wanted.is_empty() && !detail.found.is_empty(), "{error}: wanted what, found what?");
}

/// Checks that the pair still works.
#[track_caller]
fn works_on(pair: &Pair) {
    pair.warm_up();
    assert_eq!((pair.a.pending(), pair.b.pending()), (0, 0), "a refused call was reported");
}

/// Posts a send of raw pieces.
fn send_raw(pair: &Pair, pieces: &[Piece], tagged: bool) -> Result<()> {
    // SAFETY: the call is refused, or accesses no memory.
    let lent = unsafe { Lent::new(pieces, &[]) };
    let op = SendOp::new(lent, pair.to_b, Context(1));
    if tagged { pair.a.ep.send_tagged(&op, 1) } else { pair.a.ep.send(&op) }
}

fn receive_raw(pair: &Pair, pieces: &[Piece], tagged: bool) -> Result<()> {
    // SAFETY: as above.
    let lent = unsafe { Lent::new(pieces, &[]) };
    let op = ReceiveOp::new(lent, Context(1));
    if tagged { pair.b.ep.receive_tagged(&op, TagMatch::default()) } else { pair.b.ep.receive(&op) }
}

pub fn a_null_buffer_with_a_length_is_refused(kit: &dyn Kit) {
    let pair = kit.pair();
    let null = Piece::new(std::ptr::null_mut(), 10);
    let good = Memory::new(10);
    let errnos = [Errno::EINVAL, Errno::EFAULT];
    for tagged in [false, true] {
        refused(send_raw(&pair, &[null], tagged), &errnos);
        refused(receive_raw(&pair, &[null], tagged), &errnos);
        refused(send_raw(&pair, &[good.slice(..).piece(), null], tagged), &errnos);
        refused(receive_raw(&pair, &[good.slice(..).piece(), null], tagged), &errnos);
    }
    works_on(&pair);
}

pub fn a_null_buffer_without_a_length_is_an_empty_one(kit: &dyn Kit) {
    let pair = kit.pair();
    let null = Piece::new(std::ptr::null_mut(), 0);
    receive_raw(&pair, &[null], false).unwrap();
    pair.post(|| send_raw(&pair, &[null], false));
    assert_eq!(pair.done(&pair.b).len, 0);
    pair.done(&pair.a);
    works_on(&pair);
}

pub fn too_many_pieces_are_refused(kit: &dyn Kit) {
    let pair = kit.pair();
    let memory = Memory::new(64);
    let many = |limit: usize| vec![memory.slice(..1).piece(); limit + 1];
    for tagged in [false, true] {
        refused(send_raw(&pair, &many(pair.a.info.tx_attr.iov_limit), tagged), &[Errno::EINVAL]);
        refused(receive_raw(&pair, &many(pair.b.info.rx_attr.iov_limit), tagged), &[Errno::EINVAL]);
    }
    let region = pair.b.register(&memory, MrAccess::REMOTE_WRITE).unwrap();
    let limit = pair.a.info.tx_attr.rma_iov_limit;
    let there = vec![remote_at(&region, 0, 1); limit + 1];
    refused(pair.a.out(pair.to_b, memory.slice(..limit + 1)).write(&there), &[Errno::EINVAL]);
    refused(pair.a.out(pair.to_b, ()).write(&[]), &[Errno::EINVAL]);
    works_on(&pair);
}

pub fn a_message_over_the_limit_is_refused(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| {
        let mut info = opening.first_info().unwrap();
        info.ep_attr.max_msg_size = 1_000;
        opening.info(info)
    });
    let memory = Memory::new(1_001);
    refused(pair.a.out(pair.to_b, &memory).send(), &[Errno::EMSGSIZE]);
    refused(pair.a.out(pair.to_b, &memory).tag(1).send(), &[Errno::EMSGSIZE]);
    let region = pair.b.register(&memory, MrAccess::REMOTE_WRITE).unwrap();
    refused(pair.a.out(pair.to_b, &memory).write(&[remote(&region)]), &[Errno::EMSGSIZE]);
    // Pieces whose total is too long, or does not fit a number.
    let halves = [memory.slice(..600).piece(), memory.slice(..600).piece()];
    refused(send_raw(&pair, &halves, false), &[Errno::EMSGSIZE]);
    let huge = Piece::new(memory.as_ptr(), usize::MAX);
    refused(send_raw(&pair, &[huge, huge], false), &[Errno::EMSGSIZE, Errno::EINVAL]);
    works_on(&pair);
}

pub fn an_inject_over_the_limit_is_refused(kit: &dyn Kit) {
    let pair = kit.pair();
    let len = pair.a.info.tx_attr.inject_size + 1;
    let memory = Memory::new(len);
    let errnos = [Errno::EMSGSIZE, Errno::EINVAL];
    refused(pair.a.out(pair.to_b, &memory).inject().send(), &errnos);
    refused(pair.a.out(pair.to_b, &memory).tag(1).inject().send(), &errnos);
    refused(pair.a.out(pair.to_b, &memory).msg(OpFlags::INJECT).send(), &errnos);
    let region = pair.b.register(&memory, MrAccess::REMOTE_WRITE).unwrap();
    refused(pair.a.out(pair.to_b, &memory).inject().write(&[remote(&region)]), &errnos);
    works_on(&pair);
}

pub fn an_inject_size_of_the_hints_is_kept_to(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.inject_size(32)));
    refused(pair.a.out(pair.to_b, &Memory::new(33)).inject().send(), &[Errno::EMSGSIZE, Errno::EINVAL]);
    works_on(&pair);
}

pub fn lengths_of_an_access_must_agree(kit: &dyn Kit) {
    let pair = kit.pair();
    let memory = Memory::new(64);
    let region = pair.b.register(&memory, MrAccess::REMOTE_WRITE | MrAccess::REMOTE_READ).unwrap();
    for len in [0, 63, 65] {
        refused(pair.a.out(pair.to_b, &memory).write(&[remote_at(&region, 0, len)]), &[Errno::EINVAL]);
        refused(pair.a.out(pair.to_b, &memory).read(&[remote_at(&region, 0, len)]), &[Errno::EINVAL]);
    }
    let huge = remote_at(&region, 0, usize::MAX);
    refused(pair.a.out(pair.to_b, &memory).write(&[huge, remote_at(&region, 0, 65)]), &[Errno::EINVAL]);
    works_on(&pair);
}

pub fn an_unknown_peer_is_refused(kit: &dyn Kit) {
    let pair = kit.pair();
    let memory = Memory::new(64);
    let region = pair.b.register(&memory, MrAccess::REMOTE_WRITE).unwrap();
    for nobody in [FiAddr(1), FiAddr(1 << 40), FiAddr(u64::MAX - 1), FiAddr::UNSPEC] {
        refused(pair.a.out(nobody, &memory).send(), &[Errno::EINVAL]);
        refused(pair.a.out(nobody, &memory).tag(1).send(), &[Errno::EINVAL]);
        refused(pair.a.out(nobody, &memory).write(&[remote(&region)]), &[Errno::EINVAL]);
        refused(pair.a.out(nobody, &memory).read(&[remote(&region)]), &[Errno::EINVAL]);
    }
    refused(pair.b.receive(&memory).from(FiAddr(77)).post(), &[Errno::EINVAL]);
    works_on(&pair);
}

pub fn unknown_flags_are_refused(kit: &dyn Kit) {
    let pair = kit.pair();
    let memory = Memory::new(64);
    let region = pair.b.register(&memory, MrAccess::REMOTE_WRITE).unwrap();
    for flags in [OpFlags::PEEK, OpFlags::MULTI_RECV, OpFlags::CLAIM, OpFlags::from_bits_retain(1 << 62)] {
        refused(pair.a.out(pair.to_b, &memory).msg(flags).send(), &[Errno::EBADFLAGS, Errno::EINVAL]);
        let write = pair.a.out(pair.to_b, &memory).msg(flags).write(&[remote(&region)]);
        refused(write, &[Errno::EBADFLAGS, Errno::EINVAL]);
    }
    for flags in [OpFlags::INJECT, OpFlags::FENCE, OpFlags::from_bits_retain(1 << 62), OpFlags::PEEK] {
        refused(pair.b.receive(&memory).msg(flags).post(), &[Errno::EBADFLAGS, Errno::EINVAL]);
    }
    for flags in [OpFlags::INJECT, OpFlags::FENCE, OpFlags::PEEK | OpFlags::INJECT] {
        refused(pair.b.receive(&memory).tag(1).msg(flags).post(), &[Errno::EBADFLAGS, Errno::EINVAL]);
    }
    works_on(&pair);
}

pub fn completion_levels_that_are_not_offered_are_refused(kit: &dyn Kit) {
    let pair = kit.pair();
    let memory = Memory::new(64);
    for level in [OpFlags::MATCH_COMPLETE, OpFlags::COMMIT_COMPLETE] {
        if kit.getinfo(&kit.usual().tx_op_flags(level)).is_err() {
            let errnos = [Errno::EBADFLAGS, Errno::EINVAL, Errno::EOPNOTSUPP];
            refused(pair.a.out(pair.to_b, &memory).msg(level).send(), &errnos);
        }
    }
    works_on(&pair);
}

pub fn calls_before_enabling_are_refused(kit: &dyn Kit) {
    let side = kit.opening().open_disabled().unwrap();
    let other = kit.side();
    let to = side.insert(&other);
    let memory = Memory::new(64);
    let there = RemotePiece { addr: 0, len: 64, key: 1 };
    refused(side.out(to, &memory).send(), &[Errno::EOPBADSTATE]);
    refused(side.out(to, &memory).tag(1).send(), &[Errno::EOPBADSTATE]);
    refused(side.out(to, &memory).write(&[there]), &[Errno::EOPBADSTATE]);
    refused(side.out(to, &memory).read(&[there]), &[Errno::EOPBADSTATE]);
    refused(side.receive(&memory).post(), &[Errno::EOPBADSTATE]);
    refused(side.receive(&memory).tag(1).post(), &[Errno::EOPBADSTATE]);
    side.ep.enable().unwrap();
    side.receive(&memory).post().unwrap();
}

/// An endpoint of `side`'s domain to which nothing is bound.
fn bare(side: &TestEndpoint) -> Arc<dyn Endpoint> {
    side.domain.open_endpoint(&side.info).unwrap()
}

pub fn enabling_without_a_queue_is_refused(kit: &dyn Kit) {
    let side = kit.side();
    let ep = bare(&side);
    ep.bind_av(&side.av).unwrap();
    refused(ep.enable(), &[Errno::ENOCQ]);
    ep.bind_cq(&side.rx, BindFlags::RECV).unwrap();
    refused(ep.enable(), &[Errno::ENOCQ]);
    ep.bind_cq(&side.rx, BindFlags::TRANSMIT).unwrap();
    ep.enable().unwrap();
}

pub fn enabling_without_an_address_vector_is_refused(kit: &dyn Kit) {
    let side = kit.side();
    let ep = bare(&side);
    ep.bind_cq(&side.rx, BindFlags::RECV | BindFlags::TRANSMIT).unwrap();
    refused(ep.enable(), &[Errno::ENOAV]);
    ep.bind_av(&side.av).unwrap();
    ep.enable().unwrap();
}

pub fn a_direction_that_is_not_asked_for_needs_no_queue(kit: &dyn Kit) {
    let hints = kit.usual().caps(Caps::MSG | Caps::SEND);
    let info = kit.info(&hints);
    let fabric = ofi::open_fabric(&info).unwrap();
    let domain = fabric.open_domain(&info).unwrap();
    let ep = domain.open_endpoint(&info).unwrap();
    ep.bind_av(&domain.open_av(&AvAttr::default()).unwrap()).unwrap();
    ep.bind_cq(&domain.open_cq(&CqAttr::default()).unwrap(), BindFlags::TRANSMIT).unwrap();
    ep.enable().unwrap();
}

pub fn a_call_without_its_capability_is_refused(kit: &dyn Kit) {
    let a = kit.opening().hints(|hints| hints.caps(Caps::MSG)).open();
    let b = kit.side();
    let to_b = a.insert(&b);
    let memory = Memory::new(64);
    let there = RemotePiece { addr: 0, len: 64, key: 1 };
    let errnos = [Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::EINVAL];
    refused(a.out(to_b, &memory).tag(1).send(), &errnos);
    refused(a.receive(&memory).tag(1).post(), &errnos);
    refused(a.out(to_b, &memory).write(&[there]), &errnos);
    refused(a.out(to_b, &memory).read(&[there]), &errnos);
    let a = kit.opening().hints(|hints| hints.caps(Caps::TAGGED)).open();
    refused(a.out(a.insert(&b), &memory).send(), &errnos);
    refused(a.receive(&memory).post(), &errnos);
}

pub fn wrong_bindings_are_refused(kit: &dyn Kit) {
    let side = kit.side();
    let ep = bare(&side);
    let both = BindFlags::TRANSMIT | BindFlags::RECV;
    refused(ep.bind_cq(&side.rx, BindFlags::empty()), &[Errno::EBADFLAGS, Errno::EINVAL]);
    refused(ep.bind_cq(&side.rx, BindFlags::SELECTIVE_COMPLETION), &[Errno::EBADFLAGS, Errno::EINVAL]);
    refused(ep.bind_cq(&side.rx, both | BindFlags::REMOTE_WRITE), &[Errno::EBADFLAGS, Errno::EINVAL]);
    ep.bind_cq(&side.rx, both).unwrap();
    refused(ep.bind_cq(&side.rx, BindFlags::RECV), &[Errno::EBUSY, Errno::EINVAL]);
    ep.bind_av(&side.av).unwrap();
    refused(ep.bind_av(&side.av), &[Errno::EBUSY, Errno::EINVAL]);
    ep.enable().unwrap();
    refused(ep.bind_cq(&side.rx, both), &[Errno::EOPBADSTATE]);
    refused(ep.bind_av(&side.av), &[Errno::EOPBADSTATE]);
}

pub fn objects_of_another_domain_are_refused(kit: &dyn Kit) {
    let (side, other) = (kit.side(), kit.side());
    let ep = bare(&side);
    let both = BindFlags::TRANSMIT | BindFlags::RECV;
    refused(ep.bind_cq(&other.rx, both), &[Errno::EDOMAIN, Errno::EINVAL]);
    refused(ep.bind_av(&other.av), &[Errno::EDOMAIN, Errno::EINVAL]);
}

pub fn an_info_of_another_provider_is_refused(kit: &dyn Kit) {
    let side = kit.side();
    let mut info = side.info.clone();
    info.fabric_attr.prov_name = "nobody".into();
    refused(side.fabric.open_domain(&info), &[Errno::EINVAL]);
    refused(ofi::open_fabric(&info), &[Errno::ENODEV]);
    let mut info = side.info.clone();
    info.ep_attr.ep_type = EpType::Unspec;
    refused(side.domain.open_endpoint(&info), &[Errno::EINVAL]);
}

pub fn contradictory_hints_are_refused_with_the_field(kit: &dyn Kit) {
    let message = |hints: Hints| {
        let error = kit.getinfo(&hints).expect_err("contradictory hints");
        assert_eq!(error.errno(), Errno::ENODATA, "{error}");
        assert!(!error.refusals().is_empty(), "{error}");
        for refusal in error.refusals() {
            assert!(!refusal.wanted.is_empty() && !refusal.offered.is_empty(), "{refusal}");
        }
        error.refusals().iter().map(|refusal| refusal.field).collect::<Vec<_>>()
    };
    let right = kit.info(&kit.usual());
    // A transmit side with capabilities that the info lacks.
    let mut hints = kit.usual().caps(Caps::MSG);
    hints.info.tx_attr.caps = Caps::RMA | Caps::WRITE;
    assert!(message(hints).contains(&"tx_attr.caps"));
    let mut hints = kit.usual().caps(Caps::MSG);
    hints.info.rx_attr.caps = Caps::TAGGED | Caps::RECV;
    assert!(message(hints).contains(&"rx_attr.caps"));
    // The provider, with a domain or a fabric that it does not have.
    assert!(message(kit.usual().domain("no such domain")).contains(&"domain_attr.name"));
    assert!(message(kit.usual().fabric("no such fabric")).contains(&"fabric_attr.name"));
    // An address format, with another provider's protocol.
    assert!(message(kit.usual().protocol(Protocol::specific(1234))).contains(&"ep_attr.protocol"));
    let mut hints = kit.usual();
    hints.info.ep_attr.protocol_version = right.ep_attr.protocol_version + 1;
    assert!(message(hints).contains(&"ep_attr.protocol_version"));
    // A key whose length differs from the stated one.
    let mut hints = kit.usual().auth_key(vec![1, 2, 3]);
    hints.info.domain_attr.auth_key_size = 7;
    assert!(message(hints).contains(&"domain_attr.auth_key_size"));
    // Addresses in a format that the transport lacks.
    assert!(message(kit.usual().addr_format(AddrFormat::Gni)).contains(&"addr_format"));
}

pub fn an_address_that_contradicts_its_format_is_refused(kit: &dyn Kit) {
    let mut hints = kit.usual();
    hints.info.addr_format = AddrFormat::Str;
    hints.info.src_addr = Some(Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 5000))));
    match kit.getinfo(&hints) {
        Err(error) => assert_eq!(error.errno(), Errno::ENODATA, "{error}"),
        Ok(infos) => {
            // It must not be granted and then ignored: the endpoint would have another name than the requested one.
            let opened = kit.opening_for(Hints::from(infos[0].clone())).try_open();
            assert!(
                opened.is_err(),
                "the source address was ignored: {:?}",
                opened.map(|side| side.name()).ok()
            );
        }
    }
}

pub fn a_multi_receive_of_nothing_is_refused(kit: &dyn Kit) {
    let pair = kit.pair();
    refused(pair.b.receive(()).msg(OpFlags::MULTI_RECV).post(), &[Errno::EINVAL]);
    let memory = Memory::new(64);
    let pieces = vec![memory.slice(..32), memory.slice(32..)];
    refused(pair.b.receive(pieces).msg(OpFlags::MULTI_RECV).post(), &[Errno::EINVAL]);
    works_on(&pair);
}

pub fn a_descriptor_that_is_none_does_no_harm(kit: &dyn Kit) {
    // A descriptor of a closed registration, and an invalid one: refused or ignored, never followed.
    let pair = kit.pair();
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    let closed = {
        let region = pair.a.register(&from, MrAccess::SEND).unwrap();
        region.close().unwrap();
        region.desc()
    };
    for desc in [closed, Desc(0xDEAD_BEEF)] {
        pair.b.receive(&into).context(2).post().unwrap();
        let pieces = [from.slice(..).piece()];
        let descs = [desc];
        // SAFETY: the memory lives to the end of the case.
        let lent = unsafe { Lent::new(&pieces, &descs) };
        match pair.a.ep.send(&SendOp::new(lent, pair.to_b, Context(1))) {
            Ok(()) => {
                pair.drive("the receive", || pair.b.next_of(2)).done();
                pair.drive("the send", || pair.a.next_of(1)).done();
            }
            Err(error) => {
                assert!(!error.is_again(), "{error}");
                pair.b.cancel(2).unwrap();
                pair.drive("the cancellation", || pair.b.next_of(2)).failed();
            }
        }
    }
    works_on(&pair);
}

pub fn sizes_of_zero_work_or_are_refused_by_name(kit: &dyn Kit) {
    // Zero in hints means "any": the granted value is larger.
    let info = kit.info(&kit.usual());
    assert!(info.tx_attr.size > 0 && info.rx_attr.size > 0 && info.tx_attr.iov_limit > 0);
    assert!(
        info.rx_attr.iov_limit > 0 && info.tx_attr.rma_iov_limit > 0 && info.domain_attr.mr_iov_limit > 0
    );
    assert!(info.ep_attr.max_msg_size > 0 && info.domain_attr.mr_key_size > 0);
}
