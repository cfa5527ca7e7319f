use std::time::Duration;

use ofi_api::{AddrFormat, Errno, FiAddr};

use super::SharedTable;

fn open(name: &str) -> SharedTable {
    SharedTable::open(("test", "here", name), AddrFormat::Str, 0, false).unwrap()
}

fn looked_at(name: &str) -> Result<SharedTable, Errno> {
    SharedTable::open(("test", "here", name), AddrFormat::Str, 0, true).map_err(|error| error.errno())
}

fn insert(table: &SharedTable, name: &str) -> u64 {
    table.turn().unwrap().insert(name.as_bytes()).unwrap().0
}

#[test]
fn a_number_means_the_same_to_all_who_share() {
    let (a, b) = (open("same"), open("same"));
    assert_eq!(insert(&a, "fi_shm://one"), 0);
    assert_eq!(insert(&b, "fi_shm://two"), 1);
    assert_eq!(insert(&a, "fi_shm://two"), 1, "it is there already");
    let reader = looked_at("same").unwrap();
    for table in [&a, &b, &reader] {
        assert_eq!(table.address(FiAddr(0)).as_deref(), Some(&b"fi_shm://one"[..]));
        assert_eq!(table.find(b"fi_shm://two"), Some(FiAddr(1)));
        assert_eq!(table.numbers(), [FiAddr(0), FiAddr(1)]);
        assert_eq!(table.len(), 2);
        let numbers = table.numbers_memory().cast::<[u64; 2]>();
        // SAFETY: the mapping is there while the table is, and nobody writes now.
        assert_eq!(unsafe { numbers.read_volatile() }, [0, 1]);
    }
    assert_eq!(reader.turn().err().map(|error| error.errno()), Some(Errno::EACCES));
}

#[test]
fn removals_of_one_are_seen_by_the_others_and_the_lowest_number_is_used_again() {
    let (a, b) = (open("removed"), open("removed"));
    for at in 0..5 {
        assert_eq!(insert(&a, &format!("fi_shm://{at}")), at);
    }
    let before = a.counts().removals();
    assert_eq!(b.turn().unwrap().remove(FiAddr(1)), Ok(true));
    assert_eq!(b.turn().unwrap().remove(FiAddr(3)), Ok(true));
    assert_ne!(a.counts().removals(), before);
    assert_eq!(a.address(FiAddr(1)), None);
    assert_eq!(a.find(b"fi_shm://3"), None);
    assert!(a.turn().unwrap().remove(FiAddr(3)).is_err());
    assert_eq!(insert(&a, "fi_shm://new"), 1);
    assert_eq!(insert(&b, "fi_shm://newer"), 3);
    assert_eq!(insert(&b, "fi_shm://newest"), 5);
    assert_eq!(a.find(b"fi_shm://new"), Some(FiAddr(1)));
    assert_eq!(a.len(), 6);
}

#[test]
fn an_address_that_moved_to_a_lower_number_is_found_there() {
    let (a, b) = (open("moved"), open("moved"));
    for name in ["fi_shm://0", "fi_shm://1", "fi_shm://2"] {
        insert(&a, name);
    }
    assert_eq!(b.len(), 3);
    for number in [0, 2] {
        a.turn().unwrap().remove(FiAddr(number)).unwrap();
    }
    assert_eq!(insert(&a, "fi_shm://2"), 0);
    assert_eq!(b.find(b"fi_shm://2"), Some(FiAddr(0)));
    assert_eq!(b.len(), 2);
}

#[test]
fn an_address_goes_when_it_was_removed_as_often_as_inserted() {
    let (a, b) = (open("often"), open("often"));
    insert(&a, "fi_shm://x");
    insert(&b, "fi_shm://x");
    assert_eq!(a.turn().unwrap().remove(FiAddr(0)), Ok(false));
    assert_eq!(b.find(b"fi_shm://x"), Some(FiAddr(0)));
    assert_eq!(a.turn().unwrap().remove(FiAddr(0)), Ok(true));
    assert_eq!(b.find(b"fi_shm://x"), None);
}

#[test]
fn the_name_goes_with_the_last_who_has_it() {
    assert_eq!(looked_at("gone").err(), Some(Errno::ENOENT));
    let a = open("gone");
    insert(&a, "fi_shm://x");
    let b = open("gone");
    drop(a);
    assert_eq!(open("gone").find(b"fi_shm://x"), Some(FiAddr(0)), "b has it, and answers");
    drop(b);
    assert_eq!(looked_at("gone").err(), Some(Errno::ENOENT));
    assert_eq!(open("gone").len(), 0, "a new one");
}

#[test]
fn names_are_of_a_provider_and_a_domain() {
    let a = open("scoped");
    insert(&a, "fi_shm://x");
    for (provider, domain) in [("other", "here"), ("test", "there")] {
        let other = SharedTable::open((provider, domain, "scoped"), AddrFormat::Str, 0, false).unwrap();
        assert_eq!(other.len(), 0);
    }
    let wrong = SharedTable::open(("test", "here", "scoped"), AddrFormat::SockaddrIn, 0, false);
    assert_eq!(wrong.err().map(|error| error.errno()), Some(Errno::EINVAL), "another format");
    for name in [String::new(), "x".repeat(5000)] {
        let error = SharedTable::open(("test", "here", &name), AddrFormat::Str, 0, false).err().unwrap();
        assert_eq!(error.errno(), Errno::EINVAL);
    }
}

#[test]
fn who_keeps_the_turn_holds_nobody_up_for_ever() {
    let (a, b) = (open("turn"), open("turn"));
    let turn = a.turn().unwrap();
    let start = std::time::Instant::now();
    assert_eq!(b.turn().err().map(|error| error.errno()), Some(Errno::ETIMEDOUT));
    assert!(start.elapsed() < Duration::from_secs(4));
    drop(turn);
    assert_eq!(insert(&b, "fi_shm://x"), 0);
}

#[test]
fn a_change_that_was_not_finished_moves_the_counts_of_all() {
    let (a, b) = (open("busy"), open("busy"));
    insert(&a, "fi_shm://x");
    b.memory.begin(); // and dies
    let before = a.counts().removals();
    insert(&b, "fi_shm://y");
    assert_ne!(a.counts().removals(), before);
    assert_eq!(a.find(b"fi_shm://y"), Some(FiAddr(1)));
}

#[test]
fn many_threads_insert_each_address_once() {
    let reference = open("many");
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                let table = open("many");
                for at in 0..200 {
                    table.turn().unwrap().insert(format!("fi_shm://{at}").as_bytes()).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(reference.len(), 200);
    for at in 0..200 {
        let number = reference.find(format!("fi_shm://{at}").as_bytes()).unwrap();
        assert_eq!(reference.address(number).unwrap(), format!("fi_shm://{at}").as_bytes());
    }
}

/// A sharer that writes anything anywhere: all others get results or errors in bounded time.
#[test]
fn a_sharer_that_scribbles_does_no_harm() {
    let (a, b) = (open("scribbled"), open("scribbled"));
    for at in 0..20 {
        insert(&a, &format!("fi_shm://{at}"));
    }
    let mut random = 0xD1B5_4A32_D192_ED03_u64;
    for _ in 0..200 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        b.memory.scribble(random);
        let _ = a.find(b"fi_shm://3");
        let _ = (a.address(FiAddr(random % 32)), a.len());
        if random.is_multiple_of(16) {
            let mut turn = a.turn().unwrap();
            let _ = turn.insert(format!("fi_shm://n{}", random % 64).as_bytes());
            let _ = turn.remove(FiAddr(random % 32));
        }
        assert!(a.numbers().len() <= a.memory.capacity() as usize);
    }
}
