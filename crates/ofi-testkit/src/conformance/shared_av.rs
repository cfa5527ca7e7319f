//! Address vectors that processes share (fi_av(3), `fi_av_attr.name`). Here domains of one process stand for processes;
//! for several processes and their deaths see `tests/tests/processes/shared_av.rs`.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::prelude::*;

/// A name that no other case uses.
fn named(read_only: bool, name: &str) -> AvAttr {
    AvAttr { name: Some(name.into()), read_only, ..AvAttr::default() }
}

fn new_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("conformance-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn an_address_has_one_number_in_all_processes_that_share_its_vector(kit: &dyn Kit) {
    let (a, b, name) = (kit.side(), kit.side(), new_name());
    let mut vectors = vec![a.domain.open_av(&named(false, &name)).unwrap()];
    vectors.push(b.domain.open_av(&named(false, &name)).unwrap());
    assert_eq!(vectors[0].insert(&[a.name()])[0], Ok(FiAddr(0)));
    assert_eq!(vectors[1].insert(&[b.name(), a.name()]), [Ok(FiAddr(1)), Ok(FiAddr(0))]);
    vectors.push(b.domain.open_av(&named(true, &name)).unwrap());
    for vector in &vectors {
        assert_eq!(vector.count(), 2);
        assert_eq!(vector.lookup(FiAddr(1)).unwrap(), b.name());
        assert_eq!(vector.reverse_lookup(&a.name()), Some(FiAddr(0)));
        let numbers = vector.map_addr().expect("the numbers of a shared vector").cast::<[u64; 2]>();
        // SAFETY: two addresses were inserted, the vector is open, and no other endpoint writes now.
        assert_eq!(unsafe { numbers.read_volatile() }, [0, 1]);
    }
    assert!(a.av.map_addr().is_none(), "a vector without name");
}

pub fn a_removal_from_a_shared_vector_is_seen_by_all(kit: &dyn Kit) {
    let (a, b, name) = (kit.side(), kit.side(), new_name());
    let here = a.domain.open_av(&named(false, &name)).unwrap();
    let there = b.domain.open_av(&named(false, &name)).unwrap();
    here.insert(&[a.name(), b.name()]);
    assert_eq!(there.count(), 2);
    there.remove(&[FiAddr(0)]).unwrap();
    assert_eq!(here.lookup(FiAddr(0)).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(here.reverse_lookup(&a.name()), None);
    assert_eq!(here.remove(&[FiAddr(0)]).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(here.insert(&[a.name()])[0], Ok(FiAddr(0)), "the lowest number is used again");
    assert_eq!(there.lookup(FiAddr(0)).unwrap(), a.name());
}

pub fn a_vector_opened_to_look_at_must_be_there_and_is_not_changed(kit: &dyn Kit) {
    let (side, name) = (kit.side(), new_name());
    let open = |attr| side.domain.open_av(&attr).map_err(|error: Error| error.errno());
    assert_eq!(open(named(true, &name)).err(), Some(Errno::ENOENT));
    assert_eq!(open(AvAttr { name: None, ..named(true, &name) }).err(), Some(Errno::EINVAL));
    assert_eq!(open(named(false, "")).err(), Some(Errno::EINVAL));
    let owner = open(named(false, &name)).unwrap();
    owner.insert(&[side.name()]);
    let looking = open(named(true, &name)).unwrap();
    assert_eq!(looking.insert(&[side.name()])[0].as_ref().unwrap_err().errno(), Errno::EACCES);
    assert_eq!(looking.remove(&[FiAddr(0)]).unwrap_err().errno(), Errno::EACCES);
    assert_eq!(looking.lookup(FiAddr(0)).unwrap(), side.name());
}

pub fn a_shared_vector_is_there_while_somebody_has_it(kit: &dyn Kit) {
    let (side, name) = (kit.side(), new_name());
    let first = side.domain.open_av(&named(false, &name)).unwrap();
    first.insert(&[side.name()]);
    let second = side.domain.open_av(&named(true, &name)).unwrap();
    drop(first);
    let third = side.domain.open_av(&named(false, &name)).unwrap();
    assert_eq!(third.lookup(FiAddr(0)).unwrap(), side.name());
    drop((second, third));
    let anew = side.domain.open_av(&named(false, &name)).unwrap();
    assert_eq!(anew.count(), 0);
}

pub fn endpoints_send_by_the_numbers_of_a_shared_vector(kit: &dyn Kit) {
    let name = new_name();
    let a = kit.opening().av(named(false, &name)).open();
    let b = kit.opening().av(named(true, &name)).open();
    let (to_a, to_b) = (a.insert(&a), a.insert(&b));
    let sent = |from: &TestEndpoint, to: FiAddr, at: &TestEndpoint| {
        at.receive(()).context(2).post().unwrap();
        wait::drive(&[&a, &b], "room", || from.out(to, ()).inject().send().ok());
        match wait::drive(&[&a, &b], "the message", || at.next_of(2)) {
            Event::Done(_, source) => source,
            Event::Failed(error) => panic!("{error:?}"),
        }
    };
    assert_eq!(sent(&a, to_b, &b), to_a);
    assert_eq!(sent(&b, to_a, &a), to_b, "b inserted nothing");
    // A removal by one domain removes the address for all.
    a.av.remove(&[to_a]).unwrap();
    assert_eq!(b.out(to_a, ()).inject().send().unwrap_err().errno(), Errno::EINVAL);
}
