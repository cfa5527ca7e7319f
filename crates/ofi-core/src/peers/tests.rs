use std::net::SocketAddr;

use ofi_api::{AddrFormat, Address, Errno, Error, FiAddr};
use proptest::prelude::*;

use super::*;

fn socket(text: &str) -> Address {
    Address::from(text.parse::<SocketAddr>().unwrap())
}

fn table() -> AddressTable {
    AddressTable::new(AddrFormat::Sockaddr, 0, UserIds::PerInsert)
}

/// The `n`th peer of these tests.
fn peer(n: u32) -> Address {
    socket(&format!("10.{}.{}.{}:5000", n >> 16 & 255, n >> 8 & 255, n & 255))
}

fn take_all(_: PeerEntry, _: &[u8]) -> ofi_api::Result<()> {
    Ok(())
}

#[test]
fn indices_are_dense_and_the_lowest_vacant_one_is_used_again() {
    let mut table = table();
    for n in 1..=5 {
        assert_eq!(table.insert(peer(n).bytes()), Ok(FiAddr(u64::from(n) - 1)));
    }
    table.remove(FiAddr(3)).unwrap();
    table.remove(FiAddr(1)).unwrap();
    assert_eq!(table.len(), 3);
    assert_eq!(table.insert(peer(9).bytes()), Ok(FiAddr(1)));
    assert_eq!(table.insert(peer(8).bytes()), Ok(FiAddr(3)));
    assert_eq!(table.insert(peer(7).bytes()), Ok(FiAddr(5)));
    assert_eq!(table.iter().map(|(at, _)| at.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn one_peer_has_one_index_however_it_is_spelled() {
    let mut table = table();
    let v4 = socket("10.1.1.1:5000");
    let mapped = socket("[::ffff:10.1.1.1]:5000");
    assert_eq!(table.insert(v4.bytes()), Ok(FiAddr(0)));
    assert_eq!(table.insert(mapped.bytes()), Ok(FiAddr(0)));
    assert_eq!(table.find(mapped.bytes()), Some(FiAddr(0)));
    assert_eq!(table.find_address(&mapped), Some(FiAddr(0)));
    assert_eq!(table.get(FiAddr(0)), Ok(v4.bytes()));
    assert_eq!(table.len(), 1);
    assert_eq!(table.remove(FiAddr(0)), Ok(Removed::Kept));
    assert!(matches!(table.remove(FiAddr(0)), Ok(Removed::Gone(_))));
    assert_eq!(table.find(v4.bytes()), None);
    assert!(table.is_empty());
}

#[test]
fn coming_and_going_does_not_wear_the_index_out() {
    let mut table = table();
    for n in 0..50 {
        table.insert(peer(n + 1).bytes()).unwrap();
    }
    for n in 0..20_000 {
        assert!(table.remove(FiAddr(u64::from(n % 50))).is_ok());
        assert_eq!(table.insert(peer(1000 + n).bytes()), Ok(FiAddr(u64::from(n % 50))));
        assert_eq!(table.find(peer(1000 + n).bytes()), Some(FiAddr(u64::from(n % 50))));
    }
    assert_eq!(table.len(), 50);
}

#[test]
fn an_index_without_an_address_is_invalid() {
    let mut table = table();
    table.insert(peer(1).bytes()).unwrap();
    for wrong in [1, 127, 128, u64::from(u32::MAX), 1 << 32, FiAddr::UNSPEC.0] {
        let wrong = FiAddr(wrong);
        assert_eq!(table.remove(wrong), Err(Error::new(Errno::EINVAL)), "{wrong:?}");
        assert_eq!(table.get(wrong), Err(Error::new(Errno::EINVAL)));
        assert_eq!(table.peer(wrong), Err(Error::new(Errno::EINVAL)));
    }
    table.remove(FiAddr(0)).unwrap();
    assert!(table.remove(FiAddr(0)).is_err());
}

#[test]
fn a_cache_notices_that_an_index_means_another_peer() {
    let mut table = table();
    let removals = table.removals();
    table.insert(peer(1).bytes()).unwrap();
    let cached = table.peer(FiAddr(0)).unwrap();
    assert_eq!((removals.count(), table.generation()), (0, 0));
    assert!(table.is_current(cached));
    assert_eq!(table.remove(FiAddr(0)), Ok(Removed::Gone(cached)));
    assert!(!table.is_current(cached));
    table.insert(peer(2).bytes()).unwrap();
    assert!(!table.is_current(cached));
    assert_eq!((removals.count(), table.generation()), (1, 1));
    assert_ne!(table.peer(FiAddr(0)).unwrap(), cached);
    assert_eq!(cached.address(), FiAddr(0));
}

#[test]
fn lookup_copies_what_fits_and_tells_the_whole_length() {
    let mut table = table();
    let address = peer(1);
    table.insert(address.bytes()).unwrap();
    let mut buffer = [0xee; 20];
    assert_eq!(table.lookup(FiAddr(0), &mut buffer[..4]), Ok(16));
    assert_eq!((&buffer[..4], buffer[4]), (&address.bytes()[..4], 0xee));
    assert_eq!(table.lookup(FiAddr(0), &mut buffer), Ok(16));
    assert_eq!((&buffer[..16], buffer[16]), (address.bytes(), 0xee));
    assert_eq!(table.lookup(FiAddr(0), &mut []), Ok(16));
    assert_eq!(table.address(FiAddr(0)).unwrap().to_string(), "fi_sockaddr_in://10.0.0.1:5000");
    assert_eq!(table.text(address.bytes()), "fi_sockaddr_in://10.0.0.1:5000");
}

#[test]
fn long_addresses_live_beside_their_slots() {
    let mut table = AddressTable::new(AddrFormat::Str, 0, UserIds::PerInsert);
    let long = Address::from_text(&format!("fi_shm://{}", "x".repeat(300)));
    let short = Address::from_text("fi_shm://1");
    for address in [&long, &short, &long] {
        table.insert_address(address, take_all).unwrap();
    }
    assert_eq!(table.get(FiAddr(0)), Ok(long.bytes()));
    assert_eq!(table.find(short.bytes()), Some(FiAddr(1)));
    table.remove(FiAddr(0)).unwrap();
    table.remove(FiAddr(0)).unwrap();
    assert_eq!(table.insert(&[b'y'; 32]), Ok(FiAddr(0)));
    assert_eq!(table.get(FiAddr(0)), Ok(&[b'y'; 32][..]));
    assert_eq!(table.find(long.bytes()), None);
}

#[test]
fn a_vector_with_a_bad_address_takes_the_good_ones() {
    let mut table = table();
    let addresses = [peer(1), Address::new(AddrFormat::Sockaddr, &[0; 16]), peer(2)];
    let (mut addrs, mut errors) = ([FiAddr(77); 3], [-1; 3]);
    let mut answers = Answers { addrs: Some(&mut addrs), errors: Some(&mut errors), with_user_ids: false };
    let inserted = table.insert_each(addresses.map(Ok), &mut answers, take_all);
    assert_eq!(inserted, 2);
    assert_eq!(addrs, [FiAddr(0), FiAddr::NOTAVAIL, FiAddr(1)]);
    assert_eq!(errors, [0, Errno::EADDRNOTAVAIL.get(), 0]);

    let unresolved = vec![Err(Error::new(Errno::EHOSTUNREACH)), Ok(peer(3))];
    assert_eq!(table.insert_each(unresolved, &mut Answers::default(), take_all), 1);
    assert_eq!(table.insert_each([], &mut Answers::default(), take_all), 0);
}

#[test]
fn a_transport_may_turn_a_peer_down() {
    let mut table = table();
    let error = table.insert_address(&peer(1), |_, _| Err(Error::new(Errno::EFIREWALLADDR))).unwrap_err();
    assert_eq!(error, Errno::EFIREWALLADDR);
    assert!(table.is_empty());
    assert_eq!(table.find_address(&peer(1)), None);
    let mut admitted = Vec::new();
    for n in [1, 2, 1] {
        let admit = |peer: PeerEntry, bytes: &[u8]| {
            admitted.push((peer.index(), bytes.to_vec()));
            Ok(())
        };
        table.insert_address(&peer(n), admit).unwrap();
    }
    assert_eq!(admitted, [(0, peer(1).bytes().to_vec()), (1, peer(2).bytes().to_vec())]);
    let mut gone = Vec::new();
    let all = [FiAddr(1), FiAddr(7), FiAddr(0), FiAddr(0)];
    assert_eq!(table.remove_each(&all, |peer| gone.push(peer.index())), Err(Error::new(Errno::EINVAL)));
    assert_eq!(gone, [1, 0]);
}

#[test]
fn an_address_of_another_format_needs_the_same_layout() {
    let mut table = AddressTable::new(AddrFormat::SockaddrIn, 0, UserIds::PerInsert);
    assert!(table.insert_address(&peer(1), take_all).is_ok());
    let error = table.insert_address(&socket("[2001:db8::1]:5"), take_all).unwrap_err();
    assert_eq!(error, Errno::EINVAL);
    let text = Address::from_text("fi_sockaddr_in://10.0.0.1:5");
    assert!(table.insert_address(&text, take_all).is_err());
    assert_eq!(table.find_address(&text), None);
}

#[test]
fn user_ids_given_when_inserting_replace_the_index_in_completions() {
    let mut table = table();
    let mut addrs = [FiAddr(1000), FiAddr(2000)];
    let mut answers = Answers { addrs: Some(&mut addrs), errors: None, with_user_ids: true };
    table.insert_each([Ok(peer(1)), Ok(peer(2))], &mut answers, take_all);
    assert_eq!(addrs, [FiAddr(0), FiAddr(1)]);
    table.insert(peer(3).bytes()).unwrap();
    let reported = |table: &AddressTable| [0, 1, 2].map(|index| table.reported(FiAddr(index)).0);
    assert_eq!(reported(&table), [1000, 2000, 2]);
    table.remove(FiAddr(0)).unwrap();
    table.insert(peer(4).bytes()).unwrap();
    assert_eq!(reported(&table), [0, 2000, 2]);
    assert_eq!(table.set_user_id(FiAddr(0), FiAddr(5)), Err(Error::new(Errno::EINVAL)));
}

#[test]
fn with_user_ids_as_the_rule_a_peer_is_unknown_until_it_has_one() {
    let mut table = AddressTable::new(AddrFormat::Sockaddr, 4, UserIds::Always);
    table.insert(peer(1).bytes()).unwrap();
    assert_eq!(table.reported(FiAddr(0)), FiAddr::NOTAVAIL);
    table.set_user_id(FiAddr(0), FiAddr(42)).unwrap();
    assert_eq!(table.reported(FiAddr(0)), FiAddr(42));
    assert!(table.set_user_id(FiAddr(1), FiAddr(43)).is_err());
    table.remove(FiAddr(0)).unwrap();
    table.insert(peer(1).bytes()).unwrap();
    assert_eq!(table.reported(FiAddr(0)), FiAddr::NOTAVAIL);
}

/// The table as it is described: a list of addresses with counts.
#[derive(Default)]
struct Model(Vec<Option<(Vec<u8>, u32)>>);

impl Model {
    fn find(&self, address: &[u8]) -> Option<usize> {
        self.0.iter().position(|slot| slot.as_ref().is_some_and(|(known, _)| known == address))
    }

    fn insert(&mut self, address: &[u8]) -> usize {
        if let Some(at) = self.find(address) {
            self.0[at].as_mut().unwrap().1 += 1;
            return at;
        }
        let at = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push(None);
        }
        self.0[at] = Some((address.to_vec(), 1));
        at
    }

    /// Whether there was something to remove.
    fn remove(&mut self, at: usize) -> bool {
        let Some(slot) = self.0.get_mut(at) else { return false };
        match slot {
            Some((_, count)) if *count > 1 => *count -= 1,
            Some(_) => *slot = None,
            None => return false,
        }
        true
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(Vec<u8>),
    Remove(usize),
    Find(Vec<u8>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few different addresses, some longer than a slot, so that duplicates and reuse are common.
    let address = || (0_u8..40, prop_oneof![Just(4_usize), Just(32), Just(33), Just(80)]);
    let bytes = |(first, len): (u8, usize)| vec![first; len];
    let step = prop_oneof![
        3 => address().prop_map(move |address| Step::Insert(bytes(address))),
        2 => (0_usize..50).prop_map(Step::Remove),
        1 => address().prop_map(move |address| Step::Find(bytes(address))),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn the_table_is_a_list_of_counted_addresses(steps in steps()) {
        let mut table = AddressTable::new(AddrFormat::Ucx, 0, UserIds::PerInsert);
        let mut model = Model::default();
        let mut generation = 0;
        for step in steps {
            match step {
                Step::Insert(address) => {
                    let at = model.insert(&address);
                    prop_assert_eq!(table.insert(&address), Ok(FiAddr(at as u64)));
                }
                Step::Remove(at) => {
                    let before = model.0.get(at).is_some_and(Option::is_some);
                    prop_assert_eq!(table.remove(FiAddr(at as u64)).is_ok(), model.remove(at));
                    generation += u64::from(before && model.0[at].is_none());
                }
                Step::Find(address) => {
                    let at = model.find(&address).map(|at| FiAddr(at as u64));
                    prop_assert_eq!(table.find(&address), at);
                }
            }
            prop_assert_eq!(table.generation(), generation);
        }
        let expected: Vec<_> = (0..).zip(&model.0).filter_map(|(at, slot)| {
            slot.as_ref().map(|(address, _)| (FiAddr(at), address.as_slice()))
        }).collect();
        prop_assert_eq!(table.len(), expected.len());
        prop_assert_eq!(table.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn any_bytes_are_taken_or_refused(
        format in prop::sample::select(AddrFormat::VALUES),
        bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut table = AddressTable::new(format, usize::MAX, UserIds::PerInsert);
        prop_assert_eq!(table.find(&bytes), None);
        match table.insert(&bytes) {
            Ok(at) => {
                let stored = table.get(at).unwrap().to_vec();
                prop_assert!(bytes.starts_with(&stored));
                prop_assert_eq!(table.find(&stored), Some(at));
                prop_assert_eq!(table.insert(&stored), Ok(at));
            }
            Err(_) => prop_assert!(table.is_empty()),
        }
        let _ = table.text(&bytes);
    }
}
