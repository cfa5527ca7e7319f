//! Authorization keys: which endpoints may communicate, and which peers may access a registration (fi_endpoint(3),
//! fi_domain(3), fi_mr(3)).

use std::sync::Arc;

use ofi::raw::AV_AUTH_KEY;

use crate::connect::{Listener, connect, event_of, outcome};
use crate::prelude::*;

const JOB: &[u8] = b"job 7";
const OTHER: &[u8] = b"another job, with a longer key";

fn with_key(mut hints: Hints, key: &[u8]) -> Hints {
    (hints.info.ep_attr.auth_key_size, hints.info.ep_attr.auth_key) = (key.len(), key.to_vec());
    hints
}

fn opening(kit: &dyn Kit, key: &[u8]) -> Opening {
    kit.opening().hints(|hints| with_key(hints, key))
}

fn side(kit: &dyn Kit, key: &[u8]) -> TestEndpoint {
    opening(kit, key).open()
}

#[track_caller]
fn talk(pair: &Pair) {
    pair.warm_up();
    let (sent, got) = (Memory::patterned(50_000, 3), Memory::new(50_000));
    pair.b.receive(&got).context(1).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &sent).context(2).send());
    assert_eq!(pair.drive("the message", || pair.b.next_of(1)).done().len, 50_000);
    pair.drive("the send", || pair.a.next_of(2)).done();
    got.check(50_000, 3);
}

/// Every operation of `a` on `b` ends with an error, and `b` is not notified.
#[track_caller]
fn refused_by(pair: &Pair) {
    let target = Memory::new(64);
    let region = pair.b.register(&target, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    let (bytes, got) = (Memory::patterned(64, 1), Memory::new(64));
    pair.b.receive(&got).context(9).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &bytes).context(1).send());
    assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED);
    pair.post(|| pair.a.out(pair.to_b, &bytes).inject().send());
    assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED, "an inject that failed");
    pair.post(|| pair.a.out(pair.to_b, &bytes).context(2).write(&[remote(&region)]));
    assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED);
    pair.post(|| pair.a.out(pair.to_b, &bytes).context(3).read(&[remote(&region)]));
    assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED);
    pair.quiet(Duration::from_millis(20));
    assert!(target.bytes().iter().all(|&byte| byte == 0));
    pair.b.cancel(9).unwrap();
    assert_eq!(pair.failed(&pair.b).err, Errno::ECANCELED);
}

pub fn authorization_keys_are_granted_or_refused_by_name(kit: &dyn Kit) {
    let plain = kit.info(&kit.usual());
    assert_eq!((plain.ep_attr.auth_key_size, plain.domain_attr.auth_key_size), (0, 0), "none is used");
    let mut of_domain = kit.usual();
    (of_domain.info.domain_attr.auth_key_size, of_domain.info.domain_attr.auth_key) =
        (JOB.len(), JOB.to_vec());
    let of_endpoint = with_key(kit.usual(), JOB);
    let mut in_vector = kit.usual();
    in_vector.info.domain_attr.auth_key_size = AV_AUTH_KEY;
    if kit.getinfo(&of_endpoint).is_ok() {
        assert_eq!(kit.info(&of_domain).domain_attr.auth_key, JOB);
        assert_eq!(kit.info(&of_endpoint).ep_attr.auth_key, JOB);
        assert_eq!(kit.info(&of_endpoint).ep_attr.auth_key_size, JOB.len());
        if plain.ep_attr.ep_type == EpType::Msg {
            let refusal = kit.getinfo(&in_vector).unwrap_err(); // no vector that could have keys
            assert!(refusal.to_string().contains("domain_attr.auth_key_size"), "{refusal}");
        } else {
            assert_eq!(kit.info(&in_vector).domain_attr.auth_key_size, AV_AUTH_KEY);
        }
        let refusal = kit.getinfo(&with_key(kit.usual(), &[1; 4096])).unwrap_err();
        assert!(refusal.to_string().contains("ep_attr.auth_key_size"), "{refusal}");
    } else {
        for (hints, field) in
            [(of_domain, "domain_attr"), (of_endpoint, "ep_attr"), (in_vector, "domain_attr")]
        {
            let refusal = kit.getinfo(&hints).unwrap_err();
            assert!(refusal.to_string().contains(&format!("{field}.auth_key_size")), "{refusal}");
        }
    }
}

pub fn a_key_that_nobody_could_check_opens_nothing(kit: &dyn Kit) {
    let info = kit.info(&kit.usual());
    let fabric = ofi::open_fabric(&info).unwrap();
    let domain = fabric.open_domain(&info).unwrap();
    let long = vec![1; 4096];
    for (size, key) in [(4096, &long[..]), (3, JOB), (JOB.len() + 1, JOB)] {
        let mut bad = info.clone();
        (bad.ep_attr.auth_key_size, bad.ep_attr.auth_key) = (size, key.to_vec());
        assert_eq!(domain.open_endpoint(&bad).err().unwrap().errno(), Errno::EINVAL, "{size}");
        let mut bad = info.clone();
        (bad.domain_attr.auth_key_size, bad.domain_attr.auth_key) = (size, key.to_vec());
        let opened = fabric.open_domain(&bad);
        assert_eq!(opened.err().unwrap().errno(), Errno::EINVAL, "{size}");
    }
}

pub fn endpoints_of_one_key_talk(kit: &dyn Kit) {
    talk(&Pair::of(side(kit, JOB), side(kit, JOB)));
}

pub fn a_peer_with_another_key_is_refused(kit: &dyn Kit) {
    let pair = Pair::of(side(kit, JOB), side(kit, OTHER));
    refused_by(&pair);
    // Both continue with peers of their own.
    let [a, b] = [JOB, OTHER].map(|key| side(kit, key));
    let Pair { a: first, b: second, .. } = pair;
    talk(&Pair::of(first, a));
    talk(&Pair::of(b, second));
}

pub fn no_key_fits_only_no_key(kit: &dyn Kit) {
    refused_by(&Pair::of(side(kit, JOB), side(kit, b"")));
    refused_by(&Pair::of(side(kit, b""), side(kit, JOB)));
}

pub fn both_may_begin_and_both_are_refused(kit: &dyn Kit) {
    let pair = Pair::of(side(kit, JOB), side(kit, OTHER));
    let bytes = Memory::patterned(64, 1);
    for _ in 0..20 {
        pair.post(|| pair.a.out(pair.to_b, &bytes).context(1).send());
        pair.post(|| pair.b.out(pair.to_a, &bytes).context(2).send());
        assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED);
        assert_eq!(pair.failed(&pair.b).err, Errno::EKEYREJECTED);
    }
}

pub fn a_domain_s_key_is_that_of_its_endpoints(kit: &dyn Kit) {
    let of_domain = kit.opening().hints(|hints| hints.auth_key(JOB)).open();
    talk(&Pair::of(of_domain, side(kit, JOB)));
    // An endpoint's own key takes precedence.
    let both = opening(kit, OTHER).hints(|hints| hints.auth_key(JOB));
    refused_by(&Pair::of(both.clone().open(), side(kit, JOB)));
    talk(&Pair::of(both.open(), side(kit, OTHER)));
}

pub fn a_registration_is_accessed_through_endpoints_of_its_key(kit: &dyn Kit) {
    const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
    let first = kit.opening().hints(|hints| hints.auth_key(JOB)).open();
    let second = opening(kit, OTHER).beside(&first).open();
    let register = |memory: &Memory, key: &'static [u8]| {
        let pieces = [memory.slice(..).piece()];
        // SAFETY: `memory` outlives the registrations of this case, and is read only through raw pointers.
        let mut attr = unsafe { MrAttr::new(&pieces, RIGHTS) };
        attr.auth_key = key;
        first.domain.register(&attr)
    };
    let write = |pair: &Pair, region: &Arc<dyn MemoryRegion>| {
        let bytes = Memory::patterned(region.len(), 5);
        pair.post(|| pair.a.out(pair.to_b, &bytes).context(1).write(&[remote(region)]));
        pair.next(&pair.a)
    };
    let memories = [Memory::new(64), Memory::library(&first.domain, 4096), Memory::new(64)];
    let regions = [register(&memories[0], b""), register(&memories[1], OTHER), register(&memories[2], JOB)];
    let [of_domain, other, same] = regions.map(Result::unwrap);
    assert_eq!(register(&memories[0], &[1; 4096]).err().unwrap().errno(), Errno::EINVAL);
    let (job, foreign) = (Pair::of(side(kit, JOB), first), Pair::of(side(kit, OTHER), second));
    for (pair, region, allowed) in [
        (&job, &of_domain, true),
        (&job, &same, true),
        (&job, &other, false),
        (&foreign, &of_domain, false),
        (&foreign, &same, false),
        (&foreign, &other, true),
    ] {
        match (write(pair, region), allowed) {
            (Event::Done(..), true) => {}
            (Event::Failed(error), false) => assert_eq!(error.err, Errno::EKEYREJECTED),
            (event, _) => panic!("allowed: {allowed}, and {event:?}"),
        }
    }
    drop((of_domain, other, same));
}

/// An endpoint in a domain that keeps authorization keys in address vectors.
fn in_vector(kit: &dyn Kit) -> TestEndpoint {
    let keyed = |mut hints: Hints| {
        hints.info.domain_attr.auth_key_size = AV_AUTH_KEY;
        hints
    };
    kit.opening().hints(keyed).open_disabled().unwrap()
}

fn insert_of(side: &TestEndpoint, key: FiAddr, address: &Address) -> Result<FiAddr> {
    let how = Insertion { auth_key: Some(key), ..Insertion::default() };
    side.av.insert_with(Addresses::Given(std::slice::from_ref(address)), &how)?.remove(0)
}

pub fn a_vector_s_key_is_that_of_its_endpoints_and_addresses(kit: &dyn Kit) {
    let a = in_vector(kit);
    assert_eq!(a.info.domain_attr.max_ep_auth_key, 1);
    let early = a.ep.name().unwrap();
    assert_eq!(a.ep.enable().unwrap_err().errno(), Errno::ENOKEY, "before there is a key");
    let key = a.av.insert_auth_key(JOB).unwrap();
    assert_eq!(a.av.insert_auth_key(JOB).unwrap(), key);
    assert_eq!(a.av.insert_auth_key(OTHER).unwrap_err().errno(), Errno::ENOSPC);
    for bad in [&[][..], &[1; 4096]] {
        assert_eq!(a.av.insert_auth_key(bad).unwrap_err().errno(), Errno::EINVAL);
    }
    a.ep.enable().unwrap();
    assert_eq!(a.name(), early, "the name that it had without the key");
    let b = side(kit, JOB);
    let without = a.av.insert(&[b.name()]).remove(0);
    assert_eq!(without.unwrap_err().errno(), Errno::EINVAL, "an address without a key");
    assert_eq!(insert_of(&a, FiAddr(key.0 + 1), &b.name()).unwrap_err().errno(), Errno::EINVAL);
    let to_b = insert_of(&a, key, &b.name()).unwrap();
    assert_ne!(to_b, key);
    assert_eq!((a.av.auth_key(key).unwrap(), a.av.auth_key(to_b).unwrap()), (JOB.to_vec(), JOB.to_vec()));
    assert_eq!(a.av.auth_key(FiAddr(77)).unwrap_err().errno(), Errno::EINVAL);
    let to_a = b.insert(&a);
    let pair = Pair { a, b, to_b, to_a };
    talk(&pair);
    // A receive from all peers with the key.
    let (sent, got) = (Memory::patterned(10, 1), Memory::new(10));
    pair.a.receive(&got).from(key).msg(OpFlags::AUTH_KEY).context(4).post().unwrap();
    pair.post(|| pair.b.out(pair.to_a, &sent).context(5).send());
    pair.drive("the message", || pair.a.next_of(4)).done();
    let unknown = pair.a.receive(&got).from(FiAddr(key.0 + 1)).msg(OpFlags::AUTH_KEY).post();
    assert_eq!(unknown.unwrap_err().errno(), Errno::EINVAL);
    // A registration states its key.
    let pieces = [got.slice(..).piece()];
    // SAFETY: `got` outlives the registration, and is read only through raw pointers.
    let mut attr = unsafe { MrAttr::new(&pieces, MrAccess::REMOTE_READ) };
    assert_eq!(pair.a.domain.register(&attr).err().unwrap().errno(), Errno::EINVAL);
    attr.auth_key = JOB;
    let region = pair.a.domain.register(&attr).unwrap();
    let into = Memory::new(10);
    pair.post(|| pair.b.out(pair.to_a, &into).context(6).read(&[remote(&region)]));
    pair.drive("the read", || pair.b.next_of(6)).done();
    into.check(10, 1);
}

pub fn a_key_stays_in_its_vector_while_anything_is_of_it(kit: &dyn Kit) {
    let a = in_vector(kit);
    let key = a.av.insert_auth_key(JOB).unwrap();
    a.ep.enable().unwrap();
    let to_a = insert_of(&a, key, &a.name()).unwrap();
    assert_eq!(a.av.remove_auth_key(key).unwrap_err().errno(), Errno::EBUSY);
    let TestEndpoint { direct, ep, av, .. } = a;
    drop((direct, ep));
    assert_eq!(av.remove_auth_key(key).unwrap_err().errno(), Errno::EBUSY, "an address is of it");
    av.remove(&[to_a]).unwrap();
    av.remove_auth_key(key).unwrap();
    assert_eq!(av.remove_auth_key(key).unwrap_err().errno(), Errno::EINVAL);
    let next = av.insert_auth_key(OTHER).unwrap();
    assert_ne!(next, key, "a number is not used again");
    let named = in_vector(kit);
    let key = named.av.insert_auth_key(JOB).unwrap();
    named.ep.name().unwrap();
    assert_eq!(named.av.remove_auth_key(key).unwrap_err().errno(), Errno::EBUSY, "a name before enabling");
    let TestEndpoint { direct, ep, av, .. } = named;
    drop((direct, ep));
    av.remove_auth_key(key).unwrap();
    let plain = kit.side();
    assert_eq!(plain.av.insert_auth_key(JOB).unwrap_err().errno(), Errno::EINVAL, "in a domain without");
}

fn connected(kit: &dyn Kit, key: &[u8]) -> Opening {
    let caps = Caps::MSG | Caps::TAGGED | Caps::RMA;
    kit.opening_for(with_key(kit.usual().ep_type(EpType::Msg).caps(caps), key))
}

pub fn a_connection_of_one_key_comes_about(kit: &dyn Kit) {
    let caller = connected(kit, JOB).open_disabled().unwrap();
    let accepting = connect(&caller, connected(kit, JOB)).unwrap();
    let (sent, got) = (Memory::patterned(100, 7), Memory::new(100));
    accepting.receive(&got).context(1).post().unwrap();
    let sides = [&caller, &accepting];
    wait::drive(&sides, "room", || caller.out(FiAddr::UNSPEC, &sent).context(2).send().ok());
    wait::drive(&sides, "the message", || accepting.next_of(1)).done();
    got.check(100, 7);
}

pub fn a_request_with_another_key_is_refused(kit: &dyn Kit) {
    let listener = Listener::open(&connected(kit, JOB).first_info().unwrap()).unwrap();
    let name = listener.pep.name().unwrap();
    for key in [OTHER, b""] {
        let caller = connected(kit, key).open_disabled().unwrap();
        caller.ep.connect(&name, b"").unwrap();
        let told = wait::drive(&[&caller], "an answer", || {
            assert!(crate::connect::try_outcome(&listener.eq).is_none(), "the listener is not bothered");
            crate::connect::try_outcome(caller.eq())
        });
        assert_eq!(told.unwrap_err().err, Errno::EKEYREJECTED);
    }
    let caller = connected(kit, JOB).open_disabled().unwrap();
    caller.ep.connect(&name, b"").unwrap();
    let request = listener.request(&[&caller]);
    let accepting = connected(kit, JOB).info(*request.info.unwrap()).open_disabled().unwrap();
    accepting.ep.accept(b"").unwrap();
    event_of(&caller, ofi::raw::EventKind::Connected, &[&accepting]);
    assert!(outcome(accepting.eq(), &[&caller, &accepting]).is_ok());
}

pub fn a_registration_for_one_peer_is_accessed_by_no_other(kit: &dyn Kit) {
    const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
    let Pair { a: friend, b: owner, to_b, .. } = kit.pair();
    let [stranger, unknown] = [kit.side(), kit.side()];
    let [to_owner, _] = [stranger.insert(&owner), owner.insert(&stranger)];
    let name = friend.name();
    let sides = [&friend, &stranger, &owner];
    for len in [64, 300_000] {
        for memory in [Memory::new(len), Memory::library(&owner.domain, len)] {
            let pieces = [memory.slice(..).piece()];
            let register = |peer: &Address| {
                // SAFETY: `memory` outlives the registrations, and is read only through raw pointers.
                let mut attr = unsafe { MrAttr::new(&pieces, RIGHTS) };
                attr.peer = Some(peer);
                owner.domain.register(&attr).unwrap()
            };
            let bytes = Memory::patterned(len, 5);
            let access = |from: &TestEndpoint, to, region: &Arc<dyn MemoryRegion>, writes: bool| {
                let out = from.out(to, &bytes).context(1);
                let remote = [remote(region)];
                wait::drive(&sides, "room", || {
                    let posted = if writes { out.clone().write(&remote) } else { out.clone().read(&remote) };
                    posted.ok()
                });
                wait::drive(&sides, "the access", || from.next_of(1))
            };
            // The first peer, and again once its address is known.
            let region = register(&name);
            for _ in 0..2 {
                for writes in [true, false] {
                    let refused = access(&stranger, to_owner, &region, writes).failed();
                    assert_eq!(refused.err, Errno::EKEYREJECTED, "{len} bytes, a write: {writes}");
                    assert!(!writes || memory.bytes().iter().all(|&byte| byte == 0), "nothing is written");
                    access(&friend, to_b, &region, false).done();
                }
            }
            access(&friend, to_b, &region, true).done();
            drop(region);
            // A peer that was never heard of may be named; the registration then excludes all others.
            let region = register(&unknown.name());
            assert_eq!(access(&friend, to_b, &region, false).failed().err, Errno::EKEYREJECTED);
        }
    }
}
