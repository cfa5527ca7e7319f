//! Address vectors (fi_av(3)).

use crate::prelude::*;

/// Addresses of endpoints that need not exist, in the format of `side`: its own address with other digits at the end.
fn addresses(kit: &dyn Kit, count: usize) -> (TestEndpoint, Vec<Address>, Vec<TestEndpoint>) {
    let side = kit.side();
    let others: Vec<TestEndpoint> =
        (0..count).map(|_| kit.opening().beside(&side).queue(&side.rx).open()).collect();
    let names = others.iter().map(TestEndpoint::name).collect();
    (side, names, others)
}

fn numbers(inserted: Vec<Inserted>) -> Vec<Option<u64>> {
    inserted.into_iter().map(|one| one.ok().map(|address| address.0)).collect()
}

pub fn a_table_counts_from_zero_in_the_order_of_insertion(kit: &dyn Kit) {
    let (side, names, _others) = addresses(kit, 4);
    assert_eq!(numbers(side.av.insert(&names[..3])), [Some(0), Some(1), Some(2)]);
    assert_eq!(numbers(side.av.insert(&names[3..])), [Some(3)]);
    assert_eq!(side.av.count(), 4);
}

pub fn a_map_behaves_like_a_table(kit: &dyn Kit) {
    let (side, names, _others) = addresses(kit, 3);
    let av = side.domain.open_av(&AvAttr { av_type: AvType::Map, count: 10, ..AvAttr::default() }).unwrap();
    assert_eq!(numbers(av.insert(&names)), [Some(0), Some(1), Some(2)]);
}

pub fn an_address_is_looked_up_both_ways(kit: &dyn Kit) {
    let (side, names, _others) = addresses(kit, 3);
    let inserted = side.av.insert(&names);
    for (name, number) in names.iter().zip(inserted) {
        let number = number.unwrap();
        assert_eq!(&side.av.lookup(number).unwrap(), name);
        assert_eq!(side.av.reverse_lookup(name), Some(number));
    }
    assert_eq!(side.av.reverse_lookup(&side.name()), None, "it was not inserted");
}

pub fn an_address_survives_its_text(kit: &dyn Kit) {
    let (side, names, _others) = addresses(kit, 2);
    let numbers: Vec<FiAddr> = side.av.insert(&names).into_iter().map(|one| one.unwrap()).collect();
    for (name, number) in names.iter().zip(numbers) {
        let text = name.to_string();
        let read: Address = text.parse().unwrap();
        assert_eq!(side.av.insert(&[read]).remove(0), Ok(number), "{text}");
        // Also as a node, which must be given without a service.
        assert_eq!(side.av.insert_service(&text, ""), Ok(number), "{text}");
        assert_eq!(side.av.lookup(number).unwrap().to_string(), text);
    }
}

pub fn a_removed_number_is_used_again(kit: &dyn Kit) {
    let (side, names, _others) = addresses(kit, 4);
    side.av.insert(&names[..3]);
    side.av.remove(&[FiAddr(1)]).unwrap();
    assert_eq!(side.av.lookup(FiAddr(1)).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(side.av.reverse_lookup(&names[1]), None);
    assert_eq!(numbers(side.av.insert(&names[3..])), [Some(1)]);
    assert_eq!(side.av.lookup(FiAddr(1)).unwrap(), names[3]);
    assert_eq!(side.av.count(), 3);
}

pub fn a_duplicate_has_the_same_number_until_removed_as_often(kit: &dyn Kit) {
    let (side, names, _others) = addresses(kit, 1);
    let name = [names[0].clone()];
    assert_eq!(numbers(side.av.insert(&name)), [Some(0)]);
    assert_eq!(numbers(side.av.insert(&name)), [Some(0)]);
    assert_eq!(side.av.count(), 1);
    side.av.remove(&[FiAddr(0)]).unwrap();
    assert_eq!(side.av.lookup(FiAddr(0)).unwrap(), names[0]);
    side.av.remove(&[FiAddr(0)]).unwrap();
    assert!(side.av.lookup(FiAddr(0)).is_err());
}

pub fn bad_addresses_among_good_ones_fail_alone(kit: &dyn Kit) {
    let (side, names, _others) = addresses(kit, 2);
    let format = side.info.addr_format;
    let bad = Address::new(format, &[]);
    let inserted = side.av.insert(&[names[0].clone(), bad.clone(), names[1].clone(), bad]);
    let errors: Vec<Option<Errno>> =
        inserted.iter().map(|one| one.as_ref().err().map(Error::errno)).collect();
    assert_eq!(errors, [None, Some(Errno::EINVAL), None, Some(Errno::EINVAL)]);
    assert_eq!(numbers(inserted), [Some(0), None, Some(1), None]);
}

pub fn an_address_of_another_format_is_refused(kit: &dyn Kit) {
    let side = kit.side();
    let efa = Address::new(AddrFormat::Efa, &[0; 32]);
    let error = side.av.insert(&[efa]).remove(0).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    let detail = error.detail().expect("a reason");
    assert!(!detail.wanted.is_empty() && !detail.found.is_empty(), "{error}");
}

pub fn removing_what_is_not_there_is_invalid(kit: &dyn Kit) {
    let (side, names, _others) = addresses(kit, 2);
    side.av.insert(&names);
    for wrong in [FiAddr(2), FiAddr(1 << 40), FiAddr::NOTAVAIL] {
        assert_eq!(side.av.remove(&[wrong]).unwrap_err().errno(), Errno::EINVAL, "{wrong:?}");
        assert_eq!(side.av.lookup(wrong).unwrap_err().errno(), Errno::EINVAL, "{wrong:?}");
    }
    // The other addresses of the call are removed nevertheless.
    assert!(side.av.remove(&[FiAddr(0), FiAddr(9), FiAddr(1)]).is_err());
    assert_eq!(side.av.count(), 0);
}

pub fn sending_to_a_removed_address_is_invalid(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.warm_up();
    pair.a.av.remove(&[pair.to_b]).unwrap();
    let error = pair.a.out(pair.to_b, ()).inject().send().unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    // The peer can be inserted again.
    let to_b = pair.a.insert(&pair.b);
    pair.b.receive(()).context(2).post().unwrap();
    pair.post(|| pair.a.out(to_b, ()).inject().send());
    assert_eq!(pair.done(&pair.b).op_context, Context(2));
}

pub fn a_number_used_again_leads_to_the_new_peer(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.warm_up();
    let c = kit.side();
    pair.a.av.remove(&[pair.to_b]).unwrap();
    let to_c = pair.a.insert(&c);
    assert_eq!(to_c, pair.to_b, "the number is used again");
    c.receive(()).context(3).post().unwrap();
    pair.b.receive(()).context(2).post().unwrap();
    wait::drive(&[&pair.a, &pair.b, &c], "room", || pair.a.out(to_c, ()).inject().send().ok());
    wait::drive(&[&pair.a, &pair.b, &c], "the message", || c.next_of(3)).done();
    assert!(pair.b.next_of(2).is_none());
}

pub fn the_source_follows_removal_and_reuse(kit: &dyn Kit) {
    let pair = kit.pair();
    let c = kit.side();
    let c_to_b = c.insert(&pair.b);
    let source_of_next = || match pair.drive("a message", || pair.b.next_of(2)) {
        Event::Done(_, source) => source,
        Event::Failed(error) => panic!("{error:?}"),
    };
    pair.b.receive(()).context(2).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    assert_eq!(source_of_next(), pair.to_a);
    pair.b.av.remove(&[pair.to_a]).unwrap();
    let from_c = pair.b.insert(&c);
    assert_eq!(from_c, pair.to_a, "the number is used again");
    pair.b.receive(()).context(2).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    assert_eq!(source_of_next(), FiAddr::NOTAVAIL);
    pair.b.receive(()).context(2).post().unwrap();
    wait::drive(&[&c], "room", || c.out(c_to_b, ()).inject().send().ok());
    wait::drive(&[&c, &pair.b], "c's message", || (pair.b.pending() > 0).then_some(()));
    assert_eq!(source_of_next(), from_c);
}

pub fn one_vector_serves_many_endpoints(kit: &dyn Kit) {
    let first = kit.side();
    let target = kit.side();
    let to_target = first.insert(&target);
    let info = first.info.clone();
    let second = first.domain.open_endpoint(&info).unwrap();
    second.bind_cq(&first.tx, BindFlags::TRANSMIT | BindFlags::RECV).unwrap();
    second.bind_av(&first.av).unwrap();
    second.enable().unwrap();
    target.receive(()).context(2).post().unwrap();
    wait::drive(&[&first, &target], "room", || {
        second.send(&SendOp::new(Lent::EMPTY, to_target, Context(1))).ok()
    });
    wait::drive(&[&first, &target], "the message", || target.next_of(2)).done();
}

pub fn services_are_inserted_by_name(kit: &dyn Kit) {
    let hints = kit.usual().addr_format(AddrFormat::SockaddrIn);
    if kit.getinfo(&hints).is_err() {
        return;
    }
    let (a, b) = (kit.opening_for(hints.clone()).open(), kit.opening_for(hints).open());
    let port = b.name().to_socket_addr().unwrap().port().to_string();
    let to_b = a.av.insert_service("127.0.0.1", &port).unwrap();
    assert_eq!(to_b, FiAddr(0));
    assert_eq!(a.av.insert_service("localhost", &port), Ok(to_b), "the same endpoint by another name");
    b.receive(()).context(2).post().unwrap();
    wait::drive(&[&a, &b], "room", || a.out(to_b, ()).inject().send().ok());
    wait::drive(&[&a, &b], "the message", || b.next_of(2)).done();
    for (node, service) in
        [("no.such.host.invalid", "1"), ("127.0.0.1", "not a port"), ("127.0.0.1", "70000")]
    {
        let error = a.av.insert_service(node, service).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL, "{node} {service}: {error}");
    }
}

pub fn ranges_of_services_are_inserted(kit: &dyn Kit) {
    let hints = kit.usual().addr_format(AddrFormat::SockaddrIn);
    if kit.getinfo(&hints).is_err() {
        return;
    }
    let side = kit.opening_for(hints).open();
    let inserted = side.av.insert_range("127.0.0.1", 1, "5000", 4).unwrap();
    assert_eq!(numbers(inserted), [Some(0), Some(1), Some(2), Some(3)]);
    for number in 0..4 {
        let address = side.av.lookup(FiAddr(number)).unwrap();
        assert_eq!(address.to_socket_addr().unwrap().port(), 5000 + number as u16);
    }
    // Past the last port: the good ones are inserted.
    let inserted = side.av.insert_range("127.0.0.1", 1, "65534", 4);
    if let Ok(inserted) = inserted {
        assert_eq!(inserted.iter().filter(|one| one.is_ok()).count(), 2);
    }
    let error = side.av.insert_range("localhost", 2, "5000", 2).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL, "a name without a number does not count: {error}");
}
