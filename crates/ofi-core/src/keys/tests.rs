use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ofi_api::{Context, Desc, Errno, Error, HmemIface, KEY_NOTAVAIL, MrAccess, MrAttr, Piece, RemotePiece};
use proptest::prelude::*;

use super::*;

const REMOTE: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
const READ: MrAccess = MrAccess::REMOTE_READ;
const WRITE: MrAccess = MrAccess::REMOTE_WRITE;

fn piece(addr: usize, len: usize) -> Piece {
    Piece::new(std::ptr::without_provenance_mut(addr), len)
}

fn attr(pieces: &[Piece], access: MrAccess) -> MrAttr<'_> {
    // SAFETY: these tests only compute with addresses; nothing is read or written there.
    unsafe { MrAttr::new(pieces, access) }
}

fn requested(pieces: &[Piece], access: MrAccess, key: u64) -> MrAttr<'_> {
    changed(attr(pieces, access), |attr| attr.requested_key = key)
}

fn changed<'a>(mut attr: MrAttr<'a>, change: impl FnOnce(&mut MrAttr<'a>)) -> MrAttr<'a> {
    change(&mut attr);
    attr
}

fn table(addressing: Addressing) -> RegionTable<u32> {
    RegionTable::new(addressing, 4)
}

/// Registers with a random key and tells key and descriptor.
fn register(table: &RegionTable<u32>, pieces: &[Piece], access: MrAccess) -> (u64, Desc) {
    let desc = table.register(Registration::new(&attr(pieces, access), KeyChoice::Random, 7)).unwrap();
    (table.region(desc).unwrap().region().key(), desc)
}

fn granted<T: std::fmt::Debug>(result: Result<Grant<T>, Violation>) -> Vec<(usize, usize)> {
    result.unwrap().pieces().map(|piece| (piece.addr.addr(), piece.len)).collect()
}

#[test]
fn offsets_run_over_all_pieces() {
    let table = table(Addressing::Offset);
    let (key, _) = register(&table, &[piece(1000, 10), piece(5000, 20), piece(9000, 5)], REMOTE);
    let check = |addr, len| table.check(key, addr, len, READ);
    assert_eq!(granted(check(0, 10)), [(1000, 10)]);
    assert_eq!(granted(check(8, 4)), [(1008, 2), (5000, 2)]);
    assert_eq!(granted(check(0, 35)), [(1000, 10), (5000, 20), (9000, 5)]);
    assert_eq!(granted(check(10, 1)), [(5000, 1)]);
    assert_eq!(granted(check(34, 1)), [(9004, 1)]);
    assert_eq!(check(35, 1).unwrap_err(), Violation::Bounds);
    assert_eq!(check(0, 36).unwrap_err(), Violation::Bounds);
}

#[test]
fn virtual_addresses_stay_in_one_piece() {
    let table = table(Addressing::Virtual);
    let (key, _) = register(&table, &[piece(1000, 10), piece(5000, 20)], REMOTE);
    let check = |addr, len| table.check(key, addr, len, READ);
    assert_eq!(granted(check(1000, 10)), [(1000, 10)]);
    assert_eq!(granted(check(5019, 1)), [(5019, 1)]);
    for (addr, len) in [(999, 2), (1000, 11), (1010, 1), (4999, 1), (5010, 11), (0, 1)] {
        assert_eq!(check(addr, len).unwrap_err(), Violation::Bounds, "{addr} {len}");
    }
}

#[test]
fn an_access_of_no_bytes_is_checked_too() {
    for (addressing, inside, end) in [(Addressing::Offset, 0, 10), (Addressing::Virtual, 1000, 1010)] {
        let table = table(addressing);
        let (key, desc) = register(&table, &[piece(1000, 10)], READ | MrAccess::SEND);
        assert!(table.check(key, inside, 0, READ).unwrap().is_empty());
        assert_eq!(granted(table.check(key, end, 0, READ)), []);
        assert_eq!(table.check(key, end + 1, 0, READ).unwrap_err(), Violation::Bounds);
        assert_eq!(table.check(key, inside, 0, WRITE).unwrap_err(), Violation::Rights);
        assert_eq!(table.check(key ^ 1, inside, 0, READ).unwrap_err(), Violation::UnknownKey);
        assert!(table.check_local(desc, piece(0, 0), MrAccess::SEND).is_ok());
    }
}

#[test]
fn numbers_that_wrap_do_not_get_in() {
    for addressing in [Addressing::Offset, Addressing::Virtual] {
        let table = table(addressing);
        let (key, desc) = register(&table, &[piece(4096, 4096)], REMOTE | MrAccess::SEND);
        let check = |addr, len| table.check(key, addr, len, READ).unwrap_err();
        assert_eq!(check(u64::MAX, 1), Violation::Overflow);
        assert_eq!(check(1, u64::MAX), Violation::Overflow);
        assert_eq!(check(u64::MAX, u64::MAX), Violation::Overflow);
        assert_eq!(check(4096, u64::MAX - 4095), Violation::Overflow);
        assert_eq!(check(0, u64::MAX), Violation::Bounds);
        assert_eq!(check(u64::MAX, 0), Violation::Bounds);
        let local = table.check_local(desc, piece(usize::MAX, 2), MrAccess::SEND);
        assert_eq!(local.unwrap_err(), Violation::Overflow);
        assert_eq!(table.violations().of(Violation::Overflow), 5);
        assert_eq!(table.violations().total(), 7);
    }
}

#[test]
fn all_of_memory_is_a_region() {
    let table = table(Addressing::Offset);
    let (key, _) = register(&table, &[piece(0, usize::MAX)], REMOTE);
    let (promised, _) = register(&table, &[piece(1000, 10)], REMOTE);
    let remote = |key| [RemotePiece { addr: 0, len: 1, key }];
    assert!(!table.may_lend(&remote(key)) && table.may_lend(&remote(promised)));
    // Each access finds out what is mapped.
    let mut memory = vec![1u8; 100_000];
    let addr = memory.as_mut_ptr().expose_provenance();
    assert_eq!(granted(table.check(key, addr as u64 + 5, 90_000, REMOTE)), [(addr + 5, 90_000)]);
    for nowhere in [0, 8, u64::MAX - 1] {
        assert_eq!(table.check(key, nowhere, 1, READ).unwrap_err(), Violation::Unmapped);
        assert_eq!(table.check(key, nowhere, 1, WRITE).unwrap_err(), Violation::Unmapped);
        assert!(table.check(key, nowhere, 0, READ).unwrap().is_empty());
    }
    static CONSTANT: [u8; 8] = [1; 8];
    let constant = CONSTANT.as_ptr().expose_provenance() as u64;
    assert!(table.check(key, constant, 8, READ).is_ok());
    assert_eq!(table.check(key, constant, 8, REMOTE).unwrap_err(), Violation::Unmapped);
    assert_eq!(table.check(key, u64::MAX, 1, READ).unwrap_err(), Violation::Overflow);
}

#[test]
fn a_short_access_runs_under_the_check() {
    let table = table(Addressing::Offset);
    let (key, _) = register(&table, &[piece(1000, 10), piece(5000, 20)], READ);
    let run = |access| {
        table.check_and_run(key, 8, 4, access, |region, pieces| {
            (*region.data(), pieces.map(|piece| (piece.addr.addr(), piece.len)).collect::<Vec<_>>())
        })
    };
    assert_eq!(run(READ), Ok((7, vec![(1008, 2), (5000, 2)])));
    assert_eq!(run(WRITE), Err(Violation::Rights));
    assert_eq!(table.violations().of(Violation::Rights), 1);
}

#[test]
fn an_offset_moves_the_start() {
    let table = table(Addressing::Offset);
    let pieces = [piece(1000, 10)];
    let moved = changed(attr(&pieces, REMOTE), |attr| attr.offset = 100);
    let desc = table.register(Registration::new(&moved, KeyChoice::Random, 0)).unwrap();
    let region = table.region(desc).unwrap();
    assert_eq!(region.region().base_address(), 100);
    let key = region.region().key();
    assert_eq!(granted(table.check(key, 105, 5, READ)), [(1005, 5)]);
    assert_eq!(table.check(key, 99, 1, READ).unwrap_err(), Violation::Bounds);
    assert_eq!(table.check(key, 5, 1, READ).unwrap_err(), Violation::Bounds);
}

#[test]
fn what_cannot_be_registered_is_refused() {
    let table = table(Addressing::Virtual);
    let refused = |pieces: &[Piece], offset| {
        let attr = changed(attr(pieces, REMOTE), |attr| attr.offset = offset);
        table.register(Registration::new(&attr, KeyChoice::Random, 0)).unwrap_err().errno()
    };
    let good = piece(1000, 10);
    assert_eq!(refused(&[], 0), Errno::EINVAL);
    assert_eq!(refused(&[good; 5], 0), Errno::EINVAL);
    assert_eq!(refused(&[piece(1, usize::MAX)], 0), Errno::EINVAL);
    assert_eq!(refused(&[piece(0, usize::MAX), good], 0), Errno::EINVAL);
    assert_eq!(refused(&[good], 8), Errno::EINVAL);
    assert!(table.is_empty());
}

#[test]
fn empty_pieces_add_nothing() {
    for addressing in [Addressing::Virtual, Addressing::Offset] {
        let table = table(addressing);
        let (start, base) = if addressing == Addressing::Virtual { (1000, 1000) } else { (0, 0) };
        let (key, desc) = register(&table, &[piece(1000, 0)], REMOTE);
        assert_eq!(table.region(desc).unwrap().region().len(), 0);
        assert!(table.check(key, start, 0, READ).unwrap().is_empty());
        assert_eq!(table.check(key, start, 1, READ).unwrap_err(), Violation::Bounds);
        let (key, desc) = register(&table, &[piece(0, 0), piece(1000, 10), piece(5, 0)], REMOTE);
        assert_eq!(table.region(desc).unwrap().region().len(), 10);
        assert_eq!(table.region(desc).unwrap().region().base_address(), base);
        assert_eq!(granted(table.check(key, start, 10, READ)), [(1000, 10)]);
        let (key, _) = register(&table, &[piece(1000, 10), piece(0, 0), piece(3000, 10)], REMOTE);
        let whole: &[(usize, usize)] = if base == 0 { &[(1000, 10), (3000, 10)] } else { &[(1000, 10)] };
        assert_eq!(granted(table.check(key, start, if base == 0 { 20 } else { 10 }, READ)), whole);
    }
}

#[test]
fn requested_keys_are_taken_once_and_free_again_after_close() {
    let table = table(Addressing::Offset);
    let pieces = [piece(1000, 10)];
    let ask = |access, key| {
        table.register(Registration::new(&requested(&pieces, access, key), KeyChoice::Requested, 0))
    };
    let first = ask(REMOTE, 42).unwrap();
    assert_eq!(ask(READ, 42), Err(Error::new(Errno::ENOKEY)));
    let local = ask(MrAccess::SEND, 42).unwrap();
    assert_eq!(ask(REMOTE, KEY_NOTAVAIL), Err(Error::new(Errno::EKEYREJECTED)));
    table.close(first).unwrap().try_finish().unwrap();
    assert_eq!(table.check(42, 0, 1, READ).unwrap_err(), Violation::UnknownKey);
    let second = ask(WRITE, 42).unwrap();
    assert_eq!(table.check(42, 0, 1, READ).unwrap_err(), Violation::Rights);
    table.close(local).unwrap().try_finish().unwrap();
    assert!(table.check(42, 0, 1, WRITE).is_ok());
    assert_ne!(first, second);
    assert_eq!(table.close(first).unwrap_err(), Errno::EINVAL);
    assert_eq!(table.len(), 1);
}

#[test]
fn random_keys_differ_and_are_never_special() {
    let table = table(Addressing::Offset);
    let mut keys: Vec<_> = (0..1000).map(|_| register(&table, &[piece(1000, 10)], REMOTE).0).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 1000);
    assert!(!keys.contains(&0) && !keys.contains(&KEY_NOTAVAIL));
    // Bits are drawn, not counted: some key has its top half in use.
    assert!(keys.iter().filter(|key| **key >> 32 != 0).count() > 900);
}

#[test]
fn a_device_brings_its_key() {
    let table = table(Addressing::Virtual);
    let pieces = [piece(1000, 10)];
    let desc = table.register(Registration::new(&attr(&pieces, REMOTE), KeyChoice::Device(5), 1)).unwrap();
    assert_eq!(table.region(desc).unwrap().region().key(), 5);
}

#[test]
fn a_region_without_remote_rights_is_not_there_for_peers() {
    let table = table(Addressing::Offset);
    let (key, desc) = register(&table, &[piece(1000, 10)], MrAccess::SEND | MrAccess::RECV);
    assert_eq!(table.check(key, 0, 1, MrAccess::empty()).unwrap_err(), Violation::UnknownKey);
    assert_eq!(granted(table.check_local(desc, piece(1002, 3), MrAccess::SEND)), [(1002, 3)]);
    assert_eq!(table.check_local(desc, piece(1002, 9), MrAccess::SEND).unwrap_err(), Violation::Bounds);
    assert_eq!(table.check_local(desc, piece(1002, 3), MrAccess::READ).unwrap_err(), Violation::Rights);
    assert_eq!(
        table.check_local(Desc::NONE, piece(1002, 3), MrAccess::SEND).unwrap_err(),
        Violation::UnknownDesc
    );
}

#[test]
fn a_region_may_be_enabled_later() {
    let table = table(Addressing::Offset);
    let pieces = [piece(1000, 10)];
    let attr = requested(&pieces, REMOTE | MrAccess::SEND, 9);
    let later = Registration { is_enabled: false, ..Registration::new(&attr, KeyChoice::Requested, 0) };
    let desc = table.register(later).unwrap();
    assert_eq!(table.region(desc).unwrap().region().key(), KEY_NOTAVAIL);
    assert_eq!(table.check(9, 0, 1, READ).unwrap_err(), Violation::NotEnabled);
    assert_eq!(table.check_local(desc, piece(1000, 1), MrAccess::SEND).unwrap_err(), Violation::NotEnabled);
    table.enable(desc).unwrap();
    assert_eq!(table.region(desc).unwrap().region().key(), 9);
    assert!(table.check(9, 0, 1, READ).is_ok());
    assert_eq!(table.enable(Desc::NONE), Err(Error::new(Errno::EINVAL)));
}

#[test]
fn a_region_keeps_what_it_was_registered_with() {
    let table = RegionTable::new(Addressing::Virtual, 1);
    let pieces = [piece(1000, 10)];
    let attr = requested(&pieces, REMOTE, 77);
    let attr = changed(attr, |attr| (attr.iface, attr.device) = (HmemIface::Cuda, 3));
    let registration = Registration {
        flags: 1 << 49,
        context: Context(5),
        ..Registration::new(&attr, KeyChoice::Random, "data".to_owned())
    };
    let desc = table.register(registration).unwrap();
    let grant = table.region(desc).unwrap();
    let region = grant.region();
    assert_eq!((region.iface(), region.device(), region.flags()), (HmemIface::Cuda, 3, 1 << 49));
    assert_eq!((region.requested_key(), region.context(), region.desc()), (77, Context(5), desc));
    assert_eq!((region.len(), region.base_address(), region.access()), (10, 1000, REMOTE));
    assert_eq!((region.data().as_str(), region.pieces().len()), ("data", 1));
}

#[test]
fn a_base_stays_open_while_others_are_made_from_it() {
    let table = table(Addressing::Offset);
    let pieces = [piece(1000, 100)];
    let whole = attr(&pieces, MrAccess::SEND);
    let whole = changed(whole, |attr| (attr.iface, attr.device) = (HmemIface::Rocr, 2));
    let base = table.register(Registration::new(&whole, KeyChoice::Random, 0)).unwrap();
    let sub = |from, len| {
        let pieces = [piece(from, len)];
        let attr = attr(&pieces, REMOTE);
        table.register(Registration { base, ..Registration::new(&attr, KeyChoice::Random, 1) })
    };
    assert_eq!(sub(999, 2), Err(Error::new(Errno::EINVAL)));
    assert_eq!(sub(1099, 2), Err(Error::new(Errno::EINVAL)));
    let part = sub(1040, 60).unwrap();
    assert_eq!(table.region(part).unwrap().region().iface(), HmemIface::Rocr);
    assert!(table.region(part).unwrap().region().is_sub_region());
    assert_eq!(table.close(base).unwrap_err(), Errno::EBUSY);
    let key = table.region(part).unwrap().region().key();
    let running = table.check(key, 0, 60, READ).unwrap();
    let closing = table.close(part).unwrap();
    assert_eq!(table.close(base).unwrap_err(), Errno::EBUSY);
    drop(running);
    assert_eq!(closing.try_finish().unwrap(), 1);
    assert_eq!(table.close(base).unwrap().try_finish().unwrap(), 0);
    assert!(sub(1000, 1).is_err());
}

#[test]
fn closing_counts_and_waits_for_running_accesses() {
    let table = Arc::new(table(Addressing::Offset));
    let (key, desc) = register(&table, &[piece(1000, 10)], REMOTE);
    let first = table.check(key, 0, 1, READ).unwrap();
    let second = table.check(key, 0, 1, WRITE).unwrap();
    let closing = table.close(desc).unwrap();
    assert_eq!(closing.in_use(), 2);
    assert_eq!(table.check(key, 0, 1, READ).unwrap_err(), Violation::UnknownKey);
    assert_eq!(table.region(desc).unwrap_err(), Violation::UnknownDesc);
    drop(first);
    let closing = closing.wait(Duration::from_millis(1)).unwrap_err();
    assert_eq!((closing.in_use(), closing.region().len()), (1, 10));
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(second.len(), 1);
    });
    assert_eq!(closing.wait(Duration::MAX).unwrap(), 7);
    other.join().unwrap();
}

/// Closes regions while threads access them: a grant never sees returned data, and every region is returned.
#[test]
fn nothing_is_granted_on_what_was_handed_back() {
    let table = Arc::new(RegionTable::<Arc<AtomicBool>>::new(Addressing::Offset, 1));
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (table, stop) = (Arc::clone(&table), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut accesses = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(grant) = table.check(1, 0, 8, READ) {
                        assert!(!grant.region().data().load(Ordering::Relaxed));
                        accesses += 1;
                    }
                }
                accesses
            })
        })
        .collect();
    let pieces = [piece(1000, 10)];
    let attr = requested(&pieces, REMOTE, 1);
    for _ in 0..500 {
        let registration = Registration::new(&attr, KeyChoice::Requested, Arc::default());
        let desc = table.register(registration).unwrap();
        std::thread::yield_now();
        let handed_back = table.close(desc).unwrap().wait(Duration::from_secs(60)).unwrap();
        handed_back.store(true, Ordering::Relaxed);
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(table.is_empty());
}

/// A region as it is described: a list of byte addresses, and rights.
#[derive(Clone, Debug)]
struct Model {
    key: u64,
    pieces: Vec<(usize, usize)>,
    offset: u64,
    access: MrAccess,
}

impl Model {
    /// The bytes of an access, one by one, or why not.
    fn check(
        &self,
        addressing: Addressing,
        addr: u64,
        len: u64,
        access: MrAccess,
    ) -> Result<Vec<usize>, Violation> {
        if !self.access.contains(access) {
            return Err(Violation::Rights);
        }
        let (from, to) = (u128::from(addr), u128::from(addr) + u128::from(len));
        if to > u128::from(u64::MAX) {
            return Err(Violation::Overflow);
        }
        let inside = |start: u128, len: usize| from >= start && to <= start + len as u128;
        let bytes = |&(start, len): &(usize, usize)| start..start + len;
        match addressing {
            Addressing::Virtual => {
                let piece = self.pieces.iter().find(|(start, len)| inside(*start as u128, *len));
                piece.map(|_| (addr as usize..(addr + len) as usize).collect()).ok_or(Violation::Bounds)
            }
            Addressing::Offset => {
                let all: Vec<usize> = self.pieces.iter().flat_map(bytes).collect();
                let start = u128::from(self.offset);
                if !inside(start, all.len()) {
                    return Err(Violation::Bounds);
                }
                let skip = (from - start) as usize;
                Ok(all[skip..skip + len as usize].to_vec())
            }
        }
    }
}

fn models() -> impl Strategy<Value = Vec<Model>> {
    // Not from address 0, which would mean whatever is mapped there.
    let pieces = prop::collection::vec((1_usize..64, 1_usize..12), 1..4);
    let access = prop_oneof![Just(READ), Just(WRITE), Just(REMOTE)];
    let model = (0_u64..6, pieces, prop_oneof![Just(0), 1_u64..20], access)
        .prop_map(|(key, pieces, offset, access)| Model { key, pieces, offset, access });
    prop::collection::vec(model, 0..6)
}

/// Small numbers that hit regions, and the ones that an attacker would try.
fn hostile(small: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0..small,
        1 => Just(u64::MAX),
        1 => (u64::MAX - small)..u64::MAX,
        1 => Just(1 << 63),
        1 => any::<u64>(),
    ]
}

proptest! {
    #[test]
    fn the_table_grants_what_the_list_of_bytes_says(
        is_virtual: bool,
        models in models(),
        accesses in prop::collection::vec(
            (0_u64..7, hostile(90), hostile(20), prop_oneof![Just(READ), Just(WRITE), Just(REMOTE)]),
            1..60,
        ),
        closed in prop::collection::vec(0_usize..6, 0..3),
    ) {
        let addressing = if is_virtual { Addressing::Virtual } else { Addressing::Offset };
        let table = table(addressing);
        let mut open: Vec<(Model, Desc)> = Vec::new();
        for mut model in models {
            if is_virtual {
                model.offset = 0;
            }
            let pieces: Vec<Piece> = model.pieces.iter().map(|&(addr, len)| piece(addr, len)).collect();
            let attr = requested(&pieces, model.access, model.key);
            let attr = changed(attr, |attr| attr.offset = model.offset);
            let result = table.register(Registration::new(&attr, KeyChoice::Requested, 0));
            if open.iter().any(|(other, _)| other.key == model.key) {
                prop_assert_eq!(result, Err(Error::new(Errno::ENOKEY)));
            } else {
                open.push((model, result.unwrap()));
            }
        }
        for at in closed {
            if at < open.len() {
                table.close(open.remove(at).1).unwrap().try_finish().unwrap();
            }
        }
        let mut refused = 0;
        for (key, addr, len, access) in accesses {
            let expected = match open.iter().find(|(model, _)| model.key == key) {
                Some((model, _)) => model.check(addressing, addr, len, access),
                None => Err(Violation::UnknownKey),
            };
            let got = table.check(key, addr, len, access).map(|grant| {
                let pieces: Vec<_> = grant.pieces().collect();
                assert!(pieces.iter().all(|piece| piece.len > 0));
                let bytes: Vec<_> = pieces
                    .iter()
                    .flat_map(|piece| piece.addr.addr()..piece.addr.addr() + piece.len)
                    .collect();
                assert_eq!(bytes.len(), grant.len());
                bytes
            });
            refused += u64::from(got.is_err());
            prop_assert_eq!(got, expected);
        }
        prop_assert_eq!(table.violations().total(), refused);
        prop_assert_eq!(table.len(), open.len());
    }
}
