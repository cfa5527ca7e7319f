//! Numbers that the application assigns to its peers, and insertions that are reported to an event queue (fi_av(3)).

use std::sync::Arc;

use crate::prelude::*;

/// Sends one message from `a` to `b`. Returns the source in `b`'s completion.
fn source(pair: &Pair) -> FiAddr {
    pair.b.receive(()).context(2).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    match pair.drive("the message", || pair.b.next_of(2)) {
        Event::Done(_, source) => source,
        Event::Failed(error) => panic!("{error:?}"),
    }
}

fn insert_as(av: &Arc<dyn AddressVector>, address: &Address, id: u64) -> Result<FiAddr> {
    let how = Insertion { user_ids: Some(&[FiAddr(id)]), ..Insertion::default() };
    av.insert_with(Addresses::Given(std::slice::from_ref(address)), &how)?.remove(0)
}

fn reporting(kit: &dyn Kit) -> (TestEndpoint, Arc<dyn AddressVector>, Arc<dyn EventQueue>) {
    let side = kit.side();
    let av = side.domain.open_av(&AvAttr { events: true, ..AvAttr::default() }).unwrap();
    let eq = side.fabric.open_eq(&EqAttr::default()).unwrap();
    (side, av, eq)
}

pub fn an_id_given_with_an_insertion_is_reported_as_the_source(kit: &dyn Kit) {
    let pair = kit.pair();
    assert_eq!(source(&pair), pair.to_a);
    // The number to send to stays the same; only the reported number changes, with the last insertion.
    assert_eq!(insert_as(&pair.b.av, &pair.a.name(), 4711), Ok(pair.to_a));
    assert_eq!(source(&pair), FiAddr(4711));
    assert_eq!(insert_as(&pair.b.av, &pair.a.name(), 1 << 40), Ok(pair.to_a));
    assert_eq!(source(&pair), FiAddr(1 << 40));
    pair.a.receive(()).context(3).post().unwrap();
    pair.post(|| pair.b.out(pair.to_a, ()).inject().send());
    pair.drive("b's message", || pair.a.next_of(3)).done();
}

pub fn an_id_is_reported_once_it_is_set(kit: &dyn Kit) {
    let with_ids = AvAttr { user_ids: true, ..AvAttr::default() };
    let pair = kit.pair_with(|opening| opening.av(with_ids.clone()));
    assert_eq!(source(&pair), FiAddr::NOTAVAIL, "nobody has an id yet");
    pair.b.av.set_user_id(pair.to_a, FiAddr(77)).unwrap();
    assert_eq!(source(&pair), FiAddr(77));
    pair.b.av.set_user_id(pair.to_a, FiAddr(78)).unwrap();
    assert_eq!(source(&pair), FiAddr(78));
    // An id is removed with its address.
    pair.b.av.remove(&[pair.to_a]).unwrap();
    assert_eq!(source(&pair), FiAddr::NOTAVAIL);
    assert_eq!(pair.b.insert(&pair.a), pair.to_a);
    assert_eq!(source(&pair), FiAddr::NOTAVAIL);
}

pub fn ids_are_given_in_the_way_that_the_vector_was_opened_for(kit: &dyn Kit) {
    let side = kit.side();
    let name = side.name();
    let errno = |result: Result<FiAddr>| result.unwrap_err().errno();
    let number = side.av.insert(std::slice::from_ref(&name)).remove(0).unwrap();
    assert_eq!(side.av.set_user_id(number, FiAddr(1)).unwrap_err().errno(), Errno::EINVAL);
    let av = side.domain.open_av(&AvAttr { user_ids: true, ..AvAttr::default() }).unwrap();
    assert_eq!(errno(insert_as(&av, &name, 5)), Errno::EINVAL);
    assert_eq!(av.set_user_id(FiAddr(0), FiAddr(1)).unwrap_err().errno(), Errno::EINVAL, "not inserted yet");
    let two = Insertion { user_ids: Some(&[FiAddr(1), FiAddr(2)]), ..Insertion::default() };
    let one_address = Addresses::Given(std::slice::from_ref(&name));
    assert_eq!(side.av.insert_with(one_address, &two).unwrap_err().errno(), Errno::EINVAL);
}

pub fn an_insertion_is_reported_after_its_failures(kit: &dyn Kit) {
    let (side, av, eq) = reporting(kit);
    av.bind_eq(&eq).unwrap();
    assert_eq!(av.bind_eq(&eq).unwrap_err().errno(), Errno::EBUSY);
    let bad = Address::new(side.info.addr_format, &[]);
    let list = [bad.clone(), side.name(), bad];
    let how = Insertion { context: Context(9), ..Insertion::default() };
    let inserted = av.insert_with(Addresses::Given(&list), &how).unwrap();
    assert_eq!(inserted[1], Ok(FiAddr(0)));
    assert_eq!(eq.read().unwrap_err().errno(), Errno::EAVAIL);
    for place in [0, 2] {
        let error = eq.read_error().unwrap();
        assert_eq!((error.fid, error.context, error.data), (av.fid(), Context(9), place));
        assert_eq!(Some(error.err), inserted[place as usize].as_ref().err().map(Error::errno));
    }
    let end = eq.read().unwrap();
    assert_eq!((end.kind, end.fid), (EventKind::AvComplete, av.fid()));
    assert_eq!((end.context, end.data), (Context(9), 1));
    // An event is reported even if no address was good, or none was given.
    assert!(av.insert(&list[..1])[0].is_err());
    assert_eq!(eq.read_error().unwrap().data, 0);
    assert_eq!(eq.read().unwrap().data, 0);
    assert!(av.insert(&[]).is_empty());
    assert_eq!(eq.read().unwrap().data, 0);
    assert!(eq.read().unwrap_err().is_again());
}

pub fn an_insertion_that_is_to_be_reported_needs_a_queue(kit: &dyn Kit) {
    let (side, av, eq) = reporting(kit);
    let error = av.insert(&[side.name()]).remove(0).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOEQ);
    assert_eq!(av.count(), 0);
    av.bind_eq(&eq).unwrap();
    assert!(av.insert(&[side.name()])[0].is_ok());
    assert_eq!(side.av.bind_eq(&eq).unwrap_err().errno(), Errno::EINVAL, "opened without events");
}
